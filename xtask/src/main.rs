//! Tasks of the repository: generated files and the coverage of rules.

mod bounded;
mod generate;
mod reference;
mod rules;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Tasks of the repository")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Write the generated files: CRDs, their copies in the chart, the API reference, the failure table.
    Generate {
        /// Write nothing; fail when a file differs from what would be written.
        #[arg(long)]
        check: bool,
    },
    /// List which rules of the contract and cases of the pitfalls are named by a test; fail on a gap in scope.
    CoverageOfRules,
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().task {
        Task::Generate { check } => generate::run(check),
        Task::CoverageOfRules => rules::run(),
    }
}
