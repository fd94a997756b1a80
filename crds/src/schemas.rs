//! Schema fragments that derive cannot say: opaque objects and bounded lists of Kubernetes types.

use schemars::{Schema, SchemaGenerator, json_schema};

/// An object whose content the API server keeps as it is.
pub fn opaque_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// The spec of a PersistentVolumeClaim: what every one needs, and whatever else the API server knows. It says itself what it
/// does not take.
pub fn claim_spec(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
        "required": ["accessModes", "resources"],
        "properties": {
            "accessModes": {
                "type": "array",
                "minItems": 1,
                "maxItems": 8,
                "x-kubernetes-list-type": "atomic",
                "items": { "type": "string", "minLength": 1, "maxLength": 63 },
                "description": "accessModes of the claim; ReadWriteOnce is enough: one pod has it at a time."
            },
            "resources": {
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": true,
                "required": ["requests"],
                "properties": {
                    "requests": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": true,
                        "required": ["storage"],
                        "properties": {
                            "storage": {
                                "x-kubernetes-int-or-string": true,
                                "maxLength": 63,
                                "description": "storage is the size that is asked for, such as 1Gi."
                            }
                        },
                        "description": "requests of the claim."
                    }
                },
                "description": "resources of the claim."
            },
            "volumeMode": { "type": "string", "enum": ["Filesystem"], "description": "volumeMode of the claim: an agent works in a folder." }
        }
    })
}

/// A list of standard conditions, keyed by type.
pub fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": { "type": "string", "maxLength": 64, "description": "type of the condition." },
                "status": { "type": "string", "enum": ["True", "False", "Unknown"], "description": "status of the condition." },
                "reason": { "type": "string", "minLength": 1, "maxLength": 64, "description": "reason is a stable word for why." },
                "message": { "type": "string", "maxLength": 1024, "description": "message is for a person." },
                "lastTransitionTime": { "type": "string", "format": "date-time", "description": "lastTransitionTime is when status last flipped." },
                "observedGeneration": { "type": "integer", "format": "int64", "minimum": 0, "maximum": 9_007_199_254_740_991_i64, "description": "observedGeneration is the generation the condition was computed from." }
            }
        }
    })
}

/// A set of short words.
pub fn word_set(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 32,
        "x-kubernetes-list-type": "set",
        "items": { "type": "string", "minLength": 1, "maxLength": 64 }
    })
}

/// A list of absolute paths.
pub fn paths(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": 16,
        "x-kubernetes-list-type": "atomic",
        "items": { "type": "string", "minLength": 2, "maxLength": 256, "pattern": "^/.+" }
    })
}

/// A list of tool names. Presence counts, also when it is empty (contract c6).
pub fn tool_names(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 64,
        "x-kubernetes-list-type": "atomic",
        "items": { "type": "string", "minLength": 1, "maxLength": 128 }
    })
}

/// A map of run parameters.
pub fn parameters(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 32,
        "additionalProperties": { "type": "string", "maxLength": 4096 },
        "x-kubernetes-validations": [{
            "rule": "self.all(key, key.matches('^[A-Z_][A-Z0-9_]{0,62}$'))",
            "message": "parameter names are upper-case letters, digits and underscores, start with a letter or underscore, and have at most 63 characters"
        }]
    })
}

/// A list of UIDs of ancestors, root first.
pub fn ancestors(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 64,
        "x-kubernetes-list-type": "atomic",
        "items": { "type": "string", "minLength": 1, "maxLength": 64 }
    })
}
