//! The link: the protocol between the worker in a pod and the operator's gateway.
//!
//! The worker connects out to `wss://<service>.<namespace>.svc:8443/v1/link` and authenticates with its projected
//! service-account token. Messages are JSON text frames of at most [`MAX_MESSAGE_BYTES`]. A worker reports its whole
//! state as a cumulative [`Snapshot`] under a rising sequence number, so a repeated or skipped report loses nothing;
//! the gateway stores it in the run's status and only then acknowledges it.
//!
//! What does not fit a message goes beside it: a worker whose assignment says so uploads a large result by HTTP PUT
//! ([`ResultUpload`]) *before* it reports its end, and the report then carries size and digest alone. So does one whose
//! gateway says so at the welcome with the output of each turn of an activation that its preview does not hold.
//!
//! This crate holds the types, the framing bounds and the version rules, and the bounded tail of a transcript that both
//! ends archive alike. Nothing else.

mod checkpoint;
mod message;
mod probe;
mod snapshot;
mod tail;
mod upload;
mod version;
mod worker_config;

pub use checkpoint::{
    CHECKPOINT_STALL_TIMEOUT, CheckpointDownload, CheckpointUpload, StoredCheckpoint, most_compressed,
};
pub use message::{
    AcpTransport, Assignment, ContentBlock, ContentDigest, Continuation, ContinuedSession, Deadlines, Decode,
    DecodeError, Delivery, GatewayMessage, InboxMessage, KnownKinds, PermissionMode, Prompt, RefusalReason,
    ResultPayload, StopGraces, TranscriptPayload, WorkerMessage, decode, encode,
};
pub use probe::{Finding, MAX_FINDING_BYTES, ProbeConfig};
pub use snapshot::{
    Activity, Agent, Checkpoint, Final, MessageOutcome, Permissions, PromptDigest, STORING_SESSION, Session,
    SessionOrigin, Snapshot, Storing, Turn, TurnOutput, Usage, UsageCost,
};
pub use tail::Tail;
pub use upload::{ResultPart, ResultUpload, UPLOAD_TIMEOUT, refused_for_good};
pub use version::{SUPPORTED_VERSIONS, VERSION, choose_version};
pub use worker_config::WorkerConfig;

use std::time::Duration;

/// Path of the WebSocket endpoint on the gateway.
pub const LINK_PATH: &str = "/v1/link";
/// Path of the upload of a result on the gateway; its query is a [`ResultUpload`].
pub const RESULT_PATH: &str = "/v1/result";
/// Path of the upload of a turn's output on the gateway; its query is a [`ResultUpload`] with the turn. A path of its own: an
/// older gateway would take the output for the result of the run, and answers this one as not found.
pub const TURN_PATH: &str = "/v1/turn";
/// Path of checkpoints on the gateway; a PUT's query is a [`CheckpointUpload`], a GET's a [`CheckpointDownload`].
pub const CHECKPOINT_PATH: &str = "/v1/checkpoint";
/// Port of the gateway's TLS listener and of its Service.
pub const LINK_PORT: u16 = 8443;
/// Audience a worker's projected token must carry; a token for the API server is refused.
pub const AUDIENCE: &str = "subagents.dev";
/// Largest link message either side accepts, in bytes. Above every bounded snapshot (64 KiB), an inline result
/// (16 KiB) and a transcript tail (32 KiB compressed), below anything that could hurt a gateway serving thousands.
pub const MAX_MESSAGE_BYTES: usize = 1024 * 1024;
/// Largest snapshot the gateway stores, in bytes of JSON: it becomes `status.report`.
pub const MAX_SNAPSHOT_BYTES: usize = 64 * 1024;
/// Largest result text that is kept in `status.result.text`, in bytes.
pub const MAX_INLINE_RESULT_BYTES: usize = 16 * 1024;
/// How much of its output a turn's entry shows, in bytes.
pub const MAX_PREVIEW_BYTES: usize = 1024;
/// Room in the report for what the gateway adds to the entry of a turn whose output is stored: name and number of the ConfigMaps
/// of its text and of its other content.
pub const STORED_OUTPUT_BYTES: usize = 256;
/// Largest result at all, in bytes of text and other content together, whatever the operator's settings allow: the worker
/// holds two messages of this size in the agent's container, and a run writes that much into etcd. It holds for the output of
/// a turn, too.
pub const MAX_RESULT_BYTES: usize = 8 * 1024 * 1024;
/// Largest compressed transcript tail, in bytes: it is stored in one ConfigMap.
pub const MAX_TRANSCRIPT_BYTES: usize = 32 * 1024;
/// How often each side pings.
pub const PING_INTERVAL: Duration = Duration::from_secs(10);
/// Silence after which a connection counts as dead: three lost pings.
pub const DEAD_AFTER: Duration = Duration::from_secs(30);
/// First wait before a reconnect; it doubles up to [`RECONNECT_MAX`], with jitter.
pub const RECONNECT_MIN: Duration = Duration::from_millis(200);
/// Longest wait before a reconnect.
pub const RECONNECT_MAX: Duration = Duration::from_secs(10);
/// How long a worker waits for the acknowledgement of its final report before it gives up and exits.
pub const FINAL_ACK_TIMEOUT: Duration = Duration::from_secs(3600);
/// Time between two reports that only carry activity or usage (design section 7); shorter under an idle deadline, which
/// an agent at work must not meet.
pub const ACTIVITY_INTERVAL: Duration = Duration::from_secs(60);
/// Most turns a snapshot keeps; older ones fall out.
pub const MAX_TURNS: usize = 32;
/// Longest diagnostic, in bytes, cut on a character boundary with a mark (contract c30).
pub const MAX_DIAGNOSTIC_BYTES: usize = 4096;
/// Largest prompt that comes from a ConfigMap, in bytes: what one can hold.
pub const MAX_PROMPT_BYTES: usize = 1024 * 1024;
/// Longest word on what keeps a result from being stored, in bytes: a message names it with what to do.
pub const MAX_TROUBLE_BYTES: usize = 768;
/// Folder in the pod that holds what the operator puts there: the worker's binary and the link's files.
pub const POD_DIR: &str = "/subagents";
/// Path of the worker binary in the pod.
pub const WORKER_BINARY: &str = "/subagents/bin/subagent-worker";
/// Folder of the projected volume with [`CONFIG_FILE`], [`ROOTS_FILE`] and [`TOKEN_FILE`].
pub const LINK_DIR: &str = "/subagents/link";
/// The worker's configuration, a [`WorkerConfig`] as JSON.
pub const CONFIG_FILE: &str = "config.json";
/// PEM bundle of the gateway's roots; it is read again at every connection, so a rotated root reaches live pods.
pub const ROOTS_FILE: &str = "roots.pem";
/// The projected service-account token; it is read again at every connection.
pub const TOKEN_FILE: &str = "token";
/// File of a prompt that comes from a ConfigMap, under [`LINK_DIR`]'s sibling `/subagents/prompt`.
pub const PROMPT_FILE: &str = "/subagents/prompt/prompt";
/// A writable folder that becomes HOME when the container has none.
pub const HOME_DIR: &str = "/subagents/home";
/// Default working directory of the agent and its session.
pub const DEFAULT_CWD: &str = "/workspace";
