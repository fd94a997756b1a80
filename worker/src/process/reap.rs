//! Reaping. Process 1 inherits every orphan of its container and must collect them all, so nothing else in the worker
//! may wait for a child: whoever wants an exit status asks here.

use nix::{
    sys::wait::{WaitPidFlag, WaitStatus, waitpid},
    unistd::Pid,
};
use std::{
    collections::HashMap,
    io,
    process::{Child, Command},
    sync::{Arc, Mutex, PoisonError},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// Collects ended children and tells whoever waits for one.
#[derive(Clone, Debug)]
pub struct Reaper {
    waiting: Arc<Mutex<HashMap<Pid, oneshot::Sender<Exit>>>>,
}

impl Reaper {
    /// Starts collecting in the background.
    ///
    /// # Errors
    /// When no handler for SIGCHLD can be installed.
    pub fn start() -> io::Result<Self> {
        let reaper = Self { waiting: Arc::default() };
        let mut ended = signal(SignalKind::child())?;
        let background = reaper.clone();
        tokio::spawn(async move {
            while ended.recv().await.is_some() {
                background.collect();
            }
        });
        Ok(reaper)
    }

    /// Starts a command and a wait for its end. Both happen under the lock that collecting takes, so a process that ends
    /// at once is not collected before somebody waits for it.
    ///
    /// # Errors
    /// When the command does not start.
    pub fn spawn(&self, command: &mut Command) -> io::Result<(Child, Pid, oneshot::Receiver<Exit>)> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let child = command.spawn()?;
        let pid = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
        let (told, wait) = oneshot::channel();
        waiting.insert(pid, told);
        Ok((child, pid, wait))
    }

    /// Collects every child that has ended by now.
    pub fn collect(&self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let (pid, exit) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, Exit::Code(code)),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, Exit::Signal(signal as i32)),
                Ok(WaitStatus::StillAlive) | Err(nix::errno::Errno::ECHILD) => return,
                Ok(_) | Err(nix::errno::Errno::EINTR) => continue,
                Err(error) => {
                    tracing::warn!(%error, "collecting ended processes");
                    return;
                }
            };
            tracing::debug!(%pid, ?exit, "collected");
            if let Some(told) = waiting.remove(&pid) {
                let _ = told.send(exit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // One test, as it collects the children of the whole test process.
    #[tokio::test]
    async fn the_agents_status_is_told_and_orphans_are_collected() {
        let reaper = Reaper::start().unwrap();
        let (_child, _, exit) = reaper.spawn(Command::new("sh").args(["-c", "exit 7"])).unwrap();
        assert_eq!(exit.await.unwrap(), Exit::Code(7));
        let (_child, pid, exit) = reaper.spawn(Command::new("sleep").arg("100")).unwrap();
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
        assert_eq!(exit.await.unwrap(), Exit::Signal(9));
    }
}
