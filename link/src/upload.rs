//! Uploads: what is too large for a message goes by HTTP PUT, with its digest beforehand.
//!
//! An upload passes the same fence as a hello: the token's pod must be the one that the run's status names for this
//! attempt. It is answered once it is stored, so it can be repeated: the same content is stored once. The answer is 204,
//! or a status that [`refused_for_good`] sorts; the body says why, for a person.

use crate::{RESULT_PATH, TURN_PATH};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Longest time of one upload, from connecting to the answer: the gateway waits up to 10 s for room in its memory and up
/// to 30 s for the content, and stores it in some tens of calls.
pub const UPLOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// What an upload holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ResultPart {
    /// The text.
    Text,
    /// The content blocks that are not text, as a JSON array of what the agent sent.
    Blocks,
}

impl ResultPart {
    /// The part's name in the path.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Blocks => "blocks",
        }
    }
}

/// The query of an upload: who uploads, and what. The content is the request's body, UTF-8 text of exactly this size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResultUpload {
    /// UID of the run, as in the hello.
    #[serde(rename = "runUID")]
    pub run_uid: String,
    /// Attempt, as in the hello.
    pub attempt: i32,
    /// The turn whose output it is, the newest that was recorded; absent for the result of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<i64>,
    /// Which part.
    pub part: ResultPart,
    /// Lower-case hex SHA-256 of the content.
    pub sha256: String,
    /// Size of the content in bytes.
    pub size: i64,
}

impl ResultUpload {
    /// Path and query of the request. No value needs escaping: a UID, numbers, hex.
    pub fn path(&self) -> String {
        let Self { run_uid, attempt, turn, part, sha256, size } = self;
        let part = part.as_str();
        let query = format!("runUID={run_uid}&attempt={attempt}&part={part}&sha256={sha256}&size={size}");
        match turn {
            None => format!("{RESULT_PATH}?{query}"),
            Some(turn) => format!("{TURN_PATH}?{query}&turn={turn}"),
        }
    }
}

/// Whether an upload that was answered with this HTTP status will never be taken: 409 (not the worker of a live run),
/// 413 and 422 (a broken bound), 507 (it cannot be stored). Anything else may pass, also 404: an older gateway answers
/// it, and during an update the next connection may meet a newer one.
pub fn refused_for_good(status: u16) -> bool {
    [409, 413, 422, 507].contains(&status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_says_who_and_what() {
        let upload = ResultUpload {
            run_uid: "7d3c-1".into(),
            attempt: 2,
            turn: None,
            part: ResultPart::Blocks,
            sha256: "ab".into(),
            size: 9,
        };
        assert_eq!(upload.path(), "/v1/result?runUID=7d3c-1&attempt=2&part=blocks&sha256=ab&size=9");
        assert_eq!(serde_json::to_value(&upload).unwrap()["part"], upload.part.as_str());
        let of_a_turn = ResultUpload { turn: Some(3), ..upload };
        assert_eq!(of_a_turn.path(), "/v1/turn?runUID=7d3c-1&attempt=2&part=blocks&sha256=ab&size=9&turn=3");
    }

    #[test]
    fn what_may_pass_is_tried_again() {
        for (status, for_good) in [(409, true), (422, true), (507, true), (401, false), (404, false), (503, false)] {
            assert_eq!(refused_for_good(status), for_good, "{status}");
        }
    }
}
