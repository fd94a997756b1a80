//! What the pod mounts below the state paths. On a read-only mount lies the pod's own, a `Secret` or a `ConfigMap`, and nothing
//! the agent wrote: no checkpoint takes it along, and none is put over it.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

/// Mount points at and below the state paths, and whether each is read-only.
#[derive(Debug, Default)]
pub(super) struct Mounts(BTreeMap<PathBuf, bool>);

impl Mounts {
    /// Those of this process. Where the system does not tell, there are none.
    pub(super) fn at(roots: &[PathBuf]) -> Self {
        let told = fs::read("/proc/self/mountinfo").unwrap_or_default();
        let mut mounts = Self::default();
        for root in roots {
            // The system knows no links; a state path may be one.
            let real = fs::canonicalize(root).unwrap_or_else(|_| root.clone());
            mounts.add(&told, root, &real);
        }
        mounts
    }

    fn add(&mut self, told: &[u8], root: &Path, real: &Path) {
        for (point, is_read_only) in told.split(|byte| *byte == b'\n').filter_map(read) {
            if let Ok(below) = point.strip_prefix(real) {
                // With its components alone: without a slash at its end when it is the state path itself. Of several mounts
                // over one another the last one counts.
                self.0.insert(root.join(below).components().collect(), is_read_only);
            }
        }
    }

    /// Whether this lies on a read-only mount.
    pub(super) fn cover(&self, path: &Path) -> bool {
        path.ancestors().find_map(|above| self.0.get(above)).copied().unwrap_or(false)
    }

    /// Whether something is mounted there or below.
    pub(super) fn lie_below(&self, path: &Path) -> bool {
        self.0.keys().any(|point| point.starts_with(path))
    }
}

/// Mount point of a line of `mountinfo` (proc(5)), and whether it is read-only: itself, or its file system.
fn read(line: &[u8]) -> Option<(PathBuf, bool)> {
    let mut fields = line.split(|byte| *byte == b' ');
    let (point, own) = (fields.nth(4)?, fields.next()?);
    let of_file_system = fields.next_back()?;
    let is_read_only = |options: &[u8]| options.split(|byte| *byte == b',').any(|option| option == b"ro");
    Some((PathBuf::from(OsString::from_vec(plain(point))), is_read_only(own) || is_read_only(of_file_system)))
}

/// Blanks and the like are written as a backslash and three octal digits.
fn plain(written: &[u8]) -> Vec<u8> {
    let (mut plain, mut rest) = (Vec::with_capacity(written.len()), written);
    while let Some((&first, behind)) = rest.split_first() {
        let escaped = (first == b'\\').then(|| behind.get(..3)).flatten();
        let code = escaped.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        plain.push(code.unwrap_or(first));
        rest = if code.is_some() { &behind[3..] } else { behind };
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_only_mounts_cover_what_is_below_them() {
        let told = b"22 1 0:1 / / rw - overlay overlay rw,lowerdir=/ro\n\
            23 22 0:2 / /real/state rw,relatime - ext4 /dev/sda rw\n\
            24 23 0:3 / /real/state/a\\040\\134b ro,relatime shared:1 - tmpfs tmpfs rw\n\
            25 23 0:4 /file /real/state/file rw - ext4 /dev/sdb ro,errors=remount-ro\n\
            26 23 0:5 / /real/state/over ro - tmpfs tmpfs rw\n\
            27 26 0:6 / /real/state/over rw - tmpfs tmpfs rw\n\
            28 22 0:7 / /real/state-2 ro - tmpfs tmpfs rw\n\
            no line of it\n";
        let mut mounts = Mounts::default();
        mounts.add(told, Path::new("/link"), Path::new("/real/state"));
        for (path, is_covered) in [
            ("/link", false),
            ("/link/x", false),
            ("/link/a \\b", true),
            ("/link/a \\b/c/d", true),
            ("/link/a", false),
            ("/link/file", true),
            ("/link/over/x", false),
            ("/link-2", false),
        ] {
            assert_eq!(mounts.cover(Path::new(path)), is_covered, "{path}");
        }
        assert!(mounts.lie_below(Path::new("/link")) && mounts.lie_below(Path::new("/link/over")));
        assert!(!mounts.lie_below(Path::new("/link/x")));
    }
}
