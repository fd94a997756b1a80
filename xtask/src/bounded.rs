//! Refuses fields without a bound: an object must never grow past what etcd stores, and the API server estimates the
//! cost of CEL rules from bounds.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

/// Every field of the definition that has no bound, as `kind.path: what is missing`.
pub fn violations(crd: &CustomResourceDefinition) -> Vec<String> {
    let mut found = vec![];
    for version in &crd.spec.versions {
        let schema = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
        let schema = serde_json::to_value(schema).unwrap_or_default();
        for part in ["spec", "status"] {
            walk(&schema["properties"][part], &format!("{}.{part}", crd.spec.names.kind), &mut found);
        }
    }
    found
}

fn walk(schema: &Value, path: &str, found: &mut Vec<String>) {
    let has = |key: &str| schema.get(key).is_some();
    match schema["type"].as_str() {
        Some("string") if !has("maxLength") && !has("enum") && schema["format"] != "date-time" => {
            found.push(format!("{path}: string without maxLength"));
        }
        Some("integer" | "number") if !has("minimum") || !has("maximum") => {
            found.push(format!("{path}: number without minimum and maximum"));
        }
        Some("array") => {
            if !has("maxItems") {
                found.push(format!("{path}: list without maxItems"));
            }
            if !has("x-kubernetes-list-type") {
                found.push(format!("{path}: list without x-kubernetes-list-type"));
            }
            walk(&schema["items"], &format!("{path}[]"), found);
        }
        Some("object") => {
            if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object()) {
                if !has("maxProperties") {
                    found.push(format!("{path}: map without maxProperties"));
                }
                walk(values, &format!("{path}{{}}"), found);
            }
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                walk(property, &format!("{path}.{name}"), found);
            }
        }
        Some(_) => {}
        None if schema["x-kubernetes-int-or-string"] == true => {}
        None if schema["x-kubernetes-preserve-unknown-fields"] == true => {}
        None => found.push(format!("{path}: no type")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_kind_of_missing_bound_is_named() {
        let mut found = vec![];
        let schema = json!({"type": "object", "properties": {
            "s": {"type": "string"}, "i": {"type": "integer", "minimum": 0}, "l": {"type": "array", "items": {"type": "string", "maxLength": 1}},
            "m": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 1}}, "ok": {"type": "string", "maxLength": 3},
            "t": {"type": "string", "format": "date-time"}, "e": {"type": "string", "enum": ["A"]}, "x": {}
        }});
        walk(&schema, "K", &mut found);
        assert_eq!(
            found,
            [
                "K.s: string without maxLength",
                "K.i: number without minimum and maximum",
                "K.l: list without maxItems",
                "K.l: list without x-kubernetes-list-type",
                "K.m: map without maxProperties",
                "K.x: no type"
            ]
        );
    }

    #[test]
    fn the_definitions_are_bounded() {
        for crd in subagent_crds::definitions() {
            assert_eq!(violations(&crd), Vec::<String>::new());
        }
    }
}
