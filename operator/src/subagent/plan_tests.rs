//! Tables for the planner of children: one stored situation, one expected step.

use super::{
    inbox,
    plan::{Run, Step, World, next},
    pruning::PastRun,
    status::{rejected, workspace_created, workspace_refused},
    validate::Store,
    workspace,
};
use crate::run::{
    descendants::Descendant,
    orphans::LeftPod,
    plan_tests::{CREATED, at, merged},
    validate::{Parent, Provider, Refusal},
};
use rstest::rstest;
use serde_json::{Value, json};
use std::time::Duration;
use subagent_crds::{
    Reason, Subagent, SubagentPhase, SubagentRun, SubagentStatus, bounds, conditions,
    message::{Code, Outcome},
    run::Inbox,
    subagent_status::{ActivationState, ChildWorkspace},
};

pub(crate) fn child(extra: Value) -> Subagent {
    let base = json!({
        "apiVersion": "subagents.dev/v1alpha1", "kind": "Subagent",
        "metadata": {"name": "c", "namespace": "n", "uid": "child-uid", "generation": 1, "creationTimestamp": CREATED,
            "finalizers": ["subagents.dev/child-forgotten"]},
        "spec": {"providerRef": {"name": "p"}, "description": "d", "messages": [{"id": "m1", "text": "hi"}]},
    });
    serde_json::from_value(merged(base, extra)).unwrap()
}

pub(super) fn provider(extra: Value) -> Provider {
    let base = json!({
        "apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentProvider",
        "metadata": {"name": "p", "namespace": "n", "uid": "p-uid", "generation": 1},
        "spec": {"transport": {"acp": {}}, "template": {}, "probe": "Never", "sessionState": {"paths": ["/s"]}},
        "status": {"observedGeneration": 1, "revision": "rev-1", "capabilities": ["DepthLimit", "Continuation"],
            "conditions": [{"type": "Ready", "status": "True", "reason": "Valid", "message": "", "lastTransitionTime": CREATED}]},
    });
    Provider::Found(Box::new(serde_json::from_value(merged(base, extra)).unwrap()))
}

pub(super) fn world(child: Subagent) -> World {
    World {
        provider: provider(json!({})),
        store: Store::Usable,
        past: Some(vec![]),
        children: Some(vec![]),
        ..World::new(child)
    }
}

fn status_of(step: Step) -> SubagentStatus {
    match step {
        Step::Status(status) => *status,
        other => panic!("{other:?}"),
    }
}

/// Writes what is to be written until something else is to be done.
fn settle(world: &mut World, second: i64) -> Step {
    for _ in 0..8 {
        match next(world, at(second)) {
            Step::Status(status) => world.child.status = Some(*status),
            other => return other,
        }
    }
    panic!("it does not come to rest: {:?}", next(world, at(second)))
}

fn status(world: &World) -> &SubagentStatus {
    world.child.status.as_ref().unwrap()
}

/// An accepted child whose first activation has its run.
fn started() -> World {
    let mut world = world(child(json!({})));
    let Step::CreateRun(mut run) = settle(&mut world, 1) else { panic!("a run") };
    run.metadata.uid = Some("run-uid".into());
    world.run = Run::Ours(run);
    world
}

fn run_of(world: &mut World) -> &mut SubagentRun {
    match &mut world.run {
        Run::Ours(run) => run,
        other => panic!("{other:?}"),
    }
}

fn report(world: &mut World, extra: Value) {
    let base = json!({"attempt": 1, "report": {"podUID": "pod", "attempt": 1, "seq": 1, "idle": false,
        "session": {"id": "s", "how": "New"}, "turns": [{"turn": 1, "messageID": "m1"}], "turnCount": 1,
        "messages": [{"id": "m1", "placement": 1, "outcome": "Claimed", "turn": 1}]}});
    let run = run_of(world);
    run.status = Some(serde_json::from_value(merged(base, json!({"report": extra}))).unwrap());
}

fn over(world: &mut World, phase: &str, reason: &str) {
    let stopped =
        json!([{"type": "Stopped", "status": "True", "reason": "X", "message": "", "lastTransitionTime": CREATED}]);
    let run = run_of(world);
    let old = serde_json::to_value(run.status.clone().unwrap_or_default()).unwrap();
    let new = json!({"phase": phase, "reason": reason, "message": "how it went", "conditions": stopped});
    run.status = Some(serde_json::from_value(merged(old, new)).unwrap());
}

/// c41: a child says what its activation waits for, and no more once that went through.
#[test]
fn c41_a_session_that_is_not_stored_yet_is_told_until_it_is() {
    let mut world = started();
    report(&mut world, json!({"storing": {"what": "Session", "trouble": "make room"}}));
    settle(&mut world, 2);
    let said = |world: &World| status(world).message.clone().unwrap_or_default();
    assert!(
        said(&world).contains("the session is not stored") && said(&world).ends_with(": make room"),
        "{}",
        said(&world)
    );
    report(&mut world, json!({}));
    settle(&mut world, 3);
    assert_eq!(said(&world), "activation 1 is at work");
}

fn done_turn() -> Value {
    json!({"idle": true, "turns": [{"turn": 1, "messageID": "m1", "stopReason": "Completed", "finishedAt": "t", "preview": "hello"}],
        "checkpoint": {"key": "k", "digest": "a".repeat(64), "size": 5, "turn": 1}})
}

fn deleting(world: &mut World) {
    world.child.metadata.deletion_timestamp =
        child(json!({"metadata": {"deletionTimestamp": CREATED}})).metadata.deletion_timestamp;
}

fn condition<'a>(status: &'a SubagentStatus, type_: &str) -> (&'a str, &'a str, Option<i64>) {
    let found = conditions::get(&status.conditions, type_).unwrap_or_else(|| panic!("{type_}"));
    (&found.status, &found.reason, found.observed_generation)
}

fn past(epoch: i64, is_held: bool) -> PastRun {
    PastRun { name: format!("c-{epoch}"), uid: format!("u{epoch}"), epoch, is_over: true, is_deleting: false, is_held }
}

/// c35: one write fixes identity and descriptor, gives the first message its place and claims the first number; only then
/// there is a run.
#[test]
fn c35_acceptance_is_the_start_in_one_write() {
    let mut world = world(child(json!({"metadata": {"finalizers": []}})));
    assert_eq!(next(&world, at(1)), Step::AddFinalizer, "before anything exists that it must outlive");
    world.child = child(json!({}));
    let stored = status_of(next(&world, at(1)));
    let descriptor = stored.descriptor.as_ref().unwrap();
    assert_eq!((descriptor.mode.as_str(), descriptor.provider_revision.as_str()), ("Continuable", "rev-1"));
    assert_eq!(stored.lineage.as_ref().unwrap().root_uid, "child-uid");
    let (activation, first) = (stored.activation.as_ref().unwrap(), &stored.messages[0]);
    assert_eq!((activation.epoch, activation.run_uid.as_ref(), stored.epochs), (1, None, 1));
    assert_eq!((first.id.as_str(), first.sequence, first.outcome), ("m1", 1, Outcome::Queued));
    assert_eq!(stored.phase, Some(SubagentPhase::Active));
    assert_eq!(condition(&stored, "Accepted"), ("True", "Accepted", Some(1)));
    assert_eq!(condition(&stored, "Settled"), ("False", "Active", Some(1)));
    assert_eq!(condition(&stored, "Resumable"), ("False", "NoCheckpoint", Some(1)));
    world.child.status = Some(stored);
    let Step::CreateRun(run) = next(&world, at(2)) else { panic!("a run") };
    assert_eq!(run.metadata.name, Some(inbox::run_name(&world.child, 1)));
    assert_eq!((run.spec.messages.len(), run.spec.cancel), (1, false));
}

/// A child that asks for a workspace, of a provider that has a place for it.
fn keeping_files() -> World {
    let template = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let able = json!({"status": {"capabilities": ["DepthLimit", "Continuation", "Workspace"]}});
    World { provider: provider(able), ..world(child(json!({"spec": {"workspace": {"claimTemplate": template}}}))) }
}

fn kept() -> ChildWorkspace {
    ChildWorkspace { claim_name: "claim".into(), claim_uid: "claim-uid".into() }
}

/// c40: which claim holds the child's files is stored before anything can write into it, and it is made once.
#[test]
fn c40_the_claim_of_a_workspace_is_stored_before_the_first_run_and_made_once() {
    let mut world = keeping_files();
    let Step::CreateClaim(claim) = settle(&mut world, 1) else { panic!("a claim") };
    assert_eq!(Some(*claim), workspace::claim(&world.child));
    assert!(matches!(settle(&mut world, 2), Step::CreateClaim(_)), "again after a crash");
    world.child.status = Some(workspace_created(&world.child, kept(), at(2)));
    assert_eq!(condition(status(&world), "WorkspaceCreated"), ("True", "ClaimCreated", Some(1)));
    let before = status(&world).clone();
    let Step::CreateRun(mut run) = settle(&mut world, 3) else { panic!("a run") };
    assert_eq!(*status(&world), before, "it costs one write");
    run.metadata.uid = Some("run-uid".into());
    world.run = Run::Ours(run);
    settle(&mut world, 3);
    report(&mut world, done_turn());
    settle(&mut world, 4);
    over(&mut world, "Completed", "Completed");
    settle(&mut world, 5);
    world.run = Run::Missing;
    world.child.spec.messages.push(serde_json::from_value(json!({"id": "m2", "text": "more"})).unwrap());
    assert!(matches!(settle(&mut world, 6), Step::CreateRun(_)), "whatever has become of the claim");
    assert_eq!(status(&world).workspace, Some(kept()));
}

/// D2, and a full quota: without its claim the activation has no run; it is tried again, and fails after the start deadline unless
/// it is the quota.
#[rstest]
#[case::foreign("NameTaken", Reason::RunRefused, true)]
#[case::quota("QuotaExceeded", Reason::QuotaExceeded, false)]
fn d2_without_its_claim_a_child_has_no_run(#[case] why: &str, #[case] reason: Reason, #[case] is_limited: bool) {
    let mut world = keeping_files();
    world.child.spec.activation.start_deadline_seconds = Some(60);
    assert!(matches!(settle(&mut world, 1), Step::CreateClaim(_)));
    let refusal = Refusal { reason, message: "PersistentVolumeClaim x is in the way".into() };
    world.child.status = Some(workspace_refused(&world, why, &refusal, at(1)));
    assert!(matches!(settle(&mut world, 1), Step::CreateClaim(_)), "it is tried again");
    assert_eq!(condition(status(&world), "WorkspaceCreated"), ("False", why, Some(1)));
    assert_eq!(status(&world).reason.as_deref(), Some(reason.as_str()));
    let message = status(&world).message.clone().unwrap();
    assert_eq!(message, "activation 1 has no run yet: PersistentVolumeClaim x is in the way");
    assert_eq!(workspace_refused(&world, why, &refusal, at(30)), *status(&world), "nothing new is no write");
    let late = workspace_refused(&world, why, &refusal, at(61));
    assert_eq!(late.activation.is_none(), is_limited);
    if is_limited {
        assert_eq!(late.messages[0].code, Some(Code::ActivationFailed));
        return;
    }
    world.child.status = Some(workspace_created(&world.child, kept(), at(62)));
    assert!(matches!(settle(&mut world, 62), Step::CreateRun(_)));
    assert_eq!((status(&world).reason.as_ref(), status(&world).phase), (None, Some(SubagentPhase::Active)));
}

/// c34: a child whose parent stops between its claim and its first run says what is left of it.
#[test]
fn c34_one_that_is_turned_away_late_says_that_its_claim_stays() {
    let refusal = Refusal { reason: Reason::ParentUnavailable, message: "its parent is cancelled".into() };
    let mut world = keeping_files();
    settle(&mut world, 1);
    let said = |world: &World| rejected(&world.child, status(world), &refusal, at(2)).message.unwrap();
    assert_eq!(said(&world), "its parent is cancelled");
    world.child.status = Some(workspace_created(&world.child, kept(), at(1)));
    assert!(said(&world).ends_with("PersistentVolumeClaim claim is empty, and stays until the Subagent is deleted"));
}

/// c7: nothing that was accepted is left out.
#[test]
fn c7_what_a_child_asks_for_each_of_its_runs_asks_for() {
    let asked = json!({"persona": "p", "toolFilter": {"allow": ["a"]}, "agentOptions": {"model": "m"}, "maxDepth": 3,
        "parameters": {"A": "b"}});
    let able = ["DepthLimit", "Continuation", "ToolFilter", "Persona", "AgentModel"];
    let provider = provider(json!({"status": {"capabilities": able}}));
    let mut world = World { provider, ..world(child(json!({"spec": asked}))) };
    let Step::CreateRun(run) = settle(&mut world, 1) else { panic!("a run") };
    let spec = serde_json::to_value(&run.spec).unwrap();
    for (field, value) in asked.as_object().unwrap() {
        assert_eq!(&spec[field], value, "{field}");
    }
}

#[test]
fn c36_the_runs_uid_is_stored_before_anything_else_is_done_with_it() {
    let mut world = started();
    let stored = status_of(next(&world, at(2)));
    let activation = stored.activation.as_ref().unwrap();
    assert_eq!((activation.run_uid.as_deref(), activation.state), (Some("run-uid"), ActivationState::Starting));
    world.child.status = Some(stored);
    assert_eq!(next(&world, at(2)), Step::Wait(None), "it was created with what it is to have");
}

#[rstest]
#[case::missing(Provider::Missing, "NoProvider")]
#[case::not_ready(provider(json!({"status": {"observedGeneration": 0}})), "ProviderNotReady")]
fn c5_a_missing_or_unready_provider_is_waited_for_until_the_start_deadline(
    #[case] provider: Provider,
    #[case] reason: &str,
) {
    let mut world = World { provider, ..world(child(json!({"metadata": {"finalizers": []}}))) };
    world.child.spec.activation.start_deadline_seconds = Some(60);
    assert_eq!(settle(&mut world, 1), Step::Wait(Some(Duration::from_secs(59))));
    assert_eq!((status(&world).phase, status(&world).reason.as_deref()), (Some(SubagentPhase::Pending), Some(reason)));
    assert_eq!(settle(&mut world, 60), Step::Wait(None));
    assert_eq!((status(&world).phase, status(&world).reason.as_deref()), (Some(SubagentPhase::Rejected), Some(reason)));
    assert!(status(&world).message.as_ref().unwrap().starts_with("startDeadlineSeconds 60 is over"));
    assert_eq!((status(&world).epochs, status(&world).sequences), (0, 1), "c34: nothing is left behind");
    let first = &status(&world).messages[0];
    assert_eq!((first.outcome, first.code), (Outcome::Rejected, Some(Code::ActivationFailed)));
}

/// c46: what a refused child is told has an outcome, so that its entry can be removed; however much that is over time.
#[test]
fn c46_every_message_to_a_refused_child_gets_an_outcome() {
    let mut world = World { provider: Provider::Missing, ..world(child(json!({"metadata": {"finalizers": []}}))) };
    assert_eq!(settle(&mut world, 100_000), Step::Wait(None));
    let tell = |world: &mut World, extra: Value| {
        world.child.spec.messages.push(serde_json::from_value(merged(json!({"id": "x"}), extra)).unwrap());
    };
    for round in 0_i64..3 {
        world.child.metadata.generation = Some(round + 2);
        for number in world.child.spec.messages.len()..60 {
            tell(&mut world, json!({"id": format!("r{round}-{number}"), "text": "more"}));
        }
        tell(&mut world, json!({"id": format!("s{round}"), "text": "more", "delivery": "Steer"}));
        tell(&mut world, json!({"id": format!("i{round}"), "delivery": "Interrupt"}));
        assert_eq!(settle(&mut world, 100_001 + round), Step::Wait(None));
        let refused = status(&world);
        assert_eq!((refused.phase, refused.messages.len()), (Some(SubagentPhase::Rejected), 62));
        let told = |at: usize| (refused.messages[at].outcome, refused.messages[at].code);
        assert_eq!(told(0), (Outcome::Rejected, Some(Code::ActivationFailed)));
        assert_eq!(told(59), (Outcome::Rejected, Some(Code::ActivationFailed)));
        assert_eq!(told(60), (Outcome::Rejected, Some(Code::NotDelivered)), "c38");
        assert!(refused.messages[60].message.contains("create another Subagent"), "{:?}", refused.messages[60]);
        assert_eq!(told(61), (Outcome::Applied, None), "c42");
        assert_eq!(condition(refused, "Settled"), ("False", "Rejected", Some(round + 2)));
        world.child.spec.messages.truncate(1);
    }
}

/// c14: the parent's stop is looked for once more when the child's lineage is stored.
#[test]
fn c14_a_child_whose_parent_stops_meanwhile_never_starts() {
    let parent = |extra: Value| {
        let base = json!({
            "apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentRun", "metadata": {"name": "r", "uid": "r-uid"},
            "spec": {"providerRef": {"name": "p"}, "description": "d"},
            "status": {"phase": "Running", "lineage": {"depth": 1, "rootUID": "r-uid"}},
        });
        Parent::Found(Box::new(serde_json::from_value(merged(base, extra)).unwrap()))
    };
    let below = json!({"spec": {"parentRef": {"kind": "SubagentRun", "name": "r"}}});
    let mut world = World { parent: parent(json!({})), ..world(child(below)) };
    assert!(matches!(settle(&mut world, 1), Step::CreateRun(_)));
    assert_eq!(status(&world).lineage.as_ref().unwrap().ancestors, ["r-uid"]);
    world.parent = parent(json!({"spec": {"cancel": true}}));
    assert_eq!(settle(&mut world, 2), Step::Wait(None));
    let ended = status(&world);
    assert_eq!((ended.phase, ended.reason.as_deref()), (Some(SubagentPhase::Rejected), Some("ParentUnavailable")));
    assert_eq!((ended.messages[0].outcome, ended.activation.as_ref()), (Outcome::Discarded, None));
    world.past = Some(vec![past(1, true)]);
    assert_eq!(next(&world, at(2)), Step::ReleaseRun(past(1, true)), "one that came too late can be deleted");
    world.past = Some(vec![]);
    deleting(&mut world);
    assert_eq!(next(&world, at(3)), Step::Release);
}

/// c44: lastResult and phase are stored in one write with the last fold; only then the run is let go.
#[test]
fn c44_a_run_is_let_go_only_when_what_it_came_to_is_stored() {
    let mut world = started();
    settle(&mut world, 2);
    report(&mut world, done_turn());
    let Step::ChangeRun(change) = settle(&mut world, 3) else { panic!("the end of its inbox") };
    assert_eq!(change.inbox, Inbox::Closed);
    assert_eq!(status(&world).activation.as_ref().unwrap().state, ActivationState::Closing, "Closing is stored first");
    over(&mut world, "Completed", "Completed");
    world.past = Some(vec![past(1, true)]);
    let stored = status_of(next(&world, at(4)));
    assert_eq!((stored.phase, stored.activation.as_ref()), (Some(SubagentPhase::Settled), None));
    assert_eq!(stored.last_result.as_ref().unwrap().preview.as_deref(), Some("hello"));
    assert_eq!((stored.messages[0].outcome, stored.completed_turns), (Outcome::Started, 1));
    assert_eq!(condition(&stored, "Settled"), ("True", "Settled", Some(1)));
    assert_eq!(condition(&stored, "Resumable"), ("True", "CheckpointStored", Some(1)));
    world.child.status = Some(stored);
    assert_eq!(next(&world, at(4)), Step::ReleaseRun(past(1, true)));
    world.past = Some(vec![past(1, false)]);
    assert_eq!(next(&world, at(4)), Step::Wait(None));
}

/// c38: a steer that is not delivered says why, and what its agent lacks it does not even get.
#[rstest]
#[case::agent_without_steering(json!({"agent": {"capabilities": ["LoadSession"]}}), Some("SubagentProvider p has no capability Steering"))]
#[case::agent_with_it(json!({"agent": {"capabilities": ["Steering"]}}), None)]
#[case::unknown_agent(json!({}), None)]
#[case::idle(json!({"idle": true}), Some("activation 1 has nothing to do"))]
fn c38_a_steer_that_is_not_delivered_says_why(#[case] told: Value, #[case] why: Option<&str>) {
    let mut world = started();
    settle(&mut world, 2);
    world.child.spec.activation.residency_seconds = 60;
    report(&mut world, told);
    settle(&mut world, 3);
    let steer = json!({"id": "s1", "delivery": "Steer", "text": "left"});
    world.child.spec.messages.push(serde_json::from_value(steer).unwrap());
    settle(&mut world, 4);
    let steer = status(&world).messages[1].clone();
    match why {
        None => assert_eq!((steer.outcome, steer.message.as_str()), (Outcome::Queued, "")),
        Some(words) => {
            assert_eq!((steer.outcome, steer.code), (Outcome::Rejected, Some(Code::NotDelivered)));
            assert!(steer.message.contains(words) && steer.message.len() <= 256, "{}", steer.message);
        }
    }
}

/// c40: an empty history is that of a lost session only when there was a turn that the agent completed.
#[rstest]
#[case::completed("Completed", 1, 1)]
#[case::cancelled("Aborted", 1, 0)]
#[case::failed("Error", 1, 0)]
#[case::refused("Refusal", 1, 0)]
#[case::not_stored("Completed", 0, 0)]
fn c40_only_turns_that_the_agent_completed_count(#[case] ended: &str, #[case] stored: i64, #[case] completed: i64) {
    let mut world = started();
    let turns = json!([{"turn": 1, "messageID": "m1", "stopReason": ended, "finishedAt": "t"}]);
    report(&mut world, merged(done_turn(), json!({"turns": turns, "checkpoint": {"turn": stored}})));
    settle(&mut world, 3);
    assert_eq!(status(&world).last_result.as_ref().unwrap().stop_reason, ended);
    assert_eq!(status(&world).completed_turns, completed);
}

#[test]
fn what_an_older_worker_stored_as_the_result_is_found_from_the_turn() {
    let mut world = started();
    settle(&mut world, 2);
    report(&mut world, done_turn());
    settle(&mut world, 3);
    over(&mut world, "Completed", "Completed");
    let result = json!({"podUID": "pod", "ref": "c-1-result", "chunks": 3, "sha256": "ab", "size": 70_000});
    run_of(&mut world).status.as_mut().unwrap().result = Some(serde_json::from_value(result).unwrap());
    settle(&mut world, 4);
    let output = status(&world).turns[0].output.as_ref().unwrap();
    assert_eq!((output.ref_.as_deref(), output.chunks, output.size), (Some("c-1-result"), Some(3), 70_000));
    assert_eq!(status(&world).last_result.as_ref().unwrap().output.as_ref(), Some(output));
}

/// c31: each turn tells where its own output is, whatever the run's result says.
#[test]
fn c31_every_turn_says_where_its_output_is() {
    let mut world = started();
    settle(&mut world, 2);
    let output = |turn: i64| json!({"ref": format!("c-1-turn-{turn}"), "chunks": turn, "sha256": "ab", "size": 2000});
    let turn = |number: i64| json!({"turn": number, "messageID": "m1", "stopReason": "Completed", "finishedAt": "t", "output": output(number)});
    report(&mut world, merged(done_turn(), json!({"turns": [turn(1), turn(2)], "turnCount": 2})));
    settle(&mut world, 3);
    let told = |status: &SubagentStatus| -> Vec<_> {
        status.turns.iter().chain(&status.last_result).map(|turn| json!(turn.output)).collect()
    };
    assert_eq!(told(status(&world)), [output(1), output(2), output(2)]);
    over(&mut world, "Completed", "Completed");
    let result = json!({"podUID": "pod", "ref": "c-1-turn-2", "chunks": 2, "sha256": "ab", "size": 2000});
    run_of(&mut world).status.as_mut().unwrap().result = Some(serde_json::from_value(result).unwrap());
    settle(&mut world, 4);
    assert_eq!(told(status(&world)), [output(1), output(2), output(2)]);
}

/// C7: the version before reads an output with a ref, or none at all; a child with another would not decode there.
#[test]
fn c7_what_is_kept_beside_a_short_text_has_a_field_of_its_own() {
    let mut world = started();
    settle(&mut world, 2);
    let blocks = json!({"ref": "b", "chunks": 1, "sha256": "cd", "size": 9});
    let output = json!({"sha256": "ab", "size": 3, "otherBlocks": 1, "blocks": blocks});
    let turn = json!({"turn": 1, "messageID": "m1", "stopReason": "Completed", "finishedAt": "t", "output": output});
    report(&mut world, merged(done_turn(), json!({"turns": [turn]})));
    settle(&mut world, 3);
    for told in status(&world).turns.iter().chain(&status(&world).last_result) {
        assert_eq!((json!(told)["output"].clone(), json!(told)["besideText"].clone()), (Value::Null, output.clone()));
    }
    over(&mut world, "Completed", "Completed");
    let result = merged(json!({"podUID": "pod", "text": "abc"}), output.clone());
    run_of(&mut world).status.as_mut().unwrap().result = Some(serde_json::from_value(result).unwrap());
    settle(&mut world, 4);
    let told = &status(&world).turns[0];
    assert_eq!((&told.output, json!(told.kept())), (&None, output));
}

/// T5: what an activation keeps is bounded; a turn leaves the list with what it had left, which goes first.
#[test]
fn t5_a_turn_leaves_the_list_after_its_output() {
    let mut world = started();
    settle(&mut world, 2);
    let turns = |numbers: std::ops::RangeInclusive<i64>| -> Value {
        let turn = |number: i64| {
            let output = json!({"ref": format!("o{number}"), "chunks": 2, "sha256": "ab", "size": 2000});
            json!({"turn": number, "messageID": "m1", "stopReason": "Completed", "finishedAt": "t", "output": output})
        };
        json!({"turns": numbers.map(turn).collect::<Vec<_>>(), "turnCount": 40})
    };
    report(&mut world, merged(done_turn(), turns(1..=32)));
    settle(&mut world, 3);
    assert_eq!(status(&world).turns.len(), 32);
    report(&mut world, merged(done_turn(), turns(3..=34)));
    let Step::Shed(removed, stored) = next(&world, at(4)) else { panic!("the oldest outputs go") };
    assert_eq!(removed, ["o1-001", "o1-002", "o2-001", "o2-002"]);
    assert_eq!((stored.turns.len(), stored.turns[0].turn), (32, 3));
    assert!(
        matches!(next(&world, at(4)), Step::Shed(again, _) if again == removed),
        "after a crash the same once more"
    );
    // In a namespace that goes away the right to remove them may be gone first, and garbage collection takes them anyway.
    let deleted = child(json!({"metadata": {"deletionTimestamp": CREATED}})).metadata.deletion_timestamp;
    world.child.metadata.deletion_timestamp = deleted;
    let Step::Status(told) = next(&world, at(4)) else { panic!("nothing but a status") };
    assert_eq!((told.turns.len(), told.turns[0].turn), (32, 3));
    world.child.metadata.deletion_timestamp = None;
    world.child.status = Some(*stored);
    assert!(!matches!(next(&world, at(4)), Step::Shed(..)));
}

/// R13: one that somebody deleted before its UID was stored is adopted as cancelled: nothing is prompted twice.
#[test]
fn r13_a_deleted_run_whose_uid_is_not_stored_is_adopted_as_cancelled() {
    let mut world = started();
    let deleted = child(json!({"metadata": {"deletionTimestamp": CREATED}})).metadata.deletion_timestamp;
    run_of(&mut world).metadata.deletion_timestamp = deleted;
    let stored = status_of(next(&world, at(2)));
    let activation = stored.activation.as_ref().unwrap();
    assert_eq!((activation.run_uid.as_deref(), activation.state), (Some("run-uid"), ActivationState::Closing));
    world.child.status = Some(stored);
    settle(&mut world, 2);
    over(&mut world, "Cancelled", "Cancelled");
    settle(&mut world, 3);
    let ended = status(&world);
    assert_eq!((ended.phase, ended.messages[0].outcome), (Some(SubagentPhase::Settled), Outcome::Discarded));
    assert_eq!(ended.epochs, 1, "nothing starts by itself");
}

/// c36, c50: what is left of a run that somebody removed by force is stopped, named and waited for; only the proof ends the
/// activation, also when the child goes.
#[rstest]
#[case::stays(false)]
#[case::is_deleted(true)]
fn c36_c50_a_run_that_was_removed_by_force_is_waited_for_until_its_pod_is_proven_stopped(#[case] deleted: bool) {
    let left = |is_stopped, is_deleting, is_held| {
        Run::Removed(vec![LeftPod { name: "c-1-pod".into(), uid: "pod-uid".into(), is_stopped, is_deleting, is_held }])
    };
    let mut world = started();
    report(&mut world, json!({}));
    settle(&mut world, 3);
    if deleted {
        deleting(&mut world);
    }
    world.child.spec.messages.push(serde_json::from_value(json!({"id": "m2", "text": "more"})).unwrap());
    world.run = left(false, false, true);
    assert_eq!(settle(&mut world, 4), Step::StopLeft("run-uid".into()));
    world.run = left(false, true, true);
    assert!(matches!(settle(&mut world, 5), Step::Wait(Some(_))));
    let waits = status(&world);
    assert_eq!((waits.epochs, waits.reason.as_deref()), (1, Some("CleanupFailed")));
    let said = waits.message.as_ref().unwrap();
    assert!(said.contains("pod c-1-pod is not proven stopped") && said.contains("out-of-service"), "{said}");
    assert!(said.contains("annotate subagent c --namespace n subagents.dev/release-pod=pod-uid"), "{said}");
    assert_eq!(condition(waits, "Active").0, "True");
    world.run = left(true, true, true);
    assert_eq!(settle(&mut world, 6), Step::StopLeft("run-uid".into()), "it is let go first");
    world.run = Run::Removed(vec![]);
    assert_eq!(settle(&mut world, 7), Step::Wait(Some(Duration::from_secs(5))), "one may be on its way");
    assert!(status(&world).message.as_ref().unwrap().contains("may still come"), "{:?}", status(&world).message);
    let next = settle(&mut world, 40);
    let ended = status(&world);
    assert_eq!(ended.turns.last().map(|turn| (turn.turn, turn.stop_reason.as_str())), Some((1, inbox::INTERRUPTED)));
    if deleted {
        assert_eq!(next, Step::Forget);
    } else {
        assert_eq!((ended.epochs, ended.messages[1].outcome), (2, Outcome::Queued));
    }
}

/// A person has the child, whose run's spec is the operator's.
#[test]
fn what_to_do_about_an_activation_is_said_in_terms_of_the_child() {
    let mut world = started();
    report(&mut world, json!({}));
    settle(&mut world, 3);
    over(&mut world, "Failed", "DeadlineExceeded");
    let said = Reason::DeadlineExceeded.with_remedy("active for longer than activeDeadlineSeconds: 5");
    run_of(&mut world).status.as_mut().unwrap().message = Some(said);
    settle(&mut world, 4);
    let said = status(&world).message.as_ref().unwrap();
    assert!(said.ends_with("Raise spec.activation.activeDeadlineSeconds of the Subagent or ask for less."), "{said}");
}

/// `kubectl wait --for=condition=Settled` right after a patch must not see the state before it.
#[test]
fn a_spec_that_was_not_looked_at_is_not_settled() {
    let mut world = settled();
    world.child.metadata.generation = Some(2);
    world.child.spec.messages.push(serde_json::from_value(json!({"id": "m2", "text": "more"})).unwrap());
    assert_eq!(condition(status(&world), "Settled").2, Some(1));
    let stored = status_of(next(&world, at(9)));
    assert_eq!(condition(&stored, "Settled"), ("False", "Active", Some(2)));
    assert_eq!((stored.epochs, stored.observed_generation), (2, Some(2)));
    world.child.status = Some(stored);
    world.run = Run::Missing;
    world.past = Some(vec![past(1, true)]);
    assert_eq!(next(&world, at(9)), Step::ReleaseRun(past(1, true)), "one that a crash left is let go first");
    world.past = Some(vec![past(1, false)]);
    let Step::CreateRun(run) = next(&world, at(9)) else { panic!("a run") };
    let session = run.spec.activation.unwrap().session.unwrap();
    assert_eq!((session.id.as_str(), session.completed_turns, session.checkpoint.key.as_str()), ("s", 1, "k"));
}

/// A child whose first activation is over.
pub(super) fn settled() -> World {
    let mut world = started();
    settle(&mut world, 2);
    report(&mut world, done_turn());
    settle(&mut world, 3);
    over(&mut world, "Completed", "Completed");
    assert_eq!(settle(&mut world, 4), Step::Wait(None));
    world.run = Run::Missing;
    world
}

#[test]
fn an_idle_activation_is_looked_at_again_when_its_residency_is_over() {
    let mut world = started();
    world.child.spec.activation.residency_seconds = 30;
    report(&mut world, done_turn());
    assert_eq!(settle(&mut world, 3), Step::Wait(Some(Duration::from_secs(30))));
    assert_eq!(status(&world).activation.as_ref().unwrap().state, ActivationState::Idle);
    assert!(matches!(settle(&mut world, 33), Step::ChangeRun(_)));
}

/// c43: what was queued is discarded in the write that notes the cancellation, before the run hears of it.
#[test]
fn c43_a_cancellation_is_stored_before_the_run_hears_of_it() {
    let mut world = started();
    report(&mut world, json!({}));
    settle(&mut world, 3);
    world.child.spec.cancel_through_epoch = 1;
    let Step::ChangeRun(change) = settle(&mut world, 4) else { panic!("a cancel") };
    assert!(change.cancel);
    assert_eq!(status(&world).cancelled_through_epoch, 1);
    over(&mut world, "Cancelled", "Cancelled");
    settle(&mut world, 5);
    assert_eq!(
        (status(&world).phase, status(&world).reason.as_deref()),
        (Some(SubagentPhase::Settled), Some("Cancelled"))
    );
}

#[test]
fn r8_a_session_that_is_lost_is_said_and_nothing_starts_any_more() {
    let mut world = settled();
    for id in ["m2", "behind"] {
        world.child.spec.messages.push(serde_json::from_value(json!({"id": id, "text": "more"})).unwrap());
    }
    let Step::CreateRun(mut run) = settle(&mut world, 5) else { panic!("a run") };
    run.metadata.uid = Some("run-2".into());
    world.run = Run::Ours(run);
    over(&mut world, "Failed", "NotResumable");
    assert_eq!(settle(&mut world, 6), Step::Wait(None));
    let ended = status(&world);
    assert_eq!((ended.phase, ended.reason.as_deref()), (Some(SubagentPhase::NotResumable), Some("NotResumable")));
    assert!(ended.message.as_ref().unwrap().contains("how it went"), "{:?}", ended.message);
    assert_eq!(condition(ended, "Resumable").0, "False");
    let codes: Vec<_> = ended.messages.iter().map(|message| message.code).collect();
    assert_eq!(codes, [None, Some(Code::NotResumable), Some(Code::NotResumable)], "nothing waits for ever");
    assert!(ended.last_result.is_some(), "it can be looked at");
    world.run = Run::Missing;
    world.child.spec.messages.push(serde_json::from_value(json!({"id": "m3", "text": "and more"})).unwrap());
    assert_eq!(settle(&mut world, 7), Step::Wait(None));
    assert_eq!((status(&world).messages[3].code, status(&world).epochs), (Some(Code::NotResumable), 2));
}

#[test]
fn d2_a_taken_name_is_named_and_never_touched() {
    let mut world = world(child(json!({})));
    settle(&mut world, 1);
    world.run = Run::Foreign;
    let stored = status_of(next(&world, at(2)));
    assert_eq!(condition(&stored, "NumberSkipped").0, "True");
    world.child.status = Some(stored);
    world.run = Run::Missing;
    let Step::CreateRun(run) = next(&world, at(2)) else { panic!("a run") };
    assert_eq!(run.metadata.name, Some(inbox::run_name(&world.child, 2)));
    assert_eq!(condition(status(&world), "NumberSkipped").0, "True");
    let mut run = run;
    run.metadata.uid = Some("run-2".into());
    world.run = Run::Ours(run);
    settle(&mut world, 3);
    assert_eq!(condition(status(&world), "NumberSkipped"), ("False", "Begun", Some(1)), "it does not stay for ever");
}

mod deletion {
    use super::*;
    use crate::subagent::{
        plan::{gives_up_session, is_deleted_for_long},
        status::session_not_removed,
    };

    fn below(extra: Value) -> Descendant {
        let base = json!({"metadata": {"name": "below", "uid": "below-uid"}, "status": {"phase": "Active", "epochs": 1,
            "activation": {"epoch": 1, "runName": "x"},
            "lineage": {"depth": 2, "rootUID": "child-uid", "parentUID": "child-uid", "ancestors": ["child-uid"]}}});
        Descendant::child_below("child-uid", &child(merged(base, extra))).expect("a descendant")
    }

    /// c43, c51: a cancellation reaches what the child had delegated by then, and nothing later; it is stored before anybody is
    /// told, and done when nobody is left to be told. All of it stays.
    #[test]
    fn c43_c51_a_cancellation_reaches_what_the_child_had_delegated_and_nothing_later() {
        let mut world = started();
        report(&mut world, json!({}));
        settle(&mut world, 3);
        world.children = Some(vec![below(json!({}))]);
        assert_eq!(next(&world, at(4)), Step::Wait(None));
        world.child.spec.cancel_through_epoch = 1;
        let stored = status_of(next(&world, at(4)));
        assert!(stored.cancelling_descendants, "this closes it for others before those are listed");
        world.child.status = Some(stored);
        assert_eq!(next(&world, at(4)), Step::StopChildren);
        world.told = Some(vec!["cancelling below: no answer".into()]);
        let Step::ChangeRun(change) = settle(&mut world, 4) else { panic!("its own run does not wait for that") };
        run_of(&mut world).spec.cancel = change.cancel;
        run_of(&mut world).spec.activation.as_mut().unwrap().inbox = change.inbox;
        assert_eq!(settle(&mut world, 4), Step::Wait(Some(Duration::from_secs(2))));
        over(&mut world, "Cancelled", "Cancelled");
        world.told = None;
        assert_eq!(settle(&mut world, 6), Step::StopChildren, "also when its own work is over meanwhile");
        world.told = Some(vec![]);
        world.children = Some(vec![below(json!({"spec": {"cancelThroughEpoch": 1}}))]);
        assert_eq!(settle(&mut world, 6), Step::Wait(Some(Duration::from_secs(10))));
        assert_eq!(
            (status(&world).phase, status(&world).cancelling_descendants),
            (Some(SubagentPhase::Waiting), false)
        );
        let later = json!({"spec": {"cancelThroughEpoch": 1}, "status": {"epochs": 2, "activation": {"epoch": 2}}});
        (world.told, world.children) = (None, Some(vec![below(later)]));
        assert_eq!(settle(&mut world, 7), Step::Wait(Some(Duration::from_secs(10))), "it was spoken to afterwards");
    }

    /// c51, C1: who cannot be told is named, and keeps the child closed for five minutes at most; nothing is written again and
    /// again meanwhile.
    #[test]
    fn c51_one_that_cannot_be_told_does_not_close_the_child_for_ever() {
        let mut world = settled();
        world.children = Some(vec![below(json!({}))]);
        world.child.spec.cancel_through_epoch = 1;
        assert_eq!(settle(&mut world, 10), Step::StopChildren);
        world.told = Some(vec!["cancelling below: policy p says no".into()]);
        assert_eq!(settle(&mut world, 10), Step::Wait(Some(Duration::from_secs(2))));
        let said = status(&world).message.clone().unwrap();
        assert!(said.contains("told that it is cancelled: cancelling below: policy p says no"), "{said}");
        let before = status(&world).clone();
        world.told = None;
        assert_eq!(settle(&mut world, 309), Step::StopChildren);
        assert_eq!(*status(&world), before, "nothing new is no write");
        assert_eq!(settle(&mut world, 400), Step::StopChildren, "it is tried a last time");
        world.told = Some(vec!["cancelling below: policy p says no".into()]);
        let given_up = status_of(next(&world, at(400)));
        assert_eq!((given_up.cancelling_descendants, given_up.cancelling_since.as_ref()), (false, None));
        let notes = crate::subagent::events::notes(&before, &given_up);
        assert!(notes.iter().any(|note| note.warning && note.reason == "DescendantsNotTold"), "{notes:?}");
        world.child.status = Some(given_up);
        assert!(matches!(settle(&mut world, 400), Step::Wait(Some(_))));
        assert!(!status(&world).cancelling_descendants);
    }

    /// C1: a child that does not decode has no number that could be patched; the run of its activation is told itself.
    #[test]
    fn c51_c1_no_number_is_patched_into_a_child_that_does_not_decode() {
        let unreadable =
            Descendant { undecodable: Some("spec: ?".into()), epochs: 0, cancelled: false, ..below(json!({})) };
        assert_eq!((unreadable.is_live(), unreadable.is_to_cancel()), (true, false));
        assert!(unreadable.is_to_delete(at(0)), "a deletion needs none");
        let mut world = settled();
        world.children = Some(vec![unreadable]);
        world.child.spec.cancel_through_epoch = 1;
        assert_eq!(settle(&mut world, 10), Step::Wait(Some(Duration::from_secs(10))));
        assert!(!status(&world).cancelling_descendants, "the child is open again");
    }

    /// c43: so does a cancel of the activation's run, and its deletion.
    #[test]
    fn c43_c51_a_cancel_of_the_activations_run_reaches_what_the_child_had_delegated() {
        let mut world = started();
        report(&mut world, json!({}));
        settle(&mut world, 3);
        world.children = Some(vec![below(json!({}))]);
        run_of(&mut world).spec.cancel = true;
        assert_eq!(settle(&mut world, 4), Step::StopChildren);
        // What was stored before it is read again with those below.
        world.children = None;
        world.told = Some(vec![]);
        settle(&mut world, 4);
        assert!(status(&world).cancelling_descendants, "nobody was looked at");
    }

    /// c47: the phase closes admission, then what is below is told, the activation is cancelled, and only when nothing is
    /// left the session is removed.
    #[test]
    fn c47_children_first_then_the_activation_then_the_session() {
        let mut world = started();
        report(&mut world, json!({}));
        settle(&mut world, 3);
        deleting(&mut world);
        world.children = Some(vec![below(json!({}))]);
        let stored = status_of(next(&world, at(4)));
        assert_eq!(stored.phase, Some(SubagentPhase::Terminating));
        world.child.status = Some(stored);
        assert_eq!(settle(&mut world, 4), Step::StopChildren);
        world.told = Some(vec![]);
        let Step::ChangeRun(change) = settle(&mut world, 4) else { panic!("a cancel") };
        assert!(change.cancel);
        run_of(&mut world).spec.cancel = true;
        run_of(&mut world).spec.activation.as_mut().unwrap().inbox = Inbox::Closed;
        world.children = Some(vec![below(json!({"metadata": {"deletionTimestamp": CREATED}}))]);
        assert_eq!(settle(&mut world, 5), Step::Wait(Some(Duration::from_secs(10))));
        over(&mut world, "Cancelled", "Cancelled");
        world.past = Some(vec![past(1, true)]);
        assert_eq!(settle(&mut world, 6), Step::ReleaseRun(past(1, true)));
        world.past = Some(vec![past(1, false)]);
        let wait = settle(&mut world, 6);
        assert_eq!(wait, Step::Wait(Some(Duration::from_secs(10))), "one below is not gone yet");
        assert!(status(&world).message.as_ref().unwrap().contains("below"), "{:?}", status(&world).message);
        world.children = Some(vec![]);
        assert_eq!(settle(&mut world, 7), Step::DeleteRuns(vec![past(1, false)]), "whoever owns them by now");
        world.past = Some(vec![PastRun { is_deleting: true, ..past(1, false) }]);
        assert_eq!(settle(&mut world, 7), Step::Forget);
    }

    #[test]
    fn c47_nothing_is_forgotten_before_the_proof_of_stop() {
        let mut world = started();
        report(&mut world, json!({}));
        settle(&mut world, 3);
        deleting(&mut world);
        run_of(&mut world).spec.cancel = true;
        run_of(&mut world).spec.activation.as_mut().unwrap().inbox = Inbox::Closed;
        // Terminal, and its processes may still run.
        over(&mut world, "Cancelled", "Cancelled");
        let conditions = &mut run_of(&mut world).status.as_mut().unwrap().conditions;
        conditions[0].status = "False".into();
        assert_eq!(settle(&mut world, 5), Step::Wait(None));
        assert_eq!(status(&world).phase, Some(SubagentPhase::Terminating));
    }

    /// c50: what keeps a run from being proven stopped is what its child waits for, and said there with what to do.
    #[rstest]
    #[case::stays(false)]
    #[case::is_deleted(true)]
    fn c50_the_child_names_the_pod_that_is_not_proven_stopped(#[case] deleted: bool) {
        let mut world = started();
        report(&mut world, json!({}));
        settle(&mut world, 3);
        if deleted {
            deleting(&mut world);
        }
        run_of(&mut world).spec.cancel = true;
        run_of(&mut world).spec.activation.as_mut().unwrap().inbox = Inbox::Closed;
        over(&mut world, "Cancelled", "CleanupFailed");
        let stopped = &mut run_of(&mut world).status.as_mut().unwrap().conditions[0];
        (stopped.status, stopped.reason) = ("False".into(), "CleanupFailed".into());
        stopped.message = "pod c-1-pod could not be proven stopped: release it".into();
        settle(&mut world, 5);
        let waits = status(&world);
        assert_eq!((waits.reason.as_deref(), waits.activation.is_some()), (Some("CleanupFailed"), true));
        assert!(waits.message.as_ref().unwrap().contains("pod c-1-pod could not be proven stopped: release it"));
        over(&mut world, "Cancelled", "CleanupFailed");
        settle(&mut world, 6);
        assert_eq!(status(&world).activation, None);
    }

    #[test]
    fn c47_a_claimed_number_without_a_run_holds_nothing_up() {
        let mut world = world(child(json!({})));
        settle(&mut world, 1);
        deleting(&mut world);
        assert_eq!(settle(&mut world, 2), Step::Forget);
        assert_eq!(
            (status(&world).activation.as_ref(), status(&world).messages[0].outcome),
            (None, Outcome::Discarded)
        );
    }

    /// c47: the five minutes count from the first failure, however long what came before took; and nothing is written again and
    /// again meanwhile.
    #[test]
    fn c47_a_silent_store_is_given_up_after_five_minutes_of_failing() {
        let mut world = settled();
        deleting(&mut world);
        assert_eq!(settle(&mut world, 5000), Step::Forget);
        assert!(!gives_up_session(&world.child, at(5000)), "those below it took long");
        let failing = session_not_removed(status(&world), "no answer", at(5000));
        world.child.status = Some(failing.clone());
        assert_eq!(settle(&mut world, 5010), Step::Forget, "tried again");
        assert_eq!(status(&world).message.as_deref(), Some("no answer"));
        assert_eq!(session_not_removed(status(&world), "no answer", at(5010)), *status(&world));
        assert!(!gives_up_session(&world.child, at(5299)));
        assert!(gives_up_session(&world.child, at(5300)));
        world.child.metadata.annotations =
            Some([("subagents.dev/release-session".to_owned(), "true".to_owned())].into());
        assert!(gives_up_session(&world.child, at(5010)));
    }

    /// c47: where the first failure cannot be stored, the deletion counts, so that the child goes.
    #[test]
    fn c47_without_a_stored_failure_the_deletion_counts() {
        let mut world = settled();
        assert!(!is_deleted_for_long(&world.child, at(100_000)));
        deleting(&mut world);
        let since = world.child.metadata.deletion_timestamp.as_ref().unwrap().0;
        assert!(!is_deleted_for_long(&world.child, since + Duration::from_secs(299)));
        assert!(is_deleted_for_long(&world.child, since + Duration::from_secs(300)));
    }

    #[test]
    fn c51_what_is_below_is_not_let_go_unseen() {
        let mut world = settled();
        deleting(&mut world);
        world.children = None;
        assert!(matches!(settle(&mut world, 5), Step::Wait(Some(_))));
    }

    #[test]
    fn c51_a_child_below_is_cancelled_while_it_is_at_work_and_waited_for_until_it_is_gone() {
        let since = at(0);
        let working = below(json!({}));
        assert_eq!((working.is_live(), working.is_to_cancel(), working.is_to_delete(since)), (true, true, true));
        let told = below(json!({"spec": {"cancelThroughEpoch": 1}}));
        assert_eq!((told.is_live(), told.is_to_cancel()), (true, false));
        let mut resting = json!({"metadata": {"name": "below", "uid": "u"}, "status": {"phase": "Settled", "epochs": 1,
            "lineage": {"depth": 2, "rootUID": "child-uid", "ancestors": ["child-uid"]}}});
        let rests = |value: &Value| Descendant::child_below("child-uid", &child(value.clone())).unwrap();
        let one = rests(&resting);
        assert_eq!((one.is_live(), one.is_to_cancel(), one.is_to_delete(since)), (false, false, true));
        resting["metadata"]["deletionTimestamp"] = json!(CREATED);
        let one = rests(&resting);
        assert_eq!((one.is_live(), one.is_to_delete(since)), (true, false));
    }
}

mod room {
    use super::*;
    use crate::subagent::{
        memory::Memory,
        status::{not_remembered, remembering},
    };

    fn full() -> World {
        let mut world = settled();
        for number in 2..=60 {
            let entry = json!({"id": format!("m{number}"), "delivery": "Steer", "text": "t"});
            world.child.spec.messages.push(serde_json::from_value(entry).unwrap());
        }
        world.memory = Some(Memory::default());
        world
    }

    /// T5, R12: an id is remembered, and the status says where, before its entry leaves.
    #[test]
    fn r12_an_id_is_remembered_before_its_entry_leaves() {
        let mut world = full();
        let Step::Remember(ids) = settle(&mut world, 9) else { panic!("ids to remember") };
        assert_eq!((ids.len(), ids.contains(&"m1".to_owned())), (28, false), "the first stays");
        let batch = status(&world).messages.iter().filter(|message| ids.contains(&message.id));
        let segment = crate::subagent::memory::Segment::of(batch);
        world.memory = Some(Memory::of("s", segment));
        assert_eq!(settle(&mut world, 9), Step::Prune(ids.clone()));
        world.child.spec.messages.retain(|entry| !ids.contains(&entry.id));
        assert_eq!(settle(&mut world, 9), Step::Wait(None));
        assert_eq!(status(&world).messages.len(), 32);
    }

    /// N1: a full quota of ConfigMaps is shown with what to do, once, and its end, too.
    #[test]
    fn n1_r12_ids_that_cannot_be_stored_are_shown_with_why() {
        let mut world = full();
        assert!(matches!(settle(&mut world, 9), Step::Remember(_)));
        let refused = |world: &World| not_remembered(&world.child, true, "exceeded quota: q", at(10));
        world.child.status = Some(refused(&world));
        let pruned = conditions::get(&status(&world).conditions, conditions::INBOX_PRUNED).unwrap();
        assert_eq!((pruned.status.as_str(), pruned.reason.as_str()), ("False", "QuotaExceeded"));
        assert!(
            pruned.message.contains("raise the quota of ConfigMaps") && pruned.message.contains("exceeded quota: q")
        );
        assert_eq!(refused(&world), *status(&world), "nothing is written while nothing changes");
        assert!(matches!(settle(&mut world, 20), Step::Remember(_)), "tried again");
        let stored = remembering(&world.child, vec!["s".into()], 28, at(21));
        assert_eq!(condition(&stored, "InboxPruned").0, "True");
        assert_eq!(stored.seen_ids.unwrap().count, 28);
    }

    /// R12: new ids are refused, a condition names what is lost, and what was refused leaves as ever: however many come, each
    /// has an outcome.
    #[test]
    fn r12_with_a_part_of_the_memory_lost_every_new_id_is_refused_and_none_waits_for_room() {
        let mut world = full();
        world.memory = Some(Memory::without("lost"));
        let Step::Remember(ids) = settle(&mut world, 9) else { panic!("ids to remember") };
        assert_eq!((ids.len(), condition(status(&world), "MemoryWhole").0), (28, "False"));
        assert_eq!(status(&world).messages[5].code, Some(Code::NotDelivered));
        assert!(status(&world).messages[5].message.contains("MemoryWhole"), "{:?}", status(&world).messages[5]);
        // Somebody's tool replaces the list: what is over and gone makes room for what comes.
        world.child.spec.messages = (0..40)
            .map(|number| serde_json::from_value(json!({"id": format!("n{number}"), "text": "t"})).unwrap())
            .collect();
        let Step::Remember(gone) = settle(&mut world, 10) else { panic!("ids to remember") };
        assert_eq!((gone.len(), status(&world).messages.len()), (60, bounds::INBOX));
        let batch = status(&world).messages.iter().filter(|message| gone.contains(&message.id));
        let segment = crate::subagent::memory::Segment::of(batch);
        let mut memory = Memory::of("s", segment);
        memory.lost = Some("lost is gone".into());
        world.memory = Some(memory);
        assert_eq!(settle(&mut world, 11), Step::Wait(None));
        let codes = status(&world).messages.iter().map(|message| message.code);
        assert_eq!(codes.collect::<Vec<_>>(), vec![Some(Code::NotDelivered); 40]);
    }
}

mod refusal {
    use super::*;
    use crate::{run::validate::Refusal, subagent::status::run_refused};
    use subagent_crds::Reason;

    fn refuse(world: &mut World, reason: Reason, second: i64) {
        let refusal = Refusal { reason, message: "policy p says no".into() };
        world.child.status = Some(run_refused(world, &refusal, at(second)));
    }

    /// R13: a run that the API server does not take is shown, tried again, and in the end given up.
    #[test]
    fn r13_a_refused_run_is_shown_and_given_up_at_the_start_deadline() {
        let mut world = world(child(json!({"spec": {"activation": {"startDeadlineSeconds": 60}}})));
        world.child.spec.messages.push(serde_json::from_value(json!({"id": "m2", "text": "more"})).unwrap());
        assert!(matches!(settle(&mut world, 1), Step::CreateRun(_)));
        world.children = None;
        refuse(&mut world, Reason::RunRefused, 2);
        let shown = status(&world).clone();
        assert_eq!((shown.phase, shown.reason.as_deref()), (Some(SubagentPhase::Active), Some("RunRefused")));
        assert!(shown.message.as_ref().unwrap().contains("policy p says no"), "{:?}", shown.message);
        assert!(crate::subagent::plan::may_never_start(&shown), "who is below it is looked at from now on");
        world.children = Some(vec![]);
        assert!(matches!(next(&world, at(3)), Step::CreateRun(_)), "tried again, and what is shown stays");
        refuse(&mut world, Reason::RunRefused, 61);
        assert_eq!(status(&world), &shown, "nothing is written while nothing changes");
        refuse(&mut world, Reason::RunRefused, 62);
        assert_eq!(settle(&mut world, 62), Step::Wait(None));
        let ended = status(&world);
        assert_eq!((ended.phase, ended.reason.as_deref()), (Some(SubagentPhase::Parked), Some("RunRefused")));
        assert!(ended.message.as_ref().unwrap().contains("startDeadlineSeconds 60 is over: policy p says no"));
        let outcomes: Vec<_> = ended.messages.iter().map(|message| (message.outcome, message.code)).collect();
        assert_eq!(outcomes, [(Outcome::Rejected, Some(Code::ActivationFailed)), (Outcome::Parked, None)]);
        assert_eq!((ended.activation.as_ref(), ended.epochs), (None, 1), "nothing starts by itself");
    }

    /// A quota frees up, as for pods: time spent waiting for it does not count.
    #[test]
    fn n1_a_full_quota_is_waited_for() {
        let mut world = world(child(json!({"spec": {"activation": {"startDeadlineSeconds": 60}}})));
        settle(&mut world, 1);
        refuse(&mut world, Reason::QuotaExceeded, 2);
        refuse(&mut world, Reason::QuotaExceeded, 900);
        assert_eq!(status(&world).reason.as_deref(), Some("QuotaExceeded"));
        refuse(&mut world, Reason::RunRefused, 901);
        assert!(status(&world).activation.is_some());
        let Step::CreateRun(mut run) = next(&world, at(902)) else { panic!("a run") };
        run.metadata.uid = Some("run-uid".into());
        world.run = Run::Ours(run);
        settle(&mut world, 902);
        let started = status(&world);
        assert_eq!((started.reason.as_deref(), &started.message.as_deref()), (None, &Some("activation 1 is starting")));
        assert_eq!(started.activation.as_ref().unwrap().refused_since, None);
    }

    #[test]
    fn c43_a_refused_run_does_not_hold_up_a_cancellation() {
        let mut world = world(child(json!({})));
        settle(&mut world, 1);
        refuse(&mut world, Reason::RunRefused, 2);
        world.child.spec.cancel_through_epoch = 1;
        assert_eq!(settle(&mut world, 3), Step::Wait(None));
        assert_eq!(
            (status(&world).phase, status(&world).reason.as_deref(), status(&world).messages[0].outcome),
            (Some(SubagentPhase::Settled), Some("Cancelled"), Outcome::Discarded)
        );
    }
}
