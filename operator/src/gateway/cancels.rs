//! Follows runs for two questions: is this run to stop, and has the inbox of this activation changed? A set `spec.cancel`, a
//! deletion, or a stop the controller has decided (a deadline) is forwarded to the run's connection; of an inbox only that
//! its spec changed.

use super::connections::Connections;
use crate::{decoding::Guarded, http::Part, run::plan::wants_stop};
use futures::{StreamExt, TryStreamExt, future::join_all};
use kube::{
    Api, Client, Resource,
    runtime::{WatchStreamExt, watcher},
};
use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use subagent_crds::{Phase, Reason, SubagentRun};

/// Runs per page of the first list: each may carry half a megabyte of prompt, and none of it is kept.
const PAGE: u32 = 50;

/// Why the worker of this run is to be told to stop, if it is: the controller's recorded reason, or that of a cancel it has
/// not recorded yet.
pub(super) fn stop_reason(run: &SubagentRun) -> Option<String> {
    let status = run.status.as_ref();
    if status.and_then(|status| status.phase).is_some_and(Phase::is_terminal) {
        return None;
    }
    let stopping = status.and_then(|status| status.stopping.as_ref()).map(|stopping| stopping.reason.clone());
    stopping.or_else(|| wants_stop(run).then(|| Reason::Cancelled.as_str().to_owned()))
}

/// What changes with the inbox of a run: an activation's is in its spec, and a one-shot run's status lists what it has, which only
/// grows.
fn inbox_version(run: &SubagentRun) -> i64 {
    let listed = run.status.as_ref().map_or(0, |status| status.messages.len());
    match run.spec.activation {
        Some(_) => run.metadata.generation.unwrap_or(0),
        None => i64::try_from(listed).unwrap_or(i64::MAX),
    }
}

/// Follows the runs of these namespaces, all of them when the list is empty. Sets `ready` once every one was listed.
/// Never ends.
pub(super) async fn follow(client: Client, namespaces: &[String], connections: Arc<Connections>, ready: &Part) {
    let apis: Vec<Api<Guarded<SubagentRun>>> = if namespaces.is_empty() {
        vec![Api::all(client)]
    } else {
        namespaces.iter().map(|namespace| Api::namespaced(client.clone(), namespace)).collect()
    };
    let unlisted = AtomicUsize::new(apis.len());
    let listed = || {
        if unlisted.fetch_sub(1, Ordering::Relaxed) == 1 {
            ready.set(true);
        }
    };
    join_all(apis.into_iter().map(|api| follow_one(api, &connections, &listed))).await;
}

async fn follow_one(api: Api<Guarded<SubagentRun>>, connections: &Connections, listed: &impl Fn()) {
    let mut scope = Scope { connections, stopping: HashSet::new(), listing: HashSet::new() };
    let mut first = true;
    let mut events = watcher(api, watcher::Config::default().page_size(PAGE)).default_backoff().boxed();
    loop {
        match events.try_next().await {
            Ok(Some(event)) => {
                let done = matches!(event, watcher::Event::InitDone);
                scope.apply(event);
                if done && std::mem::take(&mut first) {
                    listed();
                }
            }
            Ok(None) => return,
            // The stream goes on by itself, after a wait.
            Err(error) => tracing::warn!(%error, "watching runs"),
        }
    }
}

/// What one watch has seen.
struct Scope<'a> {
    connections: &'a Connections,
    stopping: HashSet<String>,
    listing: HashSet<String>,
}

impl Scope<'_> {
    fn apply(&mut self, event: watcher::Event<Guarded<SubagentRun>>) {
        match event {
            watcher::Event::Init => self.listing.clear(),
            watcher::Event::InitApply(run) => {
                if let Some(uid) = self.see(run) {
                    self.listing.insert(uid);
                }
            }
            watcher::Event::InitDone => {
                // Runs that went away while nobody looked.
                let kept = std::mem::take(&mut self.listing);
                for gone in self.stopping.difference(&kept) {
                    self.connections.forget(gone);
                }
                self.stopping = kept;
            }
            watcher::Event::Apply(run) => {
                if let Some(uid) = self.see(run) {
                    self.stopping.insert(uid);
                }
            }
            watcher::Event::Delete(run) => {
                if let Some(uid) = run.meta().uid.as_deref() {
                    self.forget(uid);
                }
            }
        }
    }

    /// Forwards a stop and returns the run's UID when there is one.
    fn see(&mut self, run: Guarded<SubagentRun>) -> Option<String> {
        // One that does not decode is stopped all the same.
        let run = run.0.unwrap_or_else(|undecodable| undecodable.run());
        let uid = run.metadata.uid.clone()?;
        self.connections.inbox_seen(&uid, inbox_version(&run));
        if let Some(reason) = stop_reason(&run) {
            self.connections.stop(&uid, &reason);
            Some(uid)
        } else {
            self.forget(&uid);
            None
        }
    }

    fn forget(&mut self, uid: &str) {
        if self.stopping.remove(uid) {
            self.connections.forget(uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use rstest::rstest;
    use serde_json::{Value, json};

    /// A run that does not decode.
    fn glimpse(uid: &str, changes: Value) -> Guarded<SubagentRun> {
        let mut run = json!({
            "metadata": {"name": uid, "uid": uid},
            "spec": {"description": 7, "prompt": {"text": "t"}},
            "status": {"phase": "Running"},
        });
        for (pointer, value) in changes.as_object().unwrap() {
            run[pointer] = value.clone();
        }
        serde_json::from_value(run).unwrap()
    }

    #[rstest]
    #[case::running(json!({}), false)]
    #[case::cancelled(json!({"spec": {"cancel": true}}), true)]
    #[case::deleted(json!({"metadata": {"uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"}}), true)]
    #[case::deadline(json!({"status": {"phase": "Running", "stopping": {"reason": "DeadlineExceeded", "at": "2026-01-01T00:00:00Z"}}}), true)]
    #[case::over(json!({"spec": {"cancel": true}, "status": {"phase": "Cancelled"}}), false)]
    #[case::without_status(json!({"status": {}, "spec": {"cancel": true}}), true)]
    fn c51_a_run_is_to_stop_when_it_is_cancelled_deleted_or_out_of_time(
        #[case] changes: Value,
        #[case] expected: bool,
    ) {
        let connections = Connections::new(Arc::new(Metrics::new()));
        let mut scope = Scope { connections: &connections, stopping: HashSet::new(), listing: HashSet::new() };
        assert_eq!(scope.see(glimpse("u", changes)).is_some(), expected);
    }

    #[test]
    fn a_list_after_a_gap_forgets_what_went_away() {
        let connections = Arc::new(Connections::new(Arc::new(Metrics::new())));
        let mut scope = Scope { connections: &connections, stopping: HashSet::new(), listing: HashSet::new() };
        let cancelled = || json!({"spec": {"cancel": true}});
        let told = |uid: &str| connections.join(uid, None).stop.borrow().is_some();
        scope.apply(watcher::Event::Init);
        scope.apply(watcher::Event::InitApply(glimpse("a", cancelled())));
        scope.apply(watcher::Event::InitApply(glimpse("b", json!({}))));
        scope.apply(watcher::Event::InitDone);
        assert!(told("a") && !told("b"));
        scope.apply(watcher::Event::Apply(glimpse("b", cancelled())));
        assert!(told("b"));
        // A second list, in which "a" is gone.
        scope.apply(watcher::Event::Init);
        scope.apply(watcher::Event::InitApply(glimpse("b", cancelled())));
        assert!(told("a"), "nothing is forgotten before the list is complete");
        scope.apply(watcher::Event::InitDone);
        assert!(!told("a") && told("b"));
        scope.apply(watcher::Event::Delete(glimpse("b", cancelled())));
        assert!(!told("b"));
    }
}
