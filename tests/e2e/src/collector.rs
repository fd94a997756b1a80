//! Collectors that agents in pods report to.

use crate::cluster::host_address;
use scripted_agent::collector::Collector;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

/// Starts a collector where pods can reach it.
pub fn collector() -> Arc<Collector> {
    Arc::new(Collector::start((host_address(), 0)).expect("a port on this host's address in the cluster's network"))
}

/// Waits on a collector without holding up the runtime.
///
/// # Panics
/// When nothing is found in time, with what was seen.
pub async fn seen<T: Send + 'static>(
    collector: &Arc<Collector>,
    within: Duration,
    found: impl FnMut(&[scripted_agent::collector::Event]) -> Option<T> + Send + 'static,
) -> T {
    let collector = collector.clone();
    let waiting = tokio::task::spawn_blocking(move || collector.wait_for(within, found));
    waiting.await.expect("no panic").unwrap_or_else(|error| panic!("{error}"))
}

/// Waits until an event of a kind with that text arrived.
///
/// # Panics
/// When it does not arrive in time, with what was seen.
pub async fn seen_event(
    collector: &Arc<Collector>,
    within: Duration,
    kind: &str,
    text: &str,
) -> scripted_agent::collector::Event {
    let (kind, text) = (kind.to_owned(), text.to_owned());
    seen(collector, within, move |events| events.iter().find(|event| event.kind == kind && event.text == text).cloned())
        .await
}

/// A name for a gate that no other test uses.
pub fn gate() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("gate-{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}
