//! Contract c11 to c15: depth and lineage, with parents that exist.

use crate::world::{World, end, has, status};
use kube::{
    ResourceExt,
    api::{ListParams, PostParams},
};
use serde_json::json;
use subagent_crds::{
    Phase, SubagentRun, conditions, names,
    run::{ParentKind, ParentRef},
    run_status::Lineage,
};
use subagent_link::WorkerConfig;

async fn child(world: &World, name: &str, parent: &SubagentRun, max_depth: Option<i32>) -> SubagentRun {
    let mut run = world.make_run(name, "provider", "!gate open");
    run.spec.parent_ref = Some(ParentRef { kind: ParentKind::SubagentRun, name: parent.name_any(), uid: None });
    run.spec.max_depth = max_depth;
    world.namespace.create(&run).await
}

async fn accepted(world: &World, name: &str) -> (SubagentRun, Lineage) {
    let run = world.until(name, "accepted", |status| has(status, conditions::ACCEPTED)).await;
    let lineage = status(&run).lineage.clone().expect("a lineage");
    (run, lineage)
}

async fn refused(world: &World, name: &str, reason: &str) {
    let run = world.stopped(name).await;
    assert_eq!(end(&run), (Phase::Rejected, reason), "{name}: {:?}", status(&run).message);
}

/// Depths and ancestors are computed and kept, the caps of ancestors hold, and descendants are found when the one
/// between is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d1_c11_c12_c15_depth_caps_and_ancestors_come_from_real_parents() {
    let world = World::new("lineage").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    // c11, D1: what a creator writes about depth and ancestors does not count, in whatever place.
    let mut forged = serde_json::to_value(world.make_run("root", "provider", "!gate open")).expect("JSON");
    forged["metadata"]["labels"] =
        json!({names::RUN_LABEL: "another", names::RUN_UID_LABEL: "somebody", names::ATTEMPT_LABEL: "9"});
    forged["metadata"]["annotations"] = json!({names::WORKER_CONFIG_ANNOTATION: "{}", names::GATEWAY_ROOTS_ANNOTATION: "mine", names::RELEASE_ANNOTATION: "x"});
    forged["status"] = json!({"lineage": {"depth": 7, "rootUID": "somebody", "ancestors": ["somebody"]}});
    let forged: SubagentRun = serde_json::from_value(forged).expect("a run");
    let root = world.namespace.api::<SubagentRun>().create(&PostParams::default(), &forged).await.expect("a run");
    let root_uid = root.uid().expect("a UID");
    let (_, lineage) = accepted(&world, "root").await;
    let expected = Lineage { depth: 1, parent_uid: None, root_uid: root_uid.clone(), ancestors: vec![] };
    assert_eq!(lineage, expected);
    let pod = world.pod(&root, 1).await;
    let labels = [names::RUN_LABEL, names::RUN_UID_LABEL, names::ATTEMPT_LABEL];
    let labels = labels.map(|label| pod.labels().get(label).cloned().unwrap_or_default());
    assert_eq!(labels, ["root".to_owned(), root_uid.clone(), "1".to_owned()]);
    let config: WorkerConfig =
        serde_json::from_str(&pod.annotations()[names::WORKER_CONFIG_ANNOTATION]).expect("a configuration");
    assert_eq!((config.run_uid, config.attempt), (root_uid.clone(), 1));
    assert_ne!(pod.annotations()[names::GATEWAY_ROOTS_ANNOTATION], "mine");

    // c12: the cap is absolute, and that of an ancestor holds for all below.
    child(&world, "too-deep", &root, Some(1)).await;
    refused(&world, "too-deep", "DepthExceeded").await;
    let middle = child(&world, "middle", &root, Some(3)).await;
    let middle_uid = middle.uid().expect("a UID");
    let (_, lineage) = accepted(&world, "middle").await;
    let parent_uid = Some(root_uid.clone());
    assert_eq!(
        lineage,
        Lineage { depth: 2, parent_uid, root_uid: root_uid.clone(), ancestors: vec![root_uid.clone()] }
    );
    let leaf = child(&world, "leaf", &middle, None).await;
    let (_, lineage) = accepted(&world, "leaf").await;
    let below = Lineage {
        depth: 3,
        parent_uid: Some(middle_uid.clone()),
        root_uid: root_uid.clone(),
        ancestors: vec![root_uid.clone(), middle_uid.clone()],
    };
    assert_eq!(lineage, below);
    child(&world, "capped", &leaf, Some(100)).await;
    refused(&world, "capped", "DepthExceeded").await;

    // c15: the one between is deleted when all are over; the descendant is still found from the root, and names it.
    world.node.collector().open_gate("open");
    for name in ["root", "middle", "leaf"] {
        assert_eq!(end(&world.stopped(name).await), (Phase::Completed, "Completed"));
    }
    world.delete_run("middle").await;
    world.gone("middle").await;
    let query = ListParams::default().fields(&format!("{}={root_uid}", names::ROOT_UID_FIELD));
    let found = world.namespace.api::<SubagentRun>().list(&query).await.expect("descendants");
    let leaf = found.items.iter().find(|run| run.name_any() == "leaf").expect("the leaf is found");
    assert_eq!(status(leaf).lineage.as_ref(), Some(&below));
    operator.stop().await;
    world.finish().await;
}

/// A parent is bound by its UID, and one that is on its way out takes no children.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c14_a_replaced_deleting_cancelled_or_finished_parent_takes_no_children() {
    let world = World::new("parents").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    for name in ["done", "cancelled", "deleting", "alive"] {
        world.run(name, "provider", if name == "done" { "hello" } else { "!hang" }).await;
    }
    let done = world.stopped("done").await;
    child(&world, "of-done", &done, None).await;
    refused(&world, "of-done", "ParentUnavailable").await;

    let (alive, _) = accepted(&world, "alive").await;
    let mut other = world.make_run("of-another", "provider", "hello");
    let uid = Some("4b9b9c7e-0000-4000-8000-000000000000".to_owned());
    other.spec.parent_ref = Some(ParentRef { kind: ParentKind::SubagentRun, name: alive.name_any(), uid });
    world.namespace.create(&other).await;
    refused(&world, "of-another", "Unauthorized").await;

    // Both stay as they are for as long as their ends are not reported.
    for name in ["cancelled", "deleting"] {
        world.event(name, "prompt", "").await;
    }
    world.node.report_ends(false);
    world.cancel("cancelled").await;
    world.delete_run("deleting").await;
    for name in ["cancelled", "deleting"] {
        let parent = world.until(name, "stopping", |status| status.stopping.is_some()).await;
        child(&world, &format!("of-{name}"), &parent, None).await;
        refused(&world, &format!("of-{name}"), "ParentUnavailable").await;
    }
    world.node.report_ends(true);
    world.stopped("cancelled").await;
    world.gone("deleting").await;
    child(&world, "of-nobody", &world.make_run("deleting", "provider", ""), None).await;
    refused(&world, "of-nobody", "ParentUnavailable").await;
    operator.stop().await;
    world.finish().await;
}
