//! A published agent, unmodified, against a scripted model.

use e2e_tests::{RunView, cluster, commands::repository, in_namespace, namespace::PATIENCE, run_with, status::end};
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::time::Duration;
use subagent_crds::{SubagentProvider, conditions};

#[tokio::test]
async fn opencode_writes_a_file_and_answers_with_a_digest() {
    in_namespace("opencode", async |ns| {
        let manifest = |path: &str| repository().join(path).to_str().expect("a path in UTF-8").to_owned();
        ns.kubectl(&["apply", "-f", &manifest("tests/agents/fake-llm/manifest.yaml"), "-f", &manifest("examples/provider-opencode.yaml")]);
        ns.until("fake-llm", "available", PATIENCE, |deployment: &Deployment| {
            deployment.status.as_ref().and_then(|status| status.available_replicas) == Some(1)
        })
        .await;
        ns.until("opencode", "Ready", PATIENCE, |provider: &SubagentProvider| {
            provider.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, conditions::READY))
        })
        .await;
        // Fresh, so that no answer can have been prepared.
        let nonce = format!("{:x}", Sha256::digest(&ns.name))[..32].to_owned();
        let prompt = format!("nonce: {nonce}\nWrite the SHA-256 of the nonce to the file answer.txt, read it back, then answer with the digest alone.\n");
        let created = ns.create(&run_with("digest", json!({"providerRef": {"name": "opencode"}, "prompt": {"text": prompt}}))).await;
        let run = ns
            .until(&created.name_any(), "Finished", Duration::from_secs(240), |run: &subagent_crds::SubagentRun| run.is(conditions::FINISHED))
            .await;
        assert_eq!(run.end(), end("Completed", "Completed", "Completed"), "{}", run.message());
        assert_eq!(run.text().trim(), format!("{:x}", Sha256::digest(&nonce)));
        let report = run.seen().report.expect("a report");
        let agent = report.agent.expect("the agent");
        assert_eq!((agent.name.as_str(), agent.protocol_version), ("OpenCode", 1));
        assert!(!agent.version.is_empty());
        assert!(run.seen().permissions.is_some_and(|counted| counted.allowed > 0 && counted.rejected == 0), "it asks before it uses its shell");
        let log = ns.kubectl(&["logs", "-l", &cluster::of_run("digest"), "-c", "agent", "--tail=-1"]);
        assert!(log.contains(&nonce) && log.contains("answer.txt"), "{log}");
    })
    .await;
}
