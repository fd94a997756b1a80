//! Contract c5 to c9: what is refused, in what order, and that nothing is started for it.

use crate::{
    audit::{Mark, Request, lines},
    world::{LIMIT, World, end, has, status},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use k8s_openapi::api::{core::v1::ConfigMap, events::v1::Event};
use kube::{ResourceExt, api::ListParams};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use subagent_crds::{
    Phase, SubagentRun, conditions,
    content::{ConfigMapKeyRef, Prompt},
};

/// What is asked for beside the prompt, the reason it is refused with, and the word that must be in the message.
fn cases() -> Vec<(&'static str, Value, &'static str, &'static str)> {
    let all = json!({
        "outputSchema": {"type": "object"}, "maxDepth": 0, "toolFilter": {"allow": []}, "persona": "",
        "agentOptions": {"model": "m"},
    });
    let without = |fields: &[&str]| {
        let mut some = all.clone();
        fields.iter().for_each(|field| drop(some.as_object_mut().expect("an object").remove(*field)));
        some
    };
    let unsupported = "UnsupportedCapability";
    vec![
        // c5: one field less each time; the first of the order that is left is named. maxDepth is a capability every
        // agent has here, so its domain and the depth come after the other capabilities.
        ("order-1", all.clone(), unsupported, "OutputSchema"),
        ("order-2", without(&["outputSchema"]), unsupported, "ToolFilter"),
        ("order-3", without(&["outputSchema", "toolFilter"]), unsupported, "Persona"),
        ("order-4", without(&["outputSchema", "toolFilter", "persona"]), unsupported, "AgentModel"),
        ("order-5", json!({"maxDepth": 0}), "DepthExceeded", "maxDepth"),
        // c6: presence counts, not truthiness.
        ("empty-persona", json!({"persona": ""}), unsupported, "spec.persona"),
        ("empty-allow", json!({"toolFilter": {"allow": []}}), unsupported, "spec.toolFilter"),
        ("empty-schema", json!({"outputSchema": {}}), unsupported, "spec.outputSchema"),
        ("zero-depth", json!({"maxDepth": 0}), "DepthExceeded", "maxDepth"),
        // c7: named, never ignored.
        ("agent-provider", json!({"agentOptions": {"provider": "x"}}), unsupported, "AgentProvider"),
        ("max-tokens", json!({"agentOptions": {"maxTokens": 1}}), unsupported, "AgentMaxTokens"),
        ("resume", json!({"interruptionPolicy": "Resume"}), unsupported, "InterruptionResume"),
        ("restart", json!({"interruptionPolicy": "Restart"}), unsupported, "InterruptionRestart"),
        (
            "image",
            json!({"prompt": {"content": [{"image": {"data": "aGk=", "mimeType": "image/png"}}]}}),
            unsupported,
            "ImagePrompt",
        ),
        ("no-parent", json!({"parentRef": {"kind": "SubagentRun", "name": "nobody"}}), "ParentUnavailable", "nobody"),
        ("child", json!({"parentRef": {"kind": "Subagent", "name": "kid"}}), "ParentUnavailable", "kid"),
        ("own-parent", json!({"parentRef": {"kind": "SubagentRun", "name": "own-parent"}}), "InvalidArgs", "itself"),
    ]
}

/// Every refusal is terminal at once, says what to change, has neither start nor end, and no pod was ever asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c5_c6_c7_c9_c10_what_cannot_run_is_refused_without_a_pod() {
    let world = World::new("refusals").await;
    let operator = world.operator().await;
    world.provider("provider", &[]).await;
    world.ready("provider").await;
    for (name, extra, ..) in cases() {
        let run = world.make_run(name, "provider", "hello");
        let mut body = serde_json::to_value(&run).expect("JSON");
        body["spec"].as_object_mut().expect("a spec").extend(extra.as_object().expect("fields").clone());
        let run: SubagentRun = serde_json::from_value(body).expect("a run");
        world.namespace.create(&run).await;
    }
    // c5: a provider that is missing comes before everything else, and is waited for until the start deadline.
    let mut missing = world.make_run("missing", "absent", "hello");
    missing.spec.persona = Some(String::new());
    missing.spec.start_deadline_seconds = Some(3);
    world.namespace.create(&missing).await;
    // c9: cancelled when first seen.
    let mut cancelled = world.make_run("cancelled", "provider", "hello");
    cancelled.spec.cancel = true;
    world.namespace.create(&cancelled).await;
    let waiting = world.until("missing", "has a status", |status| status.phase.is_some()).await;
    assert_eq!(end(&waiting), (Phase::Pending, "NoProvider"));
    assert!(!has(status(&waiting), conditions::ACCEPTED));

    for (name, _, reason, word) in cases() {
        let run = world.stopped(name).await;
        let message = status(&run).message.clone().unwrap_or_default();
        assert_eq!(end(&run), (Phase::Rejected, reason), "{name}: {message}");
        assert!(message.contains(word), "{name}: {message}");
        if reason == "UnsupportedCapability" {
            assert!(message.contains("SubagentProvider provider"), "c7: {name} does not name the provider: {message}");
        }
        nothing_happened(&run);
    }
    let run = world.stopped("cancelled").await;
    assert_eq!(end(&run), (Phase::Cancelled, "Cancelled"));
    nothing_happened(&run);
    let run = world.stopped("missing").await;
    assert_eq!(end(&run), (Phase::Rejected, "NoProvider"));
    nothing_happened(&run);

    // c10: a refusal has neither start nor end, and is told once. Events follow what they tell of.
    let told = world
        .namespace
        .eventually("an Event for each refusal", LIMIT, async || {
            let events =
                world.namespace.api::<Event>().list(&ListParams::default()).await.map_err(|e| e.to_string())?;
            let of_runs = events
                .items
                .into_iter()
                .filter(|event| event.regarding.as_ref().is_some_and(|it| it.kind.as_deref() == Some("SubagentRun")));
            let told: Vec<_> = of_runs
                .map(|event| {
                    (event.regarding.and_then(|it| it.name).unwrap_or_default(), event.reason.unwrap_or_default())
                })
                .collect();
            let refusals = told.iter().filter(|(_, reason)| reason == "Rejected").count();
            if refusals > cases().len() { Ok(told) } else { Err(format!("{told:?}")) }
        })
        .await;
    for name in cases().into_iter().map(|(name, ..)| name).chain(["missing"]) {
        let of_run: Vec<_> = told.iter().filter(|(run, _)| run == name).map(|(_, reason)| reason.as_str()).collect();
        assert_eq!(of_run.iter().filter(|&&reason| reason == "Rejected").count(), 1, "{name}: {of_run:?}");
        let about_work = ["Started", "StartFailed", "Settled"];
        assert!(!of_run.iter().any(|reason| about_work.contains(reason)), "{name}: {of_run:?}");
    }

    assert!(world.pods().await.is_empty());
    let asked = Mark::START.requests_of(&world.rights.user);
    let created: Vec<_> = asked.into_iter().filter(Request::is_pod_creation).collect();
    assert!(created.is_empty(), "pods were asked for:\n{}", lines(&created));
    operator.stop().await;
    world.finish().await;
}

/// What the schema cannot count is counted by the operator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c5_parameters_over_the_bound_are_refused() {
    let world = World::new("parameters").await;
    let operator = world.operator().await;
    world.provider("provider", &[]).await;
    let mut run = world.make_run("run", "provider", "hello");
    run.spec.prompt = Some(Prompt { text: Some("hello".into()), ..Prompt::default() });
    let value = "x".repeat(1000);
    run.spec.parameters = Some((0..20).map(|i| (format!("P{i}"), value.clone())).collect::<BTreeMap<_, _>>());
    world.namespace.create(&run).await;
    let run = world.stopped("run").await;
    assert_eq!(end(&run), (Phase::Rejected, "InvalidArgs"), "{}", run.name_any());
    nothing_happened(&run);
    operator.stop().await;
    world.finish().await;
}

/// c5: a ConfigMap that is there and holds no prompt is refused like any other argument, and names what to correct; what is
/// binary for Kubernetes may be text all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c5_a_configmap_without_a_prompt_is_refused() {
    let world = World::new("prompt-file").await;
    let operator = world.operator().await;
    world.provider("provider", &[]).await;
    let map = json!({
        "metadata": {"name": "prompts"}, "data": {"empty": ""},
        "binaryData": {"latin1": BASE64_STANDARD.encode(b"gr\xfc\xdfe"), "text": BASE64_STANDARD.encode("grüße")},
    });
    world.namespace.create(&serde_json::from_value::<ConfigMap>(map).expect("a ConfigMap")).await;
    let create = async |key: &str| {
        let mut run = world.make_run(key, "provider", "");
        let reference = ConfigMapKeyRef { name: "prompts".into(), key: key.into() };
        run.spec.prompt = Some(Prompt { config_map_key_ref: Some(reference), ..Prompt::default() });
        world.namespace.create(&run).await
    };
    for (key, fault) in [("empty", "it is empty"), ("latin1", "it is no UTF-8 text from byte 2 on")] {
        create(key).await;
        let run = world.stopped(key).await;
        assert_eq!(end(&run), (Phase::Rejected, "InvalidArgs"), "{key}");
        let message = status(&run).message.clone().unwrap_or_default();
        for words in ["ConfigMap prompts", "spec.prompt.configMapKeyRef", key, fault, "correct it"] {
            assert!(message.contains(words), "{key}: {message}");
        }
        nothing_happened(&run);
    }
    create("text").await;
    world.until("text", "accepted", |status| has(status, conditions::ACCEPTED)).await;
    operator.stop().await;
    world.finish().await;
}

fn nothing_happened(run: &SubagentRun) {
    let (name, status) = (run.name_any(), status(run));
    assert!(!has(status, conditions::STARTED), "{name} has started");
    assert!(!has(status, conditions::ACCEPTED), "{name} is accepted");
    assert!(has(status, conditions::FINISHED), "{name} is not finished");
    assert_eq!(status.attempt, None, "{name} has an attempt");
    assert_eq!(status.pod_uid, None, "{name} has a pod");
}
