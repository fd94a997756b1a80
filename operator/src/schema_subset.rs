//! The subset of JSON Schema an output schema may use (contract c20 to c23). Pure and iterative: a hostile schema costs
//! bounded time and memory and gives a list of violations, never a crash.

use serde_json::{Map, Value};

/// Deepest nesting of schemas.
const MAX_DEPTH: usize = 32;
/// Most schemas looked at.
const MAX_NODES: usize = 2000;
/// Most violations told; the rest is counted.
const MAX_VIOLATIONS: usize = 20;

const TYPES: &[&str] = &["object", "array", "string", "number", "integer", "boolean", "null"];
const CONSTRAINTS: &[&str] =
    &["type", "oneOf", "properties", "required", "additionalProperties", "items", "enum", "const"];
const ANNOTATIONS: &[&str] = &["description", "title", "default", "examples"];

/// Checks an output schema.
///
/// # Errors
/// Every violation in walk order, each with its path from `schema`.
pub fn check(schema: &Value) -> Result<(), Vec<String>> {
    let mut found = vec![];
    // Depth first, in the order of the document: children are pushed in reverse.
    let mut todo = vec![(String::from("schema"), schema, 0_usize)];
    let mut nodes = 0;
    while let Some((path, schema, depth)) = todo.pop() {
        nodes += 1;
        if depth > MAX_DEPTH || nodes > MAX_NODES {
            found.push(format!("{path}: deeper than {MAX_DEPTH} levels or larger than {MAX_NODES} schemas"));
            break;
        }
        let Some(schema) = schema.as_object() else {
            found.push(format!("{path}: is not an object"));
            continue;
        };
        one(&path, schema, &mut found);
        todo.extend(children(&path, schema, depth).into_iter().rev());
    }
    if found.is_empty() && schema["type"] != "object" {
        found.push("schema: the root is not of type object".into());
    }
    if found.len() > MAX_VIOLATIONS {
        let more = found.len() - MAX_VIOLATIONS;
        found.truncate(MAX_VIOLATIONS);
        found.push(format!("and {more} more"));
    }
    if found.is_empty() { Ok(()) } else { Err(found) }
}

fn children<'a>(path: &str, schema: &'a Map<String, Value>, depth: usize) -> Vec<(String, &'a Value, usize)> {
    let mut children = vec![];
    for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        children.push((format!("{path}.properties.{name}"), property, depth + 1));
    }
    if let Some(items) = schema.get("items").filter(|items| !items.is_array()) {
        children.push((format!("{path}.items"), items, depth + 1));
    }
    for (index, branch) in schema.get("oneOf").and_then(Value::as_array).into_iter().flatten().enumerate() {
        children.push((format!("{path}.oneOf[{index}]"), branch, depth + 1));
    }
    children
}

fn one(path: &str, schema: &Map<String, Value>, found: &mut Vec<String>) {
    let mut say = |at: &str, what: String| found.push(format!("{path}{at}: {what}"));
    for (key, value) in schema {
        if ["description", "title"].contains(&key.as_str()) && !value.is_string() {
            say(&format!(".{key}"), "is not a string".into());
        } else if !CONSTRAINTS.contains(&key.as_str()) && !ANNOTATIONS.contains(&key.as_str()) {
            say(&format!(".{key}"), "is not a supported keyword".into());
        }
    }
    let type_ = match schema.get("type") {
        None => None,
        Some(Value::String(name)) if TYPES.contains(&name.as_str()) => Some(name.as_str()),
        Some(_) => {
            say(".type", format!("is not one of {}", TYPES.join(", ")));
            None
        }
    };
    if let Some(one_of) = schema.get("oneOf") {
        if one_of.as_array().is_none_or(|branches| branches.len() < 2) {
            say(".oneOf", "needs a list of two or more branches".into());
        }
        for key in CONSTRAINTS.iter().filter(|key| **key != "oneOf" && schema.contains_key(**key)) {
            say(&format!(".{key}"), "stands beside oneOf".into());
        }
        return;
    }
    let only_on = |keys: &[&str], types: &[&str], say: &mut dyn FnMut(&str, String)| {
        for key in keys.iter().filter(|key| schema.contains_key(**key)) {
            if !type_.is_some_and(|type_| types.contains(&type_)) {
                say(&format!(".{key}"), format!("needs type {}", types.join(", ")));
            }
        }
    };
    only_on(&["properties", "required", "additionalProperties"], &["object"], &mut say);
    only_on(&["items"], &["array"], &mut say);
    only_on(&["enum", "const"], &["string", "number", "integer", "boolean", "null"], &mut say);
    let properties = schema.get("properties");
    if properties.is_some_and(|properties| !properties.is_object()) {
        say(".properties", "is not an object".into());
    }
    match schema.get("required").map(Value::as_array) {
        Some(None) => say(".required", "is not a list".into()),
        Some(Some(names)) => {
            for name in names {
                let declared = name.as_str().and_then(|name| properties.and_then(|properties| properties.get(name)));
                if declared.is_none() {
                    say(".required", format!("{name} is not a declared property"));
                }
            }
        }
        None => {}
    }
    if schema.get("additionalProperties").is_some_and(|value| !value.is_boolean()) {
        say(".additionalProperties", "is not true or false".into());
    }
    if schema.get("items").is_some_and(Value::is_array) {
        say(".items", "is a list, one schema is needed".into());
    }
    let Some(type_) = type_ else { return };
    match schema.get("enum").map(Value::as_array) {
        Some(None) => say(".enum", "is not a list".into()),
        Some(Some(values)) if values.is_empty() => say(".enum", "is empty".into()),
        Some(Some(values)) => {
            for value in values.iter().filter(|value| !is_of(type_, value)) {
                say(".enum", format!("{value} is not of type {type_}"));
            }
        }
        None => {}
    }
    if let Some(value) = schema.get("const") {
        if !is_of(type_, value) {
            say(".const", format!("{value} is not of type {type_}"));
        }
        let listed = schema.get("enum").and_then(Value::as_array);
        if listed.is_some_and(|listed| !listed.contains(value)) {
            say(".const", format!("{value} is not in enum"));
        }
    }
}

fn is_of(type_: &str, value: &Value) -> bool {
    match type_ {
        "string" => value.is_string(),
        "number" => value.is_number(),
        // An integral float is an integer (c24).
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        // enum and const on other types are told already.
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case(json!({"type": "object"}))]
    #[case(json!({"type": "object", "title": "t", "default": 3, "properties": {"a": {"type": "array", "items": {}}, "b": {"oneOf": [{"type": "string"}, {"type": "null"}]}}, "required": ["a"], "additionalProperties": false}))]
    #[case(json!({"type": "object", "properties": {"n": {"type": "integer", "enum": [1, 2.0], "const": 1}}}))]
    fn c20_to_c23_a_schema_of_the_subset_passes(#[case] schema: Value) {
        assert_eq!(check(&schema), Ok(()));
    }

    #[rstest]
    #[case::c20_keyword(json!({"type": "object", "minProperties": 1}), "schema.minProperties: is not a supported keyword")]
    #[case::c20_title(json!({"type": "object", "title": 1}), "schema.title: is not a string")]
    #[case::c21_list(json!({"type": ["object"]}), "schema.type: is not one of")]
    #[case::c21_one(json!({"type": "object", "properties": {"a": {"oneOf": [{}]}}}), "schema.properties.a.oneOf: needs a list of two")]
    #[case::c21_beside(json!({"oneOf": [{}, {}], "type": "object"}), "schema.type: stands beside oneOf")]
    #[case::c22_properties(json!({"type": "object", "properties": {"a": {"type": "string", "properties": {}}}}), "schema.properties.a.properties: needs type object")]
    #[case::c22_items(json!({"type": "object", "properties": {"a": {"type": "array", "items": [{}]}}}), "schema.properties.a.items: is a list")]
    #[case::c22_items_on_object(json!({"type": "object", "items": {}}), "schema.items: needs type array")]
    #[case::c22_enum_on_object(json!({"type": "object", "enum": [1]}), "schema.enum: needs type string")]
    #[case::c22_required(json!({"type": "object", "required": ["b"]}), "schema.required: \"b\" is not a declared property")]
    #[case::c22_additional(json!({"type": "object", "additionalProperties": {}}), "schema.additionalProperties: is not true or false")]
    #[case::c22_enum_empty(json!({"type": "object", "properties": {"a": {"type": "string", "enum": []}}}), "schema.properties.a.enum: is empty")]
    #[case::c22_enum_type(json!({"type": "object", "properties": {"a": {"type": "string", "enum": [1]}}}), "schema.properties.a.enum: 1 is not of type string")]
    #[case::c22_const(json!({"type": "object", "properties": {"a": {"type": "string", "enum": ["x"], "const": "y"}}}), "schema.properties.a.const: \"y\" is not in enum")]
    #[case::c23_root(json!({"type": "array"}), "schema: the root is not of type object")]
    #[case::not_an_object(json!({"type": "object", "properties": {"a": 1}}), "schema.properties.a: is not an object")]
    fn c20_to_c23_each_violation_is_told_at_its_path(#[case] schema: Value, #[case] expected: &str) {
        let found = check(&schema).unwrap_err();
        assert!(found[0].starts_with(expected), "{found:?}");
    }

    #[test]
    fn c23_all_violations_come_in_walk_order_and_the_root_last() {
        let schema = json!({"type": "array", "x": 1, "items": {"y": 1}});
        assert_eq!(
            check(&schema).unwrap_err(),
            ["schema.x: is not a supported keyword", "schema.items.y: is not a supported keyword"]
        );
    }

    #[test]
    fn c23_deep_and_wide_schemas_are_violations_not_crashes() {
        let mut deep = json!({"type": "object"});
        for _ in 0..5000 {
            let mut outer = json!({"type": "array"});
            outer["items"] = deep;
            deep = outer;
        }
        assert!(check(&deep).unwrap_err()[0].contains("deeper than"));
        // Dropping a deep value recurses; the operator never holds one, serde_json refuses to parse it.
        std::mem::forget(deep);
        let wide: Map<String, Value> = (0..3000).map(|i| (format!("p{i}"), json!({"z": 1}))).collect();
        let found = check(&json!({"type": "object", "properties": wide})).unwrap_err();
        assert!(found.len() == MAX_VIOLATIONS + 1 && found.last().unwrap().starts_with("and "), "{found:?}");
    }
}
