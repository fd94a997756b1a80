//! What a worker learns from its pod before it has a connection.

use serde::{Deserialize, Serialize};

/// The content of the worker's configuration file. It holds nothing secret and nothing of the prompt: it says where to
/// connect and who the worker is. What to do arrives as an [`Assignment`](crate::Assignment), read from the live run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerConfig {
    /// URL of the gateway, `wss://service.namespace.svc:8443/v1/link`.
    pub gateway: String,
    /// Namespace of the run.
    pub namespace: String,
    /// Name of the run, for the transcript and log lines.
    pub run: String,
    /// UID of the run; the gateway compares it with the live object.
    pub run_uid: String,
    /// Attempt this pod was created for, from 1.
    pub attempt: i32,
    /// Absolute working directory of the agent's process and of its session (contract c18).
    pub cwd: String,
    /// The stop ladder's graces, needed also before an assignment arrived.
    pub stop: crate::StopGraces,
}
