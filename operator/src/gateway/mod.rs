//! The gateway: where workers connect (design section 7). Every replica runs one.
//!
//! It holds nothing that matters. A report is acknowledged only after the API server has stored it, so a replica can
//! die at any moment: the worker connects to another one and sends its newest snapshot again. What makes many replicas
//! and late writes safe is not here either: it is `podUID`, `attempt` and `seq` in what is written, and the CEL rules of
//! the status.
//!
//! - `listener`: TCP, TLS, HTTP upgrade.
//! - `auth`: whose token is it.
//! - `fence`: does that pod speak for the current attempt. Pure.
//! - `admission`: both of them for a hello, by live reads; gives the assignment.
//! - `conversation`: one connection from hello to end.
//! - `snapshot`, `store`: checks a report, archives the transcript, proves an uploaded result, writes the status.
//! - `upload`: takes a result that fits no message.
//! - `checkpoint`: takes and gives the copies of agents' sessions.
//! - `connections`, `cancels`: which runs are connected here, and which of them are being stopped.

mod admission;
mod assignment;
mod auth;
mod cancels;
mod checkpoint;
mod connections;
mod conversation;
mod fence;
mod inbox;
mod listener;
mod snapshot;
mod store;
mod upload;

pub use snapshot::SchemaError;

use crate::{http::Part, metrics::Metrics, pki::Pki, session_store::Store};
use connections::Connections;
use fence::Refusal;
use kube::{
    Client,
    runtime::events::{Recorder, Reporter},
};
use snapshot::Rules;
use std::sync::Arc;
use subagent_crds::names;
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::sync::CancellationToken;

/// Settings of the gateway.
#[derive(Clone, Debug)]
pub struct GatewaySettings {
    /// Namespaces whose runs are followed; none means all.
    pub namespaces: Vec<String>,
    /// Largest result in bytes that a worker may report, text and other content together. A number above
    /// [`MAX_RESULT_BYTES`](subagent_link::MAX_RESULT_BYTES) counts as that.
    pub max_result_bytes: i64,
    /// Where checkpoints lie; none when no store is set.
    pub store: Option<Arc<Store>>,
}

/// The gateway cannot run.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// TLS settings are refused.
    #[error("TLS of the gateway: {0}")]
    Tls(#[from] rustls::Error),
    /// The schema that reports are checked against is not usable: a defect of the build.
    #[error("schema of status.report: {0}")]
    Schema(#[from] SchemaError),
    /// The listener broke.
    #[error("listener of the gateway: {0}")]
    Listener(#[from] std::io::Error),
    /// The watch that forwards cancels ended, which it never does by itself.
    #[error("the watch on runs ended")]
    WatchEnded,
}

/// What every connection needs.
struct Gateway {
    client: Client,
    metrics: Arc<Metrics>,
    rules: Rules,
    connections: Arc<Connections>,
    recorder: Recorder,
    max_result_bytes: i64,
    store: Option<Arc<Store>>,
    room: upload::Room,
    checkpoints: upload::Room,
    readers: Arc<Semaphore>,
    uploads: Arc<checkpoint::Transfers>,
    downloads: Arc<checkpoint::Transfers>,
    shutdown: CancellationToken,
}

impl Gateway {
    /// Counts a refusal.
    fn refused(&self, refusal: &Refusal) {
        let reason = fence::reason_name(refusal.reason);
        self.metrics.link_refusals.get_or_create(&crate::metrics::RefusalLabels { reason }).inc();
    }
}

/// Serves workers on `listener` until `shutdown`, then closes every connection within two seconds, so that workers go
/// to another replica. `ready` is set once runs are followed and connections are taken.
///
/// # Errors
/// [`GatewayError`]; the process must end then.
pub async fn serve(
    listener: TcpListener,
    settings: GatewaySettings,
    client: Client,
    pki: &Pki,
    metrics: Arc<Metrics>,
    ready: Part,
    shutdown: CancellationToken,
) -> Result<(), GatewayError> {
    let tls = pki.server_config()?;
    let connections = Arc::new(Connections::new(metrics.clone()));
    let most = i64::try_from(subagent_link::MAX_RESULT_BYTES).unwrap_or(i64::MAX);
    let gateway = Arc::new(Gateway {
        client: client.clone(),
        metrics,
        rules: Rules::of_reports()?,
        connections: connections.clone(),
        recorder: Recorder::new(client.clone(), Reporter { controller: names::REPORTER.into(), instance: None }),
        max_result_bytes: settings.max_result_bytes.min(most),
        store: settings.store,
        room: upload::Room::new(),
        checkpoints: upload::Room::of(checkpoint::ROOM_KIB),
        readers: checkpoint::readers(),
        uploads: Arc::default(),
        downloads: Arc::default(),
        shutdown: shutdown.clone(),
    });
    let watching = cancels::follow(client, &settings.namespaces, connections, &ready);
    tokio::select! {
        served = listener::serve(listener, tls, gateway) => {
            ready.set(false);
            Ok(served?)
        }
        () = watching => Err(GatewayError::WatchEnded),
    }
}
