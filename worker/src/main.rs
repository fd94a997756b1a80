//! `subagent-worker`: process 1 of a worker pod's container `agent`.
//!
//! It connects out to the operator's gateway, starts the agent's own command, speaks the Agent Client Protocol with it
//! over stdio, reports, and leaves no process behind. [`run`] tells the story; everything it decides with is pure and
//! stands beside it: [`ledger`], [`inbox`], [`outcome`], [`output`], [`usage`], [`acp::permission`], [`transcript`].

mod acp;
mod cli;
mod clock;
mod config;
mod inbox;
mod install;
mod ledger;
mod link;
mod outcome;
mod output;
mod process;
mod prompt;
mod run;
mod state;
mod transcript;
mod usage;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    cli::Cli::parse().execute()
}
