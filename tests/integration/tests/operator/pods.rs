//! Worker pods: whose they are, what happens when one is lost, and how their end is proven.

use crate::{
    watching::History,
    world::{LIMIT, World, end, has, pod_name, status},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use nix::sys::signal::Signal;
use serde_json::json;
use subagent_crds::{Phase, SubagentRun, conditions, names};

/// D2: a pod that somebody put where ours would be is neither taken nor changed; it is named, and nothing but its
/// removal is needed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d2_a_foreign_pod_under_our_name_is_never_adopted_nor_overwritten() {
    let world = World::new("foreign").await;
    let run = world.run("run", "provider", "hello").await;
    let name = pod_name(&run, 1);
    // It looks as much like ours as a tenant can make it.
    let foreign: Pod = serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "labels": {names::RUN_LABEL: "run", names::RUN_UID_LABEL: run.uid(), names::ATTEMPT_LABEL: "1"},
        },
        "spec": {"containers": [{"name": "agent", "image": "localhost/mine:dev"}]},
    }))
    .expect("a pod");
    let foreign = world.namespace.create(&foreign).await;
    let operator = world.operator().await;
    world.provider("provider", &[]).await;
    let run = world
        .until("run", "names the pod", |status| {
            let ready = conditions::get(&status.conditions, conditions::WORKER_READY);
            ready.is_some_and(|ready| ready.reason == "PodRejected" && ready.message.contains(&name))
        })
        .await;
    assert_eq!(status(&run).pod_uid, None, "the foreign pod was adopted");
    let pods = world.namespace.api::<Pod>();
    let now = pods.get(&name).await.expect("the foreign pod");
    assert_eq!((now.uid(), now.resource_version()), (foreign.uid(), foreign.resource_version()), "it was written");
    pods.delete(&name, &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() })
        .await
        .expect("a deletion");
    world.node.serve();
    let run = world.stopped("run").await;
    assert_eq!(end(&run), (Phase::Completed, "Completed"));
    assert_ne!(status(&run).pod_uid, foreign.uid());
    operator.stop().await;
    world.finish().await;
}

/// R4: a worker that dies before its turn is replaced, and the agent is asked once all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r4_a_pod_lost_before_its_turn_is_replaced_and_one_prompt_is_sent() {
    let world = World::new("replaced").await;
    let operator = world.operator().await;
    world.provider("provider", &[("SCRIPTED_AGENT_INITIALIZE", "gate:initialize")]).await;
    let run = world.run("run", "provider", "hello").await;
    let worker = world.node.start(&world.pod(&run, 1).await).await;
    world.event("run", "request", "initialize").await;
    worker.signal(Signal::SIGKILL);
    let second = world.pod(&run, 2).await;
    world.node.start(&second).await;
    world.node.collector().open_gate("initialize");
    let run = world.stopped("run").await;
    assert_eq!(end(&run), (Phase::Completed, "Completed"));
    assert_eq!(world.prompts("run"), 1);
    let attempts = &status(&run).attempts;
    let kept: Vec<_> = attempts.iter().map(|attempt| (attempt.number, attempt.reason.as_deref())).collect();
    assert_eq!(kept, [(2, Some("Completed")), (1, Some("WorkerLost"))]);
    assert!(attempts.iter().all(|attempt| attempt.pod_uid.is_some() && attempt.finished_at.is_some()), "{attempts:?}");
    assert_eq!(status(&run).pod_uid, second.uid());
    operator.stop().await;
    world.finish().await;
}

/// S8: a pod taken away by force in the middle of its turn, together with the finalizer: the run settles, says that side
/// effects are possible, and asks nobody again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s8_a_pod_removed_by_force_settles_its_run() {
    let world = World::new("by-force").await;
    let operator = world.operator().await;
    world.provider("provider", &[]).await;
    let run = world.run("run", "provider", "!hang").await;
    let pod = world.pod(&run, 1).await;
    let worker = world.node.start(&pod).await;
    world.event("run", "prompt", "").await;
    let pods = world.namespace.api::<Pod>();
    let none = json!({"metadata": {"finalizers": null}});
    pods.patch(&pod.name_any(), &PatchParams::default(), &Patch::Merge(&none)).await.expect("a patch");
    pods.delete(&pod.name_any(), &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() })
        .await
        .expect("a deletion");
    let run = world.stopped("run").await;
    assert_eq!(end(&run), (Phase::Failed, "PodDeleted"));
    assert!(has(status(&run), conditions::INTERRUPTED));
    assert_eq!(status(&run).attempt, Some(1));
    worker.exit().await;
    assert_eq!(world.prompts("run"), 1);
    world.delete_run("run").await;
    world.gone("run").await;
    operator.stop().await;
    world.finish().await;
}

/// c50: the phase follows the worker's word at once, but Stopped, the pod's finalizer and the run itself wait for the
/// report that every container has ended; the finalizer leaves after Stopped is stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c50_stopped_waits_for_the_containers_and_the_finalizer_for_stopped() {
    let world = World::new("proof").await;
    let (runs, pods) = (History::<SubagentRun>::of(&world.namespace).await, History::<Pod>::of(&world.namespace).await);
    let operator = world.operator().await;
    world.node.report_ends(false);
    world.node.serve();
    world.provider("provider", &[]).await;
    let run = world.run("run", "provider", "hello").await;
    let ended = world.until("run", "terminal", crate::world::is_terminal).await;
    assert_eq!(end(&ended), (Phase::Completed, "Completed"));
    let name = pod_name(&run, 1);
    assert_eq!(world.node.worker(&name).await.exit().await, 0);
    world.delete_run("run").await;
    // The deletion has reached the pod, so it was looked at, and still nothing is released.
    world.namespace.until::<Pod>(&name, "deleting", LIMIT, |pod| pod.metadata.deletion_timestamp.is_some()).await;
    let still: SubagentRun = world.namespace.api().get("run").await.expect("the run is still there");
    assert!(!has(status(&still), conditions::STOPPED), "stopped without a proof");
    world.node.report_ends(true);
    world.gone("run").await;

    let stopped = |run: &SubagentRun| run.status.as_ref().is_some_and(|status| has(status, conditions::STOPPED));
    let ended = |pod: &Pod| pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Succeeded"));
    let bare = |pod: &Pod| pod.metadata.finalizers.iter().flatten().next().is_none();
    let (ended, stored, released, gone) = world
        .namespace
        .eventually("the whole history", LIMIT, async || {
            let ended = pods.first(|seen| ended(&seen.object)).ok_or("no end of the containers")?;
            let stored = runs.first(|seen| stopped(&seen.object)).ok_or("Stopped was never stored")?;
            // Without its last finalizer a deleted pod is gone in the same write.
            let released = pods.first(|seen| seen.is_gone || bare(&seen.object)).ok_or("the pod was never released")?;
            let gone = runs.first(|seen| seen.is_gone).ok_or("the run is not gone")?;
            Ok((ended, stored, released, gone))
        })
        .await;
    assert!(ended < stored, "Stopped before the containers' end");
    assert!(stored < released, "the finalizer left before Stopped was stored");
    assert!(released < gone, "the run left before its pod was released");
    operator.stop().await;
    world.finish().await;
}
