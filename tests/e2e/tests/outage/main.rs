//! What goes away while a turn runs: the operator, killed, replaced or uninstalled, and the worker. In a binary of its
//! own, because every run on the cluster waits while there is no operator.

use e2e_tests::{
    RunView, ScriptedProvider, cluster, collector,
    collector::seen_event,
    commands::{helm, kubectl},
    in_namespace,
    namespace::PATIENCE,
    run,
    status::end,
};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::time::Duration;
use subagent_crds::{Phase, SubagentRun, conditions};

/// Longest time until another operator works: the old one's lease runs out after 15 s.
const TAKEOVER: Duration = Duration::from_secs(150);

/// How long the operator is away: longer than its lease of 15 s.
const OUTAGE: Duration = Duration::from_secs(18);

/// Only one test at a time may take the operator away.
static OPERATOR: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Kills every operator pod without a warning and waits until another one is ready.
async fn replace_operator(client: &kube::Client) {
    let old = cluster::operator_pods(client).await;
    let old: Vec<String> = old.into_iter().filter_map(|pod| pod.uid()).collect();
    assert!(!old.is_empty(), "no operator to kill");
    let label = "app.kubernetes.io/name=subagent-operator";
    kubectl(&[
        "delete",
        "pods",
        "--namespace",
        cluster::OPERATOR_NAMESPACE,
        "-l",
        label,
        "--force",
        "--grace-period=0",
    ]);
    let deadline = std::time::Instant::now() + TAKEOVER;
    loop {
        let pods = cluster::operator_pods(client).await;
        let is_ready = |pod: &Pod| {
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
            conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
        };
        if pods.iter().any(|pod| is_ready(pod) && pod.uid().is_some_and(|uid| !old.contains(&uid))) {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "no new operator within {TAKEOVER:?}");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

#[tokio::test]
async fn r1_r3_r4_c41_the_turn_goes_on_when_the_operator_is_killed() {
    let _alone = OPERATOR.lock().await;
    in_namespace("operator-killed", async |ns| {
        let collector = collector();
        ns.provider(&ScriptedProvider::default().reporting_to(collector.address())).await;
        let script = "!say before\n!gate operator-is-back\n!say after";
        ns.create(&run("survivor", script)).await;
        // Ends while there is nobody to tell.
        let quick = "!gate operator-is-gone\n!say all by myself";
        ns.create(&run("unattended", quick)).await;
        seen_event(&collector, PATIENCE, "gate", "operator-is-back").await;
        seen_event(&collector, PATIENCE, "gate", "operator-is-gone").await;
        let before = ns.run_until("survivor", "Running", |run| run.phase() == Some(Phase::Running)).await;
        let session = before.seen().report.and_then(|report| report.session).expect("R3: the session is stored");
        ns.run_until("unattended", "Running", |run| run.phase() == Some(Phase::Running)).await;

        collector.open_gate("operator-is-gone");
        replace_operator(&ns.client).await;
        collector.open_gate("operator-is-back");

        let run = ns.until("survivor", "Stopped", TAKEOVER, |run: &SubagentRun| run.is(conditions::STOPPED)).await;
        assert_eq!(run.end(), end("Completed", "Completed", "Completed"), "{}", run.message());
        assert_eq!(run.text(), "beforeafter", "one message, before and after");
        assert_eq!(run.seen().report.and_then(|report| report.session), Some(session));
        assert_eq!((run.seen().attempt, run.condition(conditions::INTERRUPTED)), (Some(1), None));
        let other = ns.until("unattended", "Stopped", TAKEOVER, |run: &SubagentRun| run.is(conditions::STOPPED)).await;
        assert_eq!((other.end(), other.text()), (end("Completed", "Completed", "Completed"), "all by myself".into()));
        // R4: one prompt each, whatever was reconnected in between.
        for text in [script, quick] {
            let prompts = collector.of_kind("prompt").into_iter().filter(|prompt| prompt.text == text).count();
            assert_eq!(prompts, 1, "prompts {text:?}");
        }
        assert!(collector.of_kind("second-prompt").is_empty());
        // A new run works with the new operator.
        let next = ns.finish(&e2e_tests::run("next", "hello again")).await;
        assert_eq!(next.text(), "echo: hello again");
    })
    .await;
}

#[tokio::test]
async fn c5_c7_a_rolling_update_disturbs_no_turn() {
    let _alone = OPERATOR.lock().await;
    in_namespace("rolling-update", async |ns| {
        let collector = collector();
        ns.provider(&ScriptedProvider::default().reporting_to(collector.address())).await;
        ns.create(&run("steady", "!gate updated\n!say not disturbed")).await;
        seen_event(&collector, PATIENCE, "gate", "updated").await;
        let deployment = format!("deployment/{}", cluster::RELEASE);
        let namespace = ["--namespace", cluster::OPERATOR_NAMESPACE];
        kubectl(&[&["rollout", "restart", deployment.as_str()], &namespace[..]].concat());
        kubectl(&[&["rollout", "status", deployment.as_str(), "--timeout=120s"], &namespace[..]].concat());
        collector.open_gate("updated");
        let run = ns.stopped("steady").await;
        assert_eq!((run.end(), run.text()), (end("Completed", "Completed", "Completed"), "not disturbed".into()));
        assert_eq!(collector.of_kind("prompt").len(), 1);
    })
    .await;
}

#[tokio::test]
async fn c7_s6_r14_an_uninstalled_chart_loses_no_run_and_lets_none_go_without_proof() {
    let _alone = OPERATOR.lock().await;
    in_namespace("uninstalled", async |ns| {
        let collector = collector();
        ns.provider(&ScriptedProvider::default().reporting_to(collector.address())).await;
        ns.create(&run("steady", "!gate installed\n!say still here")).await;
        ns.create(&run("ending", "!gate uninstalled\n!say nobody was listening")).await;
        let deleted = ns.create(&run("deleted", "!stamp 100\n!hang")).await;
        for gate in ["installed", "uninstalled"] {
            seen_event(&collector, PATIENCE, "gate", gate).await;
        }
        for name in ["steady", "ending", "deleted"] {
            ns.run_until(name, "Running", |run| run.phase() == Some(Phase::Running)).await;
        }

        helm(&["uninstall", cluster::RELEASE, "--namespace", cluster::OPERATOR_NAMESPACE, "--wait"]);
        ns.kubectl(&["delete", "subagentrun", "deleted", "--wait=false"]);
        collector.open_gate("uninstalled");
        // The outage itself is what is tested here.
        tokio::time::sleep(OUTAGE).await;
        let waiting = ns.run("deleted").await;
        assert!(waiting.metadata.deletion_timestamp.is_some(), "c50: it stays until it is proven stopped");
        assert_eq!(ns.run("ending").await.phase(), Some(Phase::Running), "nobody could store its end");

        cluster::install(&ns.client).await;
        let gone_ms = ns.gone::<SubagentRun>("deleted", &deleted.uid().unwrap_or_default(), TAKEOVER).await;
        let last = collector.of_kind("stamp").iter().map(|stamp| stamp.time_ms).max().expect("stamps");
        assert!(last <= gone_ms, "S1: a stamp {} ms after the run was gone", last.saturating_sub(gone_ms));
        let ending = ns.until("ending", "Stopped", TAKEOVER, |run: &SubagentRun| run.is(conditions::STOPPED)).await;
        assert_eq!(
            (ending.end(), ending.text()),
            (end("Completed", "Completed", "Completed"), "nobody was listening".into())
        );
        collector.open_gate("installed");
        let steady = ns.stopped("steady").await;
        assert_eq!((steady.end(), steady.text()), (end("Completed", "Completed", "Completed"), "still here".into()));
        assert_eq!(collector.of_kind("prompt").len(), 3, "no prompt was sent twice");
    })
    .await;
}

#[tokio::test]
async fn r1_a_worker_that_dies_in_its_turn_leaves_the_right_reason_and_interrupted() {
    let _alone = OPERATOR.lock().await;
    in_namespace("worker-killed", async |ns| {
        let collector = collector();
        ns.provider(&ScriptedProvider::default().reporting_to(collector.address())).await;
        ns.create(&run("lost", "!say so far\n!hang hard")).await;
        seen_event(&collector, PATIENCE, "prompt", "!say so far\n!hang hard").await;
        let running = ns.run_until("lost", "Running", |run| run.phase() == Some(Phase::Running)).await;
        kill_worker(&running.pod_name(), &running.seen().pod_uid.unwrap_or_default());
        let run = ns.stopped("lost").await;
        assert_eq!(run.end(), end("Failed", "Error", "WorkerLost"), "{}", run.message());
        assert_eq!(run.condition(conditions::INTERRUPTED).map(|condition| condition.status), Some("True".into()));
        assert_eq!(collector.of_kind("prompt").len(), 1);
    })
    .await;
}

/// Sends SIGKILL to process 1 of a pod's agent container, from the node: its processes are this host's.
fn kill_worker(pod: &str, uid: &str) {
    let mut killed = vec![];
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        let read = |file: &str| std::fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        let is_worker = read("cmdline").starts_with("/subagents/") && read("cmdline").contains("run\0--\0");
        let mounts = read("mountinfo");
        if is_worker && mounts.contains(uid) {
            killed.push(pid);
        }
    }
    assert_eq!(killed.len(), 1, "worker of pod {pod} ({uid})");
    let status = std::process::Command::new("kill").args(["-KILL", &killed[0].to_string()]).status().expect("kill");
    assert!(status.success());
}
