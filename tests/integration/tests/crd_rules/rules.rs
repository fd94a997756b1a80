//! Every validation rule, both ways.

use crate::table::{Case, Request, cases, merged};
use integration_tests::{
    TestNamespace, make_provider, make_run, make_subagent,
    refusal::{Cause, causes},
    schema,
};
use kube::{
    Api,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The objects of a kind, without the types' own idea of what is valid.
pub fn objects(namespace: &TestNamespace, kind: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(subagent_crds::GROUP, subagent_crds::VERSION, kind);
    Api::namespaced_with(namespace.client.clone(), &namespace.name, &ApiResource::from_gvk(&kind))
}

/// The smallest object of a kind.
pub fn smallest(kind: &str, name: &str) -> Value {
    match kind {
        "SubagentRun" => serde_json::to_value(make_run(name)),
        "SubagentProvider" => serde_json::to_value(make_provider(name)),
        "Subagent" => serde_json::to_value(make_subagent(name)),
        other => panic!("no {other} here"),
    }
    .expect("an object in JSON")
}

/// Creates an object as JSON.
pub async fn create(api: &Api<DynamicObject>, object: &Value, dry_run: bool) -> Result<DynamicObject, kube::Error> {
    let object = serde_json::from_value(object.clone()).expect("metadata and kind");
    api.create(&PostParams { dry_run, ..PostParams::default() }, &object).await
}

fn kind_of(case: &Case) -> &'static str {
    case.path.split('.').next().expect("a kind")
}

/// Brings an object into the state a case starts from. What the gateway writes can only follow an accepted status, and a
/// terminal phase only follow what the gateway writes.
async fn store(api: &Api<DynamicObject>, kind: &str, name: &str, stored: &Value) {
    let object = merged(&smallest(kind, name), stored);
    create(api, &object, false).await.unwrap_or_else(|e| panic!("store {object}: {e}"));
    let Some(status) = object.get("status") else { return };
    let mut early = status.clone();
    for late in ["report", "result", "transcript", "phase"] {
        early.as_object_mut().expect("a status").remove(late);
    }
    for status in [&early, status] {
        let patch = json!({"status": status});
        let patched = api.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        patched.unwrap_or_else(|e| panic!("store {patch}: {e}"));
    }
}

async fn send(api: &Api<DynamicObject>, case: &Case, name: &str, patch: &Value) -> Result<DynamicObject, kube::Error> {
    let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
    match case.request {
        Request::Create => create(api, &merged(&smallest(kind_of(case), name), patch), true).await,
        Request::Update => api.patch(name, &dry_run, &Patch::Merge(patch)).await,
        Request::Status => api.patch_status(name, &dry_run, &Patch::Merge(patch)).await,
    }
}

/// c6 c11 c13 c15 c16 c32 c33 D5 R9 R17 T1: each case of the table.
#[tokio::test]
async fn every_rule_accepts_what_keeps_it_and_refuses_what_breaks_it() {
    let namespace = TestNamespace::new("rules").await;
    let mut wrong = vec![];
    for (number, case) in cases().iter().enumerate() {
        let api = objects(&namespace, kind_of(case));
        let name = format!("case-{number}");
        if case.request != Request::Create {
            store(&api, kind_of(case), &name, &case.stored).await;
            if case.then != Value::Null {
                let then = Patch::Merge(&case.then);
                api.patch(&name, &PatchParams::default(), &then).await.unwrap_or_else(|e| panic!("{}: {e}", case.then));
            }
        }
        let about = format!("{} \"{}\", {}", case.path, case.message, case.what);
        for patch in &case.accepted {
            if let Err(error) = send(&api, case, &name, patch).await {
                wrong.push(format!("{about}: refused {patch}: {error}"));
            }
        }
        for patch in &case.refused {
            match send(&api, case, &name, patch).await {
                Ok(_) => wrong.push(format!("{about}: accepted {patch}")),
                Err(error) => {
                    let causes = causes(error);
                    if !causes.contains(&Cause::rule(case.field, &case.message)) {
                        wrong.push(format!("{about}: refused {patch} for other reasons: {causes:?}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// A rule without a case that keeps it and one that breaks it is not tested; a case without a rule tests nothing.
#[test]
fn the_table_has_every_rule_both_ways() {
    let rules: BTreeSet<_> = schema::rules().into_iter().map(|rule| (rule.path, rule.message)).collect();
    let cases = cases();
    let named = |tried: &dyn Fn(&Case) -> bool| -> BTreeSet<_> {
        cases.iter().filter(|case| tried(case)).map(|case| (case.path.to_owned(), case.message.clone())).collect()
    };
    let kept = named(&|case| !case.accepted.is_empty());
    let broken = named(&|case| !case.refused.is_empty());
    assert_eq!(rules.difference(&kept).collect::<Vec<_>>(), Vec::<&(String, String)>::new(), "rules no case keeps");
    assert_eq!(rules.difference(&broken).collect::<Vec<_>>(), Vec::<&(String, String)>::new(), "rules no case breaks");
    let all = named(&|_| true);
    assert_eq!(all.difference(&rules).collect::<Vec<_>>(), Vec::<&(String, String)>::new(), "cases of no rule");
    let wordless: Vec<_> = schema::rules().into_iter().filter(|rule| rule.message.is_empty()).collect();
    assert!(wordless.is_empty(), "rules without a message: {wordless:?}");
}
