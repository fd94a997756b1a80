//! The runs and children below a run or child: a cancel or a deletion reaches all of them (contract c51), and a run's end
//! waits for theirs.
//!
//! Everything is decided from live reads, so a crash at any point changes nothing. No descendant can slip through: a child
//! stores its lineage before it reads its parent a last time, and a parent's stop is stored before its descendants are
//! listed. Either that read sees the stop, or that list sees the child.

pub mod find;
pub mod tell;
pub mod wake;

#[cfg(test)]
mod tests;

use super::{
    plan::{Step, World, wants_stop},
    status,
};
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;
use subagent_crds::{Phase, Subagent, SubagentPhase, SubagentRun, SubagentRunStatus, conditions, run::ParentKind};

/// How often live descendants are looked at while something waits for them. Their ends wake their ancestors; this is for
/// what nobody hears of, such as a finalizer that was taken off by force.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// How soon a descendant that could not be told to stop is told again.
const TELL_AGAIN: Duration = Duration::from_secs(2);
/// How often a run whose time to live is over looks whether its descendants are done.
const TTL_LOOK: Duration = Duration::from_secs(60);
/// Descendants that a condition names; more are only said to be there.
const NAMED: usize = 8;

/// A run or child below another, as far as the ones above it care. A child at rest counts as completed: nothing of it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descendant {
    /// What it is.
    pub kind: ParentKind,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its depth in the tree.
    pub depth: i32,
    /// True when it was told that it is cancelled: `spec.cancel` of a run, `spec.cancelThroughEpoch` of a child.
    pub cancelled: bool,
    /// Number of a child's newest activation.
    pub epochs: i64,
    /// True when it is being deleted.
    pub deleting: bool,
    /// Where it stands.
    pub phase: Option<Phase>,
    /// True when it is proven stopped.
    pub stopped: bool,
    /// When its phase became terminal.
    pub finished_at: Option<Timestamp>,
    /// How it does not decode, if it does not.
    pub undecodable: Option<String>,
}

impl Descendant {
    /// What is known of a run, if it is below the one with that UID.
    pub fn below(ancestor: &str, run: &SubagentRun) -> Option<Self> {
        let status = run.status.as_ref()?;
        let lineage = status.lineage.as_ref()?;
        lineage.ancestors.iter().any(|uid| uid == ancestor).then(|| Self {
            kind: ParentKind::SubagentRun,
            epochs: 0,
            name: run.metadata.name.clone().unwrap_or_default(),
            uid: run.metadata.uid.clone().unwrap_or_default(),
            depth: lineage.depth,
            cancelled: run.spec.cancel,
            deleting: run.metadata.deletion_timestamp.is_some(),
            phase: status.phase,
            stopped: conditions::is_true(&status.conditions, conditions::STOPPED),
            finished_at: status.finished_at.as_ref().map(|time| time.0),
            undecodable: None,
        })
    }

    /// What is known of a child, if it is below the one with that UID.
    pub fn child_below(ancestor: &str, child: &Subagent) -> Option<Self> {
        use SubagentPhase::{NotResumable, Parked, Rejected, Settled, Waiting};
        let status = child.status.as_ref()?;
        let lineage = status.lineage.as_ref()?;
        let rests = |phase| matches!(phase, Settled | Parked | Waiting | NotResumable | Rejected);
        let is_at_rest = status.activation.is_none() && status.phase.is_some_and(rests);
        lineage.ancestors.iter().any(|uid| uid == ancestor).then(|| Self {
            kind: ParentKind::Subagent,
            name: child.metadata.name.clone().unwrap_or_default(),
            uid: child.metadata.uid.clone().unwrap_or_default(),
            depth: lineage.depth,
            cancelled: child.spec.cancel_through_epoch >= status.epochs,
            epochs: status.epochs,
            deleting: child.metadata.deletion_timestamp.is_some(),
            phase: is_at_rest.then_some(Phase::Completed),
            stopped: is_at_rest,
            finished_at: None,
            undecodable: None,
        })
    }

    fn is_child(&self) -> bool {
        self.kind == ParentKind::Subagent
    }

    fn is_over(&self) -> bool {
        self.phase.is_some_and(Phase::is_terminal)
    }

    /// False once it is terminal and Stopped: then it counts as cancelled. A child that is being deleted is waited for until
    /// it is gone: its session is removed first.
    pub fn is_live(&self) -> bool {
        !(self.is_over() && self.stopped) || self.is_child() && self.deleting
    }

    /// Whether it has to be told that it is cancelled. A child that does not decode has no number that could be patched, and
    /// nobody begins an activation of it: the run of its current one is below the same ancestors, and is told itself.
    pub fn is_to_cancel(&self) -> bool {
        let has_number = !self.is_child() || self.undecodable.is_none();
        has_number && !self.is_over() && !self.cancelled && !self.deleting
    }

    /// Whether it is to be deleted with an ancestor whose deletion began then: it was still alive at that time. A run that
    /// had finished before stays for its own time to live. (Stored times are whole seconds; within one, it stays.) A child
    /// has no such time, and could be spoken to for ever.
    pub fn is_to_delete(&self, since: Timestamp) -> bool {
        !self.deleting && (self.is_child() || self.is_live() || self.finished_at.is_some_and(|at| at > since))
    }
}

/// What a reconcile knows of the runs below its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Family {
    /// All descendants, from a live list that was made after no more could be admitted; none when nobody asked.
    pub found: Option<Vec<Descendant>>,
    /// The failures of telling them to stop in this reconcile; none while that was not tried.
    pub told: Option<Vec<String>>,
}

impl Family {
    fn live(&self) -> Vec<&Descendant> {
        self.found.iter().flatten().filter(|one| one.is_live()).collect()
    }

    /// Those that a run has to wait for before it is let go: a child goes first, also one at rest, whose session is removed.
    fn waited_for(&self, is_deleting: bool) -> Vec<&Descendant> {
        self.found.iter().flatten().filter(|one| one.is_live() || is_deleting && one.is_child()).collect()
    }

    /// Whether another look would show the same: nobody is admitted any more, and nobody is waited for.
    pub fn is_done(&self, is_deleting: bool) -> bool {
        self.found.is_some() && self.waited_for(is_deleting).is_empty()
    }

    fn failures(&self) -> &[String] {
        self.told.as_deref().unwrap_or_default()
    }
}

/// Whether this run's descendants are to stop with it: it is cancelled or being deleted, and since that is stored nobody
/// is admitted below it any more.
pub fn are_to_stop(run: &SubagentRun) -> bool {
    let Some(status) = &run.status else { return false };
    let is_closed = status.stopping.is_some() || status.phase.is_some_and(Phase::is_terminal);
    // A cancel that was carried out down to the last of them: a child below that is spoken to afterwards goes on.
    let is_done = status.phase == Some(Phase::Cancelled)
        && conditions::is_true(&status.conditions, conditions::STOPPED)
        && run.metadata.deletion_timestamp.is_none();
    wants_stop(run) && status.lineage.is_some() && is_closed && !is_done
}

/// Since when the run is being deleted.
pub fn deleting_since(run: &SubagentRun) -> Option<Timestamp> {
    run.metadata.deletion_timestamp.as_ref().map(|time| time.0)
}

/// Whether the run's own end has to wait for that of others.
pub fn hold_its_end(world: &World) -> bool {
    are_to_stop(&world.run) && !world.family.live().is_empty()
}

/// The next step of a run, given what it would be if nobody was below it.
pub fn first(world: &World, old: &SubagentRunStatus, alone: Step, now: Timestamp) -> Step {
    let run = &world.run;
    let stops = are_to_stop(run);
    let was_over = old.phase.is_some_and(Phase::is_terminal);
    let ends = match &alone {
        Step::Status(new) => !was_over && new.phase.is_some_and(Phase::is_terminal),
        Step::ReleaseRun | Step::DeleteRun => true,
        _ => false,
    };
    let Some(found) = &world.family.found else {
        // The run changed while its world was read: nothing is ended before its descendants were looked at.
        let unseen = stops && ends || alone == Step::DeleteRun;
        return if unseen { Step::Wait(Some(TELL_AGAIN)) } else { alone };
    };
    if stops && world.family.told.is_none() {
        let since = deleting_since(run);
        let untold = |one: &Descendant| one.is_to_cancel() || since.is_some_and(|since| one.is_to_delete(since));
        if found.iter().any(untold) {
            return Step::StopDescendants;
        }
    }
    let live = world.family.live();
    let held_by = world.family.waited_for(deleting_since(run).is_some());
    let failures = world.family.failures();
    let at_most = |wait: Option<Duration>, most| Step::Wait(Some(wait.map_or(most, |wait| wait.min(most))));
    match alone {
        // Its deletion would delete a child at rest.
        Step::DeleteRun if !live.is_empty() || found.iter().any(Descendant::is_child) => Step::Wait(Some(TTL_LOOK)),
        Step::ReleaseRun if !held_by.is_empty() => {
            let wait = at_most(None, if failures.is_empty() { LOOK_AGAIN } else { TELL_AGAIN });
            let said = status::outlived(old, &names(&held_by, failures));
            if said == *old { wait } else { Step::Status(Box::new(said)) }
        }
        Step::Status(new) if stops && ends && !live.is_empty() => {
            // What keeps the run itself from being proven stopped is said, too.
            let own = conditions::get(&new.conditions, conditions::STOPPED).filter(|own| own.status == "False");
            let own = own.filter(|own| own.reason == status::CLEANUP_FAILED).map(|own| own.message.as_str());
            let said = status::held(run, old, own, &names(&live, failures), now);
            let wait = at_most(None, if failures.is_empty() { LOOK_AGAIN } else { TELL_AGAIN });
            if said == *old { wait } else { Step::Status(Box::new(said)) }
        }
        Step::Wait(wait) if stops && !failures.is_empty() => at_most(wait, TELL_AGAIN),
        // One that was admitted in the last moment is found by the next look.
        Step::Wait(wait) if stops && !was_over && !live.is_empty() => at_most(wait, LOOK_AGAIN),
        other => other,
    }
}

/// Who is waited for, and what went wrong, for a person. Those that nothing ends by itself come first: they are what
/// somebody has to look at.
pub(crate) fn names(live: &[&Descendant], failures: &[String]) -> String {
    let mut live = live.to_vec();
    live.sort_by_key(|one| (one.undecodable.is_none(), !one.is_over(), one.depth, one.name.clone()));
    let name = |one: &&Descendant| match &one.undecodable {
        Some(how) if one.deleting => {
            format!("{} (does not decode and is being deleted; see its Events: {how})", one.name)
        }
        Some(how) => format!("{} (does not decode, so its end cannot be stored; delete it: {how})", one.name),
        None if one.is_over() && !one.stopped => format!("{} (not proven stopped)", one.name),
        None => one.name.clone(),
    };
    let mut words: Vec<String> = live.iter().take(NAMED).map(name).collect();
    if live.len() > NAMED {
        words.push("and others".into());
    }
    let mut text = words.join(", ");
    if !failures.is_empty() {
        let some: Vec<&str> = failures.iter().take(NAMED).map(String::as_str).collect();
        text.push_str(&format!("; not told yet: {}", some.join("; ")));
    }
    text
}
