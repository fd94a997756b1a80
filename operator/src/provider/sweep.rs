//! Sweeps revisions that nothing refers to. Two passes: the first marks, the second deletes what is still unreferenced,
//! so a run that was accepted with a revision between the two keeps it.

use crate::{
    api::{self, WriteError},
    context::Context,
    decoding::{Guarded, Undecodable},
    run::activation,
    watching::Scope,
};
use k8s_openapi::{api::apps::v1::ControllerRevision, jiff::Timestamp};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions},
};
use serde_json::json;
use std::{collections::HashSet, time::Duration};
use subagent_crds::{Subagent, SubagentProvider, SubagentRun, names};
use tokio_util::sync::CancellationToken;

/// Time between two passes, and with it the least time between mark and deletion.
const INTERVAL: Duration = Duration::from_secs(600);
/// Objects read at a time.
const PAGE: u32 = 500;

/// What to do with a revision. Pure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Something refers to it, and it is not marked.
    Keep,
    /// Something refers to it again.
    Unmark,
    /// Nothing refers to it: mark it.
    Mark,
    /// Nothing refers to it and it has been marked for long enough.
    Delete,
}

/// Decides about one revision.
pub fn fate(referenced: bool, marked_at: Option<Timestamp>, now: Timestamp) -> Fate {
    match (referenced, marked_at) {
        (true, None) => Fate::Keep,
        (true, Some(_)) => Fate::Unmark,
        (false, None) => Fate::Mark,
        (false, Some(at)) if now >= at + INTERVAL => Fate::Delete,
        (false, Some(_)) => Fate::Keep,
    }
}

/// Sweeps until the token is cancelled.
pub async fn run(context: Context, scope: Scope, shutdown: CancellationToken) {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        if let Err(error) = pass(&context, &scope, Timestamp::now()).await {
            tracing::warn!(%error, "sweeping provider revisions failed; the next pass tries again");
        }
    }
}

/// One pass, from live lists.
///
/// # Errors
/// When a call fails; nothing is lost by stopping half-way.
pub async fn pass(context: &Context, scope: &Scope, now: Timestamp) -> Result<(), WriteError> {
    let client = &context.client;
    // Revisions first: one made after this list is not looked at, and a reference made before it is seen below.
    let labelled = ListParams::default().labels(names::PROVIDER_UID_LABEL);
    let revisions = list(&scope.api::<ControllerRevision>(client), labelled).await?;
    let mut referenced = HashSet::new();
    // What an object refers to that does not decode is not known: nothing of its namespace is swept.
    let mut unknown = HashSet::new();
    for provider in list(&scope.api::<Guarded<SubagentProvider>>(client), ListParams::default()).await? {
        match provider.0 {
            Ok(provider) => {
                let revision = provider.status.as_ref().and_then(|status| status.revision.clone());
                referenced.insert((provider.namespace(), revision.unwrap_or_default()));
            }
            Err(undecodable) => drop(unknown.insert(left_alone("SubagentProvider", undecodable))),
        }
    }
    for run in list(&scope.api::<Guarded<SubagentRun>>(client), ListParams::default()).await? {
        match run.0 {
            Ok(run) => {
                let descriptor = run.status.as_ref().and_then(|status| status.descriptor.as_ref());
                let revision = descriptor.map(|descriptor| descriptor.provider_revision.clone());
                referenced.insert((run.namespace(), revision.unwrap_or_default()));
            }
            Err(undecodable) => drop(unknown.insert(left_alone("SubagentRun", undecodable))),
        }
    }
    // A child whose provider is gone goes on with its last one (contract c2).
    for child in list(&scope.api::<Guarded<Subagent>>(client), ListParams::default()).await? {
        match child.0 {
            Ok(child) => {
                let revision = activation::recorded_revision(&child).unwrap_or_default().to_owned();
                referenced.insert((child.namespace(), revision));
            }
            Err(undecodable) => drop(unknown.insert(left_alone("Subagent", undecodable))),
        }
    }
    let revisions = revisions.into_iter().filter(|revision| !unknown.contains(&revision.namespace()));
    for revision in revisions {
        let name = revision.name_any();
        let api: Api<ControllerRevision> = Api::namespaced(client.clone(), &revision.namespace().unwrap_or_default());
        let mark = revision.annotations().get(names::UNREFERENCED_ANNOTATION).and_then(|at| at.parse().ok());
        let annotate =
            |value: serde_json::Value| json!({"metadata": {"annotations": {names::UNREFERENCED_ANNOTATION: value}}});
        match fate(referenced.contains(&(revision.namespace(), name.clone())), mark, now) {
            Fate::Keep => {}
            Fate::Mark => patch(&api, &name, annotate(json!(now.to_string()))).await?,
            Fate::Unmark => patch(&api, &name, annotate(serde_json::Value::Null)).await?,
            Fate::Delete => {
                let preconditions =
                    Preconditions { uid: revision.uid(), resource_version: revision.resource_version() };
                let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                match api::write(format!("deleting revision {name}"), api.delete(&name, &params)).await {
                    Ok(_) | Err(WriteError::Gone(_) | WriteError::Conflict(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Ok(())
}

/// Says which object does not decode, and gives its namespace.
fn left_alone(kind: &str, undecodable: Undecodable) -> Option<String> {
    let (namespace, name) = (undecodable.metadata.namespace, undecodable.metadata.name.unwrap_or_default());
    tracing::warn!(
        kind,
        namespace,
        name,
        error = undecodable.how,
        "an object does not decode: revisions of its namespace are not swept"
    );
    namespace
}

async fn patch(api: &Api<ControllerRevision>, name: &str, body: serde_json::Value) -> Result<(), WriteError> {
    let patch = Patch::Merge(&body);
    match api::write(format!("marking revision {name}"), api.patch(name, &PatchParams::default(), &patch)).await {
        Ok(_) | Err(WriteError::Gone(_) | WriteError::Conflict(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn list<K>(api: &Api<K>, params: ListParams) -> Result<Vec<K>, WriteError>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let mut all = vec![];
    let mut params = params.limit(PAGE);
    loop {
        let page = api::write("listing", api.list(&params)).await?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(true, None, Fate::Keep)]
    #[case(true, Some(0), Fate::Unmark)]
    #[case(false, None, Fate::Mark)]
    #[case(false, Some(5000), Fate::Keep)]
    #[case(false, Some(4400), Fate::Delete)]
    fn c2_a_revision_goes_only_when_it_stays_unreferenced(
        #[case] referenced: bool,
        #[case] marked: Option<i64>,
        #[case] expected: Fate,
    ) {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(fate(referenced, marked.map(at), at(5000)), expected);
    }
}
