//! Can it be used right now.

use super::{Store, StoreError, folder};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use object_store::{ObjectStoreExt, path::Path};
use std::{sync::Arc, time::Duration};

/// Longest time of a check: a start waits for it.
const CHECK: Duration = Duration::from_secs(15);
/// What the names of objects begin with that checks write, beside everything else and in no folder that would be left; no UID
/// of a child looks like it.
const CHECKED: &str = "check_of_the_operator_";

impl Store {
    /// Writes, reads and removes a small object, as everything that a continuable child needs (contract c34, refusal
    /// `PersistenceUnavailable`). Nothing of it is left, and nothing else is touched.
    ///
    /// # Errors
    /// [`StoreError`], which says what is in the way.
    pub async fn check(self: &Arc<Self>) -> Result<(), StoreError> {
        let store = self.clone();
        // A task of its own: what was written is removed also when nobody waits any more.
        let check = tokio::spawn(async move { store.write_read_remove().await });
        match tokio::time::timeout(CHECK, check).await {
            Ok(Ok(checked)) => checked,
            Ok(Err(panicked)) => Err(StoreError::Unavailable { store: self.url.clone(), why: panicked.to_string() }),
            Err(_) => Err(StoreError::silent(&self.url, CHECK)),
        }
    }

    async fn write_read_remove(&self) -> Result<(), StoreError> {
        self.is_ours().await?;
        // Of its own for each: another replica may check at the same time.
        let number: u128 = rand::random();
        let path = Path::from(format!("{CHECKED}{number:032x}"));
        let content = number.to_be_bytes().to_vec();
        let (objects, to, written) = (self.objects.clone(), path.clone(), content.clone());
        let put = self.step(async move { objects.put(&to, written.into()).await }).await;
        let (objects, from) = (self.objects.clone(), path.clone());
        let read = match put {
            Ok(_) => self.step(async move { objects.get(&from).await?.bytes().await }).await,
            Err(error) => Err(error),
        };
        // Also what was not answered may have been written.
        let removed = self.remove_path(path).await;
        if read?.as_ref() != content {
            let why = "what was written is read back as something else".to_owned();
            return Err(StoreError::Unavailable { store: self.url.clone(), why });
        }
        removed
    }

    /// Removes what checks left that died.
    pub(super) async fn tidy_checks(&self, older_than: Duration) -> Result<(), StoreError> {
        if let Some(folder) = self.folder.clone() {
            // With what was not even whole.
            let doing = format!("tidying {}", folder.display());
            return self.blocking(doing, self.step, move || folder::remove_files(&folder, CHECKED, older_than)).await;
        }
        let objects = self.objects.clone();
        let there = self.step(async move { objects.list_with_delimiter(None).await }).await?;
        let age = SignedDuration::try_from(older_than).unwrap_or(SignedDuration::MAX);
        for found in there.objects {
            let written = Timestamp::from_second(found.last_modified.timestamp()).unwrap_or(Timestamp::MAX);
            if found.location.as_ref().starts_with(CHECKED) && Timestamp::now().duration_since(written) >= age {
                self.remove_path(found.location).await?;
            }
        }
        Ok(())
    }
}
