//! The runs that are connected to this replica, and those that are being stopped.

use crate::metrics::Metrics;
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Connections by run UID. A run has one current attempt, and only its worker gets this far.
#[derive(Debug)]
pub(super) struct Connections {
    inner: Mutex<Inner>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct Inner {
    seats: HashMap<String, Entry>,
    /// Runs that are to stop and are not over, connected or not: a worker that connects a moment after the change was
    /// seen must still hear of it.
    stopping: HashSet<String>,
    next_id: u64,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    replaced: CancellationToken,
    stop: watch::Sender<bool>,
}

/// A worker's place; dropping it frees the place.
#[derive(Debug)]
pub(super) struct Seat {
    connections: Arc<Connections>,
    run_uid: String,
    id: u64,
    /// Fires when a newer connection of the run was admitted.
    pub replaced: CancellationToken,
    /// True once the run is being stopped.
    pub stop: watch::Receiver<bool>,
}

impl Connections {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { inner: Mutex::default(), metrics }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the run's place. The newest connection wins: an older one is of a connection the worker has given up, or
    /// of an older attempt. `stop` is what the live run said at admission.
    pub fn join(self: &Arc<Self>, run_uid: &str, stop: bool) -> Seat {
        let mut inner = self.lock();
        inner.next_id += 1;
        let id = inner.next_id;
        let (sender, receiver) = watch::channel(stop || inner.stopping.contains(run_uid));
        let replaced = CancellationToken::new();
        let entry = Entry { id, replaced: replaced.clone(), stop: sender };
        if let Some(older) = inner.seats.insert(run_uid.to_owned(), entry) {
            older.replaced.cancel();
        }
        self.metrics.link_connections.inc();
        Seat { connections: self.clone(), run_uid: run_uid.to_owned(), id, replaced, stop: receiver }
    }

    /// The run is to stop.
    pub fn stop(&self, run_uid: &str) {
        let mut inner = self.lock();
        if let Some(entry) = inner.seats.get(run_uid) {
            entry.stop.send_replace(true);
        }
        inner.stopping.insert(run_uid.to_owned());
    }

    /// The run is over or gone.
    pub fn forget(&self, run_uid: &str) {
        self.lock().stopping.remove(run_uid);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut inner = self.connections.lock();
        if inner.seats.get(&self.run_uid).is_some_and(|entry| entry.id == self.id) {
            inner.seats.remove(&self.run_uid);
        }
        self.connections.metrics.link_connections.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections() -> Arc<Connections> {
        Arc::new(Connections::new(Arc::new(Metrics::new())))
    }

    #[test]
    fn r9_the_newest_connection_of_a_run_wins() {
        let connections = connections();
        let first = connections.join("run", false);
        let other = connections.join("other", false);
        let second = connections.join("run", false);
        assert!(first.replaced.is_cancelled() && !second.replaced.is_cancelled() && !other.replaced.is_cancelled());
        // The late end of the older one does not free the newer one's place.
        drop(first);
        connections.stop("run");
        assert!(*second.stop.borrow());
        assert_eq!(connections.metrics.link_connections.get(), 2);
        drop((second, other));
        assert_eq!(connections.metrics.link_connections.get(), 0);
        assert!(connections.lock().seats.is_empty());
    }

    #[test]
    fn s7_a_stop_reaches_the_connected_the_late_and_nobody_else() {
        let connections = connections();
        let here = connections.join("run", false);
        let other = connections.join("other", false);
        connections.stop("run");
        assert!(*here.stop.borrow() && !*other.stop.borrow());
        assert!(*connections.join("run", false).stop.borrow(), "seen before it connected");
        assert!(*connections.join("third", true).stop.borrow(), "seen by the live read");
        connections.forget("run");
        assert!(!*connections.join("run", false).stop.borrow());
    }
}
