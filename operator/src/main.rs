//! The operator's binary.

use anyhow::Context;
use clap::Parser;
use subagent_operator::{process, settings::Settings};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let settings = Settings::parse();
    let filter = EnvFilter::try_new(&settings.log).context("SUBAGENT_LOG")?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if settings.log_format == "json" {
        log.json().init()
    } else {
        log.with_ansi(false).init()
    }

    let shutdown = CancellationToken::new();
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let token = shutdown.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        tracing::info!("signal received, ending");
        token.cancel();
    });
    let client = kube::Client::try_default().await.context("connecting to the API server")?;
    process::run(client, settings, shutdown).await
}
