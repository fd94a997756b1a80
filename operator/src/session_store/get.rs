//! A checkpoint out.

use super::{Key, PART, Store, StoreError};
use bytes::Bytes;
use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use object_store::ObjectStoreExt;
use sha2::{Digest, Sha256};
use std::{sync::Arc, time::Duration};

/// What is read at a time, in bytes: a request to a cloud each, so that a slow reader holds none open.
const READ: u64 = 2 * 1024 * 1024;
/// How long a large checkpoint may be verified before the first byte of it goes out. A reader takes a gateway for dead that
/// gives nothing for [`CHECKPOINT_STALL_TIMEOUT`](subagent_link::CHECKPOINT_STALL_TIMEOUT).
const VERIFY: Duration = Duration::from_secs(30);

/// Why there is no checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GetError {
    /// Nothing lies under the key.
    #[error("checkpoint {0} is not in the session store: it was removed there")]
    Missing(Key),
    /// Something else does.
    #[error("checkpoint {0} is damaged: what lies under its key in the session store has another size or digest")]
    Damaged(Key),
    /// The store did not give it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A content on its way out. An item that is an error is the last one, and comes before all bytes have.
pub type Content = BoxStream<'static, Result<Bytes, GetError>>;

impl Store {
    /// The checkpoint of this key and size. Missing and damaged ones are found before the content begins; one that takes long
    /// to read is verified once more on its way, and then ends in an error before its last bytes.
    ///
    /// # Errors
    /// [`GetError`].
    pub async fn get(self: &Arc<Self>, key: &Key, size: u64) -> Result<Content, GetError> {
        match self.size_of(key).await? {
            None => return Err(GetError::Missing(key.clone())),
            Some(found) if found != size => return Err(GetError::Damaged(key.clone())),
            Some(_) => {}
        }
        if size <= PART {
            let whole = self.read(key, 0, size).await?;
            let digest = crate::naming::hex(&Sha256::digest(&whole));
            if whole.len() as u64 != size || digest != key.sha256 {
                return Err(GetError::Damaged(key.clone()));
            }
            return Ok(stream::once(async move { Ok(whole) }).boxed());
        }
        let verified = self.verified(key, size).try_for_each(|_| async { Ok(()) });
        if let Ok(verified) = tokio::time::timeout(VERIFY, verified).await {
            verified?;
        }
        Ok(self.verified(key, size).boxed())
    }

    /// The content, its last part only if the whole has the right digest.
    fn verified(self: &Arc<Self>, key: &Key, size: u64) -> Content {
        let begin = (self.clone(), key.clone(), 0, Sha256::new());
        stream::try_unfold(begin, move |(store, key, offset, mut digest)| async move {
            if offset >= size {
                return Ok(None);
            }
            let end = size.min(offset + READ);
            let part = store.read(&key, offset, end).await?;
            digest.update(&part);
            let cut = part.len() as u64 != end - offset;
            if cut || (end == size && crate::naming::hex(&digest.clone().finalize()) != key.sha256) {
                return Err(GetError::Damaged(key));
            }
            Ok(Some((part, (store, key, end, digest))))
        })
        .boxed()
    }

    async fn read(&self, key: &Key, from: u64, to: u64) -> Result<Bytes, GetError> {
        if from == to {
            return Ok(Bytes::new());
        }
        use object_store::Error::NotFound;
        let (objects, path) = (self.objects.clone(), key.path());
        let read = async move {
            match objects.get_range(&path, from..to).await {
                Ok(part) => Ok(Some(part)),
                Err(NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        self.step(read).await?.ok_or_else(|| GetError::Missing(key.clone()))
    }
}
