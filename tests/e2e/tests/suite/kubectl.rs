//! What a person reads: kubectl's output about runs that really happened, committed and compared.

use e2e_tests::{
    RunView, ScriptedProvider, TestNamespace, in_namespace,
    namespace::PATIENCE,
    run, run_with,
    snapshot::{assert_snapshot, normalise, normalise_table},
};
use kube::ResourceExt;
use serde_json::json;
use subagent_crds::SubagentRun;

/// The words that differ from run to run.
fn words<'a>(ns: &'a TestNamespace, run: &SubagentRun, pod: &'a str, revision: &'a str, session: &'a str) -> Vec<(&'a str, &'static str)> {
    let _ = run;
    [(ns.name.as_str(), "<namespace>"), (pod, "<pod>"), (revision, "<revision>"), (session, "<session>")]
        .into_iter()
        .filter(|(word, _)| !word.is_empty())
        .collect()
}

#[tokio::test]
async fn get_and_describe_of_finished_runs_are_worth_reading() {
    in_namespace("kubectl", async |ns| {
        ns.provider(&ScriptedProvider::default()).await;
        let done = ns.finish(&run_with("done", json!({"description": "say hello back", "prompt": {"text": "Hello"}}))).await;
        let failed = ns.finish(&run_with("failed", json!({"description": "crash half way", "prompt": {"text": "!say half\n!crash 3"}}))).await;
        let refused = ns.finish(&run_with("refused", json!({"description": "ask for a persona", "persona": "a pirate"}))).await;

        let status = done.seen();
        let revision = status.descriptor.as_ref().map(|descriptor| descriptor.provider_revision.clone()).unwrap_or_default();
        let session = |run: &SubagentRun| run.seen().report.and_then(|report| report.session).map(|session| session.id).unwrap_or_default();
        let (pod, failed_pod) = (done.pod_name(), failed.pod_name());
        let (own, others) = (session(&done), session(&failed));
        let mut all = words(&ns, &done, &pod, &revision, &own);
        all.push((&failed_pod, "<pod of failed>"));
        if !others.is_empty() && others != own {
            all.push((&others, "<session>"));
        }

        // Events arrive after the status.
        for run in [&done, &failed] {
            let uid = run.uid().unwrap_or_default();
            ns.eventually("the Event Stopped", PATIENCE, async || {
                let events = ns.events_of(&uid).await;
                if events.iter().any(|(reason, _, _)| reason == "Stopped") { Ok(()) } else { Err(format!("{events:?}")) }
            })
            .await;
        }
        assert_eq!(refused.reason(), "UnsupportedCapability");
        assert_snapshot("get-runs", &normalise_table(&ns.kubectl(&["get", "subagentruns"]), &all));
        assert_snapshot("get-runs-wide", &normalise_table(&ns.kubectl(&["get", "subagentruns", "-o", "wide"]), &all));
        assert_snapshot("get-providers-wide", &normalise_table(&ns.kubectl(&["get", "subagentproviders", "-o", "wide"]), &all));
        for name in ["done", "failed", "refused"] {
            assert_snapshot(&format!("describe-{name}"), &normalise(&ns.kubectl(&["describe", "subagentrun", name]), &all));
        }
        assert_snapshot("describe-provider", &normalise(&ns.kubectl(&["describe", "subagentprovider", "scripted"]), &all));
        assert_snapshot("logs-done", &normalise(&ns.transcript("done"), &all));
    })
    .await;
}

#[tokio::test]
async fn wait_by_condition_and_jsonpath_works_for_scripts() {
    in_namespace("wait", async |ns| {
        ns.provider(&ScriptedProvider::default()).await;
        ns.create(&run("waited", "Hello")).await;
        let limit = format!("--timeout={}s", PATIENCE.as_secs());
        for what in ["--for=condition=Finished", "--for=condition=Succeeded", "--for=condition=Stopped", "--for=jsonpath={.status.phase}=Completed"] {
            ns.kubectl(&["wait", what, "subagentrun/waited", &limit]);
        }
        assert_eq!(ns.kubectl(&["get", "sar", "waited", "-o", "jsonpath={.status.result.text}"]), "echo: Hello");
        assert!(ns.kubectl(&["get", "subagents"]).contains("subagentrun.subagents.dev/waited"));
    })
    .await;
}
