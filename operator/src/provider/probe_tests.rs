//! Tables for the probe.

use super::*;
use rstest::rstest;
use serde_json::{Value, json};

pub(in crate::provider) const REVISION: &str = "p-rev";

pub(in crate::provider) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A provider whose last probe came to this.
pub(in crate::provider) fn provider(spec: Value, probed: Option<Value>) -> SubagentProvider {
    let mut full = json!({"transport": {"acp": {}}, "template": {"spec": {"containers": [{"name": "agent"}]}}});
    full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let mut status = json!({"observedGeneration": 1, "revision": REVISION});
    if let Some(probed) = probed {
        status["probe"] = probed;
    }
    serde_json::from_value(json!({
        "apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentProvider",
        "metadata": {"name": "p", "uid": "u", "generation": 1}, "spec": full, "status": status,
    }))
    .unwrap()
}

/// A finished probe at second 1000.
pub(in crate::provider) fn probed(attempt: i32, reason: Option<&str>) -> Value {
    let mut probed = json!({"revision": REVISION, "attempt": attempt, "finishedAt": at(1000).to_string()});
    if let Some(reason) = reason {
        probed["reason"] = json!(reason);
        probed["message"] = json!("seen. Remedy.");
    }
    probed
}

fn last_of(provider: &SubagentProvider) -> Option<&Probed> {
    last(provider, REVISION)
}

const WITH_PARAMETERS: &str = r#"{"spec": {"containers": [{"name": "agent", "args": ["$(SUBAGENT_PARAM_REPO)"]}]}}"#;

/// N1: what the template or what it names is to blame for makes a provider not ready; what passes by itself does not.
#[rstest]
#[case::answered(None, Meaning::Answers, Meaning::Answers)]
#[case::image(Some("ImagePullFailed"), Meaning::Fault, Meaning::Fault)]
#[case::user(Some("ImageUserRefused"), Meaning::Fault, Meaning::Fault)]
#[case::secret(Some("MissingReference"), Meaning::Fault, Meaning::Fault)]
#[case::init(Some("InvalidTemplate"), Meaning::Fault, Meaning::Untold)]
#[case::command(Some("AgentStartFailed"), Meaning::Fault, Meaning::Untold)]
#[case::handshake(Some("AgentHandshakeFailed"), Meaning::Fault, Meaning::Untold)]
#[case::auth(Some("AgentAuthRequired"), Meaning::Fault, Meaning::Untold)]
#[case::memory(Some("OOMKilled"), Meaning::Fault, Meaning::Untold)]
#[case::late(Some("StartDeadlineExceeded"), Meaning::Fault, Meaning::Untold)]
#[case::no_room(Some("Unschedulable"), Meaning::Lost, Meaning::Lost)]
#[case::quota(Some("QuotaExceeded"), Meaning::Lost, Meaning::Lost)]
#[case::evicted(Some("Evicted"), Meaning::Lost, Meaning::Lost)]
#[case::node(Some("PodRejected"), Meaning::Lost, Meaning::Lost)]
#[case::worker(Some("WorkerLost"), Meaning::Lost, Meaning::Lost)]
fn n1_a_failed_probe_means_what_it_is_to_blame_on(
    #[case] reason: Option<&str>,
    #[case] plain: Meaning,
    #[case] with_parameters: Meaning,
) {
    let template: Value = serde_json::from_str(WITH_PARAMETERS).unwrap();
    for (spec, expected) in [(json!({}), plain), (json!({"template": template}), with_parameters)] {
        let provider = provider(spec, Some(probed(1, reason)));
        assert_eq!(meaning(&provider.spec, last_of(&provider).unwrap()), expected);
    }
}

#[rstest]
#[case(1, 60)]
#[case(2, 120)]
#[case(3, 240)]
#[case(6, 1920)]
#[case(7, 3600)]
#[case(1_000_000, 3600)]
fn a_failed_probe_is_repeated_after_a_growing_wait(#[case] attempt: i32, #[case] seconds: i64) {
    let provider = provider(json!({}), Some(probed(attempt, Some("AgentAuthRequired"))));
    let due = due(&provider.spec, last_of(&provider)).unwrap();
    assert_eq!((due.attempt, due.at), (attempt + 1, at(1000 + seconds)));
}

#[test]
fn s9_what_is_known_is_not_asked_again() {
    let due_for = |spec: Value, probed: Option<Value>| {
        let provider = provider(spec, probed);
        due(&provider.spec, last_of(&provider)).map(|due| due.attempt)
    };
    let template: Value = serde_json::from_str(WITH_PARAMETERS).unwrap();
    assert_eq!(due_for(json!({}), None), Some(1));
    assert_eq!(due_for(json!({}), Some(probed(3, None))), None, "it answered");
    assert_eq!(due_for(json!({"template": template}), Some(probed(1, Some("InvalidTemplate")))), None, "never told");
    assert_eq!(due_for(json!({"probe": "Never"}), None), None);
    let mut other = probed(3, None);
    other["revision"] = json!("p-older");
    assert_eq!(due_for(json!({}), Some(other)), Some(1), "c2: another revision is another agent");
}

/// c5, c6: as long as it may still turn out, nothing is refused for good.
#[rstest]
#[case::never(json!({"probe": "Never"}), None, false)]
#[case::first(json!({}), None, true)]
#[case::answered(json!({}), Some(probed(1, None)), false)]
#[case::no_room(json!({}), Some(probed(1, Some("Unschedulable"))), true)]
#[case::fault(json!({}), Some(probed(1, Some("AgentAuthRequired"))), false)]
fn c5_what_a_handshake_tells_is_open_until_it_told(
    #[case] spec: Value,
    #[case] probed: Option<Value>,
    #[case] expected: bool,
) {
    assert_eq!(is_open(&provider(spec, probed)), expected);
}

#[test]
fn r17_a_pod_belongs_to_one_provider_one_revision_and_one_attempt() {
    let name = pod_name("p", "u", "r", 1);
    assert_eq!(name, pod_name("p", "u", "r", 1));
    for other in [pod_name("p", "v", "r", 1), pod_name("p", "u", "s", 1), pod_name("p", "u", "r", 2)] {
        assert_ne!(name, other);
    }
    assert!(pod_name(&"x".repeat(63), "u", "r", 1_000_000).len() <= 63 + 4);
}

fn pod(extra: Value) -> Pod {
    let mut pod = json!({
        "metadata": {"name": "probe", "creationTimestamp": at(1000).to_string()},
        "spec": {"nodeName": "n", "containers": [{"name": "agent"}]},
        "status": {"phase": "Pending"},
    });
    for (key, value) in extra.as_object().unwrap() {
        pod[key].as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
    }
    serde_json::from_value(pod).unwrap()
}

fn in_state(state: Value, phase: &str, reason: Option<&str>) -> Value {
    let agent = json!({"name": "agent", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
    let mut status = json!({"phase": phase, "containerStatuses": [agent]});
    if let Some(reason) = reason {
        status["reason"] = json!(reason);
    }
    json!({"status": status})
}

fn ended(message: &str, pod_reason: Option<&str>) -> Value {
    in_state(json!({"terminated": {"exitCode": 1, "message": message}}), "Failed", pod_reason)
}

fn failure(reason: &str) -> String {
    json!({"failure": {"reason": reason, "diagnostic": "in stage Initialize, something"}}).to_string()
}

#[rstest]
#[case::worker_said(ended(&failure("AgentHandshakeFailed"), None), 1001, "AgentHandshakeFailed", "in stage Initialize")]
#[case::no_such_reason(ended(&failure("Completed"), None), 1001, "AgentProtocolError", "no run could have")]
#[case::killed_by_deadline(ended(&failure("PodDeleted"), Some("DeadlineExceeded")), 1600, "StartDeadlineExceeded", "in stage Initialize")]
#[case::evicted(ended(&failure("PodDeleted"), Some("Evicted")), 1001, "Evicted", "evicted")]
#[case::silent(ended("", None), 1001, "WorkerLost", "exit code 1")]
#[case::garbage(ended("{}", None), 1001, "WorkerLost", "exit code 1")]
#[case::oom(in_state(json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}), "Failed", None), 1001, "OOMKilled", "memory")]
#[case::never_pulled(in_state(json!({"waiting": {"reason": "ErrImageNeverPull", "message": "absent"}}), "Pending", None), 1001, "ImagePullFailed", "absent")]
#[case::pulled_in_vain(in_state(json!({"waiting": {"reason": "ImagePullBackOff", "message": "back-off"}}), "Pending", None), 1600, "ImagePullFailed", "back-off")]
#[case::ended_while_pulling(in_state(json!({"waiting": {"reason": "ImagePullBackOff", "message": "back-off"}}), "Failed", Some("DeadlineExceeded")), 1600, "ImagePullFailed", "back-off")]
#[case::mounts(json!({}), 1600, "StartDeadlineExceeded", "has not started")]
#[case::hangs_without_word(in_state(json!({"running": {}}), "Running", None), 1720, "StartDeadlineExceeded", "600 s")]
fn n1_n5_a_probe_fails_with_the_reason_of_a_run(
    #[case] extra: Value,
    #[case] now: i64,
    #[case] expected: &str,
    #[case] says: &str,
) {
    let spec = provider(json!({}), None).spec;
    let Seen::Over(Outcome::Failed { reason, seen }) = read(&pod(extra), &spec, at(now)) else { panic!("a failure") };
    assert_eq!(reason.as_str(), expected, "{seen}");
    assert!(seen.contains(says), "{seen}");
}

#[rstest]
#[case::starting(json!({}), 1599, None, 1600)]
#[case::back_off(in_state(json!({"waiting": {"reason": "ImagePullBackOff", "message": "m"}}), "Pending", None), 1001, Some("ImagePullFailed"), 1600)]
#[case::no_room(json!({"spec": {"nodeName": ""}, "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "cpu"}]}}), 1001, Some("Unschedulable"), 1600)]
#[case::running(in_state(json!({"running": {}}), "Running", None), 1700, None, 1720)]
fn n1_a_probe_that_may_still_start_goes_on(
    #[case] extra: Value,
    #[case] now: i64,
    #[case] problem: Option<&str>,
    #[case] limit: i64,
) {
    let spec = provider(json!({}), None).spec;
    let Seen::UnderWay { problem: found, until } = read(&pod(extra), &spec, at(now)) else { panic!("it goes on") };
    assert_eq!(found.map(|problem| problem.reason.as_str()), problem);
    assert_eq!(until, at(limit));
}

#[test]
fn an_answer_counts_also_when_the_pod_is_being_deleted_and_nothing_else_does() {
    let answer = json!({"agent": {"name": "a", "version": "1", "protocolVersion": 1, "capabilities": ["ImagePrompt"]}});
    let spec = provider(json!({}), None).spec;
    let deleted = |mut extra: Value| {
        extra["metadata"] = json!({"deletionTimestamp": at(1000).to_string()});
        read(&pod(extra), &spec, at(1001))
    };
    let Seen::Over(Outcome::Agent(agent)) = deleted(ended(&answer.to_string(), None)) else { panic!("an answer") };
    assert_eq!((agent.name.as_str(), agent.capabilities.as_slice()), ("a", &["ImagePrompt".to_owned()][..]));
    let going = Seen::Going { kept: None, until: at(1030) };
    assert_eq!(deleted(ended(&failure("PodDeleted"), None)), going);
    assert_eq!(deleted(json!({})), going);
}

/// A pod that was taken away, and stays for a finalizer or a node that is silent.
fn taken_away(finalizers: &[&str], state: Value, phase: &str) -> Pod {
    let mut extra = in_state(state, phase, None);
    extra["metadata"] = json!({"deletionTimestamp": at(1100).to_string(), "finalizers": finalizers});
    pod(extra)
}

#[test]
fn c50_a_probe_that_was_taken_away_and_stays_does_not_hold_the_next_one_for_ever() {
    let spec = provider(json!({}), None).spec;
    let running = || json!({"running": {}});
    // It stops yet, or it does not, and then it is named.
    let silent = taken_away(&[], running(), "Running");
    assert_eq!(read(&silent, &spec, at(1129)), Seen::Going { kept: None, until: at(1130) });
    let Seen::Going { kept: Some(kept), until } = read(&silent, &spec, at(1130)) else { panic!("it is named") };
    assert_eq!(until, at(1720), "the deadline counts");
    assert!(kept.contains("pod probe") && kept.contains("kubectl delete node n"), "{kept}");
    let Seen::Over(Outcome::Failed { reason, .. }) = read(&silent, &spec, at(1720)) else { panic!("over") };
    let lost = record(&spec, REVISION, 1, &Outcome::Failed { reason, seen: "x".into() }, at(1720));
    assert_eq!((reason, meaning(&spec, &lost)), (Reason::PodDeleted, Meaning::Lost), "there is another attempt");
    // A finalizer holds what may run; once it has stopped, it holds up nobody.
    let held = taken_away(&["example.org/mine"], running(), "Running");
    let Seen::Going { kept: Some(kept), .. } = read(&held, &spec, at(1200)) else { panic!("it may run") };
    assert!(kept.contains("example.org/mine") && kept.contains("kubectl edit pod probe"), "{kept}");
    let stopped = taken_away(&["example.org/mine"], json!({"terminated": {"exitCode": 1}}), "Failed");
    let Seen::Over(outcome) = read(&stopped, &spec, at(1001)) else { panic!("nothing of it runs") };
    let said = record(&spec, REVISION, 1, &outcome, at(1001)).message.unwrap_or_default();
    assert!(said.contains("example.org/mine") && !said.contains("new run"), "{said}");
}

#[test]
fn n1_a_probe_has_no_prompt_to_correct() {
    let spec = provider(json!({}), None).spec;
    let outcome = Outcome::Failed { reason: Reason::AgentStartFailed, seen: "no such file.".into() };
    let said = record(&spec, REVISION, 1, &outcome, at(5)).message.unwrap_or_default();
    assert!(said.starts_with("no such file. Correct") && said.contains("command"), "{said}");
    assert!(!said.contains("prompt"), "{said}");
}

#[test]
fn a_record_holds_the_remedy_and_names_missing_parameters() {
    let template: Value = serde_json::from_str(WITH_PARAMETERS).unwrap();
    let outcome = Outcome::Failed { reason: Reason::InvalidTemplate, seen: "x".repeat(5000) };
    let spec = provider(json!({"template": template}), None).spec;
    let record = record(&spec, REVISION, 2, &outcome, at(5));
    assert_eq!((record.reason.as_deref(), record.attempt), (Some("InvalidTemplate"), 2));
    assert!(record.message.unwrap().len() <= bounds::MESSAGE);
    let outcome = Outcome::Failed { reason: Reason::InvalidTemplate, seen: "init container clone failed".into() };
    let message = super::record(&spec, REVISION, 2, &outcome, at(5)).message.unwrap();
    assert!(message.contains("clone failed. Correct") && message.contains("run's parameters"), "{message}");
}
