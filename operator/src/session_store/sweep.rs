//! Sweeps checkpoints that nothing refers to any more: those that a later one has replaced while nobody was there to remove
//! them at once, and what a child left whose own end could not take it along.
//!
//! A checkpoint goes when it is old, when no object that is read live after the store was listed refers to it, and when that was
//! so in the pass before as well: what refers to it moves from a run's report to the child's status to the next run, and one
//! pass reads these one after the other. Who dies between two passes forgets the first: that only takes longer.

use super::{Entry, Key, Store, StoreError};
use crate::{
    api::{self, ReadError},
    context::Context,
    decoding::Guarded,
    watching::Scope,
};
use futures::TryStreamExt;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::{Client, api::ListParams};
use std::{collections::HashSet, time::Duration};
use subagent_crds::{Subagent, SubagentRun, names};
use tokio_util::sync::CancellationToken;

/// Time between two passes.
const INTERVAL: Duration = Duration::from_secs(3600);
/// Objects read at a time: one may hold half a megabyte of messages.
const PAGE: u32 = 50;
/// Age at which a checkpoint goes whose child is not there. A child takes its checkpoints along when it is deleted, so there is
/// hardly ever one; and if another installation uses the same place by mistake, it is theirs.
const OF_NO_CHILD: SignedDuration = SignedDuration::from_hours(30 * 24);
/// Age at which the file of a writer counts as one that died.
const UNFINISHED: Duration = Duration::from_secs(24 * 3600);

/// A pass that did not come to its end. Nothing is lost by that.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The store did not do its part.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The API server did not.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// What objects refer to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// Keys that an object names.
    keys: HashSet<String>,
    /// UIDs of the children that are there.
    children: HashSet<String>,
    /// UIDs of children of which an object does not decode: what it names is not known.
    unknown: HashSet<String>,
    /// Whether every namespace was read: only then is a child that was not seen one that is not there.
    everywhere: bool,
}

impl References {
    /// Notes what a run refers to: what it continues from, and what its worker stored last.
    pub fn of_run(&mut self, run: Guarded<SubagentRun>) {
        match run.0 {
            Ok(run) => {
                let session = run.spec.activation.and_then(|activation| activation.session);
                let report = run.status.and_then(|status| status.report).and_then(|report| report.checkpoint);
                self.keys.extend(session.map(|session| session.checkpoint.key));
                self.keys.extend(report.map(|checkpoint| checkpoint.key));
            }
            Err(undecodable) => {
                let child = undecodable.metadata.labels.unwrap_or_default().remove(names::SUBAGENT_UID_LABEL);
                self.unknown.extend(child);
            }
        }
    }

    /// Notes what a child refers to.
    pub fn of_child(&mut self, child: Guarded<Subagent>) {
        let (uid, checkpoint) = match child.0 {
            Ok(child) => (child.metadata.uid, child.status.and_then(|status| status.checkpoint)),
            Err(undecodable) => {
                self.unknown.extend(undecodable.metadata.uid.clone());
                (undecodable.metadata.uid, None)
            }
        };
        self.children.extend(uid);
        self.keys.extend(checkpoint.map(|checkpoint| checkpoint.key));
    }

    /// Whether an object names this checkpoint, or may: what does not decode may name any of its child.
    pub fn may_name(&self, key: &Key) -> bool {
        self.keys.contains(&key.to_string()) || self.unknown.contains(&key.child_uid)
    }

    /// Whether a checkpoint may go, as far as this pass knows. `keep` is how long one is kept that was replaced.
    pub fn release(&self, entry: &Entry, keep: SignedDuration, now: Timestamp) -> bool {
        let child = &entry.key.child_uid;
        if self.may_name(&entry.key) {
            return false;
        }
        let age = now.duration_since(entry.written);
        if self.children.contains(child) { age >= keep } else { self.everywhere && age >= keep.max(OF_NO_CHILD) }
    }
}

/// Sweeps until the token is cancelled. Without a store there is nothing to do but wait for that.
pub async fn run(context: Context, scopes: Vec<Scope>, shutdown: CancellationToken) {
    let Some(store) = context.store.clone() else { return shutdown.cancelled().await };
    let keep = SignedDuration::from_secs(context.settings.session_store_keep_seconds.into());
    let mut suspects = HashSet::new();
    while shutdown.run_until_cancelled(tokio::time::sleep(INTERVAL)).await.is_some() {
        let pass = pass(&context.client, &store, &scopes, keep, &suspects, Timestamp::now());
        let Some(passed) = shutdown.run_until_cancelled(pass).await else { return };
        if let Err(error) = store.tidy(UNFINISHED).await {
            tracing::warn!(%error, "tidying the session store failed; the next pass tries again");
        }
        match passed {
            Ok(found) => suspects = found,
            Err(error) => tracing::warn!(%error, "sweeping checkpoints failed; the next pass tries again"),
        }
    }
}

/// One pass. Removes those of the `suspects` of the pass before that nothing refers to still, and returns the new ones.
///
/// # Errors
/// [`SweepError`].
pub async fn pass(
    client: &Client,
    store: &Store,
    scopes: &[Scope],
    keep: SignedDuration,
    suspects: &HashSet<Key>,
    now: Timestamp,
) -> Result<HashSet<Key>, SweepError> {
    // First: whatever is stored after this is not looked at.
    let is_old = |entry: &Entry| now.duration_since(entry.written) >= keep;
    let old: Vec<Entry> = store.list().try_filter(|entry| std::future::ready(is_old(entry))).try_collect().await?;
    if old.is_empty() {
        return Ok(HashSet::new());
    }
    let references = references(client, scopes).await?;
    let released = old.into_iter().filter(|entry| references.release(entry, keep, now)).map(|entry| entry.key);
    let (gone, new): (HashSet<_>, HashSet<_>) = released.partition(|key| suspects.contains(key));
    for key in &gone {
        store.remove(key).await?;
    }
    if !gone.is_empty() {
        tracing::info!(removed = gone.len(), "checkpoints that nothing refers to were removed");
    }
    Ok(new)
}

async fn references(client: &Client, scopes: &[Scope]) -> Result<References, ReadError> {
    let mut found = References { everywhere: scopes.contains(&Scope::Cluster), ..References::default() };
    let paged = ListParams::default().limit(PAGE);
    for scope in scopes {
        // Nothing is kept of a page but what is noted: all at once could be more than the memory holds.
        let note = |run| {
            found.of_run(run);
            None::<()>
        };
        api::list(&scope.api::<Guarded<SubagentRun>>(client), paged.clone(), "runs", note).await?;
        let note = |child| {
            found.of_child(child);
            None::<()>
        };
        api::list(&scope.api::<Guarded<Subagent>>(client), paged.clone(), "children", note).await?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    const DAY: SignedDuration = SignedDuration::from_hours(24);

    fn key(child: &str, turn: i64) -> String {
        super::super::key(child, 1, turn, &"0a".repeat(32))
    }

    fn entry(child: &str, turn: i64, hours: i64) -> Entry {
        let written = Timestamp::UNIX_EPOCH - SignedDuration::from_hours(hours);
        Entry { key: Key::parse(&key(child, turn)).unwrap(), size: 1, written }
    }

    fn run(spec: Value, status: Value) -> Guarded<SubagentRun> {
        let mut run = json!({
            "apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentRun",
            "metadata": {"name": "r", "uid": "run", "labels": {names::SUBAGENT_UID_LABEL: "odd"}},
            "spec": {"providerRef": {"name": "p"}, "description": "d"}, "status": status,
        });
        run["spec"]["activation"] = spec;
        serde_json::from_value(run).unwrap()
    }

    fn child(uid: &str, checkpoint: Value) -> Guarded<Subagent> {
        let mut child = json!({
            "apiVersion": "subagents.dev/v1alpha1", "kind": "Subagent", "metadata": {"name": uid, "uid": uid},
            "spec": {"providerRef": {"name": "p"}, "description": "d", "messages": [{"id": "m", "text": "t"}]},
            "status": {},
        });
        if !checkpoint.is_null() {
            child["status"]["checkpoint"] = checkpoint;
        }
        serde_json::from_value(child).unwrap()
    }

    fn stored(key: &str) -> Value {
        json!({"key": key, "digest": "0a".repeat(32), "size": 1, "epoch": 1, "turn": 1, "at": "2026-01-01T00:00:00Z"})
    }

    /// A child whose status names turn 3, whose next run continues from turn 2 and reports turn 4.
    fn references(everywhere: bool) -> References {
        let mut found = References { everywhere, ..References::default() };
        found.of_child(child("child", stored(&key("child", 3))));
        let session = json!({"id": "s", "checkpoint": {"key": key("child", 2), "digest": "0a".repeat(32), "size": 1}});
        let activation = json!({"subagentRef": {"name": "c", "uid": "child"}, "epoch": 2, "session": session});
        let report = json!({"podUID": "p", "attempt": 1, "seq": 1, "checkpoint": stored(&key("child", 4))});
        found.of_run(run(activation, json!({"report": report})));
        // Objects of another version.
        found.of_child(child("strange", json!({"key": 5})));
        found.of_run(run(json!(5), json!({})));
        found
    }

    #[rstest]
    #[case::replaced("child", 1, 24, true)]
    #[case::replaced_but_young("child", 1, 23, false)]
    #[case::the_run_continues_from_it("child", 2, 9999, false)]
    #[case::the_child_names_it("child", 3, 9999, false)]
    #[case::the_worker_reported_it("child", 4, 9999, false)]
    #[case::stored_and_not_reported_yet("child", 5, 1, false)]
    #[case::c1_the_child_does_not_decode("strange", 1, 9999, false)]
    #[case::c1_a_run_of_it_does_not_decode("odd", 1, 9999, false)]
    #[case::its_child_is_gone("gone", 1, 30 * 24, true)]
    #[case::its_child_is_gone_or_another_installations("gone", 1, 29 * 24, false)]
    fn what_nothing_refers_to_goes_by_age(
        #[case] child: &str,
        #[case] turn: i64,
        #[case] hours: i64,
        #[case] goes: bool,
    ) {
        assert_eq!(references(true).release(&entry(child, turn, hours), DAY, Timestamp::UNIX_EPOCH), goes);
    }

    /// With `watchNamespaces`, a child that is not seen may be in a namespace that is not watched any more.
    #[test]
    fn a_child_that_is_not_seen_is_not_gone_where_not_all_is_seen() {
        let references = references(false);
        assert!(!references.release(&entry("gone", 1, 9999), DAY, Timestamp::UNIX_EPOCH));
        assert!(references.release(&entry("child", 1, 24), DAY, Timestamp::UNIX_EPOCH));
    }
}
