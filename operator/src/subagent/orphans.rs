//! Activations whose child is gone (somebody took its finalizer off by force). Nobody notes any more what becomes of their
//! messages: they are deleted, which stops them, and let go.

use super::apply::Error;
use crate::{
    api::{self, WriteError},
    context::Context,
    run::apply::{ignore_gone, without, write_finalizers},
};
use futures::{StreamExt, channel::mpsc::UnboundedReceiver};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Preconditions},
    runtime::reflector::Store,
};
use std::{collections::BTreeSet, time::Duration};
use subagent_crds::{Subagent, SubagentRun, names};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// How often such runs are looked at until the last one is let go: a failed call tells nobody.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Namespace and name of a run.
pub type Left = (String, String);

/// The run, if it is an activation of a child that the cache does not know.
pub fn left_behind(children: &Store<Subagent>, run: &SubagentRun) -> Option<Left> {
    let activation = run.spec.activation.as_ref()?;
    let is_held = run.finalizers().iter().any(|name| name == names::FOLD_FINALIZER);
    let uid = Some(&activation.subagent_ref.uid);
    let is_known = || children.state().iter().any(|child| child.metadata.uid.as_ref() == uid);
    (is_held && !is_known()).then(|| (run.namespace().unwrap_or_default(), run.name_any()))
}

/// Stops and lets go of what is found, until the token is cancelled. What it knows is only in memory: every run is seen anew
/// by the next process.
pub async fn clean_up(context: &Context, mut found: UnboundedReceiver<Left>, shutdown: &CancellationToken) {
    let mut left: BTreeSet<Left> = BTreeSet::new();
    let mut again = tokio::time::interval(LOOK_AGAIN);
    again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let look = tokio::select! {
            () = shutdown.cancelled() => return,
            next = found.next() => match next {
                Some(one) => BTreeSet::from([one]),
                None => return,
            },
            _ = again.tick(), if !left.is_empty() => left.clone(),
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
