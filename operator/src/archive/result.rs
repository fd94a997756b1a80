//! A result that is larger than the status holds, or is not text: in chunks, each in a ConfigMap (contract c28, c31). So is the
//! output of a turn of an activation.
//!
//! The name of a chunk ends in its number with three digits, so that a list in order of names, as `kubectl get` gives it,
//! is the text in order.

use super::{
    ArchiveError, Owner, Unstored,
    config_map::{Content, Data},
};
use crate::{
    api::{self, ReadError},
    naming,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Client, ResourceExt};
use sha2::{Digest, Sha256};
use subagent_crds::names;
use subagent_link::ResultPart;

/// Most bytes of a chunk: half of what a ConfigMap may hold, far from what etcd takes in one request (1.5 MiB).
const CHUNK_BYTES: usize = 512 * 1024;
/// Most bytes of a chunk as JSON, where a control character has six: the API server takes requests of 3 MiB.
const CHUNK_JSON_BYTES: usize = 2 * 1024 * 1024;
/// Most chunks of one part: [`subagent_link::MAX_RESULT_BYTES`] in the smallest chunks there can be make 25.
const MAX_CHUNKS: i32 = 64;

/// What was uploaded, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The turn whose output it is of; `None` for the result of the run.
    pub turn: Option<i64>,
    /// Which part of it.
    pub part: ResultPart,
    /// SHA-256 in lower-case hex.
    pub sha256: String,
    /// Size in bytes.
    pub size: i64,
}

/// A part that is stored whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// The name that the ConfigMaps share.
    pub reference: String,
    /// How many they are.
    pub chunks: i32,
}

fn key(part: ResultPart) -> &'static str {
    part.as_str()
}

impl Part {
    fn label(&self) -> &'static str {
        match (self.turn, self.part) {
            (None, ResultPart::Text) => names::CONTENT_RESULT,
            (None, ResultPart::Blocks) => names::CONTENT_BLOCKS,
            (Some(_), ResultPart::Text) => names::CONTENT_TURN,
            (Some(_), ResultPart::Blocks) => names::CONTENT_TURN_BLOCKS,
        }
    }

    /// The name that its ConfigMaps share.
    pub fn reference(&self, owner: &Owner) -> String {
        let turn = self.turn.map(|turn| format!("-{turn}")).unwrap_or_default();
        naming::derived(&owner.run_name, &owner.run_uid, &format!("{}-{}{turn}", self.label(), owner.attempt))
    }
}

/// Name of a chunk, from 1.
pub fn chunk_name(reference: &str, number: i32) -> String {
    format!("{reference}-{number:03}")
}

/// Bytes of a character in a JSON string.
fn json_bytes(character: char) -> usize {
    match character {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        other => other.len_utf8(),
    }
}

/// Cuts a text on character boundaries.
fn chunks(text: &str) -> Vec<&str> {
    let (mut chunks, mut start, mut json) = (Vec::new(), 0, 0);
    for (at, character) in text.char_indices() {
        let escaped = json_bytes(character);
        if at + character.len_utf8() - start > CHUNK_BYTES || json + escaped > CHUNK_JSON_BYTES {
            chunks.push(&text[start..at]);
            (start, json) = (at, 0);
        }
        json += escaped;
    }
    chunks.push(&text[start..]);
    chunks
}

/// Stores a part whose digest was checked, by `labels` to be found beside those that all have. Repeating it changes nothing.
///
/// # Errors
/// [`ArchiveError`] when trying again can help; some chunks may be stored then.
pub async fn store(
    client: &Client,
    owner: &Owner,
    part: &Part,
    labels: &[(&'static str, String)],
    text: &str,
) -> Result<Result<usize, Unstored>, ArchiveError> {
    let reference = part.reference(owner);
    let chunks = chunks(text);
    let mut written = 0;
    for (number, chunk) in (1..).zip(&chunks) {
        let annotations = vec![
            (names::SHA256_ANNOTATION, part.sha256.clone()),
            (names::SIZE_ANNOTATION, part.size.to_string()),
            (names::CHUNKS_ANNOTATION, chunks.len().to_string()),
        ];
        let wanted = owner.config_map(Content {
            name: chunk_name(&reference, number),
            kind: part.label(),
            labels: labels.to_vec(),
            annotations,
            data: Data::Text(key(part.part), (*chunk).to_owned()),
        });
        match owner.put(client, names::GATEWAY_MANAGER, &wanted).await? {
            Ok(created) => written += usize::from(created),
            Err(unstored) => return Ok(Err(unstored)),
        }
    }
    Ok(Ok(written))
}

/// Reads every chunk live and computes the digest again: whoever stored them, they are all there and are what was
/// reported. `None` when they are not.
///
/// # Errors
/// [`ReadError`] when the API server does not say.
pub async fn prove(client: &Client, owner: &Owner, part: &Part) -> Result<Option<Whole>, ReadError> {
    let config_maps = owner.api(client);
    let reference = part.reference(owner);
    let (mut digest, mut size, mut number, mut count) = (Sha256::new(), 0, 1, 1);
    while number <= count {
        let found = api::get(&config_maps, &chunk_name(&reference, number)).await?;
        let Some((chunk, told)) = found.as_ref().and_then(|found| chunk_of(found, owner, part)) else {
            return Ok(None);
        };
        if number == 1 {
            count = told;
        }
        digest.update(chunk.as_bytes());
        size += chunk.len();
        number += 1;
    }
    let is_whole = i64::try_from(size) == Ok(part.size) && naming::hex(&digest.finalize()) == part.sha256;
    Ok(is_whole.then_some(Whole { reference, chunks: count }))
}

/// Text of a chunk and how many there are, if it is one of this part.
fn chunk_of<'a>(found: &'a ConfigMap, owner: &Owner, part: &Part) -> Option<(&'a str, i32)> {
    let annotations = found.annotations();
    let count: i32 = annotations.get(names::CHUNKS_ANNOTATION)?.parse().ok()?;
    let is_ours = owner.made(found)
        && annotations.get(names::SHA256_ANNOTATION) == Some(&part.sha256)
        && (1..=MAX_CHUNKS).contains(&count);
    Some((found.data.as_ref()?.get(key(part.part))?.as_str(), count)).filter(|_| is_ours)
}

#[cfg(test)]
mod tests {
    use super::{super::config_map::tests::owner, *};
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case::one("x".repeat(CHUNK_BYTES), &[CHUNK_BYTES])]
    #[case::two("x".repeat(CHUNK_BYTES + 1), &[CHUNK_BYTES, 1])]
    #[case::character_boundary(format!("xxx{}", "€".repeat(CHUNK_BYTES / 3)), &[CHUNK_BYTES - 2, 3])]
    #[case::whole_limit("x".repeat(4 * 1024 * 1024), &[CHUNK_BYTES; 8])]
    fn t3_chunks_are_bounded_and_end_on_a_character(#[case] text: String, #[case] sizes: &[usize]) {
        let got = chunks(&text);
        assert_eq!(got.iter().map(|chunk| chunk.len()).collect::<Vec<_>>(), sizes);
        assert_eq!(got.concat(), text);
    }

    #[test]
    fn t3_a_chunk_fits_a_request_however_it_is_escaped() {
        let text = "\u{1}".repeat(subagent_link::MAX_RESULT_BYTES);
        let got = chunks(&text);
        assert_eq!(got.concat(), text);
        assert!(i32::try_from(got.len()).is_ok_and(|count| count <= MAX_CHUNKS), "{}", got.len());
        for chunk in got {
            assert!(serde_json::to_string(chunk).unwrap().len() <= CHUNK_JSON_BYTES + 2);
        }
    }

    proptest! {
        #[test]
        fn t3_the_escaped_size_is_not_underestimated(text in any::<String>()) {
            let estimate: usize = text.chars().map(json_bytes).sum();
            prop_assert_eq!(serde_json::to_string(&text).unwrap().len(), estimate + 2);
        }
    }

    #[test]
    fn names_of_chunks_sort_by_number_and_tell_parts_turns_and_attempts_apart() {
        let part = |turn, part| Part { turn, part, sha256: String::new(), size: 1 };
        let text = part(None, ResultPart::Text).reference(&owner());
        assert_eq!(text, format!("r-{}-result-2", naming::short_hash("run-uid")));
        assert_ne!(text, part(None, ResultPart::Blocks).reference(&owner()));
        assert_ne!(text, part(None, ResultPart::Text).reference(&Owner { attempt: 3, ..owner() }));
        let turn = part(Some(7), ResultPart::Text).reference(&owner());
        assert_eq!(turn, format!("r-{}-turn-2-7", naming::short_hash("run-uid")));
        assert_ne!(turn, part(Some(8), ResultPart::Text).reference(&owner()));
        assert_ne!(turn, part(Some(7), ResultPart::Blocks).reference(&owner()));
        // T5: what the gateway adds to a report fits the room that the worker leaves for it.
        let owner = Owner { run_name: "r".repeat(63), attempt: 1_000_000, ..owner() };
        let [text, blocks] = [ResultPart::Text, ResultPart::Blocks]
            .map(|which| part(Some(9_007_199_254_740_991), which).reference(&owner));
        let added = serde_json::json!({"ref": text, "chunks": MAX_CHUNKS}).to_string().len()
            + serde_json::json!({"ref": blocks, "chunks": MAX_CHUNKS}).to_string().len();
        assert!(added <= subagent_link::STORED_OUTPUT_BYTES, "{added}");
        assert!(chunk_name(&text, 1).len() <= 253);
        let names: Vec<_> = (1..=MAX_CHUNKS).map(|number| chunk_name(&text, number)).collect();
        assert!(names.is_sorted(), "{names:?}");
    }

    #[test]
    fn d2_only_a_chunk_of_this_pod_and_this_content_counts() {
        let part = Part { turn: None, part: ResultPart::Text, sha256: "ab".into(), size: 3 };
        let chunk = |owner: &Owner, sha256: &str, chunks: &str| {
            let annotations =
                vec![(names::SHA256_ANNOTATION, sha256.to_owned()), (names::CHUNKS_ANNOTATION, chunks.to_owned())];
            let data = Data::Text("text", "abc".into());
            let kind = names::CONTENT_RESULT;
            owner.config_map(Content { name: "c".into(), kind, labels: vec![], annotations, data })
        };
        let counts = |found: &ConfigMap| chunk_of(found, &owner(), &part).is_some();
        assert!(counts(&chunk(&owner(), "ab", "1")));
        assert!(!counts(&chunk(&owner(), "cd", "1")));
        assert!(!counts(&chunk(&owner(), "ab", "65")));
        assert!(!counts(&chunk(&owner(), "ab", "0")));
        assert!(!counts(&chunk(&Owner { pod_uid: "older".into(), ..owner() }, "ab", "1")));
        assert!(!counts(&chunk(&Owner { run_uid: "other".into(), ..owner() }, "ab", "1")));
    }
}
