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
use subagent_crds::names;

/// Stops and releases what is left of a run that does not exist.
///
/// # Errors
/// When a call fails; the next reconcile lists again.
pub async fn clean(context: &Context, namespace: &str, run: &str) -> Result<(), Error> {
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
