//! The agent's process tree: start, environment, reaping, signals, and the sweep at the end.

mod environment;
mod reap;
mod spawn;
mod sweep;

pub use reap::{Exit, Reaper};
pub use spawn::start;
pub use sweep::sweep;

use nix::{
    sys::{
        prctl,
        signal::{Signal, killpg},
    },
    unistd::Pid,
};

/// Prepares this process for its role: orphans of the agent become its children, also where it is not process 1, and
/// processes of the same user can neither trace it nor read its memory and environment.
pub fn prepare() -> nix::Result<()> {
    prctl::set_child_subreaper(true)?;
    prctl::set_dumpable(false)
}

/// Signals a whole process group. A group that is gone already is no error.
pub fn signal_group(group: Pid, signal: Signal) {
    if let Err(error) = killpg(group, signal)
        && error != nix::errno::Errno::ESRCH
    {
        tracing::warn!(%group, %signal, %error, "signalling the agent's process group");
    }
}
