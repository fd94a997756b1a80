//! All writes of a reconcile. Each carries what makes it safe to repeat or to lose: a resourceVersion, a UID precondition, or
//! a deterministic name.

use super::{
    dereference::gone_run,
    events, memory, outputs,
    placing::Change,
    plan::{Step, World, gives_up_session, is_deleted_for_long},
    pruning::PastRun,
    session, status, workspace,
};
use crate::{
    api::{self, ReadError, WriteError},
    context::Context,
    run::{
        self,
        apply::{create_with, ignore_gone, without, write_finalizers},
        descendants::tell,
        events::Note,
        orphans,
        validate::Refusal,
    },
    session_store::StoreError,
};
use k8s_openapi::{
    api::core::v1::{ConfigMap, PersistentVolumeClaim},
    jiff::Timestamp,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::{Value, json};
use std::time::Duration;
use subagent_crds::{Reason, Subagent, SubagentRun, SubagentStatus, names, subagent_status::ChildWorkspace};

/// How soon a run that was refused is tried again. Quota frees up when others go, and policies change; nothing tells when.
const REFUSED_RETRY: Duration = Duration::from_secs(10);
/// How soon the pods of a run that was removed by force are looked at after they were told to stop.
const LEFT_RETRY: Duration = Duration::from_secs(1);
/// How soon a session that could not be removed is tried again.
const FORGET_RETRY: Duration = Duration::from_secs(10);

/// A reconcile that did not get through.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A read failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A write failed.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// What is left of a run that was removed by force was not stopped.
    #[error(transparent)]
    Left(#[from] run::apply::Error),
    /// Nobody says whose the session store is.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<memory::StoreError> for Error {
    fn from(error: memory::StoreError) -> Self {
        match error {
            memory::StoreError::Read(error) => Self::Read(error),
            memory::StoreError::Write(error) => Self::Write(error),
        }
    }
}

/// What a write led to.
#[derive(Debug)]
pub enum Applied {
    /// The child changed; this is it now.
    Child(Box<Subagent>),
    /// Something else changed: read again.
    Changed,
    /// Those below were told to stop, but for these failures: read again.
    Told(Vec<String>),
    /// The child changed; this is it now, and there is nothing more to do for now.
    Rests(Box<Subagent>, Duration),
    /// Nothing more to do for now.
    Done(Option<Duration>),
}

/// Carries out one step.
///
/// # Errors
/// [`Error`] when a call fails; the next reconcile starts from what is stored.
pub async fn apply(context: &Context, world: &World, step: Step, now: Timestamp) -> Result<Applied, Error> {
    let child = &world.child;
    let (namespace, name) = (child.namespace().unwrap_or_default(), child.name_any());
    let children: Api<Subagent> = Api::namespaced(context.client.clone(), &namespace);
    let runs: Api<SubagentRun> = Api::namespaced(context.client.clone(), &namespace);
    match step {
        Step::Wait(after) => Ok(Applied::Done(after)),
        Step::Status(status) => {
            let written = write_status(context, &children, child, &status).await?;
            context.trimming.note(child, &written);
            Ok(Applied::Child(Box::new(written)))
        }
        Step::Shed(config_maps, status) => {
            if let Some(run) = world.run.ours() {
                outputs::remove(&context.client, run, &config_maps).await?;
            }
            let written = write_status(context, &children, child, &status).await?;
            context.trimming.note(child, &written);
            Ok(Applied::Child(Box::new(written)))
        }
        Step::AddFinalizer => {
            let mut finalizers = child.metadata.finalizers.clone().unwrap_or_default();
            finalizers.push(names::SUBAGENT_FINALIZER.into());
            let written = write_finalizers(&children, child, &finalizers).await?;
            context.metrics.wrote("subagent", "finalizer");
            Ok(Applied::Child(Box::new(written)))
        }
        Step::CreateClaim(claim) => create_claim(context, world, &children, *claim, now).await,
        Step::CreateRun(run) => create_run(context, world, &children, &run, now).await,
        Step::ChangeRun(change) => {
            if let Some(run) = world.run.ours() {
                change_run(context, &runs, run, &change).await?;
            }
            Ok(Applied::Changed)
        }
        Step::StopLeft(uid) => {
            let activation = child.status.as_ref().and_then(|status| status.activation.as_ref());
            let run_name = activation.map(|activation| activation.run_name.as_str()).unwrap_or_default();
            orphans::stop_left(context, &namespace, gone_run(child, run_name, &uid)).await?;
            // It takes its time: the next reconcile looks.
            Ok(Applied::Done(Some(LEFT_RETRY)))
        }
        Step::ReleaseRun(past) => {
            release_run(&runs, &past).await?;
            Ok(Applied::Changed)
        }
        Step::DeleteRuns(surplus) => {
            for past in surplus {
                let preconditions = Preconditions { uid: Some(past.uid), resource_version: None };
                let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
                let what = format!("deleting run {}", past.name);
                gone_is_done(api::write(what, runs.delete(&past.name, &params)).await)?;
            }
            Ok(Applied::Changed)
        }
        Step::Remember(ids) => remember(context, world, &children, &ids, now).await,
        Step::Prune(ids) => Ok(Applied::Child(Box::new(prune(&children, child, &ids).await?))),
        Step::StopChildren => {
            let deleting_since = child.metadata.deletion_timestamp.as_ref().map(|time| time.0);
            let ancestor = tell::Ancestor { namespace: &namespace, name: &name, deleting_since };
            let found = world.children.as_deref().unwrap_or_default();
            Ok(Applied::Told(tell::stop(context, ancestor, found).await))
        }
        Step::Forget => forget(context, &children, child, now).await,
        Step::Release => {
            release(&children, child).await?;
            Ok(Applied::Done(None))
        }
    }
}

/// Writes a status, guarded by the resourceVersion it was computed from.
async fn write_status(
    context: &Context,
    children: &Api<Subagent>,
    child: &Subagent,
    status: &SubagentStatus,
) -> Result<Subagent, WriteError> {
    let name = child.name_any();
    let body = json!({
        "apiVersion": format!("{}/{}", subagent_crds::GROUP, subagent_crds::VERSION),
        "kind": "Subagent",
        "metadata": {"name": name, "uid": child.uid(), "resourceVersion": child.resource_version()},
        "status": status,
    });
    let params = PatchParams::apply(names::CONTROLLER_MANAGER).force();
    let body = api::apply_body(&body);
    let written = api::write(format!("status of child {name}"), children.patch_status(&name, &params, &body)).await?;
    context.metrics.wrote("subagent", "status");
    Ok(written)
}

fn our_patch() -> PatchParams {
    PatchParams { field_manager: Some(names::CONTROLLER_MANAGER.into()), ..PatchParams::default() }
}

/// Creates the claim of the workspace and stores which one it is. One that is there already is the child's own, of before a
/// crash, or is left alone (pitfall D2).
async fn create_claim(
    context: &Context,
    world: &World,
    children: &Api<Subagent>,
    claim: Value,
    now: Timestamp,
) -> Result<Applied, Error> {
    let child = &world.child;
    let (namespace, name) = (child.namespace().unwrap_or_default(), workspace::name(child));
    let params = PostParams::default();
    let created = match create_with::<PersistentVolumeClaim>(context, &namespace, claim, &params).await {
        Ok(created) => {
            context.metrics.wrote("subagent", "claim");
            ChildWorkspace { claim_name: created.name_any(), claim_uid: created.uid().unwrap_or_default() }
        }
        Err(WriteError::Refused { status, .. }) if status.reason == "AlreadyExists" => {
            let claims: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), &namespace);
            let Some(found) = api::get(&claims, &name).await? else { return Ok(Applied::Changed) };
            match workspace::own(child, &found) {
                Ok(own) => own,
                Err(message) => {
                    let refusal = Refusal { reason: Reason::RunRefused, message };
                    let new = status::workspace_refused(world, "NameTaken", &refusal, now);
                    return refused(context, world, children, new).await;
                }
            }
        }
        // The child's own deletion is about to come.
        Err(WriteError::Refused { status, .. }) if api::is_namespace_terminating(&status) => {
            return Ok(Applied::Done(None));
        }
        Err(error) => {
            let Some(refusal) = refusal(&error) else { return Err(error.into()) };
            let new = status::workspace_refused(world, refusal.reason.as_str(), &refusal, now);
            return refused(context, world, children, new).await;
        }
    };
    let new = status::workspace_created(child, created, now);
    Ok(Applied::Child(Box::new(write_status(context, children, child, &new).await?)))
}

/// Stores that the activation has no run yet, and tries again after a while; or that it never had one.
async fn refused(
    context: &Context,
    world: &World,
    children: &Api<Subagent>,
    new: SubagentStatus,
) -> Result<Applied, Error> {
    if world.child.status.as_ref() == Some(&new) {
        return Ok(Applied::Done(Some(REFUSED_RETRY)));
    }
    let written = Box::new(write_status(context, children, &world.child, &new).await?);
    let is_over = new.activation.is_none();
    Ok(if is_over { Applied::Child(written) } else { Applied::Rests(written, REFUSED_RETRY) })
}

/// Creates the run of the claimed activation. One that is there already is judged by the next read.
async fn create_run(
    context: &Context,
    world: &World,
    children: &Api<Subagent>,
    run: &SubagentRun,
    now: Timestamp,
) -> Result<Applied, Error> {
    let name = run.name_any();
    let runs: Api<SubagentRun> = Api::namespaced(context.client.clone(), &run.namespace().unwrap_or_default());
    let params = PostParams { field_manager: Some(names::CONTROLLER_MANAGER.into()), ..PostParams::default() };
    match api::write(format!("creating run {name}"), runs.create(&params, run)).await {
        Ok(_) => {
            context.metrics.wrote("subagent", "run");
            Ok(Applied::Changed)
        }
        Err(WriteError::Refused { status, .. }) if status.reason == "AlreadyExists" => Ok(Applied::Changed),
        // The child's own deletion is about to come.
        Err(WriteError::Refused { status, .. }) if api::is_namespace_terminating(&status) => Ok(Applied::Done(None)),
        Err(error) => match refusal(&error) {
            Some(refusal) => refused(context, world, children, status::run_refused(world, &refusal, now)).await,
            None => Err(error.into()),
        },
    }
}

/// Why a run or a claim was not created, if that is for a person to change.
fn refusal(error: &WriteError) -> Option<Refusal> {
    let status = match error {
        WriteError::Refused { status, .. } => status,
        // What a webhook that does not answer leads to.
        WriteError::Call { source, .. } => match &**source {
            kube::Error::Api(status) if status.code == 500 => status,
            _ => return None,
        },
        _ => return None,
    };
    let reason = if api::is_quota(status) { Reason::QuotaExceeded } else { Reason::RunRefused };
    Some(Refusal { reason, message: reason.with_remedy(&status.message) })
}

/// Brings the run to what the status asks, guarded by the resourceVersion that was looked at.
async fn change_run(
    context: &Context,
    runs: &Api<SubagentRun>,
    run: &SubagentRun,
    change: &Change,
) -> Result<(), WriteError> {
    let name = run.name_any();
    let patch = json!({
        "metadata": {"uid": run.uid(), "resourceVersion": run.resource_version()},
        "spec": {"messages": change.messages, "activation": {"inbox": change.inbox}, "cancel": change.cancel},
    });
    api::write(format!("inbox of run {name}"), runs.patch(&name, &our_patch(), &Patch::Merge(&patch))).await?;
    context.metrics.wrote("subagent", "run");
    Ok(())
}

/// Takes the second finalizer off a run, read live: other finalizers come and go.
async fn release_run(runs: &Api<SubagentRun>, past: &PastRun) -> Result<(), Error> {
    let Some(run) = api::get(runs, &past.name).await? else { return Ok(()) };
    if run.uid().as_ref() != Some(&past.uid) {
        return Ok(());
    }
    let finalizers = without(run.metadata.finalizers.clone(), names::FOLD_FINALIZER);
    Ok(ignore_gone(write_finalizers(runs, &run, &finalizers).await)?)
}

/// The new part of the memory is stored, then the status lists it, then those go that it holds.
async fn remember(
    context: &Context,
    world: &World,
    children: &Api<Subagent>,
    ids: &[String],
    now: Timestamp,
) -> Result<Applied, Error> {
    let (child, memory) = (&world.child, world.memory.clone().unwrap_or_default());
    let old = child.status.clone().unwrap_or_default();
    let batch = memory::Segment::of(old.messages.iter().filter(|message| ids.contains(&message.id)));
    let addition = memory.with(batch);
    let mut listed = addition.kept;
    match memory::store(&context.client, child, &addition.segment).await {
        Ok(stored) => listed.push(stored),
        Err(memory::StoreError::Write(WriteError::Refused { status: why, .. }))
            if !api::is_namespace_terminating(&why) =>
        {
            let new = status::not_remembered(child, api::is_quota(&why), &why.message, now);
            if new == old {
                return Ok(Applied::Done(Some(REFUSED_RETRY)));
            }
            let written = Box::new(write_status(context, children, child, &new).await?);
            return Ok(Applied::Rests(written, REFUSED_RETRY));
        }
        Err(error) => return Err(error.into()),
    }
    context.metrics.wrote("subagent", "configmap");
    let new = status::remembering(child, listed, addition.count, now);
    let written = write_status(context, children, child, &new).await?;
    let config_maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), &child.namespace().unwrap_or_default());
    for part in addition.merged {
        // One that stays is listed nowhere, and goes with the child.
        let what = format!("deleting ConfigMap {}", part.name);
        let preconditions = Preconditions { uid: part.uid, resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        gone_is_done(api::write(what, config_maps.delete(&part.name, &params)).await)?;
    }
    Ok(Applied::Child(Box::new(written)))
}

/// Removes entries, guarded by the resourceVersion that was looked at.
async fn prune(children: &Api<Subagent>, child: &Subagent, ids: &[String]) -> Result<Subagent, WriteError> {
    let name = child.name_any();
    let version = json!({
        "op": "replace", "path": "/metadata/resourceVersion", "value": child.resource_version().unwrap_or_default(),
    });
    let entries = child.spec.messages.iter().enumerate().rev();
    let removed = entries
        .filter(|(_, entry)| ids.contains(&entry.id))
        .map(|(at, _)| json!({"op": "remove", "path": format!("/spec/messages/{at}")}));
    let operations: Vec<Value> = [version].into_iter().chain(removed).collect();
    let patch = match serde_json::from_value(Value::Array(operations)) {
        Ok(patch) => Patch::<()>::Json(patch),
        Err(source) => {
            let what = format!("inbox of child {name}");
            return Err(WriteError::Call { what, source: Box::new(kube::Error::SerdeError(source)) });
        }
    };
    api::write(format!("inbox of child {name}"), children.patch(&name, &our_patch(), &patch)).await
}

/// Removes the session from the store, and lets the child go; also without that when it takes too long, or when somebody says
/// so (contract c47).
async fn forget(
    context: &Context,
    children: &Api<Subagent>,
    child: &Subagent,
    now: Timestamp,
) -> Result<Applied, Error> {
    let Err(why) = session::forget(context, &child.uid().unwrap_or_default()).await else {
        release(children, child).await?;
        return Ok(Applied::Done(None));
    };
    if !gives_up_session(child, now) {
        let text = format!(
            "its session is not removed from the store; that is tried again for five minutes (annotate the child with \
             {}=true to let it go): {why}",
            names::FORGET_ANNOTATION
        );
        let note = Note { warning: true, reason: "SessionNotRemoved", text: text.clone(), for_parent: false };
        events::tell(context, child, note).await;
        let old = child.status.clone().unwrap_or_default();
        let new = status::session_not_removed(&old, &text, now);
        let written = if new == old { Ok(()) } else { write_status(context, children, child, &new).await.map(drop) };
        match written {
            // Since when cannot be stored.
            Err(WriteError::Refused { .. }) if is_deleted_for_long(child, now) => {}
            Ok(()) | Err(WriteError::Refused { .. }) => return Ok(Applied::Done(Some(FORGET_RETRY))),
            Err(error) => return Err(error.into()),
        }
    }
    let text = format!("the child goes although its session is not removed from the store: {why}");
    events::tell(context, child, Note { warning: true, reason: "SessionLeft", text, for_parent: false }).await;
    release(children, child).await?;
    Ok(Applied::Done(None))
}

async fn release(children: &Api<Subagent>, child: &Subagent) -> Result<(), WriteError> {
    let finalizers = without(child.metadata.finalizers.clone(), names::SUBAGENT_FINALIZER);
    ignore_gone(write_finalizers(children, child, &finalizers).await)
}

/// What is gone or was replaced is not ours any more.
fn gone_is_done<T>(answer: Result<T, WriteError>) -> Result<(), WriteError> {
    match answer {
        Ok(_) | Err(WriteError::Gone(_) | WriteError::Conflict(_)) => Ok(()),
        Err(error) => Err(error),
    }
}
