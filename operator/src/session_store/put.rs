//! A checkpoint in.

use super::{
    COMPLETE, Key, PART, Store, StoreError,
    content::{Announced, ContentError},
};
use bytes::Bytes;
use futures::Stream;
use object_store::{MultipartUpload, ObjectStoreExt};
use std::{fmt::Display, pin::pin};

/// Why a checkpoint is not stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// It is not what was announced.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// The store did not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Store {
    /// Stores a content of `size` bytes, at least one, under a key that holds its digest. Returns when it is there for good;
    /// before that, and after every error, nothing is visible under the key that was not there before. A repeat does nothing but
    /// check the content. At most [`PART`] bytes of it are held in memory, with what the stream brings at once.
    ///
    /// A future that is dropped leaves nothing in a folder, and in a bucket at most an upload without an end, which its rules
    /// for incomplete uploads remove.
    ///
    /// # Errors
    /// [`PutError`].
    pub async fn put<S, E>(&self, key: &Key, size: u64, content: S) -> Result<(), PutError>
    where
        S: Stream<Item = Result<Bytes, E>> + Send,
        E: Display,
    {
        self.is_ours().await?;
        let content = pin!(content);
        let mut content = Announced::new(content, key, size);
        if self.size_of(key).await? == Some(size) {
            while content.part().await?.is_some() {}
            return Ok(());
        }
        if size > PART {
            return self.put_parts(key, &mut content).await;
        }
        let whole = content.part().await?.unwrap_or_default();
        // The end says that it is right.
        if content.part().await?.is_some() {
            return Err(ContentError::Size { arrived: size + 1, announced: size }.into());
        }
        let (objects, path) = (self.objects.clone(), key.path());
        self.within(COMPLETE, async move { objects.put(&path, whole.into()).await }).await?;
        Ok(())
    }

    async fn put_parts<S, E>(&self, key: &Key, content: &mut Announced<'_, S>) -> Result<(), PutError>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: Display,
    {
        let (objects, path) = (self.objects.clone(), key.path());
        let mut upload = self.step(async move { objects.put_multipart(&path).await }).await?;
        if let Err(error) = self.write_parts(upload.as_mut(), content).await {
            // What was written so far; a folder's is gone anyway.
            let _ = self.step(async move { upload.abort().await }).await;
            return Err(error);
        }
        // Only now does it become visible.
        let complete = async move {
            let done = upload.complete().await;
            if done.is_err() {
                let _ = upload.abort().await;
            }
            done
        };
        self.within(COMPLETE, complete).await?;
        Ok(())
    }

    async fn write_parts<S, E>(
        &self,
        upload: &mut dyn MultipartUpload,
        content: &mut Announced<'_, S>,
    ) -> Result<(), PutError>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: Display,
    {
        while let Some(part) = content.part().await? {
            self.step(upload.put_part(part.into())).await?;
        }
        Ok(())
    }
}
