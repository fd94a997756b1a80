//! What happens next to a run. Pure: from stored facts and the time, exactly one next step. The reconciler carries it
//! out and asks again, so a crash between two steps changes nothing: the next process reads the same facts.

use super::{
    activation::{self, Child, Recorded},
    after_end::after_end,
    archiving::Log,
    descendants::{self, Family},
    outcome,
    prompt::PromptSource,
    status::{self, Stopped},
    steers,
    validate::{self, Parent, Provider, Refusal, Request, Verdict},
};
use crate::{
    naming,
    pod::{
        Observed, StartProblem,
        observe::{Ended, Node},
        standing::last_words,
    },
};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use std::time::Duration;
use subagent_crds::{
    Reason, SubagentRun, SubagentRunStatus, conditions, names,
    report::{Final, Report},
    run_status::{Effective, Stopping},
};

/// Time beside the ladder's graces until a stop that should have ended is looked at as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(30);
/// Time the worker has beside the graces to report the end of a cancelled turn before its pod is deleted.
const REPORT_MARGIN: Duration = Duration::from_secs(15);
/// How soon a refused pod creation (quota, a foreign object under the name) is tried again.
const RETRY_CREATE: Duration = Duration::from_secs(5);

/// Longest part of a message that tells where a start was last seen, in bytes: a remedy follows it.
const MAX_STAGE: usize = 600;

/// Everything a decision looks at. Run and pod come from live GETs of this reconcile.
#[derive(Clone, Debug)]
pub struct World {
    /// The run.
    pub run: SubagentRun,
    /// Its provider; read only while the run is not accepted.
    pub provider: Provider,
    /// Its parent; read while the run is not accepted and before its pod is created.
    pub parent: Parent,
    /// Those above a parent that is over, up to the first that is not; read before the pod is created.
    pub above: Vec<Parent>,
    /// The child it activates; read while the run is not accepted and before its pod is created.
    pub child: Child,
    /// Why the claim of that child's workspace is not the one that holds its files any more; read before the pod is created.
    pub lost_workspace: Option<String>,
    /// What that child's last activation had; read for acceptance when the provider is gone.
    pub recorded: Option<Recorded>,
    /// The pod under the name of the current attempt, whoever owns it.
    pub pod: Option<Pod>,
    /// Log of that pod; read right before the end of a run whose worker sent no transcript.
    pub log: Log,
    /// The prompt's ConfigMap; read while the run is not accepted, and while the worker has not reported.
    pub prompt: PromptSource,
    /// Why the provider's revision cannot be used; read when an attempt ended before its session existed.
    pub unusable_revision: Option<String>,
    /// The pod's node.
    pub node: Node,
    /// Sum of the graces of the stop ladder.
    pub graces: Duration,
    /// How long a stopped pod is kept.
    pub pod_ttl: Duration,
    /// The runs below this one; looked at while they are to stop with it, and once its time to live is over.
    pub family: Family,
}

impl World {
    /// A run of which nothing else is known yet.
    pub fn new(run: SubagentRun, pod_ttl: Duration) -> Self {
        Self {
            run,
            provider: Provider::Missing,
            parent: Parent::NotAsked,
            above: vec![],
            child: Child::NotAsked,
            lost_workspace: None,
            recorded: None,
            pod: None,
            log: Log::Unread,
            prompt: PromptSource::Usable,
            unusable_revision: None,
            node: Node::Present,
            graces: Duration::ZERO,
            pod_ttl,
            family: Family::default(),
        }
    }
}

/// The next step.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Put our finalizer on the run, before anything exists that it must outlive.
    AddFinalizer,
    /// Write the status.
    Status(Box<SubagentRunStatus>),
    /// Create the pod of the current attempt.
    CreatePod,
    /// Store the end of the pod's log as the run's transcript.
    ArchiveLog,
    /// Delete the pod of the current attempt; the kubelet gives its worker the whole ladder.
    DeletePod,
    /// Take our finalizer off the pod: its end is stored.
    ReleasePod,
    /// Take our finalizer off the run: it is stopped.
    ReleaseRun,
    /// Delete the run: its time to live is over.
    DeleteRun,
    /// Cancel the runs below this one, and delete them when it is being deleted.
    StopDescendants,
    /// Nothing to do until something changes or the time passes.
    Wait(Option<Duration>),
}

/// Decides the next step.
pub fn next(world: &World, now: Timestamp) -> Step {
    let run = &world.run;
    let status = run.status.clone().unwrap_or_default();
    let deleting = run.metadata.deletion_timestamp.is_some();
    let step = decide(world, &status, now);
    // Somebody took our finalizer off, and another's still holds the run: it is stopped and settled all the same.
    let lets_go = matches!(step, Step::AddFinalizer | Step::ReleaseRun);
    if deleting && !has_finalizer(run) && lets_go { Step::Wait(None) } else { step }
}

fn decide(world: &World, status: &SubagentRunStatus, now: Timestamp) -> Step {
    let run = &world.run;
    let deleting = run.metadata.deletion_timestamp.is_some();
    let is_over = status.phase.is_some_and(|phase| phase.is_terminal());
    if is_over || status.attempt.is_some() {
        // Before anything else: what a worker told of its messages must be stored before its report is another one's.
        let noted = steers::noted(run, status, now);
        if noted != *status {
            return Step::Status(Box::new(noted));
        }
    }
    if is_over {
        return descendants::first(world, status, after_end(world, status, now), now);
    }
    if status.attempt.is_none() {
        return before_acceptance(world, status, now);
    }
    if !deleting && !has_finalizer(run) {
        // Somebody took it off by hand; without it the run could go before its pod.
        return Step::AddFinalizer;
    }
    descendants::first(world, status, during(world, status, now), now)
}

fn has_finalizer(run: &SubagentRun) -> bool {
    run.metadata.finalizers.iter().flatten().any(|name| name == names::RUN_FINALIZER)
}

/// True when the run is cancelled or being deleted; both are a cancel.
pub fn wants_stop(run: &SubagentRun) -> bool {
    run.spec.cancel || run.metadata.deletion_timestamp.is_some()
}

/// A status step if it differs from what is stored, else `otherwise`.
fn differing(old: &SubagentRunStatus, new: SubagentRunStatus, otherwise: Step) -> Step {
    if *old == new { otherwise } else { Step::Status(Box::new(new)) }
}

fn until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::from_millis((at.as_millisecond() - now.as_millisecond()).max(1).unsigned_abs())
}

pub(super) fn soonest(times: impl IntoIterator<Item = Option<Timestamp>>, now: Timestamp) -> Step {
    Step::Wait(times.into_iter().flatten().min().map(|at| until(at, now)))
}

fn before_acceptance(world: &World, old: &SubagentRunStatus, now: Timestamp) -> Step {
    let run = &world.run;
    if wants_stop(run) {
        // Contract c9: a run cancelled when first seen starts nothing.
        let done = status::ended(run, old, &outcome::cancelled_before_start(), now);
        return Step::Status(Box::new(status::stopped(run, done, Stopped::NoPod, now)));
    }
    let refused = |refusal: &validate::Refusal| {
        let done = status::ended(run, old, &outcome::rejected(refusal), now);
        Step::Status(Box::new(status::stopped(run, done, Stopped::NoPod, now)))
    };
    let request = Request {
        run,
        provider: &world.provider,
        parent: &world.parent,
        child: &world.child,
        recorded: world.recorded.as_ref(),
        prompt: &world.prompt,
    };
    match validate::validate(&request) {
        Verdict::Refused(refusal) => refused(&refusal),
        Verdict::Waits(refusal) => {
            let seconds = validate::start_deadline(run, world.provider.found());
            let deadline = validate::start_deadline_at(run, seconds);
            if now >= deadline {
                return refused(&refusal.in_vain(seconds));
            }
            let wait = Step::Wait(Some(until(deadline, now)));
            // The child's controller is about to store which run this is; that moment is worth no write.
            let is_brief = run.spec.activation.is_some() && refusal.reason == Reason::ParentUnavailable;
            if is_brief && old.phase.is_none() {
                return wait;
            }
            differing(old, status::waiting(run, old, &refusal, now), wait)
        }
        Verdict::Accepted(_) if !has_finalizer(run) => Step::AddFinalizer,
        Verdict::Accepted(acceptance) => Step::Status(Box::new(status::accepted(run, old, *acceptance, now))),
    }
}

fn during(world: &World, old: &SubagentRunStatus, now: Timestamp) -> Step {
    let run = &world.run;
    let ours = world.pod.as_ref().filter(|pod| owned_by(pod, run));
    let observed = ours.map(|pod| {
        let mut observed = crate::pod::observe::observe(pod, world.node, released(run, pod));
        // One that is no prompt is the worker's to tell: it says what it was given.
        if let (None, None, PromptSource::Missing(message), false) =
            (&observed.problem, &observed.ended, &world.prompt, observed.deleting)
        {
            let message = message.clone();
            observed.problem = Some(StartProblem { reason: Reason::MissingReference, message, is_final: false });
        }
        observed
    });
    let report = current_report(old);
    let final_ = report.and_then(|report| report.final_.as_ref());

    // A new pod's UID is stored before anything its worker says is believed.
    if let (Some(pod), None) = (ours, &old.pod_uid) {
        return Step::Status(Box::new(status::pod_created(run, old, pod, now)));
    }
    // Reasons to stop become stored facts before anything is stopped; the first one stays.
    if old.stopping.is_none()
        && final_.is_none()
        && let Some(reason) = stop_reason(world, old, observed.as_ref(), now)
    {
        let (reason, message) = reason;
        return Step::Status(Box::new(status::stopping(run, old, reason, &message, now)));
    }
    let lost = match (&old.pod_uid, ours) {
        (Some(uid), Some(pod)) if pod.metadata.uid.as_ref() == Some(uid) => None,
        (Some(_), _) => Some(Ended {
            reason: Reason::PodDeleted,
            message: "the worker pod was removed together with its finalizer".into(),
        }),
        (None, _) => None,
    };
    if let Some(lost) = lost {
        return end(world, old, &End { ended: &lost, stopped: Some(Stopped::ObjectGone), sidecar_lives: false }, now);
    }
    let Some(observed) = observed else { return without_pod(world, old, now) };
    let proof = observed.proof.map(Stopped::Proof);

    if observed.ended.is_some() || final_.is_some() {
        let running = match observed.evicted.clone() {
            Some(message) => Ended { reason: Reason::Evicted, message },
            None => Ended { reason: Reason::WorkerLost, message: String::new() },
        };
        let ended = observed.ended.as_ref().unwrap_or(&running);
        return end(world, old, &End { ended, stopped: proof, sidecar_lives: observed.sidecar_lives }, now);
    }
    if let Some(stop) = &old.stopping {
        return stop_pod(world, old, stop, &observed, report, proof, now);
    }
    let current = status::progress(run, old, &observed, now);
    let deadlines = [start_deadline(run, old), active_deadline(old), idle_deadline(old)];
    differing(old, current, soonest(deadlines, now))
}

/// The attempt is over, by the worker's word or by the pod's end.
fn end(world: &World, old: &SubagentRunStatus, end: &End<'_>, now: Timestamp) -> Step {
    let run = &world.run;
    if let Some(stopped) = end.stopped.filter(|_| starts_again(world, old, end.ended, now)) {
        return next_attempt(world, old, end.ended, stopped, now);
    }
    let last_word = current_report(old).and_then(|report| report.final_.as_ref());
    let outcome = match &world.unusable_revision {
        Some(message) if last_word.is_none() && old.stopping.is_none() => {
            // The gateway had no assignment for the worker; another one would hear the same.
            outcome::failed_to_start(&Refusal { reason: Reason::InvalidTemplate, message: message.clone() })
        }
        _ if last_word.is_some() => outcome::from_report(old, end.ended),
        _ => {
            let unheard = world.pod.as_ref().filter(|_| current_report(old).is_none());
            outcome::without_report(old, end.ended, unheard.and_then(last_words))
        }
    };
    let is_cancelled = outcome.phase == subagent_crds::Phase::Cancelled;
    if is_cancelled && old.stopping.is_none() && (wants_stop(run) || end.stopped.is_none()) {
        // The worker was quicker than our record of the cancel, which comes before anything below is looked at.
        let (reason, message) = stop_reason(world, old, None, now)
            .filter(|(reason, _)| *reason == Reason::Cancelled)
            .unwrap_or((Reason::Cancelled, "the agent ended its turn as cancelled".into()));
        return Step::Status(Box::new(status::stopping(run, old, reason, &message, now)));
    }
    if let Some(stopped) = end.stopped {
        let done = status::ended(run, old, &outcome, now);
        return Step::Status(Box::new(status::stopped(run, done, stopped, now)));
    }
    // Phase stays Cancelling until the stop is proven; a start that failed is rolled back before it settles (c8). One whose
    // end waits for its descendants has its own worker stopped meanwhile.
    let is_held = is_cancelled || descendants::hold_its_end(world);
    if !is_held && status::is_started(&status::ended(run, old, &outcome, now)) {
        return Step::Status(Box::new(status::ended(run, old, &outcome, now)));
    }
    let said = last_word.and_then(|last| last.at.parse::<Timestamp>().ok());
    let since = old.stopping.as_ref().map(|stop| stop.at.0).or(said).unwrap_or(now);
    let exit_by = since + world.graces + REPORT_MARGIN;
    let stuck_at = stuck_at(world, exit_by);
    if now >= stuck_at {
        return Step::Status(Box::new(status::stuck(run, old, &outcome, now)));
    }
    let deleting = run.metadata.deletion_timestamp.is_some();
    if !pod_is_deleting(world) && (end.sidecar_lives || deleting || now >= exit_by) {
        return Step::DeletePod;
    }
    soonest([Some(exit_by).filter(|at| *at > now), Some(stuck_at)], now)
}

/// When a stop without proof counts as stuck: beyond the time its worker had, and beyond the grace its pod was deleted with
/// (a pod's deletionTimestamp is when that ends).
fn stuck_at(world: &World, due: Timestamp) -> Timestamp {
    let deleted = world.pod.as_ref().and_then(|pod| pod.metadata.deletion_timestamp.as_ref());
    deleted.map_or(due, |by| by.0.max(due)) + STUCK_AFTER
}

/// Before "turn 1 is starting" is stored nothing has happened that could happen twice: an attempt that was lost through
/// no fault of the agent starts again, within the start deadline (design section 6, interruption).
fn starts_again(world: &World, old: &SubagentRunStatus, ended: &Ended, now: Timestamp) -> bool {
    let report = current_report(old);
    // A worker that got SIGTERM before its turn says so in a final report; that is a disruption as well.
    let ended_itself = |last: &Final| last.reason != Reason::PodDeleted.as_str();
    let turn_began =
        report.is_some_and(|report| !report.turns.is_empty() || report.final_.as_ref().is_some_and(ended_itself));
    let disrupted = [Reason::Evicted, Reason::NodeLost, Reason::PodDeleted].contains(&ended.reason);
    let crashes =
        old.attempts.iter().filter(|attempt| attempt.reason.as_deref() == Some(Reason::WorkerLost.as_str())).count();
    // Disruptions do not count against maxAttempts.
    let counts = i32::try_from(crashes).unwrap_or(i32::MAX) < effective(old).max_attempts.max(1);
    let in_time = validate::start_deadline_at(&world.run, effective(old).start_deadline_seconds.max(1)) > now;
    let may = old.stopping.is_none() && world.unusable_revision.is_none();
    may && !turn_began && in_time && (disrupted || ended.reason == Reason::WorkerLost && counts)
}

/// The end of the lost attempt is stored, its pod released, and only then the next one opened: from that write on the
/// old pod's worker is refused.
fn next_attempt(world: &World, old: &SubagentRunStatus, ended: &Ended, stopped: Stopped, now: Timestamp) -> Step {
    let run = &world.run;
    if old.attempts.first().is_some_and(|attempt| attempt.finished_at.is_none()) {
        return Step::Status(Box::new(status::attempt_ended(run, old, ended, stopped, now)));
    }
    let ours = world.pod.as_ref().filter(|pod| owned_by(pod, run));
    if let Some(pod) = ours {
        if pod.metadata.finalizers.iter().flatten().any(|name| name == names::POD_FINALIZER) {
            return Step::ReleasePod;
        }
        if pod.metadata.deletion_timestamp.is_none() {
            return Step::DeletePod;
        }
    }
    Step::Status(Box::new(status::next_attempt(run, old, now)))
}

/// What is known of an attempt that is over.
struct End<'a> {
    ended: &'a Ended,
    stopped: Option<Stopped>,
    sidecar_lives: bool,
}

pub(super) fn pod_is_deleting(world: &World) -> bool {
    world.pod.as_ref().is_some_and(|pod| pod.metadata.deletion_timestamp.is_some())
}

/// No pod under the attempt's name is ours, and none was ever stored.
fn without_pod(world: &World, old: &SubagentRunStatus, now: Timestamp) -> Step {
    let run = &world.run;
    if let Some(stop) = &old.stopping {
        let done = status::ended(run, old, &outcome::stopped_without_pod(old, stop), now);
        return Step::Status(Box::new(status::stopped(run, done, Stopped::without_pod(old), now)));
    }
    let retry = || soonest([start_deadline(run, old), Some(now + RETRY_CREATE)], now);
    let may_start = match (&run.spec.activation, &run.spec.parent_ref) {
        (Some(activation), _) => activation::may_start(run, activation, &world.child),
        (None, Some(reference)) => validate::may_start(run, reference, &world.parent, &world.above),
        (None, None) => Ok(()),
    };
    if let Err(verdict) = may_start {
        return match verdict {
            Verdict::Waits(refusal) => {
                let waits = status::not_starting(run, old, refusal.reason, &refusal.message, now);
                differing(old, waits, retry())
            }
            // Refused means that nothing ran.
            Verdict::Refused(refusal) if Stopped::without_pod(old) == Stopped::NoPod => {
                let done = status::ended(run, old, &outcome::rejected(&refusal), now);
                Step::Status(Box::new(status::stopped(run, done, Stopped::NoPod, now)))
            }
            Verdict::Refused(refusal) => {
                Step::Status(Box::new(status::stopping(run, old, Reason::Cancelled, &refusal.message, now)))
            }
            Verdict::Accepted(_) => Step::CreatePod,
        };
    }
    if let Some(lost) = &world.lost_workspace {
        // The files are a part of the child as its session is, and no empty folder takes their place in silence (contract c40).
        let refusal = Refusal { reason: Reason::NotResumable, message: lost.clone() };
        let done = status::ended(run, old, &outcome::failed_to_start(&refusal), now);
        return Step::Status(Box::new(status::stopped(run, done, Stopped::without_pod(old), now)));
    }
    if let Some(pod) = &world.pod {
        // D2: never adopted, never overwritten; named until somebody removes it or the start deadline passes.
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let message = format!("pod {name} exists and does not belong to this run; delete it");
        return differing(old, status::not_starting(run, old, Reason::PodRejected, &message, now), retry());
    }
    Step::CreatePod
}

/// A stop is under way and neither a final report nor the pod's end is there yet.
fn stop_pod(
    world: &World,
    old: &SubagentRunStatus,
    stop: &Stopping,
    observed: &Observed,
    report: Option<&Report>,
    proof: Option<Stopped>,
    now: Timestamp,
) -> Step {
    let run = &world.run;
    let outcome = outcome::stopped_without_report(old, stop);
    if let Some(proof) = proof {
        let done = status::ended(run, old, &outcome, now);
        return Step::Status(Box::new(status::stopped(run, done, proof, now)));
    }
    let report_due = stop.at.0 + world.graces + REPORT_MARGIN;
    let stuck_at = stuck_at(world, report_due);
    // A connected worker gets the cancel over the link and may report its end while the pod and its log stay; a run that
    // is deleted, or whose worker never spoke, has nothing to wait for.
    let at_once = run.metadata.deletion_timestamp.is_some() || report.is_none();
    if !observed.deleting && (at_once || now >= report_due) {
        return Step::DeletePod;
    }
    if now >= stuck_at {
        return Step::Status(Box::new(status::stuck(run, old, &outcome, now)));
    }
    soonest([Some(report_due).filter(|at| *at > now), Some(stuck_at)], now)
}

/// Ownership is matched by UID, never by name or label alone. A pod whose UID is stored stays ours when somebody takes its
/// owner away (`--cascade=orphan` does): it is still what must be proven stopped.
pub fn owned_by(pod: &Pod, run: &SubagentRun) -> bool {
    let stored = run.status.as_ref().and_then(|status| status.pod_uid.as_ref());
    if stored.is_some() && stored == pod.metadata.uid.as_ref() {
        return true;
    }
    let owners = pod.metadata.owner_references.iter().flatten();
    let uid = run.metadata.uid.as_deref();
    owners.into_iter().any(|owner| owner.controller == Some(true) && Some(owner.uid.as_str()) == uid)
}

pub(super) fn released(run: &SubagentRun, pod: &Pod) -> bool {
    let annotation = run.metadata.annotations.as_ref().and_then(|all| all.get(names::RELEASE_ANNOTATION));
    annotation.is_some() && annotation == pod.metadata.uid.as_ref()
}

/// The report of the current attempt's pod; an older attempt's is history.
pub fn current_report(status: &SubagentRunStatus) -> Option<&Report> {
    let report = status.report.as_ref()?;
    (Some(report.attempt) == status.attempt && Some(&report.pod_uid) == status.pod_uid.as_ref()).then_some(report)
}

/// Name of the pod of the current attempt.
pub fn pod_name(run: &SubagentRun) -> Option<String> {
    let attempt = run.status.as_ref()?.attempt?;
    Some(naming::pod(run.metadata.name.as_deref()?, run.metadata.uid.as_deref()?, attempt))
}

fn effective(status: &SubagentRunStatus) -> Effective {
    status.effective.clone().unwrap_or_default()
}

fn start_deadline(run: &SubagentRun, status: &SubagentRunStatus) -> Option<Timestamp> {
    if status::is_started(status) || status.queued_since.is_some() {
        return None;
    }
    Some(validate::start_deadline_at(run, effective(status).start_deadline_seconds.max(1)))
}

fn active_deadline(status: &SubagentRunStatus) -> Option<Timestamp> {
    let seconds = effective(status).active_deadline_seconds?;
    Some(status.started_at.as_ref()?.0 + Duration::from_secs(seconds.unsigned_abs()))
}

fn idle_deadline(status: &SubagentRunStatus) -> Option<Timestamp> {
    let seconds = effective(status).idle_deadline_seconds?;
    let started = status.started_at.as_ref()?.0;
    let report = current_report(status);
    // The agent owes no sign of life once it is done and its result is being stored, nor while nothing is asked of it.
    if report.is_some_and(|report| report.storing.is_some() || report.idle) {
        return None;
    }
    let said = |at: &str| at.parse::<Timestamp>().ok();
    let activity = report.and_then(|report| said(&report.activity.as_ref()?.at));
    // Of an activation each turn begins anew.
    let turn = report.and_then(|report| said(&report.turns.last()?.started_at));
    let last = [activity, turn].into_iter().flatten().fold(started, Timestamp::max);
    Some(last + Duration::from_secs(seconds.unsigned_abs()))
}

/// How a run that is to stop was told so, for a person.
fn how_cancelled(run: &SubagentRun) -> String {
    match status::cancelled_with(run) {
        _ if !run.spec.cancel => "the run is being deleted".into(),
        Some(name) => format!("cancelled together with {name} above it"),
        None => "spec.cancel is true".into(),
    }
}

/// Why the run must be stopped now, if it must.
fn stop_reason(
    world: &World,
    old: &SubagentRunStatus,
    observed: Option<&Observed>,
    now: Timestamp,
) -> Option<(Reason, String)> {
    let run = &world.run;
    if wants_stop(run) {
        return Some((Reason::Cancelled, how_cancelled(run)));
    }
    let problem = observed.and_then(|observed| observed.problem.as_ref());
    if let Some(problem) = problem.filter(|problem| problem.is_final) {
        return Some((problem.reason, problem.reason.with_remedy(&problem.message)));
    }
    if start_deadline(run, old).is_some_and(|at| now >= at) {
        let stage = status::stage(old, observed, world.pod.as_ref());
        // A start that was seen failing for a reason ends with that reason.
        let reason = problem.map_or(Reason::StartDeadlineExceeded, |problem| problem.reason);
        let seconds = effective(old).start_deadline_seconds;
        let stage = conditions::cut(&stage, MAX_STAGE);
        return Some((reason, reason.with_remedy(&format!("not started after {seconds} s; last seen: {stage}"))));
    }
    if active_deadline(old).is_some_and(|at| now >= at) {
        let seconds = effective(old).active_deadline_seconds.unwrap_or_default();
        let seen = format!("active for longer than activeDeadlineSeconds: {seconds}");
        return Some((Reason::DeadlineExceeded, Reason::DeadlineExceeded.with_remedy(&seen)));
    }
    if idle_deadline(old).is_some_and(|at| now >= at) {
        let seconds = effective(old).idle_deadline_seconds.unwrap_or_default();
        let seen = format!("no sign of life for idleDeadlineSeconds: {seconds}");
        return Some((Reason::IdleDeadlineExceeded, Reason::IdleDeadlineExceeded.with_remedy(&seen)));
    }
    None
}
