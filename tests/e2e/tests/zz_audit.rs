//! What the audit log says about everything before: run last (Cargo runs test binaries in the order of their names).

use e2e_tests::{
    RunView, ScriptedProvider,
    audit::{Request, requests},
    cluster::{self, OPERATOR_USER},
    in_namespace,
    namespace::{PATIENCE, PREFIX},
    run,
};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt, api::ListParams};
use std::time::{Duration, Instant};

#[tokio::test]
async fn d6_the_charts_rights_are_enough_and_all_namespaces_went_away() {
    // At least one run is in the log, also when this binary runs alone.
    in_namespace("audit", async |ns| {
        ns.provider(&ScriptedProvider::default()).await;
        assert_eq!(ns.finish(&run("audited", "hello")).await.text(), "echo: hello");
    })
    .await;

    // S6: what the tests left behind drains by itself, finalizers and all.
    let client = cluster::client().await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = namespaces.list(&ListParams::default()).await.expect("namespaces").items;
        let deleting: Vec<_> = left
            .iter()
            .filter(|ns| ns.name_any().starts_with(PREFIX) && ns.metadata.deletion_timestamp.is_some())
            .collect();
        if deleting.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "namespaces are stuck: {deleting:#?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }

    let since = cluster::installed_since(&client).await;
    let own = requests(OPERATOR_USER, |request| request.user() == OPERATOR_USER && request.at() >= since.as_str());
    let created = own
        .iter()
        .filter(|request| request.verb() == "create" && request.resource() == "pods" && request.code() == 201)
        .count();
    assert!(created > 0, "no pod was created since {since}: this looked at the wrong part of the log");
    let forbidden: Vec<String> =
        own.iter().filter(|request| request.decision() == "forbid").map(Request::line).collect();
    assert!(forbidden.is_empty(), "rights missing in the chart: {forbidden:#?}");
    // Other refusals are of admission: Pod Security on a dry run, a namespace that is going away.
    let unexplained: Vec<String> = own
        .iter()
        .filter(|request| request.code() == 403 && request.decision() != "allow")
        .map(Request::line)
        .collect();
    assert!(unexplained.is_empty(), "{unexplained:#?}");
}
