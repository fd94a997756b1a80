//! Pods whose run is gone: somebody took the run's finalizer off by force. They are stopped, and released once that is
//! proven; otherwise they would hold their namespace for ever.

use super::{
    apply::{Error, release_pod},
    dereference,
};
use crate::{
    api::{self, WriteError},
    context::Context,
    pod::observe::observe,
};
use futures::{StreamExt, channel::mpsc::UnboundedReceiver};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Preconditions},
};
use std::{collections::BTreeSet, time::Duration};
use subagent_crds::{SubagentRun, names};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// How often pods without a run are looked at until the last one is released: a failed call, a node that went away and
/// labels that were removed tell nobody.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// A namespace, and the name of a run that is not there.
pub type Gone = (String, String);

/// Stops and releases what is left of the runs that are found to be gone, until the token is cancelled. What it knows is
/// only in memory: every pod is seen anew by the next process.
pub async fn clean_up(context: &Context, mut found: UnboundedReceiver<Gone>, shutdown: &CancellationToken) {
    let mut left: BTreeSet<Gone> = BTreeSet::new();
    let mut again = tokio::time::interval(LOOK_AGAIN);
    again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let look = tokio::select! {
            () = shutdown.cancelled() => return,
            next = found.next() => match next {
                Some(gone) => BTreeSet::from([gone]),
                None => return,
            },
            _ = again.tick(), if !left.is_empty() => left.clone(),
        };
        for gone in look {
            let (namespace, run) = &gone;
            match clean(context, namespace, run).await {
                Ok(true) => {
                    left.remove(&gone);
                }
                Ok(false) => {
                    left.insert(gone);
                }
                Err(error) => {
                    tracing::warn!(namespace, run, %error, "cleaning up after a run that is gone failed; trying again");
                    left.insert(gone);
                }
            }
        }
    }
}

/// One look; true when nothing is left to do.
async fn clean(context: &Context, namespace: &str, run: &str) -> Result<bool, Error> {
    let runs: Api<SubagentRun> = Api::namespaced(context.client.clone(), namespace);
    match api::get(&runs, run).await {
        Ok(None) => {}
        // The cache was older than the run; its own reconcile looks after the pods.
        Ok(Some(_)) => return Ok(true),
        // It is in no cache because it does not decode; it is there, and its pods are not orphans.
        Err(error) if error.is_undecodable() => return Ok(true),
        Err(error) => return Err(error.into()),
    }
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let labelled = ListParams::default().labels(&format!("{}={run}", names::RUN_LABEL));
    let held = api::list(&pods, labelled, "worker pods", |pod| is_held(&pod).then_some(pod)).await?;
    let mut is_done = true;
    for pod in &held {
        let name = pod.name_any();
        let node = dereference::node(&context.client, Some(pod)).await?;
        if observe(pod, node, false).proof.is_some() {
            release_pod(&pods, pod).await?;
            continue;
        }
        is_done = false;
        if pod.metadata.deletion_timestamp.is_none() {
            tracing::warn!(namespace, run, pod = name, "the run is gone and its pod is not: stopping it");
            let preconditions = Preconditions { uid: pod.uid(), resource_version: None };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            match api::write(format!("deleting pod {name}"), pods.delete(&name, &params)).await {
                Ok(_) | Err(WriteError::Gone(_) | WriteError::Conflict(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(is_done)
}

fn is_held(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|name| name == names::POD_FINALIZER)
}
