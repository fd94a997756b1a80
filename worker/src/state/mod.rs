//! The agent's session files: packed into a checkpoint after a turn (contract c41), and put back before the agent of a later
//! activation starts (c40).
//!
//! A checkpoint is a zstd-compressed tar archive of everything below the state paths but what is mounted there read-only, under
//! absolute names without their leading slash. Contents pass in pieces either way, so memory grows with the number of things alone, and both ways
//! count the uncompressed archive against `sessionState.maxBytes`: what could be packed can be put back.
//!
//! Everything here blocks; callers put it on a thread of its own.

mod inventory;
mod mounts;
mod pack;
mod restore;

pub use pack::{Packed, pack};
pub use restore::{Restored, restore};

use std::{
    fmt::{self, Display},
    io,
    path::{Component, Path, PathBuf},
};

/// Why session files could not be packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackFault {
    /// No file at any of the paths.
    Nothing,
    /// More than this many bytes.
    TooLarge(u64),
    /// One of them cannot be read; the system's error number.
    Unreadable(Option<i32>),
    /// The archive cannot be written; the system's error number.
    NoRoom(Option<i32>),
}

impl Display for PackFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => {
                write!(
                    f,
                    "there is no file at any of sessionState.paths; name the folders the agent keeps its sessions in"
                )
            }
            Self::TooLarge(limit) => write!(f, "the files at sessionState.paths are more than maxBytes, {limit} bytes"),
            Self::Unreadable(number) => {
                write!(f, "a file at sessionState.paths cannot be read by the container's user{}", Number(*number))
            }
            Self::NoRoom(number) => write!(f, "the archive cannot be written to the pod's disk{}", Number(*number)),
        }
    }
}

/// Why a checkpoint could not be put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreFault {
    /// It is no archive, or holds what a checkpoint never holds. Nothing was touched.
    Damaged,
    /// It holds names that lead out of the state paths, or through a link. Nothing outside was touched.
    Outside,
    /// It holds something at no state path: these were others when it was made. Nothing was touched.
    Elsewhere,
    /// Uncompressed it has more than this many bytes.
    TooLarge(u64),
    /// The files cannot be written; the system's error number.
    Unwritable(Option<i32>),
}

impl Display for RestoreFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged => write!(f, "it is damaged"),
            Self::Outside => write!(f, "it holds names that lead outside of sessionState.paths"),
            Self::Elsewhere => {
                write!(f, "it holds files outside of sessionState.paths, as its provider has these now")
            }
            Self::TooLarge(limit) => write!(f, "it holds more than maxBytes, {limit} bytes"),
            Self::Unwritable(number) => {
                write!(
                    f,
                    "its files cannot be written to sessionState.paths by the container's user{}",
                    Number(*number)
                )
            }
        }
    }
}

/// An error number of the system, as a clause.
struct Number(Option<i32>);

impl Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |number| write!(f, ", error number {number}"))
    }
}

/// The state paths that do not lie below another one. One that is not absolute and plain is none: the API refuses those.
fn distinct(paths: &[PathBuf]) -> Vec<PathBuf> {
    let plain = |path: &&PathBuf| path.is_absolute() && path.components().all(|part| part != Component::ParentDir);
    let mut sorted: Vec<PathBuf> = paths.iter().filter(plain).map(|path| path.components().collect()).collect();
    sorted.sort();
    // What lies below a path comes right behind it.
    sorted.dedup_by(|path, before| path.starts_with(before.as_path()));
    sorted
}

/// A path's name in the archive.
fn name(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

/// `None` for what is not there.
fn present<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
