//! What the gateway writes into a run's status on the worker's word: report, result and transcript.

use crate::{message::MessageReport, schemas};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The worker's cumulative snapshot for one attempt. Fields of a newer worker are kept. At most 64 KiB.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Report {
    /// podUID is the pod whose worker reported this.
    #[serde(rename = "podUID")]
    #[schemars(length(min = 1, max = 64))]
    pub pod_uid: String,
    /// attempt the report belongs to, from 1.
    #[schemars(range(min = 1, max = 1000000))]
    pub attempt: i32,
    /// seq is the rising number of the report within its attempt.
    #[schemars(range(min = 1, max = 9007199254740991_i64))]
    pub seq: i64,
    /// agent is what the agent said of itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<Agent>,
    /// session is the ACP session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
    /// prompt is the digest of a prompt that came from a ConfigMap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Digest>,
    /// turns are the newest 32 turns, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub turns: Vec<Turn>,
    /// turnCount is the number of turns in all.
    #[serde(default)]
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub turn_count: i64,
    /// messages are what became of the messages that were placed with this worker and are still listed in the run's spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub messages: Vec<MessageReport>,
    /// checkpoint is the newest stored copy of the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// idle is true while no turn is running.
    #[serde(default)]
    pub idle: bool,
    /// stage is what the worker is doing: Connecting, Restoring, Spawning, Initialize, Authenticate, SessionNew, SessionLoad, SessionResume, SessionModel, SessionMode, Prompt, Checkpoint, Idle, StoringResult, Stopping, Stopped.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub stage: String,
    /// activity is the agent's latest sign of life.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activity: Option<Activity>,
    /// usage of tokens so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// permissions counts answered permission requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permissions: Option<Permissions>,
    /// storing is what is being stored before a turn's end is reported: a result that fits no report, or a child's session that
    /// was not stored at the first try.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storing: Option<Storing>,
    /// final is the end of the attempt, as the worker saw it.
    #[serde(rename = "final", skip_serializing_if = "Option::is_none")]
    pub final_: Option<Final>,
    /// Fields this version does not know.
    #[serde(flatten)]
    #[schemars(skip)]
    pub other: BTreeMap<String, serde_json::Value>,
}

/// An agent's description of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Agent {
    /// name the agent gave.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub name: String,
    /// version the agent gave.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub version: String,
    /// protocolVersion is the ACP version in use.
    #[serde(default)]
    #[schemars(range(min = 0, max = 65535))]
    pub protocol_version: i32,
    /// capabilities the agent advertised.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schemas::word_set")]
    pub capabilities: Vec<String>,
}

/// An ACP session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// id is the agent's session id.
    #[schemars(length(max = 256))]
    pub id: String,
    /// how it came to be: New, Loaded or Resumed.
    #[schemars(length(max = 32))]
    pub how: String,
}

/// A stored copy of the agent's session files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// key under which it is stored.
    #[schemars(length(min = 1, max = 256))]
    pub key: String,
    /// digest is its SHA-256 in lower-case hex.
    #[schemars(length(min = 64, max = 64))]
    pub digest: String,
    /// size in bytes.
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub size: i64,
    /// turn after which it was taken, within the attempt.
    #[schemars(range(min = 1, max = 9007199254740991_i64))]
    pub turn: i64,
}

/// Digest of some bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Digest {
    /// sha256 in lower-case hex.
    #[schemars(length(max = 64))]
    pub sha256: String,
    /// size in bytes.
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub size: i64,
}

/// One turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Turn {
    /// turn is its number within the attempt, from 1.
    #[schemars(range(min = 1, max = 9007199254740991_i64))]
    pub turn: i64,
    /// messageID of the inbox entry that started it.
    #[serde(rename = "messageID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub message_id: Option<String>,
    /// startedAt is when it was recorded, before its prompt was sent. RFC 3339.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub started_at: String,
    /// finishedAt is when the agent answered. RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub finished_at: Option<String>,
    /// stopReason of the turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub stop_reason: Option<String>,
    /// preview is the first 1 KiB of its output.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub preview: Option<String>,
    /// output is where the whole output is kept, when the preview does not hold it: in an activation of a child, before the
    /// turn counts as done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<TurnOutput>,
}

/// The whole output of a turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnOutput {
    /// ref is the name that the ConfigMaps with the text share: REF-001, REF-002 and so on, each with a part of it under the
    /// key text. They live as long as their run, and as long as the turn is among its newest 32. Absent when the preview is
    /// the whole text.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub ref_: Option<String>,
    /// chunks is the number of these ConfigMaps.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub chunks: Option<i32>,
    /// otherBlocks counts content that is not text.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0, max = 1000000))]
    pub other_blocks: i64,
    /// blocks is where the content that is not text is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<OtherContent>,
    /// sha256 of the text in lower-case hex.
    #[schemars(length(max = 64))]
    pub sha256: String,
    /// size of the text in bytes.
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub size: i64,
}

fn is_zero(value: &i64) -> bool {
    *value == 0
}

/// A sign of life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Activity {
    /// at is when. RFC 3339.
    #[schemars(length(max = 64))]
    pub at: String,
    /// summary in a few words.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub summary: String,
}

/// Token usage. Absent numbers were not told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// inputTokens sent to the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub input_tokens: Option<i64>,
    /// outputTokens written by the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub output_tokens: Option<i64>,
    /// cachedInputTokens served from a prompt cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub cached_input_tokens: Option<i64>,
    /// totalTokens of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub total_tokens: Option<i64>,
    /// cost as the agent told it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// contextUsed is the number of tokens in the context.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub context_used: Option<i64>,
    /// contextSize is the size of the context window in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub context_size: Option<i64>,
}

/// An amount of money.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cost {
    /// amount is a decimal number.
    #[schemars(length(min = 1, max = 32), regex(pattern = r"^[0-9]+(\.[0-9]+)?$"))]
    pub amount: String,
    /// currency is an ISO 4217 code.
    #[schemars(length(min = 3, max = 3))]
    pub currency: String,
}

/// Counts of answered permission requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Permissions {
    /// allowed requests.
    #[serde(default)]
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub allowed: i64,
    /// rejected requests.
    #[serde(default)]
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub rejected: i64,
}

/// What is on its way into storage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Storing {
    /// what it is: Result or Session. Absent: Result.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub what: Option<String>,
    /// size in bytes; 0 when it is not known.
    #[serde(default)]
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub size: i64,
    /// trouble is what was in the way at the last try.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 768))]
    pub trouble: Option<String>,
}

/// The end of an attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Final {
    /// stopReason: Completed, Aborted, Error, MaxTokens, Refusal; an open set, an unknown one is a failure.
    #[schemars(length(min = 1, max = 64))]
    pub stop_reason: String,
    /// reason of the failure taxonomy.
    #[schemars(length(min = 1, max = 64))]
    pub reason: String,
    /// diagnostic holds a few allow-listed facts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub diagnostic: Option<String>,
    /// at is when. RFC 3339.
    #[schemars(length(max = 64))]
    pub at: String,
}

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunResult {
    /// podUID is the pod whose worker reported this.
    #[serde(rename = "podUID")]
    #[schemars(length(min = 1, max = 64))]
    pub pod_uid: String,
    /// text is the agent's last message, when it has at most 16 KiB. A longer one is in ConfigMaps, see ref.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16384))]
    pub text: Option<String>,
    /// ref is set in the place of text: the name that the ConfigMaps with the whole text share. They are REF-001, REF-002
    /// and so on, each with a part of the text under the key text.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub ref_: Option<String>,
    /// chunks is the number of these ConfigMaps.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub chunks: Option<i32>,
    /// otherBlocks counts content that is not text.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1000000))]
    pub other_blocks: i64,
    /// blocks is where the content that is not text is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<OtherContent>,
    /// sha256 of the text in lower-case hex.
    #[schemars(length(max = 64))]
    pub sha256: String,
    /// size of the text in bytes.
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub size: i64,
}

/// Content of a result or of a turn's output that is not text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct OtherContent {
    /// ref is the name that its ConfigMaps share: REF-001, REF-002 and so on. Together, the values of their key blocks are
    /// one JSON array of ACP content blocks, as the agent sent them.
    #[serde(rename = "ref")]
    #[schemars(length(min = 1, max = 253))]
    pub ref_: String,
    /// chunks is the number of these ConfigMaps.
    #[schemars(range(min = 1, max = 1000))]
    pub chunks: i32,
    /// sha256 of the array in lower-case hex.
    #[schemars(length(max = 64))]
    pub sha256: String,
    /// size of the array in bytes.
    #[schemars(range(min = 1, max = 9007199254740991_i64))]
    pub size: i64,
}

/// Where a transcript came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TranscriptSource {
    /// The worker's own archive.
    #[default]
    Worker,
    /// The tail of the pod's log, taken by the controller because no worker could.
    Log,
}

impl TranscriptSource {
    /// The API's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Worker => "Worker",
            Self::Log => "Log",
        }
    }

    /// The source of that name.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Worker, Self::Log].into_iter().find(|source| source.as_str() == word)
    }
}

/// The archived tail of a transcript.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Transcript {
    /// podUID is the pod the transcript is of.
    #[serde(rename = "podUID")]
    #[schemars(length(min = 1, max = 64))]
    pub pod_uid: String,
    /// ref is the ConfigMap that holds the tail, compressed with zstd, under the key transcript.zst.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub ref_: Option<String>,
    /// sha256 of the uncompressed tail in lower-case hex.
    #[schemars(length(max = 64))]
    pub sha256: String,
    /// size of the uncompressed tail in bytes.
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub size: i64,
    /// droppedBytes came before the tail.
    #[serde(default)]
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub dropped_bytes: i64,
    /// source is Worker or Log.
    #[serde(default)]
    pub source: TranscriptSource,
}
