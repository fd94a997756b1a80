//! Who is woken when a run was accepted or is over. Our own status writes wake nobody, so the controller says it itself;
//! what is lost with the process is found by the slow looks of those that wait.

use kube::{
    ResourceExt,
    runtime::reflector::{ObjectRef, Store},
};
use subagent_crds::{Phase, SubagentRun, SubagentRunStatus, conditions};

/// Whether this write tells other runs something: children may start below it now, or cannot any more, or those above
/// need not wait for it any longer.
pub fn is_news(old: Option<&SubagentRunStatus>, new: &SubagentRunStatus) -> bool {
    let facts = |status: &SubagentRunStatus| {
        (
            status.lineage.is_some(),
            status.phase.is_some_and(Phase::is_terminal),
            conditions::is_true(&status.conditions, conditions::STOPPED),
        )
    };
    old.map(facts).unwrap_or_default() != facts(new)
}

/// The runs that wait for this one, as far as the cache knows.
pub fn waiting_for(runs: &Store<SubagentRun>, news: &SubagentRun) -> Vec<ObjectRef<SubagentRun>> {
    runs.state()
        .iter()
        .filter(|run| run.namespace() == news.namespace())
        .filter(|run| waits_above(run, news) || waits_below(run, news))
        .map(|run| ObjectRef::from_obj(run.as_ref()))
        .collect()
}

/// An ancestor that waits for the end of its descendants.
fn waits_above(run: &SubagentRun, news: &SubagentRun) -> bool {
    let lineage = news.status.as_ref().and_then(|status| status.lineage.as_ref());
    let ancestors = lineage.map(|lineage| lineage.ancestors.as_slice()).unwrap_or_default();
    let is_over = run.status.as_ref().and_then(|status| status.phase).is_some_and(Phase::is_terminal);
    let waits = is_over || run.spec.cancel || run.metadata.deletion_timestamp.is_some();
    waits && run.metadata.uid.as_ref().is_some_and(|uid| ancestors.contains(uid))
}

/// A child that waits for its parent to be accepted, or is to hear that this will not be.
fn waits_below(run: &SubagentRun, news: &SubagentRun) -> bool {
    let names_it = run.spec.parent_ref.as_ref().is_some_and(|parent| Some(&parent.name) == news.metadata.name.as_ref());
    let is_undecided =
        run.status.as_ref().is_none_or(|status| status.lineage.is_none() && status.finished_at.is_none());
    names_it && is_undecided
}
