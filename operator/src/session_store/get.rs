//! A checkpoint out.

use super::{Key, PART, Store, StoreError};
use bytes::Bytes;
use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use object_store::ObjectStoreExt;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// What is read at a time, in bytes: a request to a cloud each, so that a slow reader holds none open.
const READ: u64 = 2 * 1024 * 1024;

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

/// A content on its way out. An item that is an error is the last one, and comes before all bytes have. Who reads it compares
/// the digest.
pub type Content = BoxStream<'static, Result<Bytes, GetError>>;

impl Store {
    /// The checkpoint of this key and size. Missing and damaged ones are found before the content begins, unless it takes long
    /// to read: then the content comes as it is, and whoever reads it finds out by its digest.
    ///
    /// # Errors
    /// [`GetError`].
    pub async fn get(self: &Arc<Self>, key: &Key, size: u64) -> Result<Content, GetError> {
        self.is_ours().await?;
        match self.size_of(key).await? {
            None => return Err(self.missing(key).await?),
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
        let digest = self.parts(key, size).try_fold(Sha256::new(), |mut digest, part| async move {
            digest.update(&part);
            Ok(digest)
        });
        if let Ok(digest) = tokio::time::timeout(self.verify, digest).await
            && crate::naming::hex(&digest?.finalize()) != key.sha256
        {
            return Err(GetError::Damaged(key.clone()));
        }
        Ok(self.parts(key, size))
    }

    /// Nothing lies under the key. In a store that is not this installation's, that is no word about the checkpoint. Nor is it,
    /// as long as nobody knows whose it is, where nothing lies at all: a volume that is not mounted, a bucket that is not there, or another place than it was stored in. Who
    /// reads it as lost gives up a session.
    async fn missing(&self, key: &Key) -> Result<GetError, StoreError> {
        if self.is_ours_now().await? || self.list().try_next().await?.is_some() {
            return Ok(GetError::Missing(key.clone()));
        }
        Err(StoreError::Unusable {
            store: self.url.clone(),
            why: format!("nothing at all is stored there, though checkpoint {key} was"),
            remedy: "correct sessionStore.url, or bring back what was there",
        })
    }

    /// The content in pieces, as it is.
    fn parts(self: &Arc<Self>, key: &Key, size: u64) -> Content {
        stream::try_unfold((self.clone(), key.clone(), 0), move |(store, key, offset)| async move {
            if offset >= size {
                return Ok(None);
            }
            let end = size.min(offset + READ);
            let part = store.read(&key, offset, end).await?;
            if part.len() as u64 != end - offset {
                return Err(GetError::Damaged(key));
            }
            Ok(Some((part, (store, key, end))))
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
