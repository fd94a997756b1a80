//! What every reconcile needs.

use crate::{
    announcements::Announcements,
    metrics::Metrics,
    session_store::Store,
    settings::Settings,
    subagent::{session::LastTry, trimming::Trimming},
};
use kube::{Client, runtime::events::Recorder};
use std::sync::Arc;
use tokio::sync::watch;

/// Shared by all reconciles of one process.
#[derive(Clone)]
pub struct Context {
    /// Client of the API server.
    pub client: Client,
    /// Settings.
    pub settings: Arc<Settings>,
    /// The one recorder of Events: it joins repeats.
    pub recorder: Recorder,
    /// Where Events wait for their turn.
    pub announcements: Announcements,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Where checkpoints lie; none when no store is set.
    pub store: Option<Arc<Store>>,
    /// What the last try of the store came to.
    pub store_tried: LastTry,
    /// Children that store less now than they did.
    pub trimming: Arc<Trimming>,
    /// PEM bundle of the gateway's roots.
    pub roots: watch::Receiver<Arc<str>>,
}
