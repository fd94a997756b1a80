//! Contract c36 from outside: no two pods of one child at work at the same time, as the agents in them and the kubelet tell it,
//! whatever the status says.

use e2e_tests::TestNamespace;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use scripted_agent::collector::Event as Told;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use subagent_crds::names;

/// When the agent of a pod was heard of, in milliseconds since 1970 by its own clock.
struct Life<'a> {
    child: String,
    pod: &'a str,
    first_ms: u64,
    last_ms: u64,
}

/// Agents whose lives overlap, of pods of the same child. Each event has the name of its pod as its tag.
pub fn of_agents(events: &[Told], child_of: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut lives: BTreeMap<&str, Life<'_>> = BTreeMap::new();
    // What the collector adds itself has the collector's time.
    for Told { tag, time_ms, .. } in events.iter().filter(|event| event.kind != "disconnected") {
        let Some(child) = child_of(tag) else { continue };
        let (first_ms, last_ms) = (*time_ms, *time_ms);
        let life = lives.entry(tag).or_insert(Life { child, pod: tag, first_ms, last_ms });
        (life.first_ms, life.last_ms) = (life.first_ms.min(first_ms), life.last_ms.max(last_ms));
    }
    let mut lives: Vec<_> = lives.into_values().collect();
    lives.sort_by(|one, other| (&one.child, one.first_ms).cmp(&(&other.child, other.first_ms)));
    let overlap = |pair: &[Life<'_>]| {
        let [one, next] = pair else { return None };
        let together = one.last_ms.checked_sub(next.first_ms).filter(|_| one.child == next.child)?;
        Some(format!(
            "the agents of pods {} and {} of {} lived together for {together} ms",
            one.pod, next.pod, one.child
        ))
    };
    lives.windows(2).filter_map(overlap).collect()
}

/// What a watch saw of the pods of children.
#[derive(Clone, Default)]
pub struct Pods(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    /// Child of each pod that has not ended, by the pod's name.
    unfinished: BTreeMap<String, String>,
    wrong: Vec<String>,
}

impl Pods {
    /// Follows the worker pods until the test ends.
    pub fn follow(ns: &TestNamespace, child_of: impl Fn(&str) -> Option<String> + Send + 'static) -> Self {
        let pods = Self::default();
        let seen = pods.clone();
        let config = watcher::Config::default().labels(names::RUN_UID_LABEL);
        let mut changes = watcher(ns.api::<Pod>(), config).default_backoff().boxed();
        tokio::spawn(async move {
            loop {
                match changes.try_next().await {
                    Ok(Some(Event::Apply(pod) | Event::InitApply(pod))) => {
                        seen.lock().see(&pod.name_any(), child_of(&pod.name_any()).filter(|_| is_unfinished(&pod)));
                    }
                    Ok(Some(Event::Delete(pod))) => seen.lock().see(&pod.name_any(), None),
                    // It lists all of them next, and those that are gone are not among them.
                    Ok(Some(Event::Init)) => seen.lock().unfinished.clear(),
                    // An error is of a watch that begins anew by itself.
                    _ => {}
                }
            }
        });
        pods
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was wrong.
    pub fn wrong(&self) -> Vec<String> {
        self.lock().wrong.clone()
    }
}

impl Seen {
    fn see(&mut self, pod: &str, child: Option<String>) {
        let Some(child) = child else {
            self.unfinished.remove(pod);
            return;
        };
        let beside = self.unfinished.iter().find(|(name, of)| name.as_str() != pod && **of == child);
        if let Some((beside, _)) = beside {
            self.wrong.push(format!("pods {beside} and {pod} of {child} had containers at the same time"));
        }
        self.unfinished.insert(pod.to_owned(), child);
    }
}

/// Whether a container of a pod runs or may yet.
fn is_unfinished(pod: &Pod) -> bool {
    let status = pod.status.clone().unwrap_or_default();
    let is_bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    if pod.metadata.deletion_timestamp.is_some() && !is_bound {
        return false;
    }
    let containers = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let states: Vec<_> = containers.map(|container| container.state.clone().unwrap_or_default()).collect();
    if states.iter().any(|state| state.running.is_some()) {
        return true;
    }
    let has_ended = matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"));
    !has_ended && (states.is_empty() || states.iter().any(|state| state.terminated.is_none()))
}

#[test]
fn c36_lives_that_overlap_are_told() {
    let told = |tag: &str, time_ms| Told {
        received_ms: 0,
        kind: "stamp".into(),
        pid: 1,
        time_ms,
        tag: tag.into(),
        text: String::new(),
        report: serde_json::Value::Null,
    };
    let child_of = |pod: &str| Some(pod.chars().take(1).collect());
    let mut events = vec![told("a-1", 10), told("b-1", 15), told("a-1", 20), told("a-2", 21), told("b-1", 90)];
    assert_eq!(of_agents(&events, child_of), Vec::<String>::new());
    events.push(told("a-1", 25));
    assert_eq!(of_agents(&events, child_of), ["the agents of pods a-1 and a-2 of a lived together for 4 ms"]);
    let mut seen = Seen::default();
    seen.see("a-1", Some("a".into()));
    seen.see("b-1", Some("b".into()));
    seen.see("a-1", None);
    seen.see("a-2", Some("a".into()));
    assert_eq!(seen.wrong, Vec::<String>::new());
    seen.see("a-3", Some("a".into()));
    assert_eq!(seen.wrong.len(), 1);
}
