//! The operator's replicas: how many there are and which of them leads.

use crate::{
    cluster::{self, OPERATOR_NAMESPACE, RELEASE, operator_pods},
    commands::kubectl,
};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{
    Api, Client, ResourceExt,
    runtime::{WatchStreamExt, watcher},
};
use std::time::{Duration, Instant};

/// Runs that many replicas of the operator and waits for them. By the chart's value, so that everything that belongs to
/// many replicas is there, and no other field manager holds their number.
pub fn scale(replicas: u32) {
    cluster::upgrade(&[&format!("replicas={replicas}")]);
    rolled_out();
}

/// Replaces every pod of the operator, as an update does, and waits for the new ones.
pub fn restart() {
    let deployment = format!("deployment/{RELEASE}");
    kubectl(&["rollout", "restart", &deployment, "--namespace", OPERATOR_NAMESPACE]);
    rolled_out();
}

fn rolled_out() {
    let deployment = format!("deployment/{RELEASE}");
    kubectl(&["rollout", "status", &deployment, "--timeout=120s", "--namespace", OPERATOR_NAMESPACE]);
}

/// Takes a pod away as a node failure does: nobody waits for it.
pub fn delete_by_force(pod: &str) {
    // It may be gone already.
    let arguments = ["--force", "--grace-period=0", "--wait=false", "--ignore-not-found"];
    kubectl(&[&["delete", "pod", pod, "--namespace", OPERATOR_NAMESPACE], &arguments[..]].concat());
}

/// Whether a pod is ready.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The pod that holds the Lease, if it is still there.
pub async fn leader(client: &Client) -> Option<Pod> {
    let holder = holder(&leases(client).get(RELEASE).await.ok()?)?;
    operator_pods(client).await.into_iter().find(|pod| pod.name_any() == holder)
}

fn leases(client: &Client) -> Api<Lease> {
    Api::namespaced(client.clone(), OPERATOR_NAMESPACE)
}

fn holder(lease: &Lease) -> Option<String> {
    lease.spec.as_ref()?.holder_identity.clone().filter(|holder| !holder.is_empty())
}

/// One change of the leader, as seen from outside.
#[derive(Clone, Debug)]
pub struct Handover {
    /// Who leads now.
    pub to: String,
    /// How long nobody did: from the last sign of the one before it, its release or its last renewal.
    pub leaderless: Duration,
}

/// How long the watch may be behind what it is about.
const BEHIND: Duration = Duration::from_secs(10);

/// Watches the Lease until the future ends and a change of the leader was seen; every such change meanwhile.
pub async fn handovers_during<T>(client: &Client, during: impl Future<Output = T>) -> (T, Vec<Handover>) {
    let config = watcher::Config::default().fields(&format!("metadata.name={RELEASE}"));
    let mut changes = watcher(leases(client), config).default_backoff().applied_objects().boxed();
    let mut seen = vec![];
    let mut last: Option<(Instant, String)> = None;
    tokio::pin!(during);
    let mut done = None;
    let mut until = Instant::now() + BEHIND;
    loop {
        if let Some(value) = done.take_if(|_| !seen.is_empty() || Instant::now() > until) {
            return (value, seen);
        }
        tokio::select! {
            value = &mut during, if done.is_none() => {
                (done, until) = (Some(value), Instant::now() + BEHIND);
            }
            () = tokio::time::sleep_until(until.into()), if done.is_some() => {}
            change = changes.try_next() => {
                let (Ok(Some(lease)), now) = (change, Instant::now()) else { continue };
                match (holder(&lease), &mut last) {
                    (Some(to), None) => last = Some((now, to)),
                    (Some(to), Some((at, before))) => {
                        if *before != to {
                            seen.push(Handover { to: to.clone(), leaderless: now.duration_since(*at) });
                        }
                        (*at, *before) = (now, to);
                    }
                    // Released: the last sign of its leader.
                    (None, Some((at, _))) => *at = now,
                    (None, None) => {}
                }
            }
        }
    }
}
