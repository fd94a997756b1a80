//! The manifests in `examples/` that need something beside them, applied as they are.

use e2e_tests::{
    RunView, TestNamespace, cluster, commands::repository, in_namespace, namespace::PATIENCE, run_with, status::end,
};
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, Deployment},
    core::v1::{ConfigMap, Event, Pod},
};
use kube::{Resource, ResourceExt, api::ListParams, core::NamespaceResourceScope};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::{fmt::Debug, time::Duration};
use subagent_crds::{Subagent, SubagentPhase, SubagentProvider, SubagentRun, conditions};

fn apply(ns: &TestNamespace, paths: &[&str]) {
    let paths = paths.iter().map(|path| repository().join(path).to_str().expect("a path in UTF-8").to_owned());
    let paths: Vec<_> = paths.flat_map(|path| ["-f".to_owned(), path]).collect();
    ns.kubectl(&[&["apply"], paths.iter().map(String::as_str).collect::<Vec<_>>().as_slice()].concat());
}

async fn available(ns: &TestNamespace, deployment: &str) {
    ns.until(deployment, "available", PATIENCE, |deployment: &Deployment| {
        deployment.status.as_ref().and_then(|status| status.available_replicas) == Some(1)
    })
    .await;
}

async fn ready(ns: &TestNamespace, provider: &str) {
    ns.until(provider, "Ready", PATIENCE, |provider: &SubagentProvider| {
        provider.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, conditions::READY))
    })
    .await;
}

/// One provider, two branches of a repository, chosen by parameters: the init container clones, the agent starts in the
/// clone. A branch that is not there ends the run and names the container to look at.
#[tokio::test]
async fn parameters_let_one_provider_serve_many_repositories() {
    in_namespace("repository", async |ns| {
        apply(&ns, &["tests/agents/git/manifest.yaml", "examples/provider-repository.yaml"]);
        available(&ns, "git").await;
        ready(&ns, "repository").await;
        apply(&ns, &["examples/run-repository.yaml"]);
        let other = |name: &str, parameters: serde_json::Value| {
            let spec = json!({"providerRef": {"name": "repository"}, "parameters": parameters, "prompt": {"text": "!read README.md\n!cwd"}});
            run_with(name, spec)
        };
        ns.create(&other("default", json!({"REPO": "git://git/project"}))).await;
        ns.create(&other("absent", json!({"REPO": "git://git/project", "BRANCH": "--upload-pack=x"}))).await;
        let next = ns.stopped("readme").await;
        assert_eq!(next.end(), end("Completed", "Completed", "Completed"), "{}", next.message());
        assert!(next.text().contains("This is branch next."), "{}", next.text());
        let main = ns.stopped("default").await;
        assert_eq!(main.end(), end("Completed", "Completed", "Completed"), "{}", main.message());
        assert!(main.text().contains("This is branch main.") && main.text().contains("/workspace/repo"), "{}", main.text());
        let absent = ns.stopped("absent").await;
        assert_eq!(absent.end(), end("Failed", "Error", "InvalidTemplate"), "{}", absent.message());
        let pod = absent.pod_name();
        for words in ["init container clone", "exit code 128", &format!("kubectl logs {pod} -c clone"), "spec.parameters"] {
            assert!(absent.message().contains(words), "{words:?} in {:?}", absent.message());
        }
        let log = ns.kubectl(&["logs", &pod, "-c", "clone"]);
        assert!(log.contains("Remote branch --upload-pack=x not found"), "{log}");
    })
    .await;
}

/// A child that keeps its files, as the README has it: what it wrote is there for its next activation.
#[tokio::test]
async fn a_child_with_a_workspace_finds_its_files_again() {
    in_namespace("workspace-example", async |ns| {
        apply(&ns, &["examples/provider-scripted.yaml", "examples/child-workspace.yaml"]);
        let settled = |number: i64| {
            move |child: &Subagent| {
                let status = child.status.clone().unwrap_or_default();
                status.phase == Some(SubagentPhase::Settled) && status.epochs == number
            }
        };
        ns.until("librarian", "Settled", PATIENCE, settled(1)).await;
        let message =
            json!([{"op": "add", "path": "/spec/messages/-", "value": {"id": "second", "text": "!read word.txt"}}]);
        ns.kubectl(&["patch", "subagent", "librarian", "--type=json", "-p", &message.to_string()]);
        let child = ns.until("librarian", "Settled again", PATIENCE, settled(2)).await;
        let last = child.status.and_then(|status| status.last_result).and_then(|last| last.preview).unwrap_or_default();
        assert!(last.contains("heron"), "{last}");
    })
    .await;
}

/// A real agent whose model answers only to who shows the key. It comes from a Secret, gets there, and is in nothing that
/// the operator wrote or said.
#[tokio::test]
async fn an_api_key_from_a_secret_reaches_the_agent_and_nothing_else() {
    in_namespace("api-key", async |ns| {
        let key = format!("key-{:x}", Sha256::digest(&ns.name));
        ns.kubectl(&["create", "secret", "generic", "llm", &format!("--from-literal=api-key={key}")]);
        apply(&ns, &["tests/agents/fake-llm/manifest.yaml", "examples/provider-api-key.yaml"]);
        available(&ns, "fake-llm").await;
        ready(&ns, "with-key").await;
        let prompt = "Greet. <fake-llm>[{\"text\": \"the key was taken\"}]</fake-llm>";
        ns.create(&run_with("greeting", json!({"providerRef": {"name": "with-key"}, "prompt": {"text": prompt}})))
            .await;
        let limit = Duration::from_secs(240);
        let run = ns.until("greeting", "Finished", limit, |run: &SubagentRun| run.is(conditions::FINISHED)).await;
        assert_eq!(run.end(), end("Completed", "Completed", "Completed"), "{}", run.message());
        assert_eq!(run.text().trim(), "the key was taken");

        let log = ns.transcript("greeting");
        assert!(log.contains("the key was taken"), "{log}");
        let mut seen =
            vec![("the transcript", log), ("the operator's log", cluster::operator_log(&ns.client, 2000).await)];
        seen.push(("runs", all::<SubagentRun>(&ns).await));
        seen.push(("providers", all::<SubagentProvider>(&ns).await));
        seen.push(("revisions", all::<ControllerRevision>(&ns).await));
        seen.push(("pods", all::<Pod>(&ns).await));
        seen.push(("Events", all::<Event>(&ns).await));
        seen.push(("ConfigMaps", all::<ConfigMap>(&ns).await));
        for (what, text) in &seen {
            assert!(!text.contains(&key), "the key is in {what}");
        }
        // The archived transcript is compressed.
        let archive = run.seen().transcript.and_then(|transcript| transcript.ref_).expect("an archive");
        let archive = ns.api::<ConfigMap>().get(&archive).await.expect("the archived transcript");
        let packed = archive.binary_data.into_iter().flatten().next().expect("a key").1;
        let transcript = zstd::decode_all(packed.0.as_slice()).expect("zstd");
        let transcript = String::from_utf8(transcript).expect("UTF-8");
        assert!(transcript.contains("the key was taken") && !transcript.contains(&key), "{transcript}");
    })
    .await;
}

/// All objects of a kind as JSON.
async fn all<K>(ns: &TestNamespace) -> String
where
    K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Serialize + Debug,
    K::DynamicType: Default,
{
    let list = ns.api::<K>().list(&ListParams::default()).await.expect("a list");
    assert!(!list.items.is_empty(), "nothing of this kind: {:?}", list.types);
    let names: Vec<_> = list.items.iter().map(ResourceExt::name_any).collect();
    format!("{names:?} {}", serde_json::to_string(&list).expect("JSON"))
}
