//! The session store: where checkpoints lie, the copies of agents' session files that later activations resume from
//! (design section 6). A folder on a volume, or a bucket of a cloud.
//!
//! Keys are `uid/epoch/turn/digest` and never change their content: a checkpoint is visible under its key only when it is
//! whole and has that digest, and writing it again does nothing. So a writer that dies, a repeat and two writers at once
//! are all harmless, and the newest checkpoint that somebody refers to is never touched by the next one.
//!
//! - `location`: the setting, checked. Pure.
//! - `open`: the client of that place.
//! - `installation`: is it the place that this installation knows.
//! - `calls`: what is asked of it, in time and at a time.
//! - `key`: names of checkpoints. Pure.
//! - `content`: is what arrives what was announced.
//! - `put`, `get`, `remove`: one checkpoint in, one out, those of a child away.
//! - `trim`: what a newer one of the same child has replaced.
//! - `sweep`: what nothing refers to any more.
//! - `check`: can it be used right now.
//! - `error`: what a failure means for whoever met it.
//! - `folder`: what a folder needs beside what every store needs.

mod calls;
mod check;
mod content;
mod error;
mod folder;
mod get;
pub mod installation;
mod key;
mod location;
mod open;
mod put;
mod remove;
pub mod sweep;
mod trim;

pub use content::ContentError;
pub use error::{SettingError, StoreError};
pub use get::{Content, GetError};
pub use installation::Installation;
pub use key::{Key, key};
pub use put::PutError;
pub use remove::Entry;
pub use trim::Among;

use object_store::ObjectStore;
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::Semaphore;

/// Longest time of one step: one request to a cloud with its repeats, or one write. A worker takes a gateway for dead that
/// neither takes nor gives a byte for a minute ([`CHECKPOINT_STALL_TIMEOUT`](subagent_link::CHECKPOINT_STALL_TIMEOUT)), and is
/// to hear before that what is the matter: after its last byte there are one step and [`COMPLETE`], before the first one of an
/// answer there are the fence, one step and [`VERIFY`].
const STEP: Duration = Duration::from_secs(20);
/// Longest time until all that was written is on the disk, or put together by a cloud.
const COMPLETE: Duration = Duration::from_secs(35);

/// How long a large checkpoint may be verified before the first byte of it goes out.
const VERIFY: Duration = Duration::from_secs(10);

/// What a checkpoint is written and verified in, in bytes: the most that one of them holds in memory. Object stores take
/// parts from 5 MiB on, at most 10,000 of them: 80 GiB, above the largest `sessionState.maxBytes`.
pub const PART: u64 = 8 * 1024 * 1024;

/// A session store. Cheap to ask, safe to share.
#[derive(Debug)]
pub struct Store {
    objects: Arc<dyn ObjectStore>,
    /// The setting, for messages.
    url: String,
    /// Where it is, when it is a folder.
    folder: Option<PathBuf>,
    /// Who uses it, when that is remembered.
    installation: Option<Installation>,
    /// Places for calls of a folder.
    calls: Arc<Semaphore>,
    step: Duration,
    verify: Duration,
}

impl Store {
    /// The setting it was opened with: a URL without credentials.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Size of what lies under a key, in bytes; `None` when nothing does.
    async fn size_of(&self, key: &Key) -> Result<Option<u64>, StoreError> {
        use object_store::{Error::NotFound, ObjectStoreExt};
        let (objects, path) = (self.objects.clone(), key.path());
        self.step(async move {
            match objects.head(&path).await {
                Ok(found) => Ok(Some(found.size)),
                Err(NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests;
