//! Pods that no reconcile looks after, because their run is gone (somebody took its finalizer off by force) or does not
//! decode (pitfall C1). They are stopped, and released once that is proven; otherwise they would hold their namespace for
//! ever.

use super::{
    apply::{Error, release_pod, release_run},
    dereference,
    descendants::{Descendant, deleting_since, find, tell},
    plan::{owned_by, released, wants_stop},
};
use crate::{
    api::{self, ReadError, WriteError},
    context::Context,
    decoding::Guarded,
    naming,
    pod::observe::{Node, observe},
    watching,
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

/// How often such pods are looked at until the last one is released: a failed call, a node that went away and labels that
/// were removed tell nobody.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Pods per page.
const PAGE: u32 = 500;

/// A namespace, and the name of a run that is not there or does not decode.
pub type Lost = (String, String);

/// A run that is gone.
#[derive(Clone, Copy, Debug)]
pub struct GoneRun<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its UID.
    pub uid: &'a str,
    /// UID of the pod that a person says is dead, by the release annotation on the child.
    pub released: Option<&'a str>,
}

impl GoneRun<'_> {
    /// Whether a pod is one of its pods: by an owner, which `--cascade=orphan` takes away, or by its label together with a name
    /// that only such a pod is given. By the label alone anybody who may change pods could have any of them deleted (pitfall D1).
    fn has(&self, pod: &Pod) -> bool {
        let is_labelled = pod.labels().get(names::RUN_UID_LABEL).is_some_and(|uid| uid == self.uid);
        let is_owner = pod.metadata.owner_references.iter().flatten().any(|owner| owner.uid == self.uid);
        is_owner || is_labelled && naming::is_pod_of(&pod.name_any(), self.name, self.uid)
    }

    fn is_released(&self, pod: &Pod) -> bool {
        self.released.is_some() && self.released == pod.metadata.uid.as_deref()
    }
}

/// A pod of a run that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftPod {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// True when nothing of it can be running any more.
    pub is_stopped: bool,
    /// True when it is being deleted.
    pub is_deleting: bool,
    /// True while our finalizer holds it.
    pub is_held: bool,
}

impl LeftPod {
    /// Nothing of it runs, and nobody has to look after it any more.
    pub fn is_over(&self) -> bool {
        self.is_stopped && !self.is_held
    }

    /// Whether it is to be told to stop, or to be let go.
    pub fn is_to_stop(&self) -> bool {
        if self.is_stopped { self.is_held } else { !self.is_deleting }
    }
}

/// Stops and releases what is left of the runs that are found, until the token is cancelled. What it knows is only in
/// memory: every pod and every run is seen anew by the next process.
pub async fn clean_up(context: &Context, mut found: UnboundedReceiver<Lost>, shutdown: &CancellationToken) {
    let mut left: BTreeSet<Lost> = BTreeSet::new();
    let mut again = tokio::time::interval(LOOK_AGAIN);
    again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let look = tokio::select! {
            () = shutdown.cancelled() => return,
            next = found.next() => match next {
                Some(lost) => BTreeSet::from([lost]),
                None => return,
            },
            _ = again.tick(), if !left.is_empty() => left.clone(),
        };
        for lost in look {
            let (namespace, run) = &lost;
            match clean(context, namespace, run).await {
                Ok(true) => {
                    left.remove(&lost);
                }
                Ok(false) => {
                    left.insert(lost);
                }
                Err(error) => {
                    tracing::warn!(namespace, run, %error, "cleaning up after a run that is gone or does not decode failed; trying again");
                    left.insert(lost);
                }
            }
        }
    }
}

/// One look; true when nothing is left to do.
async fn clean(context: &Context, namespace: &str, name: &str) -> Result<bool, Error> {
    let runs: Api<Guarded<SubagentRun>> = Api::namespaced(context.client.clone(), namespace);
    match api::get(&runs, name).await? {
        None => gone(context, namespace, name).await,
        // The cache was older than the run; its own reconcile looks after the pods.
        Some(Guarded(Ok(_))) => Ok(true),
        Some(Guarded(Err(undecodable))) => unreadable(context, &runs, &undecodable.run()).await,
    }
}

async fn gone(context: &Context, namespace: &str, run: &str) -> Result<bool, Error> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let labelled = ListParams::default().labels(&format!("{}={run}", names::RUN_LABEL));
    let held = api::list(&pods, labelled, "worker pods", |pod| is_held(&pod).then_some(pod)).await?;
    let mut is_done = true;
    for pod in &held {
        if is_stopped(context, &pods, pod, false).await? {
            release_pod(&pods, pod).await?;
        } else {
            is_done = false;
        }
    }
    Ok(is_done)
}

/// What is left of the pods of a run that is gone, live. They are found by its UID: another run may have its name by now.
///
/// # Errors
/// When a read fails.
pub async fn left_by(context: &Context, namespace: &str, run: GoneRun<'_>) -> Result<Vec<LeftPod>, ReadError> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let mut left = vec![];
    for pod in pods_left(&pods, run).await? {
        let node = dereference::node(&context.client, Some(&pod)).await?;
        left.push(LeftPod {
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            is_stopped: observe(&pod, node, run.is_released(&pod)).proof.is_some(),
            is_deleting: is_deleting(&pod),
            is_held: is_held(&pod),
        });
    }
    Ok(left)
}

/// Stops what is left of the pods of a run that is gone, and lets go of those that are proven stopped.
///
/// # Errors
/// [`Error`] when a call fails.
pub async fn stop_left(context: &Context, namespace: &str, run: GoneRun<'_>) -> Result<(), Error> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    for pod in pods_left(&pods, run).await? {
        if is_stopped(context, &pods, &pod, run.is_released(&pod)).await? && is_held(&pod) {
            release_pod(&pods, &pod).await?;
        }
    }
    Ok(())
}

async fn pods_left(pods: &Api<Pod>, run: GoneRun<'_>) -> Result<Vec<Pod>, ReadError> {
    api::list(pods, ListParams::default().limit(PAGE), "pods", |pod| run.has(&pod).then_some(pod)).await
}

/// A run that does not decode is left alone unless it is cancelled or being deleted: another version of the operator may
/// know how it goes on. Its end cannot be stored, so its pods stay until it is deleted, or they themselves are.
async fn unreadable(context: &Context, runs: &Api<Guarded<SubagentRun>>, run: &SubagentRun) -> Result<bool, Error> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &run.namespace().unwrap_or_default());
    if !wants_stop(run) {
        let mut deleted = pods_of(&pods, run).await?;
        deleted.retain(is_deleting);
        return are_stopped(context, &pods, run, &deleted).await;
    }
    // Nobody is admitted below it: its children wait for a parent that decodes.
    let found = find::below_run(context, run).await?;
    let (namespace, name) = (run.namespace().unwrap_or_default(), run.name_any());
    let deleting_since = deleting_since(run);
    tell::stop(context, tell::Ancestor { namespace: &namespace, name: &name, deleting_since }, &found).await;
    let own = pods_of(&pods, run).await?;
    let is_over = are_stopped(context, &pods, run, &own).await? && !found.iter().any(Descendant::is_live);
    if is_over && run.metadata.deletion_timestamp.is_some() {
        for pod in own.iter().filter(|pod| is_held(pod) && !is_deleting(pod)) {
            release_pod(&pods, pod).await?;
        }
        release_run(runs, run).await.map_err(|error| refused(context, run, error))?;
    }
    Ok(is_over)
}

/// Whether every pod of a run that does not decode is stopped or about to be: there is nothing to tell it. None can follow
/// while an ancestor is to stop, which is looked at right before a pod.
///
/// # Errors
/// When a read fails.
pub async fn is_stopping(context: &Context, runs: &Api<Guarded<SubagentRun>>, name: &str) -> Result<bool, ReadError> {
    let Some(Guarded(Err(undecodable))) = api::get(runs, name).await? else { return Ok(false) };
    let run = undecodable.run();
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &run.namespace().unwrap_or_default());
    let own = pods_of(&pods, &run).await?;
    Ok(own.iter().all(|pod| is_deleting(pod) || observe(pod, Node::Present, released(&run, pod)).proof.is_some()))
}

/// Stops the pods of a run that does not decode and cannot be told to stop.
///
/// # Errors
/// [`Error`] when a call fails.
pub async fn stop(context: &Context, runs: &Api<Guarded<SubagentRun>>, name: &str) -> Result<(), Error> {
    let Some(Guarded(Err(undecodable))) = api::get(runs, name).await? else { return Ok(()) };
    let run = undecodable.run();
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &run.namespace().unwrap_or_default());
    let own = pods_of(&pods, &run).await?;
    are_stopped(context, &pods, &run, &own).await?;
    Ok(())
}

/// The API server changes nothing of an object on which a rule of its definition cannot be evaluated; not even its
/// finalizers. What to do stands in an Event and in the error: a namespace that is going away takes no Event.
fn refused(context: &Context, run: &SubagentRun, error: WriteError) -> Error {
    let WriteError::Refused { status, .. } = &error else { return error.into() };
    let note = format!(
        "this run is stopped and cannot be let go: the API server refuses every change of it; for the time being, give the CustomResourceDefinition a schema that it fits: {}",
        status.message
    );
    watching::warn::<SubagentRun>(&context.recorder, &run.metadata, "ReleaseRefused", &note);
    Error::NotLetGo(note)
}

/// Whether nothing of these live pods runs; what runs is told to stop. One that is proven stopped and being deleted is let
/// go: a drain, and the end of its namespace, wait for it before they come to the run. Whoever can read the run later finds
/// the pod gone, and the proof was seen.
async fn are_stopped(context: &Context, pods: &Api<Pod>, run: &SubagentRun, own: &[Pod]) -> Result<bool, Error> {
    let mut all = true;
    for pod in own {
        let stopped = is_stopped(context, pods, pod, released(run, pod)).await?;
        if stopped && is_deleting(pod) && is_held(pod) {
            release_pod(pods, pod).await?;
        }
        all &= stopped;
    }
    Ok(all)
}

/// The pods of a run, by UID; whatever labels they have.
async fn pods_of(pods: &Api<Pod>, run: &SubagentRun) -> Result<Vec<Pod>, ReadError> {
    api::list(pods, ListParams::default().limit(PAGE), "pods", |pod| owned_by(&pod, run).then_some(pod)).await
}

/// True when a live pod is proven stopped. Else it is told to, never with grace 0: the kubelet must prove the end (contract
/// c50).
async fn is_stopped(context: &Context, pods: &Api<Pod>, pod: &Pod, released: bool) -> Result<bool, Error> {
    let node = dereference::node(&context.client, Some(pod)).await?;
    if observe(pod, node, released).proof.is_some() {
        return Ok(true);
    }
    if !is_deleting(pod) {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        tracing::warn!(namespace, pod = name, "no reconcile looks after this pod: stopping it");
        let preconditions = Preconditions { uid: pod.uid(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match api::write(format!("deleting pod {name}"), pods.delete(&name, &params)).await {
            Ok(_) | Err(WriteError::Gone(_) | WriteError::Conflict(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}

fn is_deleting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

fn is_held(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|name| name == names::POD_FINALIZER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    /// D1: a label is anybody's who may change pods; a name is given once, when a pod is created.
    #[rstest]
    #[case::own("r-HASH-2", json!({"labels": {names::RUN_UID_LABEL: "u"}}), true)]
    #[case::a_name_of_its_own("web-0", json!({"labels": {names::RUN_UID_LABEL: "u"}}), false)]
    #[case::of_another_run("x-HASH-2", json!({"labels": {names::RUN_UID_LABEL: "u"}}), false)]
    #[case::no_number("r-HASH-+2", json!({"labels": {names::RUN_UID_LABEL: "u"}}), false)]
    #[case::another_uid("r-HASH-2", json!({"labels": {names::RUN_UID_LABEL: "v"}}), false)]
    #[case::owned("other", json!({"ownerReferences": [{"apiVersion": "v", "kind": "k", "name": "r", "uid": "u"}]}), true)]
    fn d1_a_pod_is_left_by_a_run_when_more_than_a_label_says_so(
        #[case] name: &str,
        #[case] metadata: Value,
        #[case] expected: bool,
    ) {
        let mut pod: Pod = serde_json::from_value(json!({"metadata": metadata})).unwrap();
        pod.metadata.name = Some(name.replace("HASH", &naming::short_hash("u")));
        let run = GoneRun { name: "r", uid: "u", released: None };
        assert_eq!(run.has(&pod), expected);
    }

    /// c50: only the pod that is named is released.
    #[rstest]
    #[case::that_one(Some("p"), true)]
    #[case::another(Some("q"), false)]
    #[case::none(None, false)]
    fn c50_a_left_pod_is_released_by_its_uid(#[case] released: Option<&str>, #[case] expected: bool) {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "n", "uid": "p"}})).unwrap();
        assert_eq!(GoneRun { name: "r", uid: "u", released }.is_released(&pod), expected);
    }
}
