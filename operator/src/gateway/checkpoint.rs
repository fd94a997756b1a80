//! Checkpoints: taken after a turn, before it counts as done (contract c41), and given back before the agent of the next
//! activation starts (c40).
//!
//! Behind the same fence as a hello. Whose checkpoint it is says the live run and never the worker, so a worker reaches those
//! of its own child alone. Stateless: any replica takes a repeat.

use super::{
    Gateway,
    admission::Child,
    auth, snapshot,
    store::Place,
    upload::{Answer, busy, invalid, linger, not_taken, refused},
};
use crate::session_store::{Content, ContentError, GetError, Key, PART, PutError, Store, StoreError};
use axum::{
    Json,
    body::{Body, BodyDataStream, Bytes},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures::{Stream, StreamExt, stream};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use subagent_crds::SubagentRun;
use subagent_link::{
    CHECKPOINT_STALL_TIMEOUT, CheckpointDownload, CheckpointUpload, StoredCheckpoint, most_compressed,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

/// Memory for checkpoints that are being stored, in KiB: eight large ones, of which each takes a part, or many small ones.
/// The operator has 512 MiB by default.
pub(super) const ROOM_KIB: u32 = 64 * 1024;
/// Most checkpoints that are read at once. Each holds about three pieces of 2 MiB, and one that fits a part the whole.
pub(super) const READERS: usize = 8;
/// Longest wait for a place among the readers; beyond it the worker tries again, perhaps at another replica.
const READER_TIMEOUT: Duration = Duration::from_secs(5);
/// What is handed out at a time, in bytes: all that a worker that takes nothing holds here, for as long as it is connected.
const CRUMB: usize = 16 * 1024;
/// Slowest transfer, in bytes a second.
const SLOWEST: u64 = 64 * 1024;

/// An upload that is to be taken.
struct Announced {
    place: Place,
    store: Arc<Store>,
    key: Key,
    size: u64,
}

/// Takes a checkpoint. 200 once it is stored for good.
pub(super) async fn put(gateway: &Arc<Gateway>, headers: &HeaderMap, upload: CheckpointUpload, body: Body) -> Response {
    let frames = body.into_data_stream();
    let stored = match admit_upload(gateway, headers, upload).await {
        Ok(announced) => take(gateway.clone(), announced, frames).await,
        Err(answer) => {
            linger(frames);
            Err(answer)
        }
    };
    match stored {
        Ok(key) => Json(StoredCheckpoint { key }).into_response(),
        Err(answer) => not_served("checkpoint not taken", answer),
    }
}

/// Gives the checkpoint that the run continues from.
pub(super) async fn get(gateway: &Arc<Gateway>, headers: &HeaderMap, download: CheckpointDownload) -> Response {
    match find(gateway, headers, download).await {
        Ok(Found { content, size, transfer, reader }) => {
            let length = (header::CONTENT_LENGTH, HeaderValue::from(size));
            let kind = (header::CONTENT_TYPE, HeaderValue::from_static("application/zstd"));
            ([length, kind], Body::from_stream(sent(content, size, transfer, reader))).into_response()
        }
        Err(answer) => not_served("checkpoint not given", answer),
    }
}

fn not_served(what: &'static str, answer: Answer) -> Response {
    tracing::info!(status = answer.0.as_u16(), message = answer.1, "{what}");
    not_taken(answer)
}

/// Who uploads, and what: known before a byte of the content is held in memory.
async fn admit_upload(
    gateway: &Arc<Gateway>,
    headers: &HeaderMap,
    upload: CheckpointUpload,
) -> Result<Announced, Answer> {
    let CheckpointUpload { run_uid, attempt, turn, sha256, size } = upload;
    let (place, run) = fence(gateway, headers, run_uid, attempt).await?;
    let child = child(&run)?;
    if turn < 1 || !snapshot::is_digest(&sha256) {
        return Err(invalid("turn is a number from 1 on, sha256 a SHA-256 in lower-case hex"));
    }
    let store = store(gateway, &place)?;
    let provider = gateway.provider(&place.namespace, &run).await.map_err(refused)?;
    let Some(state) = provider.session_state else {
        return Err(invalid("the provider of this run has no spec.sessionState: nothing of it is kept"));
    };
    let size = within(size, state.max_bytes)?;
    let key = Key { child_uid: child.uid, epoch: child.epoch, turn, sha256 };
    Ok(Announced { place, store, key, size })
}

fn within(size: i64, max_bytes: i64) -> Result<u64, Answer> {
    if size > most_compressed(max_bytes) {
        let why = format!(
            "the checkpoint has {size} bytes, more than an archive of the provider's spec.sessionState.maxBytes, {max_bytes}, \
             comes to"
        );
        return Err((StatusCode::PAYLOAD_TOO_LARGE, why));
    }
    u64::try_from(size).ok().filter(|size| *size > 0).ok_or_else(|| invalid("size is a number from 1 on"))
}

async fn fence(
    gateway: &Arc<Gateway>,
    headers: &HeaderMap,
    run_uid: String,
    attempt: i32,
) -> Result<(Place, SubagentRun), Answer> {
    let Some(token) = auth::bearer(headers) else {
        return Err((StatusCode::UNAUTHORIZED, "a bearer token is required".to_owned()));
    };
    gateway.fence(token, run_uid, attempt).await.map_err(|refusal| {
        gateway.refused(&refusal);
        refused(refusal)
    })
}

fn child(run: &SubagentRun) -> Result<Child, Answer> {
    Child::of(run).ok_or_else(|| invalid("the run is no activation of a continuable child, and has no checkpoints"))
}

fn store(gateway: &Gateway, place: &Place) -> Result<Arc<Store>, Answer> {
    gateway.store.clone().ok_or_else(|| {
        let why = "the operator has no session store: set sessionStore.url of its chart (SUBAGENT_SESSION_STORE)";
        gateway.warn(place, "CheckpointNotStored", why.to_owned());
        (StatusCode::INSUFFICIENT_STORAGE, why.to_owned())
    })
}

/// A task of its own: when the worker's connection breaks, the upload is still brought to its end, or cleared away.
async fn take(gateway: Arc<Gateway>, announced: Announced, mut frames: BodyDataStream) -> Result<String, Answer> {
    let storing = tokio::spawn(async move {
        let taken = store_whole(&gateway, announced, &mut frames).await;
        if taken.is_err() {
            linger(frames);
        }
        taken
    });
    storing.await.unwrap_or_else(|error| Err(busy(&error.to_string())))
}

async fn store_whole(gateway: &Gateway, announced: Announced, frames: &mut BodyDataStream) -> Result<String, Answer> {
    let Announced { place, store, key, size } = announced;
    let transfer = gateway.uploads.begin(&place.claim.run_uid);
    let began = Instant::now();
    let _room = gateway.checkpoints.take(i64::try_from(size.min(PART)).unwrap_or(i64::MAX)).await?;
    let stored = store.put(&key, size, arriving(frames, size, transfer.replaced.clone())).await;
    if let Err(PutError::Store(error)) = &stored {
        tracing::warn!(namespace = place.namespace, run = place.run_name, %error, "checkpoint not stored");
        gateway.warn(&place, "CheckpointNotStored", error.told());
    }
    stored.map_err(unstored)?;
    gateway.metrics.checkpoint_store_seconds.observe(began.elapsed().as_secs_f64());
    tracing::debug!(namespace = place.namespace, run = place.run_name, %key, size, "checkpoint stored");
    Ok(key.to_string())
}

fn unstored(error: PutError) -> Answer {
    match error {
        PutError::Content(ContentError::Broken(_)) => busy(&error.to_string()),
        PutError::Content(_) => invalid(error),
        PutError::Store(error) => failed(&error),
    }
}

fn failed(error: &StoreError) -> Answer {
    let status = if error.may_pass() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::INSUFFICIENT_STORAGE };
    (status, error.told())
}

/// Longest time of a whole transfer: whoever is slower holds room that others wait for.
fn whole(size: u64) -> Duration {
    CHECKPOINT_STALL_TIMEOUT + Duration::from_secs(size / SLOWEST)
}

/// The content, until it stands still, takes too long or is given up for a newer transfer. Once all of it is there, nothing
/// of this ends the storing.
fn arriving(
    frames: &mut BodyDataStream,
    size: u64,
    replaced: CancellationToken,
) -> impl Stream<Item = Result<Bytes, String>> + Send {
    let until = Instant::now() + whole(size);
    stream::unfold(Some((frames, replaced)), move |state| async move {
        let (frames, replaced) = state?;
        let patience = until.min(Instant::now() + CHECKPOINT_STALL_TIMEOUT);
        match timeout_at(patience, replaced.run_until_cancelled(frames.next())).await {
            Ok(Some(None)) => None,
            Ok(Some(Some(Ok(frame)))) => Some((Ok(frame), Some((frames, replaced)))),
            Ok(Some(Some(Err(error)))) => Some((Err(error.to_string()), None)),
            Ok(None) => Some((Err("a newer transfer of this run is here".to_owned()), None)),
            Err(_) => Some((Err("it came too slowly".to_owned()), None)),
        }
    })
}

/// What goes out.
struct Found {
    content: Content,
    size: u64,
    transfer: Transfer,
    reader: OwnedSemaphorePermit,
}

/// The content that the live run names, and a place among the readers.
async fn find(gateway: &Arc<Gateway>, headers: &HeaderMap, download: CheckpointDownload) -> Result<Found, Answer> {
    let (place, run) = fence(gateway, headers, download.run_uid, download.attempt).await?;
    child(&run)?;
    let (key, size) = pinned(&run)?;
    let store = store(gateway, &place)?;
    // Before it takes a place: the one before it gives its own back.
    let transfer = gateway.downloads.begin(&place.claim.run_uid);
    let reader = timeout(READER_TIMEOUT, gateway.readers.clone().acquire_owned()).await;
    let Some(reader) = reader.ok().and_then(Result::ok) else {
        return Err(busy("too many checkpoints are being read at once"));
    };
    match store.get(&key, size).await {
        Ok(content) => Ok(Found { content, size, transfer, reader }),
        Err(GetError::Store(error)) => {
            tracing::warn!(namespace = place.namespace, run = place.run_name, %error, "checkpoint not read");
            gateway.warn(&place, "CheckpointNotRead", error.told());
            Err(failed(&error))
        }
        Err(gone) => {
            tracing::warn!(namespace = place.namespace, run = place.run_name, error = %gone, "checkpoint not read");
            gateway.warn(&place, "CheckpointLost", gone.to_string());
            Err((StatusCode::GONE, gone.to_string()))
        }
    }
}

/// Which checkpoint the run continues from.
fn pinned(run: &SubagentRun) -> Result<(Key, u64), Answer> {
    let activation = run.spec.activation.as_ref();
    let Some((activation, session)) = activation.and_then(|of| Some((of, of.session.as_ref()?))) else {
        return Err(invalid("the run begins a new session: it continues from no checkpoint"));
    };
    let told = &session.checkpoint;
    // Written by the operator alone; all the same, no key leads to another child's session.
    let key = Key::parse(&told.key)
        .filter(|key| key.child_uid == activation.subagent_ref.uid && key.sha256 == told.digest)
        .ok_or_else(|| (StatusCode::GONE, format!("{} is no key of a checkpoint of this child", told.key)))?;
    Ok((key, u64::try_from(told.size).unwrap_or(0)))
}

/// What goes out. A task of its own hands out crumbs of what it reads, and gives up on a worker that takes none or is too slow:
/// then neither a place nor more than a crumb is held for it, however long its connection stays.
fn sent(
    mut content: Content,
    size: u64,
    transfer: Transfer,
    reader: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Bytes, GetError>> + Send {
    let (out, pieces) = mpsc::channel(1);
    tokio::spawn(async move {
        let _reader = reader;
        let until = Instant::now() + whole(size);
        let sending = async {
            while let Some(piece) = content.next().await {
                let piece = piece.inspect_err(|error| tracing::warn!(%error, "checkpoint broken off"))?;
                for crumb in piece.chunks(CRUMB) {
                    // A copy: a slice would hold all of the piece.
                    let crumb = Ok(Bytes::copy_from_slice(crumb));
                    let patience = until.min(Instant::now() + CHECKPOINT_STALL_TIMEOUT);
                    if !matches!(timeout_at(patience, out.send(crumb)).await, Ok(Ok(()))) {
                        return Ok(());
                    }
                }
            }
            Ok::<_, GetError>(())
        };
        if let Some(Err(error)) = transfer.replaced.run_until_cancelled(sending).await {
            let _ = out.try_send(Err(error));
        }
    });
    stream::unfold(pieces, |mut pieces| async { Some((pieces.recv().await?, pieces)) })
}

/// The transfer of each run that is under way in one direction. The newest one is all there is: a worker that begins another has given up the
/// one before, and one that begins many takes no room from others.
#[derive(Default)]
pub(super) struct Transfers {
    under_way: Mutex<HashMap<String, (u64, CancellationToken)>>,
    begun: AtomicU64,
}

/// One of them.
struct Transfer {
    all: Arc<Transfers>,
    run_uid: String,
    number: u64,
    replaced: CancellationToken,
}

impl Transfers {
    fn begin(self: &Arc<Self>, run_uid: &str) -> Transfer {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let replaced = CancellationToken::new();
        let older = self.under_way().insert(run_uid.to_owned(), (number, replaced.clone()));
        if let Some((_, older)) = older {
            older.cancel();
        }
        Transfer { all: self.clone(), run_uid: run_uid.to_owned(), number, replaced }
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<String, (u64, CancellationToken)>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let mut under_way = self.all.under_way();
        if under_way.get(&self.run_uid).is_some_and(|(number, _)| *number == self.number) {
            under_way.remove(&self.run_uid);
        }
    }
}

/// Places for those who read.
pub(super) fn readers() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(READERS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};
    use subagent_link::refused_for_good;

    fn activation(session: Value) -> SubagentRun {
        let mut run = json!({
            "apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentRun", "metadata": {"name": "r"},
            "spec": {"providerRef": {"name": "p"}, "description": "d", "activation": {
                "subagentRef": {"name": "c", "uid": "child"}, "epoch": 2,
            }},
        });
        if !session.is_null() {
            run["spec"]["activation"]["session"] = json!({"id": "s", "checkpoint": session});
        }
        serde_json::from_value(run).unwrap()
    }

    fn digest(of: &str) -> String {
        of.repeat(32)
    }

    #[rstest]
    #[case::its_own(format!("child/1/3/{}", digest("0a")), digest("0a"), None)]
    #[case::another_childs(format!("other/1/3/{}", digest("0a")), digest("0a"), Some(410))]
    #[case::another_digest(format!("child/1/3/{}", digest("0a")), digest("0b"), Some(410))]
    #[case::no_key("child/../other".to_owned(), digest("0a"), Some(410))]
    fn c40_a_run_reads_a_checkpoint_of_its_own_child(
        #[case] key: String,
        #[case] digest: String,
        #[case] refused: Option<u16>,
    ) {
        let found = pinned(&activation(json!({"key": key, "digest": digest, "size": 7})));
        assert_eq!(found.as_ref().err().map(|(status, _)| status.as_u16()), refused);
        if let Ok((found, size)) = found {
            assert_eq!((found.to_string(), size), (key, 7));
        }
    }

    #[test]
    fn a_new_session_has_no_checkpoint_to_read() {
        assert_eq!(pinned(&activation(Value::Null)).unwrap_err().0, StatusCode::UNPROCESSABLE_ENTITY);
    }

    #[rstest]
    #[case::nothing(0, Some(422))]
    #[case::negative(-1, Some(422))]
    #[case::a_byte(1, None)]
    #[case::as_much_as_there_may_be(4096, None)]
    #[case::all_of_it_and_nothing_of_that_shrinks(4096 + 16 + 128, None)]
    #[case::more(4096 + 16 + 129, Some(413))]
    fn a_checkpoint_is_bounded_by_its_provider(#[case] size: i64, #[case] refused: Option<u16>) {
        let answer = within(size, 4096);
        assert_eq!(answer.as_ref().err().map(|(status, _)| status.as_u16()), refused);
        assert!(answer.err().is_none_or(|(status, _)| refused_for_good(status.as_u16())));
    }

    #[test]
    fn the_newest_transfer_of_a_run_is_all_there_is() {
        let all = Arc::new(Transfers::default());
        let (first, other) = (all.begin("run"), all.begin("another"));
        let second = all.begin("run");
        assert!(first.replaced.is_cancelled() && !second.replaced.is_cancelled() && !other.replaced.is_cancelled());
        drop(first);
        assert_eq!(all.under_way().len(), 2, "the end of an older one is not that of the newer one");
        drop((second, other));
        assert!(all.under_way().is_empty());
    }

    /// R10: a worker gives up where nobody but a person can help, and goes on trying elsewhere.
    #[test]
    fn r10_what_passes_is_told_from_what_stays() {
        let unusable = StoreError::Unusable { store: "s".into(), why: "full".into(), remedy: "make room" };
        let away = StoreError::Unavailable { store: "s".into(), why: "away".into() };
        let for_good = |error: PutError| refused_for_good(unstored(error).0.as_u16());
        assert!(for_good(unusable.into()));
        assert!(!for_good(away.into()));
        assert!(for_good(ContentError::Digest.into()));
        assert!(!for_good(ContentError::Broken("reset".into()).into()));
    }
}
