//! From what a worker sends to what the status holds, with every bound checked before anything is written.
//!
//! The bounds are those of the installed schema: it is read from the API types, so there is one source of them.

use super::{admission::Child, fence::Claim};
use crate::{
    archive::{result::Part, transcript::Tail},
    session_store,
};
use base64::{Engine, prelude::BASE64_STANDARD};
use regex::Regex;
use serde_json::Value;
use sha2::{Digest, Sha256};
use subagent_crds::report::{Report, RunResult};
use subagent_link::{
    MAX_INLINE_RESULT_BYTES, MAX_PREVIEW_BYTES, MAX_SNAPSHOT_BYTES, MAX_TRANSCRIPT_BYTES, ResultPart, ResultPayload,
    STORED_OUTPUT_BYTES, Snapshot, TranscriptPayload, TurnOutput,
};

/// The schema cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// A part is missing.
    #[error("{0} is not in the schema of a run")]
    Missing(&'static str),
    /// A pattern is not a regular expression.
    #[error("pattern: {0}")]
    Pattern(#[from] regex::Error),
    /// The schema is not JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// What breaks a bound, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {what}")]
pub(super) struct Invalid {
    path: String,
    what: String,
}

fn invalid(path: &str, what: impl Into<String>) -> Invalid {
    Invalid { path: path.to_owned(), what: what.into() }
}

/// The bounds of one value, of the parts of the schema that reports use.
#[derive(Debug, Default)]
pub(super) struct Rules {
    max_length: Option<usize>,
    min_length: Option<usize>,
    max_items: Option<usize>,
    minimum: Option<f64>,
    maximum: Option<f64>,
    pattern: Option<Regex>,
    words: Vec<Value>,
    items: Option<Box<Rules>>,
    properties: Vec<(String, Rules)>,
}

impl Rules {
    /// The rules of `status.report`.
    pub fn of_reports() -> Result<Self, SchemaError> {
        Self::of_status_field("report")
    }

    fn of_status_field(field: &'static str) -> Result<Self, SchemaError> {
        let definitions = subagent_crds::definitions();
        let run = definitions.iter().find(|crd| crd.spec.names.kind == "SubagentRun");
        let version = run.and_then(|crd| crd.spec.versions.first()).ok_or(SchemaError::Missing("SubagentRun"))?;
        let schema = serde_json::to_value(&version.schema)?;
        let path = format!("/openAPIV3Schema/properties/status/properties/{field}");
        Self::parse(schema.pointer(&path).ok_or(SchemaError::Missing(field))?)
    }

    fn parse(schema: &Value) -> Result<Self, SchemaError> {
        let count = |key: &str| schema[key].as_u64().and_then(|count| usize::try_from(count).ok());
        let mut properties = Vec::new();
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            properties.push((name.clone(), Self::parse(property)?));
        }
        Ok(Self {
            max_length: count("maxLength"),
            min_length: count("minLength"),
            max_items: count("maxItems"),
            minimum: schema["minimum"].as_f64(),
            maximum: schema["maximum"].as_f64(),
            pattern: schema["pattern"].as_str().map(Regex::new).transpose()?,
            words: schema["enum"].as_array().cloned().unwrap_or_default(),
            items: schema["items"].is_object().then(|| Self::parse(&schema["items"]).map(Box::new)).transpose()?,
            properties,
        })
    }

    /// Types are right already: the value was made from the API's types. Fields that the schema does not name are
    /// bounded by the size of the whole.
    fn check(&self, value: &Value, path: &str) -> Result<(), Invalid> {
        if !self.words.is_empty() && !self.words.contains(value) {
            return Err(invalid(path, "is not one of the known values"));
        }
        match value {
            Value::String(text) => {
                // The API server counts characters.
                let length = text.chars().count();
                if self.max_length.is_some_and(|max| length > max) || self.min_length.is_some_and(|min| length < min) {
                    return Err(invalid(path, format!("has {length} characters")));
                }
                if self.pattern.as_ref().is_some_and(|pattern| !pattern.is_match(text)) {
                    return Err(invalid(path, "does not match its pattern"));
                }
            }
            Value::Number(number) => {
                let number = number.as_f64().unwrap_or(f64::NAN);
                // Written so that NaN is out of range, too.
                let in_range =
                    self.minimum.is_none_or(|min| number >= min) && self.maximum.is_none_or(|max| number <= max);
                if !in_range {
                    return Err(invalid(path, "is out of range"));
                }
            }
            Value::Array(items) => {
                if self.max_items.is_some_and(|max| items.len() > max) {
                    return Err(invalid(path, format!("has {} entries", items.len())));
                }
                for (index, item) in items.iter().enumerate() {
                    if let Some(rules) = &self.items {
                        rules.check(item, &format!("{path}[{index}]"))?;
                    }
                }
            }
            Value::Object(fields) => {
                for (name, rules) in &self.properties {
                    if let Some(field) = fields.get(name) {
                        rules.check(field, &format!("{path}.{name}"))?;
                    }
                }
            }
            Value::Null | Value::Bool(_) => {}
        }
        Ok(())
    }
}

/// Makes the report of a snapshot. Who reported it comes from the token and the fence, whatever the snapshot says.
pub(super) fn report(rules: &Rules, claim: &Claim, seq: i64, snapshot: &Snapshot) -> Result<Report, Invalid> {
    let not_json = |error: serde_json::Error| invalid("report", error.to_string());
    let mut value = serde_json::to_value(snapshot).map_err(not_json)?;
    let Some(fields) = value.as_object_mut() else { return Err(invalid("report", "is not an object")) };
    fields.insert("podUID".to_owned(), claim.pod_uid.clone().into());
    fields.insert("attempt".to_owned(), claim.attempt.into());
    fields.insert("seq".to_owned(), seq.into());
    // What is to be proven first comes into it then, and has its room.
    let outputs = snapshot.turns.iter().filter(|turn| turn.output.is_some()).count();
    let size = value.to_string().len() + outputs * STORED_OUTPUT_BYTES;
    if size > MAX_SNAPSHOT_BYTES {
        return Err(invalid("report", format!("has {size} bytes, the limit is {MAX_SNAPSHOT_BYTES}")));
    }
    let turns = value.get_mut("turns").and_then(Value::as_array_mut);
    for turn in turns.into_iter().flatten().filter_map(Value::as_object_mut) {
        turn.remove("output");
    }
    rules.check(&value, "report")?;
    serde_json::from_value(value).map_err(not_json)
}

/// The output of a turn. What was uploaded is to be proven stored before the report names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReportedOutput {
    /// Number of the turn.
    pub turn: i64,
    /// Content that is not text, how often.
    pub other_blocks: i64,
    /// SHA-256 of the text in lower-case hex.
    pub sha256: String,
    /// Size of the text in bytes.
    pub size: i64,
    /// The text, when its preview does not hold it.
    pub text: Option<Part>,
    /// The content that is not text, when there is any.
    pub blocks: Option<Part>,
}

/// Checks the outputs of turns that a snapshot names.
pub(super) fn outputs(snapshot: &Snapshot, max_bytes: i64) -> Result<Vec<ReportedOutput>, Invalid> {
    let named = snapshot.turns.iter().filter_map(|turn| Some((turn.turn, turn.output.as_ref()?)));
    named.map(|(turn, output)| reported(turn, output, max_bytes)).collect()
}

fn reported(turn: i64, output: &TurnOutput, max_bytes: i64) -> Result<ReportedOutput, Invalid> {
    let TurnOutput { sha256, size, other_blocks, blocks } = output;
    let of = |which, sha256: &String, size| {
        part(Part { turn: Some(turn), part: which, sha256: sha256.clone(), size }, max_bytes)
    };
    let text = output.has_text().then(|| of(ResultPart::Text, sha256, *size)).transpose()?;
    let blocks = blocks.as_ref().map(|blocks| of(ResultPart::Blocks, &blocks.sha256, blocks.size)).transpose()?;
    if text.is_none() && blocks.is_none() {
        return Err(invalid("report.turns.output", "names nothing that is uploaded"));
    }
    if !is_digest(sha256) || *size < 0 || !(0..=MAX_OTHER_BLOCKS).contains(other_blocks) {
        return Err(invalid("report.turns.output", "has a digest, a size or a count that is none"));
    }
    let together = size + blocks.as_ref().map_or(0, |blocks| blocks.size);
    if together > max_bytes {
        return Err(invalid(
            "report.turns.output",
            format!("has {together} bytes; it is never cut, the turn fails instead"),
        ));
    }
    Ok(ReportedOutput { turn, other_blocks: *other_blocks, sha256: sha256.clone(), size: *size, text, blocks })
}

/// Most content blocks that are counted; the bound of the schema.
const MAX_OTHER_BLOCKS: i64 = 1_000_000;

/// Checks that the checkpoint is one of this very activation. The next one restores what the report names: a worker must not
/// name another child's.
pub(super) fn checkpoint(report: &Report, child: Option<&Child>) -> Result<(), Invalid> {
    let Some(told) = &report.checkpoint else { return Ok(()) };
    let Some(child) = child else {
        return Err(invalid("report.checkpoint", "is for activations of continuable children"));
    };
    if told.key != session_store::key(&child.uid, child.epoch, told.turn, &told.digest) {
        return Err(invalid("report.checkpoint.key", "is not that of a checkpoint of this activation"));
    }
    Ok(())
}

/// A checked result. What was uploaded is to be proven stored before it goes into the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reported {
    /// As the status will show it, with the text when it came inline.
    pub result: RunResult,
    /// The content that is not text, when it was uploaded.
    pub blocks: Option<Part>,
    /// The turn as whose output all that was uploaded.
    pub turn: Option<i64>,
}

impl Reported {
    /// The text, when it was uploaded.
    pub fn text(&self) -> Option<Part> {
        let RunResult { text, sha256, size, .. } = &self.result;
        text.is_none().then(|| Part { turn: self.turn, part: ResultPart::Text, sha256: sha256.clone(), size: *size })
    }
}

/// Makes the result. The digest of a text is computed again: what is stored is what the digest says.
pub(super) fn result(claim: &Claim, payload: &ResultPayload, max_bytes: i64) -> Result<Reported, Invalid> {
    let never_cut = |bytes| invalid("result", format!("has {bytes} bytes; it is never cut, a worker fails instead"));
    // What has its place in the status is never only somewhere else, whatever it was uploaded as.
    let of =
        |which, sha256: &String, size| part(Part { turn: None, part: which, sha256: sha256.clone(), size }, max_bytes);
    let blocks = match &payload.blocks {
        None => None,
        Some(blocks) => Some(Part { turn: payload.turn, ..of(ResultPart::Blocks, &blocks.sha256, blocks.size)? }),
    };
    match &payload.text {
        Some(text) => {
            if text.len() > MAX_INLINE_RESULT_BYTES {
                return Err(never_cut(payload.size));
            }
            if i64::try_from(text.len()) != Ok(payload.size) {
                return Err(invalid("result.size", format!("is {}, the text has {} bytes", payload.size, text.len())));
            }
            if crate::naming::hex(&Sha256::digest(text.as_bytes())) != payload.sha256 {
                return Err(invalid("result.sha256", "is not the digest of the text"));
            }
        }
        None => {
            of(ResultPart::Text, &payload.sha256, payload.size)?;
        }
    }
    // Each part is within the bound, so the sum cannot overflow.
    let whole = payload.size + blocks.as_ref().map_or(0, |blocks| blocks.size);
    if whole > max_bytes {
        return Err(never_cut(whole));
    }
    if !(0..=MAX_OTHER_BLOCKS).contains(&payload.other_blocks) {
        return Err(invalid("result.otherBlocks", "is out of range"));
    }
    let result = RunResult {
        pod_uid: claim.pod_uid.clone(),
        text: payload.text.clone(),
        other_blocks: payload.other_blocks,
        sha256: payload.sha256.clone(),
        size: payload.size,
        ..RunResult::default()
    };
    Ok(Reported { result, blocks, turn: payload.turn })
}

/// Checks what is or was uploaded. A text that fits the status has no other home than that.
pub(super) fn part(part: Part, max_bytes: i64) -> Result<Part, Invalid> {
    let (whose, inline) = match part.turn {
        None => ("result", MAX_INLINE_RESULT_BYTES),
        Some(_) => ("turn", MAX_PREVIEW_BYTES),
    };
    let inline = i64::try_from(inline).unwrap_or(i64::MAX);
    let (least, size) = (if part.part == ResultPart::Text { inline + 1 } else { 1 }, part.size);
    if part.turn.is_some_and(|turn| turn < 1) {
        return Err(invalid("turn", "is a number from 1 on"));
    }
    if size < least || size > max_bytes {
        let path = format!("{whose}.{}.size", part.part.as_str());
        return Err(Invalid { path, what: format!("is {size}; uploads have {least} to {max_bytes} bytes") });
    }
    if !is_digest(&part.sha256) {
        return Err(invalid(&format!("{whose}.sha256"), "is not a SHA-256 in lower-case hex"));
    }
    Ok(part)
}

pub(super) fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Checks a transcript's tail. It is not unpacked here: readers check the digest.
pub(super) fn transcript(payload: &TranscriptPayload) -> Result<Tail, Invalid> {
    let data = BASE64_STANDARD.decode(&payload.data).map_err(|_| invalid("transcript.data", "is not base64"))?;
    if data.len() > MAX_TRANSCRIPT_BYTES {
        return Err(invalid("transcript.data", format!("has {} bytes", data.len())));
    }
    if !is_digest(&payload.sha256) {
        return Err(invalid("transcript.sha256", "is not a SHA-256 in hex"));
    }
    let in_range = |number: i64| (0..=9_007_199_254_740_991).contains(&number);
    if !in_range(payload.size) || !in_range(payload.dropped_bytes) {
        return Err(invalid("transcript.size", "is out of range"));
    }
    Ok(Tail { data, sha256: payload.sha256.clone(), size: payload.size, dropped_bytes: payload.dropped_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;
    use subagent_link::ContentDigest;

    fn claim() -> Claim {
        Claim { pod_uid: "pod".into(), run_uid: "run".into(), attempt: 2, seq: 0 }
    }

    fn snapshot(value: Value) -> Snapshot {
        serde_json::from_value(value).unwrap()
    }

    fn full() -> Value {
        json!({
            "agent": {"name": "a", "version": "1", "protocolVersion": 1, "capabilities": ["LoadSession"]},
            "session": {"id": "s", "how": "New"},
            "turns": [{"turn": 1, "startedAt": "2026-01-01T00:00:00Z", "preview": "p"}],
            "turnCount": 1,
            "idle": false,
            "stage": "Prompt",
            "usage": {"totalTokens": 9, "cost": {"amount": "0.10", "currency": "EUR"}},
            "permissions": {"allowed": 1, "rejected": 2},
            "newer": {"kept": true},
        })
    }

    #[test]
    fn a_snapshot_becomes_a_report_with_the_reporter_of_the_fence() {
        let rules = Rules::of_reports().unwrap();
        let mut value = full();
        // A worker cannot say who it is.
        value["podUID"] = "forged".into();
        value["attempt"] = 99.into();
        value["seq"] = 99.into();
        let report = report(&rules, &claim(), 4, &snapshot(value)).unwrap();
        assert_eq!((report.pod_uid.as_str(), report.attempt, report.seq), ("pod", 2, 4));
        assert_eq!(report.other["newer"]["kept"], true, "fields of a newer worker are kept");
        assert_eq!(report.session.unwrap().how, "New");
    }

    #[rstest]
    #[case::text_too_long("/agent/name", json!("x".repeat(257)), "report.agent.name")]
    #[case::t2_negative_usage("/usage/totalTokens", json!(-1), "report.usage.totalTokens")]
    #[case::t2_huge_usage("/usage/totalTokens", json!(i64::MAX), "report.usage.totalTokens")]
    #[case::t2_cost_is_no_number("/usage/cost/amount", json!("1e30"), "report.usage.cost.amount")]
    #[case::currency_too_short("/usage/cost/currency", json!("E"), "report.usage.cost.currency")]
    #[case::turn_zero("/turns/0/turn", json!(0), "report.turns[0].turn")]
    #[case::preview_too_long("/turns/0/preview", json!("x".repeat(1025)), "report.turns[0].preview")]
    #[case::capability_too_long("/agent/capabilities/0", json!("x".repeat(65)), "report.agent.capabilities[0]")]
    #[case::too_many_turns("/turns", json!(vec![json!({"turn": 1, "startedAt": ""}); 33]), "report.turns")]
    #[case::t5_too_large("/newer", json!("x".repeat(MAX_SNAPSHOT_BYTES)), "report")]
    fn a_snapshot_out_of_bounds_is_refused_and_names_the_field(
        #[case] pointer: &str,
        #[case] bad: Value,
        #[case] path: &str,
    ) {
        let rules = Rules::of_reports().unwrap();
        let mut value = full();
        *value.pointer_mut(pointer).unwrap() = bad;
        assert_eq!(report(&rules, &claim(), 1, &snapshot(value)).unwrap_err().path, path);
    }

    /// Whose session the next activation gets is not for a worker to say.
    #[rstest]
    #[case::of_this_activation("child/4/2", 2, true)]
    #[case::of_another_child("other/4/2", 2, false)]
    #[case::of_another_epoch("child/3/2", 2, false)]
    #[case::of_another_turn("child/4/2", 1, false)]
    #[case::of_another_place("child/4/2/../2", 2, false)]
    fn c40_a_report_names_checkpoints_of_its_own_activation_only(
        #[case] place: &str,
        #[case] turn: i64,
        #[case] taken: bool,
    ) {
        let rules = Rules::of_reports().unwrap();
        let digest = "0a".repeat(32);
        let told =
            json!({"checkpoint": {"key": format!("{place}/{digest}"), "digest": digest, "size": 9, "turn": turn}});
        let report = report(&rules, &claim(), 1, &snapshot(told.clone())).unwrap();
        assert_eq!(serde_json::to_value(report.checkpoint.as_ref()).unwrap(), told["checkpoint"], "it is passed on");
        let child = Child { uid: "child".into(), epoch: 4 };
        assert_eq!(checkpoint(&report, Some(&child)).is_ok(), taken);
        assert!(checkpoint(&report, None).is_err(), "a one-shot run has none");
    }

    #[test]
    fn a_sequence_number_below_one_is_refused() {
        let rules = Rules::of_reports().unwrap();
        assert_eq!(report(&rules, &claim(), 0, &Snapshot::default()).unwrap_err().path, "report.seq");
    }

    fn payload(text: &str) -> ResultPayload {
        let sha256 = crate::naming::hex(&Sha256::digest(text.as_bytes()));
        let size = text.len() as i64;
        ResultPayload { text: Some(text.into()), other_blocks: 0, blocks: None, sha256, size, turn: None }
    }

    #[rstest]
    #[case(10)]
    #[case(MAX_INLINE_RESULT_BYTES)]
    fn t3_a_result_within_the_limit_is_kept_whole(#[case] bytes: usize) {
        let text = "x".repeat(bytes);
        let stored = result(&claim(), &payload(&text), i64::MAX).unwrap();
        assert_eq!((stored.result.text.as_deref(), stored.result.pod_uid.as_str()), (Some(text.as_str()), "pod"));
        assert_eq!((stored.text(), stored.blocks), (None, None), "nothing was uploaded");
    }

    #[test]
    fn t3_a_result_is_never_cut_and_its_digest_is_checked() {
        let large = payload(&"x".repeat(MAX_INLINE_RESULT_BYTES + 1));
        assert_eq!(result(&claim(), &large, i64::MAX).unwrap_err().path, "result");
        // Many bytes in few characters.
        let wide = payload(&"ä".repeat(MAX_INLINE_RESULT_BYTES / 2 + 1));
        assert_eq!(result(&claim(), &wide, i64::MAX).unwrap_err().path, "result");
        assert_eq!(result(&claim(), &payload("four"), 3).unwrap_err().path, "result");
        let other = ResultPayload { sha256: payload("b").sha256, ..payload("a") };
        assert_eq!(result(&claim(), &other, 9).unwrap_err().path, "result.sha256");
        let cut = ResultPayload { size: 9, ..payload("a") };
        assert_eq!(result(&claim(), &cut, 9).unwrap_err().path, "result.size");
    }

    #[rstest]
    #[case::as_large_as_allowed(4096 * 1024, None, None)]
    #[case::one_byte_more(4096 * 1024 + 1, None, Some("result.text.size"))]
    #[case::fits_the_status(MAX_INLINE_RESULT_BYTES as i64, None, Some("result.text.size"))]
    #[case::one_byte_more_than_that(MAX_INLINE_RESULT_BYTES as i64 + 1, None, None)]
    #[case::with_blocks(20_000, Some(4096 * 1024 - 20_000), None)]
    #[case::together_too_large(20_000, Some(4096 * 1024 - 19_999), Some("result"))]
    #[case::no_blocks_at_all(20_000, Some(0), Some("result.blocks.size"))]
    #[case::negative(-1, None, Some("result.text.size"))]
    fn t3_what_was_uploaded_is_bounded(#[case] size: i64, #[case] blocks: Option<i64>, #[case] fault: Option<&str>) {
        let sha256 = payload("").sha256;
        let blocks = blocks.map(|size| ContentDigest { sha256: sha256.clone(), size });
        let told = ResultPayload { text: None, size, blocks: blocks.clone(), ..payload("") };
        let got = result(&claim(), &told, 4096 * 1024);
        assert_eq!(got.as_ref().err().map(|error| error.path.as_str()), fault);
        if let Ok(got) = got {
            assert_eq!(got.text().map(|text| text.size), Some(size));
            assert_eq!(got.blocks.map(|blocks| blocks.size), blocks.map(|blocks| blocks.size));
        }
        let of_a_turn = result(&claim(), &ResultPayload { turn: Some(3), ..told }, 4096 * 1024);
        assert_eq!(of_a_turn.as_ref().err().map(|error| error.path.as_str()), fault);
        if let Ok(of_a_turn) = of_a_turn {
            assert_eq!(of_a_turn.text().map(|text| text.turn), Some(Some(3)));
            assert!(of_a_turn.blocks.is_none_or(|blocks| blocks.turn == Some(3)));
        }
        let spoiled = ResultPayload { text: None, size: 20_000, sha256: "AB".repeat(32), ..payload("") };
        assert_eq!(result(&claim(), &spoiled, 4096 * 1024).unwrap_err().path, "result.sha256");
    }

    #[rstest]
    #[case::as_large_as_allowed(4096 * 1024, None, None)]
    #[case::one_byte_more(4096 * 1024 + 1, None, Some("turn.text.size"))]
    #[case::nothing_but_a_preview(1024, None, Some("report.turns.output"))]
    #[case::one_byte_more_than_that(1025, None, None)]
    #[case::blocks_alone(0, Some(1), None)]
    #[case::together_too_large(2000, Some(4096 * 1024 - 1999), Some("report.turns.output"))]
    #[case::no_blocks_at_all(2000, Some(0), Some("turn.blocks.size"))]
    #[case::negative(-1, Some(9), Some("report.turns.output"))]
    fn t3_the_output_of_a_turn_is_bounded(#[case] size: i64, #[case] blocks: Option<i64>, #[case] fault: Option<&str>) {
        let sha256 = "0a".repeat(32);
        let blocks = blocks.map(|size| ContentDigest { sha256: sha256.clone(), size });
        let output = TurnOutput { sha256: sha256.clone(), size, other_blocks: 1, blocks };
        let mut told = snapshot(full());
        told.turns[0].output = Some(output);
        let got = outputs(&told, 4096 * 1024);
        assert_eq!(got.as_ref().err().map(|error| error.path.as_str()), fault);
        if let Ok([got]) = got.as_deref() {
            let parts = [&got.text, &got.blocks].into_iter().flatten();
            assert!(parts.clone().count() > 0 && parts.clone().all(|part| part.turn == Some(1)), "{got:?}");
        }
        // Nothing of it is in the report before it is proven.
        let rules = Rules::of_reports().unwrap();
        assert_eq!(report(&rules, &claim(), 1, &told).unwrap().turns[0].output, None);
    }

    /// T5: with what the gateway adds a report is still within its bound.
    #[test]
    fn t5_an_output_has_room_in_the_report() {
        let rules = Rules::of_reports().unwrap();
        let told = |padding: usize| {
            let mut told = snapshot(full());
            told.other.insert("newer".into(), "x".repeat(padding).into());
            told.turns[0].output = Some(TurnOutput { sha256: "0a".repeat(32), size: 2000, ..TurnOutput::default() });
            told
        };
        let fits = |padding| report(&rules, &claim(), 1, &told(padding)).is_ok();
        let most = (0..MAX_SNAPSHOT_BYTES).rev().step_by(64).find(|padding| fits(*padding)).unwrap();
        let mut full = serde_json::to_value(report(&rules, &claim(), 1, &told(most)).unwrap()).unwrap();
        full["turns"][0]["output"] =
            json!({"ref": "r".repeat(90), "chunks": 64, "sha256": "0a".repeat(32), "size": 2000});
        assert!(full.to_string().len() <= MAX_SNAPSHOT_BYTES, "{}", full.to_string().len());
    }

    #[test]
    fn a_transcript_is_bounded_after_base64() {
        let tail = |bytes: usize| TranscriptPayload {
            data: BASE64_STANDARD.encode(vec![7; bytes]),
            sha256: "0".repeat(64),
            size: 1,
            dropped_bytes: 0,
        };
        assert_eq!(transcript(&tail(MAX_TRANSCRIPT_BYTES)).unwrap().data.len(), MAX_TRANSCRIPT_BYTES);
        assert_eq!(transcript(&tail(MAX_TRANSCRIPT_BYTES + 1)).unwrap_err().path, "transcript.data");
        let spoiled = TranscriptPayload { data: "%".into(), ..tail(1) };
        assert_eq!(transcript(&spoiled).unwrap_err().path, "transcript.data");
        let spoiled = TranscriptPayload { sha256: "zz".into(), ..tail(1) };
        assert_eq!(transcript(&spoiled).unwrap_err().path, "transcript.sha256");
    }
}
