//! What a person reads: kubectl's output about runs that really happened, committed and compared.

use e2e_tests::{
    RunView, ScriptedProvider, in_namespace,
    namespace::PATIENCE,
    run, run_with,
    snapshot::{assert_snapshot, normalise, normalise_table},
};
use kube::ResourceExt;
use serde_json::json;
use subagent_crds::SubagentRun;

#[tokio::test]
async fn get_and_describe_of_finished_runs_are_worth_reading() {
    in_namespace("kubectl", async |ns| {
        ns.provider(&ScriptedProvider::default()).await;
        let done =
            ns.finish(&run_with("done", json!({"description": "say hello back", "prompt": {"text": "Hello"}}))).await;
        let failed = ns
            .finish(&run_with(
                "failed",
                json!({"description": "crash half way", "prompt": {"text": "!say half\n!crash 3"}}),
            ))
            .await;
        let refused =
            ns.finish(&run_with("refused", json!({"description": "ask for a persona", "persona": "a pirate"}))).await;

        let revision = done.seen().descriptor.map(|descriptor| descriptor.provider_revision).expect("a revision");
        let session = |run: &SubagentRun| run.seen().report.and_then(|report| report.session).expect("a session").id;
        let (pods, sessions) = ([&done, &failed].map(RunView::pod_name), [&done, &failed].map(session));
        let mut words = vec![(ns.name.as_str(), "<namespace>"), (revision.as_str(), "<revision>")];
        words.extend(pods.iter().map(|pod| (pod.as_str(), "<pod>")));
        words.extend(sessions.iter().map(|session| (session.as_str(), "<session>")));
        let words = words.as_slice();

        // Events arrive after the status.
        for (run, last) in [(&done, "Stopped"), (&failed, "Stopped"), (&refused, "Rejected")] {
            let uid = run.uid().unwrap_or_default();
            ns.eventually(last, PATIENCE, async || {
                let events = ns.events_of(&uid).await;
                if events.iter().any(|(reason, _, _)| reason == last) { Ok(()) } else { Err(format!("{events:?}")) }
            })
            .await;
        }
        assert_eq!(refused.reason(), "UnsupportedCapability");
        assert_snapshot("get-runs", &normalise_table(&ns.kubectl(&["get", "subagentruns"]), words));
        assert_snapshot("get-runs-wide", &normalise_table(&ns.kubectl(&["get", "subagentruns", "-o", "wide"]), words));
        assert_snapshot(
            "get-providers-wide",
            &normalise_table(&ns.kubectl(&["get", "subagentproviders", "-o", "wide"]), words),
        );
        for name in ["done", "failed", "refused"] {
            assert_snapshot(
                &format!("describe-{name}"),
                &normalise(&ns.kubectl(&["describe", "subagentrun", name]), words),
            );
        }
        assert_snapshot(
            "describe-provider",
            &normalise(&ns.kubectl(&["describe", "subagentprovider", "scripted"]), words),
        );
        assert_snapshot("logs-done", &normalise(&ns.transcript("done"), words));
    })
    .await;
}

#[tokio::test]
async fn wait_by_condition_and_jsonpath_works_for_scripts() {
    in_namespace("wait", async |ns| {
        ns.provider(&ScriptedProvider::default()).await;
        ns.create(&run("waited", "Hello")).await;
        let limit = format!("--timeout={}s", PATIENCE.as_secs());
        for what in [
            "--for=condition=Finished",
            "--for=condition=Succeeded",
            "--for=condition=Stopped",
            "--for=jsonpath={.status.phase}=Completed",
        ] {
            ns.kubectl(&["wait", what, "subagentrun/waited", &limit]);
        }
        assert_eq!(ns.kubectl(&["get", "sar", "waited", "-o", "jsonpath={.status.result.text}"]), "echo: Hello");
        assert!(ns.kubectl(&["get", "subagents-all"]).contains("subagentrun.subagents.dev/waited"));
    })
    .await;
}
