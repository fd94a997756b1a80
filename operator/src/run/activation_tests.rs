//! Tables for activations: what of a child's live status lets its run start, and what the planner makes of such runs.

use super::*;
use crate::run::{
    plan::{Step, World, next},
    plan_tests::{CREATED, at, merged, report, run, running, settle, status, stopped, with_pod, world},
    validate::Parent,
};
use rstest::rstest;
use serde_json::{Value, json};
use subagent_crds::{Phase, conditions};

fn child(extra: Value) -> Subagent {
    let base = json!({
        "apiVersion": "subagents.dev/v1alpha1", "kind": "Subagent",
        "metadata": {"name": "c", "namespace": "n", "uid": "c-uid"},
        "spec": {"providerRef": {"name": "p"}, "description": "d", "cancelThroughEpoch": 0},
        "status": {"phase": "Active", "epochs": 2, "activation": {"epoch": 2, "runName": "r", "runUID": "run-uid"},
            "lineage": {"depth": 3, "parentUID": "b", "rootUID": "a", "ancestors": ["a", "b"]},
            "descriptor": {"version": 1, "mode": "Continuable", "provider": "p", "providerRevision": "rev-0", "context": "Fresh",
                "description": "d", "maxDepth": 3}},
    });
    serde_json::from_value(merged(base, extra)).unwrap()
}

fn activation(extra: Value) -> SubagentRun {
    let base =
        json!({"spec": {"prompt": null, "activation": {"subagentRef": {"name": "c", "uid": "c-uid"}, "epoch": 2}}});
    run(merged(base, extra))
}

fn provider(extra: Value) -> Provider {
    let base = json!({
        "apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentProvider",
        "metadata": {"name": "p", "namespace": "n", "uid": "p-uid", "generation": 1},
        "spec": {"transport": {"acp": {}}, "template": {}, "sessionState": {"paths": ["/s"]},
            "runDefaults": {"activeDeadlineSeconds": 90, "interruptionPolicy": "Restart", "ttlSecondsAfterFinished": 5}},
        "status": {"observedGeneration": 1, "revision": "rev-1", "capabilities": ["DepthLimit", "Continuation"],
            "conditions": [{"type": "Ready", "status": "True", "reason": "Probed", "message": "", "lastTransitionTime": CREATED}]},
    });
    Provider::Found(Box::new(serde_json::from_value(merged(base, extra)).unwrap()))
}

fn of(run: SubagentRun, child: Child) -> World {
    World { child, provider: provider(json!({})), ..world(run, None) }
}

fn found(extra: Value) -> Child {
    Child::Found(Box::new(child(extra)))
}

/// An accepted activation with a pod.
fn active(extra: Value) -> SubagentRun {
    let mode = json!({"status": {"descriptor": {"version": 1, "mode": "Continuable", "provider": "p", "providerRevision": "rev-1",
        "context": "Fresh", "description": "d"}}});
    activation(merged(merged(with_pod(), mode), extra))
}

fn decision(found: Child) -> String {
    let (run, none) = (activation(json!({})), Parent::NotAsked);
    let (provider, prompt) = (provider(json!({})), Default::default());
    let request =
        Request { run: &run, provider: &provider, parent: &none, child: &found, recorded: None, prompt: &prompt };
    match validate::validate(&request) {
        Verdict::Accepted(_) => "accepted".into(),
        Verdict::Waits(refusal) => format!("waits {} {}", refusal.reason, refusal.message),
        Verdict::Refused(refusal) => format!("refused {} {}", refusal.reason, refusal.message),
    }
}

/// c36: at most one activation at a time, whoever else creates a run that looks like one.
#[rstest]
#[case::current(found(json!({})), "accepted", "")]
#[case::not_stored_yet(found(json!({"status": {"activation": {"runUID": null}}})), "waits ParentUnavailable", "does not name the UID of this run yet")]
#[case::not_claimed_yet(found(json!({"status": {"epochs": 1, "activation": null}})), "waits ParentUnavailable", "does not name activation 2 yet")]
#[case::one_before(found(json!({"status": {"epochs": 1, "activation": {"epoch": 1}}})), "waits ParentUnavailable", "does not name activation 2 yet")]
#[case::without_status(found(json!({"status": null})), "waits ParentUnavailable", "does not name activation 2 yet")]
#[case::another_run(found(json!({"status": {"activation": {"runUID": "x"}}})), "refused Unauthorized", "UID x as its activation 2")]
#[case::another_name(found(json!({"status": {"activation": {"runName": "x"}}})), "accepted", "")]
#[case::over(found(json!({"status": {"activation": null}})), "refused ParentUnavailable", "past its activation 2")]
#[case::the_next(found(json!({"status": {"epochs": 3, "activation": {"epoch": 3}}})), "refused ParentUnavailable", "past its activation 2")]
#[case::replaced(found(json!({"metadata": {"uid": "x"}})), "refused Unauthorized", "another UID than c-uid")]
#[case::gone(Child::Missing, "refused ParentUnavailable", "does not exist any more")]
#[case::undecodable(Child::Undecodable("spec.x".into()), "waits ParentUnavailable", "does not decode")]
#[case::going(found(json!({"metadata": {"deletionTimestamp": CREATED}})), "waits ParentUnavailable", "being deleted")]
#[case::cancelled(found(json!({"spec": {"cancelThroughEpoch": 2}})), "waits ParentUnavailable", "it is cancelled")]
#[case::cancel_noted(found(json!({"status": {"cancelledThroughEpoch": 2}})), "waits ParentUnavailable", "it is cancelled")]
#[case::an_earlier_cancel(found(json!({"spec": {"cancelThroughEpoch": 1}, "status": {"cancelledThroughEpoch": 1}})), "accepted", "")]
fn c36_only_the_run_that_its_child_names_starts(#[case] found: Child, #[case] expected: &str, #[case] words: &str) {
    let said = decision(found);
    assert!(said.starts_with(expected) && said.contains(words), "{said}");
}

/// c7: a provider that was edited since has to leave room for the child's files.
#[rstest]
#[case::without(json!({}), "accepted")]
#[case::with(json!({"spec": {"workspace": {"claimTemplate": {}}}, "status": {"workspace": {"claimName": "w", "claimUID": "u"}}}), "refused UnsupportedCapability SubagentProvider p has no capability Workspace")]
fn c7_an_activation_of_a_child_with_a_workspace_needs_a_place_for_it(#[case] extra: Value, #[case] expected: &str) {
    let said = decision(found(extra));
    assert!(said.starts_with(expected), "{said}");
}

/// c40: the pod of an activation has the claim that holds the child's files, or there is no pod and the child is not resumable.
#[rstest]
#[case::before_the_claim(json!({}), None, None)]
#[case::there(json!({"status": {"workspace": {"claimName": "w", "claimUID": "u"}}}), None, Some(Ok(())))]
#[case::lost(json!({"status": {"workspace": {"claimName": "w", "claimUID": "u"}}}), Some("PersistentVolumeClaim w is gone"), Some(Err("NotResumable")))]
fn c40_no_pod_without_the_claim_that_holds_the_childs_files(
    #[case] extra: Value,
    #[case] lost: Option<&str>,
    #[case] expected: Option<Result<(), &str>>,
) {
    let mode = json!({"version": 1, "mode": "Continuable", "provider": "p", "providerRevision": "r", "context": "Fresh", "description": "d"});
    let accepted = merged(crate::run::plan_tests::accepted(), json!({"status": {"descriptor": mode}}));
    let child = found(merged(json!({"spec": {"workspace": {"claimTemplate": {}}}}), extra));
    let mut world = World { lost_workspace: lost.map(Into::into), ..of(activation(accepted), child) };
    let step = settle(&mut world, at(5));
    match expected {
        None => assert!(matches!(step, Step::Wait(_)), "{step:?}"),
        Some(Ok(())) => assert_eq!(step, Step::CreatePod),
        Some(Err(reason)) => {
            let ended = world.run.status.unwrap();
            assert_eq!((ended.phase, ended.reason.as_deref()), (Some(Phase::Failed), Some(reason)));
            assert_eq!((stopped(&ended), ended.message.as_deref()), (Some(("True", "NoPod")), lost));
        }
    }
}

/// c13: an activation is no level of its own, and what was fixed at the child's acceptance holds.
#[test]
fn c13_an_activation_is_as_deep_as_its_child_and_below_it() {
    let mut world = of(activation(json!({})), found(json!({})));
    let accepted = status(next(&world, at(1)));
    let lineage = accepted.lineage.clone().unwrap();
    assert_eq!((lineage.depth, lineage.parent_uid.as_deref(), lineage.root_uid.as_str()), (3, Some("c-uid"), "a"));
    assert_eq!(lineage.ancestors, ["a", "b", "c-uid"]);
    let descriptor = accepted.descriptor.clone().unwrap();
    assert_eq!((descriptor.mode.as_str(), descriptor.max_depth), ("Continuable", Some(3)));
    let effective = accepted.effective.clone().unwrap();
    assert_eq!(effective.active_deadline_seconds, Some(90), "the provider's");
    assert_eq!(effective.interruption_policy, InterruptionPolicy::Fail, "whatever the provider says");
    world.run.status = Some(accepted);
    assert_eq!(next(&world, at(1)), Step::CreatePod);
    // A child that is as deep as it may be is not refused again.
    world.child = found(json!({"status": {"activation": {"runUID": null}}}));
    assert_ne!(next(&world, at(2)), Step::CreatePod, "asked again right before the pod");
}

/// c36: until the child's status names the run there is no pod, and the wait costs no write and no polling.
#[test]
fn c36_no_pod_and_no_write_before_the_uid_is_stored() {
    let mut world = of(activation(json!({})), found(json!({"status": {"activation": {"runUID": null}}})));
    assert_eq!(next(&world, at(1)), Step::Wait(Some(std::time::Duration::from_secs(599))));
    let late = status(next(&world, at(600)));
    assert_eq!((late.phase, late.reason.as_deref()), (Some(Phase::Rejected), Some("ParentUnavailable")));
    world.child = found(json!({}));
    assert_eq!(settle(&mut world, at(2)), Step::CreatePod);
}

/// A child that forgot its activation between acceptance and pod: nothing ran, so it is a refusal.
#[test]
fn c36_an_accepted_activation_is_turned_away_when_its_child_goes_on_without_it() {
    let accepted = merged(
        crate::run::plan_tests::accepted(),
        json!({"status": {"descriptor": {"version": 1,
        "mode": "Continuable", "provider": "p", "providerRevision": "r", "context": "Fresh", "description": "d"}}}),
    );
    let world = of(activation(accepted), found(json!({"status": {"epochs": 3, "activation": {"epoch": 3}}})));
    let turned_away = status(next(&world, at(2)));
    assert_eq!((turned_away.phase, stopped(&turned_away)), (Some(Phase::Rejected), Some(("True", "NoPod"))));
}

fn revision(world: &World) -> Result<String, String> {
    let accepted = status(next(world, at(1)));
    match accepted.descriptor {
        Some(descriptor) => Ok(descriptor.provider_revision),
        None => Err(accepted.reason.unwrap_or_default()),
    }
}

/// c2: a new activation gets the provider as it is now, and what the child had last when that is gone.
#[test]
fn c2_the_provider_as_it_is_now_or_the_revision_the_child_had_last() {
    let last = json!({"status": {"providerRevision": "rev-9"}});
    let mut world = of(activation(json!({})), found(last.clone()));
    assert_eq!(recorded_revision(&child(last)), Some("rev-9"));
    assert_eq!(recorded_revision(&child(json!({}))), Some("rev-0"), "the one it was accepted with");
    let spec = json!({"transport": {"acp": {}}, "template": {}, "runDefaults": {"activeDeadlineSeconds": 7}});
    world.recorded = Some(Recorded { revision: "rev-9".into(), spec: serde_json::from_value(spec).unwrap() });
    assert_eq!(revision(&world), Ok("rev-1".into()));
    world.provider = provider(json!({"metadata": {"deletionTimestamp": CREATED}}));
    assert_eq!(revision(&world), Ok("rev-9".into()), "on its way out");
    world.provider = Provider::Missing;
    assert_eq!(revision(&world), Ok("rev-9".into()));
    assert_eq!(status(next(&world, at(1))).effective.unwrap().active_deadline_seconds, Some(7));
    // Edited to something that does not work: the next activation waits for the correction.
    let broken = json!({"type": "Ready", "status": "False", "reason": "InvalidTemplate", "message": "m", "lastTransitionTime": CREATED});
    world.provider = provider(json!({"status": {"conditions": [broken]}}));
    assert_eq!(revision(&world), Err("ProviderNotReady".into()));
    world.provider = Provider::Missing;
    world.recorded = None;
    assert_eq!(revision(&world), Err("NoProvider".into()));
}

#[rstest]
#[case::not_any_more(json!({"spec": {"sessionState": null}, "status": {"capabilities": ["DepthLimit"]}}), "UnsupportedCapability")]
#[case::never_told(json!({"spec": {"probe": "Never"}, "status": {"capabilities": ["DepthLimit"]}}), "UnsupportedCapability")]
#[case::not_probed_yet(json!({"status": {"capabilities": ["DepthLimit"]}}), "ProviderNotReady")]
fn c34_an_edited_provider_must_still_continue_sessions(#[case] edited: Value, #[case] reason: &str) {
    let world = World { provider: provider(edited), ..of(activation(json!({})), found(json!({}))) };
    assert_eq!(revision(&world), Err(reason.into()));
}

fn turn(finished: bool) -> Value {
    let over = json!({"turn": 1, "startedAt": "2026-01-01T00:00:05Z", "stopReason": "Completed", "finishedAt": "2026-01-01T00:00:06Z"});
    if finished { over } else { json!({"turn": 1, "startedAt": "2026-01-01T00:01:00Z"}) }
}

/// A resident activation owes a sign of life during its turns only.
#[test]
fn an_idle_activation_is_not_ended_by_the_idle_deadline() {
    let limits = json!({"status": {"startedAt": CREATED, "effective": {"idleDeadlineSeconds": 30},
        "conditions": [{"type": "Started", "status": "True", "reason": "X", "message": "", "lastTransitionTime": CREATED}]}});
    let resident = |said: Value| {
        let run = active(merged(limits.clone(), report(said)));
        World { pod: Some(running()), ..of(run, found(json!({}))) }
    };
    let mut idle = resident(json!({"idle": true, "turns": [turn(true)]}));
    assert_eq!(settle(&mut idle, at(500)), Step::Wait(None));
    let busy = resident(
        json!({"idle": false, "turns": [turn(false)], "activity": {"at": "2026-01-01T00:00:07Z", "summary": ""}}),
    );
    assert!(matches!(next(&busy, at(89)), Step::Wait(Some(_))), "counted from the turn's own beginning");
    assert_eq!(status(next(&busy, at(90))).stopping.unwrap().reason, "IdleDeadlineExceeded");
}

fn last(stop: &str, reason: &str, turns: Value) -> Value {
    let count = turns.as_array().map_or(0, Vec::len);
    let last = json!({"final": {"stopReason": stop, "reason": reason, "at": "2026-01-01T00:00:09Z"}, "turns": turns, "turnCount": count});
    merged(report(last), json!({"status": {"result": {"podUID": "pod-uid", "text": "", "sha256": "", "size": 0}}}))
}

fn ended(run: SubagentRun) -> (Phase, String, bool) {
    let world = World { pod: Some(running()), ..of(run, found(json!({}))) };
    let done = status(next(&world, at(10)));
    let interrupted = conditions::is_true(&done.conditions, conditions::INTERRUPTED);
    (done.phase.unwrap(), done.reason.unwrap_or_default(), interrupted)
}

fn closed_by_the_end() -> Value {
    json!({"turn": 1, "startedAt": CREATED, "stopReason": "Error", "finishedAt": "2026-01-01T00:00:09Z"})
}

fn over_at_the_end() -> Value {
    merged(closed_by_the_end(), json!({"stopReason": "Completed"}))
}

/// What the end of an activation means.
#[rstest]
#[case::worked_off("Completed", "Completed", json!([turn(true)]), Phase::Completed, "Completed", false)]
#[case::c29_closed_without_a_turn("Completed", "Completed", json!([]), Phase::Completed, "Completed", false)]
#[case::r8_session_not_known("Error", "NotResumable", json!([]), Phase::Failed, "NotResumable", false)]
#[case::drained_in_the_second_of_the_turns_end("Error", "PodDeleted", json!([over_at_the_end()]), Phase::Completed, "Completed", false)]
#[case::drained_at_rest("Error", "PodDeleted", json!([turn(true)]), Phase::Completed, "Completed", false)]
#[case::drained_amid_a_turn("Error", "PodDeleted", json!([closed_by_the_end()]), Phase::Failed, "PodDeleted", true)]
#[case::crashed_at_rest("Error", "AgentCrashed", json!([turn(true)]), Phase::Failed, "AgentCrashed", false)]
fn c43_how_an_activation_ends(
    #[case] stop: &str,
    #[case] reason: &str,
    #[case] turns: Value,
    #[case] phase: Phase,
    #[case] expected: &str,
    #[case] interrupted: bool,
) {
    let run = active(last(stop, reason, turns.clone()));
    assert_eq!(ended(run), (phase, expected.to_owned(), interrupted));
}

/// c29 still holds for a run that answers a prompt.
#[test]
fn c29_a_prompt_without_a_turn_is_a_contradiction() {
    let run = run(merged(with_pod(), last("Completed", "Completed", json!([]))));
    assert_eq!(ended(run).1, "AgentProtocolError");
}

/// Without the worker's last word, its stored one decides; a prompt is never sent before that.
#[test]
fn r1_a_lost_pod_loses_nothing_between_two_turns() {
    let lost = |turns: Value| {
        let run = active(report(json!({"turns": turns, "idle": true})));
        // The pod is gone with its finalizer.
        let world = of(run, found(json!({})));
        let done = status(next(&world, at(10)));
        (done.phase.unwrap(), conditions::is_true(&done.conditions, conditions::INTERRUPTED))
    };
    assert_eq!(lost(json!([turn(true)])), (Phase::Completed, false));
    assert_eq!(lost(json!([turn(false)])), (Phase::Failed, true));
}

/// The child's historyLimit says how long an activation is kept; nothing else removes it.
#[test]
fn a_finished_activation_has_no_time_to_live() {
    let over = json!({"status": {"phase": "Completed", "finishedAt": CREATED, "podUID": "pod-uid",
        "conditions": [{"type": "Stopped", "status": "True", "reason": "X", "message": "", "lastTransitionTime": CREATED}]}});
    let mut world = of(active(over.clone()), found(json!({})));
    assert_eq!(next(&world, at(1_000_000)), Step::Wait(None));
    world.run = run(merged(with_pod(), over));
    assert_eq!(next(&world, at(1_000_000)), Step::DeleteRun, "a run of its own has");
}
