//! Tells the runs and children below a run or child to stop: cancels from the top down, deletes from the bottom up.

use super::Descendant;
use crate::{
    api::{self, WriteError},
    context::Context,
    decoding::Guarded,
    run::{apply::Error, orphans},
};
use futures::{StreamExt, stream};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::json;
use std::collections::BTreeMap;
use subagent_crds::{Subagent, SubagentRun, names};

/// Calls at a time: enough for a wide tree, few enough not to flood the API server.
const AT_ONCE: usize = 16;

/// Who tells.
#[derive(Clone, Copy, Debug)]
pub struct Ancestor<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Since when it is being deleted.
    pub deleting_since: Option<Timestamp>,
}

/// Where those below are.
struct Below {
    runs: Api<Guarded<SubagentRun>>,
    children: Api<Guarded<Subagent>>,
}

/// Cancels every live descendant, and deletes it when its ancestor is being deleted. All branches are attempted; what
/// failed is returned, for a person.
pub async fn stop(context: &Context, ancestor: Ancestor<'_>, found: &[Descendant]) -> Vec<String> {
    let Ancestor { namespace, name, deleting_since } = ancestor;
    let below = Below {
        runs: Api::namespaced(context.client.clone(), namespace),
        children: Api::namespaced(context.client.clone(), namespace),
    };
    let mut levels: BTreeMap<i32, Vec<&Descendant>> = BTreeMap::new();
    for one in found {
        levels.entry(one.depth).or_default().push(one);
    }
    let mut failures = vec![];
    for level in levels.values() {
        let asked = level.iter().filter(|one| one.is_to_cancel());
        failures.extend(each(asked, |one| cancel(context, &below, one, name)).await);
    }
    if let Some(since) = deleting_since {
        for level in levels.values().rev() {
            let asked = level.iter().filter(|one| one.is_to_delete(since));
            failures.extend(each(asked, |one| delete(&below, one)).await);
        }
    }
    for failure in &failures {
        tracing::warn!(namespace, name, failure, "a descendant was not told to stop; trying again");
    }
    failures
}

async fn each<'a, F>(asked: impl Iterator<Item = &'a &'a Descendant>, tell: impl Fn(&'a Descendant) -> F) -> Vec<String>
where
    F: Future<Output = Result<(), Error>>,
{
    let calls: Vec<F> = asked.map(|one| tell(one)).collect();
    let answers: Vec<_> = stream::iter(calls).buffer_unordered(AT_ONCE).collect().await;
    answers.into_iter().filter_map(|answer| answer.err().map(|error| error.to_string())).collect()
}

/// Sets `spec.cancel` of a run and says with whom, or cancels what a child does now. The UID is a precondition: another one
/// of that name is nobody's descendant.
async fn cancel(context: &Context, below: &Below, one: &Descendant, with: &str) -> Result<(), Error> {
    let (runs, what) = (&below.runs, format!("cancelling {}", one.name));
    let params = PatchParams { field_manager: Some(names::CONTROLLER_MANAGER.into()), ..PatchParams::default() };
    if one.is_child() {
        let patch = json!({"metadata": {"uid": one.uid}, "spec": {"cancelThroughEpoch": one.epochs}});
        let patch = Patch::Merge(&patch);
        return Ok(missing_is_done(api::write(what, below.children.patch(&one.name, &params, &patch)).await)?);
    }
    if one.undecodable.is_some() && orphans::is_stopping(context, runs, &one.name).await? {
        return Ok(());
    }
    let annotations = json!({names::CANCELLED_BY_ANNOTATION: with});
    let patch = json!({"metadata": {"uid": one.uid, "annotations": annotations}, "spec": {"cancel": true}});
    match missing_is_done(api::write(what, runs.patch(&one.name, &params, &Patch::Merge(&patch))).await) {
        // The API server takes no change of it: it does not fit the definition.
        Err(WriteError::Refused { .. }) if one.undecodable.is_some() => orphans::stop(context, runs, &one.name).await,
        answer => Ok(answer?),
    }
}

async fn delete(below: &Below, one: &Descendant) -> Result<(), Error> {
    let preconditions = Preconditions { uid: Some(one.uid.clone()), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
    let what = format!("deleting {}", one.name);
    if one.is_child() {
        return Ok(missing_is_done(api::write(what, below.children.delete(&one.name, &params)).await)?);
    }
    Ok(missing_is_done(api::write(what, below.runs.delete(&one.name, &params)).await)?)
}

/// A missing descendant counts as cancelled (contract c51), and one that was replaced is missing.
fn missing_is_done<T>(answer: Result<T, WriteError>) -> Result<(), WriteError> {
    match answer {
        Ok(_) | Err(WriteError::Gone(_) | WriteError::Conflict(_)) => Ok(()),
        Err(error) => Err(error),
    }
}
