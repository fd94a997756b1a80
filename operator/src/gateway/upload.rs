//! Uploads: a result that fits no message, or the output of a turn, stored before the report that names it (design section 7).
//!
//! The same token and the same fence as for a hello. Stateless: another replica may get the report, and proves by live
//! reads that everything is there.

use super::{
    Gateway, auth,
    fence::{Refusal, judge_turn, reason_name},
    snapshot,
    store::Place,
};
use crate::archive::{
    Unstored,
    result::{self, Part},
};
use axum::{
    body::{Body, BodyDataStream},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures::StreamExt;
use sha2::{Digest, Sha256};
use std::{sync::Arc, time::Duration};
use subagent_crds::{SubagentRun, names};
use subagent_link::{RefusalReason, ResultUpload};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Memory for uploads that are under way, in KiB: eight results of the usual limit at once. An upload takes about three
/// times its size while it is stored, and the operator has 512 MiB by default.
const ROOM_KIB: u32 = 32 * 1024;
/// Longest wait for room; beyond it the worker tries again, perhaps at another replica.
const ROOM_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for the content to arrive: whoever is slower holds room for nothing.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a content is still read whose upload is answered already, and how much of it, in bytes. Its worker stops as soon as it
/// has the answer.
const LINGER: Duration = Duration::from_secs(10);
const LINGER_BYTES: usize = 64 * 1024 * 1024;

/// Room for the contents of uploads.
pub(super) struct Room {
    kib: Semaphore,
    all: u32,
    patience: Duration,
}

impl Room {
    /// For results.
    pub fn new() -> Self {
        Self::of(ROOM_KIB)
    }

    /// Of that many KiB.
    pub fn of(kib: u32) -> Self {
        Self { kib: Semaphore::new(kib as usize), all: kib, patience: ROOM_TIMEOUT }
    }

    pub async fn take(&self, bytes: i64) -> Result<SemaphorePermit<'_>, Answer> {
        let kib = u32::try_from(bytes.max(1).unsigned_abs().div_ceil(1024)).unwrap_or(u32::MAX).min(self.all);
        let room = tokio::time::timeout(self.patience, self.kib.acquire_many(kib)).await;
        room.ok().and_then(Result::ok).ok_or_else(|| busy("too many uploads at once"))
    }
}

/// What an upload is answered with; the text is for a person reading the worker's log.
pub(super) type Answer = (StatusCode, String);

pub(super) fn busy(why: &str) -> Answer {
    (StatusCode::SERVICE_UNAVAILABLE, why.to_owned())
}

pub(super) fn invalid(error: impl std::fmt::Display) -> Answer {
    (StatusCode::UNPROCESSABLE_ENTITY, error.to_string())
}

/// The statuses of [`subagent_link::refused_for_good`] are for refusals that stay.
pub(super) fn refused(refusal: Refusal) -> Answer {
    let status = match (refusal.reason, refusal.retry) {
        (RefusalReason::Unauthenticated, _) => StatusCode::UNAUTHORIZED,
        (_, true) => StatusCode::SERVICE_UNAVAILABLE,
        (RefusalReason::Invalid, false) => StatusCode::UNPROCESSABLE_ENTITY,
        (_, false) => StatusCode::CONFLICT,
    };
    (status, format!("{}: {}", reason_name(refusal.reason), refusal.message))
}

/// Takes an upload. `NO_CONTENT` once it is stored whole.
pub(super) async fn put(gateway: &Arc<Gateway>, headers: &HeaderMap, upload: ResultUpload, body: Body) -> Response {
    let mut frames = body.into_data_stream();
    let taken = match admit(gateway, headers, upload).await {
        Ok(announced) => take(gateway, &announced, &mut frames).await,
        Err(answer) => Err(answer),
    };
    match taken {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(answer) => {
            tracing::info!(status = answer.0.as_u16(), message = answer.1, "upload not taken");
            linger(frames);
            not_taken(answer)
        }
    }
}

/// The answer to an upload that is not taken: nothing more is asked on this connection.
pub(super) fn not_taken(answer: Answer) -> Response {
    ([(header::CONNECTION, "close")], answer).into_response()
}

/// An upload that is to be taken.
struct Announced {
    place: Place,
    part: Part,
    /// By which the output of a turn is found.
    labels: Vec<(&'static str, String)>,
}

/// Who uploads, and what: known before a byte of the content is held in memory.
async fn admit(gateway: &Arc<Gateway>, headers: &HeaderMap, upload: ResultUpload) -> Result<Announced, Answer> {
    let Some(token) = auth::bearer(headers) else {
        return Err((StatusCode::UNAUTHORIZED, "a bearer token is required".to_owned()));
    };
    let limit = gateway.max_result_bytes;
    let ResultUpload { run_uid, attempt, turn, part, sha256, size } = upload;
    let part = snapshot::part(Part { turn, part, sha256, size }, limit).map_err(invalid)?;
    let refused = |refusal| {
        gateway.refused(&refusal);
        refused(refusal)
    };
    let (place, run) = gateway.fence(token, run_uid, attempt).await.map_err(refused)?;
    let labels = match turn {
        None => vec![],
        Some(turn) => {
            judge_turn(&place.claim, &run, turn).map_err(refused)?;
            labels(&run, turn)
        }
    };
    Ok(Announced { place, part, labels })
}

/// Child, activation and turn, so that a person finds an output by them.
fn labels(run: &SubagentRun, turn: i64) -> Vec<(&'static str, String)> {
    let Some(activation) = &run.spec.activation else { return vec![] };
    vec![
        (names::SUBAGENT_LABEL, activation.subagent_ref.name.clone()),
        (names::EPOCH_LABEL, activation.epoch.to_string()),
        (names::TURN_LABEL, turn.to_string()),
    ]
}

async fn take(gateway: &Arc<Gateway>, announced: &Announced, frames: &mut BodyDataStream) -> Result<(), Answer> {
    let _room = gateway.room.take(announced.part.size).await?;
    let text = content(&announced.part, frames).await?;
    gateway.store_part(announced, &text).await
}

/// Keeps the connection of an upload that is answered before all of its content has come: ended with unread data, it would take
/// the answer along, and the worker would try in vain again and again. What comes is read for a while, without being kept.
pub(super) fn linger(mut frames: BodyDataStream) {
    let read = async move {
        let mut left = LINGER_BYTES;
        while let Some(Ok(frame)) = frames.next().await {
            left = left.saturating_sub(frame.len());
            if left == 0 {
                // The rest waits at the worker, which has the answer.
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::spawn(tokio::time::timeout(LINGER, read));
}

/// Reads the content and checks that it is what was announced.
async fn content(part: &Part, frames: &mut BodyDataStream) -> Result<String, Answer> {
    let size = usize::try_from(part.size).unwrap_or(0);
    let read = async {
        let mut bytes = Vec::with_capacity(size);
        while let Some(frame) = frames.next().await {
            match frame {
                Ok(frame) if bytes.len() + frame.len() <= size => bytes.extend_from_slice(&frame),
                _ => return None,
            }
        }
        Some(bytes)
    };
    let bytes = match tokio::time::timeout(BODY_TIMEOUT, read).await {
        // Broken off, or longer than announced: the next try may be whole.
        Ok(None) => return Err(busy("the content did not arrive as it was announced")),
        Err(_) => return Err(busy("the content did not arrive in time")),
        Ok(Some(bytes)) => bytes,
    };
    if bytes.len() != size {
        return Err(invalid(format!("{} bytes arrived, {size} were announced", bytes.len())));
    }
    if crate::naming::hex(&Sha256::digest(&bytes)) != part.sha256 {
        return Err(invalid("the content has another digest than announced"));
    }
    String::from_utf8(bytes).map_err(|_| invalid("the content is not UTF-8"))
}

impl Gateway {
    async fn store_part(&self, announced: &Announced, text: &str) -> Result<(), Answer> {
        let Announced { place, part, labels } = announced;
        let Place { namespace, run_name, .. } = place;
        match result::store(&self.client, &place.owner(), part, labels, text).await {
            Ok(Ok(written)) => {
                for _ in 0..written {
                    self.metrics.wrote("gateway", "configmap");
                }
                tracing::debug!(
                    namespace,
                    run = run_name,
                    part = part.part.as_str(),
                    turn = part.turn,
                    size = part.size,
                    "result stored"
                );
                Ok(())
            }
            Ok(Err(unstored)) => {
                tracing::warn!(namespace, run = run_name, ?unstored, "result not stored");
                if let Some(why) = unstored.fault() {
                    self.warn(place, "ResultNotStored", why.to_owned());
                }
                match unstored {
                    // Room may come: the worker goes on trying, and Event and status say what it waits for.
                    Unstored::Quota(why) => Err(busy(&why)),
                    Unstored::NamespaceGone => {
                        Err((StatusCode::INSUFFICIENT_STORAGE, "the namespace is being deleted".to_owned()))
                    }
                    Unstored::Fault(why) => Err((StatusCode::INSUFFICIENT_STORAGE, why)),
                }
            }
            Err(error) => {
                tracing::warn!(namespace, run = run_name, %error, "result not stored");
                Err(busy(&format!("the API server did not store it: {error}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use subagent_link::{ResultPart, refused_for_good};

    fn part(text: &[u8]) -> Part {
        let sha256 = crate::naming::hex(&Sha256::digest(text));
        Part { turn: None, part: ResultPart::Text, sha256, size: text.len() as i64 }
    }

    #[rstest]
    #[case::whole(b"abc", b"abc", None)]
    #[case::short(b"abc", b"ab", Some(422))]
    #[case::longer_than_announced(b"abc", b"abcd", Some(503))]
    #[case::other_content(b"abc", b"abd", Some(422))]
    #[case::no_utf8(b"ab\xff", b"ab\xff", Some(422))]
    #[tokio::test]
    async fn t3_only_the_announced_content_is_taken(
        #[case] announced: &[u8],
        #[case] arrives: &'static [u8],
        #[case] status: Option<u16>,
    ) {
        let got = content(&part(announced), &mut Body::from(arrives).into_data_stream()).await;
        assert_eq!(got.err().map(|(status, _)| status.as_u16()), status);
    }

    #[rstest]
    #[case(Refusal::later(RefusalReason::Unauthenticated, ""), false)]
    #[case(Refusal::later(RefusalReason::NotYet, ""), false)]
    #[case(Refusal::later(RefusalReason::Unavailable, ""), false)]
    #[case(Refusal::last(RefusalReason::Invalid, ""), true)]
    #[case(Refusal::last(RefusalReason::Terminal, ""), true)]
    #[case(Refusal::last(RefusalReason::NotCurrent, ""), true)]
    fn r17_a_refusal_that_stays_is_told_from_one_that_passes(#[case] refusal: Refusal, #[case] for_good: bool) {
        assert_eq!(refused_for_good(refused(refusal).0.as_u16()), for_good);
    }

    #[tokio::test]
    async fn uploads_wait_for_room_and_not_for_ever() {
        let room = Room { patience: Duration::from_millis(10), ..Room::new() };
        let all = room.take(i64::from(ROOM_KIB) * 1024).await.unwrap();
        assert_eq!(room.take(1).await.unwrap_err().0, StatusCode::SERVICE_UNAVAILABLE);
        drop(all);
        assert!(room.take(1).await.is_ok());
        assert!(room.take(i64::MAX).await.is_ok(), "a large one takes what there is");
    }
}
