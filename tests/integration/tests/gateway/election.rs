//! Leader election on a real Lease.

use crate::world::LIMIT;
use integration_tests::TestNamespace;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use std::time::{Duration, Instant};
use subagent_operator::lease::{LeaderElection, Leadership, RENEW_EVERY};
use tokio_util::sync::CancellationToken;

const LEASE: &str = "operator";

fn candidate(namespace: &TestNamespace, identity: &str) -> LeaderElection {
    LeaderElection::new(namespace.client.clone(), &namespace.name, LEASE, identity)
}

async fn leads(namespace: &TestNamespace, identity: &str) -> Leadership {
    let shutdown = CancellationToken::new();
    let acquired = tokio::time::timeout(LIMIT, candidate(namespace, identity).acquire(&shutdown)).await;
    acquired.expect("leadership in time").expect("no shutdown")
}

async fn holder(namespace: &TestNamespace) -> Option<String> {
    namespace.api::<Lease>().get(LEASE).await.expect("the lease").spec.and_then(|spec| spec.holder_identity)
}

#[tokio::test]
async fn r9_one_of_many_candidates_leads_and_the_next_follows_a_release_within_two_seconds() {
    let namespace = TestNamespace::new("election").await;
    let shutdown = CancellationToken::new();
    let (told, mut leaders) = tokio::sync::mpsc::channel(8);
    for number in 0..4 {
        let (candidate, told, shutdown) =
            (candidate(&namespace, &format!("c{number}")), told.clone(), shutdown.clone());
        tokio::spawn(async move {
            if let Some(leadership) = candidate.acquire(&shutdown).await {
                let _ = told.send((number, leadership)).await;
            }
        });
    }
    let (first, leadership) = tokio::time::timeout(LIMIT, leaders.recv()).await.unwrap().unwrap();
    assert_eq!(holder(&namespace).await, Some(format!("c{first}")));
    // Over two renewals nobody else leads.
    let second = tokio::time::timeout(RENEW_EVERY * 2 + Duration::from_secs(1), leaders.recv()).await;
    assert!(second.is_err(), "two leaders");
    let before = namespace.api::<Lease>().get(LEASE).await.unwrap();
    assert!(before.spec.as_ref().unwrap().renew_time > before.spec.as_ref().unwrap().acquire_time, "it is renewed");

    leadership.release().await;
    let released = Instant::now();
    let (second, leadership) = tokio::time::timeout(LIMIT, leaders.recv()).await.unwrap().unwrap();
    // C5: no leaderless gap over two seconds, plus some slack for a busy machine.
    assert!(released.elapsed() < Duration::from_secs(4), "{:?}", released.elapsed());
    assert_ne!(first, second);
    shutdown.cancel();
    leadership.release().await;
    assert_eq!(holder(&namespace).await, None);
}

#[tokio::test]
async fn r9_a_leader_whose_lease_was_taken_knows_it_at_the_next_renewal() {
    let namespace = TestNamespace::new("stolen").await;
    let leadership = leads(&namespace, "first").await;
    // A label is nobody's business.
    let label = Patch::Merge(json!({"metadata": {"labels": {"seen": "yes"}}}));
    namespace.api::<Lease>().patch(LEASE, &PatchParams::default(), &label).await.unwrap();
    tokio::time::timeout(RENEW_EVERY * 2, leadership.lost()).await.expect_err("a label is no loss");
    let steal = Patch::Merge(json!({"spec": {"holderIdentity": "thief"}}));
    namespace.api::<Lease>().patch(LEASE, &PatchParams::default(), &steal).await.unwrap();
    tokio::time::timeout(LIMIT, leadership.lost()).await.expect("the loss is seen");
    // Nothing of the thief's is released.
    leadership.release().await;
    let lease: Lease = namespace.api().get(LEASE).await.unwrap();
    assert_eq!(lease.spec.as_ref().unwrap().holder_identity.as_deref(), Some("thief"));
    assert_eq!(lease.labels()["seen"], "yes");
}

#[tokio::test]
async fn r9_the_lease_of_a_dead_leader_is_taken_after_it_expired_and_not_before() {
    let namespace = TestNamespace::new("expiry").await;
    // A leader with a short lease that never renews, and whose clock is an hour ahead.
    let dead = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE},
        "spec": {"holderIdentity": "dead", "leaseDurationSeconds": 3, "leaseTransitions": 4,
            "acquireTime": "2126-01-01T00:00:00.000000Z", "renewTime": "2126-01-01T00:00:00.000000Z"},
    });
    namespace.create(&serde_json::from_value::<Lease>(dead).unwrap()).await;
    let began = Instant::now();
    let leadership = leads(&namespace, "next").await;
    assert!(began.elapsed() >= Duration::from_secs(3), "{:?}", began.elapsed());
    let lease: Lease = namespace.api().get(LEASE).await.unwrap();
    assert_eq!(lease.spec.unwrap().lease_transitions, Some(5));
    leadership.release().await;
}

#[tokio::test]
async fn a_candidate_ends_at_shutdown() {
    let namespace = TestNamespace::new("candidate").await;
    let leadership = leads(&namespace, "first").await;
    let shutdown = CancellationToken::new();
    shutdown.cancel();
    assert!(candidate(&namespace, "second").acquire(&shutdown).await.is_none());
    leadership.release().await;
}
