//! What there is at the state paths.

use super::{distinct, mounts::Mounts, present};
use std::{
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt,
    path::PathBuf,
};

/// Bytes that an archive has at least for each thing in it.
const HEADER_BYTES: u64 = 512;

/// What something is. Sockets, pipes and devices are no session's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Folder,
    File,
    Link,
}

/// One thing that was found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) path: PathBuf,
    pub(super) kind: Kind,
    /// Permissions.
    pub(super) mode: u32,
    /// Last change, in seconds since 1970.
    pub(super) changed: i64,
    /// Size in bytes.
    pub(super) size: u64,
    /// Differs when the thing was written to or replaced.
    version: [i64; 4],
}

/// All of it, folders before what is in them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Inventory {
    pub(super) items: Vec<Item>,
    /// How many things are of another kind.
    pub(super) others: usize,
    /// How many read-only mounts there are.
    pub(super) mounted: usize,
}

impl Inventory {
    /// Looks at everything at these paths. A path that is not there holds nothing. A path may itself be a link to its
    /// folder, as the provider named it; below, no link is followed, and no read-only mount is entered.
    ///
    /// # Errors
    /// `FileTooLarge`: in an archive its names alone are more than `limit` bytes.
    pub(super) fn take(paths: &[PathBuf], limit: u64) -> io::Result<Self> {
        let mut inventory = Self::default();
        let roots = distinct(paths);
        let mounts = Mounts::at(&roots);
        for root in roots {
            let Some(found) = present(fs::metadata(&root))? else { continue };
            let mut open = vec![(root, found)];
            while let Some((path, found)) = open.pop() {
                if mounts.cover(&path) {
                    inventory.mounted += 1;
                    continue;
                }
                if found.is_dir() {
                    for entry in present(fs::read_dir(&path))?.into_iter().flatten() {
                        let Some(entry) = present(entry)? else { continue };
                        let Some(found) = present(entry.metadata())? else { continue };
                        open.push((entry.path(), found));
                    }
                }
                match Item::of(path, &found) {
                    Some(_) if inventory.items.len() as u64 >= limit / HEADER_BYTES => {
                        return Err(io::ErrorKind::FileTooLarge.into());
                    }
                    Some(item) => inventory.items.push(item),
                    None => inventory.others += 1,
                }
            }
        }
        inventory.items.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(inventory)
    }
}

impl Item {
    fn of(path: PathBuf, found: &Metadata) -> Option<Self> {
        let kind = match found.file_type() {
            kind if kind.is_dir() => Kind::Folder,
            kind if kind.is_file() => Kind::File,
            kind if kind.is_symlink() => Kind::Link,
            _ => return None,
        };
        let inode = found.ino().cast_signed();
        let version = [inode, found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
        let (mode, size) = (found.mode() & 0o777, found.len());
        Some(Self { path, kind, mode, changed: found.mtime(), size, version })
    }
}
