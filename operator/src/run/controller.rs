//! The run controller: what wakes a reconcile, and what its end means.

use super::{
    apply::{self, Applied, Error},
    archiving::{self, Log},
    dereference,
    descendants::{Family, wake},
    events, orphans, plan,
};
use crate::{
    api::WriteError,
    context::Context,
    watching::{self, Scope},
};
use futures::{
    StreamExt,
    channel::mpsc::{UnboundedSender, unbounded},
};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{
    ResourceExt,
    runtime::{
        Controller,
        controller::{self, Action, Config},
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash, Hasher},
    sync::Arc,
    time::Duration,
};
use subagent_crds::{Reason, Subagent, SubagentProvider, SubagentRun, SubagentRunStatus, conditions, names};
use tokio_util::sync::CancellationToken;

/// Reconciles at a time: enough to hide the latency of the API server, few enough not to flood it.
const CONCURRENCY: u16 = 32;
/// Steps of one reconcile; more are taken by the next. A run takes three at most between two waits.
const MAX_STEPS: usize = 8;
/// Wait after a conflict: the cache is about to hear of the other write.
const CONFLICT_RETRY: Duration = Duration::from_millis(100);
/// Wait after a failed call.
const FAILURE_RETRY: Duration = Duration::from_secs(2);
/// Wait after a run did not decode. Nearly all that makes it decode again wakes a reconcile.
const UNDECODABLE_RETRY: Duration = Duration::from_secs(60);

/// What a reconcile has beside the run's name.
struct Reconciler {
    context: Context,
    /// Runs of which others wait to hear.
    news: UnboundedSender<SubagentRun>,
}

/// Runs the controller until the token is cancelled.
pub async fn run(context: Context, scope: Scope, shutdown: CancellationToken) {
    let (orphans, found) = unbounded();
    let undecodable = orphans.clone();
    let (reader, runs) =
        watching::cached::<SubagentRun>(&context, &scope, watcher::Config::default(), slim, run_facts, move |run| {
            let (namespace, name) = (run.namespace.clone(), run.name.clone());
            let _ = undecodable.unbounded_send((namespace.unwrap_or_default(), name.unwrap_or_default()));
        });
    let pods =
        watching::changes::<Pod>(&context, &scope, watcher::Config::default().labels(names::RUN_UID_LABEL), pod_facts);
    let providers = watching::changes::<SubagentProvider>(&context, &scope, watcher::Config::default(), provider_facts);
    let children = watching::changes::<Subagent>(&context, &scope, watcher::Config::default(), wake::child_facts);
    let (waiting, relatives, activated) = (reader.clone(), reader.clone(), reader.clone());
    let cache = reader.clone();
    let (news, told) = unbounded();
    let reconciler = Reconciler { context: context.clone(), news };
    let stop = shutdown.clone();
    let controller = Controller::for_stream(runs, reader)
        .with_config(Config::default().concurrency(CONCURRENCY))
        .watches_stream(pods, |pod: Pod| {
            let name = pod.labels().get(names::RUN_LABEL).cloned();
            name.map(|name| ObjectRef::new(&name).within(&pod.namespace().unwrap_or_default()))
        })
        .watches_stream(providers, move |provider: SubagentProvider| waiting_for(&waiting, &provider))
        .watches_stream(children, move |child: Subagent| wake::waiting_for_child(&activated, &child))
        .watches_stream(told.map(Ok), move |run: SubagentRun| wake::waiting_for(&relatives, &run))
        .graceful_shutdown_on(async move { stop.cancelled().await })
        .run(reconcile, on_error, Arc::new(reconciler))
        .for_each(|result| {
            let lost = match result {
                // A pod woke the reconcile of a run that is in no cache.
                Err(controller::Error::ObjectNotFound(run)) => Some(run),
                // It is in the cache as it was before.
                Err(controller::Error::ReconcilerFailed(error, run)) if is_undecodable(&error) => Some(run),
                _ => None,
            };
            if let Some(run) = lost
                && let Some(namespace) = run.namespace
            {
                let _ = orphans.unbounded_send((namespace, run.name));
            }
            futures::future::ready(())
        });
    let controller = watching::until_stopped(controller, cache, &shutdown);
    tokio::join!(controller, orphans::clean_up(&context, found, &shutdown));
}

/// What the cache keeps of a run: names and what is compared below, no prompts and no results.
fn slim(run: &mut SubagentRun) {
    run.metadata.managed_fields = None;
    run.spec.prompt = None;
    run.spec.parameters = None;
    run.spec.persona = None;
    if let Some(status) = &mut run.status {
        status.result = None;
    }
}

/// A change of anything hashed here wakes a reconcile. Our own status writes change none of it, so they wake nobody.
fn run_facts(run: &SubagentRun) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    run.metadata.uid.hash(&mut hasher);
    run.metadata.generation.hash(&mut hasher);
    run.metadata.deletion_timestamp.is_some().hash(&mut hasher);
    run.annotations().get(names::RELEASE_ANNOTATION).hash(&mut hasher);
    // `kubectl replace` with a plain manifest takes it off, and changes no generation.
    run.finalizers().iter().any(|name| name == names::RUN_FINALIZER).hash(&mut hasher);
    let report = run.status.as_ref().and_then(|status| status.report.as_ref());
    report.map(|report| (&report.pod_uid, report.attempt, report.seq)).hash(&mut hasher);
    Some(hasher.finish())
}

fn pod_facts(pod: &Pod) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    pod.metadata.uid.hash(&mut hasher);
    pod.metadata.deletion_timestamp.is_some().hash(&mut hasher);
    let observed = crate::pod::observe::observe(pod, Default::default(), false);
    format!("{observed:?}").hash(&mut hasher);
    Some(hasher.finish())
}

fn provider_facts(provider: &SubagentProvider) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    provider.metadata.uid.hash(&mut hasher);
    let status = provider.status.as_ref();
    status.map(|status| (status.observed_generation, &status.revision, &status.capabilities)).hash(&mut hasher);
    // A probe that is done tells, whatever it came to.
    status.map(|status| status.probe.as_ref().map(|probe| (&probe.revision, probe.attempt))).hash(&mut hasher);
    let ready = status.and_then(|status| conditions::get(&status.conditions, conditions::READY));
    ready.map(|ready| (&ready.status, &ready.message)).hash(&mut hasher);
    Some(hasher.finish())
}

/// Runs that wait for a provider (contract c2: one that comes back is picked up without anyone touching the run).
fn waiting_for(runs: &Store<SubagentRun>, provider: &SubagentProvider) -> Vec<ObjectRef<SubagentRun>> {
    let (name, namespace) = (provider.name_any(), provider.namespace());
    runs.state()
        .iter()
        .filter(|run| run.namespace() == namespace && run.spec.provider_ref.name == name)
        .filter(|run| run.status.as_ref().is_none_or(|status| status.attempt.is_none() && status.finished_at.is_none()))
        .map(|run| ObjectRef::from_obj(run.as_ref()))
        .collect()
}

async fn reconcile(run: Arc<SubagentRun>, reconciler: Arc<Reconciler>) -> Result<Action, Error> {
    let started = std::time::Instant::now();
    let context = &reconciler.context;
    let result = steps(&run, context, &reconciler.news).await;
    let outcome = if result.is_ok() { "ok" } else { "error" };
    context.metrics.reconciled("run", outcome, started.elapsed().as_secs_f64());
    result
}

async fn steps(run: &SubagentRun, context: &Context, news: &UnboundedSender<SubagentRun>) -> Result<Action, Error> {
    let (namespace, name) = (run.namespace().unwrap_or_default(), run.name_any());
    let Some(mut world) = dereference::read(context, &namespace, &name).await? else {
        return Ok(Action::await_change());
    };
    let mut family = Family::default();
    for _ in 0..MAX_STEPS {
        let now = Timestamp::now();
        family.look(context, &world.run, now).await?;
        world.family = family.clone();
        let step = archiving::before_end(&world, plan::next(&world, now));
        tracing::debug!(namespace, name, step = ?kind(&step), "next step");
        match apply::apply(context, &world, step, now).await? {
            Applied::Done(None) => return Ok(Action::await_change()),
            Applied::Done(Some(after)) => return Ok(Action::requeue(after)),
            Applied::Run(written) => {
                let old = world.run.status.clone();
                announce(context, old.clone(), &written);
                count(context, old.as_ref(), written.status.as_ref(), now);
                if written.status.as_ref().is_some_and(|new| wake::is_news(old.as_ref(), new)) {
                    // Nobody listens only when the controller ends.
                    let _ = news.unbounded_send((*written).clone());
                }
                world = dereference::around(context, *written).await?;
            }
            Applied::Told(failures) => {
                family.told = Some(failures);
                world = dereference::around(context, world.run).await?;
            }
            Applied::Changed => world = dereference::around(context, world.run).await?,
            Applied::Log(transcript) => {
                world = dereference::around(context, world.run).await?;
                world.log = Log::Read(transcript);
            }
        }
    }
    Ok(Action::requeue(CONFLICT_RETRY))
}

/// Events follow the stored transition and hold up nothing (contract c10).
fn announce(context: &Context, old: Option<SubagentRunStatus>, written: &SubagentRun) {
    let (own, mut old, mut written) = (context.clone(), old, written.clone());
    // What waits may be many: without what no Event says.
    slim(&mut written);
    for status in [&mut old, &mut written.status].into_iter().flatten() {
        (status.report, status.result) = (None, None);
    }
    context.announcements.later(async move { events::publish(&own, old.as_ref(), &written).await });
}

/// Metrics move on the stored transition only (pitfall T8).
fn count(context: &Context, old: Option<&SubagentRunStatus>, new: Option<&SubagentRunStatus>, now: Timestamp) {
    let Some(new) = new else { return };
    let was_terminal = old.and_then(|old| old.phase).is_some_and(|phase| phase.is_terminal());
    let Some(phase) = new.phase.filter(|phase| phase.is_terminal() && !was_terminal) else { return };
    if let Some(reason) = new.reason.as_deref().and_then(Reason::parse) {
        context.metrics.finished(phase, reason);
    }
    let last = new.report.as_ref().and_then(|report| report.final_.as_ref());
    if let Some(ended) = last.and_then(|last| last.at.parse::<Timestamp>().ok()) {
        let milliseconds = (now.as_millisecond() - ended.as_millisecond()).max(0);
        context.metrics.run_settle_seconds.observe(milliseconds as f64 / 1000.0);
    }
}

fn kind(step: &plan::Step) -> &'static str {
    match step {
        plan::Step::AddFinalizer => "AddFinalizer",
        plan::Step::Status(_) => "Status",
        plan::Step::CreatePod => "CreatePod",
        plan::Step::ArchiveLog => "ArchiveLog",
        plan::Step::DeletePod => "DeletePod",
        plan::Step::ReleasePod => "ReleasePod",
        plan::Step::ReleaseRun => "ReleaseRun",
        plan::Step::DeleteRun => "DeleteRun",
        plan::Step::StopDescendants => "StopDescendants",
        plan::Step::Wait(_) => "Wait",
    }
}

fn on_error(run: Arc<SubagentRun>, error: &Error, _: Arc<Reconciler>) -> Action {
    let (namespace, name) = (run.namespace().unwrap_or_default(), run.name_any());
    match error {
        Error::Write(WriteError::Conflict(_) | WriteError::Gone(_)) => {
            tracing::debug!(namespace, name, %error, "changed meanwhile, reading again");
            Action::requeue(CONFLICT_RETRY)
        }
        // The watch reports it, and a change of it wakes the next.
        _ if is_undecodable(error) => Action::requeue(UNDECODABLE_RETRY),
        _ => {
            tracing::warn!(namespace, name, %error, "reconcile failed");
            Action::requeue(FAILURE_RETRY)
        }
    }
}

fn is_undecodable(error: &Error) -> bool {
    matches!(error, Error::Read(error) if error.is_undecodable())
}
