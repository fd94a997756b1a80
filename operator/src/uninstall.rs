//! What the chart runs before it is uninstalled: the operator is ended, and what is over is let go: finished runs, and
//! children at rest. Nobody is left afterwards who could take a finalizer off; a run that is terminal and Stopped has nothing
//! left to prove, and would only hold up its namespace. Live ones keep theirs: they go on, and an operator that is
//! installed again takes them up (pitfall S6).

use crate::{
    api::{self, WriteError},
    decoding::{Guarded, Undecodable},
    pod::observe::{Node, observe},
    run::apply::{release_all, release_pod},
    settings::Settings,
    watching::{Scope, Watched},
};
use anyhow::{Context as _, bail};
use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::Pod},
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;
use std::{collections::HashSet, time::Duration};
use subagent_crds::{Phase, Subagent, SubagentPhase, SubagentRun, conditions, names};

/// How long the operator's pods may take to go: their grace of 30 s, and the kubelet's own time.
const OPERATOR_ENDS: Duration = Duration::from_secs(90);
/// How often that is looked at.
const POLL: Duration = Duration::from_secs(1);
/// Objects per page: each may carry half a megabyte of prompt or messages, and none of it is kept.
const PAGE: u32 = 50;

/// Ends the operator and lets go of what is over.
///
/// # Errors
/// When the operator does not end, or the API server does not answer. Nothing is lost: it can be run again.
pub async fn run(client: Client, settings: &Settings, deployment: &str) -> anyhow::Result<()> {
    end_operator(&client, &settings.pod_namespace, deployment).await.context("ending the operator")?;
    let mut said = Said::default();
    for scope in Scope::of(&settings.namespaces()) {
        // What became of the messages of a live child's run is noted by the next operator.
        let mut needed = HashSet::new();
        let children: Api<Guarded<Subagent>> = guarded(&scope, &client);
        let found = api::list(&children, paged(), "children", |one| Some((run_of(&one), left_child(one)))).await?;
        for (run, left) in found {
            match left {
                Some(Left::Over(child)) => said.note(&*child, release_child(&client, &child).await),
                Some(Left::Live { namespace, name, phase }) => {
                    needed.extend(run);
                    said.live("child", &namespace, &name, &phase);
                }
                None => {}
            }
        }
        let runs: Api<Guarded<SubagentRun>> = guarded(&scope, &client);
        for left in api::list(&runs, paged(), "runs", left_run).await? {
            match left {
                Left::Over(run) if run.uid().is_some_and(|uid| needed.contains(&uid)) => {}
                Left::Over(run) => said.note(&*run, release_run(&client, &run).await),
                Left::Live { namespace, name, phase } => said.live("run", &namespace, &name, &phase),
            }
        }
    }
    if said.live > 0 {
        tracing::warn!("{}", remedy());
    }
    let (released, live) = (said.released, said.live);
    tracing::info!(released, live, "finished runs and children at rest were let go; live ones keep their finalizers");
    Ok(())
}

fn paged() -> ListParams {
    ListParams::default().limit(PAGE)
}

fn guarded<K: Watched>(scope: &Scope, client: &Client) -> Api<Guarded<K>> {
    match scope {
        Scope::Cluster => Api::all(client.clone()),
        Scope::Namespace(namespace) => Api::namespaced(client.clone(), namespace),
    }
}

/// What is told in the end.
#[derive(Default)]
struct Said {
    released: usize,
    live: usize,
}

impl Said {
    fn note<K: Watched>(&mut self, object: &K, outcome: anyhow::Result<()>) {
        let Err(error) = outcome else {
            self.released += 1;
            return;
        };
        let (kind, namespace, name) = (K::kind(&()), object.namespace().unwrap_or_default(), object.name_any());
        tracing::warn!(%kind, namespace, name, error = format!("{error:#}"), "what is over was not let go");
    }

    fn live(&mut self, kind: &str, namespace: &str, name: &str, phase: &str) {
        self.live += 1;
        tracing::warn!("{kind} {name} in namespace {namespace} is {phase}");
    }
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

/// An object that has a finalizer of ours.
#[derive(Debug)]
enum Left<K> {
    /// Nothing of it runs; without prompt, messages and result.
    Over(Box<K>),
    /// Anything else, also what does not decode.
    Live { namespace: String, name: String, phase: String },
}

fn is_held(object: &impl Resource) -> bool {
    object.meta().finalizers.iter().flatten().any(|name| name.starts_with(names::PREFIX))
}

fn live<K>(metadata: &kube::api::ObjectMeta, phase: &str) -> Left<K> {
    Left::Live {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        phase: phase.to_owned(),
    }
}

fn unreadable<K>(undecodable: &Undecodable) -> Left<K> {
    live(&undecodable.metadata, "undecodable")
}

fn left_run(guard: Guarded<SubagentRun>) -> Option<Left<SubagentRun>> {
    if !is_held(&guard) {
        return None;
    }
    let mut run = match guard.0 {
        Ok(run) => run,
        Err(undecodable) => return Some(unreadable(&undecodable)),
    };
    let status = run.status.take().unwrap_or_default();
    let is_over = status.phase.is_some_and(Phase::is_terminal);
    if is_over && conditions::is_true(&status.conditions, conditions::STOPPED) {
        run.spec = Default::default();
        return Some(Left::Over(Box::new(run)));
    }
    Some(live(&run.metadata, status.phase.map_or("Pending", Phase::as_str)))
}

fn left_child(guard: Guarded<Subagent>) -> Option<Left<Subagent>> {
    if !is_held(&guard) {
        return None;
    }
    let mut child = match guard.0 {
        Ok(child) => child,
        Err(undecodable) => return Some(unreadable(&undecodable)),
    };
    let status = child.status.take().unwrap_or_default();
    if status.is_at_rest() {
        child.spec = Default::default();
        return Some(Left::Over(Box::new(child)));
    }
    Some(live(&child.metadata, status.phase.map_or("Pending", SubagentPhase::as_str)))
}

/// The run of a child's activation.
fn run_of(guard: &Guarded<Subagent>) -> Option<String> {
    guard.0.as_ref().ok()?.status.as_ref()?.activation.as_ref()?.run_uid.clone()
}

async fn release_child(client: &Client, child: &Subagent) -> anyhow::Result<()> {
    let children: Api<Subagent> = Api::namespaced(client.clone(), &child.namespace().unwrap_or_default());
    Ok(release_all(&children, child).await?)
}

/// Takes the finalizers off a finished run and the pods of it that have ended.
async fn release_run(client: &Client, run: &SubagentRun) -> anyhow::Result<()> {
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
    Ok(release_all(&runs, run).await?)
}

/// What a person can do about what keeps its finalizers, once for all of it. Without a double quote: Helm prints the log as
/// one quoted line.
fn remedy() -> String {
    format!(
        "what is live goes on, and an operator that is installed again takes it up. To let go of a run (or of a child, in the same way) without it, which leaves its agent to itself: kubectl patch subagentrun NAME --namespace NAMESPACE --type=merge -p 'metadata: {{finalizers: null}}', and the same for its pods: kubectl get pods --namespace NAMESPACE -l {}=NAME",
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
        assert_eq!(word(left_run(serde_json::from_value(run).unwrap())), expected);
    }

    fn word<K>(left: Option<Left<K>>) -> String {
        match left {
            Some(Left::Over(_)) => "Finished".to_owned(),
            Some(Left::Live { name, phase, .. }) => format!("Live {name} {phase}"),
            None => String::new(),
        }
    }

    #[rstest]
    #[case::settled(json!({"status": {"phase": "Settled"}}), "Finished")]
    #[case::parked(json!({"status": {"phase": "Parked"}}), "Finished")]
    #[case::active(json!({"status": {"phase": "Active", "activation": {"epoch": 1, "runName": "r"}}}), "Live c Active")]
    #[case::claimed(json!({"status": {"phase": "Settled", "activation": {"epoch": 1, "runName": "r"}}}), "Live c Settled")]
    #[case::waiting(json!({"status": {"phase": "Waiting"}}), "Live c Waiting")]
    #[case::going(json!({"status": {"phase": "Terminating"}}), "Live c Terminating")]
    #[case::not_seen_yet(json!({}), "Live c Pending")]
    #[case::undecodable(json!({"spec": {"description": 5}}), "Live c undecodable")]
    #[case::not_ours(json!({"metadata": {"name": "c", "finalizers": ["another"]}}), "")]
    fn s6_only_a_child_at_rest_is_let_go(#[case] changes: Value, #[case] expected: &str) {
        let mut child = json!({
            "metadata": {"name": "c", "namespace": "n", "finalizers": ["subagents.dev/x", "another"]},
            "spec": {"providerRef": {"name": "p"}, "description": "d"},
        });
        for (key, value) in changes.as_object().unwrap() {
            child[key] = value.clone();
        }
        assert_eq!(word(left_child(serde_json::from_value(child).unwrap())), expected);
    }
}
