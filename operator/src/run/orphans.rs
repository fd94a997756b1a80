//! Pods whose run is gone: somebody took the run's finalizer off by force. They are stopped, and released once that is
//! proven; otherwise they would hold their namespace for ever.

use super::apply::{Error, release_pod};
use crate::{
    api::{self, WriteError},
    context::Context,
    pod::observe::{Node, observe},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Preconditions},
};
use std::time::Duration;
use subagent_crds::{SubagentRun, names};

/// Tries in a row when calls fail. Every change of such a pod, and every start of the operator, begins anew.
const TRIES: u32 = 5;
/// Wait between two tries.
const RETRY: Duration = Duration::from_secs(2);

/// Stops and releases what is left of a run, if there is none of that name.
pub async fn clean_up(context: Context, namespace: String, run: String) {
    for _ in 0..TRIES {
        match clean(&context, &namespace, &run).await {
            Ok(()) => return,
            Err(error) => tracing::warn!(namespace, run, %error, "cleaning up after a run that is gone failed"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn clean(context: &Context, namespace: &str, run: &str) -> Result<(), Error> {
    let runs: Api<SubagentRun> = Api::namespaced(context.client.clone(), namespace);
    if api::get(&runs, run).await?.is_some() {
        // The cache was older than the run; its own reconcile looks after the pods.
        return Ok(());
    }
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let labelled = ListParams::default().labels(&format!("{}={run}", names::RUN_LABEL));
    let found = api::write(format!("listing pods of {run}"), pods.list(&labelled)).await?;
    for pod in found.items.iter().filter(|pod| is_held(pod)) {
        let name = pod.name_any();
        if observe(pod, Node::Present, false).proof.is_some() {
            release_pod(&pods, pod).await?;
        } else if pod.metadata.deletion_timestamp.is_none() {
            tracing::warn!(namespace, run, pod = name, "the run is gone and its pod is not: stopping it");
            let preconditions = Preconditions { uid: pod.uid(), resource_version: None };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            match api::write(format!("deleting pod {name}"), pods.delete(&name, &params)).await {
                Ok(_) | Err(WriteError::Gone(_) | WriteError::Conflict(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

fn is_held(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|name| name == names::POD_FINALIZER)
}
