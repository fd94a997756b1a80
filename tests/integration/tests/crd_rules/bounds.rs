//! Every bound of every field, at it and beyond it. The values are made from the generated schemas, so a new field is
//! tried as soon as it exists.

use crate::{
    rules::{create, objects, smallest},
    table::merged,
};
use integration_tests::{TestNamespace, refusal::causes, schema};
use kube::{
    Api,
    api::{DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};

/// One field's value on either side of one of its bounds, inside an otherwise valid object.
struct Attempt {
    /// The path as the API server names it.
    field: String,
    /// The keyword of the bound.
    bound: &'static str,
    /// The spec or status with the value that just fits.
    fits: Value,
    /// The same with the value that just does not.
    beyond: Value,
}

/// Makes the values of one field: `wrap` puts a value of the field into a whole spec or status.
fn walk(schema: &Value, field: &str, wrap: &dyn Fn(Value) -> Value, found: &mut Vec<Attempt>) {
    let mut add = |bound, fits, beyond| {
        found.push(Attempt { field: field.to_owned(), bound, fits: wrap(fits), beyond: wrap(beyond) });
    };
    let number = |key: &str| schema[key].as_f64().map(|bound| bound as i64);
    for (key, beyond) in [("minimum", -1), ("maximum", 1)] {
        if let Some(bound) = number(key) {
            add(key, json!(bound), json!(bound + beyond));
        }
    }
    if let Some(bound) = number("maxLength") {
        add("maxLength", text(schema, bound), text(schema, bound + 1));
    }
    if let Some(bound) = number("minLength") {
        add("minLength", text(schema, bound), text(schema, bound - 1));
    }
    if let Some(bound) = number("maxItems") {
        add("maxItems", list(schema, bound), list(schema, bound + 1));
    }
    if let Some(bound) = number("minItems") {
        add("minItems", list(schema, bound), list(schema, bound - 1));
    }
    if let Some(bound) = number("maxProperties") {
        add("maxProperties", map(schema, bound), map(schema, bound + 1));
    }
    if let Some(pattern) = schema["pattern"].as_str() {
        let (fits, beyond) = samples(pattern);
        add("pattern", json!(fits), json!(beyond));
    }
    for word in schema["enum"].as_array().into_iter().flatten() {
        add("enum", word.clone(), json!("Bogus"));
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let inner = |value: Value| wrap(merged(&minimal(schema), &json!({name.as_str(): value})));
        walk(property, &format!("{field}.{name}"), &inner, found);
    }
    if schema["items"].is_object() {
        walk(&schema["items"], &format!("{field}[0]"), &|value| wrap(json!([value])), found);
    }
    if schema["additionalProperties"].is_object() {
        walk(&schema["additionalProperties"], &format!("{field}.A"), &|value| wrap(json!({"A": value})), found);
    }
}

/// A string that matches the pattern and one that does not.
fn samples(pattern: &str) -> (&'static str, &'static str) {
    match pattern {
        "^/.+" => ("/a", "aa"),
        r"^[-._a-zA-Z0-9]+$" => ("a", "a b"),
        r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$" => ("a", "../a"),
        r"^[0-9]+(\.[0-9]+)?$" => ("1.5", "-1"),
        other => panic!("write samples for the pattern {other}"),
    }
}

/// A text of a length that fits the pattern, if there is one.
fn text(schema: &Value, length: i64) -> Value {
    let (first, rest) = match schema["pattern"].as_str() {
        None => ("a", "a"),
        Some(pattern) => match samples(pattern).0 {
            "/a" => ("/", "a"),
            "1.5" => ("1", "1"),
            _ => ("a", "a"),
        },
    };
    let length = usize::try_from(length).expect("a length");
    json!(if length == 0 { String::new() } else { format!("{first}{}", rest.repeat(length - 1)) })
}

/// A list of a length, its entries distinct where they must be.
fn list(schema: &Value, length: i64) -> Value {
    let entry = |i: i64| {
        let mut entry = distinct(&schema["items"], i);
        for key in schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            entry[key] = distinct(&schema["items"]["properties"][key], i);
        }
        entry
    };
    (0..length).map(entry).collect()
}

fn distinct(schema: &Value, i: i64) -> Value {
    match (schema["type"].as_str(), schema["pattern"].as_str()) {
        (Some("string"), Some("^/.+")) => json!(format!("/w{i}")),
        (Some("string"), None | Some(r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")) => json!(format!("w{i}")),
        _ => minimal(schema),
    }
}

fn map(schema: &Value, size: i64) -> Value {
    (0..size)
        .map(|i| (format!("K{i}"), minimal(&schema["additionalProperties"])))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// The smallest value a schema takes.
fn minimal(schema: &Value) -> Value {
    match schema["type"].as_str() {
        Some("string") if schema["enum"].is_array() => schema["enum"][0].clone(),
        Some("string") if schema["format"] == "date-time" => json!("2026-01-01T00:00:00Z"),
        Some("string") => text(schema, schema["minLength"].as_i64().unwrap_or(1)),
        Some("integer") => json!(schema["minimum"].as_f64().expect("a minimum") as i64),
        Some("boolean") => json!(false),
        Some("array") => list(schema, schema["minItems"].as_i64().unwrap_or(0)),
        Some("object") => {
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            required
                .map(|name| (name.to_owned(), minimal(&schema["properties"][name])))
                .collect::<serde_json::Map<_, _>>()
                .into()
        }
        None if schema["x-kubernetes-int-or-string"] == true => json!("1Gi"),
        other => panic!("no value for type {other:?}"),
    }
}

/// Adds to a spec what validation rules ask for beside the field under test.
fn keep_spec_rules(kind: &str, mut spec: Value) -> Value {
    match kind {
        "SubagentRun" => {
            if spec.get("messages").is_some_and(|messages| messages != &json!([])) {
                spec["activation"] = json!({"subagentRef": {"name": "child", "uid": "u"}, "epoch": 1});
            } else if spec.get("prompt").is_none() && spec.get("activation").is_none() {
                spec["prompt"] = json!({"text": "x"});
            }
            for content in ["/prompt/content", "/messages/0/content"] {
                for block in spec.pointer_mut(content).and_then(Value::as_array_mut).into_iter().flatten() {
                    if block == &json!({}) {
                        *block = json!({"text": "x"});
                    }
                }
            }
        }
        "Subagent" => {
            if spec.get("messages").is_none() {
                spec["messages"] = json!([{"id": "w0"}]);
            }
            for message in spec["messages"].as_array_mut().into_iter().flatten() {
                if message.get("text").is_none() && message.get("content").is_none() {
                    message["text"] = json!("x");
                }
                for block in message.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten() {
                    if block == &json!({}) {
                        *block = json!({"text": "x"});
                    }
                }
            }
        }
        _ => {
            if spec["transport"].get("acp").is_none() {
                spec["transport"]["acp"] = json!({});
            }
        }
    }
    spec
}

/// Likewise for a status: a report is of the pod and attempt the status names.
fn keep_status_rules(mut status: Value) -> Value {
    for part in ["report", "result", "transcript"] {
        if let Some(pod) = status[part].get("podUID").cloned() {
            status["podUID"] = pod;
        }
    }
    if let Some(attempt) = status["report"].get("attempt").cloned() {
        status["attempt"] = attempt;
    }
    if status["report"].is_null() {
        status.as_object_mut().expect("a status").retain(|_, value| !value.is_null());
    }
    status
}

/// What each part of each kind has to try.
fn attempts(schema: &Value, part: &str) -> Vec<Attempt> {
    let mut found = vec![];
    walk(&schema["properties"][part], part, &|value| value, &mut found);
    found
}

fn verdict(attempt: &Attempt, fits: Result<(), kube::Error>, beyond: Result<(), kube::Error>) -> Option<String> {
    let about = format!("{} of {}", attempt.bound, attempt.field);
    if let Err(error) = fits {
        return Some(format!("{about}: refused within it: {error}"));
    }
    match beyond {
        Ok(()) => Some(format!("{about}: accepted beyond it")),
        Err(error) => {
            let causes = causes(error);
            let named = causes.iter().any(|cause| cause.field == attempt.field);
            (!named).then(|| format!("{about}: refused beyond it, but for {causes:?}"))
        }
    }
}

#[tokio::test]
async fn every_bound_of_every_spec_holds_on_both_sides() {
    let namespace = TestNamespace::new("spec-bounds").await;
    let mut wrong = vec![];
    for (kind, schema) in schema::schemas() {
        let api = objects(&namespace, &kind);
        let object = |spec: &Value| {
            let mut object = smallest(&kind, "bounds");
            object["spec"] = keep_spec_rules(&kind, spec.clone());
            object
        };
        let (later, at_once): (Vec<Attempt>, Vec<Attempt>) =
            attempts(&schema, "spec").into_iter().partition(|attempt| is_for_later(&kind, attempt));
        wrong.extend(tried_later(&api, &kind, &later).await);
        for attempt in at_once {
            let fits = create(&api, &object(&attempt.fits), true).await.map(drop);
            let beyond = create(&api, &object(&attempt.beyond), true).await.map(drop);
            wrong.extend(verdict(&attempt, fits, beyond).map(|text| format!("{kind}: {text}")));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// What no new object may have at its bound: a new child has one message, and nothing to cancel.
fn is_for_later(kind: &str, attempt: &Attempt) -> bool {
    kind == "Subagent" && ["spec.messages", "spec.cancelThroughEpoch"].contains(&attempt.field.as_str())
}

/// Tries bounds by changing an object that allows it.
async fn tried_later(api: &Api<DynamicObject>, kind: &str, attempts: &[Attempt]) -> Vec<String> {
    if attempts.is_empty() {
        return vec![];
    }
    let mut object = smallest(kind, "later");
    object["spec"]["messages"] = json!([{"id": "w0", "text": "x"}]);
    create(api, &object, false).await.expect("the object");
    let epochs = json!({"status": {"epochs": 9_007_199_254_740_991_i64}});
    api.patch_status("later", &PatchParams::default(), &Patch::Merge(&epochs)).await.expect("a status");
    let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
    let mut wrong = vec![];
    for attempt in attempts {
        let name = attempt.field.trim_start_matches("spec.");
        let patch = |spec: &Value| json!({"spec": {name: keep_spec_rules(kind, spec.clone())[name]}});
        let fits = api.patch("later", &dry_run, &Patch::Merge(&patch(&attempt.fits))).await.map(drop);
        let beyond = api.patch("later", &dry_run, &Patch::Merge(&patch(&attempt.beyond))).await.map(drop);
        wrong.extend(verdict(attempt, fits, beyond).map(|text| format!("{kind}: {text}")));
    }
    wrong
}

#[tokio::test]
async fn every_bound_of_every_status_holds_on_both_sides() {
    let namespace = TestNamespace::new("status-bounds").await;
    let mut wrong = vec![];
    for (kind, schema) in schema::schemas() {
        let api = objects(&namespace, &kind);
        create(&api, &smallest(&kind, "bounds"), false).await.expect("the object");
        // A status is there before a report can be (R17).
        let accepted = json!({"status": {"observedGeneration": 1}});
        api.patch_status("bounds", &PatchParams::default(), &Patch::Merge(&accepted)).await.expect("a status");
        let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
        for attempt in attempts(&schema, "status") {
            let patch = |status: &Value| json!({"status": keep_status_rules(status.clone())});
            let fits = api.patch_status("bounds", &dry_run, &Patch::Merge(&patch(&attempt.fits))).await.map(drop);
            let beyond = api.patch_status("bounds", &dry_run, &Patch::Merge(&patch(&attempt.beyond))).await.map(drop);
            wrong.extend(verdict(&attempt, fits, beyond).map(|text| format!("{kind}: {text}")));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// The walk above leaves nothing out: as many bounds as the schema's text has.
#[test]
fn the_bounds_tried_are_all_there_are() {
    const KEYWORDS: [&str; 7] =
        ["minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties"];
    for (kind, schema) in schema::schemas() {
        let written: usize = ["spec", "status"].iter().map(|part| count(&schema["properties"][part], &KEYWORDS)).sum();
        let tried = ["spec", "status"].iter().flat_map(|part| attempts(&schema, part));
        let tried = tried.filter(|attempt| KEYWORDS.contains(&attempt.bound)).count();
        assert!(written > 10, "{kind}: only {written} bounds");
        assert_eq!(tried, written, "{kind}");
    }
}

fn count(value: &Value, keywords: &[&str]) -> usize {
    match value {
        Value::Object(map) => map
            .iter()
            .map(|(key, inner)| {
                usize::from(keywords.contains(&key.as_str()) && inner.is_number()) + count(inner, keywords)
            })
            .sum(),
        Value::Array(items) => items.iter().map(|item| count(item, keywords)).sum(),
        _ => 0,
    }
}
