//! S7: a stop at each point of a run's life, by `spec.cancel` and by deletion; S8: what else may happen meanwhile.

use crate::{
    watching::History,
    world::{LIMIT, World, end, has, is_terminal, pod_name, status},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use nix::sys::signal::Signal;
use rstest::rstest;
use serde_json::json;
use std::time::{Duration, Instant};
use subagent_crds::{Phase, SubagentRun, conditions};

/// The two ways to stop a run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Update,
    Delete,
}

/// Surroundings of a run of the name `run`, and everything that becomes of it.
struct Scene {
    world: World,
    history: History<SubagentRun>,
    how: How,
}

impl Scene {
    async fn new(hint: &str, how: How) -> Self {
        let hint = format!("{hint}-{}", format!("{how:?}").to_lowercase());
        let world = World::new(&hint).await;
        let history = History::of(&world.namespace).await;
        Self { world, history, how }
    }

    async fn stop(&self) {
        match self.how {
            How::Update => self.world.cancel("run").await,
            How::Delete => self.world.delete_run("run").await,
        }
    }

    /// The run as it was in the end: over, and proven stopped, before it was gone (c50).
    async fn end(&self) -> SubagentRun {
        if self.how == How::Update {
            return self.world.stopped("run").await;
        }
        self.world.gone("run").await;
        let history = &self.history;
        let last = self
            .world
            .namespace
            .eventually("the last version", LIMIT, async || {
                history.last(|seen| seen.is_gone).ok_or_else(|| "no deletion in the history yet".to_owned())
            })
            .await;
        let run = last.object;
        assert!(is_terminal(status(&run)) && has(status(&run), conditions::STOPPED), "c50: gone without a proof");
        run
    }
}

/// Before there is a pod: while the run waits for its provider.
#[rstest]
#[case::by_update(How::Update)]
#[case::by_delete(How::Delete)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s7_a_stop_before_the_pod_starts_nothing(#[case] how: How) {
    let scene = Scene::new("stop-early", how).await;
    let world = &scene.world;
    let operator = world.operator().await;
    world.run("run", "provider", "hello").await;
    world.until("run", "waits", |status| status.reason.as_deref() == Some("NoProvider")).await;
    scene.stop().await;
    match how {
        How::Update => assert_eq!(end(&world.stopped("run").await), (Phase::Cancelled, "Cancelled")),
        // Nothing was ever started for it: there is nothing to prove.
        How::Delete => world.gone("run").await,
    }
    world.provider("provider", &[]).await;
    world.ready("provider").await;
    world.run("other", "provider", "hello").await;
    world.until("other", "has a pod", |status| status.pod_uid.is_some()).await;
    assert_eq!(world.pods().await.len(), 1, "only the other run has a pod");
    operator.stop().await;
    scene.world.finish().await;
}

/// While its pod waits for a node: the pod goes, and nothing of it can have run.
#[rstest]
#[case::by_update(How::Update)]
#[case::by_delete(How::Delete)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s7_a_stop_while_the_pod_is_pending_removes_the_pod(#[case] how: How) {
    let scene = Scene::new("stop-pending", how).await;
    let world = &scene.world;
    let operator = world.operator().await;
    world.provider("provider", &[]).await;
    let run = world.run("run", "provider", "hello").await;
    world.until("run", "has a pod", |status| status.pod_uid.is_some()).await;
    scene.stop().await;
    let stopped = scene.end().await;
    assert_eq!(end(&stopped), (Phase::Cancelled, "Cancelled"));
    assert!(!has(status(&stopped), conditions::STARTED));
    gone(world, &pod_name(&run, 1)).await;
    assert_eq!(world.prompts("run"), 0);
    operator.stop().await;
    scene.world.finish().await;
}

/// While the images of its pod are pulled: the kubelet ends the pod without having started anything.
#[rstest]
#[case::by_update(How::Update)]
#[case::by_delete(How::Delete)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s7_c50_a_stop_while_images_are_pulled_waits_for_the_kubelet(#[case] how: How) {
    let scene = Scene::new("stop-pulling", how).await;
    let world = &scene.world;
    let operator = world.operator().await;
    world.provider("provider", &[]).await;
    let run = world.run("run", "provider", "hello").await;
    let pod = world.pod(&run, 1).await;
    world.node.bind(&pod).await;
    world.until("run", "has a pod", |status| status.pod_uid.is_some()).await;
    scene.stop().await;
    let deleting = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    let deleted = world.namespace.until::<Pod>(&pod_name(&run, 1), "deleting", LIMIT, deleting).await;
    let grace = deleted.metadata.deletion_grace_period_seconds.unwrap_or_default();
    assert!(grace >= 2 + 1 + 1 + 15, "c50: the kubelet is given {grace} s to prove the end");
    let waiting = world.until("run", "Cancelling", |status| status.phase == Some(Phase::Cancelling)).await;
    assert!(!has(status(&waiting), conditions::STOPPED), "stopped although the pod has a node");
    world.node.mark_ended(&pod, 137).await;
    let stopped = scene.end().await;
    assert_eq!(end(&stopped), (Phase::Cancelled, "Cancelled"));
    assert!(!has(status(&stopped), conditions::STARTED));
    operator.stop().await;
    scene.world.finish().await;
}

/// During `initialize` and `session/new`, so right before the prompt: no session existed, so the run never started.
#[rstest]
#[case::initialize_by_update(How::Update, "INITIALIZE", "initialize")]
#[case::initialize_by_delete(How::Delete, "INITIALIZE", "initialize")]
#[case::session_by_update(How::Update, "NEW", "session/new")]
#[case::session_by_delete(How::Delete, "NEW", "session/new")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s7_a_stop_before_the_session_is_no_start(#[case] how: How, #[case] stage: &str, #[case] request: &str) {
    let scene = Scene::new(&format!("stop-{}", stage.to_lowercase()), how).await;
    let world = &scene.world;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[(&format!("SCRIPTED_AGENT_{stage}"), "hang")]).await;
    world.run("run", "provider", "hello").await;
    world.event("run", "request", request).await;
    scene.stop().await;
    let run = scene.end().await;
    assert_eq!(end(&run), (Phase::Cancelled, "Cancelled"));
    assert!(!has(status(&run), conditions::STARTED));
    assert_eq!(world.prompts("run"), 0);
    operator.stop().await;
    scene.world.finish().await;
}

/// In the middle of its message: aborted, and what was said so far is kept (c27, c52).
#[rstest]
#[case::by_update(How::Update)]
#[case::by_delete(How::Delete)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s7_c27_a_stop_in_the_stream_keeps_what_was_said(#[case] how: How) {
    let scene = Scene::new("stop-stream", how).await;
    let world = &scene.world;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    let run = world.run("run", "provider", "!say some of it\n!gate never").await;
    world.event("run", "gate", "never").await;
    world.until("run", "running", |status| status.phase == Some(Phase::Running)).await;
    scene.stop().await;
    let stopped = scene.end().await;
    assert_eq!(end(&stopped), (Phase::Cancelled, "Cancelled"));
    assert_eq!(status(&stopped).stop_reason.as_deref(), Some("Aborted"));
    assert!(has(status(&stopped), conditions::STARTED));
    world.event("run", "cancel", "").await;
    let turns = &status(&stopped).report.as_ref().expect("a report").turns;
    let preview = turns.first().and_then(|turn| turn.preview.clone()).unwrap_or_default();
    assert!(preview.contains("some of it"), "{turns:?}");
    assert_eq!(world.node.worker(&pod_name(&run, 1)).await.exit().await, 0);
    operator.stop().await;
    scene.world.finish().await;
}

/// S5: a tool that hangs on a connection nobody answers, in an agent that listens to nothing: aborted within the graces.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s5_c48_a_hanging_tool_is_aborted_within_the_graces() {
    let world = World::new("hanging-tool").await;
    let operator = world.operator().await;
    world.node.serve();
    let deaf = ["SCRIPTED_AGENT_EOF", "SCRIPTED_AGENT_SIGTERM"].map(|stage| (stage, "ignore"));
    world.provider("provider", &deaf).await;
    world.run("run", "provider", "!tool fetch in_progress\n!hang hard").await;
    world.until("run", "running", |status| status.phase == Some(Phase::Running)).await;
    world.event("run", "prompt", "").await;
    let (asked, graces) = (Instant::now(), Duration::from_secs(2 + 1 + 1));
    world.cancel("run").await;
    let run = world.stopped("run").await;
    assert_eq!(end(&run), (Phase::Cancelled, "Cancelled"));
    assert_eq!(status(&run).stop_reason.as_deref(), Some("Aborted"));
    // The pod is deleted 15 s beyond the graces: the worker did this by itself, and sooner.
    let took = asked.elapsed();
    assert!(took >= Duration::from_secs(2) && took < graces + Duration::from_secs(12), "{took:?}");
    operator.stop().await;
    world.finish().await;
}

/// After the final report, while the worker still ends: the agent was done first, and that stands (S4).
#[rstest]
#[case::by_update(How::Update)]
#[case::by_delete(How::Delete)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s4_s7_a_stop_after_the_final_report_changes_nothing(#[case] how: How) {
    let scene = Scene::new("stop-late", how).await;
    let world = &scene.world;
    let operator = world.operator().await;
    world.node.report_ends(false);
    world.node.serve();
    world.provider("provider", &[]).await;
    world.run("run", "provider", "hello").await;
    let before = world.until("run", "over", is_terminal).await;
    assert!(!has(status(&before), conditions::STOPPED));
    scene.stop().await;
    world.node.report_ends(true);
    let after = scene.end().await;
    assert_eq!(end(&after), (Phase::Completed, "Completed"));
    assert_eq!(status(&after).result, status(&before).result);
    operator.stop().await;
    scene.world.finish().await;
}

/// S4: a cancel of a run that is over and stopped changes nothing.
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
        .eventually("the cancel is looked at", LIMIT, async || {
            if operator.reconciles().await > reconciles { Ok(()) } else { Err("no reconcile yet".into()) }
        })
        .await;
    let after = world.stopped("run").await;
    assert_eq!(end(&after), (Phase::Completed, "Completed"));
    assert_eq!(status(&after).result, status(&before).result);
    operator.stop().await;
    world.finish().await;
}

/// S8: the worker dies in the middle of the ladder, by a signal, or because the container used too much memory. The stop
/// that is recorded decides.
#[rstest]
#[case::killed("Error")]
#[case::out_of_memory("OOMKilled")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s8_c27_a_worker_that_dies_during_the_cancel_settles_as_cancelled(#[case] reason: &str) {
    let world = World::new("dies-cancelled").await;
    let operator = world.operator().await;
    world.provider("provider", &[("SCRIPTED_AGENT_CANCEL", "ignore")]).await;
    let run = world.run("run", "provider", "!hang").await;
    let pod = world.pod(&run, 1).await;
    let worker = world.node.start(&pod).await;
    world.event("run", "prompt", "").await;
    world.node.report_ends(false);
    world.cancel("run").await;
    world.event("run", "cancel", "").await;
    worker.signal(Signal::SIGKILL);
    worker.exit().await;
    let mut ended = world.node.ended(&pod, 137);
    ended["containerStatuses"][0]["state"]["terminated"]["reason"] = json!(reason);
    world.node.patch_status(&pod, ended).await;
    let run = world.stopped("run").await;
    assert_eq!(end(&run), (Phase::Cancelled, "Cancelled"), "{:?}", status(&run).message);
    assert_eq!(world.prompts("run"), 1);
    operator.stop().await;
    world.finish().await;
}

/// S8: a tenant takes the labels off the pod, so that no watch tells of it any more. The run is looked at all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s8_a_pod_without_its_labels_is_stopped_like_any_other() {
    let world = World::new("no-labels").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    let run = world.run("run", "provider", "!hang").await;
    world.event("run", "prompt", "").await;
    let pods = world.namespace.api::<Pod>();
    let bare = json!({"metadata": {"labels": null}});
    let pod = pods.patch(&pod_name(&run, 1), &PatchParams::default(), &Patch::Merge(&bare)).await.expect("a patch");
    assert!(pod.labels().is_empty());
    world.delete_run("run").await;
    world.gone("run").await;
    world.event("run", "cancel", "").await;
    world.node.worker(&pod_name(&run, 1)).await.exit().await;
    operator.stop().await;
    world.finish().await;
}

/// S8: `kubectl replace` with the manifest the run was made of takes its finalizer off, and changes no generation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s8_a_replaced_run_gets_its_finalizer_back() {
    let world = World::new("replaced").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    let run = world.run("run", "provider", "!hang").await;
    world.event("run", "prompt", "").await;
    let runs = world.namespace.api::<SubagentRun>();
    let replace = async || {
        let mut plain = world.make_run("run", "provider", "!hang");
        // As kubectl does.
        plain.metadata.resource_version = runs.get("run").await.map_err(|error| error.to_string())?.resource_version();
        runs.replace("run", &PostParams::default(), &plain).await.map_err(|error| error.to_string())
    };
    let replaced = world.namespace.eventually("a replaced run", LIMIT, replace).await;
    assert!(replaced.finalizers().is_empty());
    let held = async || match runs.get("run").await {
        Ok(run) if !run.finalizers().is_empty() => Ok(()),
        other => Err(format!("{:?}", other.map(|run| run.metadata))),
    };
    world.namespace.eventually("the finalizer is back", LIMIT, held).await;
    world.delete_run("run").await;
    world.gone("run").await;
    world.event("run", "cancel", "").await;
    world.node.worker(&pod_name(&run, 1)).await.exit().await;
    operator.stop().await;
    world.finish().await;
}

async fn gone(world: &World, pod: &str) {
    let pods = world.namespace.api::<Pod>();
    let pods = &pods;
    world
        .namespace
        .eventually(&format!("pod {pod}: gone"), LIMIT, async || match pods.get_opt(pod).await {
            Ok(None) => Ok(()),
            other => Err(format!("{:?}", other.map(|pod| pod.map(|pod| pod.metadata)))),
        })
        .await;
}
