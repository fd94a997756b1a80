//! The plain HTTP server of a replica: `/healthz`, `/readyz` and `/metrics`.

use crate::metrics::Metrics;
use axum::{Router, extract::State, http::StatusCode, http::header, response::IntoResponse, routing::get};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};
use tokio_util::sync::CancellationToken;

/// What a replica must have before it takes work: each part registers itself and says when it is ready.
#[derive(Clone, Debug, Default)]
pub struct Health {
    parts: Arc<Mutex<BTreeMap<&'static str, bool>>>,
}

impl Health {
    /// No parts: ready.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a part that is not ready yet. Register every part before [`serve`] starts, or readiness shows too early.
    pub fn register(&self, part: &'static str) -> Part {
        self.set(part, false);
        Part { health: self.clone(), part }
    }

    /// The parts that are not ready.
    pub fn missing(&self) -> Vec<&'static str> {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.iter().filter(|(_, ready)| !**ready).map(|(part, _)| *part).collect()
    }

    fn set(&self, part: &'static str, ready: bool) {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).insert(part, ready);
    }
}

/// One part of [`Health`].
#[derive(Clone, Debug)]
pub struct Part {
    health: Health,
    part: &'static str,
}

impl Part {
    /// Says whether the part is ready.
    pub fn set(&self, ready: bool) {
        self.health.set(self.part, ready);
    }
}

#[derive(Clone)]
struct Shared {
    health: Health,
    metrics: Arc<Metrics>,
}

/// The routes.
pub fn router(health: Health, metrics: Arc<Metrics>) -> Router {
    Router::new()
        // Liveness says only that the process answers: every background task that ends, ends the process.
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(scrape))
        .with_state(Shared { health, metrics })
}

/// Serves until `shutdown`.
///
/// # Errors
/// When the address cannot be bound or the listener breaks.
pub async fn serve(
    address: SocketAddr,
    health: Health,
    metrics: Arc<Metrics>,
    shutdown: CancellationToken,
) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "serving health and metrics");
    let server = axum::serve(listener, router(health, metrics));
    tokio::select! {
        served = server.into_future() => served,
        // Probes and scrapes are short; none is worth waiting for.
        () = shutdown.cancelled() => Ok(()),
    }
}

async fn ready(State(shared): State<Shared>) -> impl IntoResponse {
    let missing = shared.health.missing();
    if missing.is_empty() {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", missing.join(", ")))
    }
}

async fn scrape(State(shared): State<Shared>) -> impl IntoResponse {
    match shared.metrics.encode() {
        Ok(text) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            (StatusCode::OK, [(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{body::Body, http::Request};
    use tower::ServiceExt;

    async fn get(router: &Router, path: &str) -> (StatusCode, String) {
        let response = router.clone().oneshot(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn readiness_names_what_is_missing() {
        let health = Health::new();
        let (gateway, cache) = (health.register("gateway"), health.register("cache"));
        let router = router(health, Arc::new(Metrics::new()));
        assert_eq!(get(&router, "/healthz").await.0, StatusCode::OK);
        assert_eq!(
            get(&router, "/readyz").await,
            (StatusCode::SERVICE_UNAVAILABLE, "not ready: cache, gateway\n".to_owned())
        );
        cache.set(true);
        gateway.set(true);
        assert_eq!(get(&router, "/readyz").await.0, StatusCode::OK);
        gateway.set(false);
        assert_eq!(get(&router, "/readyz").await.1, "not ready: gateway\n");
        assert!(get(&router, "/metrics").await.1.contains("subagents_leader 0"));
    }
}
