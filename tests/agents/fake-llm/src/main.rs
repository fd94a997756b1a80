//! The server as a program; see the crate's README.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use fake_llm::{Rule, Shared, server};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// A language model service that answers by script.
#[derive(Parser)]
#[command(version)]
struct Flags {
    /// Address to listen on.
    #[arg(long, default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    /// JSON list of rules, tried before the built-in ones.
    #[arg(long)]
    script: Option<PathBuf>,
    /// The key that who asks the model must show; none by default.
    #[arg(long, env = "FAKE_LLM_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    let shared = Shared::asking_for(flags.api_key.as_deref());
    if let Some(path) = &flags.script {
        let text = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        let rules: Vec<Rule> = serde_json::from_slice(&text).with_context(|| format!("rules in {}", path.display()))?;
        shared.set_rules(rules);
    }
    // Before the line that says it listens: who reads that line may send a signal at once.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let listener = TcpListener::bind(flags.listen).await.with_context(|| format!("listening on {}", flags.listen))?;
    println!("listening on {}", listener.local_addr()?);
    // Ends at once: no client of this server loses anything by it, and as process 1 of a pod nobody else ends it.
    tokio::select! {
        served = async { axum::serve(listener, server::router(shared)).await } => served?,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
