//! What leaves an inbox that fills up, and which finished activations are kept. Pure.

use std::collections::BTreeSet;
use subagent_crds::{
    Subagent, SubagentRun, SubagentStatus, bounds, conditions, message::InboxMessage, names,
    subagent_status::MessageStatus,
};

/// How full an inbox is after pruning: room for the next batch, so that not every message costs a write.
const ENTRIES_LEFT: usize = 32;
/// The same in bytes.
const BYTES_LEFT: usize = 128 * 1024;

/// Entries of the spec that the status does not list.
pub fn unknown(child: &Subagent) -> Vec<&InboxMessage> {
    let listed: BTreeSet<&str> = messages(child).iter().map(|message| message.id.as_str()).collect();
    child.spec.messages.iter().filter(|entry| !listed.contains(entry.id.as_str())).collect()
}

fn messages(child: &Subagent) -> &[MessageStatus] {
    child.status.as_ref().map(|status| status.messages.as_slice()).unwrap_or_default()
}

/// Messages that are over and whose entry somebody removed.
pub fn gone(child: &Subagent) -> Vec<&MessageStatus> {
    let entries: BTreeSet<&str> = child.spec.messages.iter().map(|entry| entry.id.as_str()).collect();
    messages(child)
        .iter()
        .filter(|message| message.outcome.is_terminal() && !entries.contains(message.id.as_str()))
        .collect()
}

/// Messages that are to be remembered and then to leave, oldest first; none while there is room. The entry that was there at
/// creation stays: the first manifest can be applied again.
pub fn leaving(child: &Subagent) -> Vec<&MessageStatus> {
    let mut entries = child.spec.messages.len();
    let mut bytes: usize = child.spec.messages.iter().map(InboxMessage::bytes).sum();
    let is_full = entries > bounds::INBOX_PRUNED || bytes > bounds::INBOX_TOTAL_PRUNED;
    let is_crowded = messages(child).len() + unknown(child).len() > bounds::INBOX_PRUNED;
    if !is_full && !is_crowded {
        return vec![];
    }
    let mut leaving = gone(child);
    if is_full {
        let mut over: Vec<_> = messages(child).iter().filter(|message| message.outcome.is_terminal()).collect();
        over.sort_by_key(|message| message.sequence);
        for message in over.into_iter().filter(|message| message.sequence > 1) {
            let Some(entry) = child.spec.messages.iter().find(|entry| entry.id == message.id) else { continue };
            if entries <= ENTRIES_LEFT && bytes <= BYTES_LEFT {
                break;
            }
            entries -= 1;
            bytes -= entry.bytes();
            leaving.push(message);
        }
    }
    leaving.sort_by_key(|message| message.sequence);
    leaving
}

/// Whether the memory of ids has to be read: for an id that is new, or for some that leave.
pub fn needs_memory(child: &Subagent) -> bool {
    !unknown(child).is_empty() || !leaving(child).is_empty()
}

/// A run of an activation that is over, or was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastRun {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Number of its activation.
    pub epoch: i64,
    /// True when it is terminal and Stopped.
    pub is_over: bool,
    /// True when it is being deleted.
    pub is_deleting: bool,
    /// True while our second finalizer holds it.
    pub is_held: bool,
}

impl PastRun {
    /// What is known of a run, if it is one of this child's activations.
    pub fn of(child: &Subagent, run: &SubagentRun) -> Option<Self> {
        let activation = run.spec.activation.as_ref()?;
        let is_ours = Some(&activation.subagent_ref.uid) == child.metadata.uid.as_ref();
        is_ours.then(|| Self {
            name: run.metadata.name.clone().unwrap_or_default(),
            uid: run.metadata.uid.clone().unwrap_or_default(),
            epoch: activation.epoch,
            is_over: run.status.as_ref().is_some_and(|status| {
                status.phase.is_some_and(subagent_crds::Phase::is_terminal)
                    && conditions::is_true(&status.conditions, conditions::STOPPED)
            }),
            is_deleting: run.metadata.deletion_timestamp.is_some(),
            is_held: run.metadata.finalizers.iter().flatten().any(|name| name == names::FOLD_FINALIZER),
        })
    }

    /// True once the status holds what became of every message it had: an activation leaves the status with its last fold.
    pub fn is_folded(&self, status: &SubagentStatus) -> bool {
        let is_current = status.activation.as_ref().is_some_and(|activation| activation.epoch == self.epoch);
        self.epoch <= status.epochs && !is_current
    }
}

/// Finished runs beyond what is kept: the newest ones, and the one that the last result is of. Oldest first.
pub fn surplus<'a>(child: &Subagent, status: &SubagentStatus, past: &'a [PastRun]) -> Vec<&'a PastRun> {
    let last = status.last_result.as_ref().map(|last| last.epoch);
    let done = |run: &&PastRun| run.is_over && !run.is_held && run.is_folded(status);
    let mut finished: Vec<_> = past.iter().filter(done).collect();
    finished.sort_by_key(|run| run.epoch);
    let kept = usize::try_from(child.spec.history_limit).unwrap_or(0).max(1);
    finished.truncate(finished.len().saturating_sub(kept));
    finished.retain(|run| !run.is_deleting && Some(run.epoch) != last);
    finished
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn child(entries: usize, terminal: usize, size: usize) -> Subagent {
        let spec: Vec<Value> =
            (1..=entries).map(|number| json!({"id": format!("m{number}"), "text": "x".repeat(size)})).collect();
        let status: Vec<Value> = (1..=entries)
            .map(|number| {
                let outcome = if number <= terminal { "Claimed" } else { "Queued" };
                json!({"id": format!("m{number}"), "sequence": number, "outcome": outcome})
            })
            .collect();
        serde_json::from_value(json!({
            "apiVersion": "subagents.dev/v1alpha1", "kind": "Subagent", "metadata": {"name": "c", "uid": "u"},
            "spec": {"providerRef": {"name": "p"}, "description": "d", "messages": spec},
            "status": {"epochs": 9, "messages": status},
        }))
        .unwrap()
    }

    #[rstest]
    #[case::room(48, 48, 1, None)]
    #[case::full(49, 49, 1, Some((2, 18)))]
    #[case::large(20, 20, 10 * 1024, Some((2, 9)))]
    #[case::all_under_way(60, 0, 1, None)]
    #[case::some_under_way(60, 5, 1, Some((2, 5)))]
    fn t5_the_oldest_that_are_over_leave_but_for_the_first(
        #[case] entries: usize,
        #[case] terminal: usize,
        #[case] size: usize,
        #[case] expected: Option<(i64, i64)>,
    ) {
        let child = child(entries, terminal, size);
        let leaving: Vec<_> = leaving(&child).iter().map(|message| message.sequence).collect();
        let expected: Vec<_> = expected.map(|(first, last)| (first..=last).collect()).unwrap_or_default();
        assert_eq!(leaving, expected);
    }

    #[test]
    fn t5_what_somebody_removed_leaves_when_room_is_needed() {
        let mut child = child(40, 40, 1);
        child.spec.messages.drain(..30);
        assert_eq!((gone(&child).len(), leaving(&child).len()), (30, 0), "there is room");
        child
            .spec
            .messages
            .extend((0..9).map(|number| InboxMessage { id: format!("n{number}"), ..InboxMessage::default() }));
        assert_eq!(leaving(&child).len(), 30);
        assert!(needs_memory(&child));
    }

    fn past(epoch: i64, is_held: bool) -> PastRun {
        PastRun { name: format!("c-{epoch}"), uid: "x".into(), epoch, is_over: true, is_deleting: false, is_held }
    }

    #[rstest]
    #[case::two(2, None, &[1, 2, 3])]
    #[case::none_but_the_newest(0, None, &[1, 2, 3, 4])]
    #[case::last_result(2, Some(2), &[1, 3])]
    fn only_the_newest_runs_are_kept_and_that_of_the_last_result(
        #[case] limit: i32,
        #[case] last: Option<i64>,
        #[case] expected: &[i64],
    ) {
        let mut child = child(1, 1, 1);
        child.spec.history_limit = limit;
        let mut status = child.status.clone().unwrap();
        status.last_result = last.map(|epoch| serde_json::from_value(json!({"epoch": epoch, "turn": 1})).unwrap());
        let all: Vec<_> = (1..=5).map(|epoch| past(epoch, false)).collect();
        let found: Vec<_> = surplus(&child, &status, &all).iter().map(|run| run.epoch).collect();
        assert_eq!(found, expected);
        let held: Vec<_> = (1..=5).map(|epoch| past(epoch, true)).collect();
        assert_eq!(surplus(&child, &status, &held), Vec::<&PastRun>::new(), "one that is not let go stays");
    }

    #[test]
    fn c44_a_run_is_folded_once_its_activation_has_left_the_status() {
        let mut status = child(1, 1, 1).status.unwrap();
        assert!(past(9, true).is_folded(&status));
        assert!(!past(10, true).is_folded(&status), "its number is not claimed yet");
        status.activation = Some(serde_json::from_value(json!({"epoch": 9, "runName": "c-9"})).unwrap());
        assert!(!past(9, true).is_folded(&status));
        assert!(past(8, true).is_folded(&status));
    }
}
