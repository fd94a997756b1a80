//! What is told of a stored transition.

use super::*;
use serde_json::{Value, json};

fn status(value: Value) -> SubagentStatus {
    serde_json::from_value(value).expect("a status")
}

fn active(epoch: i64, state: &str, extra: Value) -> SubagentStatus {
    let activation = json!({"epoch": epoch, "runName": format!("c-{epoch}"), "state": state});
    status(crate::run::plan_tests::merged(json!({"phase": "Active", "epochs": epoch, "activation": activation}), extra))
}

fn turn(epoch: i64) -> Value {
    json!({"turns": [{"epoch": epoch, "turn": 1, "stopReason": "Completed"}],
        "lastResult": {"epoch": epoch, "turn": 1, "stopReason": "Completed"}})
}

fn told(old: &SubagentStatus, new: &SubagentStatus) -> Vec<(&'static str, bool)> {
    notes(old, new).into_iter().map(|note| (note.reason, note.for_parent)).collect()
}

/// c10, c44: each once, on the child and its parent.
#[test]
fn c10_c44_start_and_settlement_are_told_once() {
    let claimed = active(1, "Claimed", json!({}));
    assert_eq!(told(&SubagentStatus::default(), &claimed), []);
    let running = active(1, "Running", json!({}));
    assert_eq!(told(&claimed, &running), [("Started", true)]);
    assert_eq!(told(&running, &running), []);
    let closing = active(1, "Closing", turn(1));
    assert_eq!(told(&running, &closing), []);
    let settled = status(crate::run::plan_tests::merged(json!({"phase": "Settled", "epochs": 1}), turn(1)));
    assert_eq!(told(&closing, &settled), [("Settled", true)]);
    assert_eq!(told(&settled, &settled), []);
    assert!(notes(&closing, &settled)[0].text.contains("ended as Completed"));
    // One that was quicker than anybody looked.
    assert_eq!(told(&claimed, &closing), [("Started", true)]);
}

#[test]
fn c10_an_activation_that_failed_before_its_session_has_no_settlement() {
    let failed = status(json!({"phase": "Parked", "epochs": 1, "reason": "ImagePullFailed", "message": "no image"}));
    let notes = notes(&active(1, "Starting", json!({})), &failed);
    assert_eq!((notes[0].reason, notes[0].warning, notes.len()), ("StartFailed", true, 1));
    assert!(notes[0].text.contains("ImagePullFailed: no image"), "{}", notes[0].text);
}

/// c10: a cancellation is what somebody asked for, and no warning.
#[test]
fn c10_a_cancellation_is_told_as_one() {
    let before = active(1, "Starting", json!({}));
    let cancelled = status(json!({"phase": "Settled", "epochs": 1, "reason": "Cancelled", "message": "m"}));
    let told = |old: &SubagentStatus, new: &SubagentStatus| {
        let all = notes(old, new);
        assert_eq!(all.len(), 1, "{all:?}");
        (all[0].reason, all[0].warning)
    };
    assert_eq!(told(&before, &cancelled), ("Cancelled", false));
    assert_eq!(told(&active(1, "Running", json!({})), &cancelled), ("Settled", false));
}

/// R13: an activation that gets no run is told, and once.
#[test]
fn r13_a_run_that_is_refused_is_told_once() {
    let claimed = active(1, "Claimed", json!({}));
    let refused = active(1, "Claimed", json!({"reason": "RunRefused", "message": "a policy"}));
    assert_eq!(told(&claimed, &refused), [("RunRefused", false)]);
    assert_eq!(told(&refused, &refused), []);
    let failed = status(json!({"phase": "Parked", "epochs": 1, "reason": "RunRefused", "message": "a policy"}));
    assert_eq!(told(&refused, &failed), [("StartFailed", true)]);
}

/// r8: a new session where one would expect the old one is said aloud.
#[test]
fn r8_a_later_activation_without_a_stored_session_is_told() {
    let at_rest = status(json!({"phase": "Parked", "epochs": 1}));
    assert_eq!(told(&at_rest, &active(2, "Claimed", json!({}))), [("NewSession", false)]);
    let stored = json!({"sessionID": "s", "checkpoint": {"key": "k", "digest": "a", "size": 1, "epoch": 1, "turn": 1}});
    assert_eq!(told(&at_rest, &active(2, "Claimed", stored)), []);
    let skipped = json!({"conditions": [{"type": "NumberSkipped", "status": "True", "reason": "NameTaken", "message": "x",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    let skipped = active(2, "Claimed", skipped);
    assert_eq!(told(&active(1, "Claimed", json!({})), &skipped), [("NumberSkipped", false)]);
    let begun = json!({"conditions": [{"type": "NumberSkipped", "status": "False", "reason": "Begun", "message": "y",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    assert_eq!(told(&skipped, &active(2, "Starting", begun)), [], "its end is no news");
}

#[test]
fn r12_a_conflict_is_told_once_for_each_id() {
    let message = |conflict: bool| json!({"messages": [{"id": "m1", "sequence": 1, "conflict": conflict}]});
    let (plain, conflict) = (status(message(false)), status(message(true)));
    assert_eq!(told(&plain, &conflict), [("MessageConflict", false)]);
    assert_eq!(told(&conflict, &conflict), []);
}
