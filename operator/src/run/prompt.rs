//! A prompt that comes from a ConfigMap: whether it is there, and is one. Pure.

use k8s_openapi::api::core::v1::ConfigMap;
use subagent_crds::content::ConfigMapKeyRef;
use subagent_link::MAX_PROMPT_BYTES;

/// What was found of it. The texts name object, field and remedy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PromptSource {
    /// A prompt, or the run has none from a ConfigMap.
    #[default]
    Usable,
    /// It is not there and may still come: a manifest directory has no order.
    Missing(String),
    /// It is there and is no prompt.
    Unusable(String),
}

/// Judges what a run's reference leads to.
pub fn judge(reference: &ConfigMapKeyRef, found: Option<&ConfigMap>) -> PromptSource {
    let ConfigMapKeyRef { name, key } = reference;
    let named = format!("ConfigMap {name}, named in spec.prompt.configMapKeyRef,");
    let Some(found) = found else {
        return PromptSource::Missing(format!("{named} does not exist in this namespace; create it"));
    };
    let text = found.data.as_ref().and_then(|data| data.get(key)).map(|text| text.as_bytes());
    let Some(bytes) = text.or_else(|| found.binary_data.as_ref()?.get(key).map(|bytes| bytes.0.as_slice())) else {
        return PromptSource::Missing(format!("{named} has no key {key}; add it"));
    };
    match fault(bytes) {
        None => PromptSource::Usable,
        Some(fault) => PromptSource::Unusable(format!(
            "{named} holds no prompt under key {key}: {fault}; correct it, or name another one in a new run"
        )),
    }
}

fn fault(bytes: &[u8]) -> Option<String> {
    if bytes.is_empty() {
        return Some("it is empty".into());
    }
    if bytes.len() > MAX_PROMPT_BYTES {
        return Some(format!("it has {} bytes, the limit is {MAX_PROMPT_BYTES}", bytes.len()));
    }
    let at = std::str::from_utf8(bytes).err()?.valid_up_to();
    Some(format!("it is no UTF-8 text from byte {at} on"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::{Engine, prelude::BASE64_STANDARD};
    use rstest::rstest;
    use serde_json::json;

    fn judged(key: &str, bytes: &[u8]) -> PromptSource {
        let value = match key {
            "data" => json!({"task": std::str::from_utf8(bytes).unwrap()}),
            _ => json!({"task": BASE64_STANDARD.encode(bytes)}),
        };
        let found: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "c"}, key: value})).unwrap();
        judge(&ConfigMapKeyRef { name: "c".into(), key: "task".into() }, Some(&found))
    }

    #[rstest]
    #[case::text("data", b"do it", None)]
    #[case::text_as_bytes("binaryData", "tu es, ä€".as_bytes(), None)]
    #[case::blank("data", b"\n", None)]
    #[case::all_that_fits("data", &[b'x'; MAX_PROMPT_BYTES], None)]
    #[case::empty("data", b"", Some("it is empty"))]
    #[case::no_bytes("binaryData", b"", Some("it is empty"))]
    #[case::larger("binaryData", &[b'x'; MAX_PROMPT_BYTES + 1], Some("it has 1048577 bytes, the limit is 1048576"))]
    #[case::not_utf8("binaryData", b"ab\xff\xfe", Some("it is no UTF-8 text from byte 2 on"))]
    #[case::cut_within_a_character("binaryData", b"\xc3", Some("it is no UTF-8 text from byte 0 on"))]
    fn a_prompt_is_utf8_text_within_its_bounds(#[case] field: &str, #[case] bytes: &[u8], #[case] fault: Option<&str>) {
        match (judged(field, bytes), fault) {
            (PromptSource::Usable, None) => {}
            (PromptSource::Unusable(said), Some(fault)) => {
                let words = ["ConfigMap c", "spec.prompt.configMapKeyRef", "key task", fault, "correct it"];
                assert!(words.iter().all(|words| said.contains(words)), "{said}");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn n1_what_is_missing_may_still_come() {
        let reference = |key: &str| ConfigMapKeyRef { name: "c".into(), key: key.into() };
        let missing = |judged: PromptSource, words: &str| match judged {
            PromptSource::Missing(said) => assert!(said.contains(words), "{said}"),
            other => panic!("{other:?}"),
        };
        missing(judge(&reference("task"), None), "ConfigMap c, named in spec.prompt.configMapKeyRef, does not exist");
        let empty = ConfigMap::default();
        missing(judge(&reference("task"), Some(&empty)), "has no key task; add it");
    }
}
