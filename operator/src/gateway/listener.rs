//! TCP, TLS, and the routes: the upgrade to a WebSocket, and uploads.

use super::{Gateway, auth, checkpoint, conversation, upload};
use axum::{
    Extension, Router,
    body::Body,
    extract::{Query, State, WebSocketUpgrade},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{any, put},
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use rustls::ServerConfig;
use std::{sync::Arc, time::Duration};
use subagent_link::{
    CHECKPOINT_PATH, CheckpointDownload, CheckpointUpload, LINK_PATH, MAX_MESSAGE_BYTES, RESULT_PATH, ResultUpload,
    TURN_PATH,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

/// Most connections of one replica, counted from TCP on: each holds buffers of some tens of KiB, so this is far within
/// the default memory limit. A worker beyond it finds another replica or tries again.
const MAX_CONNECTIONS: usize = 4096;
/// Longest TLS handshake, and longest wait for the request's head: whoever is slower holds a place for nothing.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Most that is buffered of a request or an answer, in bytes: a peer that takes nothing holds it.
const BUFFER: usize = 64 * 1024;
/// How long conversations may take to say goodbye at shutdown (design: workers re-home within two seconds).
const GOODBYE: Duration = Duration::from_secs(2);
/// Wait after a failed accept: it fails again at once when descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone)]
struct Shared {
    gateway: Arc<Gateway>,
    conversations: TaskTracker,
}

/// Held by a connection for as long as it lives, also after the upgrade.
type Place = Arc<OwnedSemaphorePermit>;

/// Accepts until shutdown.
pub(super) async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    gateway: Arc<Gateway>,
) -> Result<(), std::io::Error> {
    tracing::info!(address = %listener.local_addr()?, "serving workers");
    let acceptor = TlsAcceptor::from(tls);
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let conversations = TaskTracker::new();
    let shutdown = gateway.shutdown.clone();
    let shared = Shared { gateway, conversations: conversations.clone() };
    let router = Router::new()
        .route(LINK_PATH, any(link))
        .route(RESULT_PATH, put(result))
        .route(TURN_PATH, put(result))
        .route(CHECKPOINT_PATH, put(take_checkpoint).get(give_checkpoint))
        .with_state(shared);
    while let Some(accepted) = shutdown.run_until_cancelled(listener.accept()).await {
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "accepting a worker");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            tracing::warn!(limit = MAX_CONNECTIONS, "too many connections, one was dropped");
            continue;
        };
        let router = router.clone().layer(Extension(Arc::new(place)));
        let closing = shutdown.clone();
        let acceptor = acceptor.clone();
        tokio::spawn(async move { closing.run_until_cancelled(handle(stream, acceptor, router)).await });
    }
    drop(listener);
    conversations.close();
    if tokio::time::timeout(GOODBYE, conversations.wait()).await.is_err() {
        tracing::warn!(left = conversations.len(), "workers cut off without goodbye");
    }
    Ok(())
}

async fn handle(stream: TcpStream, acceptor: TlsAcceptor, router: Router) {
    // Messages are small and each is waited for.
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        // A port scan, a probe of the port, or a worker that trusts other roots.
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake"),
        Err(_) => return tracing::debug!("TLS handshake took too long"),
    };
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HANDSHAKE_TIMEOUT)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "connection");
    }
}

async fn result(
    State(shared): State<Shared>,
    Query(announced): Query<ResultUpload>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    upload::put(&shared.gateway, &headers, announced, body).await
}

async fn take_checkpoint(
    State(shared): State<Shared>,
    Query(announced): Query<CheckpointUpload>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    checkpoint::put(&shared.gateway, &headers, announced, body).await
}

async fn give_checkpoint(
    State(shared): State<Shared>,
    Query(wanted): Query<CheckpointDownload>,
    headers: HeaderMap,
) -> Response {
    checkpoint::get(&shared.gateway, &headers, wanted).await
}

async fn link(
    State(shared): State<Shared>,
    Extension(place): Extension<Place>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Response {
    let Some(token) = auth::bearer(&headers) else {
        return (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], "a bearer token is required\n")
            .into_response();
    };
    let upgrade = upgrade.max_message_size(MAX_MESSAGE_BYTES).max_frame_size(MAX_MESSAGE_BYTES);
    upgrade.on_upgrade(move |socket| {
        shared.conversations.clone().track_future(async move {
            conversation::hold(&shared.gateway, socket, token).await;
            drop(place);
        })
    })
}
