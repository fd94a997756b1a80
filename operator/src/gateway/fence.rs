//! Who is believed: a worker whose pod is the one the run's status names for its current attempt, and nobody else.
//! Pure decisions over live objects.

use super::auth::Identity;
use k8s_openapi::api::core::v1::Pod;
use subagent_crds::{SubagentRun, names};
use subagent_link::RefusalReason;

/// What a worker says of itself; the pod's UID comes from its token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// UID of the pod the token is bound to.
    pub pod_uid: String,
    /// UID of the run it says it works for.
    pub run_uid: String,
    /// Attempt it says it was created for.
    pub attempt: i32,
    /// Highest sequence number it has used.
    pub seq: i64,
}

/// Why a worker is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub reason: RefusalReason,
    pub retry: bool,
    /// For a person reading the worker's log.
    pub message: String,
}

impl Refusal {
    /// Trying again cannot help.
    pub fn last(reason: RefusalReason, message: impl Into<String>) -> Self {
        Self { reason, retry: false, message: message.into() }
    }

    /// The same hello may succeed later.
    pub fn later(reason: RefusalReason, message: impl Into<String>) -> Self {
        Self { reason, retry: true, message: message.into() }
    }
}

/// The reason as a metric label.
pub(super) fn reason_name(reason: RefusalReason) -> &'static str {
    match reason {
        RefusalReason::Version => "Version",
        RefusalReason::Unauthenticated => "Unauthenticated",
        RefusalReason::NotCurrent => "NotCurrent",
        RefusalReason::NotYet => "NotYet",
        RefusalReason::WorkerLost => "WorkerLost",
        RefusalReason::Terminal => "Terminal",
        RefusalReason::Invalid => "Invalid",
        RefusalReason::Unavailable => "Unavailable",
        RefusalReason::Unknown => "Unknown",
    }
}

/// Name of the run that a pod works for, as the live pod says. The pod's UID is compared with the token's, so that a pod
/// recreated under the same name is not taken for the old one.
pub(super) fn run_of(pod: Option<&Pod>, identity: &Identity) -> Result<String, Refusal> {
    let Some(pod) = pod else {
        return Err(Refusal::later(RefusalReason::NotYet, format!("pod {} is not there", identity.pod_name)));
    };
    if pod.metadata.uid.as_deref() != Some(identity.pod_uid.as_str()) {
        return Err(Refusal::last(
            RefusalReason::NotCurrent,
            format!("pod {} is another one than the token's", identity.pod_name),
        ));
    }
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(names::RUN_LABEL));
    label.cloned().ok_or_else(|| {
        let message = format!("pod {} is not a worker: it has no label {}", identity.pod_name, names::RUN_LABEL);
        Refusal::last(RefusalReason::NotCurrent, message)
    })
}

/// Decides over the live run whether the claim holds (pitfalls R9, R17, D5, N8).
///
/// What this gateway reads may be older than what the controller has just written, so a pod the status does not name
/// *yet* is asked to try again, and only what can never become true is refused for good.
pub(super) fn judge(claim: &Claim, run: Option<&SubagentRun>) -> Result<(), Refusal> {
    use RefusalReason::{NotCurrent, NotYet, Terminal, WorkerLost};
    let Some(run) = run else { return Err(Refusal::later(NotYet, "the run is not there")) };
    if run.metadata.uid.as_deref() != Some(claim.run_uid.as_str()) {
        return Err(Refusal::last(NotCurrent, "another run has this name now"));
    }
    let Some(status) = &run.status else { return Err(Refusal::later(NotYet, "the run has no attempt yet")) };
    if let Some(phase) = status.phase.filter(|phase| phase.is_terminal()) {
        return Err(Refusal::last(Terminal, format!("the run is {}", phase.as_str())));
    }
    let current = status.attempt.unwrap_or(0);
    if current < claim.attempt {
        return Err(Refusal::later(NotYet, format!("the run is at attempt {current}")));
    }
    if current > claim.attempt {
        return Err(Refusal::last(NotCurrent, format!("the run is at attempt {current} already")));
    }
    match status.pod_uid.as_deref() {
        Some(pod_uid) if pod_uid == claim.pod_uid => {}
        Some(_) if names_another_pod(status, claim) => {
            return Err(Refusal::last(NotCurrent, "another pod is this attempt's"));
        }
        _ => return Err(Refusal::later(NotYet, "the run does not name this pod yet")),
    }
    let stored = status.report.as_ref().filter(|report| report.attempt == claim.attempt);
    if let Some(report) = stored.filter(|report| report.seq > claim.seq) {
        let message = format!("report {} is stored, the worker remembers {}", report.seq, claim.seq);
        return Err(Refusal::last(WorkerLost, message));
    }
    Ok(())
}

/// Decides whether this turn's output may be stored, for a claim that holds: the newest turn that is recorded, until its end is
/// reported. So a worker stores at most one output at a time, and each under its own turn.
pub(super) fn judge_turn(claim: &Claim, run: &SubagentRun, turn: i64) -> Result<(), Refusal> {
    use RefusalReason::{Invalid, NotCurrent};
    if run.spec.activation.is_none() {
        return Err(Refusal::last(Invalid, "the output of a turn is stored for an activation of a child alone"));
    }
    let report = run.status.as_ref().and_then(|status| status.report.as_ref());
    let newest = report.filter(|report| report.attempt == claim.attempt).and_then(|report| report.turns.last());
    match newest {
        Some(newest) if newest.turn == turn && newest.stop_reason.is_none() => Ok(()),
        Some(newest) if newest.turn >= turn => Err(Refusal::last(NotCurrent, format!("turn {turn} is over"))),
        _ => Err(Refusal::last(Invalid, format!("turn {turn} is not recorded"))),
    }
}

/// True when the attempts' list, too, gives the claimed attempt to another pod, or this pod to another attempt.
fn names_another_pod(status: &subagent_crds::SubagentRunStatus, claim: &Claim) -> bool {
    status.attempts.iter().any(|attempt| {
        let same_pod = attempt.pod_uid.as_deref() == Some(claim.pod_uid.as_str());
        let same_number = attempt.number == claim.attempt;
        (same_number && attempt.pod_uid.is_some() && !same_pod) || (same_pod && !same_number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn run(status: Value) -> SubagentRun {
        serde_json::from_value(json!({
            "apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentRun",
            "metadata": {"name": "r", "namespace": "n", "uid": "run-1"},
            "spec": {"providerRef": {"name": "p"}, "description": "d", "prompt": {"text": "t"}},
            "status": status,
        }))
        .unwrap()
    }

    fn claim(attempt: i32, seq: i64) -> Claim {
        Claim { pod_uid: "pod-2".into(), run_uid: "run-1".into(), attempt, seq }
    }

    fn current() -> Value {
        json!({
            "phase": "Running", "attempt": 2, "podUID": "pod-2",
            "attempts": [{"number": 2, "podName": "b", "podUID": "pod-2"}, {"number": 1, "podName": "a", "podUID": "pod-1"}],
            "report": {"podUID": "pod-2", "attempt": 2, "seq": 5},
        })
    }

    fn with(changes: Value) -> Value {
        let mut status = current();
        for (key, value) in changes.as_object().unwrap() {
            if value.is_null() {
                status.as_object_mut().unwrap().remove(key);
            } else {
                status[key] = value.clone();
            }
        }
        status
    }

    #[rstest]
    #[case::reconnect(current(), 2, 5)]
    #[case::reports_not_stored_yet(current(), 2, 9)]
    #[case::first_hello(with(json!({"report": null})), 2, 0)]
    #[case::report_of_an_older_attempt(with(json!({"report": {"podUID": "pod-1", "attempt": 1, "seq": 40}})), 2, 0)]
    #[case::cancelling(with(json!({"phase": "Cancelling"})), 2, 5)]
    fn the_worker_of_the_current_attempt_is_believed(#[case] status: Value, #[case] attempt: i32, #[case] seq: i64) {
        assert_eq!(judge(&claim(attempt, seq), Some(&run(status))), Ok(()));
    }

    #[rstest]
    #[case::r17_terminal(with(json!({"phase": "Failed"})), 2, 5, RefusalReason::Terminal, false)]
    #[case::d5_older_attempt(current(), 1, 5, RefusalReason::NotCurrent, false)]
    #[case::attempt_not_visible_yet(current(), 3, 0, RefusalReason::NotYet, true)]
    #[case::no_attempt(json!({"phase": "Starting"}), 1, 0, RefusalReason::NotYet, true)]
    #[case::pod_not_named_yet(with(json!({"podUID": null, "report": null})), 2, 0, RefusalReason::NotYet, true)]
    #[case::another_pod_in_status_only(
        with(json!({"podUID": "pod-9", "attempts": [], "report": null})), 2, 0, RefusalReason::NotYet, true)]
    #[case::d5_another_pod_for_the_attempt(
        with(json!({"podUID": "pod-9", "attempts": [{"number": 2, "podName": "c", "podUID": "pod-9"}], "report": null})),
        2, 0, RefusalReason::NotCurrent, false)]
    #[case::d5_own_pod_was_an_older_attempt(
        with(json!({"podUID": "pod-9", "attempts": [{"number": 2, "podName": "c"}, {"number": 1, "podName": "b", "podUID": "pod-2"}]})),
        2, 9, RefusalReason::NotCurrent, false)]
    #[case::n8_memory_lost(current(), 2, 0, RefusalReason::WorkerLost, false)]
    #[case::n8_memory_lost_partly(current(), 2, 4, RefusalReason::WorkerLost, false)]
    fn everybody_else_is_refused(
        #[case] status: Value,
        #[case] attempt: i32,
        #[case] seq: i64,
        #[case] reason: RefusalReason,
        #[case] retry: bool,
    ) {
        let refusal = judge(&claim(attempt, seq), Some(&run(status))).unwrap_err();
        assert_eq!((refusal.reason, refusal.retry), (reason, retry), "{refusal:?}");
    }

    #[rstest]
    #[case::running(json!([{"turn": 1, "stopReason": "Completed"}, {"turn": 2}]), 2, None)]
    #[case::c41_over(json!([{"turn": 1}, {"turn": 2, "stopReason": "Completed"}]), 2, Some(RefusalReason::NotCurrent))]
    #[case::an_older_one(json!([{"turn": 1, "stopReason": "Completed"}, {"turn": 2}]), 1, Some(RefusalReason::NotCurrent))]
    #[case::not_recorded(json!([{"turn": 1}]), 2, Some(RefusalReason::Invalid))]
    #[case::none_recorded(json!([]), 1, Some(RefusalReason::Invalid))]
    fn c31_only_the_turn_that_runs_has_its_output_stored(
        #[case] turns: Value,
        #[case] turn: i64,
        #[case] refused: Option<RefusalReason>,
    ) {
        let report = json!({"podUID": "pod-2", "attempt": 2, "seq": 5, "turns": turns});
        let mut run = run(with(json!({"report": report})));
        let judged = |run: &SubagentRun, attempt| judge_turn(&claim(attempt, 5), run, turn).err();
        assert_eq!(judged(&run, 2).map(|refusal| refusal.reason), Some(RefusalReason::Invalid), "not an activation");
        run.spec.activation = Some(Default::default());
        let refusal = judged(&run, 2);
        assert_eq!(refusal.as_ref().map(|refusal| refusal.reason), refused);
        assert!(refusal.is_none_or(|refusal| !refusal.retry));
        assert_eq!(judged(&run, 3).map(|refusal| refusal.reason), Some(RefusalReason::Invalid), "of another attempt");
    }

    #[test]
    fn r17_a_run_created_again_under_the_same_name_is_another_run() {
        let other = Claim { run_uid: "run-0".into(), ..claim(2, 5) };
        let refusal = judge(&other, Some(&run(current()))).unwrap_err();
        assert_eq!((refusal.reason, refusal.retry), (RefusalReason::NotCurrent, false));
        let refusal = judge(&claim(2, 5), None).unwrap_err();
        assert_eq!((refusal.reason, refusal.retry), (RefusalReason::NotYet, true));
    }

    #[test]
    fn d5_the_run_comes_from_the_live_pod_of_the_token() {
        let identity = Identity { namespace: "n".into(), pod_name: "b".into(), pod_uid: "pod-2".into() };
        let pod = |uid: &str, labels: Value| -> Pod {
            serde_json::from_value(json!({"metadata": {"name": "b", "uid": uid, "labels": labels}})).unwrap()
        };
        let worker = json!({"subagents.dev/run": "r"});
        assert_eq!(run_of(Some(&pod("pod-2", worker.clone())), &identity), Ok("r".to_owned()));
        let refused = |pod: Option<&Pod>| {
            let refusal = run_of(pod, &identity).unwrap_err();
            (refusal.reason, refusal.retry)
        };
        assert_eq!(refused(Some(&pod("pod-3", worker))), (RefusalReason::NotCurrent, false));
        assert_eq!(refused(Some(&pod("pod-2", json!({})))), (RefusalReason::NotCurrent, false));
        assert_eq!(refused(None), (RefusalReason::NotYet, true));
    }
}
