//! The controller of children: what wakes a reconcile, and what its end means.

use super::{
    apply::{self, Applied, Error},
    counting, dereference, events, orphans, plan,
};
use crate::{
    api::WriteError,
    context::Context,
    watching::{self, Scope},
};
use futures::{StreamExt, channel::mpsc::unbounded};
use k8s_openapi::jiff::Timestamp;
use kube::{
    ResourceExt,
    runtime::{
        Controller,
        controller::{Action, Config},
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use std::{
    collections::{BTreeSet, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::Arc,
    time::Duration,
};
use subagent_crds::{
    Phase, Subagent, SubagentPhase, SubagentProvider, SubagentRun, SubagentStatus, conditions, names, run::ParentRef,
    run_status::Lineage,
};
use tokio_util::sync::CancellationToken;

/// Reconciles at a time: enough to hide the latency of the API server, few enough not to flood it.
const CONCURRENCY: u16 = 32;
/// Steps of one reconcile; more are taken by the next. A message takes four between two waits, an end and the next start ten.
const MAX_STEPS: usize = 16;
/// Wait after a conflict: somebody wrote, and we read again.
const CONFLICT_RETRY: Duration = Duration::from_millis(100);
/// Wait after a failed call.
const FAILURE_RETRY: Duration = Duration::from_secs(2);
/// Wait after something did not decode. Nearly all that makes it decode again wakes a reconcile.
const UNDECODABLE_RETRY: Duration = Duration::from_secs(60);
/// How long the Event of a settlement may hold up what follows it (contract c44).
const SETTLEMENT_TOLD: Duration = Duration::from_secs(2);

/// Runs the controller until the token is cancelled.
pub async fn run(context: Context, scope: Scope, shutdown: CancellationToken) {
    let any = watcher::Config::default;
    let (reader, children) = watching::cached::<Subagent>(&context, &scope, any(), slim, facts, |_| {});
    context.metrics.watch_children(reader.clone());
    let runs = watching::changes::<SubagentRun>(&context, &scope, any(), run_facts);
    let providers = watching::changes::<SubagentProvider>(&context, &scope, any(), provider_facts);
    let relatives = watching::changes::<Subagent>(&context, &scope, any(), relative_facts);
    let (waiting, above, beside, cache) = (reader.clone(), reader.clone(), reader.clone(), reader.clone());
    let (lost, found) = unbounded();
    let lost_children = lost.clone();
    let stop = shutdown.clone();
    let controller = Controller::for_stream(children, reader)
        .with_config(Config::default().concurrency(CONCURRENCY))
        .watches_stream(runs, move |run: SubagentRun| {
            if let Some(left) = orphans::left_behind(&above, &run) {
                // Nobody listens only when the controller ends.
                let _ = lost.unbounded_send(left);
            }
            woken_by_run(&above, &run)
        })
        .watches_stream(relatives, move |child: Subagent| {
            if let Some(gone) = orphans::gone(&child) {
                let _ = lost_children.unbounded_send(gone);
            }
            woken_by_child(&beside, &child)
        })
        .watches_stream(providers, move |provider: SubagentProvider| waiting_for(&waiting, &provider))
        .graceful_shutdown_on(async move { stop.cancelled().await })
        .run(reconcile, on_error, Arc::new(context.clone()))
        .for_each(|_| futures::future::ready(()));
    let known = cache.clone();
    let controller = watching::until_stopped(controller, cache, &shutdown);
    tokio::join!(controller, orphans::clean_up(&context, &scope, &known, found, &shutdown));
}

/// What the cache keeps of a child: no messages and no texts.
fn slim(child: &mut Subagent) {
    child.metadata.managed_fields = None;
    child.spec.messages = vec![];
    child.spec.parameters = None;
    child.spec.persona = None;
    if let Some(status) = &mut child.status {
        (status.messages, status.turns, status.last_result) = (vec![], vec![], None);
    }
}

/// A change of anything hashed here wakes a reconcile. Our own status writes change none of it, so they wake nobody.
fn facts(child: &Subagent) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    child.metadata.uid.hash(&mut hasher);
    child.metadata.generation.hash(&mut hasher);
    child.metadata.deletion_timestamp.is_some().hash(&mut hasher);
    child.annotations().get(names::FORGET_ANNOTATION).hash(&mut hasher);
    child.annotations().get(names::RELEASE_ANNOTATION).hash(&mut hasher);
    child.finalizers().iter().any(|name| name == names::SUBAGENT_FINALIZER).hash(&mut hasher);
    Some(hasher.finish())
}

/// Of a run that is no activation only its end matters, and that it was accepted.
fn run_facts(run: &SubagentRun) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    run.metadata.uid.hash(&mut hasher);
    run.metadata.resource_version.is_none().hash(&mut hasher);
    let status = run.status.as_ref();
    let phase = status.and_then(|status| status.phase);
    let is_stopped = status.is_some_and(|status| conditions::is_true(&status.conditions, conditions::STOPPED));
    (phase.is_some_and(Phase::is_terminal), is_stopped).hash(&mut hasher);
    status.is_some_and(|status| status.lineage.is_some()).hash(&mut hasher);
    if run.spec.activation.is_some() {
        // What keeps it from being proven stopped is shown.
        let stopped = status.and_then(|status| conditions::get(&status.conditions, conditions::STOPPED));
        stopped.map(|stopped| &stopped.reason).hash(&mut hasher);
        (run.spec.cancel, run.metadata.deletion_timestamp.is_some()).hash(&mut hasher);
        run.finalizers().iter().any(|name| name == names::FOLD_FINALIZER).hash(&mut hasher);
        let report = status.and_then(|status| status.report.as_ref());
        report.map(|report| (&report.pod_uid, report.attempt, report.seq)).hash(&mut hasher);
        // What keeps it from starting is shown.
        let reason = status.and_then(|status| status.reason.as_ref());
        (phase.map(Phase::as_str), reason).hash(&mut hasher);
    }
    Some(hasher.finish())
}

fn provider_facts(provider: &SubagentProvider) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    provider.metadata.uid.hash(&mut hasher);
    let status = provider.status.as_ref();
    status.map(|status| (status.observed_generation, &status.revision, &status.capabilities)).hash(&mut hasher);
    status.map(|status| status.probe.as_ref().map(|probe| (&probe.revision, probe.attempt))).hash(&mut hasher);
    let ready = status.and_then(|status| conditions::get(&status.conditions, conditions::READY));
    ready.map(|ready| (&ready.status, &ready.message)).hash(&mut hasher);
    Some(hasher.finish())
}

/// What others wait for of a child: that it is accepted, at rest, or gone.
fn relative_facts(child: &Subagent) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    child.metadata.uid.hash(&mut hasher);
    child.metadata.resource_version.is_none().hash(&mut hasher);
    let status = child.status.as_ref();
    status.map(|status| (status.lineage.is_some(), status.activation.is_some())).hash(&mut hasher);
    Some(hasher.finish())
}

/// The child that a run activates, those above it that it keeps from their rest or that wait for its end, and those that wait for it as their parent.
fn woken_by_run(children: &Store<Subagent>, run: &SubagentRun) -> Vec<ObjectRef<Subagent>> {
    let lineage = run.status.as_ref().and_then(|status| status.lineage.as_ref());
    let activated = run.spec.activation.as_ref().map(|activation| &activation.subagent_ref);
    let phase = run.status.as_ref().and_then(|status| status.phase);
    // An activation is its child's business: that is what is live.
    let is_live = run.spec.activation.is_none() && !phase.is_some_and(Phase::is_terminal);
    woken(children, run.namespace(), run.metadata.name.as_deref(), lineage, is_live, |child| {
        activated.is_some_and(|activated| Some(&activated.uid) == child.metadata.uid.as_ref())
    })
}

fn woken_by_child(children: &Store<Subagent>, news: &Subagent) -> Vec<ObjectRef<Subagent>> {
    let lineage = news.status.as_ref().and_then(|status| status.lineage.as_ref());
    let is_live = news.status.as_ref().is_some_and(|status| status.activation.is_some());
    woken(children, news.namespace(), news.metadata.name.as_deref(), lineage, is_live, |_| false)
}

fn woken(
    children: &Store<Subagent>,
    namespace: Option<String>,
    name: Option<&str>,
    lineage: Option<&Lineage>,
    is_live: bool,
    is_activated: impl Fn(&Subagent) -> bool,
) -> Vec<ObjectRef<Subagent>> {
    let above: BTreeSet<&str> = lineage.iter().flat_map(|lineage| &lineage.ancestors).map(String::as_str).collect();
    let waits = |child: &Subagent| {
        let phase = child.status.as_ref().and_then(|status| status.phase);
        // One that is live now ends the rest of those above it, whatever the cache knows of that (contract c45).
        let for_end = is_live || child.metadata.deletion_timestamp.is_some() || phase == Some(SubagentPhase::Waiting);
        let is_above = child.metadata.uid.as_deref().is_some_and(|uid| above.contains(uid));
        let parent = child.spec.parent_ref.as_ref().map(|parent: &ParentRef| parent.name.as_str());
        for_end && is_above || is_undecided(child) && parent.is_some() && parent == name
    };
    let state = children.state();
    let woken = state.iter().filter(|child| child.namespace() == namespace);
    woken.filter(|child| is_activated(child) || waits(child)).map(|child| ObjectRef::from_obj(child.as_ref())).collect()
}

fn is_undecided(child: &Subagent) -> bool {
    let undecided =
        |status: &SubagentStatus| status.descriptor.is_none() && status.phase != Some(SubagentPhase::Rejected);
    child.status.as_ref().is_none_or(undecided)
}

/// Children that wait for a provider (contract c2: one that comes back is picked up without anyone touching them).
fn waiting_for(children: &Store<Subagent>, provider: &SubagentProvider) -> Vec<ObjectRef<Subagent>> {
    let (name, namespace) = (provider.name_any(), provider.namespace());
    let state = children.state();
    let of_provider =
        state.iter().filter(|child| child.namespace() == namespace && child.spec.provider_ref.name == name);
    of_provider.filter(|child| is_undecided(child)).map(|child| ObjectRef::from_obj(child.as_ref())).collect()
}

async fn reconcile(child: Arc<Subagent>, context: Arc<Context>) -> Result<Action, Error> {
    let started = std::time::Instant::now();
    let result = steps(&child, &context).await;
    let outcome = if result.is_ok() { "ok" } else { "error" };
    context.metrics.reconciled("subagent", outcome, started.elapsed().as_secs_f64());
    result
}

async fn steps(child: &Subagent, context: &Context) -> Result<Action, Error> {
    let (namespace, name) = (child.namespace().unwrap_or_default(), child.name_any());
    let Some(mut world) = dereference::read(context, &namespace, &name).await? else {
        return Ok(Action::await_change());
    };
    for _ in 0..MAX_STEPS {
        let now = Timestamp::now();
        let step = plan::next(&world, now);
        tracing::debug!(namespace, name, step = kind(&step), "next step");
        let told = world.told.take();
        let next = match apply::apply(context, &world, step, now).await? {
            Applied::Done(None) => return Ok(Action::await_change()),
            Applied::Done(Some(after)) => return Ok(Action::requeue(after)),
            Applied::Child(written) => {
                counting::count(&context.metrics, &world, &written);
                announce(context, world.child.status.as_ref(), &written).await;
                (*written, told)
            }
            Applied::Rests(written, after) => {
                counting::count(&context.metrics, &world, &written);
                announce(context, world.child.status.as_ref(), &written).await;
                return Ok(Action::requeue(after));
            }
            Applied::Told(failures) => (world.child, Some(failures)),
            Applied::Changed => (world.child, told),
        };
        world = dereference::around(context, next.0).await?;
        world.told = next.1;
    }
    Ok(Action::requeue(CONFLICT_RETRY))
}

/// Events follow the stored transition and hold up nothing (contract c10), but that the settlement is told before anything
/// is let go (c44): for that they are waited for, a moment.
async fn announce(context: &Context, old: Option<&SubagentStatus>, written: &Subagent) {
    let old = old.cloned().unwrap_or_default();
    let Some(new) = &written.status else { return };
    if events::notes(&old, new).is_empty() {
        return;
    }
    let is_settlement = events::ended(&old, new).is_some();
    let (own, child) = (context.clone(), written.clone());
    let (done, told) = tokio::sync::oneshot::channel();
    context.announcements.later(async move {
        events::publish(&own, &old, &child).await;
        let _ = done.send(());
    });
    if is_settlement {
        let _ = tokio::time::timeout(SETTLEMENT_TOLD, told).await;
    }
}

fn kind(step: &plan::Step) -> &'static str {
    match step {
        plan::Step::AddFinalizer => "AddFinalizer",
        plan::Step::Status(_) => "Status",
        plan::Step::Shed(..) => "Shed",
        plan::Step::CreateClaim(_) => "CreateClaim",
        plan::Step::CreateRun(_) => "CreateRun",
        plan::Step::ChangeRun(_) => "ChangeRun",
        plan::Step::StopLeft(_) => "StopLeft",
        plan::Step::ReleaseRun(_) => "ReleaseRun",
        plan::Step::DeleteRuns(_) => "DeleteRuns",
        plan::Step::Remember(_) => "Remember",
        plan::Step::Prune(_) => "Prune",
        plan::Step::StopChildren => "StopChildren",
        plan::Step::Forget => "Forget",
        plan::Step::Release => "Release",
        plan::Step::Wait(_) => "Wait",
    }
}

fn on_error(child: Arc<Subagent>, error: &Error, _: Arc<Context>) -> Action {
    let (namespace, name) = (child.namespace().unwrap_or_default(), child.name_any());
    match error {
        Error::Write(WriteError::Conflict(_) | WriteError::Gone(_)) => {
            tracing::debug!(namespace, name, %error, "changed meanwhile, reading again");
            Action::requeue(CONFLICT_RETRY)
        }
        Error::Read(error) if error.is_undecodable() => Action::requeue(UNDECODABLE_RETRY),
        _ => {
            tracing::warn!(namespace, name, %error, "reconcile failed");
            Action::requeue(FAILURE_RETRY)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subagent::plan_tests::child;
    use kube::runtime::reflector;
    use rstest::rstest;
    use serde_json::{Value, json};

    /// c45: who is above something live is not at rest, whatever the cache holds of it.
    #[rstest]
    #[case::settled(json!({"phase": "Settled"}), json!({"activation": {"epoch": 1, "runName": "r"}}), 1)]
    #[case::about_to_settle(json!({"phase": "Active"}), json!({"activation": {"epoch": 1, "runName": "r"}}), 1)]
    #[case::nothing_live(json!({"phase": "Settled"}), json!({}), 0)]
    #[case::waits_for_its_end(json!({"phase": "Waiting"}), json!({}), 1)]
    fn c45_what_is_live_below_wakes_one_at_rest(#[case] above: Value, #[case] below: Value, #[case] expected: usize) {
        let lineage = json!({"depth": 2, "rootUID": "top", "ancestors": ["top"]});
        let accepted = json!({"lineage": {"depth": 1, "rootUID": "top"}, "descriptor": {"version": 1, "mode": "Continuable",
            "provider": "p", "providerRevision": "r", "context": "Fresh", "description": "d"}});
        let merged = crate::run::plan_tests::merged;
        let (reader, mut writer) = reflector::store();
        let top = child(json!({"metadata": {"name": "top", "uid": "top"}, "status": merged(accepted, above)}));
        writer.apply_watcher_event(&watcher::Event::Apply(top));
        let news = child(json!({"status": merged(json!({"lineage": lineage}), below)}));
        assert_eq!(woken_by_child(&reader, &news).len(), expected);
    }
}
