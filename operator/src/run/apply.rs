//! All writes of a reconcile. Each carries what makes it safe to repeat or to lose: a resourceVersion, a UID
//! precondition, or a deterministic name.

use super::{
    archiving,
    descendants::{deleting_since, tell},
    outcome,
    plan::{Step, World},
    status::{self, Stopped},
    validate::Refusal,
};
use crate::{
    api::{self, ReadError, WriteError},
    context::Context,
    pod::{self, Worker},
    provider::revision,
    subagent::workspace,
};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions},
    core::{Request, Status},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{fmt::Debug, time::Duration};
use subagent_crds::{Reason, SubagentRun, SubagentRunStatus, names, report::Transcript};

/// How soon a pod that found no room is tried again. Quota frees up when other pods end; nothing tells when.
const QUOTA_RETRY: Duration = Duration::from_secs(10);

/// A reconcile that did not get through.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A read failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A write failed.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The provider's revision cannot be used.
    #[error(transparent)]
    Revision(#[from] revision::Error),
    /// The API server takes no change of a run that is to be let go; with what to do.
    #[error("{0}")]
    NotLetGo(String),
}

/// What a write led to.
#[derive(Debug)]
pub enum Applied {
    /// The run changed; this is it now.
    Run(Box<SubagentRun>),
    /// Something else changed: read again.
    Changed,
    /// The runs below were told to stop, but for these failures: read again.
    Told(Vec<String>),
    /// The log was looked for.
    Log(Option<Transcript>),
    /// Nothing more to do for now.
    Done(Option<Duration>),
}

/// Carries out one step.
///
/// # Errors
/// [`Error`] when a call fails; the next reconcile starts from what is stored.
pub async fn apply(context: &Context, world: &World, step: Step, now: Timestamp) -> Result<Applied, Error> {
    let run = &world.run;
    let namespace = run.namespace().unwrap_or_default();
    let name = run.name_any();
    let runs: Api<SubagentRun> = Api::namespaced(context.client.clone(), &namespace);
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    match step {
        Step::Wait(after) => Ok(Applied::Done(after)),
        Step::Status(status) => Ok(Applied::Run(Box::new(write_status(&runs, run, &status).await?))),
        Step::AddFinalizer => {
            let mut finalizers = run.metadata.finalizers.clone().unwrap_or_default();
            finalizers.push(names::RUN_FINALIZER.into());
            Ok(Applied::Run(Box::new(write_finalizers(&runs, run, &finalizers).await?)))
        }
        Step::ReleaseRun => {
            release_run(&runs, run).await?;
            Ok(Applied::Done(None))
        }
        Step::DeleteRun => {
            let preconditions = Preconditions { uid: run.uid(), resource_version: None };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
            ignore_gone(api::write(format!("deleting run {name}"), runs.delete(&name, &params)).await)?;
            // Its deletion wakes the next reconcile.
            Ok(Applied::Done(None))
        }
        Step::StopDescendants => {
            let found = world.family.found.as_deref().unwrap_or_default();
            let deleting_since = deleting_since(run);
            let ancestor = tell::Ancestor { namespace: &namespace, name: &name, deleting_since };
            Ok(Applied::Told(tell::stop(context, ancestor, found).await))
        }
        Step::CreatePod => create_pod(context, world, &runs, now).await,
        Step::ArchiveLog => Ok(Applied::Log(match &world.pod {
            Some(pod) => archiving::archive_log(context, run, pod).await,
            None => None,
        })),
        Step::DeletePod => {
            if let Some(pod) = &world.pod {
                let preconditions = Preconditions { uid: pod.uid(), resource_version: None };
                // Never grace 0: the kubelet must prove the end (contract c50).
                let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                let pod = pod.name_any();
                ignore_gone(api::write(format!("deleting pod {pod}"), pods.delete(&pod, &params)).await)?;
            }
            Ok(Applied::Changed)
        }
        Step::ReleasePod => {
            if let Some(pod) = &world.pod {
                release_pod(&pods, pod).await?;
            }
            Ok(Applied::Changed)
        }
    }
}

/// Takes our finalizer off a pod whose end is known.
///
/// # Errors
/// [`WriteError`], unless the pod is gone already.
pub(crate) async fn release_pod(pods: &Api<Pod>, pod: &Pod) -> Result<(), WriteError> {
    let finalizers = without(pod.metadata.finalizers.clone(), names::POD_FINALIZER);
    ignore_gone(write_finalizers(pods, pod, &finalizers).await)
}

/// Takes our finalizer off a run that is proven stopped.
///
/// # Errors
/// [`WriteError`], unless the run is gone already.
pub(crate) async fn release_run<K>(runs: &Api<K>, run: &SubagentRun) -> Result<(), WriteError>
where
    K: Clone + DeserializeOwned + Debug,
{
    let finalizers = without(run.metadata.finalizers.clone(), names::RUN_FINALIZER);
    ignore_gone(write_finalizers(runs, run, &finalizers).await)
}

pub(crate) fn without(finalizers: Option<Vec<String>>, name: &str) -> Vec<String> {
    finalizers.unwrap_or_default().into_iter().filter(|finalizer| finalizer != name).collect()
}

pub(crate) fn ignore_gone<T>(result: Result<T, WriteError>) -> Result<(), WriteError> {
    match result {
        Ok(_) | Err(WriteError::Gone(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Writes the controllers' part of a status, guarded by the resourceVersion it was computed from.
///
/// # Errors
/// [`WriteError::Conflict`] when the run changed meanwhile.
pub async fn write_status(
    runs: &Api<SubagentRun>,
    run: &SubagentRun,
    status: &SubagentRunStatus,
) -> Result<SubagentRun, WriteError> {
    let body = status_body(run, status);
    let params = PatchParams::apply(names::CONTROLLER_MANAGER).force();
    let name = run.name_any();
    api::write(format!("status of run {name}"), runs.patch_status(&name, &params, &api::apply_body(&body))).await
}

/// The apply of the controllers' part of a status. Report and result are the gateway's, and the transcript, too, unless it
/// is of a log.
pub(super) fn status_body(run: &SubagentRun, status: &SubagentRunStatus) -> Value {
    let mut own = serde_json::to_value(status).unwrap_or_default();
    if let Some(own) = own.as_object_mut() {
        own.remove("report");
        own.remove("result");
        if !archiving::is_ours(status) {
            own.remove("transcript");
        }
    }
    json!({
        "apiVersion": format!("{}/{}", subagent_crds::GROUP, subagent_crds::VERSION),
        "kind": "SubagentRun",
        "metadata": {"name": run.name_any(), "uid": run.uid(), "resourceVersion": run.resource_version()},
        "status": own,
    })
}

/// Lets go of an object altogether: every finalizer of ours leaves. For uninstalling alone, and for what is at rest.
///
/// # Errors
/// [`WriteError`], unless the object is gone already.
pub(crate) async fn release_all<K>(api: &Api<K>, object: &K) -> Result<(), WriteError>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let kept = object.meta().finalizers.iter().flatten().filter(|name| !name.starts_with(names::PREFIX));
    let kept: Vec<String> = kept.cloned().collect();
    ignore_gone(write_finalizers(api, object, &kept).await)
}

pub(crate) async fn write_finalizers<K>(
    api: &Api<K>,
    object: &impl Resource,
    finalizers: &[String],
) -> Result<K, WriteError>
where
    K: Clone + DeserializeOwned + Debug,
{
    let meta = object.meta();
    let patch = json!({"metadata": {
        "uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": finalizers,
    }});
    let name = meta.name.clone().unwrap_or_default();
    let params = PatchParams { field_manager: Some(names::CONTROLLER_MANAGER.into()), ..PatchParams::default() };
    api::write(format!("finalizers of {name}"), api.patch(&name, &params, &Patch::Merge(&patch))).await
}

async fn create_pod(
    context: &Context,
    world: &World,
    runs: &Api<SubagentRun>,
    now: Timestamp,
) -> Result<Applied, Error> {
    let run = &world.run;
    let old = run.status.clone().unwrap_or_default();
    let namespace = run.namespace().unwrap_or_default();
    let revision_name =
        old.descriptor.as_ref().map(|descriptor| descriptor.provider_revision.clone()).unwrap_or_default();
    let provider = match revision::read(&context.client, &namespace, &revision_name).await {
        Ok(provider) => provider,
        Err(error) if error.is_final() => {
            let refusal = Refusal { reason: Reason::InvalidTemplate, message: error.to_string() };
            return fail_without_pod(runs, run, &old, &refusal, now).await;
        }
        Err(error) => return Err(error.into()),
    };
    let roots = context.roots.borrow().clone();
    let worker = Worker {
        namespace: &namespace,
        run: &run.name_any(),
        run_uid: &run.uid().unwrap_or_default(),
        attempt: old.attempt.unwrap_or(1),
        parameters: run.spec.parameters.as_ref(),
        prompt_file: run.spec.prompt.as_ref().and_then(|prompt| prompt.config_map_key_ref.as_ref()),
        workspace: world.child.found().and_then(workspace::stored).map(|stored| stored.claim_name.as_str()),
        worker_image: &context.settings.worker_image,
        gateway_url: &context.settings.gateway_url(),
        gateway_roots: &roots,
    };
    let body = pod::build(&provider, &worker);
    match create(context, &namespace, body).await {
        Ok(_) => Ok(Applied::Changed),
        Err(WriteError::Refused { status, .. }) if status.reason == "AlreadyExists" => Ok(Applied::Changed),
        Err(WriteError::Refused { status, .. }) => match refused(&status) {
            Refused::Terminating => {
                let stopping = status::stopping(run, &old, Reason::Cancelled, "the namespace is being deleted", now);
                Ok(Applied::Run(Box::new(write_status(runs, run, &stopping).await?)))
            }
            Refused::Quota => {
                let message = Reason::QuotaExceeded.with_remedy(&status.message);
                let new = status::queued(run, &old, Reason::QuotaExceeded, &message, now);
                if new != old {
                    write_status(runs, run, &new).await?;
                }
                Ok(Applied::Done(Some(QUOTA_RETRY)))
            }
            Refused::Final(reason) => {
                let refusal = Refusal { reason, message: reason.with_remedy(&status.message) };
                fail_without_pod(runs, run, &old, &refusal, now).await
            }
        },
        Err(error) => Err(error.into()),
    }
}

/// Creates a pod from JSON, so that fields newer than our types survive.
pub(crate) async fn create(context: &Context, namespace: &str, body: Value) -> Result<DynamicObject, WriteError> {
    create_with::<Pod>(context, namespace, body, &PostParams::default()).await
}

/// Creates an object of that kind from JSON, or asks whether the API server would.
///
/// # Errors
/// [`WriteError`]; what the API server says against it is `Refused`.
pub(crate) async fn create_with<K>(
    context: &Context,
    namespace: &str,
    body: Value,
    params: &PostParams,
) -> Result<DynamicObject, WriteError>
where
    K: Resource<DynamicType = ()>,
{
    let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let what = format!("creating {} {name}", K::kind(&()));
    let object: DynamicObject = match serde_json::from_value(body) {
        Ok(object) => object,
        Err(source) => return Err(WriteError::Call { what, source: Box::new(kube::Error::SerdeError(source)) }),
    };
    let params = PostParams { field_manager: Some(names::CONTROLLER_MANAGER.into()), ..params.clone() };
    let request = create_request(&K::url_path(&(), Some(namespace)), &params, &object);
    api::write(what, async { context.client.request(request?).await }).await
}

/// A dry run asks for strict validation, which the typed client cannot: a misspelt field of a template would be dropped
/// in silence otherwise. The real create takes what a newer or an older API server does not know.
fn create_request(
    url_path: &str,
    params: &PostParams,
    object: &DynamicObject,
) -> Result<http::Request<Vec<u8>>, kube::Error> {
    let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
    let mut request = Request::new(url_path).create(params, body).map_err(kube::Error::BuildRequest)?;
    if params.dry_run {
        let uri = format!("{}&fieldValidation=Strict", request.uri());
        *request.uri_mut() = uri.parse().map_err(|error: http::uri::InvalidUri| {
            kube::Error::BuildRequest(kube::core::request::Error::BuildRequest(error.into()))
        })?;
    }
    Ok(request)
}

/// Why the API server refused a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The namespace is going away.
    Terminating,
    /// There is no room in the quota now.
    Quota,
    /// Trying again does not help.
    Final(Reason),
}

/// Sorts a refused creation of a pod.
pub fn refused(status: &Status) -> Refused {
    if api::is_namespace_terminating(status) {
        return Refused::Terminating;
    }
    match status.code {
        403 if api::is_quota(status) => Refused::Quota,
        403 if status.message.contains("error looking up service account") => Refused::Final(Reason::MissingReference),
        403 => Refused::Final(Reason::PodRejected),
        _ => Refused::Final(Reason::InvalidTemplate),
    }
}

async fn fail_without_pod(
    runs: &Api<SubagentRun>,
    run: &SubagentRun,
    old: &SubagentRunStatus,
    refusal: &Refusal,
    now: Timestamp,
) -> Result<Applied, Error> {
    let done = status::ended(run, old, &outcome::failed_to_start(refusal), now);
    let done = status::stopped(run, done, Stopped::without_pod(old), now);
    Ok(Applied::Run(Box::new(write_status(runs, run, &done).await?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// N1: the API server's own words, each with what it means for the run.
    #[rstest]
    #[case(
        403,
        "pods \"p\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1",
        Refused::Quota
    )]
    #[case(403, "pods \"p\" is forbidden: status unknown for quota: q, resources: pods", Refused::Quota)]
    #[case(
        403,
        "pods \"p\" is forbidden: error looking up service account n/a: serviceaccount \"a\" not found",
        Refused::Final(Reason::MissingReference)
    )]
    #[case(
        403,
        "pods \"p\" is forbidden: violates PodSecurity \"restricted:latest\"",
        Refused::Final(Reason::PodRejected)
    )]
    #[case(
        422,
        "Pod \"p\" is invalid: spec.containers[0].image: Required value",
        Refused::Final(Reason::InvalidTemplate)
    )]
    fn n1_a_refused_pod_has_its_own_reason(#[case] code: u16, #[case] message: &str, #[case] expected: Refused) {
        let body = json!({"status": "Failure", "code": code, "reason": "x", "message": message});
        let status: Status = serde_json::from_value(body).expect("a status");
        assert_eq!(refused(&status), expected);
    }
}
