//! Probes on real pods: what an agent advertises, and what keeps one from being run, is known before any run.

use e2e_tests::{RunView, ScriptedProvider, TestNamespace, in_namespace, namespace::PATIENCE, run_with, status::end};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};
use subagent_crds::{SubagentProvider, SubagentProviderStatus, conditions, names};

async fn probes(ns: &TestNamespace, provider: &str) -> Vec<Pod> {
    let labels = format!("{},{}={provider}", names::PROBE_LABEL, names::PROVIDER_LABEL);
    ns.api::<Pod>().list(&ListParams::default().labels(&labels)).await.expect("pods").items
}

async fn probed(ns: &TestNamespace, provider: &str) -> SubagentProviderStatus {
    let done = |provider: &SubagentProvider| provider.status.as_ref().is_some_and(|status| status.probe.is_some());
    ns.until(provider, "probed", PATIENCE, done).await.status.expect("a status")
}

fn ready(status: &SubagentProviderStatus) -> (&str, &str, &str) {
    let ready = conditions::get(&status.conditions, conditions::READY).expect("Ready");
    (&ready.status, &ready.reason, &ready.message)
}

async fn no_probes(ns: &TestNamespace, provider: &str) {
    ns.eventually("the probes are gone", PATIENCE, async || {
        let left = probes(ns, provider).await;
        if left.is_empty() { Ok(()) } else { Err(format!("{} left", left.len())) }
    })
    .await;
}

/// In a namespace that enforces `restricted`, with an image without a shell: the agent's word is in the provider, nothing
/// of the probe is left, and a run with an image in its prompt, created first, is taken.
#[tokio::test]
async fn c5_an_agent_is_known_before_its_first_run() {
    in_namespace("probe", async |ns| {
        let image = json!({"data": "iVBORw0KGgo=", "mimeType": "image/png"});
        let prompt = json!({"prompt": {"text": null, "content": [{"text": "look"}, {"image": image}]}});
        ns.create(&run_with("with-image", prompt)).await;
        ns.create(&ScriptedProvider::default().probed().build()).await;
        let status = probed(&ns, "scripted").await;
        let (is_ready, reason, message) = ready(&status);
        assert_eq!((is_ready, reason), ("True", "Probed"), "{message}");
        assert!(status.capabilities.iter().any(|known| known == "ImagePrompt"), "{:?}", status.capabilities);
        assert!(status.agent.is_some_and(|agent| !agent.name.is_empty()));
        no_probes(&ns, "scripted").await;
        let run = ns.stopped("with-image").await;
        assert_eq!(run.end(), end("Completed", "Completed", "Completed"), "{}", run.message());
    })
    .await;
}

/// N1, N6: what is wrong with a provider is said there, without a run; the log of a failed probe can be read, and what is
/// left of it goes with the provider.
#[tokio::test]
async fn n1_n6_what_keeps_an_agent_from_running_shows_at_the_provider() {
    in_namespace("probe-fails", async |ns| {
        let cases: [(&str, Value, &str, &str); 4] = [
            ("image", json!({"image": "localhost/no-such-image:dev"}), "ImagePullFailed", "no-such-image"),
            ("root", json!({"image": "localhost/scripted-agent-root:dev"}), "ImageUserRefused", "runAsUser"),
            (
                "handshake",
                json!({"env": [{"name": "SCRIPTED_AGENT_INITIALIZE", "value": "exit:7"}]}),
                "AgentHandshakeFailed",
                "exit code 7",
            ),
            ("command", json!({"command": ["/usr/bin/no-such-agent"]}), "AgentStartFailed", "not found"),
        ];
        for (name, agent, ..) in &cases {
            ns.create(&ScriptedProvider::named(name).probed().agent(agent.clone()).build()).await;
        }
        for (name, _, reason, says) in &cases {
            let status = probed(&ns, name).await;
            let (is_ready, word, message) = ready(&status);
            assert_eq!((is_ready, word), ("False", *reason), "{name}: {message}");
            assert!(message.contains(says), "{name}: {message}");
        }
        let pod = probes(&ns, "handshake").await.pop().expect("the failed probe");
        let log = ns.kubectl(&["logs", &pod.name_any(), "-c", "agent"]);
        assert!(log.contains("AgentHandshakeFailed") && log.contains("exit code 7"), "{log}");
        ns.api::<SubagentProvider>().delete("handshake", &DeleteParams::default()).await.expect("a deletion");
        no_probes(&ns, "handshake").await;
    })
    .await;
}

/// N5: the kubelet ends a probe whose agent never answers, and the stage is named.
#[tokio::test]
async fn n5_a_probe_that_hangs_ends_at_its_deadline() {
    in_namespace("probe-hangs", async |ns| {
        let spec = json!({"runDefaults": {"startDeadlineSeconds": 15}});
        let provider = ScriptedProvider::default().probed().spec(spec).env("SCRIPTED_AGENT_INITIALIZE", "hang");
        ns.create(&provider.build()).await;
        let status = probed(&ns, "scripted").await;
        let (is_ready, reason, message) = ready(&status);
        assert_eq!((is_ready, reason), ("False", "StartDeadlineExceeded"), "{message}");
        assert!(message.contains("15 s") && message.contains("in stage Initialize"), "{message}");
    })
    .await;
}
