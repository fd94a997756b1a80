//! S7: a cancel at each point of a run's life.

use crate::world::{World, end, has, pod_name, status};
use k8s_openapi::api::core::v1::Pod;
use subagent_crds::{Phase, conditions};

/// Before there is a pod: while the run waits for its provider.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s7_a_cancel_before_the_pod_starts_nothing() {
    let world = World::new("cancel-early").await;
    let operator = world.operator().await;
    world.run("run", "provider", "hello").await;
    world.until("run", "waits", |status| status.reason.as_deref() == Some("NoProvider")).await;
    world.cancel("run").await;
    let run = world.stopped("run").await;
    assert_eq!(end(&run), (Phase::Cancelled, "Cancelled"));
    world.provider("provider", &[]).await;
    world.ready("provider").await;
    world.run("other", "provider", "hello").await;
    world.until("other", "has a pod", |status| status.pod_uid.is_some()).await;
    assert_eq!(world.pods().await.len(), 1, "only the other run has a pod");
    operator.stop().await;
    world.finish().await;
}

/// While its pod waits for a node: the pod goes, and nothing of it can have run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s7_a_cancel_while_the_pod_is_pending_removes_the_pod() {
    let world = World::new("cancel-pending").await;
    let operator = world.operator().await;
    world.provider("provider", &[]).await;
    let run = world.run("run", "provider", "hello").await;
    world.until("run", "has a pod", |status| status.pod_uid.is_some()).await;
    world.cancel("run").await;
    let stopped = world.stopped("run").await;
    assert_eq!(end(&stopped), (Phase::Cancelled, "Cancelled"));
    assert!(!has(status(&stopped), conditions::STARTED));
    gone(&world, &pod_name(&run, 1)).await;
    assert_eq!(world.prompts("run"), 0);
    operator.stop().await;
    world.finish().await;
}

/// While the images of its pod are pulled: the kubelet ends the pod without having started anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s7_a_cancel_while_images_are_pulled_waits_for_the_kubelet() {
    let world = World::new("cancel-pulling").await;
    let operator = world.operator().await;
    world.provider("provider", &[]).await;
    let run = world.run("run", "provider", "hello").await;
    let pod = world.pod(&run, 1).await;
    world.node.bind(&pod).await;
    world.until("run", "has a pod", |status| status.pod_uid.is_some()).await;
    world.cancel("run").await;
    let deleting = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    world.namespace.until::<Pod>(&pod_name(&run, 1), "deleting", crate::world::LIMIT, deleting).await;
    let waiting = world.until("run", "Cancelling", |status| status.phase == Some(Phase::Cancelling)).await;
    assert!(!has(status(&waiting), conditions::STOPPED), "stopped although the pod has a node");
    world.node.mark_ended(&pod, 137).await;
    let stopped = world.stopped("run").await;
    assert_eq!(end(&stopped), (Phase::Cancelled, "Cancelled"));
    assert!(!has(status(&stopped), conditions::STARTED));
    operator.stop().await;
    world.finish().await;
}

/// During `initialize`: no session existed, so the run never started.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s7_a_cancel_during_initialize_is_no_start() {
    let world = World::new("cancel-initialize").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[("SCRIPTED_AGENT_INITIALIZE", "hang")]).await;
    world.run("run", "provider", "hello").await;
    world.event("run", "request", "initialize").await;
    world.cancel("run").await;
    let run = world.stopped("run").await;
    assert_eq!(end(&run), (Phase::Cancelled, "Cancelled"));
    assert!(!has(status(&run), conditions::STARTED));
    assert_eq!(world.prompts("run"), 0);
    operator.stop().await;
    world.finish().await;
}

/// In the middle of its message: aborted, and what was said so far is kept (c27, c52).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s7_c27_a_cancel_in_the_stream_keeps_what_was_said() {
    let world = World::new("cancel-stream").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    let run = world.run("run", "provider", "!say some of it\n!gate never").await;
    world.event("run", "gate", "never").await;
    world.until("run", "running", |status| status.phase == Some(Phase::Running)).await;
    world.cancel("run").await;
    let stopped = world.stopped("run").await;
    assert_eq!(end(&stopped), (Phase::Cancelled, "Cancelled"));
    assert_eq!(status(&stopped).stop_reason.as_deref(), Some("Aborted"));
    assert!(has(status(&stopped), conditions::STARTED));
    world.event("run", "cancel", "").await;
    let turns = &status(&stopped).report.as_ref().expect("a report").turns;
    let preview = turns.first().and_then(|turn| turn.preview.clone()).unwrap_or_default();
    assert!(preview.contains("some of it"), "{turns:?}");
    assert_eq!(world.node.worker(&pod_name(&run, 1)).await.exit().await, 0);
    operator.stop().await;
    world.finish().await;
}

/// S4: a cancel of a run that is over changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s4_s7_a_cancel_after_the_end_changes_nothing() {
    let world = World::new("cancel-late").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    world.run("run", "provider", "hello").await;
    let before = world.stopped("run").await;
    let reconciles = operator.reconciles().await;
    world.cancel("run").await;
    world
        .namespace
        .eventually("the cancel is looked at", crate::world::LIMIT, async || {
            if operator.reconciles().await > reconciles { Ok(()) } else { Err("no reconcile yet".into()) }
        })
        .await;
    let after = world.stopped("run").await;
    assert_eq!(end(&after), (Phase::Completed, "Completed"));
    assert_eq!(status(&after).result, status(&before).result);
    operator.stop().await;
    world.finish().await;
}

async fn gone(world: &World, pod: &str) {
    let pods = world.namespace.api::<Pod>();
    let pods = &pods;
    world
        .namespace
        .eventually(&format!("pod {pod}: gone"), crate::world::LIMIT, async || match pods.get_opt(pod).await {
            Ok(None) => Ok(()),
            other => Err(format!("{:?}", other.map(|pod| pod.map(|pod| pod.metadata)))),
        })
        .await;
}
