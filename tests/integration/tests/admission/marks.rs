//! D1, D2: what looks like the operator's is made by the operator, and stays as it is.

use crate::scene::{Scene, dry_run, garbage_collector, patch, pod, told};
use integration_tests::client_as;
use k8s_openapi::api::{apps::v1::ControllerRevision, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use subagent_crds::names;

/// What makes an object look like the operator's: a label, an annotation, an owner.
fn marks() -> [(Value, &'static str); 4] {
    [
        (json!({"labels": {names::PROBE_LABEL: "1", "app": "x"}}), "labels under subagents.dev/"),
        (json!({"labels": {names::RUN_LABEL: "run", "app": "x"}}), "labels under subagents.dev/"),
        (json!({"annotations": {names::WORKER_CONFIG_ANNOTATION: "{}"}}), "annotations under subagents.dev/"),
        (
            json!({"ownerReferences": [{"apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentRun", "name": "run", "uid": "u", "controller": true}]}),
            "owner references to kinds of subagents.dev",
        ),
    ]
}

/// D1 D2: nobody but the operator makes pods, ConfigMaps or revisions that look like its own, or makes them look so later.
#[tokio::test]
async fn d1_d2_only_the_operator_marks_objects_as_its_own() {
    let scene = Scene::new("marks").await;
    let all: &[&str] = &["create", "get", "update", "patch", "delete"];
    scene
        .grant(
            "tenant",
            &[
                ("", "pods", all, &[]),
                ("", "configmaps", all, &[]),
                ("", "persistentvolumeclaims", all, &[]),
                ("apps", "controllerrevisions", all, &[]),
            ],
        )
        .await;
    let tenant = scene.client("tenant").await;
    let operator = client_as(&scene.release.operator(), &["system:serviceaccounts", "system:authenticated"]).await;
    for (mark, words) in marks() {
        let mut metadata = mark.clone();
        metadata["name"] = json!("forged");
        told(dry_run(&tenant, &scene, &pod(metadata.clone())).await, &["Pod forged:", words]);
        told(dry_run(&tenant, &scene, &scene.config_map(metadata.clone())).await, &["ConfigMap forged:", words]);
        let revision: ControllerRevision =
            serde_json::from_value(json!({"metadata": metadata, "revision": 1, "data": {}})).expect("a revision");
        told(dry_run(&tenant, &scene, &revision).await, &["ControllerRevision forged:", words]);
        let claim = scene.claim(metadata.clone());
        told(dry_run(&tenant, &scene, &claim).await, &["PersistentVolumeClaim forged:", words]);
        dry_run(&operator, &scene, &claim).await.expect("the operator's claim");
        dry_run(&operator, &scene, &pod(metadata.clone())).await.expect("the operator's pod");
        dry_run(&operator, &scene, &scene.config_map(metadata.clone())).await.expect("the operator's ConfigMap");
        dry_run(&operator, &scene, &revision).await.expect("the operator's revision");
    }
    // Later: nothing of it can be added, changed or taken from an object, while everything else goes on as ever.
    let mut own = marks().into_iter().fold(json!({"name": "own"}), |mut all, (mark, _)| {
        for (key, value) in mark.as_object().expect("a mark") {
            all[key] = value.clone();
        }
        all
    });
    own["finalizers"] = json!([names::POD_FINALIZER]);
    Api::namespaced(operator, &scene.namespace().name)
        .create(&PostParams::default(), &pod(own))
        .await
        .expect("the operator's pod");
    Api::namespaced(tenant.clone(), &scene.namespace().name)
        .create(&PostParams::default(), &pod(json!({"name": "plain"})))
        .await
        .expect("a tenant's pod");
    for (mark, words) in marks() {
        told(patch::<Pod>(&tenant, &scene, "plain", json!({"metadata": mark})).await, &["Pod plain:", words]);
    }
    for change in [
        json!({"labels": {names::RUN_LABEL: "other"}}),
        json!({"labels": {names::RUN_LABEL: null}}),
        json!({"labels": {names::RUN_UID_LABEL: "u"}}),
        json!({"annotations": {names::WORKER_CONFIG_ANNOTATION: "{\"url\": \"wss://elsewhere\"}"}}),
        json!({"annotations": {names::GATEWAY_ROOTS_ANNOTATION: "mine"}}),
        json!({"ownerReferences": [{"apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentRun", "name": "run", "uid": "other", "controller": true}]}),
    ] {
        told(patch::<Pod>(&tenant, &scene, "own", json!({"metadata": change})).await, &["Pod own:", "operator alone"]);
    }
    for (change, words) in [
        (json!({"ownerReferences": null}), "owner references to kinds of subagents.dev stay; delete SubagentRun run"),
        (json!({"finalizers": null}), "finalizer subagents.dev/proof-of-stop stays"),
    ] {
        told(patch::<Pod>(&tenant, &scene, "own", json!({"metadata": change})).await, &["Pod own:", words]);
    }
    for change in [
        json!({"labels": {"app": "y", "team": "a"}}),
        json!({"annotations": {"note": "seen"}}),
        json!({"finalizers": [names::POD_FINALIZER, "example.com/mine"]}),
        json!({"finalizers": [names::POD_FINALIZER]}),
        json!({"ownerReferences": [{"apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentRun", "name": "run", "uid": "u", "controller": true, "blockOwnerDeletion": false}]}),
    ] {
        patch::<Pod>(&tenant, &scene, "own", json!({"metadata": change.clone()}))
            .await
            .unwrap_or_else(|e| panic!("{change}: {e}"));
    }
    // A forced deletion is a tenant's who may delete pods; what stays is the finalizer, and with it the proof.
    let own: Api<Pod> = Api::namespaced(tenant, &scene.namespace().name);
    own.delete("own", &DeleteParams::default().grace_period(0)).await.expect("a forced deletion");
    let left = scene.namespace().api::<Pod>().get("own").await.expect("the pod");
    assert_eq!(left.finalizers(), [names::POD_FINALIZER]);
    // The documented way out when no operator is left: somebody with the right to do so.
    scene
        .grant(
            "keeper",
            &[("", "pods", &["patch"], &[]), ("subagents.dev", "subagentruns/finalizers", &["update"], &[])],
        )
        .await;
    let keeper = scene.client("keeper").await;
    patch::<Pod>(&keeper, &scene, "own", json!({"metadata": {"finalizers": null}})).await.expect("a release");
}

/// What kubelets and controllers do to an operator's pod is none of the policies' business.
#[tokio::test]
async fn kubelets_and_controllers_are_not_hindered() {
    let scene = Scene::new("kubelet").await;
    let operator = client_as(&scene.release.operator(), &["system:serviceaccounts", "system:authenticated"]).await;
    let owner = json!({"apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentRun", "name": "run", "uid": "u"});
    let own: Pod = pod(json!({
        "name": "own", "labels": {names::RUN_LABEL: "run"}, "finalizers": [names::POD_FINALIZER], "ownerReferences": [owner],
    }));
    let created = Api::<Pod>::namespaced(operator, &scene.namespace().name)
        .create(&PostParams::default(), &own)
        .await
        .expect("a pod");
    let pods: Api<Pod> = scene.namespace().api();
    let status = json!({"status": {"phase": "Failed", "containerStatuses": [{"name": "agent", "image": "x", "imageID": "x", "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 137}}}]}});
    pods.patch_status("own", &PatchParams::default(), &Patch::Merge(&status)).await.expect("a kubelet's status");
    // `--cascade=orphan` makes garbage collection take the owner off.
    let api: Api<Pod> = Api::namespaced(garbage_collector().await, &scene.namespace().name);
    let orphan = json!({"metadata": {"ownerReferences": null, "uid": created.uid()}});
    api.patch("own", &PatchParams::default(), &Patch::Merge(&orphan)).await.expect("an owner off");
    api.delete("own", &DeleteParams::default()).await.expect("a delete");
    // Objects without the operator's marks are as free as ever.
    let plain = scene.config_map(json!({"name": "plain", "labels": {"app": "x"}, "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "u"}]}));
    dry_run(&scene.namespace().client, &scene, &plain).await.expect("a ConfigMap of others");
}
