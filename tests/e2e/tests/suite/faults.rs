//! Agents that break during a turn: each ends its own run with its reason, and no other.

use e2e_tests::{
    RunView, ScriptedProvider, collector, collector::seen_event, in_namespace, namespace::PATIENCE, run, run_with,
    status::end,
};
use rstest::rstest;
use serde_json::json;
use subagent_crds::conditions;

/// Faults and what becomes of the run; the facts must be in its diagnostic.
#[rstest]
#[case::t10_exit("!say so far\n!crash 7", "AgentCrashed", &["exit code 7"])]
#[case::t10_exit_zero("!say so far\n!crash 0", "AgentCrashed", &["exit code 0"])]
#[case::signal("!say so far\n!kill SEGV", "AgentCrashed", &["signal 11"])]
#[case::t10_error("!say so far\n!error -32603 model is overloaded", "AgentProtocolError", &["-32603"])]
#[case::output_closed("!say so far\n!close-stdout\n!hang hard", "AgentCrashed", &["closed its output"])]
#[case::t4_line_of_30_mib("!say so far\n!bigline 30 message", "AgentProtocolError", &["line of more than"])]
#[tokio::test]
async fn c26_c30_an_agent_that_breaks_ends_its_run_with_the_reason(
    #[case] script: &str,
    #[case] reason: &str,
    #[case] facts: &[&str],
) {
    in_namespace("fault", async |ns| {
        ns.provider(&ScriptedProvider::default()).await;
        let run = ns.finish(&run("broken", script)).await;
        let diagnostic = run.seen().diagnostic.expect("a diagnostic");
        assert_eq!(run.end(), end("Failed", "Error", reason), "{diagnostic}");
        for fact in facts {
            assert!(diagnostic.contains(fact), "{fact:?} in {diagnostic:?}");
        }
        assert!(!diagnostic.contains("so far") && !diagnostic.contains("overloaded"), "c30: {diagnostic:?}");
        assert_eq!(run.text(), "so far", "c27: partial output is kept");
        assert!(run.is(conditions::STARTED) && !run.is(conditions::SUCCEEDED));
    })
    .await;
}

/// Noise that an agent may make without harm.
#[rstest]
#[case::t4_line_of_12_mib("!bigline 12 notification\n!say fine", 0)]
#[case::t4_garbage("!garbage 100000\n!say fine", 0)]
#[case::invalid_utf8("!invalid-utf8 line\n!say fine", 0)]
#[case::c54_unknown("!unknown-update\n!unknown-notification\n!say fine\n!update-after-response", 0)]
#[case::t10_exit_after_answer("!say fine\n!exit-after 1", 0)]
#[case::t2_hostile_usage("!usage {\"used\": -1, \"size\": NaN}\n!usage {\"used\": 1e30, \"size\": 1}\n!say fine", 0)]
#[tokio::test]
async fn c54_noise_does_not_end_a_run(#[case] script: &str, #[case] other_blocks: i64) {
    in_namespace("noise", async |ns| {
        ns.provider(&ScriptedProvider::default()).await;
        let run = ns.finish(&run("noisy", script)).await;
        let facts = format!("{} {}", run.message(), run.seen().diagnostic.unwrap_or_default());
        assert_eq!(run.end(), end("Completed", "Completed", "Completed"), "{facts}");
        assert_eq!(run.text(), "fine");
        assert_eq!(run.seen().result.map(|result| result.other_blocks), Some(other_blocks));
    })
    .await;
}

#[tokio::test]
async fn c3_a_run_that_breaks_does_not_touch_its_siblings() {
    in_namespace("siblings", async |ns| {
        let collector = collector();
        ns.provider(&ScriptedProvider::default().reporting_to(collector.address())).await;
        let script = "!gate sibling\n!say alive";
        ns.create(&run("steady", script)).await;
        seen_event(&collector, PATIENCE, "gate", "sibling").await;
        let broken = ns.finish(&run("broken", "!bigline 30")).await;
        assert_eq!(broken.reason(), "AgentProtocolError");
        let cancelled = ns.finish(&run_with("cancelled", json!({"cancel": true}))).await;
        assert_eq!(cancelled.reason(), "Cancelled");
        collector.open_gate("sibling");
        let steady = ns.stopped("steady").await;
        assert_eq!((steady.end(), steady.text()), (end("Completed", "Completed", "Completed"), "alive".into()));
    })
    .await;
}

#[tokio::test]
async fn n2_memory_over_the_limit_is_named() {
    in_namespace("memory", async |ns| {
        ns.provider(&ScriptedProvider::default().agent(json!({"resources": {"limits": {"memory": "64Mi"}}}))).await;
        let run = ns.finish(&run("hungry", "!say so far\n!memory 200")).await;
        // The kernel kills the agent alone or the whole container, as its control group is set up; the worker or the kubelet
        // tells.
        let message = run.message();
        assert_eq!(run.end(), end("Failed", "Error", "OOMKilled"), "{message}");
        assert!(message.contains("64Mi") || message.contains("67108864 bytes (64 MiB)"), "{message}");
        assert!(message.contains("resources.limits.memory"), "the remedy: {message}");
    })
    .await;
}

#[rstest]
#[case::active(json!({"activeDeadlineSeconds": 5}), "!say so far\n!stream 10000 100 .", "DeadlineExceeded")]
#[case::idle(json!({"idleDeadlineSeconds": 5}), "!say so far\n!hang", "IdleDeadlineExceeded")]
#[tokio::test]
async fn a_deadline_stops_the_turn_and_keeps_what_was_said(
    #[case] spec: serde_json::Value,
    #[case] script: &str,
    #[case] reason: &str,
) {
    in_namespace("deadline", async |ns| {
        ns.provider(&ScriptedProvider::default()).await;
        let mut spec = spec;
        spec["prompt"] = json!({"text": script});
        let run = ns.finish(&run_with("late", spec)).await;
        assert_eq!(run.end(), end("Failed", "Error", reason), "{}", run.message());
        assert!(run.text().starts_with("so far") || run.text().contains('.'), "{:?}", run.text());
    })
    .await;
}

#[tokio::test]
async fn n7_a_sidecar_that_never_ends_does_not_keep_the_pod() {
    in_namespace("sidecar", async |ns| {
        // An agent that nobody speaks to waits for its input; it outlives SIGTERM, too.
        let sidecar = json!({
            "name": "sidecar", "image": "localhost/scripted-agent:dev", "imagePullPolicy": "Never",
            "command": ["/usr/bin/scripted-agent"], "stdin": true,
            "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
        });
        ns.provider(&ScriptedProvider::default().sidecar(sidecar)).await;
        let run = ns.finish(&run("done", "and gone")).await;
        assert_eq!((run.end(), run.text()), (end("Completed", "Completed", "Completed"), "echo: and gone".into()));
        let uid = run.seen().pod_uid.unwrap_or_default();
        ns.gone::<k8s_openapi::api::core::v1::Pod>(&run.pod_name(), &uid, PATIENCE).await;
    })
    .await;
}
