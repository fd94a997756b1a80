//! Tells the runs below a run to stop: cancels from the top down, deletes from the bottom up.

use super::{Descendant, deleting_since};
use crate::{
    api::{self, WriteError},
    context::Context,
    decoding::Guarded,
    run::{apply::Error, orphans},
};
use futures::{StreamExt, stream};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::json;
use std::collections::BTreeMap;
use subagent_crds::{SubagentRun, names};

/// Calls at a time: enough for a wide tree, few enough not to flood the API server.
const AT_ONCE: usize = 16;

/// Cancels every live descendant, and deletes it when the run itself is being deleted. All branches are attempted; what
/// failed is returned, for a person.
pub async fn stop(context: &Context, run: &SubagentRun, found: &[Descendant]) -> Vec<String> {
    let runs: Api<Guarded<SubagentRun>> = Api::namespaced(context.client.clone(), &run.namespace().unwrap_or_default());
    let mut levels: BTreeMap<i32, Vec<&Descendant>> = BTreeMap::new();
    for one in found {
        levels.entry(one.depth).or_default().push(one);
    }
    let (mut failures, own_name) = (vec![], run.name_any());
    for level in levels.values() {
        let asked = level.iter().filter(|one| one.is_to_cancel());
        failures.extend(each(asked, |one| cancel(context, &runs, one, &own_name)).await);
    }
    if let Some(since) = deleting_since(run) {
        for level in levels.values().rev() {
            let asked = level.iter().filter(|one| one.is_to_delete(since));
            failures.extend(each(asked, |one| delete(&runs, one)).await);
        }
    }
    for failure in &failures {
        let (namespace, name) = (run.namespace().unwrap_or_default(), run.name_any());
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

/// Sets `spec.cancel`, and says with whom. The UID is a precondition: another run of that name is nobody's descendant.
async fn cancel(
    context: &Context,
    runs: &Api<Guarded<SubagentRun>>,
    one: &Descendant,
    with: &str,
) -> Result<(), Error> {
    if one.undecodable.is_some() && orphans::is_stopping(context, runs, &one.name).await? {
        return Ok(());
    }
    let annotations = json!({names::CANCELLED_BY_ANNOTATION: with});
    let patch = json!({"metadata": {"uid": one.uid, "annotations": annotations}, "spec": {"cancel": true}});
    let params = PatchParams { field_manager: Some(names::CONTROLLER_MANAGER.into()), ..PatchParams::default() };
    let what = format!("cancelling {}", one.name);
    match missing_is_done(api::write(what, runs.patch(&one.name, &params, &Patch::Merge(&patch))).await) {
        // The API server takes no change of it: it does not fit the definition.
        Err(WriteError::Refused { .. }) if one.undecodable.is_some() => orphans::stop(context, runs, &one.name).await,
        answer => Ok(answer?),
    }
}

async fn delete(runs: &Api<Guarded<SubagentRun>>, one: &Descendant) -> Result<(), Error> {
    let preconditions = Preconditions { uid: Some(one.uid.clone()), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
    Ok(missing_is_done(api::write(format!("deleting {}", one.name), runs.delete(&one.name, &params)).await)?)
}

/// A missing descendant counts as cancelled (contract c51), and one that was replaced is missing.
fn missing_is_done<T>(answer: Result<T, WriteError>) -> Result<(), WriteError> {
    match answer {
        Ok(_) | Err(WriteError::Gone(_) | WriteError::Conflict(_)) => Ok(()),
        Err(error) => Err(error),
    }
}
