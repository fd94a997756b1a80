//! What a folder needs beside what every store needs: the files of writers that died, and folders that became empty.

use super::{Store, StoreError};
use std::{
    fs, io,
    path::Path,
    time::{Duration, SystemTime},
};

/// Folders between the store's own and a checkpoint: child, epoch, turn.
const DEPTH: u32 = 3;

impl Store {
    /// Removes what writers left that died, and folders that are empty, if they are older than this. A bucket has no folders,
    /// and its own rules for incomplete uploads.
    ///
    /// # Errors
    /// [`StoreError`]; some of it may be gone then.
    pub async fn tidy(&self, older_than: Duration) -> Result<(), StoreError> {
        let Some(folder) = self.folder.clone() else { return Ok(()) };
        let doing = format!("tidying {}", folder.display());
        self.blocking(doing, move || {
            let before = SystemTime::now().checked_sub(older_than).unwrap_or(SystemTime::UNIX_EPOCH);
            tidy(&folder, before, DEPTH)
        })
        .await
    }

    pub(super) async fn blocking(
        &self,
        doing: String,
        work: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> Result<(), StoreError> {
        let work = tokio::task::spawn_blocking(work);
        match tokio::time::timeout(self.step, work).await {
            Ok(Ok(done)) => done.map_err(|error| StoreError::of_io(&self.url, &doing, &error)),
            Ok(Err(panicked)) => Err(StoreError::Unavailable { store: self.url.clone(), why: panicked.to_string() }),
            Err(_) => Err(StoreError::silent(&self.url, self.step)),
        }
    }
}

/// Removes a folder with all that is in it; one that is not there is no error.
pub(super) fn remove(folder: &Path) -> io::Result<()> {
    if let Err(error) = fs::remove_dir_all(folder) {
        return if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) };
    }
    match folder.parent() {
        Some(parent) => fs::File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

fn tidy(folder: &Path, before: SystemTime, depth: u32) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let Ok(found) = entry.metadata() else { continue }; // gone meanwhile
        let old = found.modified().is_ok_and(|modified| modified < before);
        if found.is_dir() && depth > 0 {
            tidy(&entry.path(), before, depth - 1)?;
            if old {
                // Not if anything is in it: that is what the system looks at, not us.
                let _ = fs::remove_dir(entry.path());
            }
        } else if found.is_file() && old && is_unfinished(&entry.path()) {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// `object_store` writes a file under its name with a number behind, and renames it when it is whole.
fn is_unfinished(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.rsplit_once('#').is_some_and(|(_, number)| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}
