//! A language model service that answers by script.
//!
//! It speaks OpenAI chat completions and responses, Anthropic messages and Gemini generateContent, each whole and
//! streaming, so that published agents run complete turns without a model. See `README.md` for scripts and endpoints.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod conversation;
pub mod decide;
pub mod dialect;
pub mod gates;
pub mod requests;
pub mod script;
pub mod server;
pub mod template;
pub mod tools;

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub use requests::{Listing, Request, State};
pub use script::{Action, Rule, When};
pub use server::Shared;

/// A server running in this process, for tests; it ends when dropped.
pub struct FakeLlm {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its rules, record and gates.
    pub shared: Shared,
    task: JoinHandle<std::io::Result<()>>,
}

impl FakeLlm {
    /// Starts a server on `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub async fn start(address: &str) -> std::io::Result<Self> {
        Self::start_with(address, Shared::default()).await
    }

    /// The same with what it shares, such as a key to ask for.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub async fn start_with(address: &str, shared: Shared) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let router = server::router(shared.clone());
        let task = tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { address, shared, task })
    }

    /// `http://ADDRESS`, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for FakeLlm {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Milliseconds since 1970.
pub(crate) fn now_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis() as u64)
}
