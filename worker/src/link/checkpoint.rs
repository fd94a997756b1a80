//! One try of a checkpoint's way to the gateway or from it: streamed, so that memory stays the same whatever its size.

use super::{request::send, upload::Failure};
use crate::{config::Settings, output::hex};
use anyhow::{Context, anyhow};
use futures::{Stream, stream::try_unfold};
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::{
    Method,
    body::{Bytes, Frame},
};
use sha2::{Digest, Sha256};
use std::{fs::File, io, os::unix::fs::FileExt, path::Path, sync::Arc};
use subagent_link::{CHECKPOINT_STALL_TIMEOUT, CheckpointDownload, CheckpointUpload, ContentDigest, StoredCheckpoint};
use tokio::{
    io::AsyncWriteExt,
    sync::watch,
    task::spawn_blocking,
    time::{sleep, timeout},
};

/// Bytes that are read from the disk at a time.
const CHUNK: u64 = 256 * 1024;

/// Uploads a checkpoint, and returns once it is stored. `moved` tells how many of its bytes are on their way.
///
/// # Errors
/// [`Failure`].
pub async fn store(
    settings: &Settings,
    upload: &CheckpointUpload,
    file: &Arc<File>,
    moved: &Arc<watch::Sender<u64>>,
) -> Result<StoredCheckpoint, Failure> {
    let size = upload.size.max(0).unsigned_abs();
    let mut movement = moved.subscribe();
    let request = async {
        let body = StreamBody::new(Box::pin(chunks(file.clone(), size, moved.clone())));
        let answer = send(settings, Method::PUT, upload.path(), body, size).await?;
        anyhow::Ok((answer.status(), answer.words().await))
    };
    tokio::pin!(request);
    let (status, said) = loop {
        tokio::select! {
            answer = &mut request => break answer?,
            Ok(()) = movement.changed() => {}
            () = sleep(CHECKPOINT_STALL_TIMEOUT) => return Err(stalled().into()),
        }
    };
    match status {
        200..300 => serde_json::from_str(&said).context("the gateway did not say what it stored").map_err(Into::into),
        status => Err(Failure::answered(status, said)),
    }
}

/// The file from its beginning, whatever else reads from it: an earlier try may not have come to its end yet.
fn chunks(
    file: Arc<File>,
    size: u64,
    moved: Arc<watch::Sender<u64>>,
) -> impl Stream<Item = io::Result<Frame<Bytes>>> + Send {
    try_unfold(0, move |at| {
        let (file, moved) = (file.clone(), moved.clone());
        async move {
            if at >= size {
                return Ok(None);
            }
            let read = move || {
                let mut chunk = vec![0; usize::try_from(CHUNK.min(size - at)).unwrap_or(0)];
                file.read_exact_at(&mut chunk, at).map(|()| chunk)
            };
            let chunk = Bytes::from(spawn_blocking(read).await.map_err(io::Error::other)??);
            let next = at + chunk.len() as u64;
            moved.send_replace(next);
            Ok(Some((Frame::data(chunk), next)))
        }
    })
}

/// A checkpoint that will not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// The store does not have it, or has something else in its place.
    Gone,
    /// What came is not what was stored.
    Different,
    /// The pod's disk does not take it; the system's error number.
    NoRoom(Option<i32>),
}

/// Downloads the checkpoint of the run into a file without a name in the folder `spool`: all of it, with this digest.
///
/// # Errors
/// [`Failure`]: nothing came. [`Absent`] beside it: nothing will.
pub async fn fetch(
    settings: &Settings,
    download: &CheckpointDownload,
    expected: &ContentDigest,
    spool: &Path,
) -> Result<Result<File, Absent>, Failure> {
    let no_room = |error: &io::Error| Ok(Err(Absent::NoRoom(error.raw_os_error())));
    let request = send(settings, Method::GET, download.path(), Empty::<Bytes>::new(), 0);
    let mut answer = timeout(CHECKPOINT_STALL_TIMEOUT, request).await.map_err(|_| stalled())??;
    match answer.status() {
        200 => {}
        410 => return Ok(Err(Absent::Gone)),
        status => return Err(Failure::answered(status, answer.words().await)),
    }
    let mut file = match tempfile::tempfile_in(spool) {
        Ok(file) => tokio::fs::File::from_std(file),
        Err(error) => return no_room(&error),
    };
    let (mut digest, mut size) = (Sha256::new(), 0);
    let body = answer.response.body_mut();
    while let Some(frame) = timeout(CHECKPOINT_STALL_TIMEOUT, body.frame()).await.map_err(|_| stalled())? {
        let frame = frame.context("reading from the gateway")?;
        let Some(chunk) = frame.data_ref() else { continue };
        size += chunk.len() as u64;
        if size > expected.size.max(0).unsigned_abs() {
            return Ok(Err(Absent::Different));
        }
        digest.update(chunk);
        if let Err(error) = file.write_all(chunk).await {
            return no_room(&error);
        }
    }
    if let Err(error) = file.flush().await {
        return no_room(&error);
    }
    let is_whole = size == expected.size.max(0).unsigned_abs() && hex(&digest.finalize()) == expected.sha256;
    Ok(if is_whole { Ok(file.into_std().await) } else { Err(Absent::Different) })
}

fn stalled() -> anyhow::Error {
    anyhow!("nothing moved for {} s", CHECKPOINT_STALL_TIMEOUT.as_secs())
}
