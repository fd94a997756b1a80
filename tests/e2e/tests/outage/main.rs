//! What goes away while a turn runs: the operator, killed or replaced, the API server, the node, and the worker. In a binary of
//! its own, because every run on the cluster waits while there is no operator or no node.

mod agents;
mod children;
mod nodes;

use e2e_tests::{
    RunView, ScriptedProvider, TestNamespace, audit, cluster, collector,
    collector::{seen, seen_event},
    commands::kubectl,
    in_namespace,
    namespace::PATIENCE,
    operator::{handovers_during, is_ready, leader, restart, scale},
    processes::{self, Paused},
    run,
    status::end,
};
use futures::FutureExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt, api::DeleteParams};
use std::{panic::AssertUnwindSafe, time::Duration};
use subagent_crds::{Phase, SubagentRun, conditions, report::TranscriptSource};

/// Longest time until another operator works: the old one's lease runs out after 15 s.
const TAKEOVER: Duration = Duration::from_secs(150);

/// How long the API server is away (C8): longer than the operator's lease of 15 s, and than a dead connection's 30 s.
const OUTAGE: Duration = Duration::from_secs(60);

/// How long an update may leave nobody leading (C5), with a second for the watch on a busy machine.
const HANDOVER: Duration = Duration::from_secs(3);

/// How long a crash may: the lease of 15 s, the second in which followers look, and two for a busy machine.
const EXPIRY: Duration = Duration::from_secs(18);

/// Only one test at a time may take the operator away, or the node.
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

/// C5, C7: two replicas are replaced one after the other while a turn runs and others begin. Somebody leads all the time,
/// and nobody notices.
#[tokio::test]
async fn a_rolling_update_disturbs_no_turn() {
    let _alone = OPERATOR.lock().await;
    with_two_replicas("rolling-update", async |ns| {
        let collector = collector();
        ns.provider(&ScriptedProvider::default().reporting_to(collector.address())).await;
        ns.create(&run("steady", "!gate updated\n!say not disturbed")).await;
        seen_event(&collector, PATIENCE, "gate", "updated").await;
        let names: Vec<String> = (0..10).map(|number| format!("during-{number}")).collect();
        let update = async {
            let (updating, creating) = (tokio::task::spawn_blocking(restart), async {
                for name in &names {
                    ns.create(&run(name, "hello")).await;
                    tokio::time::sleep(Duration::from_millis(700)).await;
                }
            });
            tokio::join!(updating, creating).0.expect("an update")
        };
        let ((), handovers) = handovers_during(&ns.client, update).await;
        println!("leadership moved: {handovers:?}");
        assert!(!handovers.is_empty(), "both replicas were replaced, and the leader stayed");
        let slow: Vec<_> = handovers.iter().filter(|handover| handover.leaderless > HANDOVER).collect();
        assert!(slow.is_empty(), "leaderless for too long: {slow:?}");
        collector.open_gate("updated");
        let steady = ns.stopped("steady").await;
        assert_eq!((steady.end(), steady.text()), (end("Completed", "Completed", "Completed"), "not disturbed".into()));
        assert_eq!(steady.seen().attempt, Some(1));
        for name in &names {
            let run = ns.stopped(name).await;
            assert_eq!(run.end(), end("Completed", "Completed", "Completed"), "{}", run.message());
            assert_eq!(run.seen().attempt, Some(1));
        }
        assert_eq!(collector.of_kind("prompt").len(), names.len() + 1);
    })
    .await;
}

/// C7: an upgrade that changes the operator's settings and the number of its replicas, and the way back. Runs of the older
/// release finish under the newer one, and runs of the newer one after the rollback.
#[tokio::test]
async fn c7_an_upgrade_and_its_rollback_disturb_no_run() {
    let _alone = OPERATOR.lock().await;
    in_namespace("upgrade", async |ns| {
        let collector = collector();
        ns.provider(&ScriptedProvider::default().reporting_to(collector.address())).await;
        ns.create(&run("finishes", "!gate upgraded\n!say under the newer release")).await;
        ns.create(&run("stays", "!gate rolled-back\n!say through both")).await;
        for gate in ["upgraded", "rolled-back"] {
            seen_event(&collector, PATIENCE, "gate", gate).await;
        }
        cluster::upgrade(&["logLevel=debug", "podTTLSeconds=46", "replicas=2", "podAnnotations.release=newer"]);
        ns.create(&run("between", "!gate rolled-back\n!say begun under the newer release")).await;
        collector.open_gate("upgraded");
        let finishes = ns.stopped("finishes").await;
        seen(&collector, PATIENCE, |events| {
            (events.iter().filter(|event| event.kind == "gate").count() == 3).then_some(())
        })
        .await;
        cluster::roll_back();
        assert_eq!(cluster::operator_pods(&ns.client).await.len(), 1, "one replica, as before");
        collector.open_gate("rolled-back");
        let (stays, between) = (ns.stopped("stays").await, ns.stopped("between").await);
        for (run, text) in
            [(finishes, "under the newer release"), (stays, "through both"), (between, "begun under the newer release")]
        {
            assert_eq!(
                (run.end(), run.text()),
                (end("Completed", "Completed", "Completed"), text.into()),
                "{}",
                run.message()
            );
            assert_eq!(run.seen().attempt, Some(1));
        }
        assert_eq!(collector.of_kind("prompt").len(), 3, "no prompt was sent twice");
    })
    .await;
}

/// C5.
#[tokio::test]
async fn r9_with_two_replicas_any_of_them_serves_and_either_may_die() {
    let _alone = OPERATOR.lock().await;
    with_two_replicas("replicas", async |ns| {
        let collector = collector();
        ns.provider(&ScriptedProvider::default().reporting_to(collector.address())).await;
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
        let leads = leader(&ns.client).await.expect("a leader");
        let process = processes::operator(&leads.uid().unwrap_or_default()).expect("its process");
        // Held: the kubelet would start a killed one again, under the same name, and it would go on leading at once.
        let paused = Paused::process(process, 120);
        let next = async {
            collector.open_gate("leader-died");
            let other = async || match leader(&ns.client).await {
                Some(now) if now.uid() != leads.uid() => Ok(()),
                now => Err(format!("{:?} leads", now.map(|pod| pod.name_any()))),
            };
            ns.eventually("another replica leads", TAKEOVER, other).await;
        };
        let ((), handovers) = handovers_during(&ns.client, next).await;
        println!("after a crash: {handovers:?}");
        assert!(
            !handovers.is_empty() && handovers.iter().all(|handover| handover.leaderless < EXPIRY),
            "{handovers:?}"
        );
        // Back, it finds that another one leads, and ends.
        drop(paused);
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
    .await;
}

/// A test in a namespace of its own with two replicas of the operator; one is left afterwards.
async fn with_two_replicas(hint: &str, test: impl AsyncFnOnce(&TestNamespace)) {
    in_namespace(hint, async |ns| {
        scale(2);
        let tested = AssertUnwindSafe(test(&ns)).catch_unwind().await;
        scale(1);
        if let Err(panic) = tested {
            std::panic::resume_unwind(panic);
        }
    })
    .await;
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
        let paused = Paused::process(processes::api_server(), 2 * OUTAGE.as_secs());
        collector.open_gate("api-server-is-away");
        // The operator gives up leading, and is started again. The minute itself is what is tested here.
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
        assert_eq!(audit::pods_created(&ns.name).len(), 2, "a second pod for a run");
        // A new run works at once.
        assert_eq!(ns.finish(&run("next", "hello again")).await.text(), "echo: hello again");
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
        let worker = processes::worker(&running.seen().pod_uid.unwrap_or_default()).expect("its worker");
        assert!(processes::signal(worker, "KILL"));
        let run = ns.stopped("lost").await;
        assert_eq!(run.end(), end("Failed", "Error", "WorkerLost"), "{}", run.message());
        assert_eq!(run.condition(conditions::INTERRUPTED).map(|condition| condition.status), Some("True".into()));
        assert_eq!(collector.of_kind("prompt").len(), 1);
        // T9: nobody sent a transcript, so the end of the log is it, also without the pod.
        let transcript = run.seen().transcript.expect("a transcript");
        assert_eq!(transcript.source, TranscriptSource::Log);
        ns.api::<Pod>().delete(&run.pod_name(), &DeleteParams::default()).await.expect("a deletion");
        ns.gone::<Pod>(&run.pod_name(), &transcript.pod_uid, PATIENCE).await;
        let archived = ns.archived_transcript("lost");
        assert!(archived.contains("user> !say so far\n"), "{archived}");
    })
    .await;
}
