//! The root in its Secret.

use integration_tests::TestNamespace;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use subagent_operator::pki::{Pki, PkiSettings};

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
