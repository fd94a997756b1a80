//! Packing: from the state paths into an archive on the pod's disk.

use super::{
    PackFault,
    inventory::{Inventory, Item, Kind},
    name,
};
use crate::output::hex;
use nix::libc;
use sha2::{Digest, Sha256};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};
use tar::{Builder, EntryType, Header};

/// zstd's own default: text shrinks to a fifth at some 200 MB/s.
const LEVEL: i32 = 3;
/// How often it is packed in all, when files change meanwhile: agents write titles and logs after their turns, too.
const TRIES: u32 = 5;
/// Time between two of them.
const PAUSE: Duration = Duration::from_millis(200);

/// An archive.
#[derive(Debug)]
pub struct Packed {
    /// It; a file without a name, which goes with its handle.
    pub file: File,
    /// Lower-case hex SHA-256 of the archive.
    pub sha256: String,
    /// Its size in bytes.
    pub size: u64,
    /// How many files it holds.
    pub files: usize,
    /// Size before compression in bytes.
    pub unpacked: u64,
    /// How many sockets, pipes and devices were left out.
    pub others: usize,
    /// How many read-only mounts were left out.
    pub mounted: usize,
    /// Nothing changed while it was packed.
    pub is_settled: bool,
}

/// Packs what is at `paths`, all of it as it is at one time: what changes meanwhile is packed again, for as long as that is
/// of use. The archive lies in the folder `spool` and has at most `limit` bytes before compression.
///
/// # Errors
/// [`PackFault`].
pub fn pack(paths: &[PathBuf], spool: &Path, limit: u64) -> Result<Packed, PackFault> {
    let look = || {
        Inventory::take(paths, limit).map_err(|error| match error.kind() {
            io::ErrorKind::FileTooLarge => PackFault::TooLarge(limit),
            _ => PackFault::Unreadable(error.raw_os_error()),
        })
    };
    let mut before = look()?;
    let mut tries = 1;
    loop {
        let written = write(&before, spool, limit);
        let after = look()?;
        let is_settled = after == before;
        if is_settled || tries == TRIES {
            return written.map(|packed| Packed { is_settled, ..packed });
        }
        tries += 1;
        sleep(PAUSE);
        before = look()?;
    }
}

pub(super) fn write(inventory: &Inventory, spool: &Path, limit: u64) -> Result<Packed, PackFault> {
    let no_room = |error: io::Error| match error.kind() {
        io::ErrorKind::FileTooLarge => PackFault::TooLarge(limit),
        _ => PackFault::NoRoom(error.raw_os_error()),
    };
    let file = tempfile::tempfile_in(spool).map_err(no_room)?;
    let digesting = Digesting { inner: BufWriter::new(file), digest: Sha256::new(), size: 0 };
    let encoder = zstd::Encoder::new(digesting, LEVEL).map_err(no_room)?;
    let mut archive = Builder::new(Limited { inner: encoder, left: limit });
    let mut files = 0;
    for item in &inventory.items {
        let mut read = Ok(());
        add(&mut archive, item, &mut read).map_err(no_room)?;
        match read {
            Ok(()) => files += usize::from(item.kind == Kind::File),
            // As if it had been looked for a little later: agents have files that come and go all the time.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(PackFault::Unreadable(error.raw_os_error())),
        }
    }
    if files == 0 {
        return Err(PackFault::Nothing);
    }
    let limited = archive.into_inner().map_err(no_room)?;
    let unpacked = limit - limited.left;
    let Digesting { inner, digest, size } = limited.inner.finish().map_err(no_room)?;
    let file = inner.into_inner().map_err(|error| no_room(error.into_error()))?;
    let Inventory { others, mounted, .. } = *inventory;
    Ok(Packed { file, sha256: hex(&digest.finalize()), size, files, unpacked, others, mounted, is_settled: false })
}

/// Adds one thing. What goes wrong with reading it is left in `read`, what goes wrong with the archive is the result.
fn add(archive: &mut Builder<impl Write>, item: &Item, read: &mut io::Result<()>) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_mode(item.mode);
    header.set_mtime(item.changed.max(0).unsigned_abs());
    header.set_size(0);
    let name = name(&item.path);
    match item.kind {
        Kind::Folder => {
            header.set_entry_type(EntryType::Directory);
            archive.append_data(&mut header, name, io::empty())
        }
        Kind::Link => match fs::read_link(&item.path) {
            Ok(target) => {
                header.set_entry_type(EntryType::Symlink);
                archive.append_link(&mut header, name, target)
            }
            Err(error) => {
                *read = Err(error);
                Ok(())
            }
        },
        Kind::File => match open(&item.path) {
            Ok(file) => {
                header.set_entry_type(EntryType::Regular);
                header.set_size(item.size);
                archive.append_data(&mut header, name, Source { file, left: item.size, read })
            }
            Err(error) => {
                *read = Err(error);
                Ok(())
            }
        },
    }
}

/// Opens a file, but never through a link that took its place, and without waiting for the other end of a pipe.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// As many bytes of a file as were announced. One that shrank is filled up, so that the archive stays one; it changed, so it
/// is packed again.
struct Source<'a> {
    file: File,
    left: u64,
    read: &'a mut io::Result<()>,
}

impl Read for Source<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let room = into.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let into = &mut into[..room];
        let mut got = 0;
        if self.read.is_ok() {
            match self.file.read(into) {
                Ok(count) => got = count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
                Err(error) => *self.read = Err(error),
            }
        }
        if got == 0 {
            into.fill(0);
            got = room;
        }
        self.left -= got as u64;
        Ok(got)
    }
}

/// Takes at most so many bytes.
struct Limited<W> {
    inner: W,
    left: u64,
}

impl<W: Write> Write for Limited<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.left {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let written = self.inner.write(bytes)?;
        self.left -= written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Knows digest and size of what went through.
struct Digesting<W> {
    inner: W,
    digest: Sha256,
    size: u64,
}

impl<W: Write> Write for Digesting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.digest.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
