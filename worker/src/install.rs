//! `install`: what the init container does.

use anyhow::Context;
use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
};

/// Copies this executable to `dest/bin/subagent-worker` and makes `dest/home`.
///
/// The agent's container may run under any user id, so the binary is readable and executable by all and the home folder
/// is writable by all, with the sticky bit. The copy appears under its name only when it is complete: an init container
/// that was killed and started again never leaves half a binary.
///
/// # Errors
/// When a folder or file cannot be written; the message names it.
pub fn install(dest: &Path) -> anyhow::Result<()> {
    let source = std::env::current_exe().context("finding the own executable")?;
    let bin = dest.join("bin");
    folder(&bin, 0o755)?;
    folder(&dest.join("home"), 0o1777)?;
    let (target, partial) = (bin.join("subagent-worker"), bin.join(format!(".partial-{}", std::process::id())));
    fs::copy(&source, &partial).with_context(|| format!("copying {} to {}", source.display(), partial.display()))?;
    fs::set_permissions(&partial, Permissions::from_mode(0o755))
        .with_context(|| format!("setting the mode of {}", partial.display()))?;
    fs::rename(&partial, &target).with_context(|| format!("renaming to {}", target.display()))?;
    Ok(())
}

/// Makes a folder with exactly this mode, whatever the umask. One that exists already is kept as it is when it belongs
/// to another user.
fn folder(path: &Path, mode: u32) -> anyhow::Result<()> {
    fs::create_dir_all(path).with_context(|| format!("making {}", path.display()))?;
    let current = fs::metadata(path).with_context(|| format!("reading {}", path.display()))?.permissions().mode();
    if current & 0o7777 != mode {
        fs::set_permissions(path, Permissions::from_mode(mode))
            .with_context(|| format!("setting the mode of {}", path.display()))?;
    }
    Ok(())
}
