//! The smallest run, looked at from all sides, and how turns end.

use e2e_tests::{
    RunView, ScriptedProvider, cluster::POD_TTL_SECONDS, collector, collector::seen_event, in_namespace,
    namespace::PATIENCE, run, run_with, status::end,
};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use rstest::rstest;
use scripted_agent::script::fill;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::time::Duration;
use subagent_crds::{conditions, names};

#[tokio::test]
async fn c10_c28_an_echo_comes_back_with_its_whole_record() {
    in_namespace("echo", async |ns| {
        ns.provider(&ScriptedProvider::default()).await;
        let created = ns.create(&run("echo", "Hello from a resource")).await;
        let uid = created.uid().expect("a UID");
        let printed = ns.kubectl(&[
            "wait",
            "--for=condition=Finished",
            "subagentrun/echo",
            &format!("--timeout={}s", PATIENCE.as_secs()),
        ]);
        assert!(printed.contains("condition met"), "{printed}");
        let run = ns.stopped("echo").await;

        assert_eq!(run.end(), end("Completed", "Completed", "Completed"), "{}", run.message());
        assert_eq!(run.text(), "echo: Hello from a resource");
        let status = run.seen();
        let result = status.result.as_ref().expect("a result");
        assert_eq!(Some(&result.pod_uid), status.pod_uid.as_ref());
        assert_eq!(result.sha256, format!("{:x}", Sha256::digest("echo: Hello from a resource")));
        let report = status.report.as_ref().expect("a report");
        let agent = report.agent.as_ref().expect("the agent");
        assert_eq!((agent.name.as_str(), agent.protocol_version), ("scripted-agent", 1));
        assert_eq!(agent.version, env!("CARGO_PKG_VERSION"));
        assert_eq!(report.session.as_ref().map(|session| session.how.as_str()), Some("New"));
        assert_eq!((report.turn_count, report.turns.len()), (1, 1));
        assert_eq!(status.diagnostic, None, "c30: a diagnostic is for what did not complete");
        assert_eq!(status.lineage.as_ref().map(|lineage| (lineage.depth, &lineage.root_uid)), Some((1, &uid)));

        // The conditions are the record: each in its time.
        let since = |type_| {
            let condition = run.condition(type_).unwrap_or_else(|| panic!("no condition {type_}"));
            assert_eq!((condition.status.as_str(), condition.observed_generation), ("True", Some(1)), "{type_}");
            condition.last_transition_time.0
        };
        let order = [conditions::ACCEPTED, conditions::STARTED, conditions::FINISHED].map(since);
        assert!(order.is_sorted(), "{order:?}");
        assert!(since(conditions::WORKER_READY) <= since(conditions::STARTED));
        since(conditions::SUCCEEDED);
        let stopped = run.condition(conditions::STOPPED).expect("Stopped");
        assert_eq!((stopped.status.as_str(), stopped.reason.as_str()), ("True", "ContainersTerminated"));
        assert!(run.condition(conditions::INTERRUPTED).is_none());

        // Events: each transition once.
        let events = ns
            .eventually("Events", PATIENCE, async || {
                let events = ns.events_of(&uid).await;
                let has_all = events.iter().any(|(reason, _, _)| reason == "Stopped");
                if has_all { Ok(events) } else { Err(format!("{events:?}")) }
            })
            .await;
        for reason in ["Accepted", "Started", "Settled", "Stopped"] {
            let times: Vec<_> =
                events.iter().filter(|(seen, _, _)| seen == reason).map(|(_, count, _)| *count).collect();
            assert_eq!(times, [1], "Event {reason} in {events:?}");
        }

        // The pod stays for its log, without the finalizer, and then goes.
        let pod: Pod =
            ns.until(&run.pod_name(), "without our finalizer", PATIENCE, |pod: &Pod| pod.finalizers().is_empty()).await;
        assert_eq!(pod.labels().get(names::RUN_LABEL).map(String::as_str), Some("echo"));
        let transcript = ns.transcript("echo");
        assert!(
            transcript.contains("Hello from a resource") && transcript.contains("echo: Hello from a resource"),
            "{transcript}"
        );
        ns.gone::<Pod>(
            &run.pod_name(),
            &pod.uid().unwrap_or_default(),
            PATIENCE + Duration::from_secs(POD_TTL_SECONDS),
        )
        .await;

        // T9: without the pod the archived transcript answers.
        let transcript = ns.run("echo").await.seen().transcript.expect("a transcript");
        let archive = transcript.ref_.expect("an archive");
        let archive = ns.api::<ConfigMap>().get(&archive).await.expect("the archived transcript");
        assert_eq!(archive.immutable, Some(true));
        let archived = ns.archived_transcript("echo");
        assert_eq!(format!("{:x}", Sha256::digest(&archived)), transcript.sha256);
        assert!(archived.contains("user> Hello from a resource\n"), "{archived}");
    })
    .await;
}

#[rstest]
#[case::end_turn("end_turn", "Completed", "Completed", "Completed")]
#[case::max_tokens("max_tokens", "Failed", "MaxTokens", "MaxTokens")]
#[case::refusal("refusal", "Failed", "Refusal", "AgentRefused")]
#[case::max_turn_requests("max_turn_requests", "Failed", "Error", "TurnLimit")]
// Nobody asked for it: the agent cancelled its own turn.
#[case::cancelled("cancelled", "Cancelled", "Aborted", "Cancelled")]
#[case::unknown("a_reason_of_tomorrow", "Failed", "Error", "AgentProtocolError")]
#[tokio::test]
async fn c25_c26_every_stop_reason_of_the_protocol(
    #[case] said: &str,
    #[case] phase: &str,
    #[case] stop_reason: &str,
    #[case] reason: &str,
) {
    in_namespace("stop-reason", async |ns| {
        ns.provider(&ScriptedProvider::default()).await;
        let run = ns.finish(&run("turn", &format!("!say what there is so far\n!stop {said}"))).await;
        assert_eq!(run.end(), end(phase, stop_reason, reason), "{}", run.message());
        assert_eq!(run.text(), "what there is so far");
        assert!(run.is(conditions::STARTED), "the session existed");
        assert_eq!(run.is(conditions::SUCCEEDED), phase == "Completed");
    })
    .await;
}

#[tokio::test]
async fn parameters_reach_every_container_and_a_mounted_prompt_is_recorded_by_digest() {
    in_namespace("inputs", async |ns| {
        ns.provider(&ScriptedProvider::default()).await;
        let text = "!say from a file\n!env SUBAGENT_PARAM_REPO\n!env SUBAGENT_PARAM_BRANCH\n!env";
        let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "prompt"}, "data": {"task": text}}))
            .expect("a ConfigMap");
        ns.create(&map).await;
        let asked = run_with(
            "inputs",
            json!({
                "prompt": {"text": null, "configMapKeyRef": {"name": "prompt", "key": "task"}},
                "parameters": {"REPO": "https://example.com/a b?c=$(HOME)&d='\"", "BRANCH": "main"},
            }),
        );
        let run = ns.finish(&asked).await;
        assert_eq!(run.end(), end("Completed", "Completed", "Completed"), "{}", run.message());
        let said = run.text();
        assert!(said.contains("https://example.com/a b?c=$(HOME)&d='\""), "{said}");
        assert!(said.contains("main"), "{said}");
        // c56: what belongs to the worker and to the cluster is not the agent's.
        assert!(!said.contains("SUBAGENT_WORKER_") && !said.contains("KUBERNETES_"), "{said}");
        let digest = run.seen().report.and_then(|report| report.prompt).expect("the prompt's digest");
        assert_eq!((digest.sha256, digest.size), (format!("{:x}", Sha256::digest(text)), text.len() as i64));
    })
    .await;
}

#[tokio::test]
async fn r17_a_run_deleted_and_created_again_under_its_name_is_a_run_of_its_own() {
    in_namespace("again", async |ns| {
        let collector = collector();
        ns.provider(&ScriptedProvider::default().reporting_to(collector.address())).await;
        let first = ns.create(&run("again", "the first\n!say first\n!hang")).await;
        seen_event(&collector, PATIENCE, "prompt", "the first\n!say first\n!hang").await;
        ns.kubectl(&["delete", "subagentrun", "again", "--wait=false"]);
        ns.gone::<subagent_crds::SubagentRun>("again", &first.uid().unwrap_or_default(), PATIENCE).await;
        let second = ns.finish(&run("again", "the second")).await;
        assert_ne!(first.uid(), second.uid());
        assert_eq!(
            (second.end(), second.text()),
            (end("Completed", "Completed", "Completed"), "echo: the second".into())
        );
        let status = second.seen();
        assert_eq!((status.attempt, status.attempts.len()), (Some(1), 1));
        let prompts: Vec<_> = collector.of_kind("prompt").into_iter().map(|event| event.text).collect();
        assert_eq!(prompts, ["the first\n!say first\n!hang", "the second"]);
    })
    .await;
}

/// Inline up to 16 KiB, in ConfigMaps up to 4 MiB; characters of more than one byte stand across every bound.
#[rstest]
#[case::t3_small(10)]
#[case::t3_exactly_inline(16_384)]
#[case::t3_one_more(16_385)]
#[case::t3_several_chunks(4 * 1024 * 1024)]
#[case::t3_too_large(4 * 1024 * 1024 + 1)]
#[tokio::test]
async fn t3_a_result_is_whole_or_refused_never_cut(#[case] size: usize) {
    in_namespace("size", async |ns| {
        ns.provider(&ScriptedProvider::default()).await;
        let run = ns.finish(&run("large", &format!("!fill {size} aä"))).await;
        if size > 4 * 1024 * 1024 {
            let diagnostic = run.seen().diagnostic.unwrap_or_default();
            assert_eq!(run.end(), end("Failed", "Error", "ResultTooLarge"), "{diagnostic}");
            assert!(diagnostic.contains(&size.to_string()) && diagnostic.contains("4194304"), "{diagnostic}");
            return;
        }
        let expected = fill(size, "aä");
        assert_eq!(run.end(), end("Completed", "Completed", "Completed"), "{}", run.message());
        let result = run.seen().result.expect("a result");
        assert_eq!((result.size as usize, result.sha256), (size, format!("{:x}", Sha256::digest(&expected))));
        // As the README says.
        let text = match result.ref_ {
            None => ns.kubectl(&["get", "subagentrun", "large", "-o", "jsonpath={.status.result.text}"]),
            Some(_) => ns.kubectl(&[
                "get",
                "configmap",
                "-l",
                "subagents.dev/run=large,subagents.dev/content=result",
                "-o",
                "jsonpath={range .items[*]}{.data.text}{end}",
            ]),
        };
        assert!(text == expected, "the text differs");
    })
    .await;
}

/// The API server reads what the operator applies as YAML, which has opinions about characters.
#[tokio::test]
async fn c28_t3_every_character_of_a_result_survives_its_way_into_status() {
    in_namespace("odd", async |ns| {
        ns.provider(&ScriptedProvider::default()).await;
        let text = "a\u{7f}b \u{85} c\u{85}d \u{2028} e\u{2029}f \u{9b}31m \u{feff} \u{fffe} \u{1f389} ä";
        let mut odd = run("odd", text);
        odd.spec.description = "odd \u{7f} \u{85} words".into();
        let run = ns.finish(&odd).await;
        assert_eq!(run.end(), end("Completed", "Completed", "Completed"), "{}", run.message());
        assert_eq!(run.text(), format!("echo: {text}"));
        let result = run.seen().result.expect("a result");
        assert_eq!(result.sha256, format!("{:x}", Sha256::digest(format!("echo: {text}"))));
    })
    .await;
}
