//! Waits between connection attempts.

use std::time::Duration;
use subagent_link::{RECONNECT_MAX, RECONNECT_MIN};

/// Doubles from [`RECONNECT_MIN`] to [`RECONNECT_MAX`]. A wait lies between half of that and all of it, so that workers
/// that lost the same gateway do not come back in step.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
}

impl Backoff {
    /// Starts at the shortest wait.
    pub fn new() -> Self {
        Self { next: RECONNECT_MIN }
    }

    /// Starts again, after a connection was accepted.
    pub fn reset(&mut self) {
        self.next = RECONNECT_MIN;
    }

    /// The next wait; `fraction` is random in `0.0..=1.0`.
    pub fn wait(&mut self, fraction: f64) -> Duration {
        let full = self.next;
        self.next = (full * 2).min(RECONNECT_MAX);
        full.mul_f64(0.5 + fraction.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_to_the_bound_with_jitter() {
        let mut backoff = Backoff::new();
        let longest: Vec<u128> = (0..8).map(|_| backoff.wait(1.0).as_millis()).collect();
        assert_eq!(longest, [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert_eq!(backoff.wait(0.0).as_millis(), 5000);
        backoff.reset();
        assert_eq!(backoff.wait(0.5).as_millis(), 150);
    }
}
