//! What the chart runs before it is uninstalled: the operator is ended, and finished runs are let go. Nobody is left
//! afterwards who could take a finalizer off; a run that is terminal and Stopped has nothing left to prove, and would only
//! hold up its namespace. Live runs keep theirs: they go on, and an operator that is installed again takes them up
//! (pitfall S6).

use crate::{
    api::{self, WriteError},
    decoding::Guarded,
    pod::observe::{Node, observe},
    run::apply::{release_pod, release_run},
    settings::Settings,
    watching::Scope,
};
use anyhow::{Context as _, bail};
use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::Pod},
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;
use std::time::Duration;
use subagent_crds::{Phase, SubagentRun, conditions, names};

/// How long the operator's pods may take to go: their grace of 30 s, and the kubelet's own time.
const OPERATOR_ENDS: Duration = Duration::from_secs(90);
/// How often that is looked at.
const POLL: Duration = Duration::from_secs(1);
/// Runs per page: each may carry half a megabyte of prompt, and none of it is kept.
const PAGE: u32 = 50;

/// Ends the operator and lets go of finished runs.
///
/// # Errors
/// When the operator does not end, or the API server does not answer. Nothing is lost: it can be run again.
pub async fn run(client: Client, settings: &Settings, deployment: &str) -> anyhow::Result<()> {
    end_operator(&client, &settings.pod_namespace, deployment).await.context("ending the operator")?;
    let (mut released, mut live) = (0, 0);
    for scope in Scope::of(&settings.namespaces()) {
        let runs: Api<Guarded<SubagentRun>> = match &scope {
            Scope::Cluster => Api::all(client.clone()),
            Scope::Namespace(namespace) => Api::namespaced(client.clone(), namespace),
        };
        for left in api::list(&runs, ListParams::default().limit(PAGE), "runs", left).await? {
            match left {
                Left::Finished(run) => {
                    if let Err(error) = release(&client, &run).await {
                        let (namespace, name) = (run.namespace().unwrap_or_default(), run.name_any());
                        tracing::warn!(namespace, name, error = format!("{error:#}"), "a finished run was not let go");
                    } else {
                        released += 1;
                    }
                }
                Left::Live { namespace, name, phase } => {
                    live += 1;
                    tracing::warn!("run {name} in namespace {namespace} is {phase}");
                }
            }
        }
    }
    if live > 0 {
        tracing::warn!("{}", remedy());
    }
    tracing::info!(released, live, "finished runs were let go; live ones keep their finalizers");
    Ok(())
}

/// Scales the operator's Deployment to 0 and waits until its pods are gone: from then on nobody else writes.
async fn end_operator(client: &Client, namespace: &str, name: &str) -> anyhow::Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let Some(deployment) = api::get(&deployments, name).await? else {
        tracing::info!(namespace, name, "there is no such Deployment; nothing to end");
        return Ok(());
    };
    let none = json!({"spec": {"replicas": 0}});
    let (params, patch) = (PatchParams::default(), Patch::Merge(&none));
    match api::write(format!("scaling {name}"), deployments.patch_scale(name, &params, &patch)).await {
        Ok(_) | Err(WriteError::Gone(_)) => {}
        Err(error) => return Err(error.into()),
    }
    let labels = deployment.spec.selector.match_labels.unwrap_or_default();
    let selector: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let labelled = ListParams::default().labels(&selector.join(","));
    let deadline = Timestamp::now() + OPERATOR_ENDS;
    loop {
        let left = api::list(&pods, labelled.clone(), "the operator's pods", |pod| Some(pod.name_any())).await?;
        if left.is_empty() {
            return Ok(());
        }
        if Timestamp::now() > deadline {
            bail!("still there after {} s: {}", OPERATOR_ENDS.as_secs(), left.join(", "));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// A run that has our finalizer.
#[derive(Debug)]
enum Left {
    /// Terminal and proven stopped; without prompt and result.
    Finished(Box<SubagentRun>),
    /// Anything else, also what does not decode.
    Live { namespace: String, name: String, phase: String },
}

fn left(guard: Guarded<SubagentRun>) -> Option<Left> {
    let held = |finalizers: &Option<Vec<String>>| finalizers.iter().flatten().any(|name| name == names::RUN_FINALIZER);
    let live = |metadata: &kube::api::ObjectMeta, phase: &str| Left::Live {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        phase: phase.to_owned(),
    };
    match guard.0 {
        Ok(run) if !held(&run.metadata.finalizers) => None,
        Ok(mut run) => {
            let status = run.status.take().unwrap_or_default();
            let is_over = status.phase.is_some_and(Phase::is_terminal);
            if is_over && conditions::is_true(&status.conditions, conditions::STOPPED) {
                run.spec = Default::default();
                return Some(Left::Finished(Box::new(run)));
            }
            Some(live(&run.metadata, status.phase.map_or("Pending", Phase::as_str)))
        }
        Err(undecodable) if held(&undecodable.metadata.finalizers) => Some(live(&undecodable.metadata, "undecodable")),
        Err(_) => None,
    }
}

/// Takes the finalizers off a finished run and the pods of it that have ended.
async fn release(client: &Client, run: &SubagentRun) -> anyhow::Result<()> {
    let namespace = run.namespace().unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let labelled = ListParams::default().labels(&format!("{}={}", names::RUN_UID_LABEL, run.uid().unwrap_or_default()));
    let is_held = |pod: &Pod| pod.finalizers().iter().any(|name| name == names::POD_FINALIZER);
    for pod in api::list(&pods, labelled, "worker pods", |pod| is_held(&pod).then_some(pod)).await? {
        if observe(&pod, Node::Present, false).proof.is_some() {
            release_pod(&pods, &pod).await?;
        }
    }
    let runs: Api<SubagentRun> = Api::namespaced(client.clone(), &namespace);
    release_run(&runs, run).await?;
    Ok(())
}

/// What a person can do about runs that keep their finalizers, once for all of them. Without a double quote: Helm prints the
/// log as one quoted line.
fn remedy() -> String {
    format!(
        "runs that are live go on, and an operator that is installed again takes them up. To let go of one without it, which leaves its agent to itself: kubectl patch subagentrun NAME --namespace NAMESPACE --type=merge -p 'metadata: {{finalizers: null}}', and the same for its pods: kubectl get pods --namespace NAMESPACE -l {}=NAME",
        names::RUN_LABEL
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::Value;

    #[rstest]
    #[case::finished(json!({}), "Finished")]
    #[case::not_stopped(json!({"status": {"phase": "Cancelled", "conditions": []}}), "Live r Cancelled")]
    #[case::running(json!({"status": {"phase": "Running"}}), "Live r Running")]
    #[case::not_seen_yet(json!({"status": {}}), "Live r Pending")]
    #[case::undecodable(json!({"spec": {"description": 5}}), "Live r undecodable")]
    #[case::not_ours(json!({"metadata": {"name": "r", "finalizers": ["another"]}}), "")]
    fn s6_c50_only_what_is_terminal_and_stopped_is_let_go(#[case] changes: Value, #[case] expected: &str) {
        let mut run = json!({
            "metadata": {"name": "r", "namespace": "n", "finalizers": [names::RUN_FINALIZER]},
            "spec": {"providerRef": {"name": "p"}, "description": "d"},
            "status": {"phase": "Completed", "conditions": [{"type": "Stopped", "status": "True", "reason": "X", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        });
        for (key, value) in changes.as_object().unwrap() {
            run[key] = value.clone();
        }
        let found = match left(serde_json::from_value(run).unwrap()) {
            Some(Left::Finished(_)) => "Finished".to_owned(),
            Some(Left::Live { name, phase, .. }) => format!("Live {name} {phase}"),
            None => String::new(),
        };
        assert_eq!(found, expected);
    }
}
