//! Work beside the loop: with a disk, or with the gateway. Cancels, signals, the agent and the link are heard meanwhile.

use super::attempt::{Attempt, Halt, Wake};
use crate::outcome::End;
use std::{panic::resume_unwind, time::Duration};
use tokio::{
    sync::watch,
    task::{JoinHandle, spawn_blocking},
    time::Instant,
};

/// A task that ends with its owner.
struct Job<T>(JoinHandle<T>);

impl<T> Drop for Job<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Attempt {
    /// Does `work` and waits for it. Once the attempt is to stop, it may go on for `grace`. Whenever `moved` changes, that is a
    /// sign of life.
    ///
    /// # Errors
    /// [`Halt`]: stopped, refused, or the agent broke the protocol. Nobody waits for the work any more then.
    pub(super) async fn beside<T: Send + 'static>(
        &mut self,
        work: impl Future<Output = T> + Send + 'static,
        grace: Duration,
        mut moved: watch::Receiver<u64>,
    ) -> Result<T, Halt> {
        let (stage, prompted) = (self.stage(), self.ledger.turns() > 0);
        let mut job = Job(tokio::spawn(work));
        let mut until = None;
        loop {
            if self.is_refused() {
                return Err(Halt::Refused);
            }
            if until.is_none() && self.stop.is_some() {
                until = Some(Instant::now() + grace);
            }
            tokio::select! {
                biased;
                done = &mut job.0 => return Ok(finished(done)),
                Ok(()) = moved.changed() => self.note_activity("storing the session"),
                wake = self.next(until) => match wake {
                    Wake::Agent(event) => self.take(event)?,
                    Wake::Deadline => {
                        if let Some(cause) = self.stop {
                            return Err(Halt::End(End::Stopped { cause, stage, prompted }));
                        }
                    }
                    Wake::News => {}
                },
            }
        }
    }
}

/// Does `work`, which blocks, on a thread of its own.
pub(super) async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    finished(spawn_blocking(work).await)
}

/// Nobody stops a task that is waited for: one that has no value panicked.
fn finished<T>(done: Result<T, tokio::task::JoinError>) -> T {
    done.unwrap_or_else(|error| resume_unwind(error.into_panic()))
}
