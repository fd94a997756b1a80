//! Deadlines: each ends the run with its own reason, through the same ladder as a cancel.

use crate::world::{LIMIT, World, end, has, pod_name, status};
use k8s_openapi::api::core::v1::Pod;
use subagent_crds::{Phase, conditions};

/// N4, N5: a start deadline says where the start was stuck.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n4_n5_the_start_deadline_names_the_stage() {
    let world = World::new("start-deadline").await;
    let operator = world.operator().await;
    world.provider("provider", &[("SCRIPTED_AGENT_INITIALIZE", "hang")]).await;
    // A stage is reported after five seconds: anything faster is no news.
    let mut run = world.make_run("initialize", "provider", "hello");
    run.spec.start_deadline_seconds = Some(10);
    let run = world.namespace.create(&run).await;
    let mut unconnected = world.make_run("unconnected", "provider", "hello");
    unconnected.spec.start_deadline_seconds = Some(10);
    let unconnected = world.namespace.create(&unconnected).await;
    world.node.start(&world.pod(&run, 1).await).await;
    // Its network lets nothing through: the pod runs, and nobody hears of its worker.
    world.node.pretend(&world.pod(&unconnected, 1).await).await;

    let deleting = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    let pod = world.namespace.until::<Pod>(&pod_name(&unconnected, 1), "deleting", LIMIT, deleting).await;
    world.node.mark_ended(&pod, 143).await;
    let unconnected = world.stopped("unconnected").await;
    assert_eq!(end(&unconnected), (Phase::Failed, "StartDeadlineExceeded"));
    let message = status(&unconnected).message.clone().unwrap_or_default();
    assert!(message.contains("10 s") && message.contains("has not reported"), "{message}");
    let run = world.stopped("initialize").await;
    assert_eq!(end(&run), (Phase::Failed, "StartDeadlineExceeded"));
    let message = status(&run).message.clone().unwrap_or_default();
    assert!(message.contains("stage Initialize"), "{message}");
    assert!(!has(status(&run), conditions::STARTED));
    operator.stop().await;
    world.finish().await;
}

/// The active deadline counts from the start of the session, the idle deadline from the last sign of life.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn active_and_idle_deadlines_end_a_run_with_their_reason() {
    let world = World::new("deadlines").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    // It never stops talking.
    let mut active = world.make_run("active", "provider", "!stream 100000 100 word");
    (active.spec.active_deadline_seconds, active.spec.idle_deadline_seconds) = (Some(4), Some(60));
    world.namespace.create(&active).await;
    // It says nothing at all.
    let mut idle = world.make_run("idle", "provider", "!hang");
    (idle.spec.active_deadline_seconds, idle.spec.idle_deadline_seconds) = (Some(60), Some(4));
    world.namespace.create(&idle).await;
    // Twice the idle deadline long, but never silent: a sign of life is known long before it is missed.
    let mut talks = world.make_run("talks", "provider", "!stream 80 100 word");
    talks.spec.idle_deadline_seconds = Some(4);
    world.namespace.create(&talks).await;
    for (name, reason) in [("active", "DeadlineExceeded"), ("idle", "IdleDeadlineExceeded")] {
        let run = world.stopped(name).await;
        assert_eq!(end(&run), (Phase::Failed, reason), "{:?}", status(&run).message);
        assert!(has(status(&run), conditions::STARTED));
        let stopping = status(&run).stopping.as_ref().map(|stopping| stopping.reason.as_str());
        assert_eq!(stopping, Some(reason));
        world.event(name, "cancel", "").await;
    }
    assert_eq!(end(&world.stopped("talks").await), (Phase::Completed, "Completed"));
    operator.stop().await;
    world.finish().await;
}
