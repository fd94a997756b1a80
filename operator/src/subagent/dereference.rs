//! All reads of a reconcile. Everything a decision rests on is read live: a cache may be older than our own write.

use super::{
    apply::Error,
    inbox, memory,
    plan::{self, Run, World},
    pruning::{self, PastRun},
    session, workspace,
};
use crate::{
    api::{self, ReadError},
    context::Context,
    decoding::Guarded,
    run::{
        dereference::{above, named_parent},
        descendants::find,
        orphans::{self, GoneRun},
        validate::Provider,
    },
};
use kube::{Api, ResourceExt, api::ListParams};
use subagent_crds::{Subagent, SubagentPhase, SubagentProvider, SubagentRun, names, subagent_status::ActivationState};

/// Runs per page: each may carry a hundred kilobytes of messages, and none of it is kept.
const PAGE: u32 = 50;

/// Reads the world of a child; none when the child is gone.
///
/// # Errors
/// When a read fails for another reason than absence, or it is not known whose the session store is.
pub async fn read(context: &Context, namespace: &str, name: &str) -> Result<Option<World>, Error> {
    let children: Api<Subagent> = Api::namespaced(context.client.clone(), namespace);
    let Some(child) = api::get(&children, name).await? else { return Ok(None) };
    Ok(Some(around(context, child).await?))
}

/// Reads what belongs to a child that was just read or written.
///
/// # Errors
/// When a read fails for another reason than absence, or it is not known whose the session store is.
pub async fn around(context: &Context, child: Subagent) -> Result<World, Error> {
    let (client, namespace) = (&context.client, child.namespace().unwrap_or_default());
    let status = child.status.clone().unwrap_or_default();
    let deleting = child.metadata.deletion_timestamp.is_some();
    let mut world = World::new(child);
    if status.phase == Some(SubagentPhase::Rejected) {
        if status.lineage.is_some() {
            // One that was turned away late may have a run that was created meanwhile.
            world.past = Some(past(context, &world.child).await?);
        }
        return Ok(world);
    }
    if status.descriptor.is_none() {
        if !deleting {
            world.provider = provider(context, &namespace, &world.child.spec.provider_ref.name).await?;
            world.parent = named_parent(client, &namespace, world.child.spec.parent_ref.as_ref()).await?;
            if plan::wants_store(&world) {
                world.store = session::state(context).await?;
                world.refused_claim = workspace::refused(context, &world.child).await?;
            }
        }
        return Ok(world);
    }
    world.run = run(context, &world.child).await?;
    let activation = status.activation.as_ref();
    if status.epochs <= 1 && activation.is_some_and(|activation| activation.run_uid.is_none()) {
        world.parent = named_parent(client, &namespace, world.child.spec.parent_ref.as_ref()).await?;
        world.above = above(client, &namespace, &world.parent).await?;
    }
    if pruning::needs_memory(&world.child) {
        world.memory = Some(memory::load(client, &world.child).await?);
    }
    if activation.is_none_or(|activation| activation.state == ActivationState::Claimed) {
        world.past = Some(past(context, &world.child).await?);
    }
    let may_never_start = plan::may_never_start(&status);
    if may_never_start {
        // Its defaults may hold the start deadline.
        world.provider = provider(context, &namespace, &world.child.spec.provider_ref.name).await?;
    }
    if deleting || may_never_start || status.cancelling_descendants || plan::may_rest(&world.child, &world.run) {
        let uid = world.child.uid().unwrap_or_default();
        world.children = Some(find::below(context, &namespace, &uid, status.lineage.as_ref()).await?);
    }
    Ok(world)
}

async fn provider(context: &Context, namespace: &str, name: &str) -> Result<Provider, ReadError> {
    let providers: Api<SubagentProvider> = Api::namespaced(context.client.clone(), namespace);
    match api::get(&providers, name).await {
        Ok(found) => Ok(found.map_or(Provider::Missing, |found| Provider::Found(Box::new(found)))),
        Err(error) if error.is_undecodable() => Ok(Provider::Undecodable(error.to_string())),
        Err(error) => Err(error),
    }
}

/// What has the name of the activation's run. One that does not decode is an error: nobody knows what became of its messages.
async fn run(context: &Context, child: &Subagent) -> Result<Run, ReadError> {
    let activation = child.status.as_ref().and_then(|status| status.activation.as_ref());
    let Some(activation) = activation else { return Ok(Run::Missing) };
    let runs: Api<SubagentRun> = Api::namespaced(context.client.clone(), &child.namespace().unwrap_or_default());
    let found = api::get(&runs, &activation.run_name).await?;
    let is_stored = |found: &SubagentRun| activation.run_uid.is_none() || activation.run_uid == found.metadata.uid;
    let is_ours = |found: &SubagentRun| inbox::is_of(found, child, activation.epoch) && is_stored(found);
    Ok(match (found, &activation.run_uid) {
        (Some(found), _) if is_ours(&found) => Run::Ours(Box::new(found)),
        // Ours is gone, and somebody may have put another in its place.
        (_, Some(uid)) => {
            let gone = gone_run(child, &activation.run_name, uid);
            Run::Removed(orphans::left_by(context, &child.namespace().unwrap_or_default(), gone).await?)
        }
        (Some(_), None) => Run::Foreign,
        (None, None) => Run::Missing,
    })
}

/// The run of an activation that somebody removed by force. Its release annotation went with it, so the child's counts.
pub fn gone_run<'a>(child: &'a Subagent, name: &'a str, uid: &'a str) -> GoneRun<'a> {
    GoneRun { name, uid, released: child.annotations().get(names::RELEASE_ANNOTATION).map(String::as_str) }
}

/// The runs of the child's activations. One that does not decode is left alone.
async fn past(context: &Context, child: &Subagent) -> Result<Vec<PastRun>, ReadError> {
    let runs: Api<Guarded<SubagentRun>> =
        Api::namespaced(context.client.clone(), &child.namespace().unwrap_or_default());
    let of_child = format!("{}={}", names::SUBAGENT_UID_LABEL, child.uid().unwrap_or_default());
    let params = ListParams::default().labels(&of_child).limit(PAGE);
    api::list(&runs, params, "activations", |run| PastRun::of(child, &run.0.ok()?)).await
}
