//! Calls of the store: each within its time, and those of a folder within a number.
//!
//! A call of a file system holds a thread of the process until it is over, also when nobody waits for it any more. One on a
//! network file system whose server is gone is over when that comes back. So no more of them are begun than a few, whatever is
//! asked: the threads that are left serve everybody else, and who gets no place hears that in time.

use super::{Store, StoreError};
use std::{io, time::Duration};

/// Calls of a folder at a time. The process has 512 threads for such work, and the folder's disk serves no more at a time.
pub(super) const CALLS: usize = 64;

impl Store {
    /// One step, within its time.
    pub(super) async fn step<T: Send + 'static>(
        &self,
        step: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.within(self.step, step).await
    }

    pub(super) async fn within<T: Send + 'static>(
        &self,
        limit: Duration,
        step: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.call(limit, step).await?.map_err(|error| StoreError::of(&self.url, &error))
    }

    /// Work on the files of a folder. What was done by then stays so when it takes too long.
    pub(super) async fn blocking(
        &self,
        doing: String,
        limit: Duration,
        work: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> Result<(), StoreError> {
        let work =
            async { tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error))) };
        self.call(limit, work).await?.map_err(|error| StoreError::of_io(&self.url, &doing, &error))
    }

    /// A call of a folder keeps its place until it is really over. One of a cloud is broken off when nobody waits any more.
    async fn call<T: Send + 'static>(
        &self,
        limit: Duration,
        call: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let broken = |why: String| StoreError::Unavailable { store: self.url.clone(), why };
        let done = async {
            if self.folder.is_none() {
                return Ok(call.await);
            }
            let place = self.calls.clone().acquire_owned().await.map_err(|closed| broken(closed.to_string()))?;
            let call = tokio::spawn(async move {
                let _place = place;
                call.await
            });
            call.await.map_err(|panicked| broken(panicked.to_string()))
        };
        tokio::time::timeout(limit, done).await.unwrap_or_else(|_| Err(StoreError::silent(&self.url, limit)))
    }
}
