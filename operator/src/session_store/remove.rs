//! What is there, and what goes.

use super::{Key, Store, StoreError, key::is_uid};
use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use k8s_openapi::jiff::Timestamp;
use object_store::{ObjectMeta, ObjectStoreExt, path::Path};

/// A checkpoint that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub key: Key,
    /// In bytes.
    pub size: u64,
    /// When it was written, by the store's clock.
    pub written: Timestamp,
}

impl Store {
    /// Every checkpoint that is there. What has another kind of name is somebody else's, and left out.
    pub fn list(&self) -> BoxStream<'_, Result<Entry, StoreError>> {
        let entries = stream::once(self.places()).map_ok(move |places| {
            let places = places.into_iter().map(Ok);
            stream::iter(places).map_ok(move |place| self.list_below(place.as_ref())).try_flatten()
        });
        let entries = entries.try_flatten().try_filter_map(|found| async move {
            let written = Timestamp::from_second(found.last_modified.timestamp()).unwrap_or(Timestamp::MAX);
            let key = Key::parse(found.location.as_ref());
            Ok(key.map(|key| Entry { key, size: found.size, written }))
        });
        entries.boxed()
    }

    /// Where to look. Of a folder only those of children: a volume has others in it, which only root may read (`lost+found`).
    async fn places(&self) -> Result<Vec<Option<Path>>, StoreError> {
        self.is_ours().await?;
        if self.folder.is_none() {
            return Ok(vec![None]);
        }
        let objects = self.objects.clone();
        let there = self.step(async move { objects.list_with_delimiter(None).await }).await?;
        let children = there.common_prefixes.into_iter().filter(|child| is_uid(child.as_ref()));
        Ok(children.map(Some).collect())
    }

    pub(super) fn list_below(&self, place: Option<&Path>) -> BoxStream<'_, Result<ObjectMeta, StoreError>> {
        let listed = stream::try_unfold(self.objects.list(place), move |mut listed| async move {
            let next = async move { Ok((listed.next().await.transpose()?, listed)) };
            let (next, listed) = self.step(next).await?;
            Ok(next.map(|found| (found, listed)))
        });
        listed.boxed()
    }

    /// Removes one checkpoint; one that is gone already is no error.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn remove(&self, key: &Key) -> Result<(), StoreError> {
        self.is_ours().await?;
        self.remove_path(key.path()).await
    }

    pub(super) async fn remove_path(&self, path: Path) -> Result<(), StoreError> {
        use object_store::Error::NotFound;
        let objects = self.objects.clone();
        self.step(async move {
            match objects.delete(&path).await {
                Ok(()) | Err(NotFound { .. }) => Ok(()),
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Removes everything of a child, by the UID of its Subagent (contract c47). Whoever calls it has the proof that nobody
    /// writes more of it. It can be repeated; a child that has nothing is no error.
    ///
    /// # Errors
    /// [`StoreError`]; some of it may be gone then.
    pub async fn delete_prefix(&self, child_uid: &str) -> Result<(), StoreError> {
        if !is_uid(child_uid) {
            // No checkpoint was ever stored under it.
            return Ok(());
        }
        self.is_ours().await?;
        if let Some(folder) = &self.folder {
            let child = folder.join(child_uid);
            let doing = format!("removing {}", child.display());
            // What was removed by then stays so, for the next try.
            let done = self.blocking(doing, super::COMPLETE, move || super::folder::remove(&child));
            return done.await;
        }
        let place = Path::from(child_uid);
        let mut listed = self.list_below(Some(&place));
        while let Some(found) = listed.try_next().await? {
            self.remove_path(found.location).await?;
        }
        Ok(())
    }
}
