//! A share of the thread for everybody: the agent's frames, the link, the writers and the timers are tasks of one thread.

/// Frames of the agent that are handled in one go. An agent that writes without pause never lets this task wait.
const FRAMES_IN_A_ROW: u32 = 64;

/// Counts the frames handled since the others had their turn.
#[derive(Debug, Default)]
pub struct Share {
    in_a_row: u32,
}

impl Share {
    /// A frame was there at once.
    pub fn used(&mut self) {
        self.in_a_row += 1;
    }

    /// Lets the others have their turn when it is due.
    pub async fn give(&mut self) {
        if self.in_a_row >= FRAMES_IN_A_ROW {
            self.in_a_row = 0;
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    #[tokio::test]
    async fn t4_others_have_their_turn_under_frames_without_end() {
        let turns = Arc::new(AtomicU32::new(0));
        let other = turns.clone();
        let other = tokio::spawn(async move {
            loop {
                other.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        let mut share = Share::default();
        for _ in 0..6400 {
            share.give().await;
            share.used();
        }
        other.abort();
        assert!(turns.load(Ordering::Relaxed) >= 99, "{turns:?}");
    }
}
