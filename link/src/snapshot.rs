//! The worker's cumulative snapshot. Its JSON is what `status.report` shows, so names here are API.

use crate::{ContentDigest, MAX_PREVIEW_BYTES};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Everything a worker knows about its attempt. A later snapshot replaces an earlier one completely.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Snapshot {
    /// The agent, as it described itself at `initialize`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<Agent>,
    /// The ACP session, once it exists (contract c8, c41).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
    /// Digest of a prompt that came from a mounted file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<PromptDigest>,
    /// Turns, oldest first, at most [`MAX_TURNS`](crate::MAX_TURNS). A turn is listed before its prompt is sent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<Turn>,
    /// How many turns there were in all, also those no longer listed.
    pub turn_count: i64,
    /// What became of placed messages, for those the inbox still lists; in the order of their placement.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<MessageOutcome>,
    /// The newest stored copy of the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// True while no turn is running and the worker waits for work.
    pub idle: bool,
    /// The stage the worker is in, for messages about deadlines: `Connecting`, `Restoring`, `Spawning`, `Initialize`,
    /// `Authenticate`, `SessionNew`, `SessionLoad`, `SessionResume`, `SessionModel`, `SessionMode`, `Prompt`, `Checkpoint`,
    /// `Idle`, `StoringResult`, `Stopping`, `Stopped`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stage: String,
    /// The agent's latest activity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activity: Option<Activity>,
    /// Token usage, validated: negative, non-finite or falling numbers never get here (pitfall T2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Permission requests answered so far (contract c19).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permissions: Option<Permissions>,
    /// A result that is being stored beside the link, as long as it is: the turn is over, the end not reported yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storing: Option<Storing>,
    /// Set once, when everything is over.
    #[serde(rename = "final", skip_serializing_if = "Option::is_none")]
    pub final_: Option<Final>,
    /// Fields of a newer worker, kept as they are.
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

/// An agent's description of itself. Strings are cut to 256 bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Agent {
    /// Name, empty when the agent gave none.
    pub name: String,
    /// Version, empty when the agent gave none.
    pub version: String,
    /// ACP protocol version that was negotiated.
    pub protocol_version: i32,
    /// Capabilities from the handshake, as the set of names providers show (`LoadSession`, `ImagePrompt`, ...).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
}

/// An ACP session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// The agent's session id, at most 256 bytes.
    pub id: String,
    /// How it came to be.
    pub how: SessionOrigin,
}

/// How a session came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionOrigin {
    /// `session/new`.
    New,
    /// `session/load`, with replay.
    Loaded,
    /// `session/resume`, without replay.
    Resumed,
}

/// Digest of the prompt's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PromptDigest {
    /// Lower-case hex SHA-256.
    pub sha256: String,
    /// Size in bytes.
    pub size: i64,
}

/// One ACP `session/prompt` and everything until its response.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Turn {
    /// Number of the turn in this attempt, from 1.
    pub turn: i64,
    /// Inbox message that started it; absent for a run's own prompt.
    #[serde(default, rename = "messageID", skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// RFC 3339 time at which the turn was recorded, before its prompt was sent.
    pub started_at: String,
    /// RFC 3339 time of the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
    /// `Completed`, `Aborted`, `Error`, `MaxTokens`, `Refusal`; an open set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// The first [`MAX_PREVIEW_BYTES`](crate::MAX_PREVIEW_BYTES) of the turn's output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<String>,
    /// The whole output, when something of it was uploaded: the preview does not hold it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<TurnOutput>,
}

/// The output of a turn that its preview does not hold. It was uploaded under the turn's number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnOutput {
    /// Lower-case hex SHA-256 of the text.
    pub sha256: String,
    /// Size of the text in bytes. One of more than [`MAX_PREVIEW_BYTES`](crate::MAX_PREVIEW_BYTES) was uploaded.
    pub size: i64,
    /// Content blocks of other kinds beside the text.
    #[serde(default)]
    pub other_blocks: i64,
    /// The blocks, when there are any: they were uploaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<ContentDigest>,
}

impl TurnOutput {
    /// Whether the text was uploaded.
    pub fn has_text(&self) -> bool {
        usize::try_from(self.size).is_ok_and(|size| size > MAX_PREVIEW_BYTES)
    }
}

/// What became of a placed message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageOutcome {
    /// Its id.
    pub id: String,
    /// The placement this speaks of.
    pub placement: i64,
    /// `Parked`, `Started`, `Claimed`, `Steered`, `Applied`, `Rejected`; an open set.
    pub outcome: String,
    /// Why it was rejected (contract c46).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The turn that took it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<i64>,
    /// RFC 3339 time.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub at: String,
}

/// A stored copy of the agent's session files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// Key in the session store, as the gateway answered it.
    pub key: String,
    /// Lower-case hex SHA-256.
    pub digest: String,
    /// Size in bytes.
    pub size: i64,
    /// Turn after which it was taken.
    pub turn: i64,
}

/// What the agent was last seen doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Activity {
    /// RFC 3339 time.
    pub at: String,
    /// A few words, at most 256 bytes, without control characters.
    pub summary: String,
}

/// Token usage of the run so far. Absent numbers were not told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    /// Tokens sent to the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<i64>,
    /// Tokens the model wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<i64>,
    /// Tokens served from a prompt cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_input_tokens: Option<i64>,
    /// All tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_tokens: Option<i64>,
    /// Cost as the agent told it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<UsageCost>,
    /// Tokens in the context now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_used: Option<i64>,
    /// Size of the context window in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_size: Option<i64>,
}

/// An amount of money.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageCost {
    /// Decimal number as a string, never negative.
    pub amount: String,
    /// ISO 4217 code.
    pub currency: String,
}

/// Counts of answered permission requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Permissions {
    /// Answered with an allowing option.
    pub allowed: i64,
    /// Answered with a rejecting option or `cancelled`.
    pub rejected: i64,
}

/// [`Storing::what`] of a child's session.
pub const STORING_SESSION: &str = "Session";

/// What is on its way into storage: a result, or a child's session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Storing {
    /// [`STORING_SESSION`]; absent for a result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
    /// Size in bytes; 0 when it is not known.
    pub size: i64,
    /// What was in the way at the last try, at most [`MAX_TROUBLE_BYTES`](crate::MAX_TROUBLE_BYTES) without control
    /// characters; absent when nothing was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// The end of an attempt, as the worker saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Final {
    /// `Completed`, `Aborted`, `Error`, `MaxTokens`, `Refusal`.
    pub stop_reason: String,
    /// Reason of the failure taxonomy (design section 10), for example `Completed` or `AgentCrashed`.
    pub reason: String,
    /// Allow-listed facts, at most [`MAX_DIAGNOSTIC_BYTES`](crate::MAX_DIAGNOSTIC_BYTES) (contract c30).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diagnostic: Option<String>,
    /// RFC 3339 time.
    pub at: String,
}
