//! Deadlines: each ends the run with its own reason, through the same ladder as a cancel.

use crate::world::{LIMIT, World, end, has, pod_name, status};
use k8s_openapi::api::core::v1::Pod;
use nix::sys::signal::Signal;
use serde_json::json;
use subagent_crds::{Phase, conditions, names};

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
    assert!(message.contains("10 s") && message.contains("has not connected"), "{message}");
    let run = world.stopped("initialize").await;
    assert_eq!(end(&run), (Phase::Failed, "StartDeadlineExceeded"));
    let message = status(&run).message.clone().unwrap_or_default();
    assert!(message.contains("stage Initialize"), "{message}");
    assert!(!has(status(&run), conditions::STARTED));
    operator.stop().await;
    world.finish().await;
}

/// N4: a start that hangs in an init container of the template says in which.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n4_a_hanging_init_container_is_named() {
    let world = World::new("hanging-init").await;
    let operator = world.operator().await;
    let mut provider = world.make_provider("provider", &[]);
    provider.spec.template["spec"]["initContainers"] = json!([{"name": "clone", "image": "localhost/git:dev"}]);
    world.namespace.create(&provider).await;
    let mut run = world.make_run("run", "provider", "hello");
    run.spec.start_deadline_seconds = Some(5);
    let run = world.namespace.create(&run).await;
    let pod = world.pod(&run, 1).await;
    world.node.bind(&pod).await;
    let container = |name: &str, state: serde_json::Value| json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
    let brought = container(names::WORKER_INIT_CONTAINER, json!({"terminated": {"exitCode": 0}}));
    let hangs = container("clone", json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}));
    let agent = container(names::AGENT_CONTAINER, json!({"waiting": {"reason": "PodInitializing"}}));
    let starting = json!({"phase": "Pending", "initContainerStatuses": [brought, hangs], "containerStatuses": [agent]});
    world.node.patch_status(&pod, starting).await;

    let deleting = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    world.namespace.until::<Pod>(&pod_name(&run, 1), "deleting", LIMIT, deleting).await;
    let mut ended = world.node.ended(&pod, 137);
    let killed = |name: &str| container(name, json!({"terminated": {"exitCode": 137}}));
    ended["initContainerStatuses"] = json!([killed(names::WORKER_INIT_CONTAINER), killed("clone")]);
    world.node.patch_status(&pod, ended).await;
    let run = world.stopped("run").await;
    assert_eq!(end(&run), (Phase::Failed, "StartDeadlineExceeded"));
    let message = status(&run).message.clone().unwrap_or_default();
    assert!(message.contains("init container clone is running since"), "{message}");
    assert!(message.contains(&format!("kubectl logs {} -c clone", pod_name(&run, 1))), "{message}");
    operator.stop().await;
    world.finish().await;
}

/// N3: worker and kubelet are gone, and later the node as well. Each deadline is recorded in time all the same; the end
/// needs a proof, and the missing node is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n3_deadlines_hold_while_nothing_answers() {
    let world = World::new("silent-deadlines").await;
    let operator = world.operator().await;
    world.provider("provider", &[]).await;
    let deadlines = [("active", "DeadlineExceeded"), ("idle", "IdleDeadlineExceeded")];
    for (name, _) in deadlines {
        let mut run = world.make_run(name, "provider", "!hang");
        (run.spec.active_deadline_seconds, run.spec.idle_deadline_seconds) =
            if name == "active" { (Some(5), None) } else { (None, Some(5)) };
        let run = world.namespace.create(&run).await;
        let worker = world.node.start(&world.pod(&run, 1).await).await;
        world.event(name, "prompt", "").await;
        world.until(name, "running", |status| status.phase == Some(Phase::Running)).await;
        world.node.report_ends(false);
        worker.signal(Signal::SIGKILL);
        worker.exit().await;
    }
    for (name, reason) in deadlines {
        let stopping = world.until(name, "stopping", |status| status.stopping.is_some()).await;
        assert_eq!(status(&stopping).stopping.as_ref().map(|stop| stop.reason.as_str()), Some(reason));
        assert_eq!(status(&stopping).phase, Some(Phase::Cancelling));
    }
    // Only now, so that nothing but the deadlines can have ended them.
    world.node.vanish().await;
    for (name, reason) in deadlines {
        let run = world.stopped(name).await;
        assert_eq!(end(&run), (Phase::Failed, reason), "{:?}", status(&run).message);
        let stopped = conditions::get(&status(&run).conditions, conditions::STOPPED);
        assert_eq!(stopped.map(|stopped| stopped.reason.as_str()), Some("NodeGone"));
    }
    operator.stop().await;
    world.finish().await;
}

/// N3, N4: a pod that its node took and never said anything about: the start deadline holds, and where no proof comes in
/// time, the run settles and names the pod.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n3_n4_a_start_deadline_settles_without_its_node() {
    let world = World::new("silent-start").await;
    let operator = world.operator().await;
    let mut provider = world.make_provider("provider", &[]);
    provider.spec.template["spec"]["terminationGracePeriodSeconds"] = json!(1);
    world.namespace.create(&provider).await;
    let mut run = world.make_run("run", "provider", "hello");
    run.spec.start_deadline_seconds = Some(5);
    let run = world.namespace.create(&run).await;
    world.node.pretend(&world.pod(&run, 1).await).await;
    let run = world.until("run", "over", crate::world::is_terminal).await;
    assert_eq!(end(&run), (Phase::Failed, "StartDeadlineExceeded"));
    let stopped = conditions::get(&status(&run).conditions, conditions::STOPPED).expect("Stopped");
    assert_eq!((stopped.status.as_str(), stopped.reason.as_str()), ("False", "CleanupFailed"));
    assert!(stopped.message.contains(&pod_name(&run, 1)), "{}", stopped.message);
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
