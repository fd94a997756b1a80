//! The root in its Secret.

use crate::worker::client_config;
use integration_tests::TestNamespace;
use k8s_openapi::{
    api::core::v1::{Pod, Secret},
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use rustls::pki_types::ServerName;
use serde_json::json;
use std::time::Duration;
use subagent_crds::names;
use subagent_operator::{
    pki::{Distribution, Pki, PkiSettings, ROOT_VALIDITY, Timing},
    watching::Scope,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

const SECRET: &str = "gateway-root";
/// How long every pod must have carried a new root before it signs.
const WAIT: Duration = Duration::from_secs(3600);

fn settings(namespace: &TestNamespace) -> PkiSettings {
    PkiSettings {
        namespace: namespace.name.clone(),
        secret_name: SECRET.into(),
        names: vec!["localhost".into()],
        timing: Timing { carried_for: WAIT, ..Timing::default() },
    }
}

#[tokio::test]
async fn replicas_that_start_together_agree_on_one_root() {
    let namespace = TestNamespace::new("roots").await;
    let start = || async { Pki::start(namespace.client.clone(), settings(&namespace)).await.expect("certificates").0 };
    let replicas = futures::future::join_all((0..4).map(|_| start())).await;
    let bundles: Vec<_> = replicas.iter().map(|pki| pki.roots().borrow().clone()).collect();
    assert!(bundles.iter().all(|bundle| *bundle == bundles[0] && bundle.contains("BEGIN CERTIFICATE")));
    assert!(!bundles[0].contains("PRIVATE"), "the key stays in the Secret");
    let stored: Secret = namespace.api().get(SECRET).await.unwrap();
    assert_eq!(stored.data.unwrap()["current.crt"].0, bundles[0].as_bytes());
    // A later one, too.
    assert_eq!(*start().await.roots().borrow(), bundles[0]);
}

/// Opens TLS with a bundle of roots and says whether the leaf is trusted.
async fn trusted(pki: &Pki, bundle: &str) -> bool {
    let (client_end, server_end) = tokio::io::duplex(64 * 1024);
    let acceptor = TlsAcceptor::from(pki.server_config().expect("TLS settings"));
    let connector = TlsConnector::from(client_config(bundle));
    let name = ServerName::try_from("localhost").expect("a name");
    let (client, _server) = tokio::join!(connector.connect(name, client_end), acceptor.accept(server_end));
    client.is_ok()
}

/// A worker pod that carries these roots.
async fn worker_pod(namespace: &TestNamespace, name: &str, roots: &str) -> Pod {
    let pod = json!({
        "metadata": {
            "name": name,
            "labels": {names::RUN_UID_LABEL: "a-run"},
            "annotations": {names::GATEWAY_ROOTS_ANNOTATION: roots},
        },
        "spec": {
            "automountServiceAccountToken": false,
            "containers": [{"name": "agent", "image": "localhost/agent:dev"}],
        },
    });
    namespace.create(&serde_json::from_value::<Pod>(pod).expect("a pod")).await
}

#[tokio::test]
async fn c5_a_new_root_is_with_every_live_worker_before_it_signs() {
    let namespace = TestNamespace::new("rotation").await;
    let start = async || Pki::start(namespace.client.clone(), settings(&namespace)).await.unwrap();
    let ((first, mut first_keeper), (second, mut second_keeper)) = (start().await, start().await);
    let scopes = || vec![Scope::Namespace(namespace.name.clone())];
    let distribution =
        |pki: &Pki| Distribution::new(namespace.client.clone(), settings(&namespace), scopes(), pki.roots());
    let (leader, follower) = (distribution(&first), distribution(&second));
    let bundle = |pki: &Pki| pki.roots().borrow().clone();
    let count = |bundle: &str| bundle.matches("BEGIN CERTIFICATE").count();
    let carried = async |pod: &str| {
        let pod = namespace.api::<Pod>().get(pod).await.expect("the pod");
        count(&pod.annotations()[names::GATEWAY_ROOTS_ANNOTATION])
    };
    let stored = async |key: &str| {
        let secret: Secret = namespace.api().get(SECRET).await.expect("the Secret");
        secret.data.and_then(|data| data.get(key).map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned()))
    };
    let old = bundle(&first);
    worker_pod(&namespace, "live", &old).await;
    let over = worker_pod(&namespace, "over", &old).await;
    let succeeded = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    namespace.api::<Pod>().patch_status(&over.name_any(), &PatchParams::default(), &succeeded).await.unwrap();
    let now = Timestamp::now();
    first_keeper.refresh(now).await.unwrap();
    leader.look(now).await.unwrap();
    assert_eq!((bundle(&first), carried("live").await), (old.clone(), 1), "nothing is due");

    // Less than a year is left: a second root is published, the first one signs on, however long nobody looks.
    let due = now + ROOT_VALIDITY - SignedDuration::from_hours(300 * 24);
    first_keeper.refresh(due).await.unwrap();
    first_keeper.refresh(due + SignedDuration::from_hours(100 * 24)).await.unwrap();
    assert_eq!((count(&old), count(&bundle(&first))), (1, 2), "new pods get both");
    let next = stored("next.crt").await.expect("a next root");
    assert_eq!(stored("current.crt").await.unwrap().trim_end(), old.trim_end());
    // One that would still make pods with the old bundle brings it to nobody.
    follower.look(due).await.unwrap();
    assert_eq!((carried("live").await, stored("next.carried-since").await), (1, None));

    leader.look(due).await.unwrap();
    assert_eq!((carried("live").await, carried("over").await), (2, 1), "live pods get it, others need none");
    assert_eq!(stored("next.carried-since").await, Some(due.to_string()));
    // A pod without it turns up, from a leader that was paused: the wait begins anew.
    worker_pod(&namespace, "late", &old).await;
    let again = due + SignedDuration::from_secs(3600);
    leader.look(again).await.unwrap();
    assert_eq!((carried("late").await, stored("next.carried-since").await), (2, Some(again.to_string())));
    leader.look(again + SignedDuration::from_secs(3599)).await.unwrap();
    assert_eq!(stored("current.crt").await.unwrap().trim_end(), old.trim_end(), "not for long enough");

    let signed = again + SignedDuration::from_secs(3600);
    leader.look(signed).await.unwrap();
    assert_eq!(stored("current.crt").await, Some(next));
    first_keeper.refresh(signed).await.unwrap();
    assert_eq!(count(&bundle(&first)), 2, "the old one is still trusted");
    second_keeper.refresh(signed).await.unwrap();
    assert_eq!(bundle(&second), bundle(&first));
    leader.look(signed).await.unwrap();
    assert_eq!(stored("next.carried-since").await, None);
}

#[tokio::test]
async fn a_renewed_leaf_is_shown_at_the_next_handshake() {
    let namespace = TestNamespace::new("leaf").await;
    let (pki, mut keeper) = Pki::start(namespace.client.clone(), settings(&namespace)).await.unwrap();
    let bundle = pki.roots().borrow().clone();
    assert!(trusted(&pki, &bundle).await);
    let other = TestNamespace::new("other-leaf").await;
    let foreign = Pki::start(other.client.clone(), settings(&other)).await.unwrap().0.roots().borrow().clone();
    assert!(!trusted(&pki, &foreign).await, "N4: a worker with another installation's roots does not connect");
    // Renewed as of tomorrow: it is not valid before, and that is how it is told from the old one.
    keeper.refresh(Timestamp::now() + SignedDuration::from_hours(36)).await.unwrap();
    assert!(!trusted(&pki, &bundle).await, "the old leaf is still shown");
}

#[tokio::test]
async fn d2_a_secret_that_is_not_ours_is_said_and_left_alone() {
    let namespace = TestNamespace::new("damaged-root").await;
    let planted = json!({"metadata": {"name": SECRET}, "stringData": {"current.crt": "nonsense"}});
    namespace.create(&serde_json::from_value::<Secret>(planted).unwrap()).await;
    let error = Pki::start(namespace.client.clone(), settings(&namespace)).await.unwrap_err().to_string();
    assert!(error.contains(SECRET) && error.contains("delete it"), "{error}");
    let stored: Secret = namespace.api().get(SECRET).await.unwrap();
    assert_eq!(stored.data.unwrap()["current.crt"].0, b"nonsense");
    let params = PatchParams::default();
    namespace.api::<Secret>().patch(SECRET, &params, &Patch::Merge(json!({"data": null}))).await.unwrap();
    let error = Pki::start(namespace.client.clone(), settings(&namespace)).await.unwrap_err().to_string();
    assert!(error.contains("current.crt is missing"), "{error}");
}
