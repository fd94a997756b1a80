//! Several senders and one inbox: how messages are appended, and what overwriting the list does.

use crate::rules::{create, objects, smallest};
use integration_tests::{
    TestNamespace,
    commands::{kubectl, kubectl_refusal},
    refusal,
};
use kube::{
    Api,
    api::{DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};

fn ids(child: &DynamicObject) -> Vec<&str> {
    let list = child.data["spec"]["messages"].as_array().expect("messages");
    list.iter().map(|message| message["id"].as_str().expect("an id")).collect()
}

/// Appends a message as people do.
fn append(namespace: &TestNamespace, message: &Value) {
    kubectl(&appending(namespace, message).iter().map(String::as_str).collect::<Vec<_>>());
}

fn appending(namespace: &TestNamespace, message: &Value) -> Vec<String> {
    let patch = json!([{"op": "add", "path": "/spec/messages/-", "value": message}]).to_string();
    ["patch", "-n", &namespace.name, "subagent", "child", "--type=json", "-p", &patch].map(str::to_owned).to_vec()
}

/// A manifest with one message, applied on the server's side by a manager of its own.
async fn apply(api: &Api<DynamicObject>, manager: &str, messages: Value) -> Result<DynamicObject, kube::Error> {
    let manifest = json!({
        "apiVersion": "subagents.dev/v1alpha1", "kind": "Subagent", "metadata": {"name": "child"},
        "spec": {"messages": messages},
    });
    api.patch("child", &PatchParams::apply(manager), &Patch::Apply(&manifest)).await
}

/// R12: JSON patches and server-side applies of several managers add to one list; none takes another's entry away, and the
/// same entry again changes nothing.
#[tokio::test]
async fn r12_senders_append_without_overwriting_one_another() {
    let namespace = TestNamespace::new("senders").await;
    let api = objects(&namespace, "Subagent");
    create(&api, &smallest("Subagent", "child"), false).await.expect("a child");
    append(&namespace, &json!({"id": "m2", "text": "two"}));
    apply(&api, "one", json!([{"id": "m3", "text": "three"}])).await.expect("an apply");
    let child = apply(&api, "two", json!([{"id": "m4", "delivery": "Interrupt"}])).await.expect("an apply");
    assert_eq!(ids(&child), ["m1", "m2", "m3", "m4"]);
    let generation = child.metadata.generation;
    let again = apply(&api, "one", json!([{"id": "m3", "text": "three"}])).await.expect("the same again");
    assert_eq!((again.metadata.generation, ids(&again).len()), (generation, 4));
    let twice = appending(&namespace, &json!({"id": "m2", "text": "two"}));
    let said = kubectl_refusal(&twice.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(said.contains("Duplicate value"), "the list is keyed by id: {said}");

    // What a manager leaves out of its next apply is removed: refused while it is under way, harmless afterwards.
    let refused = apply(&api, "one", json!([{"id": "m5", "text": "five"}])).await.expect_err("m3 is under way");
    assert!(refusal::status(refused).message.contains("a message can be removed only when"));
    let over = json!({"status": {"messages": [{"id": "m3", "sequence": 3, "outcome": "Claimed"}]}});
    api.patch_status("child", &PatchParams::default(), &Patch::Merge(&over)).await.expect("a status");
    let child = apply(&api, "one", json!([{"id": "m5", "text": "five"}])).await.expect("m3 is over");
    assert_eq!(ids(&child), ["m1", "m2", "m4", "m5"]);
}

/// R12: `kubectl apply` of the first manifest over a live inbox puts the manifest's list in the place of the whole: that is
/// refused while another's message is under way, and takes along only what is over.
#[tokio::test]
async fn r12_a_client_side_apply_of_the_first_manifest_is_refused_or_harmless() {
    let namespace = TestNamespace::new("manifest").await;
    let api = objects(&namespace, "Subagent");
    let path = std::env::temp_dir().join(format!("{}.json", namespace.name));
    std::fs::write(&path, smallest("Subagent", "child").to_string()).expect("a file");
    let manifest = path.display().to_string();
    let apply = ["apply", "-n", &namespace.name, "-f", &manifest];
    kubectl(&apply);
    kubectl(&apply);
    append(&namespace, &json!({"id": "m2", "text": "two"}));
    let said = kubectl_refusal(&apply);
    assert!(said.contains("a message can be removed only when status.messages shows a final outcome"), "{said}");
    let over = json!({"status": {"messages": [{"id": "m2", "sequence": 2, "outcome": "Claimed"}]}});
    api.patch_status("child", &PatchParams::default(), &Patch::Merge(&over)).await.expect("a status");
    kubectl(&apply);
    let _ = std::fs::remove_file(&path);
    assert_eq!(ids(&api.get("child").await.expect("the child")), ["m1"]);
}
