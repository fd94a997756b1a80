//! Work beside the loop: with a disk, or with the gateway. Cancels, signals, the agent and the link are heard meanwhile.

use super::{
    attempt::{Attempt, Halt, Wake},
    retry::Trouble,
};
use crate::outcome::End;
use std::{panic::resume_unwind, time::Duration};
use subagent_link::Storing;
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

/// What is heard of work while it is done, with what it is called in the activity.
pub(super) struct Signs {
    /// What it stores, if the turn is not over before that.
    pub(super) stores: Option<Storing>,
    /// What is in the way.
    pub(super) trouble: (&'static str, watch::Receiver<Trouble>),
    /// How far it has come: whenever that changes, it is a sign of life.
    pub(super) moved: Option<(&'static str, watch::Receiver<u64>)>,
}

impl Signs {
    /// Waits for the next one. Safe to cancel.
    async fn next(&mut self) -> String {
        let (what, trouble) = &mut self.trouble;
        let moved = async {
            if let Some((what, moved)) = &mut self.moved
                && moved.changed().await.is_ok()
            {
                return *what;
            }
            // Its sender goes with the work.
            std::future::pending().await
        };
        let stuck = async {
            while trouble.changed().await.is_ok() {
                let words = trouble.borrow_and_update().words.clone();
                if !words.is_empty() {
                    return (*what, words);
                }
            }
            std::future::pending().await
        };
        tokio::select! {
            (what, words) = stuck => format!("{what}: {words}"),
            // Every try moves something: what the last one met stays said until it works.
            what = moved => match self.trouble() {
                Some(words) => format!("{what} again; in the way was: {words}"),
                None => what.to_owned(),
            },
        }
    }

    /// What was in the way last.
    fn trouble(&self) -> Option<String> {
        Some(self.trouble.1.borrow().words.clone()).filter(|words| !words.is_empty())
    }
}

impl Attempt {
    /// Does `work` and waits for it. Once the attempt is to stop, it may go on for `grace`. What was in the way of it is a
    /// circumstance of the end, however that comes, unless it works.
    ///
    /// # Errors
    /// [`Halt`]: stopped, refused, or the agent broke the protocol. Nobody waits for the work any more then.
    pub(super) async fn beside<T: Send + 'static, E: Send + 'static>(
        &mut self,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
        grace: Duration,
        mut signs: Signs,
    ) -> Result<Result<T, E>, Halt> {
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
                done = &mut job.0 => {
                    let done = finished(done);
                    self.circumstances.trouble = signs.trouble().filter(|_| done.is_err());
                    if signs.stores.is_some() && done.is_ok() {
                        self.ledger.note(|snapshot| snapshot.storing = None);
                    }
                    return Ok(done);
                }
                sign = signs.next() => {
                    self.note_activity(&sign);
                    if let (Some(stores), trouble @ Some(_)) = (&signs.stores, signs.trouble()) {
                        self.ledger.keep_again(Storing { trouble, ..stores.clone() });
                    }
                }
                wake = self.next(until) => match wake {
                    Wake::Agent(event) => self.take(event)?,
                    Wake::Deadline => {
                        if let Some(cause) = self.stop {
                            self.circumstances.trouble = signs.trouble();
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
