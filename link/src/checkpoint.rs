//! Checkpoints: an agent's session files, as a zstd-compressed tar archive. They go by HTTP PUT after a turn, before it counts
//! as done (contract c41), and come back by GET before the next activation's agent starts (c40).
//!
//! Both pass the same fence as a hello: the token's pod must be the one that the run's status names for this attempt. A
//! checkpoint that is not taken is answered as an upload of a result is ([`crate::refused_for_good`]).

use crate::CHECKPOINT_PATH;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Longest time without a byte of a checkpoint in either direction. There is no limit of the whole: a gigabyte to a slow
/// store takes minutes, and a store that stands still is noticed all the same.
pub const CHECKPOINT_STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Largest checkpoint in bytes, of an archive that has at most so many before it is compressed (the provider's
/// `sessionState.maxBytes`): what cannot be compressed becomes a little larger, by zstd's own bound.
pub fn most_compressed(max_state_bytes: i64) -> i64 {
    max_state_bytes.saturating_add(max_state_bytes / 256).saturating_add(MOST_OF_A_FRAME)
}

/// What zstd adds to any content, at most: the bound for small ones, head and checksum.
const MOST_OF_A_FRAME: i64 = 128;

/// The query of an upload. The content is the request's body, of exactly this size. A repeat stores the same thing once;
/// it is answered 200 with a [`StoredCheckpoint`] as JSON once it is stored for good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointUpload {
    /// UID of the run, as in the hello.
    #[serde(rename = "runUID")]
    pub run_uid: String,
    /// Attempt, as in the hello.
    pub attempt: i32,
    /// Turn after which it was taken, within the attempt.
    pub turn: i64,
    /// Lower-case hex SHA-256 of the content.
    pub sha256: String,
    /// Size of the content in bytes.
    pub size: i64,
}

impl CheckpointUpload {
    /// Path and query of the request. No value needs escaping: a UID, numbers, hex.
    pub fn path(&self) -> String {
        let Self { run_uid, attempt, turn, sha256, size } = self;
        format!("{CHECKPOINT_PATH}?runUID={run_uid}&attempt={attempt}&turn={turn}&sha256={sha256}&size={size}")
    }
}

/// The answer to a stored checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredCheckpoint {
    /// Key under which it lies in the session store.
    pub key: String,
}

/// The query of a download: which checkpoint it is, the run itself says (`spec.activation.session`). It is answered 200
/// with the content, 410 when the store does not have it or has something else under its key, and otherwise as an upload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointDownload {
    /// UID of the run, as in the hello.
    #[serde(rename = "runUID")]
    pub run_uid: String,
    /// Attempt, as in the hello.
    pub attempt: i32,
}

impl CheckpointDownload {
    /// Path and query of the request.
    pub fn path(&self) -> String {
        let Self { run_uid, attempt } = self;
        format!("{CHECKPOINT_PATH}?runUID={run_uid}&attempt={attempt}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r10_what_cannot_be_compressed_has_room() {
        assert_eq!(most_compressed(256 << 20), (256 << 20) + (1 << 20) + 128);
        assert_eq!(most_compressed(i64::MAX), i64::MAX);
    }

    #[test]
    fn the_paths_say_who_and_what() {
        let upload = CheckpointUpload { run_uid: "7d3c-1".into(), attempt: 2, turn: 3, sha256: "ab".into(), size: 9 };
        assert_eq!(upload.path(), "/v1/checkpoint?runUID=7d3c-1&attempt=2&turn=3&sha256=ab&size=9");
        let download = CheckpointDownload { run_uid: "7d3c-1".into(), attempt: 2 };
        assert_eq!(download.path(), "/v1/checkpoint?runUID=7d3c-1&attempt=2");
    }
}
