//! What happens next to a child. Pure: from stored facts and the time, exactly one next step. The reconciler carries it out
//! and asks again, so a crash between two steps changes nothing: the next process reads the same facts.
//!
//! The order is what makes it safe. What becomes of messages is stored before anything is told to a run; a number is claimed, and
//! the UID of the workspace's claim is stored, before its run is created; the run's UID is stored before it may have a pod; what a run came to is stored before its
//! finalizer leaves; an id is remembered before its entry leaves; what a turn left is removed before the turn leaves.

use super::{
    inbox::{self, Found},
    memory::Memory,
    outputs,
    placing::{self, Change},
    pruning::{self, PastRun},
    status,
    validate::{self, Request, Store},
    workspace,
};
use crate::run::{
    descendants::Descendant,
    orphans::LeftPod,
    validate::{self as run, Parent, Provider, Verdict},
};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use std::time::Duration;
use subagent_crds::{
    Reason, Subagent, SubagentPhase, SubagentRun, SubagentStatus, names,
    subagent_status::{ActivationState, CurrentActivation},
};

/// How often live children are looked at while something waits for them. Their ends wake the child; this is for what nobody
/// hears of.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// How often the pods of a run that was removed by force are looked at: nothing tells the child of them.
const LOOK_AT_LEFT: Duration = Duration::from_secs(5);
/// How soon a child that could not be told to stop is told again.
const TELL_AGAIN: Duration = Duration::from_secs(2);
/// How long one that cannot be told of a cancellation is tried: until then the child takes nothing new below it.
const TELL_FOR: Duration = Duration::from_secs(300);
/// How long removing a deleted child's session from the store is tried (contract c47).
const FORGET_FOR: Duration = Duration::from_secs(300);

/// What was found under the name of the activation's run.
#[derive(Clone, Debug, Default)]
pub enum Run {
    /// Nothing, or nothing was looked for.
    #[default]
    Missing,
    /// The run whose UID is stored is gone: somebody removed it by force. What is left of its pods, from a live LIST after that.
    Removed(Vec<LeftPod>),
    /// An object that is not of this activation.
    Foreign,
    /// The run of this activation, from a live GET.
    Ours(Box<SubagentRun>),
}

impl Run {
    /// As the inbox asks.
    pub fn found(&self) -> Found<'_> {
        match self {
            Self::Missing => Found::Missing,
            Self::Removed(left) => Found::Removed { is_stopped: left.iter().all(LeftPod::is_over) },
            Self::Foreign => Found::Foreign,
            Self::Ours(run) => Found::Ours(run),
        }
    }

    /// The run of this activation.
    pub fn ours(&self) -> Option<&SubagentRun> {
        match self {
            Self::Ours(run) => Some(run),
            Self::Missing | Self::Removed(_) | Self::Foreign => None,
        }
    }

    /// The pod of a run that was removed by force that is not proven stopped, or still waited for.
    pub fn blocker(&self) -> Option<&LeftPod> {
        match self {
            Self::Removed(left) => left.iter().find(|pod| !pod.is_over()),
            Self::Missing | Self::Foreign | Self::Ours(_) => None,
        }
    }
}

/// Everything a decision looks at, from live reads of this reconcile.
#[derive(Clone, Debug)]
pub struct World {
    /// The child.
    pub child: Subagent,
    /// Its provider; read while it is not accepted.
    pub provider: Provider,
    /// Its parent; read while it is not accepted, and before its first activation has a run.
    pub parent: Parent,
    /// Those above a parent that is over, up to the first that is not; read together with that.
    pub above: Vec<Parent>,
    /// The session store; tried when nothing else is in the way of accepting the child.
    pub store: Store,
    /// What the API server says against the claim of its workspace; asked together with the store.
    pub refused_claim: Option<String>,
    /// What has the name of the activation's run.
    pub run: Run,
    /// The memory of ids; read when one is new or some are to leave.
    pub memory: Option<Memory>,
    /// The runs of its activations; read while none of them may be at work.
    pub past: Option<Vec<PastRun>>,
    /// What is below it, in any depth; looked at when it may come to rest, and while it is being deleted.
    pub children: Option<Vec<Descendant>>,
    /// The failures of telling those to stop in this reconcile; none while that was not tried.
    pub told: Option<Vec<String>>,
}

impl World {
    /// A child of which nothing else is known yet.
    pub fn new(child: Subagent) -> Self {
        Self {
            child,
            provider: Provider::Missing,
            parent: Parent::NotAsked,
            above: vec![],
            store: Store::None,
            refused_claim: None,
            run: Run::Missing,
            memory: None,
            past: None,
            children: None,
            told: None,
        }
    }

    /// Those below that are live.
    pub fn live_children(&self) -> impl Iterator<Item = &Descendant> {
        self.children.iter().flatten().filter(|one| one.is_live())
    }
}

/// The next step.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Put our finalizer on the child, before anything exists that it must outlive.
    AddFinalizer,
    /// Write the status.
    Status(Box<SubagentStatus>),
    /// Remove these ConfigMaps of the activation's run, and then write the status, which lists their turns no more.
    Shed(Vec<String>, Box<SubagentStatus>),
    /// Create the claim of its workspace, as JSON.
    CreateClaim(Box<Value>),
    /// Create the run of the claimed activation.
    CreateRun(Box<SubagentRun>),
    /// Tell the run of the activation: messages, the end of its inbox, a cancel.
    ChangeRun(Box<Change>),
    /// Stop what is left of the pods of the run with this UID, which was removed by force.
    StopLeft(String),
    /// Take the second finalizer off a run: what became of its messages is stored.
    ReleaseRun(PastRun),
    /// Delete finished runs: those beyond what is kept, or all when the child goes.
    DeleteRuns(Vec<PastRun>),
    /// Remember the ids of these messages.
    Remember(Vec<String>),
    /// Remove these entries from the inbox: their ids are remembered.
    Prune(Vec<String>),
    /// Cancel what is below a child that was cancelled or is being deleted; then also delete it.
    StopChildren,
    /// Remove the session from the store, and let the child go.
    Forget,
    /// Let the child go: there is nothing to forget.
    Release,
    /// Nothing to do until something changes or the time passes.
    Wait(Option<Duration>),
}

/// Decides the next step.
pub fn next(world: &World, now: Timestamp) -> Step {
    let child = &world.child;
    let old = child.status.clone().unwrap_or_default();
    let deleting = child.metadata.deletion_timestamp.is_some();
    if deleting && !has_finalizer(child) {
        // It was never accepted, or somebody took our finalizer off.
        return Step::Wait(None);
    }
    if old.phase == Some(SubagentPhase::Rejected) {
        if let Some(step) = release_folded(world, &old) {
            return step;
        }
        if deleting {
            return Step::Release;
        }
        let new = status::turned_down(child, &old, now);
        return if new == old { Step::Wait(None) } else { Step::Status(Box::new(new)) };
    }
    if old.descriptor.is_none() {
        return if deleting { Step::Release } else { before_acceptance(world, &old, now) };
    }
    if !has_finalizer(child) {
        // Somebody took it off by hand.
        return Step::AddFinalizer;
    }
    if let Some(step) = turned_away(world, &old, now) {
        return step;
    }
    let new = status::advanced(child, world, now);
    if new == old {
        return carry_out(world, &old, now);
    }
    // Those of a child that is being deleted go by garbage collection. With its namespace the right to remove them may go first.
    let leaving = if deleting { vec![] } else { outputs::leaving(&old, &new) };
    if leaving.is_empty() { Step::Status(Box::new(new)) } else { Step::Shed(leaving, Box::new(new)) }
}

fn has_finalizer(child: &Subagent) -> bool {
    child.metadata.finalizers.iter().flatten().any(|name| name == names::SUBAGENT_FINALIZER)
}

fn until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::from_millis((at.as_millisecond() - now.as_millisecond()).max(1).unsigned_abs())
}

fn request(world: &World) -> Request<'_> {
    Request {
        child: &world.child,
        provider: &world.provider,
        parent: &world.parent,
        store: &world.store,
        refused_claim: world.refused_claim.as_deref(),
    }
}

/// Whether the session store is to be tried before a decision about a child that is not accepted.
pub fn wants_store(world: &World) -> bool {
    validate::wants_store(&request(world))
}

fn before_acceptance(world: &World, old: &SubagentStatus, now: Timestamp) -> Step {
    let child = &world.child;
    match validate::validate(&request(world)) {
        Verdict::Refused(refusal) => Step::Status(Box::new(status::rejected(child, old, &refusal, now))),
        Verdict::Waits(refusal) => {
            let seconds = validate::start_deadline(child, world.provider.found());
            let deadline = validate::start_deadline_at(child, seconds);
            if now >= deadline {
                return Step::Status(Box::new(status::rejected(child, old, &refusal.in_vain(seconds), now)));
            }
            let waits = status::waiting(child, old, &refusal, now);
            let wait = until(deadline, now).min(if refusal.reason == Reason::ParentUnavailable {
                LOOK_AGAIN
            } else {
                Duration::MAX
            });
            if waits == *old { Step::Wait(Some(wait)) } else { Step::Status(Box::new(waits)) }
        }
        Verdict::Accepted(_) if !has_finalizer(child) => Step::AddFinalizer,
        Verdict::Accepted(acceptance) => Step::Status(Box::new(status::accepted(world, old, *acceptance, now))),
    }
}

/// The parent is looked at again once the child's lineage is stored, before anything of it exists: either this sees that the
/// parent stops, or the parent's list sees the child (contract c14).
fn turned_away(world: &World, old: &SubagentStatus, now: Timestamp) -> Option<Step> {
    let child = &world.child;
    let reference = child.spec.parent_ref.as_ref()?;
    let activation = old.activation.as_ref()?;
    let has_run = activation.run_uid.is_some() || matches!(world.run, Run::Ours(_));
    if old.epochs > 1 || has_run || child.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let uid = child.metadata.uid.as_deref().unwrap_or_default();
    match run::may_begin(uid, old.lineage.as_ref(), reference, &world.parent, &world.above) {
        Err(Verdict::Refused(refusal)) => Some(Step::Status(Box::new(status::rejected(child, old, &refusal, now)))),
        Err(Verdict::Waits(_)) => Some(Step::Wait(Some(LOOK_AGAIN))),
        Err(Verdict::Accepted(_)) | Ok(()) => None,
    }
}

/// What the stored status asks for.
fn carry_out(world: &World, status: &SubagentStatus, now: Timestamp) -> Step {
    let child = &world.child;
    let deleting = &child.metadata.deletion_timestamp;
    if world.told.is_none() && is_anybody_to_tell(world, status) {
        return Step::StopChildren;
    }
    if let Some(step) = release_folded(world, status) {
        return step;
    }
    match (&status.activation, &world.run) {
        (Some(activation), Run::Missing) if activation.run_uid.is_none() => {
            if let Some(claim) = workspace::claim(child).filter(|_| status.workspace.is_none()) {
                return Step::CreateClaim(Box::new(claim));
            }
            if let Some(run) = placing::run(child) {
                return Step::CreateRun(Box::new(run));
            }
        }
        (Some(CurrentActivation { run_uid: Some(uid), .. }), Run::Removed(left)) => {
            let is_to_stop = left.iter().any(LeftPod::is_to_stop);
            return if is_to_stop { Step::StopLeft(uid.clone()) } else { Step::Wait(Some(LOOK_AT_LEFT)) };
        }
        (Some(_), Run::Ours(run)) => {
            if let Some(change) = placing::change(child, run) {
                return Step::ChangeRun(Box::new(change));
            }
        }
        _ => {}
    }
    if deleting.is_some() {
        return let_go(world, status);
    }
    // First what makes room: a full quota of ConfigMaps may be full of theirs.
    let surplus = pruning::surplus(child, status, world.past.as_deref().unwrap_or_default());
    if !surplus.is_empty() {
        return Step::DeleteRuns(surplus.into_iter().cloned().collect());
    }
    if let Some(step) = make_room(world) {
        return step;
    }
    let telling = status.cancelling_descendants.then_some(TELL_AGAIN);
    Step::Wait([residency(child, status, now), waiting(status), telling].into_iter().flatten().min())
}

/// Whether somebody below a child that was cancelled or is being deleted does not know of that.
pub fn is_anybody_to_tell(world: &World, status: &SubagentStatus) -> bool {
    let deleting = &world.child.metadata.deletion_timestamp;
    let cancels = deleting.is_some() || status.cancelling_descendants;
    let is_to_tell = |one: &Descendant| {
        cancels && one.is_to_cancel() || deleting.as_ref().is_some_and(|since| one.is_to_delete(since.0))
    };
    world.children.iter().flatten().any(is_to_tell)
}

/// Whether those that cannot be told of a cancellation are given up.
pub fn gives_up_telling(status: &SubagentStatus, now: Timestamp) -> bool {
    status.cancelling_since.as_ref().is_some_and(|since| now >= since.0 + TELL_FOR)
}

/// A run is let go once the status holds what it came to.
fn release_folded(world: &World, status: &SubagentStatus) -> Option<Step> {
    let mut past = world.past.iter().flatten();
    past.find(|past| past.is_held && past.is_folded(status)).cloned().map(Step::ReleaseRun)
}

/// An id is remembered before its entry leaves; also while a part of the memory is lost, and every new id is refused: those
/// that come must find room for their outcome.
fn make_room(world: &World) -> Option<Step> {
    let memory = world.memory.as_ref()?;
    let leaving = pruning::leaving(&world.child);
    let ids = |all: &mut dyn Iterator<Item = &str>| all.map(str::to_owned).collect::<Vec<_>>();
    let is_new = |id: &&str| memory.recall(id).is_none();
    let new = ids(&mut leaving.iter().map(|message| message.id.as_str()).filter(is_new));
    if !new.is_empty() {
        return Some(Step::Remember(new));
    }
    let has_entry = |id: &&str| world.child.spec.messages.iter().any(|entry| entry.id == *id);
    let listed = ids(&mut leaving.iter().map(|message| message.id.as_str()).filter(has_entry));
    (!listed.is_empty()).then_some(Step::Prune(listed))
}

/// An idle activation is closed when its residency is over.
fn residency(child: &Subagent, status: &SubagentStatus, now: Timestamp) -> Option<Duration> {
    let activation = status.activation.as_ref().filter(|activation| activation.state == ActivationState::Idle)?;
    let since = activation.idle_since.as_ref()?.0;
    let over = since.as_second().saturating_add(child.spec.activation.residency_seconds);
    Timestamp::from_second(over).ok().map(|at| until(at, now))
}

fn waiting(status: &SubagentStatus) -> Option<Duration> {
    (status.phase == Some(SubagentPhase::Waiting)).then_some(LOOK_AGAIN)
}

/// A child that is being deleted goes when nothing of it and nothing below it is left (contract c47).
fn let_go(world: &World, status: &SubagentStatus) -> Step {
    let failed = world.told.iter().flatten().next().is_some();
    if failed {
        return Step::Wait(Some(TELL_AGAIN));
    }
    // Nothing was looked at: the status was written in between.
    let Some(children) = &world.children else { return Step::Wait(Some(TELL_AGAIN)) };
    if !children.is_empty() && world.live_children().next().is_some() {
        return Step::Wait(Some(LOOK_AGAIN));
    }
    if status.activation.is_some() {
        return Step::Wait(None);
    }
    // Garbage collection does not do it when somebody deletes with --cascade=orphan: that takes the owner off them.
    let left: Vec<_> = world.past.iter().flatten().filter(|run| !run.is_deleting).cloned().collect();
    if left.is_empty() { Step::Forget } else { Step::DeleteRuns(left) }
}

/// Whether a child goes although its session is not removed from the store: that has failed for long enough (contract c47), or
/// somebody said so. What came before, such as the end of those below it, does not count.
pub fn gives_up_session(child: &Subagent, now: Timestamp) -> bool {
    let annotations = child.metadata.annotations.as_ref();
    let is_told = annotations.and_then(|all| all.get(names::FORGET_ANNOTATION)).is_some_and(|word| word == "true");
    let since = child.status.as_ref().and_then(|status| status.session_not_removed_since.as_ref());
    is_told || since.is_some_and(|since| now >= since.0 + FORGET_FOR)
}

/// The same for a child whose status takes no time of the first failure, since the API server refuses what is written into it:
/// then all that is left to count from is its deletion.
pub fn is_deleted_for_long(child: &Subagent, now: Timestamp) -> bool {
    child.metadata.deletion_timestamp.as_ref().is_some_and(|deleted| now >= deleted.0 + FORGET_FOR)
}

/// Whether an activation may end without ever having had a run: it was refused before, or is cancelled.
pub fn may_never_start(status: &SubagentStatus) -> bool {
    status.activation.as_ref().is_some_and(|activation| {
        let is_cancelled = activation.epoch <= status.cancelled_through_epoch;
        activation.run_uid.is_none() && (activation.refused_since.is_some() || is_cancelled)
    })
}

/// Whether the run that was found is over or gone, so that the child may come to rest.
pub fn may_rest(child: &Subagent, run: &Run) -> bool {
    let activation = child.status.as_ref().and_then(|status| status.activation.as_ref());
    match (activation, run) {
        (None, _) => true,
        (Some(_), Run::Removed(_)) => run.blocker().is_none(),
        (Some(_), Run::Ours(run)) => inbox::is_over(run),
        (Some(_), Run::Missing | Run::Foreign) => false,
    }
}
