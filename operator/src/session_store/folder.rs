//! What a folder needs beside what every store needs: the files of writers that died, and folders that became empty.

use super::{Store, StoreError, key::is_uid};
use std::{
    fs::{self, DirEntry},
    io,
    path::Path,
    time::{Duration, SystemTime},
};

/// Folders between a child's own and its checkpoints: epoch, turn.
const DEPTH: u32 = 2;

/// Longest time to look through the whole folder: one on a network file system may hold many.
const TIDY: Duration = Duration::from_secs(600);

impl Store {
    /// Removes what writers and checks left that died, and folders that are empty, if they are older than this. A bucket has no
    /// folders, and its own rules for incomplete uploads.
    ///
    /// # Errors
    /// [`StoreError`]; some of it may be gone then.
    pub async fn tidy(&self, older_than: Duration) -> Result<(), StoreError> {
        self.is_ours().await?;
        self.tidy_checks(older_than).await?;
        let Some(folder) = self.folder.clone() else { return Ok(()) };
        let doing = format!("tidying {}", folder.display());
        self.blocking(doing, TIDY, move || {
            let before = before(older_than);
            for child in folders(&folder)?.into_iter().filter(|child| is_uid(&child.file_name().to_string_lossy())) {
                tidy(&child.path(), before, DEPTH)?;
                remove_if_empty(&child, before);
            }
            Ok(())
        })
        .await
    }
}

fn before(older_than: Duration) -> SystemTime {
    SystemTime::now().checked_sub(older_than).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Removes the files in a folder whose names begin so, if they are older than this.
pub(super) fn remove_files(folder: &Path, prefix: &str, older_than: Duration) -> io::Result<()> {
    let before = before(older_than);
    let is_meant = |file: &&DirEntry| file.file_name().to_string_lossy().starts_with(prefix) && is_older(file, before);
    for file in entries(folder)?.iter().filter(is_meant) {
        let _ = fs::remove_file(file.path());
    }
    Ok(())
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
    if depth == 0 {
        for file in entries(folder)?.iter().filter(|file| is_unfinished(&file.path()) && is_older(file, before)) {
            let _ = fs::remove_file(file.path());
        }
        return Ok(());
    }
    for inner in folders(folder)? {
        tidy(&inner.path(), before, depth - 1)?;
        remove_if_empty(&inner, before);
    }
    Ok(())
}

fn entries(folder: &Path) -> io::Result<Vec<DirEntry>> {
    match fs::read_dir(folder) {
        Ok(entries) => entries.collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(vec![]),
        Err(error) => Err(error),
    }
}

fn folders(folder: &Path) -> io::Result<Vec<DirEntry>> {
    let is_folder = |entry: &DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    Ok(entries(folder)?.into_iter().filter(is_folder).collect())
}

fn is_older(entry: &DirEntry, before: SystemTime) -> bool {
    entry.metadata().and_then(|found| found.modified()).is_ok_and(|modified| modified < before)
}

fn remove_if_empty(folder: &DirEntry, before: SystemTime) {
    if is_older(folder, before) {
        // Not if anything is in it: the system sees to that.
        let _ = fs::remove_dir(folder.path());
    }
}

/// `object_store` writes a file under its name with a number behind, and renames it when it is whole.
fn is_unfinished(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.rsplit_once('#').is_some_and(|(_, number)| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}
