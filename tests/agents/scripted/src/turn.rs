//! One turn as the rest of the agent sees it: what may reach it while its steps run.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Why a wait ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wake {
    /// The turn was cancelled.
    Cancelled,
    /// A text was steered into it.
    Steered(String),
    /// What was waited for has come: the time is over, or the thing is ready.
    Ready,
}

#[derive(Default)]
struct State {
    cancelled: bool,
    deaf: bool,
    ended: bool,
    steered: VecDeque<String>,
}

impl State {
    fn is_cancelled(&self) -> bool {
        self.cancelled && !self.deaf
    }
}

/// A running turn.
#[derive(Default)]
pub struct Turn {
    state: Mutex<State>,
    changed: Condvar,
}

impl Turn {
    /// Makes it notice no cancel, neither one that has come already nor a later one.
    pub fn go_deaf(&self) {
        self.lock().deaf = true;
    }

    /// Cancels it, now or, when nothing waits, at its next step.
    pub fn cancel(&self) {
        self.lock().cancelled = true;
        self.changed.notify_all();
    }

    /// Whether it was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.lock().is_cancelled()
    }

    /// Puts a text into it; false when it has ended and the text went nowhere.
    #[must_use]
    pub fn steer(&self, text: &str) -> bool {
        let mut state = self.lock();
        if state.ended {
            return false;
        }
        state.steered.push_back(text.into());
        self.changed.notify_all();
        true
    }

    /// Ends it for steering, unless a text has arrived that nobody has taken yet: then that comes back first.
    pub fn end(&self) -> Option<String> {
        let mut state = self.lock();
        let steered = state.steered.pop_front();
        state.ended = steered.is_none();
        steered
    }

    /// The next text that was steered in and nobody has taken yet.
    pub fn take_steered(&self) -> Option<String> {
        self.lock().steered.pop_front()
    }

    /// Waits until the turn is cancelled, steered, `ready` says so, or the time is over; `None` is forever.
    ///
    /// `ready` is looked at again after every [`Turn::nudge`].
    pub fn wait(&self, time: Option<Duration>, mut ready: impl FnMut() -> bool) -> Wake {
        let deadline = time.and_then(|time| Instant::now().checked_add(time));
        let mut state = self.lock();
        loop {
            if state.is_cancelled() {
                return Wake::Cancelled;
            }
            if let Some(text) = state.steered.pop_front() {
                return Wake::Steered(text);
            }
            if ready() {
                return Wake::Ready;
            }
            state = match deadline {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Wake::Ready;
                    }
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Makes a waiting turn look again at what it waits for.
    pub fn nudge(&self) {
        // Taken and given back, so that a turn between looking and waiting cannot miss it.
        drop(self.lock());
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancel_ends_a_wait_without_end() {
        let turn = Turn::default();
        std::thread::scope(|scope| {
            scope.spawn(|| turn.cancel());
            assert_eq!(turn.wait(None, || false), Wake::Cancelled);
        });
    }

    #[test]
    fn a_deaf_turn_is_never_cancelled() {
        let turn = Turn::default();
        turn.cancel();
        turn.go_deaf();
        assert!(!turn.is_cancelled());
        assert_eq!(turn.wait(Some(Duration::ZERO), || false), Wake::Ready);
    }

    #[test]
    fn a_steered_text_is_taken_once_and_in_order() {
        let turn = Turn::default();
        assert!(turn.steer("a") && turn.steer("b"));
        assert_eq!(turn.wait(None, || false), Wake::Steered("a".into()));
        assert_eq!(turn.take_steered(), Some("b".into()));
        assert_eq!(turn.wait(Some(Duration::ZERO), || false), Wake::Ready);
    }

    #[test]
    fn a_text_that_meets_the_end_is_either_taken_or_refused() {
        let turn = Turn::default();
        assert!(turn.steer("just in time"));
        assert_eq!(turn.end(), Some("just in time".into()));
        assert!(turn.steer("again"));
        assert_eq!(turn.end(), Some("again".into()));
        assert_eq!(turn.end(), None);
        assert!(!turn.steer("too late"));
    }
}
