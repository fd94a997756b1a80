//! Condition types and the one way to set a condition.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Provider: its spec is valid, the API server accepts its pods, its agent can be run.
pub const READY: &str = "Ready";
/// Run: its request was checked and taken; `False` while it waits for a provider or for ever after a refusal.
pub const ACCEPTED: &str = "Accepted";
/// Run: the worker of the current attempt is connected or has been.
pub const WORKER_READY: &str = "WorkerReady";
/// Run: the ACP session exists (contract c8).
pub const STARTED: &str = "Started";
/// Run: an attempt ended although its turn had begun; side effects are possible.
pub const INTERRUPTED: &str = "Interrupted";
/// Run: no process of it runs any more, with proof (contract c50).
pub const STOPPED: &str = "Stopped";
/// Run: it is over, whatever the outcome; the reason is the phase.
pub const FINISHED: &str = "Finished";
/// Run: it is over and its agent completed.
pub const SUCCEEDED: &str = "Succeeded";
/// Child: an activation of it is under way.
pub const ACTIVE: &str = "Active";
/// Child: nothing of it runs, nothing waits, no child of it is live, and it can be spoken to again.
pub const SETTLED: &str = "Settled";
/// Child: its session is stored and can be continued.
pub const RESUMABLE: &str = "Resumable";
/// Child: `False` while a part of the memory of its messages' ids is gone; absent while that never happened.
pub const MEMORY_WHOLE: &str = "MemoryWhole";
/// Child: `False` while messages that are over do not leave the inbox, because what remembers their ids cannot be stored; absent
/// while that never happened.
pub const INBOX_PRUNED: &str = "InboxPruned";
/// Child: the name of an activation's run was taken by a foreign object, so its number was skipped; `False` once a later
/// activation has its run. Absent while that never happened.
pub const NUMBER_SKIPPED: &str = "NumberSkipped";
/// Child: the claim of its workspace was created; `False` while that is refused. Absent without `spec.workspace`.
pub const WORKSPACE_CREATED: &str = "WorkspaceCreated";

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// `True`
    True,
    /// `False`
    False,
    /// `Unknown`
    Unknown,
}

impl Status {
    /// The API's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Status {
    fn from(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }
}

/// The condition of a type, if there.
pub fn get<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// True when the condition of a type is there and `True`.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    get(conditions, type_).is_some_and(|condition| condition.status == "True")
}

/// Sets a condition. `lastTransitionTime` moves only when the status flips; nothing at all changes when all is equal,
/// so a status that says the same is never written again. `message` is cut to what the schema takes.
pub fn set(
    conditions: &mut Vec<Condition>,
    type_: &str,
    status: Status,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: &Time,
) {
    let message = cut(message, crate::bounds::MESSAGE);
    let new = |last_transition_time| Condition {
        type_: type_.to_owned(),
        status: status.as_str().to_owned(),
        reason: reason.to_owned(),
        message: message.clone(),
        observed_generation: generation,
        last_transition_time,
    };
    match conditions.iter_mut().find(|condition| condition.type_ == type_) {
        Some(old) => {
            let since = if old.status == status.as_str() { old.last_transition_time.clone() } else { now.clone() };
            *old = new(since);
        }
        None => conditions.push(new(now.clone())),
    }
}

/// The longest prefix of at most `max` bytes that ends on a character boundary, with a mark when something was cut.
pub fn cut(text: &str, max: usize) -> String {
    const MARK: &str = " [cut]";
    if text.len() <= max {
        return text.to_owned();
    }
    let end = (0..=max.saturating_sub(MARK.len())).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    format!("{}{MARK}", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::jiff::Timestamp;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn a_transition_time_moves_only_with_the_status() {
        let mut conditions = vec![];
        set(&mut conditions, READY, Status::False, "A", "a", Some(1), &at(1));
        set(&mut conditions, READY, Status::False, "B", "b", Some(2), &at(2));
        assert_eq!(conditions[0].last_transition_time, at(1));
        assert_eq!((conditions[0].reason.as_str(), conditions[0].observed_generation), ("B", Some(2)));
        set(&mut conditions, READY, Status::True, "C", "c", Some(2), &at(3));
        assert_eq!(conditions[0].last_transition_time, at(3));
        assert_eq!(conditions.len(), 1);
        assert!(is_true(&conditions, READY) && !is_true(&conditions, STOPPED));
    }

    #[test]
    fn c30_a_cut_is_marked_and_ends_on_a_character() {
        assert_eq!(cut("short", 5), "short");
        let text = "ä".repeat(600);
        let got = cut(&text, 1024);
        assert!(got.len() <= 1024 && got.ends_with("ä [cut]"), "{got}");
    }
}
