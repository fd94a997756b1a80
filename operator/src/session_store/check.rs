//! Can it be used right now.

use super::{Store, StoreError};
use object_store::{ObjectStoreExt, path::Path};
use std::time::Duration;

/// Longest time of a check: a start waits for it.
const CHECK: Duration = Duration::from_secs(15);
/// Where checks write; no UID of a child looks like it.
const FOLDER: &str = "check_of_the_operator";

impl Store {
    /// Writes, reads and removes a small object, as everything that a continuable child needs (contract c34, refusal
    /// `PersistenceUnavailable`).
    ///
    /// # Errors
    /// [`StoreError`], which says what is in the way.
    pub async fn check(&self) -> Result<(), StoreError> {
        let check = self.write_read_remove();
        tokio::time::timeout(CHECK, check).await.unwrap_or_else(|_| Err(StoreError::silent(&self.url, CHECK)))
    }

    async fn write_read_remove(&self) -> Result<(), StoreError> {
        // Of its own for each: another replica may check at the same time.
        let number: u64 = rand::random();
        let path = Path::from(format!("{FOLDER}/{number:016x}"));
        let written = number.to_be_bytes().to_vec();
        self.step(self.objects.put(&path, written.clone().into())).await?;
        let read = self.step(async { self.objects.get(&path).await?.bytes().await }).await;
        self.remove_path(path).await?;
        if read?.as_ref() == written {
            return Ok(());
        }
        let why = "what was written is read back as something else".to_owned();
        Err(StoreError::Unavailable { store: self.url.clone(), why })
    }
}
