//! The provider controller: validate (pure), dry-run create of a pod, store the revision, look at the probe of the
//! agent, one status write, and then away with the pods that are done.

use super::{
    probing, revision, status,
    validate::{self, Problem},
};
use crate::{
    api::{self, ReadError, WriteError},
    context::Context,
    pod::{self, Worker},
    run::apply::{Refused, create_with, refused},
    watching::{self, Scope},
};
use futures::StreamExt;
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{
    Api, Resource, ResourceExt,
    api::{PatchParams, PostParams},
    runtime::{
        Controller,
        controller::{Action, Config},
        events::{Event, EventType},
        reflector::ObjectRef,
        watcher,
    },
};
use serde_json::json;
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};
use subagent_crds::{Reason, SubagentProvider, SubagentProviderStatus, conditions, names};
use tokio_util::sync::CancellationToken;

/// Providers are few; two at a time keep one slow admission from holding the others up.
const CONCURRENCY: u16 = 2;
/// Wait after a failed call.
const FAILURE_RETRY: Duration = Duration::from_secs(2);
/// What the dry-run depends on beside the spec (policies, service accounts) changes without an event.
const RECHECK: Duration = Duration::from_secs(60);
/// The same in the first minute after a refusal: a service account or a policy of the same manifest directory is often
/// just about to come.
const RECHECK_AT_FIRST: Duration = Duration::from_secs(5);

/// A reconcile that did not get through.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A read failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A write failed.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The revision could not be stored.
    #[error(transparent)]
    Revision(#[from] revision::Error),
}

/// What a reconcile has beside the provider's name.
struct Reconciler {
    context: Context,
    recent: probing::Recent,
}

/// Runs the controller until the token is cancelled.
pub async fn run(context: Context, scope: Scope, shutdown: CancellationToken) {
    let (reader, providers) =
        watching::cached::<SubagentProvider>(&context, &scope, watcher::Config::default(), slim, facts, |_| {});
    let pods =
        watching::changes::<Pod>(&context, &scope, watcher::Config::default().labels(names::PROBE_LABEL), pod_facts);
    let reconciler = Reconciler { context, recent: probing::Recent::default() };
    let (cache, stop) = (reader.clone(), shutdown.clone());
    let controller = Controller::for_stream(providers, reader)
        .with_config(Config::default().concurrency(CONCURRENCY))
        .watches_stream(pods, |pod: Pod| {
            let name = pod.labels().get(names::PROVIDER_LABEL).cloned();
            name.map(|name| ObjectRef::new(&name).within(&pod.namespace().unwrap_or_default()))
        })
        .graceful_shutdown_on(async move { stop.cancelled().await })
        .run(reconcile, on_error, Arc::new(reconciler))
        .for_each(|_| futures::future::ready(()));
    watching::until_stopped(controller, cache, &shutdown).await;
}

fn slim(provider: &mut SubagentProvider) {
    provider.metadata.managed_fields = None;
}

fn facts(provider: &SubagentProvider) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    provider.metadata.uid.hash(&mut hasher);
    provider.metadata.generation.hash(&mut hasher);
    Some(hasher.finish())
}

/// A probe's pod that runs, has trouble, is over, or is gone; that it is made and bound tells nothing new.
fn pod_facts(pod: &Pod) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    pod.metadata.uid.hash(&mut hasher);
    pod.metadata.resource_version.is_none().hash(&mut hasher);
    format!("{:?}", pod::observe::observe(pod, pod::observe::Node::Present, false)).hash(&mut hasher);
    Some(hasher.finish())
}

async fn reconcile(provider: Arc<SubagentProvider>, reconciler: Arc<Reconciler>) -> Result<Action, Error> {
    let started = std::time::Instant::now();
    let context = &reconciler.context;
    let (namespace, name) = (provider.namespace().unwrap_or_default(), provider.name_any());
    let providers: Api<SubagentProvider> = Api::namespaced(context.client.clone(), &namespace);
    let Some(provider) = api::get(&providers, &name).await? else { return Ok(Action::await_change()) };
    if provider.metadata.deletion_timestamp.is_some() {
        // Its probe goes with it, by garbage collection.
        return Ok(Action::await_change());
    }
    let now = Timestamp::now();
    let pods = probing::pods(context, &provider).await?;
    let (new, stays, again) = match judge(&reconciler, &provider, &pods, now).await? {
        Ok((revision, look)) => {
            let again = look.again.map(|at| until(at, now));
            (status::accepted(&provider, &revision, &look, now), look.pod, again)
        }
        Err(problem) => {
            let new = status::not_ready(&provider, &problem, now);
            let again = recheck_after(&new, now);
            (new, None, Some(again))
        }
    };
    if provider.status.as_ref() != Some(&new) {
        write_status(&providers, &provider, &new).await?;
        context.metrics.wrote("provider", "status");
        publish(context, &provider, &new).await;
    }
    // Only now: what a pod told is stored.
    probing::remove(context, &provider, &pods, stays.as_deref()).await?;
    context.metrics.reconciled("provider", "ok", started.elapsed().as_secs_f64());
    Ok(again.map_or_else(Action::await_change, Action::requeue))
}

/// What is known of a provider now: its revision and its probe, or why no run of it can start.
async fn judge(
    reconciler: &Reconciler,
    provider: &SubagentProvider,
    pods: &[Pod],
    now: Timestamp,
) -> Result<Result<(String, probing::Look), Problem>, Error> {
    let context = &reconciler.context;
    let revision = match check(context, provider).await? {
        Ok(revision) => revision,
        Err(problem) => return Ok(Err(problem)),
    };
    let look = probing::look(context, &reconciler.recent, provider, &revision, pods, now).await?;
    Ok(look.map(|look| (revision, look)))
}

/// From now to then, and not at once again.
fn until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or_default().max(Duration::from_secs(1))
}

/// When a provider that is not ready is looked at again. Pure.
fn recheck_after(status: &SubagentProviderStatus, now: Timestamp) -> Duration {
    let since =
        conditions::get(&status.conditions, conditions::READY).map_or(now, |ready| ready.last_transition_time.0);
    let is_new = now.as_second() - since.as_second() < RECHECK.as_secs() as i64;
    if is_new { RECHECK_AT_FIRST } else { RECHECK }
}

async fn check(context: &Context, provider: &SubagentProvider) -> Result<Result<String, Problem>, Error> {
    if let Err(problem) = validate::validate(&provider.spec) {
        return Ok(Err(problem));
    }
    if let Some(problem) = dry_run(context, provider).await? {
        return Ok(Err(problem));
    }
    match revision::ensure(&context.client, &revision::of(provider)).await {
        Ok(name) => Ok(Ok(name)),
        Err(error @ revision::Error::Foreign(_)) => {
            Ok(Err(Problem { reason: Reason::InvalidTemplate, message: error.to_string() }))
        }
        Err(error) => Err(error.into()),
    }
}

/// Asks the API server, with all its admission, whether it would take a pod of this template.
async fn dry_run(context: &Context, provider: &SubagentProvider) -> Result<Option<Problem>, Error> {
    let namespace = provider.namespace().unwrap_or_default();
    let (name, uid) = (provider.name_any(), provider.uid().unwrap_or_default());
    let roots = context.roots.borrow().clone();
    let body = pod::build(
        &provider.spec,
        &Worker {
            namespace: &namespace,
            run: &name,
            run_uid: &uid,
            attempt: 1,
            parameters: None,
            prompt_file: None,
            workspace: None,
            worker_image: &context.settings.worker_image,
            gateway_url: &context.settings.gateway_url(),
            gateway_roots: &roots,
        },
    );
    let params = PostParams { dry_run: true, ..PostParams::default() };
    match create_with::<Pod>(context, &namespace, body, &params).await {
        Ok(_) => Ok(None),
        Err(WriteError::Refused { status, .. }) => Ok(match refused(&status) {
            // Room in a quota is a matter of runs, and a namespace that goes away takes its providers along.
            Refused::Quota | Refused::Terminating => None,
            Refused::Final(reason) => Some(Problem::refused(reason, &status.message)),
        }),
        Err(error) => Err(error.into()),
    }
}

async fn write_status(
    providers: &Api<SubagentProvider>,
    provider: &SubagentProvider,
    status: &SubagentProviderStatus,
) -> Result<SubagentProvider, WriteError> {
    let name = provider.name_any();
    let body = json!({
        "apiVersion": format!("{}/{}", subagent_crds::GROUP, subagent_crds::VERSION),
        "kind": "SubagentProvider",
        "metadata": {"name": name, "uid": provider.uid(), "resourceVersion": provider.resource_version()},
        "status": status,
    });
    let params = PatchParams::apply(names::CONTROLLER_MANAGER).force();
    api::write(format!("status of provider {name}"), providers.patch_status(&name, &params, &api::apply_body(&body)))
        .await
}

async fn publish(context: &Context, provider: &SubagentProvider, new: &SubagentProviderStatus) {
    let Some(ready) = conditions::get(&new.conditions, conditions::READY) else { return };
    let was = provider.status.as_ref().and_then(|old| conditions::get(&old.conditions, conditions::READY));
    if was.is_some_and(|was| was.status == ready.status && was.reason == ready.reason) {
        return;
    }
    let is_ready = ready.status == "True";
    let event = Event {
        type_: if is_ready { EventType::Normal } else { EventType::Warning },
        reason: if is_ready { "Ready".into() } else { ready.reason.clone() },
        note: Some(conditions::cut(&ready.message, 1000)),
        action: "Validate".into(),
        secondary: None,
    };
    if let Err(error) = context.recorder.publish(&event, &provider.object_ref(&())).await {
        tracing::warn!(%error, "an Event was not published");
    }
}

fn on_error(provider: Arc<SubagentProvider>, error: &Error, reconciler: Arc<Reconciler>) -> Action {
    reconciler.context.metrics.reconciled("provider", "error", 0.0);
    tracing::warn!(namespace = provider.namespace(), name = provider.name_any(), %error, "reconcile failed");
    Action::requeue(FAILURE_RETRY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(0, 5)]
    #[case(59, 5)]
    #[case(60, 60)]
    #[case(3600, 60)]
    fn n1_what_may_be_about_to_come_is_looked_for_more_often_at_first(#[case] age: i64, #[case] expected: u64) {
        let at = |second| Timestamp::from_second(second).unwrap();
        let provider: SubagentProvider = serde_json::from_value(json!({
            "apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentProvider", "metadata": {"name": "p"},
            "spec": {"transport": {"acp": {}}, "template": {}},
        }))
        .unwrap();
        let problem = Problem { reason: Reason::MissingReference, message: "no service account".into() };
        let status = status::not_ready(&provider, &problem, at(1000));
        assert_eq!(recheck_after(&status, at(1000 + age)), Duration::from_secs(expected));
    }
}
