//! What there is at the state paths.

use super::{distinct, present};
use std::{
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt,
    path::PathBuf,
};

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
}

impl Inventory {
    /// Looks at everything at these paths. A path that is not there holds nothing. A path may itself be a link to its
    /// folder, as the provider named it; below, no link is followed.
    pub(super) fn take(paths: &[PathBuf]) -> io::Result<Self> {
        let mut inventory = Self::default();
        for root in distinct(paths) {
            let Some(found) = present(fs::metadata(&root))? else { continue };
            let mut open = vec![(root, found)];
            while let Some((path, found)) = open.pop() {
                if found.is_dir() {
                    for entry in present(fs::read_dir(&path))?.into_iter().flatten() {
                        let Some(entry) = present(entry)? else { continue };
                        let Some(found) = present(entry.metadata())? else { continue };
                        open.push((entry.path(), found));
                    }
                }
                match Item::of(path, &found) {
                    Some(item) => inventory.items.push(item),
                    None => inventory.others += 1,
                }
            }
        }
        inventory.items.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(inventory)
    }

    /// How many files there are.
    pub(super) fn files(&self) -> usize {
        self.items.iter().filter(|item| item.kind == Kind::File).count()
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
