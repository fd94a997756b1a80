//! Tables for runs that have others below them (contract c51).

use super::{Descendant, Family, LOOK_AGAIN, TELL_AGAIN, TTL_LOOK};
use crate::run::{
    plan::{Step, World, next},
    plan_tests::{
        CREATED, at, exited, finished, merged, report, run, running, settle, status, stopped, with_pod, world,
    },
};
use rstest::rstest;
use serde_json::{Value, json};
use std::time::Duration;
use subagent_crds::Phase;

fn below(extra: Value) -> Descendant {
    let base = json!({
        "metadata": {"name": "child", "uid": "child-uid"},
        "spec": {"parentRef": {"kind": "SubagentRun", "name": "r"}},
        "status": {"phase": "Running", "lineage": {"depth": 2, "parentUID": "run-uid", "rootUID": "run-uid", "ancestors": ["run-uid"]}},
    });
    Descendant::below("run-uid", &run(merged(base, extra))).expect("a descendant")
}

fn told() -> Value {
    json!({"spec": {"cancel": true}})
}

fn over(phase: &str, is_stopped: &str) -> Value {
    json!({"status": {"phase": phase, "finishedAt": "2026-01-01T00:00:08Z", "conditions": [
        {"type": "Stopped", "status": is_stopped, "reason": "X", "message": "", "lastTransitionTime": CREATED}]}})
}

fn cancelled() -> Value {
    merged(merged(with_pod(), report(json!({}))), json!({"spec": {"cancel": true}}))
}

fn deleting() -> Value {
    merged(with_pod(), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:05Z"}}))
}

fn completed() -> Value {
    let stopped =
        json!([{"type": "Stopped", "status": "True", "reason": "X", "message": "", "lastTransitionTime": CREATED}]);
    merged(
        with_pod(),
        json!({"status": {"phase": "Completed", "finishedAt": "2026-01-01T00:00:03Z", "conditions": stopped}}),
    )
}

fn with(world: &mut World, found: Vec<Descendant>) {
    world.family = Family { found: Some(found), told: world.family.told.take() };
}

fn why(world: &World) -> String {
    let status = world.run.status.as_ref().unwrap();
    let stopped = status.conditions.iter().find(|one| one.type_ == "Stopped").expect("Stopped");
    format!("{} {}", stopped.reason, stopped.message)
}

#[test]
fn c51_only_what_is_below_a_run_is_its_descendant() {
    let other = run(json!({"status": {"lineage": {"depth": 2, "rootUID": "x", "ancestors": ["x"]}}}));
    assert_eq!(Descendant::below("run-uid", &other), None);
    assert_eq!(Descendant::below("run-uid", &run(json!({}))), None, "one that is not accepted has no lineage");
}

/// S4: what is over, and what was told, needs no telling; what is over is waited for only until it is proven stopped.
#[rstest]
#[case::running(json!({}), true, true, true)]
#[case::told(told(), true, false, true)]
#[case::deleting(json!({"metadata": {"deletionTimestamp": CREATED}}), true, false, false)]
#[case::over(over("Completed", "True"), false, false, false)]
#[case::over_and_not_stopped(over("Cancelled", "False"), true, false, true)]
fn c51_s4_a_descendant_that_is_terminal_and_stopped_counts_as_cancelled(
    #[case] extra: Value,
    #[case] live: bool,
    #[case] to_cancel: bool,
    #[case] to_delete: bool,
) {
    let one = below(extra);
    assert_eq!((one.is_live(), one.is_to_cancel(), one.is_to_delete(at(9))), (live, to_cancel, to_delete));
}

#[test]
fn c51_a_deletion_forgets_what_was_alive_when_it_began() {
    assert!(below(over("Cancelled", "True")).is_to_delete(at(7)), "it ended because of the deletion");
    assert!(!below(over("Cancelled", "True")).is_to_delete(at(8)), "it had ended before");
}

/// Top-down: the parent's stop is stored, which closes it for children, before any of them is looked at or told.
#[rstest]
#[case::cancelled(cancelled())]
#[case::deleted(deleting())]
fn c51_admission_closes_before_descendants_are_told(#[case] how: Value) {
    let mut world = world(run(how), Some(running()));
    with(&mut world, vec![below(json!({}))]);
    let stored = status(next(&world, at(6)));
    assert!(stored.stopping.is_some());
    world.run.status = Some(stored);
    assert_eq!(next(&world, at(6)), Step::StopDescendants);
    world.family.told = Some(vec![]);
    assert_ne!(next(&world, at(6)), Step::StopDescendants, "once in a reconcile");
}

#[test]
fn c51_nothing_ends_before_its_descendants_were_looked_at() {
    let mut world = world(run(merged(merged(with_pod(), finished("Aborted", "Cancelled")), told())), Some(exited()));
    world.family = Family::default();
    let wait = settle(&mut world, at(10));
    assert_eq!(wait, Step::Wait(Some(TELL_AGAIN)));
    assert_eq!(world.run.status.as_ref().unwrap().phase, Some(Phase::Cancelling));
}

/// S3: the phase stays Cancelling, and the condition names who is waited for, however long that is.
#[rstest]
#[case::aborted("Aborted", "Cancelled", Phase::Cancelled)]
#[case::completed_meanwhile("Completed", "Completed", Phase::Completed)]
fn c51_s3_a_cancelled_parent_waits_for_its_descendants_and_names_them(
    #[case] stop: &str,
    #[case] reason: &str,
    #[case] end: Phase,
) {
    let mut world = world(run(cancelled()), Some(running()));
    let stuck = below(over("Cancelled", "False"));
    with(&mut world, vec![below(merged(told(), json!({"metadata": {"name": "b"}}))), stuck]);
    world.run.status = Some(status(next(&world, at(5))));
    let mut done = serde_json::to_value(world.run.status.as_ref().unwrap()).unwrap();
    done = merged(done, finished(stop, reason)["status"].clone());
    world.run.status = Some(serde_json::from_value(done).unwrap());
    world.pod = Some(exited());
    for second in [10, 1000, 100_000] {
        assert_eq!(settle(&mut world, at(second)), Step::Wait(Some(LOOK_AGAIN)));
        assert_eq!(world.run.status.as_ref().unwrap().phase, Some(Phase::Cancelling));
        let why = why(&world);
        assert!(why.contains("DescendantsLive") && why.contains("child (not proven stopped), b"), "{why}");
    }
    with(&mut world, vec![below(over("Cancelled", "True"))]);
    let ended = status(next(&world, at(100_001)));
    assert_eq!((ended.phase, stopped(&ended)), (Some(end), Some(("True", "ContainersTerminated"))));
}

/// C1: one that does not decode is waited for, and named with what is wrong and what to do, before all others.
#[test]
fn c51_c1_a_descendant_that_does_not_decode_is_waited_for_and_named_first() {
    let how = "spec.description: invalid type: integer `5`, expected a string";
    let unreadable = |extra: Value| Descendant { undecodable: Some(how.into()), ..below(extra) };
    let mut world = world(run(cancelled()), Some(exited()));
    let others = (0..9).map(|number| below(merged(told(), json!({"metadata": {"name": format!("another-{number}")}}))));
    let mut found: Vec<_> = others.collect();
    found.push(unreadable(told()));
    with(&mut world, found);
    assert_eq!(settle(&mut world, at(100_000)), Step::Wait(Some(LOOK_AGAIN)));
    assert_eq!(world.run.status.as_ref().unwrap().phase, Some(Phase::Cancelling));
    let said = why(&world);
    assert!(
        said.contains("stop: child (does not decode") && said.contains("delete it") && said.contains(how),
        "{said}"
    );
    // What was asked for is done, and is not asked for again.
    with(&mut world, vec![unreadable(json!({"metadata": {"deletionTimestamp": CREATED}}))]);
    settle(&mut world, at(100_000));
    let said = why(&world);
    assert!(said.contains("is being deleted; see its Events") && !said.contains("delete it"), "{said}");
    // What can be read of it says that it is over.
    with(&mut world, vec![unreadable(over("Cancelled", "True"))]);
    assert_eq!(status(next(&world, at(100_001))).phase, Some(Phase::Cancelled));
}

/// The run's own worker does not wait for those of its descendants.
#[test]
fn c51_the_parents_own_stop_goes_on_meanwhile() {
    let mut world = world(run(deleting()), Some(running()));
    with(&mut world, vec![below(json!({"metadata": {"deletionTimestamp": CREATED}}))]);
    assert_eq!(settle(&mut world, at(6)), Step::DeletePod);
    // One whose turn completed in spite of the cancel, and whose worker does not exit.
    let late = merged(merged(with_pod(), finished("Completed", "Completed")), told());
    let stopping = json!({"status": {"stopping": {"reason": "Cancelled", "at": "2026-01-01T00:00:05Z"}}});
    let mut world = self::world(run(merged(late, stopping)), Some(running()));
    with(&mut world, vec![below(told())]);
    assert_eq!(settle(&mut world, at(5 + 19 + 15)), Step::DeletePod);
}

#[test]
fn c51_failures_are_named_and_tried_again() {
    let mut world = world(run(cancelled()), Some(exited()));
    with(&mut world, vec![below(json!({}))]);
    world.family.told = Some(vec!["cancelling child: no answer".into()]);
    assert_eq!(settle(&mut world, at(10)), Step::Wait(Some(TELL_AGAIN)));
    assert!(why(&world).contains("cancelling child: no answer"), "{}", why(&world));
}

#[test]
fn c51_a_condition_names_a_bounded_number_of_descendants() {
    let mut world = world(run(cancelled()), Some(exited()));
    let many =
        (0..300).map(|number| below(merged(told(), json!({"metadata": {"name": format!("child-{number:03}")}}))));
    with(&mut world, many.collect());
    settle(&mut world, at(10));
    let why = why(&world);
    assert!(why.contains("child-007, and others") && !why.contains("child-008"), "{why}");
}

/// A parent that was over already cancels and waits likewise; only then is it let go.
#[test]
fn c51_a_finished_parent_that_is_deleted_waits_for_live_descendants() {
    let deleted = merged(completed(), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:05Z"}}));
    let mut world = world(run(deleted), None);
    with(&mut world, vec![below(json!({}))]);
    assert_eq!(next(&world, at(6)), Step::StopDescendants);
    world.family.told = Some(vec![]);
    assert_eq!(settle(&mut world, at(6)), Step::Wait(Some(LOOK_AGAIN)));
    let said = world.run.status.clone().unwrap();
    assert!(said.message.as_ref().unwrap().contains("waiting for descendants to stop: child"), "{:?}", said.message);
    assert_eq!(said.phase, Some(Phase::Completed));
    with(&mut world, vec![below(over("Cancelled", "True"))]);
    assert_eq!(next(&world, at(7)), Step::ReleaseRun);
}

/// c47, c51: children first: one at rest is told to go and waited for, too, and its absence is seen by another look.
#[test]
fn c47_c51_a_deleted_run_is_let_go_after_the_children_at_rest_below_it() {
    let deleted = merged(completed(), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:05Z"}}));
    let mut world = world(run(deleted), None);
    let child = |extra: Value| {
        let base = json!({"metadata": {"name": "keeper", "uid": "keeper-uid"}, "status": {"phase": "Settled", "epochs": 1,
            "activation": null, "lineage": {"depth": 2, "rootUID": "run-uid", "ancestors": ["run-uid"]}}});
        let child = crate::subagent::plan_tests::child(merged(base, extra));
        Descendant::child_below("run-uid", &child).expect("a descendant")
    };
    with(&mut world, vec![child(json!({}))]);
    assert_eq!(next(&world, at(6)), Step::StopDescendants);
    assert!(!world.family.is_done(true), "it is looked at again");
    world.family.told = Some(vec!["deleting keeper: no answer".into()]);
    assert_eq!(settle(&mut world, at(6)), Step::Wait(Some(TELL_AGAIN)));
    let said = world.run.status.as_ref().unwrap().message.clone().unwrap();
    assert!(said.contains("waiting for descendants to stop: keeper; not told yet"), "{said}");
    world.family.told = Some(vec![]);
    with(&mut world, vec![child(json!({"metadata": {"deletionTimestamp": CREATED}}))]);
    assert_eq!(settle(&mut world, at(7)), Step::Wait(Some(LOOK_AGAIN)));
    with(&mut world, vec![]);
    assert!(world.family.is_done(true));
    assert_eq!(next(&world, at(8)), Step::ReleaseRun);
}

#[test]
fn c51_a_cancel_of_a_finished_parent_still_reaches_its_descendants() {
    let mut world = world(run(merged(completed(), told())), None);
    with(&mut world, vec![below(json!({}))]);
    assert_eq!(next(&world, at(6)), Step::StopDescendants);
    world.family.told = Some(vec![]);
    assert!(matches!(next(&world, at(6)), Step::Wait(_)));
}

/// What was cancelled down to the last of them is done: a child below, spoken to afterwards, goes on.
#[test]
fn c43_c51_a_cancel_that_was_carried_out_reaches_nothing_later() {
    let mut world = world(run(merged(merged(with_pod(), over("Cancelled", "True")), told())), None);
    with(&mut world, vec![below(json!({}))]);
    assert_ne!(next(&world, at(9)), Step::StopDescendants);
    let mut held = world.clone();
    held.run = run(merged(merged(with_pod(), over("Cancelled", "False")), told()));
    assert_eq!(next(&held, at(9)), Step::StopDescendants, "not proven stopped, so not done");
}

/// The time to live counts from the end, and waits for live descendants; nobody is cancelled by it.
#[test]
fn the_time_to_live_waits_for_live_descendants() {
    let mut world = world(run(completed()), None);
    with(&mut world, vec![below(json!({}))]);
    assert_eq!(next(&world, at(1002)), Step::Wait(Some(Duration::from_secs(1))));
    assert_eq!(next(&world, at(1003)), Step::Wait(Some(TTL_LOOK)));
    with(&mut world, vec![below(over("Completed", "True"))]);
    assert_eq!(next(&world, at(1003)), Step::DeleteRun);
    world.family = Family::default();
    assert_eq!(next(&world, at(1003)), Step::Wait(Some(TELL_AGAIN)), "not before somebody looked");
}

/// A deadline is no cancel: what the run delegated goes on.
#[test]
fn a_deadline_does_not_reach_descendants() {
    let late = json!({"status": {"effective": {"activeDeadlineSeconds": 1}, "startedAt": CREATED,
        "conditions": [{"type": "Started", "status": "True", "reason": "X", "message": "", "lastTransitionTime": CREATED}]}});
    let mut world = world(run(merged(merged(with_pod(), report(json!({}))), late)), Some(running()));
    with(&mut world, vec![below(json!({}))]);
    settle(&mut world, at(10));
    assert_eq!(world.run.status.as_ref().unwrap().stopping.as_ref().unwrap().reason, "DeadlineExceeded");
    world.pod = Some(exited());
    settle(&mut world, at(11));
    assert_eq!(world.run.status.as_ref().unwrap().phase, Some(Phase::Failed));
}
