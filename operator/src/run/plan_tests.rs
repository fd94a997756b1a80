//! Tables for the planner: one stored situation, one expected step.

use super::{
    descendants::Family,
    plan::{Step, World, next},
    prompt::PromptSource,
    status::is_started,
    validate::Provider,
};
use crate::pod::observe::Node;
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use rstest::rstest;
use serde_json::{Value, json};
use std::time::Duration;
use subagent_crds::{Phase, SubagentProvider, SubagentRun, SubagentRunStatus, conditions};

pub(crate) const CREATED: &str = "2026-01-01T00:00:00Z";

pub(crate) fn at(seconds: i64) -> Timestamp {
    CREATED.parse::<Timestamp>().unwrap() + Duration::from_secs(seconds.unsigned_abs())
}

pub(crate) fn merged(base: Value, extra: Value) -> Value {
    match (base, extra) {
        (Value::Object(mut base), Value::Object(extra)) => {
            for (key, value) in extra {
                let old = base.remove(&key).unwrap_or(Value::Null);
                base.insert(key, merged(old, value));
            }
            Value::Object(base)
        }
        (_, extra) => extra,
    }
}

pub(super) fn run(extra: Value) -> SubagentRun {
    let base = json!({
        "apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentRun",
        "metadata": {"name": "r", "namespace": "n", "uid": "run-uid", "generation": 1, "creationTimestamp": CREATED, "finalizers": ["subagents.dev/run-stopped"]},
        "spec": {"providerRef": {"name": "p"}, "description": "d", "prompt": {"text": "hi"}},
    });
    serde_json::from_value(merged(base, extra)).unwrap()
}

fn provider(extra: Value) -> SubagentProvider {
    let base = json!({
        "apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentProvider",
        "metadata": {"name": "p", "namespace": "n", "uid": "p-uid", "generation": 1},
        "spec": {"transport": {"acp": {}}, "template": {}, "probe": "Never"},
        "status": {"observedGeneration": 1, "revision": "rev-1", "capabilities": ["DepthLimit"],
            "conditions": [{"type": "Ready", "status": "True", "reason": "Valid", "message": "", "lastTransitionTime": CREATED}]},
    });
    serde_json::from_value(merged(base, extra)).unwrap()
}

pub(super) fn pod(state: Value, extra: Value) -> Pod {
    let base = json!({
        "metadata": {"name": "r-1", "uid": "pod-uid", "creationTimestamp": CREATED, "finalizers": ["subagents.dev/proof-of-stop"],
            "ownerReferences": [{"apiVersion": "x", "kind": "SubagentRun", "name": "r", "uid": "run-uid", "controller": true}]},
        "spec": {"nodeName": "node", "containers": [{"name": "agent"}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "agent", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}]},
    });
    serde_json::from_value(merged(base, extra)).unwrap()
}

pub(super) fn running() -> Pod {
    pod(json!({"running": {}}), json!({}))
}

pub(super) fn exited() -> Pod {
    pod(json!({"terminated": {"exitCode": 0}}), json!({}))
}

pub(super) fn accepted() -> Value {
    json!({"status": {"phase": "Starting", "attempt": 1, "attempts": [{"number": 1, "podName": "r-1"}],
        "lineage": {"depth": 1, "rootUID": "run-uid"},
        "effective": {"startDeadlineSeconds": 600, "ttlSecondsAfterFinished": 1000, "maxAttempts": 3}}})
}

pub(super) fn with_pod() -> Value {
    merged(accepted(), json!({"status": {"podUID": "pod-uid"}}))
}

pub(super) fn report(extra: Value) -> Value {
    let base = json!({"podUID": "pod-uid", "attempt": 1, "seq": 1, "session": {"id": "s", "how": "New"}, "turns": [{"turn": 1}], "turnCount": 1});
    json!({"status": {"report": merged(base, extra)}})
}

pub(super) fn finished(stop: &str, reason: &str) -> Value {
    let last = json!({"final": {"stopReason": stop, "reason": reason, "at": "2026-01-01T00:00:09Z"}});
    merged(report(last), json!({"status": {"result": {"podUID": "pod-uid", "text": "out", "sha256": "", "size": 3}}}))
}

pub(super) fn world(run: SubagentRun, pod: Option<Pod>) -> World {
    // Nobody is below it.
    let family = Family { found: Some(vec![]), told: None };
    World {
        pod,
        graces: Duration::from_secs(19),
        provider: ready(),
        family,
        ..World::new(run, Duration::from_secs(300))
    }
}

fn ready() -> Provider {
    Provider::Found(Box::new(provider(json!({}))))
}

/// C1: an object that does not decode keeps its runs waiting and is named; it never makes them spin or hang.
#[test]
fn c5_a_provider_that_does_not_decode_is_one_that_is_not_ready() {
    let mut world = world(run(json!({})), None);
    world.provider = Provider::Undecodable("invalid type".into());
    let waiting = status(next(&world, at(1)));
    assert_eq!(waiting.reason.as_deref(), Some("ProviderNotReady"));
    assert!(waiting.message.as_ref().unwrap().contains("does not decode"));
    world.run.status = Some(waiting);
    assert_eq!(next(&world, at(2)), Step::Wait(Some(Duration::from_secs(598))));
    assert_eq!(status(next(&world, at(600))).phase, Some(Phase::Rejected));
}

pub(super) fn status(step: Step) -> SubagentRunStatus {
    match step {
        Step::Status(status) => *status,
        other => panic!("a status write was expected, not {other:?}"),
    }
}

pub(super) fn stopped(status: &SubagentRunStatus) -> Option<(&str, &str)> {
    conditions::get(&status.conditions, conditions::STOPPED).map(|c| (c.status.as_str(), c.reason.as_str()))
}

/// Follows the planner through its own status writes until it does something else.
pub(super) fn settle(world: &mut World, now: Timestamp) -> Step {
    for _ in 0..10 {
        match next(world, now) {
            Step::Status(status) => world.run.status = Some(*status),
            other => return other,
        }
    }
    panic!("the planner writes status after status: {:?}", world.run.status);
}

#[test]
fn a_run_gets_its_finalizer_then_its_acceptance_then_its_pod() {
    let mut world = world(run(json!({"metadata": {"finalizers": null}})), None);
    assert_eq!(next(&world, at(1)), Step::AddFinalizer);
    world.run.metadata.finalizers = Some(vec!["subagents.dev/run-stopped".into()]);
    let accepted = status(next(&world, at(1)));
    assert_eq!((accepted.attempt, accepted.phase), (Some(1), Some(Phase::Starting)));
    assert_eq!(accepted.descriptor.as_ref().unwrap().provider_revision, "rev-1");
    assert_eq!(accepted.lineage.as_ref().unwrap().root_uid, "run-uid");
    world.run.status = Some(accepted);
    assert_eq!(next(&world, at(1)), Step::CreatePod);
}

#[test]
fn a_pods_uid_is_stored_before_its_worker_is_believed() {
    let world = world(run(accepted()), Some(running()));
    assert_eq!(status(next(&world, at(2))).pod_uid.as_deref(), Some("pod-uid"));
}

#[test]
fn c9_a_run_cancelled_when_first_seen_starts_nothing() {
    let world = world(run(json!({"spec": {"cancel": true}, "metadata": {"finalizers": null}})), None);
    let status = status(next(&world, at(1)));
    assert_eq!(status.phase, Some(Phase::Cancelled));
    assert_eq!(stopped(&status), Some(("True", "NoPod")));
    assert_eq!(status.attempt, None);
}

#[rstest]
#[case::missing(None, "NoProvider")]
#[case::not_ready(Some(provider(json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "InvalidTemplate", "message": "m", "lastTransitionTime": CREATED}]}}))), "ProviderNotReady")]
#[case::edited(Some(provider(json!({"metadata": {"generation": 2}}))), "ProviderNotReady")]
fn c5_a_missing_or_unready_provider_waits_until_the_start_deadline(
    #[case] found: Option<SubagentProvider>,
    #[case] reason: &str,
) {
    let mut world = world(run(json!({})), None);
    world.provider = found.map_or(Provider::Missing, |found| Provider::Found(Box::new(found)));
    let waiting = status(next(&world, at(1)));
    assert_eq!((waiting.phase, waiting.reason.as_deref()), (Some(Phase::Pending), Some(reason)));
    world.run.status = Some(waiting);
    assert_eq!(next(&world, at(2)), Step::Wait(Some(Duration::from_secs(598))));
    let ended = status(next(&world, at(600)));
    assert_eq!((ended.phase, ended.reason.as_deref()), (Some(Phase::Rejected), Some(reason)));
    let message = ended.message.as_deref().unwrap_or_default();
    assert!(message.starts_with("startDeadlineSeconds 600 is over: SubagentProvider "), "it waits no more: {message}");
    assert!(!is_started(&ended), "c10: a refused run has no Started");
}

#[rstest]
#[case::persona_empty(json!({"persona": ""}), "Persona", "spec.persona")]
#[case::filter_empty(json!({"toolFilter": {"allow": []}}), "ToolFilter", "spec.toolFilter")]
#[case::schema(json!({"outputSchema": {"type": "object"}, "persona": "x"}), "OutputSchema", "spec.outputSchema")]
#[case::filter_before_persona(json!({"toolFilter": {"deny": ["a"]}, "persona": "x"}), "ToolFilter", "spec.toolFilter")]
#[case::model(json!({"agentOptions": {"model": "m"}}), "AgentModel", "spec.agentOptions.model")]
#[case::r2_resume(json!({"interruptionPolicy": "Resume"}), "InterruptionResume", "spec.interruptionPolicy")]
#[case::r2_restart(json!({"interruptionPolicy": "Restart"}), "InterruptionRestart", "spec.interruptionPolicy")]
#[case::image(json!({"prompt": {"text": null, "content": [{"image": {"data": "x", "mimeType": "image/png"}}]}}), "ImagePrompt", "image")]
fn c5_c6_c7_a_capability_that_is_missing_is_refused_by_name(
    #[case] spec: Value,
    #[case] capability: &str,
    #[case] field: &str,
) {
    let world = world(run(json!({"spec": spec})), None);
    let status = status(next(&world, at(1)));
    assert_eq!((status.phase, status.reason.as_deref()), (Some(Phase::Rejected), Some("UnsupportedCapability")));
    let message = status.message.unwrap();
    assert!(
        message.contains(capability) && message.contains(field) && message.contains("SubagentProvider p"),
        "{message}"
    );
    assert_eq!(status.attempt, None, "no pod");
}

/// c5: who waits for a probe reads what that waits for; who is refused reads that the probe told nothing.
#[test]
fn c5_what_a_probe_waits_for_and_that_it_failed_is_said_to_its_runs() {
    let image = json!({"text": null, "content": [{"image": {"data": "x", "mimeType": "image/png"}}]});
    let asked = |extra: Value, ready: &str| {
        let mut provider = provider(merged(json!({"spec": {"probe": "OnChange"}}), extra));
        provider.status.as_mut().unwrap().conditions[0].message = ready.to_owned();
        let mut world = world(run(json!({"spec": {"prompt": image}})), None);
        world.provider = Provider::Found(Box::new(provider));
        status(next(&world, at(1))).message.unwrap()
    };
    let said = asked(json!({}), "its pod has not started: Unschedulable: no cpu");
    assert!(said.contains("provider says: its pod has not started: Unschedulable: no cpu"), "{said}");
    let container = json!({"name": "agent", "image": "i", "command": ["a"], "args": ["$(SUBAGENT_PARAM_REPO)"]});
    let failed = json!({
        "spec": {"template": {"spec": {"containers": [container]}}},
        "status": {"probe": {"revision": "rev-1", "attempt": 1, "finishedAt": CREATED, "reason": "AgentStartFailed"}},
    });
    let said = asked(failed, "could not be probed");
    assert!(said.contains("its probe failed") && said.contains("ImagePrompt"), "{said}");
}

/// c5: an `apply -f dir/` has no order, so what only a probe will tell is waited for; c7: what no agent can have here is
/// refused at once.
#[rstest]
#[case::under_way(json!({}), None, false)]
#[case::lost(json!({}), Some(json!({"reason": "Unschedulable"})), false)]
#[case::answered(json!({}), Some(json!({})), true)]
#[case::never(json!({"probe": "Never"}), None, true)]
fn c5_c7_what_only_a_handshake_tells_is_waited_for(
    #[case] spec: Value,
    #[case] probed: Option<Value>,
    #[case] is_refused: bool,
) {
    let image = json!({"text": null, "content": [{"image": {"data": "x", "mimeType": "image/png"}}]});
    let mut provider = json!({"spec": {"probe": "OnChange"}, "status": {}});
    provider = merged(provider, json!({"spec": spec}));
    if let Some(extra) = probed {
        let probed = json!({"revision": "rev-1", "attempt": 1, "finishedAt": CREATED});
        provider["status"]["probe"] = merged(probed, extra);
    }
    let asks = |prompt: &Value, more: Value| {
        let mut world = world(run(json!({"spec": merged(json!({"prompt": prompt}), more)})), None);
        world.provider = Provider::Found(Box::new(self::provider(provider.clone())));
        status(next(&world, at(1)))
    };
    let asked = asks(&image, json!({}));
    let expected = if is_refused {
        (Some(Phase::Rejected), Some("UnsupportedCapability"))
    } else {
        (Some(Phase::Pending), Some("ProviderNotReady"))
    };
    assert_eq!((asked.phase, asked.reason.as_deref()), expected);
    assert!(asked.message.as_ref().unwrap().contains("ImagePrompt"), "{:?}", asked.message);
    let unserved = asks(&json!({"text": "hi"}), json!({"toolFilter": {"allow": []}}));
    assert_eq!(
        unserved.reason.as_deref(),
        Some("UnsupportedCapability"),
        "no worker serves it, whatever a probe tells"
    );
    assert_eq!(asks(&json!({"text": "hi"}), json!({})).attempt, Some(1), "who asks for nothing special need not wait");
}

#[rstest]
#[case::zero_refuses(json!({"maxDepth": 0}), Some("DepthExceeded"))]
#[case::one_allows(json!({"maxDepth": 1}), None)]
fn c12_max_depth_is_an_absolute_cap(#[case] spec: Value, #[case] reason: Option<&str>) {
    let world = world(run(json!({"spec": spec})), None);
    assert_eq!(status(next(&world, at(1))).reason.as_deref(), reason);
}

mod lineage {
    use super::*;
    use crate::run::validate::Parent;

    fn child(parent: Parent, spec: Value) -> World {
        let spec = merged(json!({"parentRef": {"kind": "SubagentRun", "name": "parent"}}), spec);
        World { parent, ..world(run(json!({"spec": spec})), None) }
    }

    fn parent(extra: Value) -> Parent {
        let base = json!({"metadata": {"name": "parent", "uid": "parent-uid"}, "status": {"phase": "Running",
            "lineage": {"depth": 2, "rootUID": "root-uid", "parentUID": "root-uid", "ancestors": ["root-uid"]}}});
        Parent::Found(Box::new(run(merged(base, extra))))
    }

    #[test]
    fn c11_c15_depth_and_ancestors_are_computed_from_the_parents_record() {
        let status = status(next(&child(parent(json!({})), json!({})), at(1)));
        let lineage = status.lineage.unwrap();
        assert_eq!((lineage.depth, lineage.root_uid.as_str()), (3, "root-uid"));
        assert_eq!(lineage.ancestors, ["root-uid", "parent-uid"]);
        assert_eq!(lineage.parent_uid.as_deref(), Some("parent-uid"));
    }

    #[test]
    fn c12_the_smallest_cap_of_the_ancestors_holds() {
        let descriptor = json!({"version": 1, "mode": "OneShot", "provider": "p", "providerRevision": "x", "context": "Fresh", "description": "d", "maxDepth": 2});
        let world = child(parent(json!({"status": {"descriptor": descriptor}})), json!({"maxDepth": 9}));
        assert_eq!(status(next(&world, at(1))).reason.as_deref(), Some("DepthExceeded"));
    }

    #[rstest]
    #[case::missing(Parent::Missing, json!({}), "ParentUnavailable")]
    #[case::terminal(parent(json!({"status": {"phase": "Completed"}})), json!({}), "ParentUnavailable")]
    #[case::cancelled(parent(json!({"spec": {"cancel": true}})), json!({}), "ParentUnavailable")]
    #[case::deleting(parent(json!({"metadata": {"deletionTimestamp": CREATED}})), json!({}), "ParentUnavailable")]
    #[case::replaced(parent(json!({})), json!({"parentRef": {"uid": "older"}}), "Unauthorized")]
    fn c14_a_parent_that_accepts_no_children_refuses(
        #[case] parent: Parent,
        #[case] spec: Value,
        #[case] reason: &str,
    ) {
        let status = status(next(&child(parent, spec), at(1)));
        assert_eq!((status.phase, status.reason.as_deref()), (Some(Phase::Rejected), Some(reason)));
    }

    #[test]
    fn c14_the_parent_is_looked_at_again_right_before_the_pod() {
        let mut world = child(parent(json!({"spec": {"cancel": true}})), json!({}));
        world.run.status = run(accepted()).status;
        let status = status(next(&world, at(1)));
        assert_eq!((status.phase, status.reason.as_deref()), (Some(Phase::Rejected), Some("ParentUnavailable")));
    }

    /// A child that was accepted below this parent, with these above it.
    fn accepted_below(parent: Parent, above: Vec<Parent>) -> World {
        let mut world = child(parent, json!({}));
        let lineage = json!({"status": {"lineage": {"depth": 4, "rootUID": "root-uid", "parentUID": "parent-uid",
            "ancestors": ["root-uid", "middle-uid", "parent-uid"]}}});
        world.run.status = run(merged(accepted(), lineage)).status;
        World { above, ..world }
    }

    fn over(extra: Value) -> Parent {
        parent(merged(json!({"status": {"phase": "Completed"}}), extra))
    }

    #[rstest]
    #[case::alive(parent(json!({})), vec![])]
    #[case::over(over(json!({})), vec![])]
    #[case::by_a_deadline(over(json!({"status": {"phase": "Failed", "stopping": {"reason": "DeadlineExceeded", "at": CREATED}}})), vec![])]
    #[case::all_are_over(over(json!({})), vec![over(json!({"metadata": {"uid": "middle-uid"}})), over(json!({"metadata": {"uid": "root-uid"}}))])]
    #[case::one_above_is_alive(over(json!({})), vec![parent(json!({"metadata": {"uid": "middle-uid"}}))])]
    fn c14_a_parent_that_came_to_its_own_end_lets_an_accepted_child_start(
        #[case] found: Parent,
        #[case] above: Vec<Parent>,
    ) {
        assert_eq!(next(&accepted_below(found, above), at(1)), Step::CreatePod);
    }

    /// Nobody tells a parent that is over of a cancel from above, which may be older than the child's lineage.
    #[rstest]
    #[case::deleting(over(json!({"metadata": {"deletionTimestamp": CREATED}})), vec![])]
    #[case::cancelled_in_the_end(over(json!({"spec": {"cancel": true}})), vec![])]
    #[case::cancelled(parent(json!({"status": {"phase": "Cancelled"}})), vec![])]
    #[case::gone(Parent::Missing, vec![])]
    #[case::cancelled_above(over(json!({})), vec![parent(json!({"metadata": {"uid": "middle-uid"}, "spec": {"cancel": true}}))])]
    #[case::gone_above(over(json!({})), vec![over(json!({"metadata": {"uid": "middle-uid"}})), Parent::Missing])]
    #[case::replaced_above(over(json!({})), vec![parent(json!({"metadata": {"uid": "another"}}))])]
    fn c14_c51_nothing_starts_below_what_is_to_stop(#[case] found: Parent, #[case] above: Vec<Parent>) {
        let mut world = accepted_below(found, above);
        let ended = status(next(&world, at(1)));
        assert_eq!((ended.phase, ended.reason.as_deref()), (Some(Phase::Rejected), Some("ParentUnavailable")));
        assert_eq!(stopped(&ended), Some(("True", "NoPod")));

        // Refused means that nothing ran. An attempt had run, so this one is cancelled, by what happened above.
        let again = json!({"status": {"attempt": 2, "attempts": [
            {"number": 2, "podName": "r-2"}, {"number": 1, "podName": "r-1", "podUID": "pod-uid", "finishedAt": CREATED}]}});
        let status = serde_json::to_value(world.run.status.as_ref().unwrap()).unwrap();
        world.run.status = serde_json::from_value(merged(status, again["status"].clone())).unwrap();
        settle(&mut world, at(1));
        let ended = world.run.status.unwrap();
        assert_eq!((ended.phase, ended.reason.as_deref()), (Some(Phase::Cancelled), Some("Cancelled")));
        let message = ended.message.as_deref().unwrap();
        assert!(message.contains("before attempt 2 had a worker pod: ") && message.contains("parent"), "{message}");
        assert_eq!(stopped(&ended), Some(("True", "EarlierAttemptsStopped")));
        assert_eq!(conditions::get(&ended.conditions, conditions::ACCEPTED), None, "it stays accepted");
    }

    /// C1: one that does not decode may be a newer version's.
    #[rstest]
    #[case::parent(Parent::Undecodable("spec: x".into()), vec![])]
    #[case::above(over(json!({})), vec![Parent::Undecodable("spec: x".into())])]
    fn c1_an_accepted_child_waits_for_an_ancestor_that_does_not_decode(
        #[case] found: Parent,
        #[case] above: Vec<Parent>,
    ) {
        let mut world = accepted_below(found, above);
        assert!(matches!(settle(&mut world, at(1)), Step::Wait(Some(_))));
        assert_eq!(world.run.status.as_ref().unwrap().reason.as_deref(), Some("ParentUnavailable"));
        settle(&mut world, at(601));
        assert_eq!(world.run.status.unwrap().reason.as_deref(), Some("StartDeadlineExceeded"));
    }
}

#[test]
fn c8_started_is_true_only_with_a_session_of_the_current_pod() {
    let mut stale = report(json!({"podUID": "older-pod"}));
    stale = merged(with_pod(), stale);
    let mut now = world(run(stale), Some(running()));
    settle(&mut now, at(3));
    assert!(!is_started(now.run.status.as_ref().unwrap()), "another pod's report is not this attempt's");
    let mut now = world(run(merged(with_pod(), report(json!({})))), Some(running()));
    settle(&mut now, at(3));
    let status = now.run.status.unwrap();
    assert!(is_started(&status));
    assert_eq!(status.phase, Some(Phase::Running));
}

#[rstest]
#[case("Completed", "Completed", Phase::Completed, "Completed", "Completed")]
#[case("MaxTokens", "MaxTokens", Phase::Failed, "MaxTokens", "MaxTokens")]
#[case("Refusal", "AgentRefused", Phase::Failed, "Refusal", "AgentRefused")]
#[case("Error", "TurnLimit", Phase::Failed, "Error", "TurnLimit")]
// Nobody asked for it, or the worker was quicker than the record of who did.
#[case("Aborted", "Cancelled", Phase::Cancelled, "Aborted", "Cancelled")]
#[case("Error", "AgentCrashed", Phase::Failed, "Error", "AgentCrashed")]
#[case("Novel", "Novel", Phase::Failed, "Error", "AgentProtocolError")]
#[case("Error", "Completed", Phase::Failed, "Error", "AgentProtocolError")]
fn c25_c26_the_protocol_decides_how_a_run_ends(
    #[case] stop: &str,
    #[case] reason: &str,
    #[case] phase: Phase,
    #[case] shown: &str,
    #[case] why: &str,
) {
    // T10: the exit code says the opposite and changes nothing.
    for pod in [exited(), pod(json!({"terminated": {"exitCode": 1}}), json!({}))] {
        let world = world(run(merged(with_pod(), finished(stop, reason))), Some(pod));
        let status = status(next(&world, at(10)));
        assert_eq!(status.phase, Some(phase));
        assert_eq!((status.stop_reason.as_deref(), status.reason.as_deref()), (Some(shown), Some(why)));
        assert_eq!(stopped(&status), Some(("True", "ContainersTerminated")));
    }
}

/// The worker of a pod that is being deleted knows only that it got SIGTERM.
#[rstest]
#[case::c49_by_somebody(json!({}), json!({}), "PodDeleted")]
#[case::n3_by_a_drain(json!({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "drained"}]}), json!({}), "Evicted")]
#[case::n3_by_its_own_deadline(json!({"reason": "DeadlineExceeded"}), json!({}), "Evicted")]
#[case::by_us(json!({}), json!({"status": {"stopping": {"reason": "DeadlineExceeded", "at": CREATED}}}), "DeadlineExceeded")]
#[case::s7_by_us_for_a_cancel(json!({}), json!({"status": {"stopping": {"reason": "Cancelled", "at": CREATED}}}), "Cancelled")]
fn a_worker_that_got_sigterm_ends_with_what_the_pod_was_deleted_for(
    #[case] pod_status: Value,
    #[case] extra: Value,
    #[case] reason: &str,
) {
    let deleting = json!({"metadata": {"deletionTimestamp": CREATED}, "status": pod_status});
    for state in [json!({"running": {}}), json!({"terminated": {"exitCode": 0}})] {
        let reported = merged(merged(with_pod(), finished("Error", "PodDeleted")), extra.clone());
        let mut world = world(run(reported), Some(pod(state, deleting.clone())));
        settle(&mut world, at(10));
        let status = world.run.status.unwrap();
        let expected = if status.phase.is_some_and(|phase| phase.is_terminal()) { Some(reason) } else { None };
        assert!(expected.is_some() || reason == "Cancelled", "only a cancel waits for the proof");
        assert_eq!(expected.and(status.reason.as_deref()), expected);
    }
}

#[test]
fn a_completed_run_does_not_wait_for_the_kubelet() {
    let world = world(run(merged(with_pod(), finished("Completed", "Completed"))), Some(running()));
    let status = status(next(&world, at(10)));
    assert_eq!(status.phase, Some(Phase::Completed));
    assert_ne!(stopped(&status).map(|(status, _)| status), Some("True"));
}

#[test]
fn c29_completed_without_a_turn_is_an_error() {
    let world = world(
        run(merged(
            with_pod(),
            merged(finished("Completed", "Completed"), json!({"status": {"report": {"turns": [], "turnCount": 0}}})),
        )),
        Some(exited()),
    );
    assert_eq!(status(next(&world, at(10))).reason.as_deref(), Some("AgentProtocolError"));
}

#[test]
fn c31_completed_without_a_stored_result_is_never_completed() {
    let world = world(
        run(merged(with_pod(), merged(finished("Completed", "Completed"), json!({"status": {"result": null}})))),
        Some(exited()),
    );
    assert_eq!(status(next(&world, at(10))).reason.as_deref(), Some("DurabilityFailed"));
}

/// c31: what was in the way of the result is known while it is tried again, and the end does not forget it; also when a
/// cancel ended that.
#[rstest]
#[case::by_itself(json!({}))]
#[case::cancelled(json!({"spec": {"cancel": true}}))]
fn c31_an_end_without_a_result_says_what_was_in_the_way(#[case] extra: Value) {
    let storing = json!({"storing": {"size": 20000, "trouble": "no room in quota contents"}});
    let mut world = world(run(merged(with_pod(), report(storing))), Some(running()));
    settle(&mut world, at(3));
    let mut done = merged(serde_json::to_value(&world.run).unwrap(), extra);
    world.run = serde_json::from_value(done.clone()).unwrap();
    settle(&mut world, at(4));
    done = merged(serde_json::to_value(&world.run).unwrap(), finished("Error", "DurabilityFailed"));
    done["status"]["result"] = Value::Null;
    done["status"]["report"]["storing"] = Value::Null;
    done["status"]["report"]["final"]["diagnostic"] = json!("the result of 20000 bytes was not stored: stopped");
    world.run = serde_json::from_value(done).unwrap();
    world.pod = Some(exited());
    let ended = status(next(&world, at(5)));
    assert_eq!((ended.phase, ended.reason.as_deref()), (Some(Phase::Failed), Some("DurabilityFailed")));
    let message = ended.message.unwrap();
    assert!(message.contains("In the way was: no room in quota contents. "), "{message}");
}

#[rstest]
#[case::by_itself(json!({}), "spec.cancel is true", false)]
#[case::with_one_above(json!({"subagents.dev/cancelled-by": "root"}), "cancelled together with root above it", true)]
fn c51_a_run_says_with_whom_it_was_cancelled(#[case] annotations: Value, #[case] stopping: &str, #[case] named: bool) {
    let asked = json!({"metadata": {"annotations": annotations}, "spec": {"cancel": true}});
    let mut world = world(run(merged(merged(with_pod(), report(json!({}))), asked)), Some(running()));
    let recorded = status(next(&world, at(5)));
    assert_eq!(recorded.message.as_deref(), Some(stopping));
    world.run.status = Some(recorded);
    let mut done = serde_json::to_value(&world.run).unwrap();
    done = merged(done, finished("Aborted", "Cancelled"));
    world.run = serde_json::from_value(done).unwrap();
    world.pod = Some(exited());
    let ended = status(next(&world, at(6)));
    assert_eq!(ended.phase, Some(Phase::Cancelled));
    assert_eq!(ended.message.unwrap().contains("together with root"), named);
}

#[test]
fn c27_a_cancel_is_recorded_first_and_the_worker_decides_the_race() {
    let cancelled = merged(merged(with_pod(), report(json!({}))), json!({"spec": {"cancel": true}}));
    let mut world = world(run(cancelled.clone()), Some(running()));
    let recorded = status(next(&world, at(5)));
    assert_eq!(recorded.phase, Some(Phase::Cancelling));
    assert_eq!(recorded.stopping.as_ref().unwrap().reason, "Cancelled");
    // The worker is connected: it gets the cancel over the link, the pod is left to it.
    world.run.status = Some(recorded.clone());
    assert!(matches!(next(&world, at(6)), Step::Wait(Some(_))));
    // The response had been read before: the protocol's result stands.
    let mut done = serde_json::to_value(&recorded).unwrap();
    done = merged(done, finished("Completed", "Completed")["status"].clone());
    world.run.status = Some(serde_json::from_value(done).unwrap());
    assert_eq!(status(next(&world, at(7))).phase, Some(Phase::Completed));
    // It had not: aborted, and Cancelling until the stop is proven.
    let mut done = serde_json::to_value(&recorded).unwrap();
    done = merged(done, finished("Aborted", "Cancelled")["status"].clone());
    world.run.status = Some(serde_json::from_value(done).unwrap());
    assert!(matches!(next(&world, at(7)), Step::Wait(Some(_))));
    world.pod = Some(exited());
    let ended = status(next(&world, at(8)));
    assert_eq!((ended.phase, ended.stop_reason.as_deref()), (Some(Phase::Cancelled), Some("Aborted")));
    assert_eq!(stopped(&ended), Some(("True", "ContainersTerminated")));
}

/// The worker hears of a cancel as soon as the controller does, and its end may be stored first: the run is Cancelling all
/// the same until the stop is proven, and nothing else than the cancel is recorded.
#[rstest]
#[case(json!({"spec": {"cancel": true}}), "spec.cancel")]
#[case(json!({"metadata": {"deletionTimestamp": CREATED}}), "deleted")]
#[case(json!({}), "agent")]
fn c27_an_aborted_end_that_is_stored_before_the_cancel_is_cancelling(#[case] wish: Value, #[case] word: &str) {
    let aborted = merged(merged(with_pod(), finished("Aborted", "Cancelled")), wish);
    let mut world = world(run(aborted), Some(running()));
    let recorded = status(next(&world, at(10)));
    assert_eq!(recorded.phase, Some(Phase::Cancelling));
    assert_eq!(recorded.stopping.as_ref().map(|stopping| stopping.reason.as_str()), Some("Cancelled"));
    assert!(recorded.message.as_ref().is_some_and(|message| message.contains(word)), "{:?}", recorded.message);
    world.run.status = Some(recorded);
    assert!(!matches!(next(&world, at(10)), Step::Status(_)), "recorded once");
    world.pod = Some(exited());
    assert_eq!(status(next(&world, at(11))).phase, Some(Phase::Cancelled));
}

#[test]
fn c48_a_worker_that_never_reports_its_cancel_loses_its_pod_and_then_the_run_settles() {
    let cancelled = merged(merged(with_pod(), report(json!({}))), json!({"spec": {"cancel": true}}));
    let mut world = world(run(cancelled), Some(running()));
    let wait = settle(&mut world, at(5));
    assert_eq!(wait, Step::Wait(Some(Duration::from_secs(19 + 15))));
    assert_eq!(next(&world, at(5 + 19 + 15)), Step::DeletePod);
    world.pod = Some(pod(json!({"running": {}}), json!({"metadata": {"deletionTimestamp": CREATED}})));
    assert!(matches!(next(&world, at(5 + 19 + 16)), Step::Wait(Some(_))));
    let stuck = status(next(&world, at(5 + 19 + 15 + 30)));
    assert_eq!((stuck.phase, stuck.reason.as_deref()), (Some(Phase::Cancelled), Some("CleanupFailed")));
    assert_eq!(stopped(&stuck).map(|(status, _)| status), Some("False"));
    // It goes on looking for the proof.
    world.run.status = Some(stuck);
    world.pod = Some(exited());
    assert_eq!(stopped(&status(next(&world, at(500)))), Some(("True", "ContainersTerminated")));
}

#[rstest]
#[case::unsaid(json!({"spec": {"cancel": true}}))]
#[case::deleted(json!({"metadata": {"deletionTimestamp": CREATED}}))]
fn s7_a_stop_before_the_worker_spoke_deletes_the_pod_at_once(#[case] how: Value) {
    let mut world = world(run(merged(with_pod(), how)), Some(running()));
    assert_eq!(settle(&mut world, at(5)), Step::DeletePod);
}

#[test]
fn s7_a_stop_between_acceptance_and_pod_needs_no_pod() {
    let mut world = world(run(merged(accepted(), json!({"spec": {"cancel": true}}))), None);
    settle(&mut world, at(5));
    let status = world.run.status.unwrap();
    assert_eq!(status.phase, Some(Phase::Cancelled));
    assert_eq!(stopped(&status), Some(("True", "NoPod")));
}

#[test]
fn a_start_deadline_names_the_stage_and_rolls_back_before_it_settles() {
    let stage = json!({"status": {"report": {"podUID": "pod-uid", "attempt": 1, "seq": 1, "stage": "Initialize", "turnCount": 0}}});
    let mut world = world(run(merged(with_pod(), stage)), Some(running()));
    assert!(matches!(settle(&mut world, at(599)), Step::Wait(Some(_))));
    let recorded = status(next(&world, at(600)));
    assert_eq!(recorded.stopping.as_ref().unwrap().reason, "StartDeadlineExceeded");
    world.run.status = Some(recorded);
    assert!(!next(&world, at(600)).eq(&Step::DeletePod), "the worker speaks: it stops its agent itself");
    world.pod = Some(exited());
    let ended = status(next(&world, at(620)));
    assert_eq!((ended.phase, ended.reason.as_deref()), (Some(Phase::Failed), Some("StartDeadlineExceeded")));
    assert!(ended.message.unwrap().contains("Initialize"));
}

/// N4: a worker that never connects ends at the start deadline, with where it stood and what kept it; an agent's words are
/// never taken for a worker's.
#[rstest]
#[case::unheard(json!({}), true)]
#[case::heard(json!({"status": {"report": {"podUID": "pod-uid", "attempt": 1, "seq": 1, "stage": "Initialize", "turnCount": 0}}}), false)]
fn n4_a_worker_that_never_connected_says_what_it_met(#[case] heard: Value, #[case] is_told: bool) {
    let mut world = world(run(merged(with_pod(), heard)), Some(running()));
    world.run.status = Some(status(next(&world, at(600))));
    let stood = world.run.status.as_ref().unwrap().message.clone().unwrap();
    assert_eq!(stood.contains("has not connected to the gateway"), is_told, "{stood}");
    world.pod = Some(pod(json!({"terminated": {"exitCode": 1, "message": "connection refused\n"}}), json!({})));
    let ended = status(next(&world, at(620)));
    assert_eq!((ended.phase, ended.reason.as_deref()), (Some(Phase::Failed), Some("StartDeadlineExceeded")));
    let message = ended.message.unwrap();
    assert!(message.contains("600 s") && message.starts_with(&stood), "{message}");
    assert_eq!(message.contains("Its worker says: connection refused."), is_told, "{message}");
}

/// N1: a prompt that cannot be mounted is said at once and named at the deadline; it may still appear.
#[test]
fn n1_a_missing_prompt_has_its_own_reason() {
    let creating = json!({"waiting": {"reason": "PodInitializing"}});
    let mut world = world(run(with_pod()), Some(pod(creating, json!({}))));
    world.prompt = PromptSource::Missing("ConfigMap prompts does not exist".into());
    assert!(matches!(settle(&mut world, at(5)), Step::Wait(Some(_))));
    let shown = world.run.status.clone().unwrap();
    assert_eq!((shown.phase, shown.reason.as_deref()), (Some(Phase::Starting), Some("MissingReference")));
    let recorded = status(next(&world, at(600)));
    assert_eq!(recorded.stopping.as_ref().unwrap().reason, "MissingReference");
    world.prompt = PromptSource::Usable;
    settle(&mut world, at(6));
    assert_eq!(world.run.status.unwrap().reason, None);
}

/// c5: a ConfigMap that holds no prompt is an argument outside its domain; one that is missing may still come.
#[test]
fn c5_a_configmap_that_holds_no_prompt_is_refused() {
    let mut world = world(run(json!({})), None);
    world.prompt = PromptSource::Missing("ConfigMap prompts does not exist".into());
    assert_eq!(status(next(&world, at(1))).attempt, Some(1), "accepted");
    world.prompt = PromptSource::Unusable("ConfigMap prompts is empty".into());
    let refused = status(next(&world, at(1)));
    assert_eq!((refused.phase, refused.reason.as_deref()), (Some(Phase::Rejected), Some("InvalidArgs")));
    assert_eq!(refused.message.as_deref(), Some("ConfigMap prompts is empty"));
    world.provider = Provider::Missing;
    assert_eq!(status(next(&world, at(1))).reason.as_deref(), Some("NoProvider"), "in the contract's order");
}

#[test]
fn n6_a_final_starting_problem_ends_in_seconds() {
    let waiting = json!({"waiting": {"reason": "CreateContainerConfigError", "message": "container has runAsNonRoot and image will run as root"}});
    let mut world = world(run(with_pod()), Some(pod(waiting, json!({}))));
    assert_eq!(settle(&mut world, at(2)), Step::DeletePod);
    world.pod = Some(exited());
    let ended = status(next(&world, at(4)));
    assert_eq!((ended.phase, ended.reason.as_deref()), (Some(Phase::Failed), Some("ImageUserRefused")));
}

#[rstest]
#[case::active(json!({"activeDeadlineSeconds": 30}), json!({}), 33, "DeadlineExceeded")]
#[case::idle(json!({"idleDeadlineSeconds": 30}), json!({"activity": {"at": "2026-01-01T00:00:20Z", "summary": ""}}), 50, "IdleDeadlineExceeded")]
fn deadlines_are_recorded_before_anything_is_stopped(
    #[case] effective: Value,
    #[case] seen: Value,
    #[case] due: i64,
    #[case] reason: &str,
) {
    let extra = json!({"status": {"effective": effective}});
    let mut world = world(run(merged(merged(with_pod(), report(seen)), extra)), Some(running()));
    settle(&mut world, at(3));
    assert_eq!(settle(&mut world, at(due - 1)), Step::Wait(Some(Duration::from_secs(1))));
    let recorded = status(next(&world, at(due)));
    assert_eq!(recorded.stopping.as_ref().unwrap().reason, reason);
    let mut done = serde_json::to_value(&recorded).unwrap();
    done = merged(done, finished("Aborted", "Cancelled")["status"].clone());
    world.run.status = Some(serde_json::from_value(done).unwrap());
    let ended = status(next(&world, at(due + 1)));
    assert_eq!((ended.phase, ended.reason.as_deref()), (Some(Phase::Failed), Some(reason)));
}

/// c31: a run whose agent is done and whose result finds no room looks like no working one. It says what it waits for and
/// what is in the way, owes no sign of life, and forgets it all with its end.
#[rstest]
#[case::slow(json!({"size": 20_000}), "its result of 20000 bytes is being stored")]
#[case::no_room(json!({"size": 20_000, "trouble": "raise the quota: exceeded quota: q"}), "tried again for up to 60 minutes: raise the quota: exceeded quota: q")]
fn c31_a_result_that_is_not_stored_yet_is_told(#[case] storing: Value, #[case] words: &str) {
    let effective = json!({"status": {"effective": {"idleDeadlineSeconds": 30}}});
    let waits = merged(merged(with_pod(), report(json!({"storing": storing}))), effective);
    let mut world = world(run(waits), Some(running()));
    settle(&mut world, at(9));
    assert_eq!(settle(&mut world, at(3600)), Step::Wait(None), "no deadline of an agent at work");
    let shown = world.run.status.clone().unwrap();
    assert_eq!((shown.phase, shown.reason.as_deref()), (Some(Phase::Running), None));
    let finished_ = conditions::get(&shown.conditions, conditions::FINISHED).unwrap();
    assert_eq!((finished_.status.as_str(), finished_.reason.as_str()), ("False", "StoringResult"));
    assert!(finished_.message.ends_with(words), "{}", finished_.message);
    assert_eq!(shown.message.as_ref(), Some(&finished_.message));
    let done = merged(serde_json::to_value(&shown).unwrap(), finished("Completed", "Completed")["status"].clone());
    world.run.status = Some(serde_json::from_value(done).unwrap());
    let ended = status(next(&world, at(3601)));
    assert_eq!(ended.phase, Some(Phase::Completed));
    assert!(conditions::is_true(&ended.conditions, conditions::FINISHED));
    assert!(!serde_json::to_value((&ended.message, &ended.conditions)).unwrap().to_string().contains("stored"));
}

/// c41: the same of an activation's session, and it is said no more once it went through: the next turn is under way then.
#[test]
fn c41_a_session_that_is_not_stored_yet_is_told_until_it_is() {
    let storing = json!({"what": "Session", "trouble": "make room"});
    let waits = merged(with_pod(), report(json!({"storing": storing})));
    let mut world = world(run(waits), Some(running()));
    settle(&mut world, at(3));
    let working = world.run.status.clone().unwrap();
    let finished = conditions::get(&working.conditions, conditions::FINISHED).unwrap();
    assert_eq!((finished.status.as_str(), finished.reason.as_str()), ("False", "StoringSession"));
    assert!(finished.message.contains("the session is not stored") && finished.message.ends_with(": make room"));
    assert_eq!(working.message.as_ref(), Some(&finished.message));
    world.run.status.as_mut().unwrap().report.as_mut().unwrap().storing = None;
    settle(&mut world, at(4));
    let through = world.run.status.clone().unwrap();
    assert_eq!(conditions::get(&through.conditions, conditions::FINISHED), None);
    assert!(through.message.as_ref().unwrap().ends_with(" is working"), "{:?}", through.message);
    assert_eq!((settle(&mut world, at(5)), world.run.status), (Step::Wait(None), Some(through)));
}

#[test]
fn d2_a_foreign_pod_is_never_adopted() {
    let foreign = pod(
        json!({"running": {}}),
        json!({"metadata": {"ownerReferences": [{"apiVersion": "x", "kind": "SubagentRun", "name": "r", "uid": "another", "controller": true}]}}),
    );
    let mut world = world(run(accepted()), Some(foreign));
    assert!(matches!(settle(&mut world, at(5)), Step::Wait(Some(_))));
    let status = world.run.status.unwrap();
    assert_eq!((status.reason.as_deref(), status.pod_uid), (Some("PodRejected"), None));
}

#[test]
fn a_pod_that_is_gone_with_its_finalizer_ends_the_run() {
    let world = world(run(merged(with_pod(), report(json!({})))), None);
    let status = status(next(&world, at(9)));
    assert_eq!((status.phase, status.reason.as_deref()), (Some(Phase::Failed), Some("PodDeleted")));
    assert!(conditions::is_true(&status.conditions, conditions::INTERRUPTED));
    assert!(is_started(&status), "c10: a run that had a session says so");
}

#[rstest]
#[case::deleted(json!({"terminated": {"exitCode": 143}}), json!({"metadata": {"deletionTimestamp": CREATED}}), "PodDeleted")]
#[case::lost(json!({"terminated": {"exitCode": 137}}), json!({}), "WorkerLost")]
fn r4_an_attempt_lost_before_its_turn_starts_again_after_the_proof(
    #[case] state: Value,
    #[case] extra: Value,
    #[case] reason: &str,
) {
    let mut world = world(run(with_pod()), Some(pod(state, extra)));
    let first = status(next(&world, at(5)));
    assert_eq!(first.attempt, Some(1));
    assert_eq!(first.attempts[0].reason.as_deref(), Some(reason));
    world.run.status = Some(first);
    assert_eq!(next(&world, at(5)), Step::ReleasePod, "only after its end is stored");
    world.pod = None;
    let second = status(next(&world, at(6)));
    assert_eq!((second.attempt, second.pod_uid.clone()), (Some(2), None));
    assert_eq!(second.attempts.len(), 2);
    world.run.status = Some(second);
    assert_eq!(next(&world, at(6)), Step::CreatePod);
}

/// c36: as long as anything of the old pod may run, nothing new is opened.
#[test]
fn r4_no_attempt_is_opened_while_something_of_the_old_one_runs() {
    let container = |name: &str, state: Value| json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
    let both = json!([{"name": "agent"}, {"name": "sidecar"}]);
    let statuses = json!([
        container("agent", json!({"terminated": {"exitCode": 137}})),
        container("sidecar", json!({"running": {}})),
    ]);
    let extra = json!({"spec": {"containers": both}, "status": {"containerStatuses": statuses}});
    let world = world(run(with_pod()), Some(pod(json!({}), extra)));
    assert_eq!(next(&world, at(5)), Step::DeletePod, "the sidecar is stopped first");
}

#[rstest]
#[case::turn_began(report(json!({})), 5, "WorkerLost")]
#[case::too_late(json!({}), 600, "StartDeadlineExceeded")]
#[case::too_often(json!({"status": {"effective": {"maxAttempts": 1}, "attempts": [{"number": 2, "podName": "r-2"}, {"number": 1, "podName": "r-1", "reason": "WorkerLost"}]}}), 5, "WorkerLost")]
fn r4_a_lost_attempt_ends_the_run_when_its_turn_began_or_it_is_late(
    #[case] extra: Value,
    #[case] second: i64,
    #[case] reason: &str,
) {
    let mut world =
        world(run(merged(with_pod(), extra)), Some(pod(json!({"terminated": {"exitCode": 137}}), json!({}))));
    settle(&mut world, at(second));
    let status = world.run.status.unwrap();
    assert_eq!((status.phase, status.reason.as_deref()), (Some(Phase::Failed), Some(reason)));
}

/// C1, D2: the gateway has no assignment for a worker whose provider's revision was deleted or replaced by hand. No other
/// attempt would fare better: the run ends, saying which object is gone; a stop that is recorded still decides.
#[test]
fn c1_a_revision_that_is_gone_during_the_start_ends_the_run_by_name() {
    let lost = || Some(pod(json!({"terminated": {"exitCode": 1}}), json!({})));
    let gone = "ControllerRevision p-1 does not exist any more; create a new run";
    let mut world = world(run(with_pod()), lost());
    world.unusable_revision = Some(gone.into());
    let ended = status(next(&world, at(5)));
    assert_eq!((ended.phase, ended.reason.as_deref()), (Some(Phase::Failed), Some("InvalidTemplate")));
    assert_eq!((ended.attempt, ended.message.as_deref(), is_started(&ended)), (Some(1), Some(gone), false));
    assert_eq!(stopped(&ended), Some(("True", "ContainersTerminated")));
    world.run.spec.cancel = true;
    settle(&mut world, at(5));
    assert_eq!(world.run.status.unwrap().reason.as_deref(), Some("Cancelled"));
}

/// `--cascade=orphan`, or anyone who may patch pods: the owner is gone, the container runs on.
#[test]
fn c50_s8_a_pod_that_lost_its_owner_still_has_to_be_proven_stopped() {
    let orphan = |state| pod(state, json!({"metadata": {"ownerReferences": null}}));
    let stopping = json!({"metadata": {"deletionTimestamp": CREATED}});
    let mut world =
        world(run(merged(merged(with_pod(), report(json!({}))), stopping)), Some(orphan(json!({"running": {}}))));
    assert_eq!(settle(&mut world, at(5)), Step::DeletePod);
    world.pod = Some(orphan(json!({"terminated": {"exitCode": 0}})));
    assert_eq!(settle(&mut world, at(9)), Step::ReleasePod);
    assert_eq!(stopped(world.run.status.as_ref().unwrap()), Some(("True", "ContainersTerminated")));
}

#[test]
fn s8_a_finalizer_that_was_taken_off_is_put_back_while_the_run_lives() {
    let world = world(run(merged(with_pod(), json!({"metadata": {"finalizers": null}}))), Some(running()));
    assert_eq!(next(&world, at(5)), Step::AddFinalizer);
}

/// Another's finalizer holds the run when ours was taken off: it is stopped and settled like any other.
#[test]
fn s8_a_deleted_run_without_our_finalizer_still_settles() {
    let mut world =
        world(run(merged(deleted_run(), json!({"metadata": {"finalizers": ["a.b/keep"]}}))), Some(running()));
    assert_eq!(settle(&mut world, at(6)), Step::DeletePod);
    world.pod = Some(exited());
    settle(&mut world, at(7));
    let status = world.run.status.clone().unwrap();
    assert_eq!((status.phase, stopped(&status).map(|(is, _)| is)), (Some(Phase::Cancelled), Some("True")));
    world.pod = None;
    assert_eq!(settle(&mut world, at(8)), Step::Wait(None), "not ours to let go");
}

fn deleted_run() -> Value {
    merged(with_pod(), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:05Z"}}))
}

#[test]
fn r4_a_pod_deleted_gracefully_before_its_turn_starts_again() {
    let last = json!({"status": {"report": {"podUID": "pod-uid", "attempt": 1, "seq": 1, "stage": "Initialize", "turnCount": 0,
        "final": {"stopReason": "Error", "reason": "PodDeleted", "at": "2026-01-01T00:00:04Z"}}}});
    let deleted = pod(json!({"terminated": {"exitCode": 0}}), json!({"metadata": {"deletionTimestamp": CREATED}}));
    let mut world = world(run(merged(with_pod(), last)), Some(deleted));
    assert_eq!(settle(&mut world, at(5)), Step::ReleasePod);
    world.pod = None;
    settle(&mut world, at(6));
    assert_eq!(world.run.status.unwrap().attempt, Some(2));
}

#[test]
fn t1_a_terminal_run_only_proves_its_stop_and_cleans_up() {
    let done = merged(with_pod(), json!({"status": {"phase": "Completed", "finishedAt": "2026-01-01T00:00:10Z"}}));
    let mut world = world(run(done), Some(running()));
    assert!(matches!(next(&world, at(11)), Step::Wait(Some(_))));
    assert_eq!(next(&world, at(10 + 19 + 60)), Step::DeletePod, "a worker that does not exit");
    world.pod = Some(exited());
    let proven = status(next(&world, at(12)));
    assert_eq!(stopped(&proven), Some(("True", "ContainersTerminated")));
    assert_eq!(proven.phase, Some(Phase::Completed));
    world.run.status = Some(proven);
    assert_eq!(next(&world, at(12)), Step::ReleasePod);
    world.pod.as_mut().unwrap().metadata.finalizers = None;
    assert_eq!(next(&world, at(12)), Step::Wait(Some(Duration::from_secs(298))));
    assert_eq!(next(&world, at(310)), Step::DeletePod);
    world.pod = None;
    assert_eq!(next(&world, at(311)), Step::Wait(Some(Duration::from_secs(699))));
    assert_eq!(next(&world, at(1010)), Step::DeleteRun);
}

/// S9: a run may be kept for a shorter time than pods are; it takes its pod along, and nothing spins in between.
#[test]
fn s9_a_run_whose_time_is_over_before_its_pods_goes_with_it() {
    let short = json!({"status": {"phase": "Completed", "finishedAt": "2026-01-01T00:00:10Z", "effective": {"ttlSecondsAfterFinished": 60},
        "conditions": [{"type": "Stopped", "status": "True", "reason": "X", "message": "", "lastTransitionTime": CREATED}]}});
    let mut world = world(run(merged(with_pod(), short)), Some(exited()));
    world.pod.as_mut().unwrap().metadata.finalizers = None;
    assert_eq!(next(&world, at(12)), Step::Wait(Some(Duration::from_secs(58))));
    assert_eq!(next(&world, at(70)), Step::DeleteRun);
    world.run.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(70)));
    assert_eq!(next(&world, at(70)), Step::DeletePod);
}

/// S8, N3: nothing tells that a node is gone, nor of a pod that lost its labels: an overdue proof is looked for until it
/// is there.
#[test]
fn s8_n3_an_overdue_proof_is_looked_for_again() {
    let done = merged(with_pod(), json!({"status": {"phase": "Failed", "finishedAt": "2026-01-01T00:00:10Z"}}));
    let deleting = pod(json!({"running": {}}), json!({"metadata": {"deletionTimestamp": CREATED}}));
    let mut world = world(run(done), Some(deleting));
    for seconds in [89, 1000, 100_000] {
        assert_eq!(next(&world, at(seconds)), Step::Wait(Some(Duration::from_secs(60))));
    }
    world.node = Node::Gone;
    assert_eq!(stopped(&status(next(&world, at(100_060)))), Some(("True", "NodeGone")));
}

#[test]
fn r9_a_pod_that_a_paused_leader_created_too_late_is_removed() {
    let done = json!({"status": {"phase": "Cancelled", "attempt": 1, "finishedAt": "2026-01-01T00:00:10Z",
        "conditions": [{"type": "Stopped", "status": "True", "reason": "NoPod", "message": "", "lastTransitionTime": CREATED}]}});
    let mut world = world(run(done), Some(running()));
    assert_eq!(next(&world, at(11)), Step::DeletePod);
    world.pod = Some(pod(json!({"running": {}}), json!({"metadata": {"deletionTimestamp": CREATED}})));
    assert_eq!(next(&world, at(11)), Step::Wait(None));
    world.pod = Some(pod(json!({"terminated": {"exitCode": 1}}), json!({"metadata": {"deletionTimestamp": CREATED}})));
    assert_eq!(next(&world, at(12)), Step::ReleasePod);
}

#[test]
fn c50_the_runs_finalizer_leaves_last() {
    let done = merged(
        with_pod(),
        json!({"metadata": {"deletionTimestamp": CREATED}, "status": {"phase": "Cancelled", "finishedAt": "2026-01-01T00:00:10Z"}}),
    );
    let mut world = world(run(done), Some(running()));
    assert_eq!(next(&world, at(11)), Step::DeletePod);
    world.pod = Some(pod(json!({"running": {}}), json!({"metadata": {"deletionTimestamp": CREATED}})));
    assert!(matches!(next(&world, at(11)), Step::Wait(_)));
    world.pod = Some(pod(json!({"terminated": {"exitCode": 0}}), json!({"metadata": {"deletionTimestamp": CREATED}})));
    assert_eq!(settle(&mut world, at(12)), Step::ReleasePod);
    world.pod = None;
    assert_eq!(next(&world, at(13)), Step::ReleaseRun);
    world.run.metadata.finalizers = None;
    assert_eq!(next(&world, at(13)), Step::Wait(None));
}

#[test]
fn s9_nothing_to_do_writes_nothing() {
    let mut world = world(run(merged(with_pod(), report(json!({})))), Some(running()));
    settle(&mut world, at(3));
    let before = world.run.status.clone();
    assert!(matches!(next(&world, at(500)), Step::Wait(_)));
    assert_eq!(world.run.status, before);
}
