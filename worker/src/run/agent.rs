//! The running agent: its frames, its end, and the lines it prints on stderr.

use crate::{
    acp::{Connection, Frame, Incoming, Line, LineReader},
    outcome::StartFault,
    process::{self, Exit, Reaper},
    transcript::{Speaker, Transcript},
};
use nix::unistd::Pid;
use std::{ffi::OsString, path::Path, time::Duration};
use tokio::{
    io::AsyncRead,
    process::ChildStderr,
    sync::oneshot,
    time::{Instant, sleep_until},
};

/// Longest line of stderr that is shown, in bytes (design section 8).
const STDERR_LINE_BYTES: usize = 4096;
/// How long after the agent's end its last frames are read. A grandchild may hold the pipe open for ever.
const DRAIN: Duration = Duration::from_secs(1);
/// How long after the end of its stdout an agent may take to end itself, before that counts as its end.
const LINGER: Duration = Duration::from_secs(2);

/// What the agent did.
#[derive(Debug)]
pub enum AgentEvent {
    /// Sent a frame.
    Frame(Frame),
    /// Printed a line that is none.
    Garbage(String),
    /// Wrote a line over the limit.
    TooLong,
    /// Ended or closed its stdout, and every frame was read. Told once; without an exit when the process still lives.
    Gone(Option<Exit>),
    /// The process ended after it had closed its stdout.
    Exited,
}

/// The agent.
#[derive(Debug)]
pub struct RunningAgent {
    /// Its process group.
    pub group: Pid,
    /// Frames to it.
    pub connection: Connection,
    wait: oneshot::Receiver<Exit>,
    exit: Option<Exit>,
    closed: bool,
    gone: bool,
    gone_at: Option<Instant>,
}

impl RunningAgent {
    /// Starts it.
    ///
    /// # Errors
    /// [`StartFault`].
    pub fn start(
        argv: &[OsString],
        cwd: &Path,
        spare_home: &Path,
        reaper: &Reaper,
        transcript: &Transcript,
    ) -> Result<Self, StartFault> {
        let started = process::start(argv, cwd, spare_home, reaper)?;
        tokio::spawn(copy_stderr(started.stderr, transcript.clone()));
        Ok(Self {
            group: started.group,
            connection: Connection::new(started.stdin, started.stdout),
            wait: started.exit,
            exit: None,
            closed: false,
            gone: false,
            gone_at: None,
        })
    }

    /// True once the process was collected.
    pub fn has_exited(&self) -> bool {
        self.exit.is_some()
    }

    /// What comes next. Safe to cancel. After the agent is gone for good it stays pending.
    pub async fn next(&mut self) -> AgentEvent {
        loop {
            if !self.gone && self.closed && self.exit.is_some() {
                return self.go();
            }
            tokio::select! {
                incoming = self.connection.next(), if !self.closed => match incoming {
                    Incoming::End => {
                        self.closed = true;
                        self.gone_at.get_or_insert(Instant::now() + LINGER);
                    }
                    _ if self.gone => {}
                    Incoming::Frame(frame) => return AgentEvent::Frame(frame),
                    Incoming::Garbage(line) => return AgentEvent::Garbage(line),
                    Incoming::TooLong => return AgentEvent::TooLong,
                },
                exit = &mut self.wait, if self.exit.is_none() => {
                    // The sender lives in the reaper until it has told; it never just goes.
                    self.exit = Some(exit.unwrap_or(Exit::Code(-1)));
                    if self.gone {
                        return AgentEvent::Exited;
                    }
                    self.gone_at = Some(Instant::now() + DRAIN);
                }
                () = sleep_until(self.gone_at.unwrap_or_else(Instant::now)), if !self.gone && self.gone_at.is_some() => {
                    return self.go();
                }
                else => std::future::pending::<()>().await,
            }
        }
    }

    fn go(&mut self) -> AgentEvent {
        self.gone = true;
        AgentEvent::Gone(self.exit)
    }
}

/// Copies stderr into the transcript, each line bounded: the rest of a longer one is left out.
async fn copy_stderr(stderr: ChildStderr, transcript: Transcript) {
    copy_lines(stderr, |line| transcript.line(Speaker::Stderr, line)).await;
}

async fn copy_lines(source: impl AsyncRead + Unpin, mut show: impl FnMut(&str)) {
    let mut lines = LineReader::cutting(source, STDERR_LINE_BYTES);
    loop {
        match lines.next().await {
            Line::Text(line) => show(&line),
            Line::TooLong => {}
            Line::End => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stderr_lines_are_cut_at_4_kib() {
        let text = format!("short\n{}\nlast\n", "x".repeat(10_000));
        let mut shown = Vec::new();
        copy_lines(text.as_bytes(), |line| shown.push(line.len())).await;
        assert_eq!(shown, [5, 4096, 4]);
    }
}
