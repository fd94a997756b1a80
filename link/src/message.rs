//! The messages of the link and how they become frames.

use crate::{MAX_MESSAGE_BYTES, Snapshot};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Worker to gateway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum WorkerMessage {
    /// First message of every connection.
    Hello {
        /// Link versions the worker speaks.
        versions: Vec<u32>,
        /// UID of the run it was created for.
        #[serde(rename = "runUID")]
        run_uid: String,
        /// Attempt it was created for.
        attempt: i32,
        /// Highest sequence number it has used; 0 for a worker that has no memory. A stored report with a higher one
        /// proves that a worker's memory was lost.
        seq: i64,
    },
    /// The worker's whole state. Sent again after a reconnect until it is acknowledged.
    Report {
        /// Rising number of this snapshot within the attempt, from 1.
        seq: i64,
        /// The state.
        snapshot: Box<Snapshot>,
        /// The result, with the final report.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        result: Option<ResultPayload>,
        /// The transcript's tail, with the final report.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        transcript: Option<TranscriptPayload>,
    },
}

/// Gateway to worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum GatewayMessage {
    /// Answer to a hello: the version both use.
    Welcome {
        /// The chosen version.
        version: u32,
        /// Whether this gateway takes the outputs of turns. Said at each connection: a worker may outlive the gateway that
        /// gave it its assignment.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        turn_outputs: bool,
    },
    /// What to do, read from the live run. Sent to a worker without memory only.
    Assignment(Box<Assignment>),
    /// Every report up to this one is stored.
    Ack {
        /// Sequence number of the stored report.
        seq: i64,
    },
    /// Stop the turn and settle as aborted (contract c48). Sent again at every connection while it holds.
    Cancel {
        /// Why, in the words of the failure taxonomy: `Cancelled`, `DeadlineExceeded`, ... For the transcript; empty from
        /// an older gateway.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reason: String,
    },
    /// A message of the run's inbox. Sent again at every connection until the run's spec lists it no more; the worker drops
    /// what it knows by id and placement.
    Deliver(Box<InboxMessage>),
    /// What the inbox lists now. The outcome of a message that it lists no more is stored elsewhere and need not be kept.
    Inbox {
        /// Placements that are listed.
        placements: Vec<i64>,
    },
    /// No further message comes: finish what is there, report, exit.
    Close,
    /// The gateway does not serve this worker.
    Refused {
        /// Why.
        reason: RefusalReason,
        /// True when the same hello may succeed later: what it waits for may not be visible yet.
        retry: bool,
        /// For a person reading the worker's log.
        #[serde(default)]
        message: String,
    },
}

/// Why a gateway refuses a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalReason {
    /// No common link version.
    Version,
    /// The token is missing, expired, for another audience or not bound to a pod.
    Unauthenticated,
    /// The token's pod is not the pod of the run's current attempt.
    NotCurrent,
    /// The run does not name this pod yet.
    NotYet,
    /// The stored report is ahead of the worker: its container restarted and lost its memory.
    WorkerLost,
    /// The run is terminal; nothing more is accepted.
    Terminal,
    /// The frame or snapshot breaks a bound or a rule of the API.
    Invalid,
    /// Storing failed for a reason that may pass.
    Unavailable,
    /// A reason of a newer gateway.
    #[serde(other)]
    Unknown,
}

/// What a worker is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Assignment {
    /// The run's prompt; absent for an activation of a continuable child, which gets its prompts as messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Prompt>,
    /// Present for an activation of a continuable child: what it continues and keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation: Option<Continuation>,
    /// Persona for every session request (contract c17), none when absent; an empty one is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persona: Option<String>,
    /// Model to choose in the session, the agent's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// How to speak to the agent.
    pub transport: AcpTransport,
    /// Graces of the stop ladder.
    pub stop: StopGraces,
    /// Deadlines, counted by the controller; the worker only shows them in the transcript.
    #[serde(default)]
    pub deadlines: Deadlines,
    /// Largest result in bytes; above it the run fails with `ResultTooLarge`, never a cut text (pitfall T3).
    pub max_result_bytes: i64,
    /// Whether the gateway takes uploads. Without them a result must fit the report, and content that is not text is
    /// counted only.
    #[serde(default)]
    pub uploads: bool,
}

/// What an activation of a continuable child continues from, and what must survive it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Continuation {
    /// Number of the activation.
    pub epoch: i64,
    /// The session to continue; absent for a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<ContinuedSession>,
    /// Absolute folders that hold the agent's sessions; a checkpoint is a copy of them.
    pub state_paths: Vec<String>,
    /// Largest checkpoint in bytes, uncompressed.
    pub max_state_bytes: i64,
}

/// A session that is continued in a new pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContinuedSession {
    /// The agent's session id.
    pub id: String,
    /// The checkpoint to restore before the agent starts.
    pub checkpoint: ContentDigest,
    /// Turns the session holds: a load that replays nothing although there are some is refused (pitfall R8).
    #[serde(default)]
    pub completed_turns: i64,
}

/// A message of an inbox, as it is to be delivered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InboxMessage {
    /// The sender's id.
    pub id: String,
    /// Number of the placing, from 1; the order of delivery.
    pub placement: i64,
    /// How it asks to be delivered.
    pub delivery: Delivery,
    /// What the agent is told; empty only for an interruption that says no more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub content: Vec<ContentBlock>,
}

/// How a message asks to be delivered (design section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Delivery {
    /// A turn of its own, in order.
    #[default]
    Queue,
    /// Into the running turn, or not at all.
    Steer,
    /// Ends the running turn; a turn of its own follows if it has content.
    Interrupt,
}

/// A prompt, inline or in a mounted file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "source", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Prompt {
    /// The blocks themselves.
    Inline {
        /// Content blocks in order.
        content: Vec<ContentBlock>,
    },
    /// A UTF-8 text file in the pod.
    File {
        /// Absolute path.
        path: String,
    },
}

/// A content block of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ContentBlock {
    /// Plain text.
    Text {
        /// The text.
        text: String,
    },
    /// A link to something the agent may read.
    ResourceLink {
        /// URI.
        uri: String,
        /// Short name.
        name: String,
    },
    /// An image.
    Image {
        /// Base64 data.
        data: String,
        /// MIME type.
        mime_type: String,
    },
}

/// Settings of the ACP transport (design section 4, provider).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AcpTransport {
    /// How permission requests are answered.
    pub permission: PermissionMode,
    /// Method for `authenticate`, none when empty.
    #[serde(default)]
    pub auth_method: String,
    /// Mode set after every new, loaded or resumed session, none when empty.
    #[serde(default)]
    pub session_mode: String,
}

/// Permission policy (contract c55).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PermissionMode {
    /// Reject by kind, `cancelled` when no rejecting option is offered.
    #[default]
    Reject,
    /// Allow once before allow always, `cancelled` when no allowing option is offered.
    Allow,
}

/// Graces of the stop ladder in seconds (contract c48).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StopGraces {
    /// From `session/cancel` to closing stdin.
    pub cancel_grace_seconds: i64,
    /// From closing stdin to SIGTERM.
    pub eof_grace_seconds: i64,
    /// From SIGTERM to SIGKILL.
    pub term_grace_seconds: i64,
}

impl Default for StopGraces {
    /// The API's defaults: 10, 6 and 3 seconds.
    fn default() -> Self {
        Self { cancel_grace_seconds: 10, eof_grace_seconds: 6, term_grace_seconds: 3 }
    }
}

/// Effective deadlines in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Deadlines {
    /// Longest active time from `Started`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_seconds: Option<i64>,
    /// Longest time without ACP activity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_seconds: Option<i64>,
}

/// The output of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResultPayload {
    /// The agent's last non-empty message (contract c28), at most
    /// [`MAX_INLINE_RESULT_BYTES`](crate::MAX_INLINE_RESULT_BYTES). Absent when it was uploaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Content blocks of other kinds beside the text.
    #[serde(default)]
    pub other_blocks: i64,
    /// The blocks themselves, when they were uploaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<ContentDigest>,
    /// Lower-case hex SHA-256 of the whole text.
    pub sha256: String,
    /// Size of the whole text in bytes.
    pub size: i64,
    /// The turn whose output it is, when what was uploaded was uploaded as that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<i64>,
}

/// What was uploaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContentDigest {
    /// Lower-case hex SHA-256.
    pub sha256: String,
    /// Size in bytes.
    pub size: i64,
}

/// The tail of a transcript.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TranscriptPayload {
    /// Base64 of the zstd-compressed tail, at most [`MAX_TRANSCRIPT_BYTES`](crate::MAX_TRANSCRIPT_BYTES) before base64.
    pub data: String,
    /// Lower-case hex SHA-256 of the uncompressed tail.
    pub sha256: String,
    /// Size of the uncompressed tail in bytes.
    pub size: i64,
    /// Bytes of the transcript before the tail.
    pub dropped_bytes: i64,
}

/// A received frame.
#[derive(Clone, Debug, PartialEq)]
pub enum Decode<M> {
    /// A message of this version.
    Message(M),
    /// A kind this version does not know; it is ignored.
    UnknownKind(String),
}

/// A frame that is not a link message.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Over [`MAX_MESSAGE_BYTES`].
    #[error("link message of {0} bytes, the limit is {MAX_MESSAGE_BYTES}")]
    TooLarge(usize),
    /// Not JSON, or a known kind with wrong fields.
    #[error("malformed link message: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// Turns a message into a text frame.
///
/// # Errors
/// [`DecodeError::TooLarge`] when the frame would be over the limit: the caller must bound what it sends.
pub fn encode<M: Serialize>(message: &M) -> Result<String, DecodeError> {
    let text = serde_json::to_string(message)?;
    if text.len() > MAX_MESSAGE_BYTES {
        return Err(DecodeError::TooLarge(text.len()));
    }
    Ok(text)
}

/// Reads a text frame. An unknown `kind` is not an error: a newer peer may say more (design section 7).
///
/// # Errors
/// [`DecodeError`] when the frame is too large or not a message.
pub fn decode<M: DeserializeOwned + KnownKinds>(text: &str) -> Result<Decode<M>, DecodeError> {
    if text.len() > MAX_MESSAGE_BYTES {
        return Err(DecodeError::TooLarge(text.len()));
    }
    #[derive(Deserialize)]
    struct Kind {
        kind: String,
    }
    let Kind { kind } = serde_json::from_str(text)?;
    if !M::KINDS.contains(&kind.as_str()) {
        return Ok(Decode::UnknownKind(kind));
    }
    Ok(Decode::Message(serde_json::from_str(text)?))
}

/// The kinds a message type knows.
pub trait KnownKinds {
    /// Values of `kind`.
    const KINDS: &'static [&'static str];
}

impl KnownKinds for WorkerMessage {
    const KINDS: &'static [&'static str] = &["hello", "report"];
}

impl KnownKinds for GatewayMessage {
    const KINDS: &'static [&'static str] =
        &["welcome", "assignment", "ack", "cancel", "deliver", "inbox", "close", "refused"];
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn messages_survive_the_frame() {
        let hello = WorkerMessage::Hello { versions: vec![1], run_uid: "u".into(), attempt: 2, seq: 0 };
        let text = encode(&hello).unwrap();
        assert_eq!(text, r#"{"kind":"hello","versions":[1],"runUID":"u","attempt":2,"seq":0}"#);
        assert_eq!(decode::<WorkerMessage>(&text).unwrap(), Decode::Message(hello));
        for message in [
            GatewayMessage::Welcome { version: 1, turn_outputs: true },
            GatewayMessage::Ack { seq: 3 },
            GatewayMessage::Cancel { reason: "DeadlineExceeded".into() },
            GatewayMessage::Close,
            GatewayMessage::Inbox { placements: vec![2, 3] },
            GatewayMessage::Deliver(Box::new(InboxMessage {
                id: "m1".into(),
                placement: 2,
                delivery: Delivery::Interrupt,
                content: vec![],
            })),
            GatewayMessage::Refused { reason: RefusalReason::NotYet, retry: true, message: String::new() },
            GatewayMessage::Assignment(Box::new(Assignment {
                prompt: Some(Prompt::Inline { content: vec![ContentBlock::Text { text: "hi".into() }] }),
                continuation: None,
                persona: None,
                model: None,
                transport: AcpTransport::default(),
                stop: StopGraces::default(),
                deadlines: Deadlines::default(),
                max_result_bytes: 1,
                uploads: true,
            })),
        ] {
            let text = encode(&message).unwrap();
            assert_eq!(decode::<GatewayMessage>(&text).unwrap(), Decode::Message(message), "{text}");
        }
    }

    #[test]
    fn what_an_older_worker_or_gateway_says_is_understood() {
        let told = r#"{"text":"","otherBlocks":2,"sha256":"ab","size":0}"#;
        let result: ResultPayload = serde_json::from_str(told).unwrap();
        assert_eq!((result.text.as_deref(), result.blocks.as_ref()), (Some(""), None));
        assert_eq!(serde_json::to_string(&result).unwrap(), told, "and an older gateway understands this worker");
        assert_eq!(result.turn, None);
        let welcome = GatewayMessage::Welcome { version: 1, turn_outputs: false };
        assert_eq!(decode(r#"{"kind":"welcome","version":1}"#).unwrap(), Decode::Message(welcome));
        let cancel = GatewayMessage::Cancel { reason: String::new() };
        assert_eq!(decode(r#"{"kind":"cancel"}"#).unwrap(), Decode::Message(cancel.clone()));
        assert_eq!(encode(&cancel).unwrap(), r#"{"kind":"cancel"}"#);
        let mut assignment = json!({"prompt": {"source": "file", "path": "/p"}, "transport": {"permission": "Reject"}});
        assignment["stop"] = serde_json::to_value(StopGraces::default()).unwrap();
        assignment["maxResultBytes"] = 16384.into();
        assert!(!serde_json::from_value::<Assignment>(assignment).unwrap().uploads);
    }

    #[test]
    fn an_unknown_kind_is_not_an_error() {
        let got = decode::<GatewayMessage>(r#"{"kind":"dance","x":1}"#).unwrap();
        assert_eq!(got, Decode::UnknownKind("dance".into()));
    }

    #[test]
    fn bounds_hold_both_ways() {
        let big = "x".repeat(MAX_MESSAGE_BYTES);
        assert!(matches!(decode::<WorkerMessage>(&big), Err(DecodeError::Malformed(_))));
        assert!(matches!(decode::<WorkerMessage>(&(big + "x")), Err(DecodeError::TooLarge(_))));
    }

    #[test]
    fn unknown_snapshot_fields_are_kept() {
        let text = r#"{"kind":"report","seq":1,"snapshot":{"turnCount":0,"idle":false,"newer":{"a":1}}}"#;
        let Decode::Message(WorkerMessage::Report { snapshot, .. }) = decode(text).unwrap() else { panic!("a report") };
        assert_eq!(snapshot.other["newer"]["a"], 1);
    }
}
