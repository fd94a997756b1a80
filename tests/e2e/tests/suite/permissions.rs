//! Permission requests of an agent nobody sits beside.

use e2e_tests::{RunView, ScriptedProvider, in_namespace, namespace::PATIENCE, run, status::end};
use kube::ResourceExt;
use serde_json::json;

/// Options in an order in which neither position nor the first of a kind gives the right answer by luck.
const ASK: &str =
    "!permission \"delete all\" allow_always:aa,reject_always:ra,allow_once:ao,reject_once:ro x2\n!say done";

#[tokio::test]
async fn c19_c55_reject_is_the_default_and_a_warning_names_the_setting() {
    in_namespace("reject", async |ns| {
        ns.provider(&ScriptedProvider::default()).await;
        let run = ns.finish(&run("asking", ASK)).await;
        assert_eq!(run.end(), end("Completed", "Completed", "Completed"), "{}", run.message());
        let counted = run.seen().permissions.expect("counts");
        assert_eq!((counted.allowed, counted.rejected), (0, 2));
        let uid = run.uid().unwrap_or_default();
        let note = ns
            .eventually("the Event PermissionsRejected", PATIENCE, async || {
                let events = ns.events_of(&uid).await;
                let found = events.iter().find(|(reason, _, _)| reason == "PermissionsRejected");
                found.map(|(_, _, note)| note.clone()).ok_or_else(|| format!("{events:?}"))
            })
            .await;
        assert!(note.contains("transport.acp.permission.mode"), "{note}");
        let transcript = ns.transcript("asking");
        assert!(transcript.contains("selected ro") && !transcript.contains("selected ra"), "{transcript}");
    })
    .await;
}

#[tokio::test]
async fn c19_c55_allow_answers_by_kind_and_counts() {
    in_namespace("allow", async |ns| {
        ns.provider(
            &ScriptedProvider::default().spec(json!({"transport": {"acp": {"permission": {"mode": "Allow"}}}})),
        )
        .await;
        let run = ns.finish(&run("asking", ASK)).await;
        assert_eq!(run.end(), end("Completed", "Completed", "Completed"), "{}", run.message());
        let counted = run.seen().permissions.expect("counts");
        assert_eq!((counted.allowed, counted.rejected), (2, 0));
        let events = ns.events_of(&run.uid().unwrap_or_default()).await;
        assert!(events.iter().all(|(reason, _, _)| reason != "PermissionsRejected"), "{events:?}");
        let transcript = ns.transcript("asking");
        assert!(transcript.contains("selected ao") && !transcript.contains("selected aa"), "{transcript}");
    })
    .await;
}
