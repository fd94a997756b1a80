//! Starts that the API server refuses.

use crate::{
    audit::{Mark, Request, lines},
    world::{LIMIT, World, end, has, status},
};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota, ServiceAccount};
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use subagent_crds::{
    Phase, SubagentProvider, conditions,
    run::{ParentKind, ParentRef},
};

/// Writes what the quota controller would, and waits until the API server refuses a pod with these words: it learns of a
/// quota by a watch.
async fn count_pods(world: &World, status: serde_json::Value, words: &str) {
    let quotas = world.namespace.api::<ResourceQuota>();
    let patch = json!({"status": status});
    quotas.patch_status("pods", &PatchParams::default(), &Patch::Merge(&patch)).await.expect("a quota");
    let any: Pod = serde_json::from_value(json!({
        "metadata": {"name": "any"}, "spec": {"containers": [{"name": "any", "image": "localhost/any:dev"}]},
    }))
    .expect("a pod");
    let (pods, params) = (world.namespace.api::<Pod>(), PostParams { dry_run: true, ..PostParams::default() });
    let (pods, params, any) = (&pods, &params, &any);
    world
        .namespace
        .eventually("the quota is in force", LIMIT, async || match pods.create(params, any).await {
            Err(error) if error.to_string().contains(words) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
}

/// N1: no room is no failure. The run is Queued, says so, starts when there is room, and the time does not count. A parent
/// that comes to its own end meanwhile does not turn an accepted child away (c14).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n1_c14_a_full_quota_queues_and_a_parent_may_end_meanwhile() {
    let world = World::new("quota").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    world.ready("provider").await;
    let parent = world.run("parent", "provider", "!gate parent").await;
    world.event("parent", "gate", "parent").await;
    let quota: ResourceQuota =
        serde_json::from_value(json!({"metadata": {"name": "pods"}, "spec": {"hard": {"pods": "1"}}}))
            .expect("a quota");
    world.namespace.create(&quota).await;
    // Until the quota controller has counted, the API server refuses with other words.
    count_pods(&world, json!({"hard": {"pods": "1"}}), "status unknown for quota").await;
    world.run("uncounted", "provider", "hello").await;
    let queued = world.until("uncounted", "Queued", |status| status.phase == Some(Phase::Queued)).await;
    assert_eq!(end(&queued), (Phase::Queued, "QuotaExceeded"));
    count_pods(&world, json!({"hard": {"pods": "1"}, "used": {"pods": "1"}}), "exceeded quota").await;
    let mut patient = world.make_run("patient", "provider", "hello");
    patient.spec.start_deadline_seconds = Some(6);
    world.namespace.create(&patient).await;
    let mut child = world.make_run("child", "provider", "hello");
    child.spec.parent_ref = Some(ParentRef { kind: ParentKind::SubagentRun, name: parent.name_any(), uid: None });
    world.namespace.create(&child).await;
    for name in ["patient", "child"] {
        let run = world.until(name, "Queued", |status| status.phase == Some(Phase::Queued)).await;
        assert_eq!(end(&run), (Phase::Queued, "QuotaExceeded"));
        assert!(has(status(&run), conditions::ACCEPTED));
        let message = status(&run).message.clone().unwrap_or_default();
        assert!(message.contains("exceeded quota"), "{message}");
    }
    world.node.collector().open_gate("parent");
    world.stopped("parent").await;
    let quotas = world.namespace.api::<ResourceQuota>();
    quotas.delete("pods", &DeleteParams::default()).await.expect("a deletion");
    let child = world.stopped("child").await;
    assert_eq!(end(&child), (Phase::Completed, "Completed"), "its parent had come to its own end");
    for name in ["patient", "uncounted"] {
        let run = world.stopped(name).await;
        assert_eq!(end(&run), (Phase::Completed, "Completed"), "{name}");
        assert!(status(&run).queued_since.is_none());
    }
    operator.stop().await;
    world.finish().await;
}

/// N1: a service account that is not there, at the provider and, when it goes later, at the run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n1_a_missing_service_account_has_its_own_reason() {
    let world = World::new("account").await;
    let operator = world.operator().await;
    let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "worker"}})).expect("an account");
    let mut provider = world.make_provider("provider", &[]);
    provider.spec.template["spec"]["serviceAccountName"] = json!("worker");
    world.namespace.create(&provider).await;
    let message = not_ready(&world, "provider", "MissingReference").await;
    assert!(message.contains("worker"), "{message}");

    world.namespace.create(&account).await;
    // Nothing tells that an account appeared; a change of the spec is looked at at once.
    provider.spec.template["metadata"] = json!({"annotations": {"try": "again"}});
    world.edit_provider(&provider).await;
    world.ready("provider").await;
    let accounts = world.namespace.api::<ServiceAccount>();
    accounts.delete("worker", &DeleteParams::default()).await.expect("a deletion");
    world.run("run", "provider", "hello").await;
    let run = world.stopped("run").await;
    assert_eq!(end(&run), (Phase::Failed, "MissingReference"), "{:?}", status(&run).message);
    let message = status(&run).message.clone().unwrap_or_default();
    assert!(message.contains("worker"), "{message}");
    assert!(!has(status(&run), conditions::STARTED));
    assert!(world.pods().await.is_empty());
    operator.stop().await;
    world.finish().await;
}

/// N1, N6: what Pod Security refuses shows at the provider, in the API server's own words, by a dry run: no pod was ever
/// created. What the template leaves open is filled so that a restricted namespace takes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n1_n6_a_pod_security_refusal_shows_at_the_provider() {
    let labels = [("pod-security.kubernetes.io/enforce", "restricted")];
    let world = World::with_labels("restricted", &labels).await;
    let operator = world.operator().await;
    let mut provider = world.make_provider("root", &[]);
    provider.spec.template["spec"]["containers"][0]["securityContext"] = json!({"runAsUser": 0});
    world.namespace.create(&provider).await;
    let message = not_ready(&world, "root", "PodRejected").await;
    assert!(message.contains("violates PodSecurity"), "{message}");
    assert!(message.contains("runAsUser=0"), "{message}");
    world.provider("silent", &[]).await;
    world.ready("silent").await;
    let asked = Mark::START.requests_of(&world.rights.user);
    let created: Vec<_> = asked.into_iter().filter(Request::is_pod_creation).collect();
    assert!(created.is_empty(), "pods were created:\n{}", lines(&created));
    operator.stop().await;
    world.finish().await;
}

/// N1, c7: a field that no pod has would be dropped in silence when the pod is created; the dry run refuses it by name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n1_a_misspelt_field_of_a_template_is_named() {
    let world = World::new("misspelt").await;
    let operator = world.operator().await;
    let mut provider = world.make_provider("provider", &[]);
    provider.spec.template["spec"]["containers"][0]["imagePullPolcy"] = json!("Always");
    world.namespace.create(&provider).await;
    let message = not_ready(&world, "provider", "InvalidTemplate").await;
    assert!(
        message.contains("spec.containers[0].imagePullPolcy") && message.contains("below spec.template"),
        "{message}"
    );
    operator.stop().await;
    world.finish().await;
}

async fn not_ready(world: &World, provider: &str, reason: &str) -> String {
    let ready = |provider: &SubagentProvider| {
        let conditions = provider.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        conditions::get(conditions, conditions::READY).cloned()
    };
    let fits = |provider: &SubagentProvider| {
        ready(provider).is_some_and(|ready| ready.status == "False" && ready.reason == reason)
    };
    let provider = world.namespace.until(provider, reason, LIMIT, fits).await;
    ready(&provider).expect("Ready").message
}
