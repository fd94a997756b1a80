//! Probes whose provider is gone. Garbage collection takes them along, unless the provider was deleted with
//! `--cascade=orphan`: then nobody but this looks after them.

use crate::{
    api::{self, ReadError, WriteError},
    context::Context,
    decoding::Guarded,
    watching::Scope,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Preconditions},
};
use std::time::Duration;
use subagent_crds::{SubagentProvider, names};
use subagent_link::ProbeConfig;
use tokio_util::sync::CancellationToken;

/// Time between two looks: a provider that goes tells nothing of what it leaves behind.
const INTERVAL: Duration = Duration::from_secs(30);

/// Looks until the token is cancelled.
pub async fn run(context: Context, scope: Scope, shutdown: CancellationToken) {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        if let Err(error) = pass(&context, &scope).await {
            tracing::warn!(%error, "looking for probes without a provider failed; the next look tries again");
        }
    }
}

/// A look that did not get through.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

async fn pass(context: &Context, scope: &Scope) -> Result<(), Error> {
    let client = &context.client;
    // From the API server's cache: what is decided on is read live.
    let labelled = ListParams::default().labels(names::PROBE_LABEL).match_any();
    let pods = scope.api::<Pod>(client);
    for pod in api::list(&pods, labelled, "probes", |pod| is_candidate(&pod).then_some(pod)).await? {
        let namespace = pod.namespace().unwrap_or_default();
        let providers: Api<Guarded<SubagentProvider>> = Api::namespaced(client.clone(), &namespace);
        let provider = api::get(&providers, &pod.labels()[names::PROVIDER_LABEL]).await?;
        if is_left_behind(&pod, provider.and_then(|provider| provider.uid()).as_deref()) {
            remove(&Api::namespaced(client.clone(), &namespace), &pod).await?;
        }
    }
    Ok(())
}

/// A probe as this operator makes them, that is not on its way out.
fn is_candidate(pod: &Pod) -> bool {
    let Some(provider) = pod.labels().get(names::PROVIDER_LABEL) else { return false };
    let config = pod.annotations().get(names::WORKER_CONFIG_ANNOTATION);
    let config = config.and_then(|text| serde_json::from_str::<ProbeConfig>(text).ok());
    pod.metadata.deletion_timestamp.is_none()
        && config.is_some_and(|it| it.provider == *provider && Some(it.namespace) == pod.namespace())
}

/// Whether the provider that a probe was made for is gone: not there, or another one under its name. Nobody else owns it.
fn is_left_behind(pod: &Pod, provider_uid: Option<&str>) -> bool {
    let Some(made_for) = pod.labels().get(names::PROVIDER_UID_LABEL) else { return false };
    provider_uid != Some(made_for) && pod.owner_references().iter().all(|owner| owner.uid == *made_for)
}

/// With its own grace: the worker stops the agent.
async fn remove(pods: &Api<Pod>, pod: &Pod) -> Result<(), WriteError> {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    tracing::warn!(namespace, pod = name, "the provider of this probe is gone: deleting it");
    let preconditions = Preconditions { uid: pod.uid(), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match api::write(format!("deleting probe {name}"), pods.delete(&name, &params)).await {
        Ok(_) | Err(WriteError::Gone(_) | WriteError::Conflict(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};
    use subagent_link::AcpTransport;

    fn pod(owner: Option<&str>, config: Value) -> Pod {
        let owners: Vec<Value> = owner
            .map(|uid| json!({"apiVersion": "v1", "kind": "K", "name": "p", "uid": uid, "controller": true}))
            .into_iter()
            .collect();
        serde_json::from_value(json!({"metadata": {
            "name": "probe", "namespace": "n", "ownerReferences": owners,
            "labels": {names::PROBE_LABEL: "1", names::PROVIDER_LABEL: "p", names::PROVIDER_UID_LABEL: "u"},
            "annotations": {names::WORKER_CONFIG_ANNOTATION: config.to_string()},
        }}))
        .unwrap()
    }

    /// S8: only a provider that is gone leaves its probe behind, and a pod that somebody else owns is not one.
    #[rstest]
    #[case::gone(None, None, true)]
    #[case::gone_and_not_yet_collected(Some("u"), None, true)]
    #[case::another_under_its_name(None, Some("v"), true)]
    #[case::there(None, Some("u"), false)]
    #[case::somebody_elses(Some("job"), None, false)]
    fn s8_a_probe_without_its_provider_is_left_behind(
        #[case] owner: Option<&str>,
        #[case] provider: Option<&str>,
        #[case] expected: bool,
    ) {
        assert_eq!(is_left_behind(&pod(owner, json!({})), provider), expected);
    }

    #[test]
    fn d2_labels_alone_make_no_probe() {
        let config = json!({"namespace": "n", "provider": "p", "attempt": 1, "cwd": "/", "transport": AcpTransport::default(),
            "stop": {"cancelGraceSeconds": 1, "eofGraceSeconds": 1, "termGraceSeconds": 1}});
        assert!(is_candidate(&pod(None, config.clone())));
        assert!(!is_candidate(&pod(None, json!({}))));
        let mut other = config;
        other["provider"] = json!("q");
        assert!(!is_candidate(&pod(None, other)));
    }
}
