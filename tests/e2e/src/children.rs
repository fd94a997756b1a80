//! Continuable children: created, told, and read.

use crate::{TestNamespace, objects::PROVIDER};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};
use std::time::Duration;
use subagent_crds::{
    Subagent, SubagentPhase, SubagentRun, message::Outcome, names, report::Session, subagent_status::MessageStatus,
};

/// Longest time until a child comes to rest: up to three pods start one after the other, on two busy cores and beside others,
/// and an agent may have half a gigabyte.
pub const REST: Duration = Duration::from_secs(240);

/// A child of provider `scripted` with its first message, `m1`.
pub fn child(name: &str, text: &str) -> Subagent {
    child_of(PROVIDER, name, text)
}

/// A child of a provider with its first message, `m1`.
///
/// # Panics
/// When that is no spec.
pub fn child_of(provider: &str, name: &str, text: &str) -> Subagent {
    let spec = json!({
        "providerRef": {"name": provider}, "description": "an end-to-end test", "messages": [{"id": "m1", "text": text}],
    });
    Subagent::new(name, serde_json::from_value(spec).expect("a child's spec"))
}

/// Appends to an inbox as the README does.
pub fn tell(ns: &TestNamespace, name: &str, message: &Value) {
    let patch = json!([{"op": "add", "path": "/spec/messages/-", "value": message}]).to_string();
    ns.kubectl(&["patch", "subagent", name, "--type=json", "-p", &patch]);
}

/// Waits until a child fits.
pub async fn child_until(
    ns: &TestNamespace,
    name: &str,
    what: &str,
    fits: impl Fn(&Subagent) -> bool + Send + Sync,
) -> Subagent {
    ns.until(name, what, REST, fits).await
}

/// Waits until the child has that phase, by a status that has seen the newest spec.
pub async fn in_phase(ns: &TestNamespace, name: &str, phase: SubagentPhase) -> Subagent {
    child_until(ns, name, phase.as_str(), |child| {
        child.status.as_ref().is_some_and(|status| {
            status.phase == Some(phase) && status.observed_generation == child.metadata.generation
        })
    })
    .await
}

/// Waits until these messages have that outcome.
pub async fn told(ns: &TestNamespace, name: &str, ids: &[&str], outcome: Outcome) -> Subagent {
    child_until(ns, name, &format!("{ids:?} are {}", outcome.as_str()), |child| {
        let all = child.status.iter().flat_map(|status| &status.messages);
        let found = all.filter(|message| message.outcome == outcome && ids.contains(&message.id.as_str()));
        found.count() == ids.len()
    })
    .await
}

/// What became of a message.
///
/// # Panics
/// When the status does not list it.
pub fn message<'a>(child: &'a Subagent, id: &str) -> &'a MessageStatus {
    let all = child.status.iter().flat_map(|status| &status.messages);
    all.into_iter().find(|message| message.id == id).unwrap_or_else(|| panic!("message {id}: {:?}", child.status))
}

/// Message, stop reason and preview of each turn, in order.
pub fn turns(child: &Subagent) -> Vec<(String, String, String)> {
    let all = child.status.iter().flat_map(|status| &status.turns);
    all.map(|turn| {
        let preview = turn.preview.as_deref().unwrap_or_default().trim().to_owned();
        (turn.message_id.clone(), turn.stop_reason.clone(), preview)
    })
    .collect()
}

/// An expected turn, for [`turns`].
pub fn turn(id: &str, stop_reason: &str, preview: &str) -> (String, String, String) {
    (id.into(), stop_reason.into(), preview.into())
}

/// The number of the newest activation.
pub fn epochs(child: &Subagent) -> i64 {
    child.status.as_ref().map_or(0, |status| status.epochs)
}

/// The run of an activation of a child.
///
/// # Panics
/// When there is not exactly one.
pub async fn activation(ns: &TestNamespace, child: &str, epoch: i64) -> SubagentRun {
    let of_child = format!("{}={child}", names::SUBAGENT_LABEL);
    let runs = ns.api::<SubagentRun>().list(&ListParams::default().labels(&of_child)).await.expect("runs").items;
    let is_its = |run: &SubagentRun| run.spec.activation.as_ref().is_some_and(|activation| activation.epoch == epoch);
    let mut found = runs.into_iter().filter(is_its);
    let run = found.next().unwrap_or_else(|| panic!("child {child} has no activation {epoch}"));
    assert!(found.next().is_none(), "child {child} has two activations {epoch}");
    run
}

/// The session that the agent of an activation had, and how it came by it.
///
/// # Panics
/// When none is reported.
pub async fn session(ns: &TestNamespace, child: &str, epoch: i64) -> Session {
    let status = activation(ns, child, epoch).await.status.unwrap_or_default();
    status.report.and_then(|report| report.session).unwrap_or_else(|| panic!("activation {epoch} had no session"))
}

/// Pods with a container that has not ended, of all runs in the namespace.
pub async fn live_pods(ns: &TestNamespace) -> Vec<String> {
    let pods = ns.api::<Pod>().list(&ListParams::default().labels(names::RUN_LABEL)).await.expect("pods").items;
    let is_live = |pod: &Pod| {
        let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
        containers.is_none_or(|all| {
            all.iter().any(|container| container.state.as_ref().is_none_or(|state| state.terminated.is_none()))
        })
    };
    pods.iter().filter(|pod| is_live(pod)).map(ResourceExt::name_any).collect()
}

/// Deletes the pods of all runs in the namespace and waits until they are gone: of what ran there nothing is left but what
/// the store holds.
pub async fn remove_pods(ns: &TestNamespace) {
    let (pods, of_runs) = (ns.api::<Pod>(), ListParams::default().labels(names::RUN_LABEL));
    pods.delete_collection(&DeleteParams::default(), &of_runs).await.expect("a deletion");
    ns.eventually("no pod", REST, async || {
        let left = pods.list(&of_runs).await.expect("pods").items;
        if left.is_empty() { Ok(()) } else { Err(format!("{} pods", left.len())) }
    })
    .await;
}
