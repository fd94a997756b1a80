//! The status of a run after a step. Pure; time is an argument. Nothing here touches report, result and transcript: they
//! are the gateway's.

use super::{
    outcome::{Outcome, is_amid_turn},
    plan::current_report,
    validate::{Acceptance, Refusal},
};
use crate::{
    naming,
    pod::{Observed, Proof, observe::Ended},
};
use k8s_openapi::{
    api::core::v1::Pod,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use subagent_crds::{
    Phase, Reason, SubagentRun, SubagentRunStatus,
    bounds::ATTEMPTS,
    conditions::{self, Status},
    names,
    report::Storing,
    run_status::{Attempt, Stopping},
};
use subagent_link::FINAL_ACK_TIMEOUT;

/// How a run is known to be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// No pod was ever created.
    NoPod,
    /// The attempt has no pod, and those of the attempts before it were proven stopped.
    EarlierAttempts,
    /// The pod's status proves it.
    Proof(Proof),
    /// The pod was removed by force.
    ObjectGone,
}

impl Stopped {
    /// How a run is stopped whose attempt has no pod.
    pub fn without_pod(status: &SubagentRunStatus) -> Self {
        // The next attempt is opened only after the proof for the last one.
        let has_run = status.attempts.iter().any(|attempt| attempt.pod_uid.is_some());
        if has_run { Self::EarlierAttempts } else { Self::NoPod }
    }
}

/// Reason of a stop that could not be proven in time.
pub const CLEANUP_FAILED: &str = "CleanupFailed";
/// Reason of a stop that waits for the runs below.
pub const DESCENDANTS_LIVE: &str = "DescendantsLive";

/// Reason of a run that is not finished because its result is still being stored.
pub const STORING_RESULT: &str = "StoringResult";
/// Reason of an activation that is not finished because its session is still being stored.
pub const STORING_SESSION: &str = "StoringSession";
/// How long storing a result or a session is tried, in minutes.
const TRIED_FOR: u64 = FINAL_ACK_TIMEOUT.as_secs() / 60;

/// True once the ACP session existed (contract c8).
pub fn is_started(status: &SubagentRunStatus) -> bool {
    conditions::is_true(&status.conditions, conditions::STARTED)
}

fn set(
    run: &SubagentRun,
    status: &mut SubagentRunStatus,
    type_: &str,
    value: Status,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    conditions::set(&mut status.conditions, type_, value, reason, message, run.metadata.generation, &Time(now));
    status.observed_generation = run.metadata.generation;
}

fn say(status: &mut SubagentRunStatus, message: &str) {
    status.message = Some(conditions::cut(message, subagent_crds::bounds::MESSAGE));
}

/// Not accepted yet, and why.
pub fn waiting(run: &SubagentRun, old: &SubagentRunStatus, refusal: &Refusal, now: Timestamp) -> SubagentRunStatus {
    let mut new = old.clone();
    new.phase = Some(Phase::Pending);
    new.reason = Some(refusal.reason.to_string());
    say(&mut new, &refusal.message);
    set(run, &mut new, conditions::ACCEPTED, Status::False, refusal.reason.as_str(), &refusal.message, now);
    new
}

/// Accepted: lineage, descriptor and effective settings are written once, and the first attempt is named before its pod
/// exists.
pub fn accepted(
    run: &SubagentRun,
    old: &SubagentRunStatus,
    acceptance: Acceptance,
    now: Timestamp,
) -> SubagentRunStatus {
    let mut new = old.clone();
    let provider = acceptance.descriptor.provider.clone();
    new.lineage = Some(acceptance.lineage);
    new.descriptor = Some(acceptance.descriptor);
    new.effective = Some(acceptance.effective);
    new.phase = Some(Phase::Starting);
    new.reason = None;
    say(&mut new, "the worker pod is being created");
    set(
        run,
        &mut new,
        conditions::ACCEPTED,
        Status::True,
        "Accepted",
        &format!("SubagentProvider {provider} takes the run"),
        now,
    );
    open_attempt(run, &mut new, 1);
    new
}

fn open_attempt(run: &SubagentRun, status: &mut SubagentRunStatus, number: i32) {
    let name = run.metadata.name.as_deref().unwrap_or_default();
    let uid = run.metadata.uid.as_deref().unwrap_or_default();
    status.attempt = Some(number);
    status.pod_uid = None;
    status.attempts.insert(0, Attempt { number, pod_name: naming::pod(name, uid, number), ..Attempt::default() });
    status.attempts.truncate(ATTEMPTS);
}

/// The pod exists: from now on its worker is believed.
pub fn pod_created(run: &SubagentRun, old: &SubagentRunStatus, pod: &Pod, now: Timestamp) -> SubagentRunStatus {
    let mut new = leave_queue(old, now);
    new.pod_uid = pod.metadata.uid.clone();
    if let Some(attempt) = new.attempts.first_mut() {
        attempt.pod_uid = pod.metadata.uid.clone();
        attempt.started_at = pod.metadata.creation_timestamp.clone();
    }
    new.phase = Some(Phase::Starting);
    new.reason = None;
    say(&mut new, "the worker pod is starting");
    set(run, &mut new, conditions::WORKER_READY, Status::False, "PodStarting", "the worker pod is starting", now);
    new
}

/// A lost attempt is over, with proof; the run goes on.
pub fn attempt_ended(
    run: &SubagentRun,
    old: &SubagentRunStatus,
    ended: &Ended,
    how: Stopped,
    now: Timestamp,
) -> SubagentRunStatus {
    let mut new = old.clone();
    if let Some(attempt) = new.attempts.first_mut() {
        attempt.finished_at = Some(Time(now));
        attempt.reason = Some(ended.reason.to_string());
    }
    let (reason, proof) = stopped_words(how);
    let message = format!("attempt lost before its turn began: {}; {proof}", ended.message);
    say(&mut new, &message);
    set(run, &mut new, conditions::WORKER_READY, Status::False, reason, &message, now);
    new
}

/// The next attempt: from this write on the old one's worker is refused.
pub fn next_attempt(run: &SubagentRun, old: &SubagentRunStatus, now: Timestamp) -> SubagentRunStatus {
    let mut new = old.clone();
    let number = old.attempt.unwrap_or(0).saturating_add(1);
    open_attempt(run, &mut new, number);
    new.phase = Some(Phase::Starting);
    let message = format!("attempt {number} is starting");
    say(&mut new, &message);
    set(run, &mut new, conditions::WORKER_READY, Status::False, "PodStarting", &message, now);
    new
}

/// No room for a pod now: the time does not count towards the start deadline.
pub fn queued(
    run: &SubagentRun,
    old: &SubagentRunStatus,
    reason: Reason,
    message: &str,
    now: Timestamp,
) -> SubagentRunStatus {
    let mut new = old.clone();
    new.phase = Some(Phase::Queued);
    new.reason = Some(reason.to_string());
    new.queued_since = new.queued_since.or(Some(Time(now)));
    say(&mut new, message);
    set(run, &mut new, conditions::WORKER_READY, Status::False, reason.as_str(), message, now);
    new
}

fn leave_queue(old: &SubagentRunStatus, now: Timestamp) -> SubagentRunStatus {
    let mut new = old.clone();
    if let Some(since) = new.queued_since.take() {
        new.queued_seconds += (now.as_second() - since.0.as_second()).max(0);
    }
    new
}

/// Something keeps the pod from being created or from starting; it may pass.
pub fn not_starting(
    run: &SubagentRun,
    old: &SubagentRunStatus,
    reason: Reason,
    message: &str,
    now: Timestamp,
) -> SubagentRunStatus {
    let mut new = leave_queue(old, now);
    new.phase = Some(Phase::Starting);
    new.reason = Some(reason.to_string());
    say(&mut new, message);
    set(run, &mut new, conditions::WORKER_READY, Status::False, reason.as_str(), message, now);
    new
}

/// What the pod and the worker show while nothing is over.
pub fn progress(run: &SubagentRun, old: &SubagentRunStatus, observed: &Observed, now: Timestamp) -> SubagentRunStatus {
    let report = current_report(old);
    if has_session(old) {
        if is_started(old) {
            let mut new = fold(old);
            if let Some(storing) = report.and_then(|report| report.storing.as_ref()) {
                let (message, reason) = (storing_words(storing), storing_reason(storing));
                say(&mut new, &message);
                set(run, &mut new, conditions::FINISHED, Status::False, reason, &message, now);
            } else if is_storing(&new).is_some() {
                // It went through.
                new.conditions.retain(|condition| condition.type_ != conditions::FINISHED);
                let message = format!("{} is working", agent(&new));
                say(&mut new, &message);
            }
            return new;
        }
        let mut new = fold(old);
        new.phase = Some(Phase::Running);
        new.reason = None;
        let agent = started(run, &mut new, now);
        say(&mut new, &format!("{agent} is working"));
        return new;
    }
    if let Some(problem) = &observed.problem {
        return not_starting(run, old, problem.reason, &problem.reason.with_remedy(&problem.message), now);
    }
    let mut new = old.clone();
    new.phase = Some(Phase::Starting);
    new.reason = None;
    if let Some(report) = report.filter(|report| !report.stage.is_empty()) {
        let message = format!("the worker is at stage {}", report.stage);
        say(&mut new, &message);
        set(run, &mut new, conditions::WORKER_READY, Status::True, "Connected", "the worker is connected", now);
    } else if !conditions::is_true(&new.conditions, conditions::WORKER_READY) {
        say(&mut new, "the worker pod is starting");
        set(run, &mut new, conditions::WORKER_READY, Status::False, "PodStarting", "the worker pod is starting", now);
    }
    new
}

/// What a run waits for whose agent is done with its turn. What to do is said by whoever met the trouble: the gateway knows a full
/// quota.
pub fn storing_words(storing: &Storing) -> String {
    let minutes = TRIED_FOR;
    let what = match storing_reason(storing) {
        STORING_SESSION => "the session".to_owned(),
        _ => format!("its result of {} bytes", storing.size),
    };
    match &storing.trouble {
        None => format!("the turn is over; {what} is being stored"),
        Some(trouble) => format!(
            "the turn is over, but {what} is not stored; it is tried again for up to {minutes} minutes: {trouble}"
        ),
    }
}

fn storing_reason(storing: &Storing) -> &'static str {
    match storing.what.as_deref() {
        Some(subagent_link::STORING_SESSION) => STORING_SESSION,
        _ => STORING_RESULT,
    }
}

/// What a run was last said to wait for, if that is still said.
fn is_storing(status: &SubagentRunStatus) -> Option<&Condition> {
    let finished = conditions::get(&status.conditions, conditions::FINISHED)?;
    [STORING_RESULT, STORING_SESSION].contains(&finished.reason.as_str()).then_some(finished)
}

/// What was in the way of the result or the session when that was said last.
pub fn storing_trouble(status: &SubagentRunStatus) -> Option<&str> {
    let (_, trouble) = is_storing(status)?.message.split_once(&format!(" for up to {TRIED_FOR} minutes: "))?;
    Some(trouble)
}

fn has_session(status: &SubagentRunStatus) -> bool {
    current_report(status).is_some_and(|report| report.session.is_some())
}

/// Records that the ACP session exists (contract c8), in the same words whenever that is noticed. Returns the agent's
/// name and version.
fn started(run: &SubagentRun, new: &mut SubagentRunStatus, now: Timestamp) -> String {
    let session = current_report(new).and_then(|report| report.session.clone()).unwrap_or_default();
    let agent = agent(new);
    let message = format!("ACP session {} with {agent}", session.id);
    new.started_at = Some(Time(now));
    set(run, new, conditions::WORKER_READY, Status::True, "Connected", "the worker is connected", now);
    set(run, new, conditions::STARTED, Status::True, "SessionReady", &message, now);
    agent
}

/// The agent's name and version.
fn agent(status: &SubagentRunStatus) -> String {
    let agent = current_report(status).and_then(|report| report.agent.clone()).unwrap_or_default();
    match format!("{} {}", agent.name, agent.version).trim() {
        "" => "an agent without a name".to_owned(),
        named => named.to_owned(),
    }
}

/// Copies what the report says about usage and permissions to where people look for it.
fn fold(old: &SubagentRunStatus) -> SubagentRunStatus {
    let mut new = old.clone();
    if let Some(report) = current_report(old) {
        new.usage = report.usage.clone().or(new.usage);
        new.permissions = report.permissions.or(new.permissions);
    }
    new
}

/// What the run was last seen doing, for the message of a start deadline (pitfall N4).
pub fn stage(status: &SubagentRunStatus, observed: Option<&Observed>, pod: Option<&Pod>) -> String {
    if let Some(report) = current_report(status).filter(|report| !report.stage.is_empty()) {
        return format!("stage {} of the worker", report.stage);
    }
    match (observed, pod) {
        (Some(Observed { problem: Some(problem), .. }), _) => format!("{}: {}", problem.reason, problem.message),
        (Some(_), Some(pod)) => crate::pod::standing::standing(pod),
        _ => status.message.clone().unwrap_or_else(|| "no worker pod".into()),
    }
}

/// A reason to stop is recorded, before anything is stopped.
pub fn stopping(
    run: &SubagentRun,
    old: &SubagentRunStatus,
    reason: Reason,
    message: &str,
    now: Timestamp,
) -> SubagentRunStatus {
    let mut new = leave_queue(old, now);
    new.phase = Some(Phase::Cancelling);
    new.stopping = Some(Stopping { reason: reason.to_string(), at: Time(now) });
    new.reason = Some(reason.to_string());
    say(&mut new, message);
    set(run, &mut new, conditions::STOPPED, Status::False, "Stopping", &format!("stopping: {message}"), now);
    new
}

/// The run above that this one was cancelled with, if it was. Only a word for a person: who may update the run may write it.
pub fn cancelled_with(run: &SubagentRun) -> Option<String> {
    let name = run.metadata.annotations.as_ref()?.get(names::CANCELLED_BY_ANNOTATION)?;
    run.spec.cancel.then(|| conditions::cut(name, subagent_crds::bounds::NAME_LENGTH))
}

/// The run is over. A run that did start says so even when it is noticed only now (contract c10).
pub fn ended(run: &SubagentRun, old: &SubagentRunStatus, outcome: &Outcome, now: Timestamp) -> SubagentRunStatus {
    let mut new = leave_queue(&fold(old), now);
    if has_session(old) && !is_started(old) {
        started(run, &mut new, now);
    }
    if outcome.phase == Phase::Rejected {
        set(run, &mut new, conditions::ACCEPTED, Status::False, outcome.reason.as_str(), &outcome.message, now);
    }
    new.phase = Some(outcome.phase);
    new.stop_reason = outcome.stop_reason.clone();
    new.reason = Some(outcome.reason.to_string());
    new.diagnostic = outcome.diagnostic.as_ref().map(|text| conditions::cut(text, subagent_crds::bounds::DIAGNOSTIC));
    new.finished_at = Some(Time(now));
    let with = cancelled_with(run).filter(|_| outcome.reason == Reason::Cancelled);
    let with = with.map(|name| format!(" It was cancelled together with {name} above it."));
    let message = format!("{}{}", outcome.message, with.unwrap_or_default());
    say(&mut new, &message);
    if let Some(attempt) = new.attempts.first_mut() {
        attempt.reason = Some(outcome.reason.to_string());
    }
    let lost = [Reason::WorkerLost, Reason::PodDeleted, Reason::Evicted, Reason::NodeLost, Reason::OOMKilled];
    let is_activation = run.spec.activation.is_some();
    let turn_began = current_report(old).is_some_and(|report| !report.turns.is_empty());
    let was_interrupted = if is_activation { is_amid_turn(old) } else { turn_began };
    if was_interrupted && lost.contains(&outcome.reason) {
        let message = "the attempt was lost after its turn had begun: side effects are possible";
        set(run, &mut new, conditions::INTERRUPTED, Status::True, outcome.reason.as_str(), message, now);
    }
    let succeeded = outcome.phase == Phase::Completed;
    set(run, &mut new, conditions::SUCCEEDED, succeeded.into(), outcome.reason.as_str(), &message, now);
    set(run, &mut new, conditions::FINISHED, Status::True, outcome.phase.as_str(), &message, now);
    new
}

/// Nothing of the run can be running any more, and why that is known.
pub fn stopped(run: &SubagentRun, status: SubagentRunStatus, how: Stopped, now: Timestamp) -> SubagentRunStatus {
    let mut new = status;
    let (reason, message) = stopped_words(how);
    let has_pod = !matches!(how, Stopped::NoPod | Stopped::EarlierAttempts);
    if let Some(attempt) = new.attempts.first_mut().filter(|_| has_pod) {
        attempt.finished_at = Some(Time(now));
    }
    set(run, &mut new, conditions::STOPPED, Status::True, reason, message, now);
    new
}

fn stopped_words(how: Stopped) -> (&'static str, &'static str) {
    match how {
        Stopped::NoPod => ("NoPod", "no worker pod was created"),
        Stopped::EarlierAttempts => (
            "EarlierAttemptsStopped",
            "the last attempt had no worker pod, and those of the attempts before it were proven stopped",
        ),
        Stopped::ObjectGone => (Proof::ObjectGone.as_str(), Proof::ObjectGone.sentence()),
        Stopped::Proof(proof) => (proof.as_str(), proof.sentence()),
    }
}

/// Nothing but live descendants keeps the run from its end, or they and what keeps its own pod (`own`).
pub fn held(
    run: &SubagentRun,
    old: &SubagentRunStatus,
    own: Option<&str>,
    names: &str,
    now: Timestamp,
) -> SubagentRunStatus {
    let mut new = old.clone();
    let mut message = format!("waiting for descendants to stop: {names}");
    if let Some(own) = own {
        message = format!("{own}; {message}");
    }
    // The message of another reason than a cancel is what the run will end with.
    if old.stopping.as_ref().is_some_and(|stop| stop.reason == Reason::Cancelled.as_str()) {
        say(&mut new, &message);
    }
    set(run, &mut new, conditions::STOPPED, Status::False, DESCENDANTS_LIVE, &message, now);
    new
}

/// The run is over and deleted, and stays for its descendants.
pub fn outlived(old: &SubagentRunStatus, names: &str) -> SubagentRunStatus {
    let mut new = old.clone();
    say(&mut new, &format!("being deleted; waiting for descendants to stop: {names}"));
    new
}

/// A stop that cannot be proven in time. The run settles, and goes on looking for the proof.
pub fn stuck(run: &SubagentRun, old: &SubagentRunStatus, outcome: &Outcome, now: Timestamp) -> SubagentRunStatus {
    let message = not_proven(run, old);
    let outcome = if outcome.phase == Phase::Cancelled {
        Outcome { reason: Reason::CleanupFailed, message: message.clone(), ..outcome.clone() }
    } else {
        outcome.clone()
    };
    let mut new = ended(run, old, &outcome, now);
    set(run, &mut new, conditions::STOPPED, Status::False, CLEANUP_FAILED, &message, now);
    new
}

/// Which pod is not proven stopped, and what to do, word for word.
fn not_proven(run: &SubagentRun, status: &SubagentRunStatus) -> String {
    let pod = status.attempts.first().map(|attempt| attempt.pod_name.as_str()).unwrap_or_default();
    let (name, namespace) = (&run.metadata.name, &run.metadata.namespace);
    format!(
        "pod {pod} could not be proven stopped: bring its node back; or, once the pod is known to be dead, release it: kubectl annotate subagentrun {} --namespace {} {}={}",
        name.as_deref().unwrap_or_default(),
        namespace.as_deref().unwrap_or_default(),
        names::RELEASE_ANNOTATION,
        status.pod_uid.as_deref().unwrap_or_default(),
    )
}
