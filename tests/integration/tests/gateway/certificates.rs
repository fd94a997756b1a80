//! The root in its Secret.

use crate::worker::client_config;
use integration_tests::TestNamespace;
use k8s_openapi::{
    api::core::v1::Secret,
    jiff::{SignedDuration, Timestamp},
};
use kube::api::{Patch, PatchParams};
use rustls::pki_types::ServerName;
use serde_json::json;
use subagent_operator::pki::{Pki, PkiSettings, ROOT_VALIDITY};
use tokio_rustls::{TlsAcceptor, TlsConnector};

const SECRET: &str = "gateway-root";

fn settings(namespace: &TestNamespace) -> PkiSettings {
    PkiSettings { namespace: namespace.name.clone(), secret_name: SECRET.into(), names: vec!["localhost".into()] }
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

#[tokio::test]
async fn a_new_root_is_published_to_live_workers_before_it_signs() {
    let namespace = TestNamespace::new("rotation").await;
    let start = async || Pki::start(namespace.client.clone(), settings(&namespace)).await.unwrap();
    let ((first, mut first_keeper), (second, mut second_keeper)) = (start().await, start().await);
    let bundle = |pki: &Pki| pki.roots().borrow().clone();
    let count = |bundle: &str| bundle.matches("BEGIN CERTIFICATE").count();
    let old = bundle(&first);
    let mut changes = first.roots();
    changes.mark_unchanged();
    let now = Timestamp::now();
    first_keeper.refresh(now).await.unwrap();
    assert!(!changes.has_changed().unwrap(), "nothing is due");

    // Less than a year is left: a second root is published, the first one signs on.
    let due = now + ROOT_VALIDITY - SignedDuration::from_hours(300 * 24);
    first_keeper.refresh(due).await.unwrap();
    assert!(changes.has_changed().unwrap(), "live pods get the new bundle");
    let both = bundle(&first);
    assert_eq!((count(&old), count(&both)), (1, 2));
    // A day later it signs. A replica that has not looked yet still shows a leaf of the old one.
    first_keeper.refresh(due + SignedDuration::from_hours(25)).await.unwrap();
    let secret: Secret = namespace.api().get(SECRET).await.unwrap();
    assert!(both.contains(std::str::from_utf8(&secret.data.unwrap()["current.crt"].0).unwrap().trim_end()));
    assert_ne!(bundle(&first), both, "the new one is first");
    assert_eq!(count(&bundle(&first)), 2, "the old one is still trusted");
    second_keeper.refresh(due + SignedDuration::from_hours(25)).await.unwrap();
    assert_eq!(bundle(&second), bundle(&first));
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
