//! What a watch saw of every run: the phases it went through, and whether anything changed after the end.

use e2e_tests::{RunView, TestNamespace, processes};
use futures::{StreamExt, TryStreamExt};
use kube::{
    ResourceExt,
    runtime::{WatchStreamExt, watcher},
};
use scripted_agent::reporter::now_ms;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use subagent_crds::{SubagentRun, conditions};

/// Everything seen of one run.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The newest object.
    pub last: Option<SubagentRun>,
    /// Every phase, without repeats in a row.
    pub phases: Vec<String>,
    /// The end as it was stored first.
    pub end: Option<(String, String, String)>,
    /// UIDs of all pods it had.
    pub pods: Vec<String>,
    /// When `Stopped` was seen, in milliseconds since 1970.
    pub stopped_ms: Option<u64>,
    /// What was wrong.
    pub wrong: Vec<String>,
}

/// A watch on all runs of a namespace.
#[derive(Clone, Default)]
pub struct History(Arc<Mutex<BTreeMap<String, Seen>>>);

impl History {
    /// Follows the runs until the test ends.
    pub fn follow(ns: &TestNamespace) -> Self {
        let history = Self::default();
        let (runs, seen) = (ns.api::<SubagentRun>(), history.clone());
        let mut changes = watcher(runs, watcher::Config::default()).default_backoff().applied_objects().boxed();
        tokio::spawn(async move {
            loop {
                // An error is of a watch that begins anew by itself.
                if let Ok(Some(run)) = changes.try_next().await {
                    seen.see(run);
                }
            }
        });
        history
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The runs that are not proven stopped yet.
    pub fn alive(&self) -> Vec<SubagentRun> {
        let all = self.lock();
        all.values().filter(|seen| seen.stopped_ms.is_none()).filter_map(|seen| seen.last.clone()).collect()
    }

    /// How many are.
    pub fn stopped(&self) -> usize {
        self.lock().values().filter(|seen| seen.stopped_ms.is_some()).count()
    }

    /// All of it.
    pub fn all(&self) -> BTreeMap<String, Seen> {
        self.lock().clone()
    }

    fn see(&self, run: SubagentRun) {
        let mut all = self.lock();
        let seen = all.entry(run.name_any()).or_default();
        let status = run.seen();
        let phase = run.phase().map(|phase| phase.as_str().to_owned()).unwrap_or_default();
        if seen.phases.last() != Some(&phase) {
            seen.phases.push(phase);
        }
        for uid in status.attempts.iter().filter_map(|attempt| attempt.pod_uid.clone()).chain(status.pod_uid.clone()) {
            if !seen.pods.contains(&uid) {
                seen.pods.push(uid);
            }
        }
        let end = run.phase().is_some_and(|phase| phase.is_terminal()).then(|| run.end());
        match (&seen.end, &end) {
            (Some(first), now) if now.as_ref() != Some(first) => {
                seen.wrong.push(format!("its end {first:?} became {now:?}"));
            }
            (None, Some(end)) => seen.end = Some(end.clone()),
            _ => {}
        }
        let result = seen.last.as_ref().filter(|_| seen.end.is_some()).filter(|last| last.end() == run.end());
        if let Some(before) = result.filter(|before| before.text() != run.text()) {
            seen.wrong.push(format!("its result changed after its end, from {:?}", before.text()));
        }
        if seen.stopped_ms.is_none() && run.is(conditions::STOPPED) {
            seen.stopped_ms = Some(now_ms());
            for uid in &seen.pods {
                let left = processes::of_pod(uid);
                if !left.is_empty() {
                    seen.wrong.push(format!("processes {left:?} of pod {uid} live after Stopped"));
                }
            }
        }
        seen.last = Some(run);
    }
}
