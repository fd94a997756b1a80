//! When the log of a pod becomes the transcript of its run, and who keeps it.

use super::{
    apply::status_body,
    archiving::{Log, before_end},
    descendants::Family,
    plan::{Step, World, next},
};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use rstest::rstest;
use serde_json::{Value, json};
use std::time::Duration;
use subagent_crds::{
    SubagentRun, SubagentRunStatus,
    report::{Transcript, TranscriptSource},
};

const CREATED: &str = "2026-01-01T00:00:00Z";

fn run(status: Value, deleting: bool) -> SubagentRun {
    let mut run = json!({
        "apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentRun",
        "metadata": {"name": "r", "namespace": "n", "uid": "run-uid", "generation": 1, "creationTimestamp": CREATED,
            "finalizers": ["subagents.dev/run-stopped"]},
        "spec": {"providerRef": {"name": "p"}, "description": "d", "prompt": {"text": "hi"}},
        "status": {"phase": "Running", "attempt": 1, "podUID": "pod-uid",
            "attempts": [{"number": 1, "podName": "r-1", "podUID": "pod-uid"}],
            "lineage": {"depth": 1, "rootUID": "run-uid"},
            "effective": {"startDeadlineSeconds": 600, "ttlSecondsAfterFinished": 1000, "maxAttempts": 3},
            "report": {"podUID": "pod-uid", "attempt": 1, "seq": 1, "session": {"id": "s", "how": "New"},
                "turns": [{"turn": 1}], "turnCount": 1}},
    });
    for (key, value) in status.as_object().unwrap() {
        run["status"][key] = value.clone();
    }
    if deleting {
        run["metadata"]["deletionTimestamp"] = CREATED.into();
    }
    serde_json::from_value(run).unwrap()
}

fn pod(state: Value) -> Pod {
    let phase = if state.get("running").is_some() { "Running" } else { "Failed" };
    serde_json::from_value(json!({
        "metadata": {"name": "r-1", "uid": "pod-uid", "finalizers": ["subagents.dev/proof-of-stop"],
            "ownerReferences": [{"apiVersion": "x", "kind": "SubagentRun", "name": "r", "uid": "run-uid", "controller": true}]},
        "spec": {"nodeName": "node", "containers": [{"name": "agent"}]},
        "status": {"phase": phase, "containerStatuses": [
            {"name": "agent", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}]},
    }))
    .unwrap()
}

fn ended() -> Pod {
    pod(json!({"terminated": {"exitCode": 137, "startedAt": CREATED}}))
}

fn world(run: SubagentRun, pod: Option<Pod>) -> World {
    // Nothing is below it.
    let family = Family { found: Some(vec![]), told: None };
    World { pod, family, ..World::new(run, Duration::from_secs(300)) }
}

fn step(world: &World) -> Step {
    let now = CREATED.parse::<Timestamp>().unwrap() + Duration::from_secs(20);
    before_end(world, next(world, now))
}

fn written(step: Step) -> SubagentRunStatus {
    let Step::Status(status) = step else { panic!("a status write was expected, not {step:?}") };
    *status
}

fn log() -> Transcript {
    Transcript {
        pod_uid: "pod-uid".into(),
        ref_: Some("r-transcript-1".into()),
        source: TranscriptSource::Log,
        ..Transcript::default()
    }
}

#[rstest]
#[case::worker_killed(json!({}))]
#[case::cancelled_without_a_word(json!({"phase": "Cancelling", "stopping": {"reason": "Cancelled", "at": CREATED}}))]
fn t9_the_log_is_stored_before_the_end_of_a_run_whose_worker_could_not(#[case] status: Value) {
    let mut world = world(run(status, false), Some(ended()));
    assert_eq!(step(&world), Step::ArchiveLog);
    world.log = Log::Read(Some(log()));
    let end = written(step(&world));
    assert!(end.phase.unwrap().is_terminal());
    assert_eq!(end.transcript, Some(log()));
    // c10: what cannot be read does not keep the run from its end.
    world.log = Log::Read(None);
    let end = written(step(&world));
    assert!(end.phase.unwrap().is_terminal() && end.transcript.is_none());
}

#[rstest]
#[case::the_worker_reported(json!({"report": {"podUID": "pod-uid", "attempt": 1, "seq": 2, "turnCount": 1,
    "session": {"id": "s", "how": "New"},
    "final": {"stopReason": "Error", "reason": "AgentCrashed", "at": CREATED}}}), false, Some(ended()))]
#[case::nobody_will_read_it(json!({"stopping": {"reason": "Cancelled", "at": CREATED}}), true, Some(ended()))]
#[case::the_pod_is_gone(json!({}), false, None)]
#[case::nothing_ever_ran(
    json!({"phase": "Cancelling", "report": null, "stopping": {"reason": "Cancelled", "at": CREATED}}),
    false, Some(pod(json!({"terminated": {"exitCode": 128}}))))]
fn a_log_is_not_read_in_vain(#[case] status: Value, #[case] deleting: bool, #[case] pod: Option<Pod>) {
    let world = world(run(status, deleting), pod);
    assert!(written(step(&world)).phase.unwrap().is_terminal());
}

#[test]
fn a_run_that_goes_on_keeps_its_log_to_itself() {
    let running = pod(json!({"running": {"startedAt": CREATED}}));
    assert_ne!(step(&world(run(json!({}), false), Some(running))), Step::ArchiveLog);
    // An attempt that starts again is not the end.
    let again = world(run(json!({"phase": "Starting", "report": null}), false), Some(ended()));
    assert!(!written(step(&again)).phase.unwrap().is_terminal());
}

#[test]
fn t8_the_controllers_write_holds_its_own_transcript_and_never_the_gateways() {
    let held = |status: Value| {
        let run = run(status, false);
        status_body(&run, run.status.as_ref().unwrap())["status"].get("transcript").cloned()
    };
    let transcript = serde_json::to_value(log()).unwrap();
    assert_eq!(held(json!({"phase": "Failed", "transcript": transcript})), Some(transcript.clone()));
    let last = json!({"podUID": "pod-uid", "attempt": 1, "seq": 2,
        "final": {"stopReason": "Error", "reason": "AgentCrashed", "at": CREATED}});
    assert_eq!(held(json!({"phase": "Failed", "transcript": transcript, "report": last})), None);
    assert_eq!(held(json!({"phase": "Failed"})), None);
}
