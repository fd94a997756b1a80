//! Cancel and delete: the ladder against agents that listen and agents that do not, and the proof that nothing is left.

use e2e_tests::{
    RunView, ScriptedProvider, TestNamespace,
    audit::pods_created,
    collector,
    collector::{seen, seen_event},
    commands::repository,
    in_namespace,
    namespace::PATIENCE,
    run, run_with,
    status::end,
};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt, api::EvictParams};
use rstest::rstest;
use scripted_agent::{
    collector::{Collector, Event},
    reporter::now_ms,
};
use serde_json::json;
use std::{collections::HashSet, sync::Arc, time::Duration};
use subagent_crds::{Phase, SubagentRun, conditions};

/// Leaves stamping processes behind in sessions of their own, one of which holds the agent's pipes and one of which
/// outlives SIGTERM, stamps itself, says something, and then listens to nothing.
const STUBBORN: &str = "!setsid forever stamp:100\n!setsid forever stamp:100 ignore-term pipe\n!stamp 100\n!say partial answer\n!hang hard";

/// An agent that ignores session/cancel, the end of its input and SIGTERM.
fn stubborn(collector: &Arc<Collector>) -> ScriptedProvider {
    ScriptedProvider::default()
        .reporting_to(collector.address())
        .env("SCRIPTED_AGENT_CANCEL", "ignore")
        .env("SCRIPTED_AGENT_EOF", "ignore")
        .env("SCRIPTED_AGENT_SIGTERM", "ignore")
        .spec(json!({"stop": {"cancelGraceSeconds": 1, "eofGraceSeconds": 1, "termGraceSeconds": 1}}))
}

/// Waits until three processes send stamps, and the partial output was said.
async fn all_stamping(collector: &Arc<Collector>) {
    seen(collector, PATIENCE, |events| {
        let mut pids: Vec<i64> = events.iter().filter(|event| event.kind == "stamp").map(|event| event.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        (pids.len() >= 3).then_some(())
    })
    .await;
}

/// No stamp was sent after `stopped_ms`; watched for a while longer.
async fn assert_silent_since(collector: &Arc<Collector>, stopped_ms: u64, watched: Duration) {
    tokio::time::sleep(watched).await;
    let stamps = collector.of_kind("stamp");
    let last = stamps.iter().max_by_key(|stamp| stamp.time_ms).expect("stamps");
    assert!(
        last.time_ms <= stopped_ms,
        "a stamp {} ms after the proof of stop: {}",
        last.time_ms - stopped_ms,
        last.line()
    );
}

/// Steps of the ladder as the agent of a run saw them: kind and time.
fn ladder(collector: &Arc<Collector>, tag: &str) -> Vec<Event> {
    let is_step = |event: &Event| event.tag == tag && ["cancel", "eof", "signal"].contains(&event.kind.as_str());
    collector.all().into_iter().filter(is_step).collect()
}

/// The agent saw cancel, the end of its input and SIGTERM, in this order, and none of the graces of one second was cut
/// short. Counted from when the stop was asked for: a busy machine can only make a step later than that. (Each grace alone
/// is measured where the worker is, in its own tests.)
fn assert_whole_ladder(collector: &Arc<Collector>, tag: &str, asked_ms: u64) {
    let steps = ladder(collector, tag);
    let first = ["cancel", "eof", "signal"].map(|kind| {
        let step = steps.iter().find(|step| step.kind == kind);
        step.unwrap_or_else(|| panic!("{tag}: no {kind} in {steps:?}")).time_ms
    });
    assert!(first.is_sorted() && first[0] >= asked_ms, "{tag}: {asked_ms} {first:?}");
    assert!(first[1] >= asked_ms + 1000 && first[2] >= asked_ms + 2000, "{tag}: {asked_ms} {first:?}");
}

#[rstest]
#[case::at_once("!say so far\n!hang", "so far")]
#[case::answers_cancel("!say so far\n!stream 1000 50 .", "")]
#[tokio::test]
async fn c27_c52_an_agent_that_honours_cancel_ends_its_turn_itself(#[case] script: &str, #[case] said: &str) {
    in_namespace("cancel", async |ns| {
        let collector = collector();
        ns.provider(&ScriptedProvider::default().reporting_to(collector.address())).await;
        ns.create(&run("cancelled", script)).await;
        seen_event(&collector, PATIENCE, "prompt", script).await;
        ns.run_until("cancelled", "Running", |run| run.phase() == Some(Phase::Running)).await;
        ns.cancel("cancelled");
        let run = ns.stopped("cancelled").await;
        assert_eq!(run.end(), end("Cancelled", "Aborted", "Cancelled"), "{}", run.message());
        assert!(run.text().contains(said), "{:?}", run.text());
        assert_eq!(
            run.condition(conditions::STOPPED).map(|stopped| stopped.reason),
            Some("ContainersTerminated".into())
        );
        assert_eq!(run.condition(conditions::FINISHED).map(|finished| finished.reason), Some("Cancelled".into()));
        // It answered, so the ladder did not have to go on to signals.
        let steps: Vec<_> = ladder(&collector, "").into_iter().map(|step| step.kind).collect();
        assert_eq!(steps.first().map(String::as_str), Some("cancel"), "{steps:?}");
        assert!(!steps.contains(&"signal".to_owned()), "{steps:?}");
        let transcript = ns.transcript("cancelled");
        assert!(transcript.contains(script.lines().next().unwrap_or_default()), "{transcript}");
        // Cancelling again changes nothing (c51).
        ns.cancel("cancelled");
        assert_eq!(ns.run("cancelled").await.end(), run.end());
    })
    .await;
}

#[tokio::test]
async fn c48_c50_s1_s2_cancel_climbs_the_ladder_to_the_last_grandchild() {
    in_namespace("ladder", async |ns| {
        let collector = collector();
        ns.provider(&stubborn(&collector)).await;
        ns.create(&run("stubborn", STUBBORN)).await;
        all_stamping(&collector).await;
        let asked_ms = now_ms();
        ns.cancel("stubborn");
        ns.run_until("stubborn", "Cancelling", |run| {
            run.phase() == Some(Phase::Cancelling) || run.is(conditions::FINISHED)
        })
        .await;
        let run = ns.run_until("stubborn", "Stopped", |run| run.is(conditions::STOPPED)).await;
        let stopped_ms = now_ms();
        assert_whole_ladder(&collector, "", asked_ms);
        assert_silent_since(&collector, stopped_ms, Duration::from_secs(5)).await;
        assert_eq!(run.end(), end("Cancelled", "Aborted", "Cancelled"), "{}", run.message());
        assert_eq!(run.text(), "partial answer", "c27: partial text is kept");
        assert_eq!(
            run.condition(conditions::STOPPED).map(|stopped| stopped.reason),
            Some("ContainersTerminated".into())
        );
        assert!(ns.transcript("stubborn").contains("partial answer"), "c52: the transcript is still readable");
    })
    .await;
}

/// How many runs are deleted side by side: a proof that comes too early only now and then is seen among them.
const SIDE_BY_SIDE: usize = 20;

/// S1: agents that ignore everything and send stamps to somebody outside their pods. No stamp is sent after the run's
/// object is gone, and for half a minute none is seen.
#[tokio::test]
async fn c48_c49_c50_s1_twenty_deleted_runs_disappear_only_after_their_last_process() {
    in_namespace("delete", async |ns| {
        let collector = collector();
        ns.provider(&stubborn(&collector).env("SCRIPTED_AGENT_TAG", "$(SUBAGENT_PARAM_TAG)")).await;
        let names: Vec<String> = (0..SIDE_BY_SIDE).map(|number| format!("stubborn-{number}")).collect();
        let script = "!setsid forever stamp:100 ignore-term pipe\n!stamp 100\n!hang hard";
        let mut uids = vec![];
        for name in &names {
            let one = json!({"prompt": {"text": script}, "parameters": {"TAG": name}});
            uids.push(ns.create(&run_with(name, one)).await.uid().unwrap_or_default());
        }
        let waited = names.clone();
        seen(&collector, PATIENCE, move |events| {
            let stamping: HashSet<(&str, i64)> = events
                .iter()
                .filter(|event| event.kind == "stamp")
                .map(|event| (event.tag.as_str(), event.pid))
                .collect();
            let both = |name: &String| stamping.iter().filter(|(tag, _)| tag == name).count() >= 2;
            waited.iter().all(both).then_some(())
        })
        .await;

        let asked_ms = now_ms();
        ns.kubectl(&["delete", "subagentruns", "--all", "--wait=false"]);
        let gone =
            join_all(names.iter().zip(&uids).map(|(name, uid)| ns.gone::<SubagentRun>(name, uid, PATIENCE))).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        let stamps = collector.of_kind("stamp");
        for (name, gone_ms) in names.iter().zip(gone) {
            assert_whole_ladder(&collector, name, asked_ms);
            let own = stamps.iter().filter(|stamp| stamp.tag == *name);
            let last = own.max_by_key(|stamp| stamp.time_ms).expect("stamps");
            assert!(
                last.time_ms <= gone_ms && last.time_ms >= asked_ms,
                "{name}: asked {asked_ms}, gone {gone_ms}, last stamp {}",
                last.line()
            );
        }
    })
    .await;
}

/// c51, with the example as it is: a cancel goes down the tree, and whoever is above is over last. Then a deletion.
#[tokio::test]
async fn c51_a_tree_is_cancelled_and_deleted_as_a_whole() {
    in_namespace("tree", async |ns| {
        let collector = collector();
        ns.provider(&ScriptedProvider::default().reporting_to(collector.address())).await;
        let example = repository().join("examples/run-tree.yaml");
        let example = example.to_str().expect("a path in UTF-8");
        for round in ["cancel", "delete"] {
            ns.kubectl(&["apply", "-f", example]);
            for name in ["lead", "helper"] {
                ns.run_until(name, "Running", |run| run.phase() == Some(Phase::Running)).await;
            }
            assert_eq!(ns.run("helper").await.seen().lineage.map(|lineage| lineage.depth), Some(2));
            if round == "cancel" {
                ns.cancel("lead");
                let lead = ns.stopped("lead").await;
                let helper = ns.run("helper").await;
                for run in [lead, helper] {
                    assert_eq!(run.end(), end("Cancelled", "Aborted", "Cancelled"), "{}", run.message());
                    assert!(run.is(conditions::STOPPED), "c51: nobody is over before those below");
                }
                ns.kubectl(&["delete", "subagentruns", "--all", "--timeout=120s"]);
            } else {
                let helper = ns.run("helper").await.uid().unwrap_or_default();
                ns.kubectl(&["delete", "subagentrun", "lead", "--timeout=120s"]);
                // What is terminal and Stopped counts as cancelled: its object may be there for a moment longer.
                ns.gone::<SubagentRun>("helper", &helper, PATIENCE).await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn s1_a_deleted_run_whose_agent_listens_is_gone_within_seconds() {
    in_namespace("delete-quick", async |ns| {
        let collector = collector();
        ns.provider(&ScriptedProvider::default().reporting_to(collector.address())).await;
        let created = ns.create(&run("quick", "!stamp 100\n!hang")).await;
        seen(&collector, PATIENCE, |events| events.iter().any(|event| event.kind == "stamp").then_some(())).await;
        ns.kubectl(&["delete", "subagentrun", "quick", "--wait=false"]);
        let gone_ms = ns.gone::<SubagentRun>("quick", &created.uid().unwrap_or_default(), PATIENCE).await;
        assert_silent_since(&collector, gone_ms, Duration::from_secs(3)).await;
        assert_eq!(ladder(&collector, "").first().map(|step| step.kind.clone()).as_deref(), Some("cancel"));
    })
    .await;
}

#[tokio::test]
async fn c9_s7_a_run_cancelled_when_first_seen_starts_nothing() {
    in_namespace("cancelled-first", async |ns| {
        ns.provider(&ScriptedProvider::default()).await;
        let run = ns.finish(&run_with("never", json!({"cancel": true}))).await;
        assert_eq!(run.end(), end("Cancelled", "Aborted", "Cancelled"));
        assert!(!run.is(conditions::STARTED));
        assert_eq!(pods_created(&ns.name), Vec::<String>::new());
    })
    .await;
}

/// S7: cancel while it starts, at one exact point each.
#[rstest]
#[case::image_missing("image", json!({"image": "localhost/no-such-image:dev", "imagePullPolicy": "IfNotPresent"}), &[])]
#[case::process_started("start", json!({}), &[("SCRIPTED_AGENT_START", "gate:never")])]
#[case::initialize("initialize", json!({}), &[("SCRIPTED_AGENT_INITIALIZE", "hang")])]
#[case::session_new("session-new", json!({}), &[("SCRIPTED_AGENT_NEW", "hang")])]
#[tokio::test]
async fn s7_cancel_while_starting_rolls_back(
    #[case] at: &str,
    #[case] container: serde_json::Value,
    #[case] env: &[(&str, &str)],
) {
    in_namespace("cancel-start", async |ns| {
        let collector = collector();
        let provider = ScriptedProvider::default().reporting_to(collector.address()).agent(container);
        ns.provider(&env.iter().fold(provider, |provider, (name, value)| provider.env(name, value))).await;
        ns.create(&run("starting", "never answered")).await;
        match at {
            "image" => {
                ns.run_until("starting", "shows the missing image", |run| run.reason() == "ImagePullFailed").await;
            }
            "start" => {
                seen_event(&collector, PATIENCE, "start", "").await;
            }
            request => {
                let request = request.replace('-', "/");
                seen_event(&collector, PATIENCE, "request", &request).await;
            }
        }
        ns.cancel("starting");
        let run = ns.stopped("starting").await;
        assert_eq!(run.end(), end("Cancelled", "Aborted", "Cancelled"), "{}", run.message());
        assert!(!run.is(conditions::STARTED), "c8: there was no session");
        assert!(collector.of_kind("prompt").is_empty());
    })
    .await;
}

#[tokio::test]
async fn s7_cancel_with_an_open_permission_request_answers_it_cancelled() {
    in_namespace("cancel-asking", async |ns| {
        let collector = collector();
        // Neither allowed nor rejected by kind: an agent that asks and is cancelled while its question is open.
        let script = "!permission \"rm -rf\" allow_once:yes,reject_once:no x3\n!hang";
        ns.provider(&ScriptedProvider::default().reporting_to(collector.address())).await;
        ns.create(&run("asking", script)).await;
        seen_event(&collector, PATIENCE, "prompt", script).await;
        ns.cancel("asking");
        let run = ns.stopped("asking").await;
        assert_eq!(run.end(), end("Cancelled", "Aborted", "Cancelled"), "{}", run.message());
        for answer in collector.of_kind("permission") {
            assert!(["selected no", "cancelled"].contains(&answer.text.as_str()), "{}", answer.line());
        }
    })
    .await;
}

#[tokio::test]
async fn s4_cancel_and_delete_of_what_is_over_change_nothing() {
    in_namespace("cancel-late", async |ns| {
        ns.provider(&ScriptedProvider::default()).await;
        let done = ns.finish(&run("late", "done")).await;
        ns.cancel("late");
        // The operator has seen the new generation when it has reconciled; its record stays as it was.
        let uid = done.uid().unwrap_or_default();
        assert_eq!(ns.run("late").await.end(), done.end());
        ns.kubectl(&["delete", "subagentrun", "late", "--wait=false"]);
        ns.gone::<SubagentRun>("late", &uid, PATIENCE).await;
        ns.gone::<Pod>(&done.pod_name(), &done.seen().pod_uid.unwrap_or_default(), PATIENCE).await;
    })
    .await;
}

/// Deletes the pod of a run whose turn is running.
async fn delete_pod(ns: &TestNamespace, collector: &Arc<Collector>, arguments: &[&str]) -> SubagentRun {
    ns.provider(&ScriptedProvider::default().reporting_to(collector.address())).await;
    ns.create(&run("orphan", "!say so far\n!hang")).await;
    seen_event(collector, PATIENCE, "prompt", "!say so far\n!hang").await;
    let running = ns.run_until("orphan", "Running", |run| run.phase() == Some(Phase::Running)).await;
    let pod = running.pod_name();
    let mut all = vec!["delete", "pod", pod.as_str(), "--wait=false"];
    all.extend(arguments);
    ns.kubectl(&all);
    ns.stopped("orphan").await
}

#[rstest]
#[case::politely(&[])]
#[case::s8_by_force(&["--force", "--grace-period=0"])]
#[tokio::test]
async fn c49_a_pod_deleted_from_outside_ends_its_run_with_its_reason(#[case] arguments: &[&str]) {
    in_namespace("pod-deleted", async |ns| {
        let collector = collector();
        let run = delete_pod(&ns, &collector, arguments).await;
        assert_eq!(run.end(), end("Failed", "Error", "PodDeleted"), "{}", run.message());
        let interrupted = run.condition(conditions::INTERRUPTED).expect("side effects are possible");
        assert_eq!(interrupted.status, "True");
        assert_eq!(collector.of_kind("prompt").len(), 1, "R4: the prompt is not sent again");
        assert_eq!(run.seen().attempt, Some(1));
    })
    .await;
}

#[tokio::test]
async fn n3_an_evicted_pod_has_its_own_reason() {
    in_namespace("evicted", async |ns| {
        let collector = collector();
        ns.provider(&ScriptedProvider::default().reporting_to(collector.address())).await;
        ns.create(&run("evicted", "!say so far\n!hang")).await;
        seen_event(&collector, PATIENCE, "prompt", "!say so far\n!hang").await;
        let running = ns.run_until("evicted", "Running", |run| run.phase() == Some(Phase::Running)).await;
        // What a drain does.
        ns.api::<Pod>().evict(&running.pod_name(), &EvictParams::default()).await.expect("an eviction");
        let run = ns.stopped("evicted").await;
        assert_eq!(run.end(), end("Failed", "Error", "Evicted"), "{}", run.message());
        assert!(run.is(conditions::INTERRUPTED));
        assert_eq!(run.text(), "so far");
    })
    .await;
}

#[tokio::test]
async fn s6_a_namespace_deleted_with_a_live_run_goes_away() {
    let mut name = String::new();
    let mut client = None;
    in_namespace("namespace", async |ns| {
        let collector = collector();
        ns.provider(&stubborn(&collector)).await;
        ns.create(&run("live", STUBBORN)).await;
        all_stamping(&collector).await;
        name = ns.name.clone();
        client = Some(ns.client.clone());
    })
    .await;
    let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> = kube::Api::all(client.expect("a client"));
    let deadline = std::time::Instant::now() + PATIENCE;
    while let Some(namespace) = namespaces.get_opt(&name).await.expect("an answer") {
        let why = namespace.status.and_then(|status| status.conditions).unwrap_or_default();
        assert!(std::time::Instant::now() < deadline, "namespace {name} is stuck: {why:?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Deleting with `--cascade=orphan` takes the owner off the pod; the proof of stop is still asked of it. Where somebody
/// takes even the run's finalizer off, the pod is stopped and released all the same, so that its namespace can go.
#[rstest]
#[case::orphaned(false)]
#[case::without_finalizer(true)]
#[tokio::test]
async fn c50_s8_a_run_deleted_the_hard_way_leaves_no_agent_behind(#[case] without_finalizer: bool) {
    in_namespace("hard-way", async |ns| {
        let collector = collector();
        ns.provider(&stubborn(&collector)).await;
        let run = ns.create(&run("hard", STUBBORN)).await;
        all_stamping(&collector).await;
        let pod = ns.run("hard").await.seen().attempts[0].pod_name.clone();
        let pod_uid = ns.run("hard").await.seen().pod_uid.expect("a pod");
        if without_finalizer {
            ns.kubectl(&["patch", "subagentrun/hard", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#]);
            ns.kubectl(&["delete", "subagentrun/hard", "--wait=false"]);
        } else {
            ns.kubectl(&["delete", "subagentrun/hard", "--cascade=orphan", "--wait=false"]);
        }
        let gone = ns.gone::<SubagentRun>("hard", &run.uid().expect("a UID"), PATIENCE).await;
        if !without_finalizer {
            assert_silent_since(&collector, gone, Duration::from_secs(3)).await;
        }
        let released = ns.gone::<Pod>(&pod, &pod_uid, PATIENCE).await;
        assert_silent_since(&collector, released, Duration::from_secs(3)).await;
    })
    .await;
}
