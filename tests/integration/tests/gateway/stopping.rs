//! How a stop reaches the worker.

use crate::{
    worker::{Heard, Worker},
    world::World,
};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use subagent_crds::names;
use subagent_link::{AUDIENCE, GatewayMessage};

async fn cancelled(worker: &mut Worker) {
    stopped(worker, "Cancelled").await;
}

async fn stopped(worker: &mut Worker, why: &str) {
    match worker.next().await {
        Heard::Message(GatewayMessage::Cancel { reason }) => assert_eq!(reason, why),
        other => panic!("a cancel was expected, not {other:?}"),
    }
}

#[tokio::test]
async fn s7_a_stop_is_forwarded_to_the_connected_worker_of_that_run_alone() {
    let world = World::new("cancel").await;
    let keep = json!({"metadata": {"finalizers": [names::RUN_FINALIZER]}});
    let (spec, _, spec_token) = world.started("spec").await;
    let (deleted, _, deleted_token) = world.started("deleted").await;
    let (deadline, _, deadline_token) = world.started("deadline").await;
    let (other, _, other_token) = world.started("other").await;
    let (mut by_spec, _) = Worker::assigned(&world.replica, &spec_token, &spec).await;
    let (mut by_deletion, _) = Worker::assigned(&world.replica, &deleted_token, &deleted).await;
    let (mut by_deadline, _) = Worker::assigned(&world.replica, &deadline_token, &deadline).await;
    let (mut untouched, _) = Worker::assigned(&world.replica, &other_token, &other).await;

    let params = PatchParams::default();
    world.runs().patch("spec", &params, &Patch::Merge(json!({"spec": {"cancel": true}}))).await.unwrap();
    cancelled(&mut by_spec).await;
    world.runs().patch("deleted", &params, &Patch::Merge(&keep)).await.unwrap();
    world.runs().delete("deleted", &DeleteParams::default()).await.unwrap();
    cancelled(&mut by_deletion).await;
    let stopping = json!({"stopping": {"reason": "DeadlineExceeded", "at": "2026-01-01T00:00:00Z"}});
    world.set_status("deadline", stopping).await;
    stopped(&mut by_deadline, "DeadlineExceeded").await;
    // Had a cancel been sent to it, it would come before this acknowledgement.
    untouched.report(1, json!({"turnCount": 0, "idle": false})).await;
    // A worker that is being stopped still reports.
    by_spec.report(1, json!({"turnCount": 1, "idle": false, "stage": "Stopping"})).await;
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    world.runs().patch("deleted", &params, &release).await.unwrap();
}

#[tokio::test]
async fn c9_a_run_cancelled_before_its_worker_came_starts_nothing() {
    let world = World::new("cancelled").await;
    let run = world.run("early").await;
    let pod = world.pod("early-1", &run).await;
    let run = world.begin(&run, 1, &pod).await;
    let token = world.token(&pod, AUDIENCE).await;
    let cancel = Patch::Merge(json!({"spec": {"cancel": true}}));
    world.runs().patch("early", &PatchParams::default(), &cancel).await.unwrap();
    let mut worker = Worker::hello(&world.replica, &token, &run, 1, 0).await;
    worker.welcomed().await;
    cancelled(&mut worker).await;
    // No assignment: the next thing it hears is the acknowledgement of its report.
    worker.report(1, json!({"turnCount": 0, "idle": true})).await;
    // Said again at every connection while it holds.
    let mut again = Worker::hello(&world.replica, &token, &run, 1, 1).await;
    again.welcomed().await;
    cancelled(&mut again).await;
}
