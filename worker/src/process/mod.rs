//! The agent's process tree: start, environment, reaping, signals, and the sweep at the end.

mod environment;
mod memory;
mod reap;
mod spawn;
mod sweep;

pub use memory::Memory;
pub use reap::{Exit, Reaper};
pub use spawn::start;
pub use sweep::sweep;

use crate::transcript::clip;
use nix::{
    sys::{
        prctl,
        signal::{Signal, killpg},
    },
    unistd::Pid,
};
use std::{fs::OpenOptions, io::Write, path::Path};

/// Prepares this process for its role: orphans of the agent become its children, also where it is not process 1, and
/// processes of the same user can neither trace it nor read its memory and environment.
pub fn prepare() -> nix::Result<()> {
    prctl::set_child_subreaper(true)?;
    prctl::set_dumpable(false)
}

/// Longest termination message the kubelet reads, in bytes.
const TERMINATION_MESSAGE_BYTES: usize = 4096;

/// Leaves a termination message, where there is a place for one: the file is made by the container's runtime.
pub fn leave_message(file: &Path, text: &str) {
    let written = OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(file)
        .and_then(|mut file| file.write_all(clip(text, TERMINATION_MESSAGE_BYTES).as_bytes()));
    if let Err(error) = written {
        tracing::debug!(%error, "no termination message");
    }
}

/// Signals a whole process group. A group that is gone already is no error.
pub fn signal_group(group: Pid, signal: Signal) {
    if let Err(error) = killpg(group, signal)
        && error != nix::errno::Errno::ESRCH
    {
        tracing::warn!(%group, %signal, %error, "signalling the agent's process group");
    }
}
