//! The runs that are connected to this replica, and those that are being stopped.

use crate::metrics::Metrics;
use std::{
    collections::HashMap,
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
    stopping: HashMap<String, Arc<str>>,
    next_id: u64,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    replaced: CancellationToken,
    stop: watch::Sender<Option<Arc<str>>>,
    spec: watch::Sender<i64>,
}

/// A worker's place; dropping it frees the place.
#[derive(Debug)]
pub(super) struct Seat {
    connections: Arc<Connections>,
    run_uid: String,
    id: u64,
    /// Fires when a newer connection of the run was admitted.
    pub replaced: CancellationToken,
    /// Why the run is being stopped, once it is.
    pub stop: watch::Receiver<Option<Arc<str>>>,
    /// Generation of the run's spec, as far as it was seen since this place was taken; 0 before that.
    pub spec: watch::Receiver<i64>,
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
    pub fn join(self: &Arc<Self>, run_uid: &str, stop: Option<&str>) -> Seat {
        let mut inner = self.lock();
        inner.next_id += 1;
        let id = inner.next_id;
        let stop = stop.map(Arc::from).or_else(|| inner.stopping.get(run_uid).cloned());
        let (sender, receiver) = watch::channel(stop);
        let (spec, changes) = watch::channel(0);
        let replaced = CancellationToken::new();
        let entry = Entry { id, replaced: replaced.clone(), stop: sender, spec };
        if let Some(older) = inner.seats.insert(run_uid.to_owned(), entry) {
            older.replaced.cancel();
        }
        self.metrics.link_connections.inc();
        Seat { connections: self.clone(), run_uid: run_uid.to_owned(), id, replaced, stop: receiver, spec: changes }
    }

    /// The run is to stop.
    pub fn stop(&self, run_uid: &str, reason: &str) {
        let mut inner = self.lock();
        let reason: Arc<str> = reason.into();
        if let Some(entry) = inner.seats.get(run_uid) {
            entry.stop.send_replace(Some(reason.clone()));
        }
        inner.stopping.insert(run_uid.to_owned(), reason);
    }

    /// The inbox of the run is at this version.
    pub fn inbox_seen(&self, run_uid: &str, version: i64) {
        if let Some(entry) = self.lock().seats.get(run_uid) {
            entry.spec.send_if_modified(|known| std::mem::replace(known, version) != version);
        }
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
        let first = connections.join("run", None);
        let other = connections.join("other", None);
        let second = connections.join("run", None);
        assert!(first.replaced.is_cancelled() && !second.replaced.is_cancelled() && !other.replaced.is_cancelled());
        // The late end of the older one does not free the newer one's place.
        drop(first);
        connections.stop("run", "Cancelled");
        assert!(second.stop.borrow().is_some());
        assert_eq!(connections.metrics.link_connections.get(), 2);
        drop((second, other));
        assert_eq!(connections.metrics.link_connections.get(), 0);
        assert!(connections.lock().seats.is_empty());
    }

    #[test]
    fn s7_a_stop_reaches_the_connected_the_late_and_nobody_else() {
        let connections = connections();
        let here = connections.join("run", None);
        let other = connections.join("other", None);
        connections.stop("run", "Cancelled");
        assert!(here.stop.borrow().as_deref() == Some("Cancelled") && other.stop.borrow().is_none());
        assert!(connections.join("run", None).stop.borrow().is_some(), "seen before it connected");
        let third = connections.join("third", Some("DeadlineExceeded"));
        assert_eq!(third.stop.borrow().as_deref(), Some("DeadlineExceeded"), "seen by the live read");
        connections.forget("run");
        assert!(connections.join("run", None).stop.borrow().is_none());
    }
}
