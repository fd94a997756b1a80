//! The status of a child after a step. Pure; time is an argument.

use super::{
    inbox::{self, Facts, Remembered},
    memory::Memory,
    plan::{self, Run, World},
    pruning, validate,
};
use crate::run::{
    descendants::{self, Descendant},
    orphans::LeftPod,
    status::{CLEANUP_FAILED, storing_words},
    validate::{Acceptance, Refusal},
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};
use subagent_crds::{
    Phase, Reason, Subagent, SubagentPhase, SubagentRun, SubagentStatus, bounds,
    conditions::{self, Status},
    message::Outcome,
    names,
    report::{RunResult, TurnOutput},
    subagent_status::{ActivationState, ChildWorkspace, CurrentActivation, SeenIds},
};
use subagent_link::MAX_PREVIEW_BYTES;

/// Reason of a child whose first session is not stored yet.
const NO_CHECKPOINT: &str = "NoCheckpoint";

/// What stands before those below that were not told of a cancellation or deletion yet.
pub const NOT_TOLD: &str = "; not all below it could be told that it is cancelled: ";
/// Longest text of that, in bytes.
const NOT_TOLD_LENGTH: usize = 512;

/// Sets conditions of one status.
struct Conditions<'a> {
    status: &'a mut SubagentStatus,
    generation: Option<i64>,
    now: Time,
}

impl Conditions<'_> {
    fn set(&mut self, type_: &str, value: impl Into<Status>, reason: &str, message: &str) {
        let conditions = &mut self.status.conditions;
        conditions::set(conditions, type_, value.into(), reason, message, self.generation, &self.now);
    }
}

fn conditions_of<'a>(child: &Subagent, status: &'a mut SubagentStatus, now: Timestamp) -> Conditions<'a> {
    status.observed_generation = child.metadata.generation;
    Conditions { status, generation: child.metadata.generation, now: Time(now) }
}

fn say(status: &mut SubagentStatus, reason: Option<&str>, message: &str) {
    status.reason = reason.map(str::to_owned);
    status.message = Some(conditions::cut(message, bounds::MESSAGE));
}

/// Not accepted yet, and why.
pub fn waiting(child: &Subagent, old: &SubagentStatus, refusal: &Refusal, now: Timestamp) -> SubagentStatus {
    let mut new = old.clone();
    let reason = refusal.reason.as_str();
    new.phase = Some(SubagentPhase::Pending);
    say(&mut new, Some(reason), &refusal.message);
    conditions_of(child, &mut new, now).set(conditions::ACCEPTED, false, reason, &refusal.message);
    new
}

/// Refused: it never had a pod.
pub fn rejected(child: &Subagent, old: &SubagentStatus, refusal: &Refusal, now: Timestamp) -> SubagentStatus {
    let mut new = old.clone();
    // Its parent may stop between the claim and the first run.
    let left = old.workspace.as_ref().map(|kept| {
        format!("; its PersistentVolumeClaim {} is empty, and stays until the Subagent is deleted", kept.claim_name)
    });
    let message = &format!("{}{}", refusal.message, left.unwrap_or_default());
    let reason = refusal.reason.as_str();
    let phase = SubagentPhase::Rejected;
    new.phase = Some(phase);
    new.activation = None;
    for waits in new.messages.iter_mut().filter(|waits| !waits.outcome.is_terminal()) {
        (waits.outcome, waits.at) = (Outcome::Discarded, Some(Time(now)));
    }
    (new.queued_count, new.parked_count) = (0, 0);
    let mut new = inbox::turn_down(child, &new, now);
    say(&mut new, Some(reason), message);
    let mut conditions = conditions_of(child, &mut new, now);
    conditions.set(conditions::ACCEPTED, false, reason, message);
    conditions.set(conditions::ACTIVE, false, phase.as_str(), message);
    conditions.set(conditions::SETTLED, false, phase.as_str(), message);
    conditions.set(conditions::RESUMABLE, false, phase.as_str(), message);
    new
}

/// What a child that was refused was told since then gets its outcome, too.
pub fn turned_down(child: &Subagent, old: &SubagentStatus, now: Timestamp) -> SubagentStatus {
    let mut new = inbox::turn_down(child, old, now);
    let said = new.conditions.clone();
    let mut conditions = conditions_of(child, &mut new, now);
    for one in said {
        conditions.set(&one.type_, one.status == "True", &one.reason, &one.message);
    }
    new
}

/// Accepted: lineage and descriptor are written once, and in the same write the first message gets its place and claims the
/// first number (contract c35).
pub fn accepted(world: &World, old: &SubagentStatus, acceptance: Acceptance, now: Timestamp) -> SubagentStatus {
    let mut child = world.child.clone();
    let mut new = old.clone();
    let text = format!("SubagentProvider {} takes the child", acceptance.descriptor.provider);
    new.lineage = Some(acceptance.lineage);
    new.provider_revision = Some(acceptance.descriptor.provider_revision.clone());
    new.descriptor = Some(acceptance.descriptor);
    conditions_of(&world.child, &mut new, now).set(conditions::ACCEPTED, true, "Accepted", &text);
    child.status = Some(new);
    advanced(&child, world, now)
}

/// What the facts make of an accepted child. Equal to the stored status when there is nothing new.
pub fn advanced(child: &Subagent, world: &World, now: Timestamp) -> SubagentStatus {
    let old = child.status.clone().unwrap_or_default();
    let memory = recalled(child, world.memory.as_ref());
    let told = are_descendants_told(&old, world, now).then(|| without_telling(child));
    let mut new = inbox::advance(&facts(told.as_ref().unwrap_or(child), world, &memory), now);
    let change = Change::between(&old, &new, &world.run);
    leave_out_remembered(child, world.memory.as_ref(), &mut new);
    if let Some(run) = world.run.ours() {
        let descriptor = run.status.as_ref().and_then(|status| status.descriptor.as_ref());
        new.provider_revision =
            descriptor.map(|descriptor| descriptor.provider_revision.clone()).or(new.provider_revision);
        if change == Change::Ended {
            point_to_output(run, &old, &mut new);
        }
    }
    describe(world, &old, &mut new, change);
    set_conditions(child, world, &old, &mut new, change, now);
    new
}

/// Whether a cancellation has reached all that the child had delegated (contract c43, c51): the list was made after it was
/// stored, which closes the child for more, and nobody in it is to be told any more. One that does not decode can only be told.
/// Who could not be told for long enough, also now, is given up: the child would be closed for ever.
fn are_descendants_told(old: &SubagentStatus, world: &World, now: Timestamp) -> bool {
    let is_given_up = world.told.is_some() && plan::gives_up_telling(old, now);
    let is_told = |one: &Descendant| {
        let was_tried = world.told.as_ref().is_some_and(Vec::is_empty);
        !one.is_to_cancel() || one.undecodable.is_some() && was_tried || is_given_up
    };
    old.cancelling_descendants && world.children.as_ref().is_some_and(|found| found.iter().all(is_told))
}

fn without_telling(child: &Subagent) -> Subagent {
    let mut child = child.clone();
    if let Some(status) = &mut child.status {
        status.cancelling_descendants = false;
    }
    child
}

fn facts<'a>(child: &'a Subagent, world: &'a World, memory: &'a HashMap<String, Remembered>) -> Facts<'a> {
    let phase = child.status.as_ref().and_then(|status| status.phase);
    Facts {
        child,
        run: world.run.found(),
        memory,
        is_memory_lost: world.memory.as_ref().is_some_and(|memory| memory.lost.is_some()),
        has_live_children: match &world.children {
            Some(_) => world.live_children().next().is_some(),
            None => phase == Some(SubagentPhase::Waiting),
        },
    }
}

/// The API server has refused the run of the claimed activation. That is shown and tried again: with a full quota until there
/// is room, else until the start deadline, when the activation fails.
pub fn run_refused(world: &World, refusal: &Refusal, now: Timestamp) -> SubagentStatus {
    let child = &world.child;
    let old = child.status.clone().unwrap_or_default();
    let mut new = old.clone();
    let Some(activation) = &mut new.activation else { return new };
    let number = activation.epoch;
    let is_quota = refusal.reason == Reason::QuotaExceeded;
    let since = activation.refused_since.get_or_insert(Time(now)).0;
    activation.refused_since = activation.refused_since.take().filter(|_| !is_quota);
    let seconds = validate::start_deadline(child, world.provider.found());
    let is_late = !is_quota && now >= since + Duration::from_secs(seconds.unsigned_abs());
    let is_cancelled = number <= old.cancelled_through_epoch;
    // Who is below it is known from the second refusal on.
    let change = if (is_late || is_cancelled) && world.children.is_some() { Change::Ended } else { Change::None };
    let reason = Some((if is_cancelled { Reason::Cancelled } else { refusal.reason }).as_str());
    if change == Change::None {
        say(&mut new, reason, &format!("activation {number} has no run yet: {}", refusal.message));
    } else {
        new = inbox::fail_unborn(&facts(child, world, &HashMap::new()), now);
        let why = if is_cancelled { refusal.clone() } else { refusal.in_vain(seconds) };
        say(&mut new, reason, &format!("activation {number} never had a run: {}", why.message));
    }
    set_conditions(child, world, &old, &mut new, change, now);
    new
}

/// The claim of the workspace is there. From now on it is this one or none.
pub fn workspace_created(child: &Subagent, created: ChildWorkspace, now: Timestamp) -> SubagentStatus {
    let mut new = child.status.clone().unwrap_or_default();
    let text = format!("PersistentVolumeClaim {} keeps the child's files", created.claim_name);
    new.workspace = Some(created);
    if let Some(activation) = &mut new.activation {
        // Nothing keeps its run from being created any more.
        activation.refused_since = None;
        let doing = format!("activation {} {}", activation.epoch, doing(activation));
        say(&mut new, None, &doing);
    }
    conditions_of(child, &mut new, now).set(conditions::WORKSPACE_CREATED, true, "ClaimCreated", &text);
    new
}

/// The claim of the workspace cannot be created now, so the claimed activation gets no run: that is shown and tried again as for
/// a run that is refused.
pub fn workspace_refused(world: &World, why: &str, refusal: &Refusal, now: Timestamp) -> SubagentStatus {
    let mut new = run_refused(world, refusal, now);
    let mut conditions = conditions_of(&world.child, &mut new, now);
    conditions.set(conditions::WORKSPACE_CREATED, false, why, &refusal.message);
    new
}

/// The session of a child that is being deleted was not removed from the store. Since when is stored before it is tried again.
pub fn session_not_removed(old: &SubagentStatus, why: &str, now: Timestamp) -> SubagentStatus {
    let mut new = old.clone();
    new.session_not_removed_since.get_or_insert(Time(now));
    say(&mut new, None, why);
    new
}

/// The result of a run is the output of its last turn. What does not fit its status is in ConfigMaps, and a turn that did not come
/// to its end, or whose worker stored none for it, says in which.
fn point_to_output(run: &SubagentRun, old: &SubagentStatus, new: &mut SubagentStatus) {
    let epoch = old.activation.as_ref().map(|activation| activation.epoch);
    let result = run.status.as_ref().and_then(|status| status.result.as_ref());
    let has_whole_preview = |size| usize::try_from(size).is_ok_and(|size: usize| size <= MAX_PREVIEW_BYTES);
    let is_elsewhere =
        |result: &&RunResult| result.ref_.is_some() || result.blocks.is_some() && has_whole_preview(result.size);
    let Some(result) = result.filter(is_elsewhere) else { return };
    let output = TurnOutput {
        ref_: result.ref_.clone(),
        chunks: result.chunks,
        other_blocks: result.other_blocks,
        blocks: result.blocks.clone(),
        sha256: result.sha256.clone(),
        size: result.size,
    };
    for turn in [new.turns.last_mut(), new.last_result.as_mut()].into_iter().flatten() {
        if Some(turn.epoch) == epoch {
            turn.point_to(&output);
        }
    }
}

/// What is remembered of the entries that are new.
fn recalled(child: &Subagent, memory: Option<&Memory>) -> HashMap<String, Remembered> {
    let Some(memory) = memory else { return HashMap::new() };
    let seen = |id: &String| memory.recall(id).map(|seen| (id.clone(), seen.clone()));
    pruning::unknown(child).into_iter().filter_map(|entry| seen(&entry.id)).collect()
}

/// Messages that are over, remembered, and have no entry any more.
fn leave_out_remembered(child: &Subagent, memory: Option<&Memory>, new: &mut SubagentStatus) {
    let Some(memory) = memory else { return };
    let gone = pruning::gone(child).into_iter().filter(|message| memory.recall(&message.id).is_some());
    let gone: BTreeSet<&str> = gone.map(|message| message.id.as_str()).collect();
    new.messages.retain(|message| !gone.contains(message.id.as_str()));
}

/// Which ids are remembered from now on.
pub fn remembering(child: &Subagent, listed: Vec<String>, count: i64, now: Timestamp) -> SubagentStatus {
    let mut new = child.status.clone().unwrap_or_default();
    new.seen_ids = Some(SeenIds { count, config_maps: listed });
    if conditions::get(&new.conditions, conditions::INBOX_PRUNED).is_some() {
        conditions_of(child, &mut new, now).set(conditions::INBOX_PRUNED, true, "Stored", "the ids are stored");
    }
    new
}

/// The API server takes no ConfigMap for the ids of messages that are over. That is shown and tried again.
pub fn not_remembered(child: &Subagent, is_quota: bool, why: &str, now: Timestamp) -> SubagentStatus {
    let mut new = child.status.clone().unwrap_or_default();
    let (reason, remedy) = match is_quota {
        true => (Reason::QuotaExceeded.as_str(), "raise the quota of ConfigMaps, or remove some"),
        false => ("Refused", "correct the admission policy or webhook it names"),
    };
    let text = format!(
        "messages that are over do not leave the inbox, which has room for {}: the ConfigMap that remembers their ids is refused; \
         {remedy}; it is tried again: {why}",
        bounds::INBOX
    );
    conditions_of(child, &mut new, now).set(conditions::INBOX_PRUNED, false, reason, &text);
    new
}

/// What a step means for the activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    None,
    /// It is over.
    Ended,
    /// Its number was skipped.
    Skipped,
}

impl Change {
    fn between(old: &SubagentStatus, new: &SubagentStatus, run: &Run) -> Self {
        let epoch = |status: &SubagentStatus| status.activation.as_ref().map(|activation| activation.epoch);
        match (epoch(old), epoch(new), run) {
            (None, _, _) => Self::None,
            (was, is, _) if was == is => Self::None,
            (_, _, Run::Foreign) => Self::Skipped,
            _ => Self::Ended,
        }
    }
}

/// Reason and message. Behind it stands who could not be told of a cancellation, until that is done.
fn describe(world: &World, old: &SubagentStatus, new: &mut SubagentStatus, change: Change) {
    let is_deleting = world.child.metadata.deletion_timestamp.is_some();
    if old.cancelling_descendants || is_deleting {
        new.message = new.message.take().map(|said| said.split(NOT_TOLD).next().unwrap_or_default().to_owned());
    }
    describe_itself(world, old, new, change);
    let was_tried = world.told.is_some();
    let tells = new.cancelling_descendants
        || old.cancelling_descendants && was_tried
        || is_deleting && plan::is_anybody_to_tell(world, new);
    if let (true, Some(untold)) = (tells, not_told(world, old)) {
        let said = conditions::cut(new.message.as_deref().unwrap_or_default(), bounds::MESSAGE - NOT_TOLD_LENGTH);
        new.message = Some(format!("{said}{untold}"));
    }
}

/// Who could not be told in this reconcile, or, when that was not tried yet, in the last one: else it would be said and taken
/// back again and again.
fn not_told(world: &World, old: &SubagentStatus) -> Option<String> {
    let Some(failures) = &world.told else {
        let said = old.message.as_deref()?;
        return said.find(NOT_TOLD).map(|at| said[at..].to_owned());
    };
    let text = format!("{NOT_TOLD}{}", failures.join("; "));
    (!failures.is_empty()).then(|| conditions::cut(&text, NOT_TOLD_LENGTH))
}

fn describe_itself(world: &World, old: &SubagentStatus, new: &mut SubagentStatus, change: Change) {
    let run = world.run.ours();
    if let Some(activation) = new.activation.clone() {
        let is_known = old.activation.as_ref().is_some_and(|old| old.epoch == activation.epoch);
        if activation.run_uid.is_none() && is_known && old.reason.is_some() && run.is_none() {
            // Why it has no run yet.
            return;
        }
        let problem = run.filter(|_| change == Change::None).and_then(start_problem);
        let report = run.filter(|_| change == Change::None).and_then(inbox::report_of);
        let storing = report.and_then(|report| report.storing.as_ref());
        let number = activation.epoch;
        if let Some(pod) = world.run.blocker() {
            say(new, Some(Reason::CleanupFailed.as_str()), &removed_by_force(&world.child, &activation, pod));
        } else if matches!(world.run, Run::Removed(_)) && change == Change::None {
            say(new, Some(Reason::CleanupFailed.as_str()), &may_have_a_pod(&activation));
        } else if let Some(message) = run.filter(|_| change == Change::None).and_then(stop_problem) {
            say(new, Some(Reason::CleanupFailed.as_str()), &format!("activation {number} is not over: {message}"));
        } else if new.phase == Some(SubagentPhase::Terminating) {
            say(new, None, &format!("activation {number} is being stopped"));
        } else if let Some((reason, message)) = problem {
            say(new, Some(&reason), &format!("activation {number} is not started yet: {message}"));
        } else if let Some(storing) = storing {
            say(new, None, &format!("activation {number}: {}", storing_words(storing)));
        } else {
            say(new, None, &format!("activation {number} {}", doing(&activation)));
        }
        return;
    }
    let failure = match change {
        Change::Ended => failure(old, world),
        // What was said of the last one stays.
        _ => new.reason.clone().zip(new.message.clone()),
    };
    let live: Vec<_> = world.live_children().collect();
    match (new.phase, failure) {
        // What is in the way was said.
        (Some(SubagentPhase::Terminating), _) if live.is_empty() && new.session_not_removed_since.is_some() => {}
        (Some(SubagentPhase::Terminating), _) if live.is_empty() => {
            say(new, None, "its session is being removed from the store");
        }
        (Some(SubagentPhase::Terminating), _) => {
            say(new, None, &format!("waiting for the end of {}", descendants::names(&live, &[])));
        }
        (Some(SubagentPhase::NotResumable), Some((_, message))) => {
            say(new, Some(Reason::NotResumable.as_str()), &message);
        }
        (_, Some((reason, message))) => say(new, Some(&reason), &message),
        (Some(SubagentPhase::Waiting), None) if live.is_empty() => {}
        (Some(SubagentPhase::Waiting), None) => {
            say(new, None, &format!("its own work is done; live below it: {}", descendants::names(&live, &[])));
        }
        (Some(SubagentPhase::Parked), None) => {
            say(new, None, "parked messages run first when the next message with content wakes the child");
        }
        (_, None) => say(new, None, "nothing runs and nothing waits; the next message wakes the child"),
    }
}

/// What keeps a run from being proven stopped, with what to do: the child waits for that.
fn stop_problem(run: &SubagentRun) -> Option<&str> {
    let stopped = conditions::get(&run.status.as_ref()?.conditions, conditions::STOPPED)?;
    let is_stuck = stopped.status == "False" && stopped.reason == CLEANUP_FAILED;
    is_stuck.then_some(stopped.message.as_str())
}

fn removed_by_force(child: &Subagent, activation: &CurrentActivation, pod: &LeftPod) -> String {
    let (name, namespace) = (child.metadata.name.as_deref(), child.metadata.namespace.as_deref());
    format!(
        "SubagentRun {} of activation {} was removed by force, and its pod {} is not proven stopped; until it is, nothing \
         else of the child begins: wait for its end, bring its node back, or, when the node is down for good, delete the \
         Node or taint it node.kubernetes.io/out-of-service; or, once the pod is known to be dead, release it: kubectl \
         annotate subagent {} --namespace {} {}={}",
        activation.run_name,
        activation.epoch,
        pod.name,
        name.unwrap_or_default(),
        namespace.unwrap_or_default(),
        names::RELEASE_ANNOTATION,
        pod.uid
    )
}

fn may_have_a_pod(activation: &CurrentActivation) -> String {
    format!(
        "SubagentRun {} of activation {} was removed by force; nothing else of the child begins for {} seconds, in which a pod \
         of it may still come",
        activation.run_name,
        activation.epoch,
        inbox::POD_MAY_COME.as_secs()
    )
}

fn doing(activation: &CurrentActivation) -> &'static str {
    match activation.state {
        ActivationState::Claimed => "is being created",
        ActivationState::Starting => "is starting",
        ActivationState::Running => "is at work",
        ActivationState::Idle => "has nothing to do; its pod is kept for spec.activation.residencySeconds",
        ActivationState::Closing => "is ending",
    }
}

/// What keeps a run from starting.
fn start_problem(run: &SubagentRun) -> Option<(String, String)> {
    let status = run.status.as_ref()?;
    let is_starting = matches!(status.phase, Some(Phase::Pending | Phase::Queued | Phase::Starting));
    let reason = status.reason.clone().filter(|_| is_starting)?;
    let message = for_child(&reason, status.message.as_deref()?);
    Some((reason, message))
}

/// What a run says of itself tells what to do with a run; its child is what a person has.
fn for_child(reason: &str, message: &str) -> String {
    Reason::parse(reason).map_or_else(|| message.to_owned(), |reason| reason.for_child(message))
}

/// How the activation that is over failed, if it did.
fn failure(old: &SubagentStatus, world: &World) -> Option<(String, String)> {
    let activation = old.activation.as_ref()?;
    let number = activation.epoch;
    let Some(run) = world.run.ours() else {
        if activation.run_uid.is_none() {
            // Only a cancellation ends one that never had a run.
            let text = format!("activation {number} was cancelled before it had a run");
            return Some((Reason::Cancelled.to_string(), text));
        }
        let text = format!(
            "SubagentRun {} of activation {number} was removed by force: what its worker did last is not known",
            activation.run_name
        );
        return Some((Reason::WorkerLost.to_string(), text));
    };
    let status = run.status.as_ref()?;
    let reason = status.reason.clone().filter(|_| status.phase != Some(Phase::Completed))?;
    let message = for_child(&reason, status.message.as_deref().unwrap_or_default());
    Some((reason, format!("activation {number}: {message}")))
}

fn set_conditions(
    child: &Subagent,
    world: &World,
    old: &SubagentStatus,
    new: &mut SubagentStatus,
    change: Change,
    now: Timestamp,
) {
    let message = new.message.clone().unwrap_or_default();
    let phase = new.phase.unwrap_or_default();
    let state = new.activation.as_ref().map(|activation| format!("{:?}", activation.state));
    let resumable = resumable(new);
    let accepted = conditions::get(&new.conditions, conditions::ACCEPTED).cloned();
    let was_lost = conditions::get(&new.conditions, conditions::MEMORY_WHOLE).is_some();
    let was_skipped = conditions::is_true(&new.conditions, conditions::NUMBER_SKIPPED);
    let begun =
        new.activation.as_ref().filter(|activation| activation.run_uid.is_some()).map(|activation| activation.epoch);
    let mut conditions = conditions_of(child, new, now);
    if let Some(accepted) = accepted {
        conditions.set(conditions::ACCEPTED, true, &accepted.reason, &accepted.message);
    }
    let why = state.as_deref().unwrap_or(phase.as_str());
    conditions.set(conditions::ACTIVE, state.is_some(), why, &message);
    conditions.set(conditions::SETTLED, phase == SubagentPhase::Settled, phase.as_str(), &message);
    let (can, why, how) = resumable;
    conditions.set(conditions::RESUMABLE, can, why, if why == phase.as_str() { &message } else { &how });
    match world.memory.as_ref().map(|memory| &memory.lost) {
        Some(Some(lost)) => conditions.set(conditions::MEMORY_WHOLE, false, "ConfigMapLost", lost),
        Some(None) if was_lost => conditions.set(conditions::MEMORY_WHOLE, true, "Whole", "all ids are remembered"),
        _ => {}
    }
    if let (Change::Skipped, Some(skipped)) = (change, &old.activation) {
        let text = format!(
            "SubagentRun {} exists and is not of activation {} of this child, so that number was skipped; delete it if \
             nobody needs it",
            skipped.run_name, skipped.epoch
        );
        conditions.set(conditions::NUMBER_SKIPPED, true, "NameTaken", &text);
    } else if let (true, Some(begun)) = (was_skipped, begun) {
        let text = format!("activation {begun} has a run of its own");
        conditions.set(conditions::NUMBER_SKIPPED, false, "Begun", &text);
    }
}

fn resumable(status: &SubagentStatus) -> (bool, &'static str, String) {
    if status.phase == Some(SubagentPhase::NotResumable) {
        return (false, SubagentPhase::NotResumable.as_str(), String::new());
    }
    match status.checkpoint.as_ref().filter(|_| status.session_id.is_some()) {
        Some(stored) => {
            let text = format!("the session is stored as of turn {} of activation {}", stored.turn, stored.epoch);
            (true, "CheckpointStored", text)
        }
        None => (false, NO_CHECKPOINT, "no turn has been completed: the next activation begins a new session".into()),
    }
}
