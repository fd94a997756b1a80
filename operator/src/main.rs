//! The operator's binary.

use anyhow::Context;
use clap::{Parser, Subcommand};
use subagent_operator::{process, settings::Settings, uninstall};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Kubernetes operator for distributed subagents
#[derive(Debug, Parser)]
#[command(name = "subagent-operator", version)]
struct Cli {
    #[command(flatten)]
    settings: Settings,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// End the operator and let go of finished runs; the chart runs this before it is uninstalled.
    Uninstall {
        /// Name of the operator's Deployment, in the operator's namespace.
        #[arg(long)]
        deployment: String,
    },
}

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let ended = runtime.block_on(run());
    // A call that hangs in a file system would hold up the end for good.
    runtime.shutdown_background();
    ended
}

async fn run() -> anyhow::Result<()> {
    let Cli { settings, command } = Cli::parse();
    let mut filter = EnvFilter::try_new(&settings.log).context("SUBAGENT_LOG")?;
    // Its warnings hold the whole text of what does not decode, and so prompts; ours name the object and the mistake.
    if !settings.log.contains("kube_client") {
        filter = filter.add_directive("kube_client::client=error".parse().context("log filter")?);
    }
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
    match command {
        None => process::run(client, settings, shutdown).await,
        Some(Command::Uninstall { deployment }) => tokio::select! {
            done = uninstall::run(client, &settings, &deployment) => done,
            () = shutdown.cancelled() => anyhow::bail!("ended before it was done; it can be run again"),
        },
    }
}
