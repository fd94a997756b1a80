//! The command line.

use crate::{install, run};
use clap::{Parser, Subcommand};
use std::{ffi::OsString, path::PathBuf, process::ExitCode};
use tracing_subscriber::EnvFilter;

/// Runs an ACP agent for one attempt of a SubagentRun.
#[derive(Debug, Parser)]
#[command(name = "subagent-worker", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Copy this executable to DEST_DIR/bin and make DEST_DIR/home, readable and writable for any user id.
    Install {
        /// The shared folder, `/subagents` in a pod.
        dest_dir: PathBuf,
    },
    /// Be process 1: connect to the gateway and run the agent.
    Run {
        /// The agent's command line; its first word is looked up on PATH.
        #[arg(last = true, required = true)]
        argv: Vec<OsString>,
    },
    /// Be process 1: start the agent, learn what it can do, and leave that as the container's termination message.
    Probe {
        /// The agent's command line; its first word is looked up on PATH.
        #[arg(last = true, required = true)]
        argv: Vec<OsString>,
    },
}

impl Cli {
    /// Does what the command line says.
    pub fn execute(self) -> ExitCode {
        // stdout belongs to the transcript; the worker's own log lines go beside it.
        tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .with_ansi(false)
            .with_env_filter(EnvFilter::try_from_env("SUBAGENT_WORKER_LOG").unwrap_or_else(|_| EnvFilter::new("warn")))
            .init();
        let result = match self.command {
            Command::Install { dest_dir } => install::install(&dest_dir).map(|()| ExitCode::SUCCESS),
            Command::Run { argv } => run::run(argv),
            Command::Probe { argv } => run::probe(argv),
        };
        result.unwrap_or_else(|error| {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        })
    }
}
