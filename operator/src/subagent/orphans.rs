//! Activations whose child is gone (somebody took its finalizer off by force). Nobody notes any more what becomes of their
//! messages: they are deleted, which stops them, and let go.

use super::apply::Error;
use crate::{
    api::{self, WriteError},
    context::Context,
    run::apply::{ignore_gone, without, write_finalizers},
    settings::CALL_TIMEOUT,
    watching::Scope,
};
use futures::{StreamExt, channel::mpsc::UnboundedReceiver};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Preconditions},
    runtime::reflector::Store,
};
use std::{collections::BTreeSet, time::Duration};
use subagent_crds::{Subagent, SubagentRun, names};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// How often such runs are looked at until the last one is let go: a failed call tells nobody.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// How often all activations are looked at: a child may go while nobody watches, and no run tells of that.
const LOOK_AT_ALL: Duration = Duration::from_secs(600);
/// Runs per page.
const PAGE: u32 = 500;

/// Namespace and name of a run.
pub type Left = (String, String);

/// The activations of a child that is gone, or all.
#[derive(Clone, Debug)]
pub enum Found {
    /// A run without its child, as far as the cache knows.
    Run(Left),
    /// A child that is gone: its namespace and UID.
    Child(String, String),
}

/// The run, if it is an activation of a child that the cache does not know.
pub fn left_behind(children: &Store<Subagent>, run: &SubagentRun) -> Option<Found> {
    let activation = run.spec.activation.as_ref()?;
    let is_held = run.finalizers().iter().any(|name| name == names::FOLD_FINALIZER);
    let uid = Some(&activation.subagent_ref.uid);
    let is_known = || children.state().iter().any(|child| child.metadata.uid.as_ref() == uid);
    (is_held && !is_known()).then(|| Found::Run((run.namespace().unwrap_or_default(), run.name_any())))
}

/// The child, if it is gone.
pub fn gone(child: &Subagent) -> Option<Found> {
    let is_gone = child.metadata.resource_version.is_none();
    is_gone.then(|| Found::Child(child.namespace().unwrap_or_default(), child.uid().unwrap_or_default()))
}

/// Stops and lets go of what is found, until the token is cancelled. What it knows is only in memory: every run is seen anew
/// by the next process.
pub async fn clean_up(
    context: &Context,
    scope: &Scope,
    children: &Store<Subagent>,
    mut found: UnboundedReceiver<Found>,
    shutdown: &CancellationToken,
) {
    let mut left: BTreeSet<Left> = BTreeSet::new();
    let mut again = tokio::time::interval(LOOK_AGAIN);
    again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut all = tokio::time::interval(LOOK_AT_ALL);
    all.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // What is there at the start is told by the watches.
    all.reset();
    let is_known = |uid: &str| children.state().iter().any(|child| child.metadata.uid.as_deref() == Some(uid));
    loop {
        let look = tokio::select! {
            () = shutdown.cancelled() => return,
            next = found.next() => match next {
                Some(Found::Run(one)) => BTreeSet::from([one]),
                Some(Found::Child(namespace, uid)) => {
                    let of_child = format!("{}={uid}", names::SUBAGENT_UID_LABEL);
                    held(&Api::namespaced(context.client.clone(), &namespace), &of_child, |_| true).await
                }
                None => return,
            },
            _ = again.tick(), if !left.is_empty() => left.clone(),
            _ = all.tick() => held(&scope.api(&context.client), names::SUBAGENT_UID_LABEL, |uid| !is_known(uid)).await,
        };
        for one in look {
            let (namespace, run) = &one;
            match clean(context, namespace, run).await {
                Ok(true) => drop(left.remove(&one)),
                Ok(false) => drop(left.insert(one)),
                Err(error) => {
                    tracing::warn!(namespace, run, %error, "an activation without its child was not let go; trying again");
                    left.insert(one);
                }
            }
        }
    }
}

/// The activations that our second finalizer holds and whose child fits. Their metadata are enough, and small.
async fn held(runs: &Api<SubagentRun>, labels: &str, fits: impl Fn(&str) -> bool) -> BTreeSet<Left> {
    let mut found = BTreeSet::new();
    let mut params = ListParams::default().labels(labels).limit(PAGE);
    loop {
        let page = match tokio::time::timeout(CALL_TIMEOUT, runs.list_metadata(&params)).await {
            Ok(Ok(page)) => page,
            Ok(Err(error)) => {
                tracing::warn!(%error, "activations without their child were not looked for");
                return found;
            }
            Err(_) => return found,
        };
        for run in page.items {
            let is_held = run.finalizers().iter().any(|name| name == names::FOLD_FINALIZER);
            if is_held && run.labels().get(names::SUBAGENT_UID_LABEL).is_some_and(|uid| fits(uid)) {
                found.insert((run.namespace().unwrap_or_default(), run.name_any()));
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return found,
        }
    }
}

/// One look; true when nothing is left to do.
async fn clean(context: &Context, namespace: &str, name: &str) -> Result<bool, Error> {
    let runs: Api<SubagentRun> = Api::namespaced(context.client.clone(), namespace);
    let children: Api<Subagent> = Api::namespaced(context.client.clone(), namespace);
    let Some(run) = api::get(&runs, name).await? else { return Ok(true) };
    let Some(activation) = &run.spec.activation else { return Ok(true) };
    let child = api::get(&children, &activation.subagent_ref.name).await?;
    if child.is_some_and(|child| child.metadata.uid.as_ref() == Some(&activation.subagent_ref.uid)) {
        // The cache was older than the child.
        return Ok(true);
    }
    if run.metadata.deletion_timestamp.is_none() {
        let preconditions = Preconditions { uid: run.uid(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        tracing::warn!(namespace, run = name, "the child of this activation is gone: deleting it");
        return match api::write(format!("deleting run {name}"), runs.delete(name, &params)).await {
            Ok(_) | Err(WriteError::Gone(_) | WriteError::Conflict(_)) => Ok(false),
            Err(error) => Err(error.into()),
        };
    }
    let finalizers = without(run.metadata.finalizers.clone(), names::FOLD_FINALIZER);
    ignore_gone(write_finalizers(&runs, &run, &finalizers).await)?;
    Ok(true)
}
