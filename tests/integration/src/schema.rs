//! The generated schemas, for tests that must reach all of them.

use serde_json::Value;

/// A validation rule of a definition.
#[derive(Clone, Debug)]
pub struct SchemaRule {
    /// Kind and path, such as `SubagentRun.spec.prompt.content[]`.
    pub path: String,
    /// The CEL expression.
    pub rule: String,
    /// What a user reads when it refuses.
    pub message: String,
}

/// Kind and schema of each definition.
pub fn schemas() -> Vec<(String, Value)> {
    let definitions = subagent_crds::definitions().into_iter();
    definitions
        .flat_map(|crd| {
            let kind = crd.spec.names.kind.clone();
            let versions = crd.spec.versions.into_iter();
            versions.map(move |version| {
                let schema = version.schema.and_then(|schema| schema.open_api_v3_schema);
                (kind.clone(), serde_json::to_value(schema).expect("a schema in JSON"))
            })
        })
        .collect()
}

/// Every validation rule.
pub fn rules() -> Vec<SchemaRule> {
    let mut found = vec![];
    for (kind, schema) in schemas() {
        collect(&schema, &kind, &mut found);
    }
    found
}

/// Every validation rule of one schema.
pub fn rules_of(schema: &Value) -> Vec<SchemaRule> {
    let mut found = vec![];
    collect(schema, "", &mut found);
    found
}

fn collect(schema: &Value, path: &str, found: &mut Vec<SchemaRule>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let text = |key: &str| rule[key].as_str().unwrap_or_default().to_owned();
        found.push(SchemaRule { path: path.to_owned(), rule: text("rule"), message: text("message") });
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        collect(property, &format!("{path}.{name}"), found);
    }
    if schema["items"].is_object() {
        collect(&schema["items"], &format!("{path}[]"), found);
    }
    if schema["additionalProperties"].is_object() {
        collect(&schema["additionalProperties"], &format!("{path}{{}}"), found);
    }
}
