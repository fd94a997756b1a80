//! Starts that fail or take long: each with its own reason, in seconds where waiting cannot help.

use e2e_tests::{
    RunView, ScriptedProvider, TestNamespace,
    cluster::{OPERATOR_NAMESPACE, RELEASE},
    collector, in_namespace,
    namespace::PATIENCE,
    run, run_with,
    status::end,
};
use k8s_openapi::api::core::v1::{ResourceQuota, ServiceAccount};
use kube::{ResourceExt, api::DeleteParams};
use rstest::rstest;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use subagent_crds::{Phase, SubagentProvider, SubagentRun, conditions};

/// A start that failed: no session, StartFailed and no Settled (c10).
async fn assert_start_failed(ns: &TestNamespace, run: &SubagentRun, reason: &str, named: &[&str]) {
    let facts = format!("{} {}", run.message(), run.seen().diagnostic.unwrap_or_default());
    assert_eq!(run.end(), end("Failed", "Error", reason), "{facts}");
    for part in named {
        assert!(facts.contains(part), "{part:?} in {facts:?}");
    }
    assert!(!run.is(conditions::STARTED), "c8: there was no session");
    let uid = run.uid().unwrap_or_default();
    let events = ns
        .eventually("the Event StartFailed", PATIENCE, async || {
            let events = ns.events_of(&uid).await;
            if events.iter().any(|(reason, _, _)| reason == "StartFailed") {
                Ok(events)
            } else {
                Err(format!("{events:?}"))
            }
        })
        .await;
    assert!(events.iter().all(|(reason, _, _)| !["Started", "Settled"].contains(&reason.as_str())), "{events:?}");
}

/// Failures that waiting cannot heal end the run long before its start deadline of ten minutes.
#[rstest]
#[case::n1_missing_image(json!({"image": "localhost/no-such-image:dev"}), "ImagePullFailed", &["no-such-image"])]
#[case::n1_bad_image_name(json!({"image": "localhost/NO such"}), "ImagePullFailed", &["invalid reference format"])]
#[case::n1_bad_command(json!({"command": ["/usr/bin/no-such-agent"]}), "AgentStartFailed", &["not found"])]
#[case::n1_not_executable(json!({"command": ["/subagents/link/config.json"]}), "AgentStartFailed", &[])]
#[case::n1_bad_workdir(json!({"workingDir": "/usr/bin/scripted-agent/nowhere"}), "AgentStartFailed", &[])]
#[case::n5_banner_and_exit(json!({"env": [{"name": "SCRIPTED_AGENT_START", "value": "banner-exit"}]}), "AgentHandshakeFailed", &["Initialize", "exit code 0"])]
#[case::crash_at_initialize(json!({"env": [{"name": "SCRIPTED_AGENT_INITIALIZE", "value": "exit:7"}]}), "AgentHandshakeFailed", &["Initialize", "exit code 7"])]
#[case::c53_version(json!({"env": [{"name": "SCRIPTED_AGENT_INITIALIZE", "value": "version:2"}]}), "AgentHandshakeFailed", &["version 2"])]
#[case::c53_no_session_id(json!({"env": [{"name": "SCRIPTED_AGENT_NEW", "value": "no-session-id"}]}), "AgentHandshakeFailed", &["session id"])]
#[case::c53_auth_required(json!({"env": [{"name": "SCRIPTED_AGENT_NEW", "value": "auth-required"}]}), "AgentAuthRequired", &["authenticated"])]
#[tokio::test]
async fn a_start_that_cannot_succeed_fails_in_seconds(
    #[case] agent: Value,
    #[case] reason: &str,
    #[case] named: &[&str],
) {
    in_namespace("start", async |ns| {
        ns.provider(&ScriptedProvider::default().agent(agent)).await;
        let began = Instant::now();
        let run = ns.finish(&run("failing", "never read")).await;
        assert!(began.elapsed() < Duration::from_secs(60), "took {:?}", began.elapsed());
        assert_start_failed(&ns, &run, reason, named).await;
    })
    .await;
}

#[rstest]
#[case::root("scripted-agent-root")]
#[case::only_a_name("scripted-agent-named")]
#[tokio::test]
async fn n6_an_image_whose_user_is_root_or_a_name_is_refused_with_the_remedy(#[case] image: &str) {
    in_namespace("image-user", async |ns| {
        let image = json!({"image": format!("localhost/{image}:dev")});
        ns.provider(&ScriptedProvider::default().agent(image.clone())).await;
        let refused = ns.finish(&run("refused", "never read")).await;
        assert_start_failed(&ns, &refused, "ImageUserRefused", &["runAsUser"]).await;

        // The remedy helps.
        let mut provider = ScriptedProvider::named("remedied").agent(image);
        provider = provider.agent(json!({"securityContext": {"runAsUser": 1234}}));
        ns.provider(&provider).await;
        let run = ns.finish(&run_with("helped", json!({"providerRef": {"name": "remedied"}}))).await;
        assert_eq!((run.end(), run.text()), (end("Completed", "Completed", "Completed"), "echo: hello".into()));
    })
    .await;
}

#[rstest]
#[case::initialize("SCRIPTED_AGENT_INITIALIZE", "Initialize")]
#[case::session_new("SCRIPTED_AGENT_NEW", "SessionNew")]
#[tokio::test]
async fn n5_an_agent_that_hangs_ends_at_the_start_deadline_and_the_stage_is_named(
    #[case] variable: &str,
    #[case] stage: &str,
) {
    in_namespace("hang", async |ns| {
        let collector = collector();
        ns.provider(&ScriptedProvider::default().reporting_to(collector.address()).env(variable, "hang")).await;
        let run = ns.finish(&run_with("hanging", json!({"startDeadlineSeconds": 25}))).await;
        assert_start_failed(&ns, &run, "StartDeadlineExceeded", &[stage, "25 s"]).await;
        assert!(collector.of_kind("prompt").is_empty());
    })
    .await;
}

/// The gateway's name leads elsewhere, or nowhere. What the worker met is in the run, whose pod and log are gone by then.
#[tokio::test]
async fn n4_a_worker_that_never_connects_ends_at_the_start_deadline_with_what_it_met() {
    in_namespace("unreachable", async |ns| {
        let name = format!("{RELEASE}.{OPERATOR_NAMESPACE}.svc");
        let elsewhere = json!({"hostAliases": [{"ip": "127.0.0.1", "hostnames": [name]}]});
        let nowhere = json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["127.0.0.1"]}});
        let cases = [("elsewhere", elsewhere, "refused"), ("nowhere", nowhere, "lookup")];
        for (name, pod, _) in &cases {
            ns.provider(&ScriptedProvider::named(name).pod(pod.clone())).await;
            ns.create(&run_with(name, json!({"providerRef": {"name": name}, "startDeadlineSeconds": 25}))).await;
        }
        for (run, _, met) in &cases {
            let run = ns.stopped(run).await;
            let gateway = format!("has not connected to wss://{name}:8443");
            assert_start_failed(&ns, &run, "StartDeadlineExceeded", &["25 s", &gateway, "Its worker says", met]).await;
        }
    })
    .await;
}

#[tokio::test]
async fn n5_an_agent_that_is_only_slow_lives() {
    in_namespace("slow", async |ns| {
        ns.provider(&ScriptedProvider::default().env("SCRIPTED_AGENT_INITIALIZE", "delay:20000")).await;
        let run = ns.finish(&run("slow", "in my own time")).await;
        assert_eq!(
            (run.end(), run.text()),
            (end("Completed", "Completed", "Completed"), "echo: in my own time".into())
        );
    })
    .await;
}

#[tokio::test]
async fn n1_a_missing_reference_is_shown_at_once_and_heals() {
    in_namespace("reference", async |ns| {
        let from = json!([{"configMapRef": {"name": "settings"}}]);
        ns.provider(&ScriptedProvider::default().agent(json!({"envFrom": from}))).await;
        ns.create(&run("missing", "!env COLOUR")).await;
        let waiting = ns.run_until("missing", "shows what is missing", |run| run.reason() == "MissingReference").await;
        assert!(waiting.message().contains("settings"), "{}", waiting.message());
        assert!(!waiting.is(conditions::FINISHED), "it may still come");
        let map = serde_json::from_value(json!({"metadata": {"name": "settings"}, "data": {"COLOUR": "green"}}))
            .expect("a ConfigMap");
        ns.create::<k8s_openapi::api::core::v1::ConfigMap>(&map).await;
        let run = ns.stopped("missing").await;
        assert_eq!(run.end(), end("Completed", "Completed", "Completed"), "{}", run.message());
        assert!(run.text().contains("green"), "{}", run.text());
    })
    .await;
}

#[tokio::test]
async fn n1_a_pod_that_fits_on_no_node_is_shown_and_ends_at_the_start_deadline() {
    in_namespace("unschedulable", async |ns| {
        ns.provider(&ScriptedProvider::default().agent(json!({"resources": {"requests": {"cpu": "1000"}}}))).await;
        ns.create(&run_with("huge", json!({"startDeadlineSeconds": 8}))).await;
        let waiting = ns.run_until("huge", "shows why", |run| run.reason() == "Unschedulable").await;
        assert!(waiting.message().contains("cpu"), "{}", waiting.message());
        let run = ns.stopped("huge").await;
        assert_start_failed(&ns, &run, "Unschedulable", &["8 s"]).await;
        // c50: never bound, so there was nothing to stop.
        assert_eq!(run.condition(conditions::STOPPED).map(|stopped| stopped.reason), Some("NeverBound".into()));
    })
    .await;
}

#[tokio::test]
async fn n1_an_exceeded_quota_queues_the_run_until_there_is_room() {
    in_namespace("quota", async |ns| {
        ns.provider(&ScriptedProvider::default()).await;
        let none = json!({"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}});
        let quota: ResourceQuota = serde_json::from_value(none).expect("a quota");
        ns.create(&quota).await;
        ns.until("none", "in force", PATIENCE, |quota: &ResourceQuota| {
            quota
                .status
                .as_ref()
                .is_some_and(|status| status.hard.as_ref().is_some_and(|hard| hard.contains_key("pods")))
        })
        .await;
        ns.create(&run_with("queued", json!({"startDeadlineSeconds": 60}))).await;
        let queued = ns.run_until("queued", "Queued", |run| run.phase() == Some(Phase::Queued)).await;
        assert_eq!(queued.reason(), "QuotaExceeded");
        assert!(queued.message().contains("quota"), "{}", queued.message());
        ns.api::<ResourceQuota>().delete("none", &DeleteParams::default()).await.expect("the quota goes");
        let run = ns.stopped("queued").await;
        assert_eq!((run.end(), run.text()), (end("Completed", "Completed", "Completed"), "echo: hello".into()));
    })
    .await;
}

#[tokio::test]
async fn n1_a_missing_service_account_is_named_at_the_provider() {
    in_namespace("account", async |ns| {
        let provider = ScriptedProvider::default().pod(json!({"serviceAccountName": "nobody"})).build();
        ns.create(&provider).await;
        let provider: SubagentProvider = ns
            .until("scripted", "checked", PATIENCE, |provider: &SubagentProvider| {
                provider.status.as_ref().is_some_and(|status| !status.conditions.is_empty())
            })
            .await;
        let ready = provider.status.unwrap_or_default().conditions.remove(0);
        assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "MissingReference"), "{}", ready.message);
        assert!(ready.message.contains("nobody"), "{}", ready.message);
        // Once it is there the provider heals by itself.
        let account = serde_json::from_value(json!({"metadata": {"name": "nobody"}})).expect("a service account");
        ns.create::<ServiceAccount>(&account).await;
        let run = ns.finish(&run("healed", "hello")).await;
        assert_eq!(run.end(), end("Completed", "Completed", "Completed"), "{}", run.message());
    })
    .await;
}
