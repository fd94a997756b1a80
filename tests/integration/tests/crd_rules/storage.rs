//! What the API server stores of what it is sent.

use crate::{
    rules::{create, objects},
    table::{merged, status},
};
use integration_tests::{TestNamespace, client, make_run, refusal};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, ResourceExt,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use subagent_crds::{SubagentRun, names};

/// The API server takes the definitions as they are: no rule over its cost limit, no schema it cannot enforce.
#[tokio::test]
async fn the_definitions_are_established_without_complaints() {
    let api: Api<CustomResourceDefinition> = Api::all(client().await);
    for definition in subagent_crds::definitions() {
        let name = definition.name_any();
        let installed = api.get(&name).await.expect("an installed definition");
        let conditions = installed.status.and_then(|status| status.conditions).unwrap_or_default();
        let is = |type_: &str, status: &str| conditions.iter().any(|c| c.type_ == type_ && c.status == status);
        assert!(is("Established", "True") && is("NamesAccepted", "True"), "{name}: {conditions:?}");
        assert!(!is("NonStructuralSchema", "True"), "{name}: {conditions:?}");
        let names = installed.spec.names;
        assert_eq!(names.categories, Some(vec!["subagents-all".to_owned()]), "{name}");
    }
}

#[tokio::test]
async fn c6_c12_defaults_are_stored_and_absent_fields_stay_absent() {
    let namespace = TestNamespace::new("defaults").await;
    let run = create(&objects(&namespace, "SubagentRun"), &bare("SubagentRun"), false).await.expect("a run");
    assert_eq!(
        run.data["spec"],
        json!({"providerRef": {"name": "provider"}, "description": "d", "prompt": {"text": "x"}, "messages": [], "cancel": false})
    );
    let provider =
        create(&objects(&namespace, "SubagentProvider"), &bare("SubagentProvider"), false).await.expect("a provider");
    assert_eq!(
        provider.data["spec"],
        json!({
            "context": "Fresh", "probe": "OnChange", "template": {},
            "stop": {"cancelGraceSeconds": 10, "eofGraceSeconds": 6, "termGraceSeconds": 3},
            "transport": {"acp": {"permission": {"mode": "Reject"}}},
        })
    );
}

#[tokio::test]
async fn defaults_of_a_child_are_stored() {
    let namespace = TestNamespace::new("child-defaults").await;
    let child = create(&objects(&namespace, "Subagent"), &bare("Subagent"), false).await.expect("a child");
    assert_eq!(
        child.data["spec"],
        json!({
            "providerRef": {"name": "provider"}, "description": "d", "historyLimit": 5, "cancelThroughEpoch": 0,
            "messages": [{"id": "m1", "delivery": "Queue", "text": "x"}],
        })
    );
}

/// An object with required fields only, not filled in by the types of this repository.
fn bare(kind: &str) -> Value {
    let spec = match kind {
        "SubagentRun" => json!({"providerRef": {"name": "provider"}, "description": "d", "prompt": {"text": "x"}}),
        "Subagent" => {
            json!({"providerRef": {"name": "provider"}, "description": "d", "messages": [{"id": "m1", "text": "x"}]})
        }
        _ => json!({"transport": {"acp": {}}, "template": {}}),
    };
    json!({"apiVersion": "subagents.dev/v1alpha1", "kind": kind, "metadata": {"name": "bare"}, "spec": spec})
}

/// c6: presence counts, so an explicit null must not be stored as a value.
#[tokio::test]
async fn c6_explicit_nulls_are_dropped() {
    let namespace = TestNamespace::new("nulls").await;
    let api = objects(&namespace, "SubagentRun");
    let mut run = bare("SubagentRun");
    for field in [
        "persona",
        "toolFilter",
        "maxDepth",
        "agentOptions",
        "parentRef",
        "activation",
        "parameters",
        "outputSchema",
        "maxAttempts",
    ] {
        run["spec"][field] = Value::Null;
    }
    run["spec"]["prompt"]["content"] = Value::Null;
    let stored = create(&api, &run, false).await.expect("nulls are no error");
    assert_eq!(
        stored.data["spec"],
        json!({"providerRef": {"name": "provider"}, "description": "d", "prompt": {"text": "x"}, "messages": [], "cancel": false})
    );
    // What is there although it is empty stays.
    let mut run = merged(&bare("SubagentRun"), &json!({"metadata": {"name": "empty"}}));
    run["spec"] =
        merged(&run["spec"], &json!({"persona": "", "toolFilter": {"allow": []}, "maxDepth": 0, "parameters": {}}));
    let stored = create(&api, &run, false).await.expect("a run");
    assert_eq!((&stored.data["spec"]["persona"], &stored.data["spec"]["maxDepth"]), (&json!(""), &json!(0)));
    assert_eq!(stored.data["spec"]["toolFilter"], json!({"allow": []}));
    // And the types say so too.
    let typed: SubagentRun = namespace.api().get("empty").await.expect("the run");
    assert_eq!((typed.spec.persona.as_deref(), typed.spec.max_depth), (Some(""), Some(0)));
    assert_eq!(typed.spec.tool_filter.and_then(|filter| filter.allow), Some(vec![]));
}

/// A field that does not exist is named under strict validation, which kubectl asks for, and never stored.
#[tokio::test]
async fn d1_unknown_fields_are_refused_or_dropped() {
    let namespace = TestNamespace::new("unknown").await;
    let api = objects(&namespace, "SubagentRun");
    let run = merged(
        &bare("SubagentRun"),
        &json!({"spec": {"depth": 7, "ancestors": ["u"], "prompt": {"secretKeyRef": {"name": "s"}}}}),
    );
    let object: DynamicObject = serde_json::from_value(run.clone()).expect("an object");
    let apply = PatchParams { dry_run: true, ..PatchParams::apply("test").validation_strict() };
    let refused = refusal::status(api.patch("bare", &apply, &Patch::Apply(&object)).await.expect_err("unknown fields"));
    assert!(refused.message.contains("field not declared in schema"), "{}", refused.message);
    let stored = create(&api, &run, false).await.expect("dropped without strict validation");
    for field in ["depth", "ancestors"] {
        assert_eq!(stored.data["spec"].get(field), None);
    }
    assert_eq!(stored.data["spec"]["prompt"], json!({"text": "x"}));
    // A newer worker's report keeps what this version does not know.
    let accepted = json!({"status": {"attempt": 1, "podUID": "pod-1"}});
    api.patch_status("bare", &PatchParams::default(), &Patch::Merge(&accepted)).await.expect("a status");
    let report =
        json!({"status": {"report": {"podUID": "pod-1", "attempt": 1, "seq": 1, "weather": {"sky": "clear"}}}});
    api.patch_status("bare", &PatchParams::default(), &Patch::Merge(&report)).await.expect("a report");
    let typed: SubagentRun = namespace.api().get("bare").await.expect("the run");
    let kept = typed.status.and_then(|status| status.report).expect("a report").other;
    assert_eq!(kept.get("weather"), Some(&json!({"sky": "clear"})));
}

/// D1: nobody writes a status with the object, and nobody the object with a status.
#[tokio::test]
async fn d1_spec_and_status_are_written_apart() {
    let namespace = TestNamespace::new("apart").await;
    let api = objects(&namespace, "SubagentRun");
    let forged = merged(
        &bare("SubagentRun"),
        &json!({"status": {"phase": "Completed", "lineage": {"depth": 9, "rootUID": "x"}}}),
    );
    let created = create(&api, &forged, false).await.expect("a run");
    assert_eq!(created.data.get("status"), None);
    let patched =
        api.patch("bare", &PatchParams::default(), &Patch::Merge(&json!({"status": {"phase": "Completed"}}))).await;
    assert_eq!(patched.expect("ignored").data.get("status"), None);
    let both = json!({"spec": {"cancel": true}, "metadata": {"labels": {"a": "b"}}, "status": {"phase": "Pending"}});
    let patched = api.patch_status("bare", &PatchParams::default(), &Patch::Merge(&both)).await.expect("a status");
    assert_eq!(patched.data["spec"]["cancel"], json!(false));
    assert_eq!(patched.data["status"]["phase"], json!("Pending"));
    assert_eq!(patched.metadata.generation, Some(1), "a status is no new generation");
}

/// c15: descendants are found by a selectable field, whatever labels say (D1).
#[tokio::test]
async fn c15_descendants_are_found_by_lineage() {
    let namespace = TestNamespace::new("lineage").await;
    let api: Api<SubagentRun> = namespace.api();
    for (name, parent, root) in [("a", None, "ra"), ("b", Some("ua"), "ra"), ("c", Some("ub"), "ra"), ("d", None, "rd")]
    {
        namespace.create(&make_run(name)).await;
        let lineage = json!({"status": {"lineage": {"depth": 1, "parentUID": parent, "rootUID": root}}});
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(&lineage)).await.expect("a status");
    }
    let found = async |selector: &str| {
        let list = api.list(&ListParams::default().fields(selector)).await.expect("a list");
        let mut names: Vec<String> = list.items.iter().map(ResourceExt::name_any).collect();
        names.sort();
        names
    };
    assert_eq!(found("status.lineage.rootUID=ra").await, ["a", "b", "c"]);
    assert_eq!(found("status.lineage.parentUID=ub").await, ["c"]);
    assert_eq!(found("status.lineage.rootUID=none").await, Vec::<String>::new());
}

/// T8: controllers and gateway own different fields of one status. The gateway applies all of its fields at once.
#[tokio::test]
async fn t8_controllers_and_gateway_do_not_take_each_others_fields() {
    let namespace = TestNamespace::new("owners").await;
    let api: Api<SubagentRun> = namespace.api();
    namespace.create(&make_run("run")).await;
    let controllers = PatchParams { field_manager: Some(names::CONTROLLER_MANAGER.into()), ..PatchParams::default() };
    let accepted = json!({"status": {"phase": "Starting", "attempt": 1, "podUID": "pod-1"}});
    api.patch_status("run", &controllers, &Patch::Merge(&accepted)).await.expect("a status");
    let gateway = PatchParams::apply(names::GATEWAY_MANAGER).force();
    let apply =
        |status: Value| json!({"apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentRun", "status": status});
    let written =
        json!({"report": status()["report"], "result": status()["result"], "transcript": status()["transcript"]});
    api.patch_status("run", &gateway, &Patch::Apply(&apply(written.clone()))).await.expect("the gateway's fields");
    api.patch_status("run", &controllers, &Patch::Merge(&json!({"status": {"phase": "Running"}})))
        .await
        .expect("a phase");
    let run = api.get("run").await.expect("the run").status.expect("a status");
    assert_eq!(run.phase.map(|phase| phase.as_str()), Some("Running"));
    assert!(run.report.is_some() && run.result.is_some() && run.transcript.is_some(), "{run:?}");
    // An apply without the result would give it up: the gateway must send all three.
    let apart = json!({"report": written["report"], "transcript": written["transcript"]});
    api.patch_status("run", &gateway, &Patch::Apply(&apply(apart))).await.expect("a smaller apply");
    assert!(api.get("run").await.expect("the run").status.expect("a status").result.is_none());
}

/// R17: a run that was deleted and created again takes nothing from a writer that means the old one.
#[tokio::test]
async fn r17_a_run_created_again_refuses_the_old_ones_report() {
    let namespace = TestNamespace::new("again").await;
    let api: Api<SubagentRun> = namespace.api();
    namespace.create(&make_run("run")).await;
    let accepted = json!({"status": {"attempt": 1, "podUID": "pod-1"}});
    api.patch_status("run", &PatchParams::default(), &Patch::Merge(&accepted)).await.expect("a status");
    api.delete("run", &Default::default()).await.expect("deleted");
    api.create(&PostParams::default(), &make_run("run")).await.expect("created again");
    let late = json!({"apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentRun", "status": {"report": status()["report"]}});
    let gateway = PatchParams::apply(names::GATEWAY_MANAGER).force();
    let refused = api.patch_status("run", &gateway, &Patch::Apply(&late)).await.expect_err("no status yet");
    assert!(refusal::status(refused).message.contains("the first status has no report"));
    // Nor once the new one has a pod.
    let accepted = json!({"status": {"attempt": 1, "podUID": "pod-2"}});
    api.patch_status("run", &PatchParams::default(), &Patch::Merge(&accepted)).await.expect("a status");
    let refused = api.patch_status("run", &gateway, &Patch::Apply(&late)).await.expect_err("another pod");
    assert!(refusal::status(refused).message.contains("it comes from a pod that is not current"));
}
