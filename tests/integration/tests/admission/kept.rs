//! What a tenant cannot take away: the proof that a run stopped, and what runs start from and leave behind.

use crate::scene::{Scene, garbage_collector, patch, told};
use integration_tests::{chart::POLICY_LIMIT, client_as, make_run, make_subagent, refusal};
use k8s_openapi::api::{
    apps::v1::ControllerRevision,
    core::v1::{ConfigMap, Namespace, PersistentVolumeClaim},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;
use std::time::Duration;
use subagent_crds::{Subagent, SubagentRun, names};

/// S8: the finalizer of a run stays with it, too.
#[tokio::test]
async fn s8_a_tenant_takes_no_finalizer_off_a_run() {
    let scene = Scene::new("finalizer").await;
    scene.grant("tenant", &[("subagents.dev", "subagentruns", &["create", "get", "patch", "update"], &[])]).await;
    let tenant = scene.client("tenant").await;
    let mut run = make_run("run");
    run.metadata.finalizers = Some(vec![names::RUN_FINALIZER.into()]);
    scene.namespace().create(&run).await;
    told(
        patch::<SubagentRun>(&tenant, &scene, "run", json!({"metadata": {"finalizers": null}})).await,
        &["SubagentRun run:", "finalizer subagents.dev/run-stopped stays", "subagents.dev/release-pod"],
    );
    patch::<SubagentRun>(&tenant, &scene, "run", json!({"metadata": {"labels": {"team": "a"}}}))
        .await
        .expect("a label");
    // C7: the uninstall hook lets go of what is left, while the policies are still there.
    let account = format!("{}-uninstall", scene.release.operator());
    let hook = client_as(&account, &["system:serviceaccounts", "system:authenticated"]).await;
    patch::<SubagentRun>(&hook, &scene, "run", json!({"metadata": {"finalizers": null}})).await.expect("a release");
}

/// S8, c44: an activation's second finalizer and those of a child stay as well.
#[tokio::test]
async fn s8_a_tenant_takes_no_finalizer_off_a_child_or_its_activation() {
    let scene = Scene::new("child-finalizer").await;
    let all: &[&str] = &["create", "get", "patch", "update"];
    scene
        .grant("tenant", &[("subagents.dev", "subagentruns", all, &[]), ("subagents.dev", "subagents", all, &[])])
        .await;
    let tenant = scene.client("tenant").await;
    let mut run = make_run("run");
    run.metadata.finalizers = Some(vec![names::FOLD_FINALIZER.into()]);
    scene.namespace().create(&run).await;
    let mut child = make_subagent("child");
    child.metadata.finalizers = Some(vec!["subagents.dev/x".into(), "example.org/y".into()]);
    scene.namespace().create(&child).await;
    let none = || json!({"metadata": {"finalizers": null}});
    told(
        patch::<SubagentRun>(&tenant, &scene, "run", none()).await,
        &["SubagentRun run:", "finalizer subagents.dev/messages-noted stays"],
    );
    let (tried, within, wanted) = (&tenant, &scene, &none());
    scene
        .namespace()
        .eventually("the policy of children is in force", POLICY_LIMIT, async || {
            match patch::<Subagent>(tried, within, "child", wanted.clone()).await {
                Err(message) if message.contains("Subagent child: finalizer subagents.dev/x stays") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    let others = json!({"metadata": {"finalizers": ["subagents.dev/x"], "labels": {"team": "a"}}});
    patch::<Subagent>(&tenant, &scene, "child", others).await.expect("what is not the operator's");
    let account = format!("{}-uninstall", scene.release.operator());
    let hook = client_as(&account, &["system:serviceaccounts", "system:authenticated"]).await;
    patch::<SubagentRun>(&hook, &scene, "run", none()).await.expect("a release");
    patch::<Subagent>(&hook, &scene, "child", none()).await.expect("a release");
}

/// D2, c2, c40: what accepted runs start from, what they left behind, and a child's files, are not a tenant's to remove, whatever it may delete
/// otherwise. A namespace that goes takes everything along.
#[tokio::test]
async fn d2_only_the_operator_removes_revisions_and_archives() {
    let scene = Scene::new("kept").await;
    let all: &[&str] = &["create", "get", "delete", "deletecollection", "list"];
    let rights = [("", "configmaps", all, &[] as &[&str]), ("apps", "controllerrevisions", all, &[])];
    scene.grant("tenant", &[&rights[..], &[("", "persistentvolumeclaims", all, &[])]].concat()).await;
    let tenant = scene.client("tenant").await;
    let operator = client_as(&scene.release.operator(), &["system:serviceaccounts", "system:authenticated"]).await;
    let revision: ControllerRevision = serde_json::from_value(json!({
        "metadata": {"name": "kept", "labels": {names::PROVIDER_UID_LABEL: "u"}}, "revision": 1, "data": {},
    }))
    .expect("a revision");
    let labels = json!({names::RUN_UID_LABEL: "u", names::CONTENT_LABEL: names::CONTENT_TURN, names::TURN_LABEL: "1"});
    let archive = scene.config_map(json!({"name": "kept", "labels": labels}));
    let ns = &scene.namespace().name;
    let revisions = |client: &Client| -> Api<ControllerRevision> { Api::namespaced(client.clone(), ns) };
    let archives = |client: &Client| -> Api<ConfigMap> { Api::namespaced(client.clone(), ns) };
    revisions(&operator).create(&PostParams::default(), &revision).await.expect("the operator's revision");
    archives(&operator).create(&PostParams::default(), &archive).await.expect("the operator's ConfigMap");
    archives(&tenant)
        .create(&PostParams::default(), &scene.config_map(json!({"name": "mine"})))
        .await
        .expect("a tenant's ConfigMap");
    let message = |error: kube::Error| {
        let status = refusal::status(error);
        assert_eq!(status.code, 403, "{}", status.message);
        status.message
    };
    let (probe, tried) = (DeleteParams::default().dry_run(), revisions(&tenant));
    let (probe, tried) = (&probe, &tried);
    scene
        .namespace()
        .eventually("the policy of what is kept is in force", POLICY_LIMIT, async || {
            tried.delete("kept", probe).await.map_or(Ok(()), |_| Err("a deletion was allowed".into()))
        })
        .await;
    let forced = DeleteParams::default().grace_period(0);
    let refused = revisions(&tenant).delete("kept", &forced).await.map_err(message);
    told(refused, &["ControllerRevision kept: runs were accepted with this revision"]);
    let refused = archives(&tenant).delete("kept", &forced).await.map_err(message);
    told(
        refused,
        &["ConfigMap kept: it holds the result or the transcript of a run", "delete the SubagentRun instead"],
    );
    let claims = |client: &Client| -> Api<PersistentVolumeClaim> { Api::namespaced(client.clone(), ns) };
    let labels = json!({names::SUBAGENT_UID_LABEL: "u"});
    let owner = json!([{"apiVersion": "subagents.dev/v1alpha1", "kind": "Subagent", "name": "child", "uid": "u"}]);
    let claim = scene.claim(json!({"name": "kept", "labels": labels, "ownerReferences": owner}));
    claims(&operator).create(&PostParams::default(), &claim).await.expect("the operator's claim");
    let refused = claims(&tenant).delete("kept", &forced).await.map_err(message);
    told(refused, &["PersistentVolumeClaim kept: it holds the files of a child", "delete the Subagent instead"]);
    // What `kubectl delete subagent --cascade=orphan` leaves: there is no child any more that it could go with.
    let orphaned = scene.claim(json!({"name": "orphaned", "labels": labels}));
    claims(&operator).create(&PostParams::default(), &orphaned).await.expect("an orphaned claim");
    claims(&tenant).delete("orphaned", &DeleteParams::default()).await.expect("a claim that is nobody's");
    patch::<PersistentVolumeClaim>(
        &garbage_collector().await,
        &scene,
        "orphaned",
        json!({"metadata": {"finalizers": null}}),
    )
    .await
    .expect("a controller's release");
    let refused = revisions(&tenant).delete_collection(&forced, &ListParams::default()).await.map_err(message);
    told(refused, &["ControllerRevision kept:"]);
    archives(&tenant).delete("mine", &forced).await.expect("its own ConfigMap");
    let collector = garbage_collector().await;
    archives(&collector).delete("kept", &DeleteParams::default()).await.expect("garbage collection");
    claims(&collector).delete("kept", &DeleteParams::default()).await.expect("garbage collection");
    // As the controller that protects claims in use does once no pod has it.
    let released = json!({"metadata": {"finalizers": null}});
    patch::<PersistentVolumeClaim>(&collector, &scene, "kept", released).await.expect("a controller's release");
    archives(&operator).create(&PostParams::default(), &archive).await.expect("the operator's ConfigMap");
    revisions(&operator).delete("kept", &DeleteParams::default()).await.expect("the operator's sweep");
    revisions(&operator).create(&PostParams::default(), &revision).await.expect("the operator's revision");

    // The namespace controller of this API server is the real one.
    let namespaces: Api<Namespace> = Api::all(scene.namespace().client.clone());
    namespaces.delete(ns, &DeleteParams::default()).await.expect("a deletion");
    let namespaces = &namespaces;
    scene
        .namespace()
        .eventually("the namespace is gone", Duration::from_secs(60), async || match namespaces.get_opt(ns).await {
            Ok(None) => Ok(()),
            other => Err(format!("{:?}", other.map(|found| found.and_then(|it| it.status)))),
        })
        .await;
}
