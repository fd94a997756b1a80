//! What a person sees: `kubectl get`, also wide, and `kubectl explain`. The output is committed, so that a change of a
//! column, a field's words or a short name shows in a diff.

use integration_tests::{
    TestNamespace,
    commands::{kubectl, repository},
    snapshot::{assert_snapshot, normalise_table},
};
use kube::{
    Api,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};

/// Stores the sample objects, each with its status.
async fn samples(namespace: &TestNamespace) {
    let text = std::fs::read_to_string(repository().join("tests/integration/samples/view.yaml")).expect("the samples");
    for document in text.split("\n---\n") {
        let object: Value = serde_saphyr::from_str(document).expect("a sample in YAML");
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).expect("a field");
        let kind = GroupVersionKind::gvk(subagent_crds::GROUP, subagent_crds::VERSION, text("/kind"));
        let resource = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> = Api::namespaced_with(namespace.client.clone(), &namespace.name, &resource);
        let name = text("/metadata/name");
        let typed: DynamicObject = serde_json::from_value(object.clone()).expect("an object");
        api.create(&PostParams::default(), &typed).await.unwrap_or_else(|e| panic!("{name}: {e}"));
        let Some(status) = object.get("status") else { continue };
        // The gateway writes after acceptance (R17).
        let mut early = status.clone();
        for late in ["report", "result", "phase"] {
            early.as_object_mut().expect("a status").remove(late);
        }
        for status in [&early, status] {
            let patch = Patch::Merge(json!({"status": status}));
            api.patch_status(name, &PatchParams::default(), &patch).await.unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }
}

#[tokio::test]
async fn the_tables_are_as_committed() {
    let namespace = TestNamespace::new("view").await;
    samples(&namespace).await;
    let get = |arguments: &[&str]| {
        let scope = ["get", "-n", &namespace.name];
        normalise_table(&kubectl(&[&scope[..], arguments].concat()))
    };
    let names = |what: &str| kubectl(&["get", "-n", &namespace.name, what, "-o", "name"]);
    let all = names("subagents-all");
    for name in
        ["subagentrun.subagents.dev/a-new", "subagentprovider.subagents.dev/unseen", "subagent.subagents.dev/settled"]
    {
        assert!(all.contains(name), "{all}");
    }
    // A category of the kind's own name would come first: `kubectl delete subagents --all` would take runs and providers along.
    let children = names("subagents");
    assert!(children.lines().all(|line| line.starts_with("subagent.subagents.dev/")), "{children}");
    assert_snapshot("get-subagents", &get(&["sag"]));
    assert_snapshot("get-subagents-wide", &get(&["subagents", "-o", "wide"]));
    assert_snapshot("get-runs", &get(&["sar"]));
    assert_snapshot("get-runs-wide", &get(&["subagentruns", "-o", "wide"]));
    assert_snapshot("get-providers", &get(&["sap"]));
    assert_snapshot("get-providers-wide", &get(&["subagentproviders", "-o", "wide"]));
}

#[tokio::test]
async fn the_explanations_are_as_committed() {
    integration_tests::client().await;
    for path in [
        "subagentrun",
        "subagentrun.spec",
        "subagentrun.status",
        "subagentprovider",
        "subagentprovider.spec",
        "subagent",
        "subagent.spec",
        "subagent.spec.messages",
        "subagent.status",
    ] {
        assert_snapshot(&format!("explain-{}", path.replace('.', "-")), &kubectl(&["explain", path]));
    }
}
