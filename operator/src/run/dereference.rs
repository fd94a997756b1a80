//! All reads of a reconcile. Everything a decision rests on is a live GET: a cache may be older than our own write.

use super::{
    activation::{self, Child, Recorded},
    plan::{self, World},
    prompt::{self, PromptSource},
    validate::{Parent, Provider},
};
use crate::{
    api::{self, ReadError},
    context::Context,
    pod::observe::Node,
    provider::revision,
    subagent::workspace,
};
use k8s_openapi::api::core::v1::{ConfigMap, Node as NodeObject, PersistentVolumeClaim, Pod};
use kube::{Api, Client, Resource, core::NamespaceResourceScope};
use serde::de::DeserializeOwned;
use std::{fmt::Debug, time::Duration};
use subagent_crds::{
    Subagent, SubagentProvider, SubagentRun, bounds, names,
    run::{ParentKind, ParentRef},
};
use subagent_link::WorkerConfig;

/// Taint of a node that is known to be down for good.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Reads the world of a run; none when the run is gone.
///
/// # Errors
/// When a read fails for another reason than absence.
pub async fn read(context: &Context, namespace: &str, name: &str) -> Result<Option<World>, ReadError> {
    let runs: Api<SubagentRun> = Api::namespaced(context.client.clone(), namespace);
    let Some(run) = api::get(&runs, name).await? else { return Ok(None) };
    Ok(Some(around(context, run).await?))
}

/// Reads what belongs to a run that was just read or written.
///
/// # Errors
/// When a read fails for another reason than absence.
pub async fn around(context: &Context, run: SubagentRun) -> Result<World, ReadError> {
    let client = &context.client;
    let namespace = run.metadata.namespace.clone().unwrap_or_default();
    let status = run.status.clone().unwrap_or_default();
    let pod_ttl = Duration::from_secs(context.settings.pod_ttl_seconds.unsigned_abs());
    let mut world = World::new(run, pod_ttl);
    if status.phase.is_some_and(|phase| phase.is_terminal()) && status.attempt.is_none() {
        return Ok(world);
    }
    if status.attempt.is_none() {
        let providers: Api<SubagentProvider> = Api::namespaced(client.clone(), &namespace);
        world.provider = match api::get(&providers, &world.run.spec.provider_ref.name).await {
            Ok(found) => found.map_or(Provider::Missing, |found| Provider::Found(Box::new(found))),
            Err(error) if error.is_undecodable() => Provider::Undecodable(error.to_string()),
            Err(error) => return Err(error),
        };
        world.prompt = prompt(client, &namespace, &world.run).await?;
    }
    if status.pod_uid.is_none() {
        world.child = child(client, &namespace, &world.run).await?;
        if wants_pod(&world.run, &status) {
            world.lost_workspace = lost_workspace(client, &namespace, &world.child).await?;
        }
        if status.attempt.is_none() && activation::is_gone(&world.provider) {
            world.recorded = recorded(client, &namespace, &world.child).await?;
        }
        world.parent = named_parent(client, &namespace, world.run.spec.parent_ref.as_ref()).await?;
        if status.attempt.is_some() {
            world.above = above(client, &namespace, &world.parent).await?;
        }
    }
    if let Some(name) = plan::pod_name(&world.run) {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        world.pod = api::get(&pods, &name).await?;
        if world.pod.as_ref().is_some_and(|pod| pod.metadata.deletion_timestamp.is_some()) || status.stopping.is_some()
        {
            world.node = node(client, world.pod.as_ref()).await?;
        }
        world.graces = graces(world.pod.as_ref());
        if status.pod_uid.is_some() && plan::current_report(&status).is_none() {
            world.prompt = prompt(client, &namespace, &world.run).await?;
        }
        // The pod was read after the run. What its worker stored before it ended must be seen with its end.
        let runs: Api<SubagentRun> = Api::namespaced(client.clone(), &namespace);
        if pod_has_ended(world.pod.as_ref())
            && let Some(fresh) = api::get(&runs, world.run.metadata.name.as_deref().unwrap_or_default()).await?
            && fresh.metadata.uid == world.run.metadata.uid
            && plan::pod_name(&fresh) == Some(name)
        {
            world.run = fresh;
        }
        if pod_has_ended(world.pod.as_ref()) {
            world.unusable_revision = unusable_revision(client, &namespace, &world.run).await?;
        }
    }
    Ok(world)
}

/// The child that a run activates.
async fn child(client: &Client, namespace: &str, run: &SubagentRun) -> Result<Child, ReadError> {
    let Some(activation) = &run.spec.activation else { return Ok(Child::NotAsked) };
    let children: Api<Subagent> = Api::namespaced(client.clone(), namespace);
    match api::get(&children, &activation.subagent_ref.name).await {
        Ok(found) => Ok(found.map_or(Child::Missing, |child| Child::Found(Box::new(child)))),
        Err(error) if error.is_undecodable() => Ok(Child::Undecodable(error.to_string())),
        Err(error) => Err(error),
    }
}

/// Whether the next thing may be a pod. One that is to stop gets none, and in a namespace that goes away the right to read its
/// claim may go first.
fn wants_pod(run: &SubagentRun, status: &subagent_crds::SubagentRunStatus) -> bool {
    let is_to_stop = status.stopping.is_some() || run.spec.cancel || run.metadata.deletion_timestamp.is_some();
    status.attempt.is_some() && !is_to_stop
}

/// Why what has the name of the claim of a child's workspace does not hold its files.
async fn lost_workspace(client: &Client, namespace: &str, child: &Child) -> Result<Option<String>, ReadError> {
    let Some(stored) = child.found().and_then(workspace::stored) else { return Ok(None) };
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    Ok(workspace::loss(stored, api::get(&claims, &stored.claim_name).await?.as_ref()))
}

/// What the child's last activation had of its provider, if that can still be used.
async fn recorded(client: &Client, namespace: &str, child: &Child) -> Result<Option<Recorded>, ReadError> {
    let Child::Found(child) = child else { return Ok(None) };
    let Some(name) = activation::recorded_revision(child) else { return Ok(None) };
    match revision::read(client, namespace, name).await {
        Ok(spec) => Ok(Some(Recorded { revision: name.to_owned(), spec })),
        Err(revision::Error::Read(error)) if !error.is_undecodable() => Err(error),
        // The activation waits for the provider, then.
        Err(_) => Ok(None),
    }
}

/// Why the provider's revision cannot be used, for a run without session: its worker may have ended for that.
async fn unusable_revision(client: &Client, namespace: &str, run: &SubagentRun) -> Result<Option<String>, ReadError> {
    let status = run.status.clone().unwrap_or_default();
    if plan::current_report(&status).is_some_and(|report| report.session.is_some()) {
        return Ok(None);
    }
    let name = status.descriptor.map(|descriptor| descriptor.provider_revision).unwrap_or_default();
    match revision::read(client, namespace, &name).await {
        Ok(_) => Ok(None),
        Err(error) if error.is_final() => Ok(Some(error.to_string())),
        Err(revision::Error::Read(error)) => Err(error),
        // Reading writes nothing.
        Err(_) => Ok(None),
    }
}

fn pod_has_ended(pod: Option<&Pod>) -> bool {
    pod.is_some_and(|pod| crate::pod::observe::observe(pod, Node::Present, false).ended.is_some())
}

/// The parent that is named.
///
/// # Errors
/// When the read fails.
pub(crate) async fn named_parent(
    client: &Client,
    namespace: &str,
    reference: Option<&ParentRef>,
) -> Result<Parent, ReadError> {
    let Some(reference) = reference else { return Ok(Parent::NotAsked) };
    match reference.kind {
        ParentKind::SubagentRun => read_parent(client, namespace, &reference.name, Parent::Found).await,
        ParentKind::Subagent => read_parent(client, namespace, &reference.name, Parent::Child).await,
    }
}

async fn read_parent<K>(
    client: &Client,
    namespace: &str,
    name: &str,
    found: fn(Box<K>) -> Parent,
) -> Result<Parent, ReadError>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let parents: Api<K> = Api::namespaced(client.clone(), namespace);
    match api::get(&parents, name).await {
        Ok(parent) => Ok(parent.map_or(Parent::Missing, |parent| found(Box::new(parent)))),
        Err(error) if error.is_undecodable() => Ok(Parent::Undecodable(error.to_string())),
        Err(error) => Err(error),
    }
}

/// The ancestors above a parent that may not hear of a cancel, up to the first that does.
///
/// # Errors
/// When a read fails.
pub(crate) async fn above(client: &Client, namespace: &str, nearest: &Parent) -> Result<Vec<Parent>, ReadError> {
    let mut above: Vec<Parent> = vec![];
    while let Some(reference) = above.last().unwrap_or(nearest).untold()
        && above.len() < bounds::ANCESTORS
    {
        let next = named_parent(client, namespace, Some(reference)).await?;
        above.push(next);
    }
    Ok(above)
}

/// The prompt's ConfigMap. The kubelet says in Events only that one cannot be mounted, and a pod that waits for a volume
/// looks like one that is starting.
async fn prompt(client: &Client, namespace: &str, run: &SubagentRun) -> Result<PromptSource, ReadError> {
    let reference = run.spec.prompt.as_ref().and_then(|prompt| prompt.config_map_key_ref.as_ref());
    let Some(reference) = reference else { return Ok(PromptSource::Usable) };
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    Ok(prompt::judge(reference, api::get(&config_maps, &reference.name).await?.as_ref()))
}

/// Whether the node of a pod is there.
///
/// # Errors
/// When the read fails.
pub(super) async fn node(client: &Client, pod: Option<&Pod>) -> Result<Node, ReadError> {
    let name = pod.and_then(|pod| pod.spec.as_ref()).and_then(|spec| spec.node_name.clone());
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(Node::Present) };
    let nodes: Api<NodeObject> = Api::all(client.clone());
    let Some(node) = api::get(&nodes, &name).await? else { return Ok(Node::Gone) };
    let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    Ok(if taints.iter().any(|taint| taint.key == OUT_OF_SERVICE) { Node::Gone } else { Node::Present })
}

/// The ladder's graces, as the pod's own worker has them.
fn graces(pod: Option<&Pod>) -> Duration {
    let annotations = pod.and_then(|pod| pod.metadata.annotations.as_ref());
    let config = annotations.and_then(|all| all.get(names::WORKER_CONFIG_ANNOTATION));
    let stop = config
        .and_then(|text| serde_json::from_str::<WorkerConfig>(text).ok())
        .map(|config| config.stop)
        .unwrap_or_default();
    let seconds = stop.cancel_grace_seconds + stop.eof_grace_seconds + stop.term_grace_seconds;
    Duration::from_secs(seconds.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    /// D9, c40: the claim is read before each pod, and for nothing else.
    #[rstest]
    #[case::waits(json!({}), json!({"attempt": 1}), true)]
    #[case::not_accepted(json!({}), json!({}), false)]
    #[case::stopping(json!({}), json!({"attempt": 1, "stopping": {"reason": "Cancelled", "at": "2026-01-01T00:00:00Z"}}), false)]
    #[case::cancelled(json!({"spec": {"cancel": true}}), json!({"attempt": 1}), false)]
    #[case::deleted(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), json!({"attempt": 1}), false)]
    fn c40_the_claim_of_a_run_that_stops_is_not_read(
        #[case] extra: Value,
        #[case] status: Value,
        #[case] expected: bool,
    ) {
        let run = super::super::plan_tests::run(super::super::plan_tests::merged(extra, json!({"status": status})));
        let status = run.status.clone().unwrap_or_default();
        assert_eq!(wants_pod(&run, &status), expected);
    }
}
