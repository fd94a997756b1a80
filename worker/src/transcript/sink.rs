//! Writes lines to stdout without the worker waiting for it: a log pipe that nobody reads must not hold up a cancel.

use std::{
    io::Write,
    sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    thread,
    time::{Duration, Instant},
};

/// Lines that wait for the pipe. With lines of a few KiB this bounds the memory to a few MiB.
const QUEUE: usize = 1024;
/// How long bursts of lines may wait for room. It is used up by waiting and comes back ten times slower, so a log that is
/// read slowly takes at most a tenth of the worker's time; lines that find it used up are dropped.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long the end of the process waits for the pipe.
const FLUSH: Duration = Duration::from_secs(2);

enum Item {
    Line(String),
    Flush(SyncSender<()>),
}

/// A thread that writes, and the queue to it.
#[derive(Debug)]
pub struct Sink {
    queue: SyncSender<Item>,
    /// Lines that found the queue full.
    lost: u64,
    /// What is left of the patience, and when that was reckoned.
    patience: Duration,
    reckoned_at: Instant,
}

impl Sink {
    /// Starts writing to `target`.
    pub fn start(target: impl Write + Send + 'static) -> Self {
        let (queue, items) = sync_channel(QUEUE);
        // Without the thread (no memory for its stack) lines are counted as lost; the run goes on.
        let _ = thread::Builder::new().name("transcript".into()).spawn(move || write_all(&items, target));
        Self { queue, lost: 0, patience: PATIENCE, reckoned_at: Instant::now() }
    }

    /// Queues a line with its end.
    pub fn write(&mut self, line: String) {
        if self.lost > 0 {
            let note = format!("worker: {} lines were not written here, the log was not read fast enough\n", self.lost);
            if self.queue.try_send(Item::Line(note)).is_ok() {
                self.lost = 0;
            }
        }
        let mut item = Item::Line(line);
        let start = Instant::now();
        let deadline = start + self.patience_at(start);
        loop {
            match self.queue.try_send(item) {
                Ok(()) => break,
                Err(TrySendError::Full(back)) if Instant::now() < deadline => {
                    item = back;
                    thread::sleep(Duration::from_millis(1));
                }
                Err(_) => {
                    self.lost += 1;
                    break;
                }
            }
        }
        self.patience = self.patience.saturating_sub(start.elapsed());
        self.reckoned_at = Instant::now();
    }

    /// The patience at this time.
    fn patience_at(&mut self, now: Instant) -> Duration {
        self.patience = PATIENCE.min(self.patience + now.saturating_duration_since(self.reckoned_at) / 10);
        self.patience
    }

    /// Waits until the queue is written, at most [`FLUSH`].
    pub fn flush(&self) {
        let deadline = Instant::now() + FLUSH;
        let (done, wait) = sync_channel(1);
        let mut item = Item::Flush(done);
        while let Err(TrySendError::Full(back)) = self.queue.try_send(item) {
            if Instant::now() >= deadline {
                return;
            }
            item = back;
            thread::sleep(Duration::from_millis(1));
        }
        let _ = wait.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

fn write_all(items: &Receiver<Item>, mut target: impl Write) {
    for item in items {
        match item {
            // A closed pipe has no reader to tell.
            Item::Line(line) => {
                let _ = target.write_all(line.as_bytes());
            }
            Item::Flush(done) => {
                let _ = target.flush();
                let _ = done.try_send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_written_in_order() {
        let target = Shared::default();
        let mut sink = Sink::start(target.clone());
        sink.write("a\n".into());
        sink.write("b\n".into());
        sink.flush();
        assert_eq!(target.0.lock().unwrap().as_slice(), b"a\nb\n");
    }

    #[test]
    fn a_blocked_pipe_costs_lines_and_not_time() {
        struct Blocked(Arc<Mutex<()>>);
        impl Write for Blocked {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                drop(self.0.lock());
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let gate = Arc::new(Mutex::new(()));
        let held = gate.lock().unwrap();
        let mut sink = Sink::start(Blocked(gate.clone()));
        let start = Instant::now();
        for _ in 0..3 * QUEUE {
            sink.write("x\n".into());
        }
        assert!(sink.lost as usize >= QUEUE, "{}", sink.lost);
        assert!(start.elapsed() < Duration::from_secs(2), "waits once, not per line");
        drop(held);
        sink.flush();
        sink.write("y\n".into());
        assert_eq!(sink.lost, 0);
    }
}
