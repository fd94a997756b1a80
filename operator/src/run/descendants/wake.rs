//! Who is woken when a run or child was accepted or is over. Our own status writes of runs wake nobody, so the controller says
//! it itself; what is lost with the process is found by the slow looks of those that wait. Children are watched.

use kube::{
    ResourceExt,
    runtime::reflector::{ObjectRef, Store},
};
use std::hash::{DefaultHasher, Hash, Hasher};
use subagent_crds::{
    Phase, Subagent, SubagentRun, SubagentRunStatus, conditions, run::ParentKind, run_status::Lineage,
};

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

/// What runs wait for of a child: which run is its activation, that it takes runs below it or none any more, that it is at
/// rest or gone.
pub fn child_facts(child: &Subagent) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    child.metadata.uid.hash(&mut hasher);
    (child.metadata.resource_version.is_none(), child.metadata.deletion_timestamp.is_some()).hash(&mut hasher);
    child.spec.cancel_through_epoch.hash(&mut hasher);
    let status = child.status.as_ref();
    let activation = status.and_then(|status| status.activation.as_ref());
    activation.map(|activation| (activation.epoch, &activation.run_uid)).hash(&mut hasher);
    let facts = status.map(|status| (status.lineage.is_some(), status.cancelled_through_epoch, status.is_at_rest()));
    facts.hash(&mut hasher);
    Some(hasher.finish())
}

/// Who has news.
struct News<'a> {
    namespace: Option<String>,
    kind: ParentKind,
    name: Option<&'a str>,
    lineage: Option<&'a Lineage>,
}

/// The runs that wait for this one, as far as the cache knows.
pub fn waiting_for(runs: &Store<SubagentRun>, news: &SubagentRun) -> Vec<ObjectRef<SubagentRun>> {
    let news = News {
        namespace: news.namespace(),
        kind: ParentKind::SubagentRun,
        name: news.metadata.name.as_deref(),
        lineage: news.status.as_ref().and_then(|status| status.lineage.as_ref()),
    };
    woken(runs, &news)
}

/// The run that is this child's activation, and those that wait for the child.
pub fn waiting_for_child(runs: &Store<SubagentRun>, child: &Subagent) -> Vec<ObjectRef<SubagentRun>> {
    let status = child.status.as_ref();
    let namespace = child.namespace();
    let own = status
        .and_then(|status| status.activation.as_ref())
        .map(|activation| ObjectRef::new(&activation.run_name).within(namespace.as_deref().unwrap_or_default()));
    let news = News {
        namespace: namespace.clone(),
        kind: ParentKind::Subagent,
        name: child.metadata.name.as_deref(),
        lineage: status.and_then(|status| status.lineage.as_ref()),
    };
    // One that is not in the cache yet is looked at when it comes.
    own.into_iter().filter(|own| runs.get(own).is_some()).chain(woken(runs, &news)).collect()
}

fn woken(runs: &Store<SubagentRun>, news: &News<'_>) -> Vec<ObjectRef<SubagentRun>> {
    runs.state()
        .iter()
        .filter(|run| run.namespace() == news.namespace)
        .filter(|run| waits_above(run, news) || waits_below(run, news))
        .map(|run| ObjectRef::from_obj(run.as_ref()))
        .collect()
}

/// An ancestor that waits for the end of its descendants.
fn waits_above(run: &SubagentRun, news: &News<'_>) -> bool {
    let ancestors = news.lineage.map(|lineage| lineage.ancestors.as_slice()).unwrap_or_default();
    let is_over = run.status.as_ref().and_then(|status| status.phase).is_some_and(Phase::is_terminal);
    let waits = is_over || run.spec.cancel || run.metadata.deletion_timestamp.is_some();
    waits && run.metadata.uid.as_ref().is_some_and(|uid| ancestors.contains(uid))
}

/// A child that waits for its parent to be accepted, or is to hear that this will not be.
fn waits_below(run: &SubagentRun, news: &News<'_>) -> bool {
    let parent = run.spec.parent_ref.as_ref();
    let names_it = parent.is_some_and(|parent| parent.kind == news.kind && Some(parent.name.as_str()) == news.name);
    let is_undecided =
        run.status.as_ref().is_none_or(|status| status.lineage.is_none() && status.finished_at.is_none());
    names_it && is_undecided
}
