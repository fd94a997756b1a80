//! The CustomResourceDefinitions as installed: what derive gives, made fit for Kubernetes.

use crate::{Subagent, SubagentProvider, SubagentRun};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value;

/// All definitions, in the order they are documented.
pub fn definitions() -> Vec<CustomResourceDefinition> {
    [SubagentProvider::crd(), SubagentRun::crd(), Subagent::crd()].into_iter().map(without_nulls).collect()
}

/// Derive makes every `Option` nullable and puts null into the enums of optional fields. An explicit null would then be
/// stored and count as present in CEL; without `nullable` the API server drops it, and presence means presence (c6).
fn without_nulls(crd: CustomResourceDefinition) -> CustomResourceDefinition {
    let Ok(mut value) = serde_json::to_value(&crd) else { return crd };
    strip(&mut value);
    serde_json::from_value(value).unwrap_or(crd)
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if map.get("nullable") == Some(&Value::Bool(true)) {
                map.remove("nullable");
            }
            if let Some(Value::Array(words)) = map.get_mut("enum") {
                words.retain(|word| !word.is_null());
            }
            map.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c6_no_field_takes_an_explicit_null() {
        for crd in definitions() {
            let text = serde_json::to_string(&crd).unwrap();
            assert!(!text.contains("nullable") && !text.contains("null"), "{:?}", crd.metadata.name);
        }
    }
}
