//! What goes away while a turn runs: the operator, killed or replaced, the API server, and the worker. In a binary of its
//! own, because every run on the cluster waits while there is no operator.

use e2e_tests::{
    RunView, ScriptedProvider, cluster, collector,
    collector::{seen, seen_event},
    commands::{cluster_dir, kubectl},
    in_namespace,
    namespace::PATIENCE,
    run,
    status::end,
};
use futures::FutureExt;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
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

/// C5, C7.
#[tokio::test]
async fn a_rolling_update_disturbs_no_turn() {
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

/// C5.
#[tokio::test]
async fn r9_with_two_replicas_any_of_them_serves_and_either_may_die() {
    let _alone = OPERATOR.lock().await;
    in_namespace("replicas", async |ns| {
        let collector = collector();
        ns.provider(&ScriptedProvider::default().reporting_to(collector.address())).await;
        scale(2);
        let scale_back = std::panic::AssertUnwindSafe(async {
            // Connections are spread over both by the Service; enough of them that neither has all.
            let names: Vec<String> = (0..8).map(|number| format!("run-{number}")).collect();
            for name in &names {
                ns.create(&run(name, &format!("{name}\n!gate leader-died\n!say {name} is done"))).await;
            }
            seen(&collector, PATIENCE, |events| {
                (events.iter().filter(|event| event.kind == "gate").count() == 8).then_some(())
            })
            .await;
            for name in &names {
                ns.run_until(name, "Running", |run| run.phase() == Some(Phase::Running)).await;
            }
            // A cancel reaches its worker whichever replica it is connected to.
            for name in &names[..4] {
                ns.cancel(name);
            }
            for name in &names[..4] {
                let run = ns.stopped(name).await;
                assert_eq!(run.end(), end("Cancelled", "Aborted", "Cancelled"), "{}", run.message());
            }
            // c48: the agents were asked, their pods not just deleted.
            assert_eq!(collector.of_kind("cancel").len(), 4);
            let leader = leader(&ns.client).await;
            let namespace = ["--namespace", cluster::OPERATOR_NAMESPACE];
            kubectl(&[&["delete", "pod", leader.as_str(), "--force", "--grace-period=0"], &namespace[..]].concat());
            collector.open_gate("leader-died");
            for name in &names[4..] {
                let run = ns.until(name, "Stopped", TAKEOVER, |run: &SubagentRun| run.is(conditions::STOPPED)).await;
                assert_eq!(
                    (run.end(), run.text()),
                    (end("Completed", "Completed", "Completed"), format!("{name} is done"))
                );
                let prompts = collector.of_kind("prompt").iter().filter(|prompt| prompt.text.starts_with(name)).count();
                assert_eq!((prompts, run.seen().attempt), (1, Some(1)), "{name}");
            }
        })
        .catch_unwind()
        .await;
        scale(1);
        if let Err(panic) = scale_back {
            std::panic::resume_unwind(panic);
        }
    })
    .await;
}

/// Runs that many replicas of the operator and waits for them.
fn scale(replicas: u32) {
    let deployment = format!("deployment/{}", cluster::RELEASE);
    let namespace = ["--namespace", cluster::OPERATOR_NAMESPACE];
    kubectl(&[&["scale", deployment.as_str(), &format!("--replicas={replicas}")], &namespace[..]].concat());
    kubectl(&[&["rollout", "status", deployment.as_str(), "--timeout=120s"], &namespace[..]].concat());
}

/// Name of the operator pod that leads.
async fn leader(client: &kube::Client) -> String {
    let leases: kube::Api<Lease> = kube::Api::namespaced(client.clone(), cluster::OPERATOR_NAMESPACE);
    let lease = leases.get(cluster::RELEASE).await.expect("the operator's Lease");
    let holder = lease.spec.and_then(|spec| spec.holder_identity).expect("a leader");
    let pods = cluster::operator_pods(client).await;
    let leading = pods.iter().map(ResourceExt::name_any).find(|name| holder.starts_with(name.as_str()));
    leading.unwrap_or_else(|| panic!("no pod of {holder}"))
}

/// C8.
#[tokio::test]
async fn turns_go_on_while_the_api_server_is_away_and_their_ends_arrive_afterwards() {
    let _alone = OPERATOR.lock().await;
    in_namespace("api-server", async |ns| {
        let collector = collector();
        ns.provider(&ScriptedProvider::default().reporting_to(collector.address())).await;
        ns.create(&run("during", "!gate api-server-is-away\n!say ended meanwhile")).await;
        ns.create(&run("after", "!gate api-server-is-back\n!say ended afterwards")).await;
        for gate in ["api-server-is-away", "api-server-is-back"] {
            seen_event(&collector, PATIENCE, "gate", gate).await;
        }
        for name in ["during", "after"] {
            ns.run_until(name, "Running", |run| run.phase() == Some(Phase::Running)).await;
        }
        let paused = Paused::api_server();
        collector.open_gate("api-server-is-away");
        // Longer than the operator's lease: it gives up leading, and is restarted.
        tokio::time::sleep(OUTAGE).await;
        drop(paused);
        collector.open_gate("api-server-is-back");
        for (name, text) in [("during", "ended meanwhile"), ("after", "ended afterwards")] {
            let run = ns.until(name, "Stopped", TAKEOVER, |run: &SubagentRun| run.is(conditions::STOPPED)).await;
            assert_eq!(
                (run.end(), run.text()),
                (end("Completed", "Completed", "Completed"), text.into()),
                "{}",
                run.message()
            );
        }
        assert_eq!(collector.of_kind("prompt").len(), 2, "no prompt was sent twice");
    })
    .await;
}

/// A process that is held, until this is dropped; should these tests be killed, a minute at most.
struct Paused {
    process: i32,
    releasing: std::process::Child,
}

impl Paused {
    /// Holds the local cluster's API server: its connections stay open and nothing answers.
    fn api_server() -> Self {
        let log = cluster_dir().canonicalize().expect("the cluster's state").join("audit.log");
        let argument = format!("--audit-log-path={}", log.display());
        let found = processes(|process| {
            let arguments = std::fs::read(process.join("cmdline")).unwrap_or_default();
            arguments.split(|byte| *byte == 0).any(|one| one == argument.as_bytes())
        });
        assert_eq!(found.len(), 1, "API servers with {argument}");
        let process = found[0];
        let release = format!("sleep 60; kill -CONT {process}");
        let releasing = std::process::Command::new("sh").args(["-c", &release]).spawn().expect("sh");
        signal(process, "STOP");
        Self { process, releasing }
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        signal(self.process, "CONT");
        // Its sleep ends by itself.
        let _ = self.releasing.kill();
        let _ = self.releasing.wait();
    }
}

/// The processes of this host, those of pods included, that fit.
fn processes(fits: impl Fn(&std::path::Path) -> bool) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    let all = all.filter_map(|entry| Some((entry.file_name().to_string_lossy().parse().ok()?, entry.path())));
    all.filter(|(_, path)| fits(path)).map(|(pid, _)| pid).collect()
}

fn signal(process: i32, name: &str) {
    let status = std::process::Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
    assert!(status.expect("kill").success(), "signal {name} to process {process}");
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
    let workers = processes(|process| {
        let read = |file: &str| std::fs::read_to_string(process.join(file)).unwrap_or_default();
        let arguments = read("cmdline");
        arguments.starts_with("/subagents/") && arguments.contains("run\0--\0") && read("mountinfo").contains(uid)
    });
    assert_eq!(workers.len(), 1, "workers of pod {pod} ({uid})");
    signal(workers[0], "KILL");
}
