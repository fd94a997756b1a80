//! Refusals of contract 5: a reason, no pod, no start and no end.

use e2e_tests::{
    RunView, ScriptedProvider, TestNamespace, audit::pods_created, collector, collector::seen_event, in_namespace,
    namespace::PATIENCE, run, run_with, status::end,
};
use kube::ResourceExt;
use rstest::rstest;
use serde_json::{Value, json};
use subagent_crds::{Phase, SubagentProvider, SubagentRun, conditions};

/// A run that was refused: the record says so, nothing was started and no Event says that anything was.
async fn assert_refused(ns: &TestNamespace, run: &SubagentRun, reason: &str, named: &[&str]) {
    assert_eq!(run.end(), end("Rejected", "", reason), "{}", run.message());
    for part in named {
        assert!(run.message().contains(part), "{part:?} in {:?}", run.message());
    }
    assert!(run.condition(conditions::STARTED).is_none(), "c10: a refused run has no Started");
    let accepted = run.condition(conditions::ACCEPTED).expect("Accepted");
    assert_eq!((accepted.status.as_str(), accepted.reason.as_str()), ("False", reason));
    assert_eq!(run.condition(conditions::FINISHED).map(|finished| finished.reason), Some("Rejected".into()));
    assert_eq!(run.condition(conditions::STOPPED).map(|stopped| stopped.reason), Some("NoPod".into()));
    assert_eq!(pods_created(&ns.name), Vec::<String>::new());
    let uid = run.uid().unwrap_or_default();
    let events = ns
        .eventually("the Event Rejected", PATIENCE, async || {
            let events = ns.events_of(&uid).await;
            if events.iter().any(|(reason, _, _)| reason == "Rejected") {
                Ok(events)
            } else {
                Err(format!("{events:?}"))
            }
        })
        .await;
    assert!(
        events
            .iter()
            .all(|(reason, _, _)| !["Started", "StartFailed", "Settled", "Stopped"].contains(&reason.as_str())),
        "{events:?}"
    );
}

#[tokio::test]
async fn c5_a_provider_that_never_comes_is_refused_at_the_start_deadline() {
    in_namespace("no-provider", async |ns| {
        ns.create(&run_with("lonely", json!({"startDeadlineSeconds": 4}))).await;
        let waiting = ns.run_until("lonely", "waits", |run| run.phase() == Some(Phase::Pending)).await;
        assert_eq!(waiting.reason(), "NoProvider");
        assert!(!waiting.is(conditions::ACCEPTED));
        let run = ns.stopped("lonely").await;
        assert_refused(&ns, &run, "NoProvider", &["SubagentProvider scripted"]).await;
        let lived = run.seen().finished_at.expect("an end").0.as_second()
            - run.creation_timestamp().expect("a time").0.as_second();
        assert!(lived >= 4, "refused after {lived} s, before its deadline");
    })
    .await;
}

#[tokio::test]
async fn c5_a_provider_that_is_not_ready_is_refused_at_the_start_deadline() {
    in_namespace("not-ready", async |ns| {
        ns.create(&ScriptedProvider::default().pod(json!({"hostPID": true})).build()).await;
        let run = ns.finish(&run_with("waiting", json!({"startDeadlineSeconds": 4}))).await;
        assert_refused(&ns, &run, "ProviderNotReady", &["InvalidTemplate", "hostPID"]).await;
    })
    .await;
}

#[tokio::test]
async fn c2_a_provider_that_comes_later_is_picked_up() {
    in_namespace("later", async |ns| {
        ns.create(&run("early", "at last")).await;
        ns.run_until("early", "waits", |run| run.reason() == "NoProvider").await;
        ns.provider(&ScriptedProvider::default()).await;
        let run = ns.stopped("early").await;
        assert_eq!((run.end(), run.text()), (end("Completed", "Completed", "Completed"), "echo: at last".into()));
    })
    .await;
}

#[tokio::test]
async fn c5_c6_c7_each_capability_nobody_has_is_refused_by_name() {
    in_namespace("capability", async |ns| {
        ns.provider(&ScriptedProvider::default()).await;
        let asked: &[(&str, Value, &str, &str)] = &[
            ("schema", json!({"outputSchema": {"type": "object"}}), "OutputSchema", "spec.outputSchema"),
            ("filter", json!({"toolFilter": {"allow": []}}), "ToolFilter", "spec.toolFilter"),
            ("persona", json!({"persona": ""}), "Persona", "spec.persona"),
            (
                "model-provider",
                json!({"agentOptions": {"provider": "p"}}),
                "AgentProvider",
                "spec.agentOptions.provider",
            ),
            ("model", json!({"agentOptions": {"model": "m"}}), "AgentModel", "spec.agentOptions.model"),
            ("tokens", json!({"agentOptions": {"maxTokens": 1}}), "AgentMaxTokens", "spec.agentOptions.maxTokens"),
            ("resume", json!({"interruptionPolicy": "Resume"}), "InterruptionResume", "spec.interruptionPolicy"),
            ("restart", json!({"interruptionPolicy": "Restart"}), "InterruptionRestart", "spec.interruptionPolicy"),
            // The order of contract 5: schema, depth, filter, persona, the rest.
            (
                "order-1",
                json!({"outputSchema": {"type": "object"}, "persona": "", "toolFilter": {"deny": ["a"]}}),
                "OutputSchema",
                "spec.outputSchema",
            ),
            (
                "order-2",
                json!({"persona": "", "toolFilter": {"deny": ["a"]}, "maxDepth": 0}),
                "ToolFilter",
                "spec.toolFilter",
            ),
            ("order-3", json!({"persona": "x", "agentOptions": {"model": "m"}}), "Persona", "spec.persona"),
        ];
        for (name, spec, _, _) in asked {
            ns.create(&run_with(name, spec.clone())).await;
        }
        for (name, _, capability, field) in asked {
            let run = ns.stopped(name).await;
            assert_refused(&ns, &run, "UnsupportedCapability", &["SubagentProvider scripted", capability, field]).await;
        }
    })
    .await;
}

#[tokio::test]
async fn c6_c12_a_depth_of_zero_is_a_request_and_refuses_every_delegation() {
    in_namespace("depth", async |ns| {
        ns.provider(&ScriptedProvider::default()).await;
        let refused = ns.finish(&run_with("zero", json!({"maxDepth": 0}))).await;
        assert_refused(&ns, &refused, "DepthExceeded", &["depth would be 1"]).await;
    })
    .await;
}

#[tokio::test]
async fn c11_c12_c14_c15_parents() {
    in_namespace("parents", async |ns| {
        let collector = collector();
        ns.provider(&ScriptedProvider::default().reporting_to(collector.address())).await;
        let parent = ns.create(&run_with("parent", json!({"prompt": {"text": "!hang"}, "maxDepth": 2}))).await;
        let parent_uid = parent.uid().expect("a UID");
        seen_event(&collector, PATIENCE, "prompt", "!hang").await;
        let under = |name: &str, extra: Value| {
            let mut spec =
                json!({"parentRef": {"kind": "SubagentRun", "name": "parent"}, "prompt": {"text": "of the parent"}});
            e2e_tests::objects::merge(&mut spec, extra);
            run_with(name, spec)
        };
        let child = ns.finish(&under("child", json!({"parentRef": {"uid": parent_uid}}))).await;
        assert_eq!(child.end(), end("Completed", "Completed", "Completed"), "{}", child.message());
        let lineage = child.seen().lineage.expect("a lineage");
        assert_eq!(
            (lineage.depth, lineage.parent_uid.as_ref(), &lineage.root_uid),
            (2, Some(&parent_uid), &parent_uid)
        );
        assert_eq!(lineage.ancestors, std::slice::from_ref(&parent_uid));
        let told = ns.events_of(&parent_uid).await;
        let of_child =
            |reason: &str| told.iter().filter(|(seen, _, note)| seen == reason && note.starts_with("child: ")).count();
        assert_eq!((of_child("ChildStarted"), of_child("ChildSettled")), (1, 1), "{told:?}");

        // Refused before any pod: the parent's and the child's are the only ones.
        let replaced = ns.finish(&under("replaced", json!({"parentRef": {"uid": "another-uid"}}))).await;
        assert_eq!(replaced.end(), end("Rejected", "", "Unauthorized"), "{}", replaced.message());
        let missing = ns.finish(&under("missing", json!({"parentRef": {"name": "nobody"}}))).await;
        assert_eq!(missing.end(), end("Rejected", "", "ParentUnavailable"), "{}", missing.message());
        let terminal = ns.finish(&under("terminal", json!({"parentRef": {"name": "child"}}))).await;
        assert_eq!(terminal.end(), end("Rejected", "", "ParentUnavailable"), "{}", terminal.message());
        let continuable = ns.finish(&under("continuable", json!({"parentRef": {"kind": "Subagent"}}))).await;
        assert_eq!(continuable.end(), end("Rejected", "", "ParentUnavailable"), "{}", continuable.message());
        // The parent's cap of 2 holds for grandchildren, whatever they ask for.
        let middle = ns.create(&under("middle", json!({"prompt": {"text": "!hang\n"}}))).await;
        ns.run_until("middle", "Running", |run| run.phase() == Some(Phase::Running)).await;
        let deep = ns.finish(&under("deep", json!({"parentRef": {"name": "middle"}, "maxDepth": 9}))).await;
        assert_eq!(deep.end(), end("Rejected", "", "DepthExceeded"), "{}", deep.message());
        ns.cancel("parent");
        let cancelled = ns.finish(&under("cancelled", json!({}))).await;
        assert_eq!(cancelled.end(), end("Rejected", "", "ParentUnavailable"), "{}", cancelled.message());
        let created = pods_created(&ns.name);
        assert_eq!(created.len(), 3, "pods of parent, child and middle ({:?}): {created:#?}", middle.name_any());
    })
    .await;
}

/// N7: what takes the agent out of the worker's hands makes the provider not ready and names the field.
#[rstest]
#[case::host_pid(json!({"hostPID": true}), json!({}), "InvalidTemplate", "hostPID")]
#[case::shared_processes(json!({"shareProcessNamespace": true}), json!({}), "InvalidTemplate", "shareProcessNamespace")]
#[case::hook(json!({}), json!({"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}), "InvalidTemplate", "lifecycle")]
#[case::mount(json!({}), json!({"volumeMounts": [{"name": "x", "mountPath": "/subagents/x"}]}), "InvalidTemplate", "/subagents")]
#[case::no_command(json!({}), json!({"command": null}), "InvalidTemplate", "command")]
#[case::n8_restarted(json!({}), json!({"restartPolicy": "Always"}), "InvalidTemplate", "restartPolicy")]
#[case::unknown_volume(json!({}), json!({"volumeMounts": [{"name": "nowhere", "mountPath": "/x"}]}), "InvalidTemplate", "nowhere")]
#[case::n6_root_in_restricted(json!({"securityContext": {"runAsUser": 0}}), json!({}), "PodRejected", "runAsUser=0")]
#[tokio::test]
async fn n7_a_bad_template_makes_the_provider_not_ready(
    #[case] pod: Value,
    #[case] agent: Value,
    #[case] reason: &str,
    #[case] named: &str,
) {
    in_namespace("template", async |ns| {
        let provider = ScriptedProvider::default().pod(pod).agent(agent).build();
        let created = ns.create(&provider).await;
        let provider: SubagentProvider = ns
            .until(&created.name_any(), "checked", PATIENCE, |provider: &SubagentProvider| {
                provider
                    .status
                    .as_ref()
                    .is_some_and(|status| conditions::get(&status.conditions, conditions::READY).is_some())
            })
            .await;
        let ready = conditions::get(&provider.status.unwrap_or_default().conditions, conditions::READY)
            .cloned()
            .expect("Ready");
        assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", reason), "{}", ready.message);
        assert!(ready.message.contains(named), "{named:?} in {:?}", ready.message);
        assert_eq!(pods_created(&ns.name), Vec::<String>::new());
    })
    .await;
}
