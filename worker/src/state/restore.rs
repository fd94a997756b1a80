//! Putting back: from an archive to the state paths, and nowhere else.
//!
//! What wrote the archive was a worker, but the agent shares its container and could have uploaded another: nothing in it is
//! trusted. It is read twice. The first time every entry is judged by its name and kind, and nothing is written; the second
//! time each is made anew, below real folders only. The agent does not run yet, so nobody changes them meanwhile.

use super::{RestoreFault, distinct, mounts::Mounts};
use nix::libc;
use std::{
    cell::Cell,
    collections::HashSet,
    fs::{self, File, FileTimes, OpenOptions, Permissions},
    io::{self, BufReader, Read, Seek, SeekFrom, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink},
    path::{Component, Path, PathBuf},
    time::{Duration, SystemTime},
};
use tar::{Archive, Entry, EntryType};

/// Bytes of an archive that are read for the next name and kind: both may be as long as paths are, and with more of them the
/// reader would hold as much as the archive has.
const MAX_HEADER_BYTES: u64 = 64 * 1024;
/// Largest window of the decompressor as a power of two, 16 MiB: level 3 needs 2 MiB, and an archive cannot ask for more.
const WINDOW_LOG: u32 = 24;

/// What was put back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Files.
    pub files: usize,
    /// Bytes of the archive before compression.
    pub unpacked: u64,
    /// Files and links that were left as they are because something is mounted there.
    pub mounted: usize,
}

/// What becomes of an entry.
#[derive(Debug, PartialEq, Eq)]
enum Made {
    Folder,
    File,
    Link(PathBuf),
}

/// Makes what is at `paths` what the archive holds: what else is there goes first, since old and new files together can be
/// a state that never was. Read-only mounts below are the pod's, whatever the archive holds in their places: they stay. Permissions
/// and times are kept, links stay links. The archive has at most `limit` bytes before
/// compression.
///
/// # Errors
/// [`RestoreFault`].
pub fn restore(archive: &mut File, paths: &[PathBuf], limit: u64) -> Result<Restored, RestoreFault> {
    let roots = distinct(paths);
    let (mut restored, mut links) = (Restored::default(), HashSet::new());
    restored.unpacked = each(archive, limit, |entry| {
        let (path, made) = judge(entry, &roots)?;
        let is_below_a_link = path.ancestors().skip(1).any(|above| links.contains(above));
        if is_below_a_link {
            return Err(RestoreFault::Outside);
        }
        if matches!(made, Made::Link(_)) {
            links.insert(path);
        }
        Ok(())
    })?;
    let mounts = Mounts::at(&roots);
    for root in &roots {
        clear(root, &mounts).map_err(unwritable)?;
    }
    let mut folders = Vec::new();
    each(archive, limit, |entry| {
        let (path, made) = judge(entry, &roots)?;
        let Some(root) = roots.iter().find(|root| path.starts_with(root)) else { return Err(RestoreFault::Elsewhere) };
        if mounts.cover(root) {
            return Err(RestoreFault::Unwritable(Some(libc::EROFS)));
        }
        if mounts.cover(&path) {
            restored.mounted += usize::from(made != Made::Folder);
            return Ok(());
        }
        make_folders(root, &path)?;
        let (mode, time) = (entry.header().mode().unwrap_or(0o600) & 0o777, time(entry));
        match made {
            Made::Folder => {
                if make_folder(&path, path == *root)? {
                    folders.push((path, mode, time));
                }
            }
            Made::File => match write(entry, &path, mode, time)? {
                true => restored.files += 1,
                false => restored.mounted += 1,
            },
            Made::Link(target) => match vacate(&path)? {
                true => symlink(target, &path).map_err(unwritable)?,
                false => restored.mounted += 1,
            },
        }
        Ok(())
    })?;
    // Last, and the inner ones first: a folder may forbid to write into it, and writing into it changes its time.
    for (path, mode, time) in folders.into_iter().rev() {
        let folder = File::open(&path).map_err(unwritable)?;
        let _ = folder.set_times(FileTimes::new().set_modified(time));
        folder.set_permissions(Permissions::from_mode(mode)).map_err(unwritable)?;
    }
    Ok(restored)
}

/// Hands out every entry; returns how many bytes the archive has before compression.
fn each(
    archive: &mut File,
    limit: u64,
    mut take: impl FnMut(&mut Entry<'_, Limited<'_>>) -> Result<(), RestoreFault>,
) -> Result<u64, RestoreFault> {
    let damaged = |error: io::Error| match error.kind() {
        io::ErrorKind::FileTooLarge => RestoreFault::TooLarge(limit),
        _ => RestoreFault::Damaged,
    };
    archive.seek(SeekFrom::Start(0)).map_err(unwritable)?;
    let mut decoder = zstd::Decoder::with_buffer(BufReader::new(&*archive)).map_err(damaged)?;
    decoder.window_log_max(WINDOW_LOG).map_err(damaged)?;
    let header = Cell::new(MAX_HEADER_BYTES);
    let mut archive = Archive::new(Limited { inner: Box::new(decoder), left: limit, header: &header });
    for entry in archive.entries().map_err(damaged)? {
        let mut entry = entry.map_err(damaged)?;
        header.set(u64::MAX);
        take(&mut entry)?;
        // Read to its end in any case, so that it counts.
        io::copy(&mut entry, &mut io::sink()).map_err(damaged)?;
        header.set(MAX_HEADER_BYTES);
    }
    Ok(limit - archive.into_inner().left)
}

/// Where an entry goes and what it is.
fn judge(entry: &Entry<'_, impl Read>, roots: &[PathBuf]) -> Result<(PathBuf, Made), RestoreFault> {
    let name = entry.path().map_err(|_| RestoreFault::Damaged)?;
    let mut path = PathBuf::from("/");
    for part in name.components() {
        match part {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            Component::Prefix(_) | Component::RootDir | Component::ParentDir => return Err(RestoreFault::Outside),
        }
    }
    if !roots.iter().any(|root| path.starts_with(root)) {
        return Err(RestoreFault::Elsewhere);
    }
    let made = match entry.header().entry_type() {
        EntryType::Directory => Made::Folder,
        EntryType::Regular => Made::File,
        EntryType::Symlink => {
            let target = entry.link_name().map_err(|_| RestoreFault::Damaged)?.ok_or(RestoreFault::Damaged)?;
            Made::Link(target.into_owned())
        }
        // No checkpoint holds hard links, devices or anything else.
        _ => return Err(RestoreFault::Damaged),
    };
    Ok((path, made))
}

fn time(entry: &Entry<'_, impl Read>) -> SystemTime {
    let seconds = entry.header().mtime().unwrap_or(0);
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Makes the folders between the state path and `path`, and refuses whatever else is there: a link would lead elsewhere.
fn make_folders(root: &Path, path: &Path) -> Result<(), RestoreFault> {
    let above = |folder: &Path| fs::create_dir_all(folder).map_err(unwritable);
    let Some(parent) = path.parent().filter(|_| path != root) else {
        // The folders above a state path are the template's, or become plain ones.
        return root.parent().map_or(Ok(()), above);
    };
    above(root)?;
    let mut folder = root.to_path_buf();
    for part in parent.strip_prefix(root).into_iter().flat_map(Path::components) {
        folder.push(part);
        make_folder(&folder, false)?;
    }
    Ok(())
}

/// Makes one folder; true when it was not there. A state path itself may be a link to a folder, as the template has it.
fn make_folder(path: &Path, is_root: bool) -> Result<bool, RestoreFault> {
    match fs::create_dir(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let found = if is_root { fs::metadata(path) } else { fs::symlink_metadata(path) };
            if found.map_err(unwritable)?.is_dir() { Ok(false) } else { Err(RestoreFault::Outside) }
        }
        Err(error) => Err(unwritable(error)),
    }
}

/// Writes a file anew. False when something is mounted there, which stays.
fn write(entry: &mut impl Read, path: &Path, mode: u32, time: SystemTime) -> Result<bool, RestoreFault> {
    if !vacate(path)? {
        return Ok(false);
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(unwritable)?;
    let mut buffer = [0; 64 * 1024];
    loop {
        // What cannot be read is the archive's fault, what cannot be written the disk's.
        let count = entry.read(&mut buffer).map_err(|_| RestoreFault::Damaged)?;
        if count == 0 {
            break;
        }
        file.write_all(&buffer[..count]).map_err(unwritable)?;
    }
    let _ = file.set_times(FileTimes::new().set_modified(time));
    file.set_permissions(Permissions::from_mode(mode)).map_err(unwritable)?;
    Ok(true)
}

/// Takes away what is at a place, unless it is a folder. False when it is mounted there, or the image's on a file system that is
/// read-only. Where nothing is on such a one, nothing can be put back.
fn vacate(path: &Path) -> Result<bool, RestoreFault> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) if is_mounted(&error) && fs::symlink_metadata(path).is_ok() => Ok(false),
        Err(error) => Err(unwritable(error)),
    }
}

/// Takes away what is at a state path, but not the folder itself: it may be a volume. What is mounted below stays, emptied where
/// it can be written to.
fn clear(root: &Path, mounts: &Mounts) -> io::Result<()> {
    if mounts.cover(root) {
        return Ok(());
    }
    let entries = match fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return tolerate(fs::remove_file(root)),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        if mounts.lie_below(&entry.path()) {
            clear(&entry.path(), mounts)?;
            continue;
        }
        if !entry.file_type()?.is_dir() {
            tolerate(fs::remove_file(entry.path()))?;
            continue;
        }
        match fs::remove_dir_all(entry.path()) {
            Ok(()) => {}
            Err(error) if is_mounted(&error) => clear(&entry.path(), mounts)?,
            // A folder that forbids to write into it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                open_up(&entry.path())?;
                fs::remove_dir_all(entry.path())?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Lets the owner write into every folder below.
fn open_up(folder: &Path) -> io::Result<()> {
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        fs::set_permissions(&folder, Permissions::from_mode(0o700))?;
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                open.push(entry.path());
            }
        }
    }
    Ok(())
}

fn tolerate(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if is_mounted(&error) || error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// A mount point cannot be removed, and what is mounted may be read-only.
fn is_mounted(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::ReadOnlyFilesystem)
}

fn unwritable(error: io::Error) -> RestoreFault {
    RestoreFault::Unwritable(error.raw_os_error())
}

/// Gives at most so many bytes, and fails at more.
struct Limited<'a> {
    inner: Box<dyn Read + 'a>,
    left: u64,
    /// The same for what is read at present.
    header: &'a Cell<u64>,
}

impl Read for Limited<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let room = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
        if room == 0 && !into.is_empty() {
            // The end may be exactly here.
            return match self.inner.read(&mut [0])? {
                0 => Ok(0),
                _ => Err(io::ErrorKind::FileTooLarge.into()),
            };
        }
        let got = self.inner.read(&mut into[..room])?;
        self.left -= got as u64;
        let header = self.header.get().checked_sub(got as u64).ok_or(io::ErrorKind::InvalidData)?;
        self.header.set(header);
        Ok(got)
    }
}
