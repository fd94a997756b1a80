//! Tasks of the repository: generated files, the coverage of rules, sabotage.

mod bounded;
mod generate;
mod reference;
mod rules;
mod sabotage;

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
    /// Apply the patches of tests/sabotage to a copy, one at a time, and demand that the tests they name turn red.
    Sabotage {
        /// Names of patches without their extension; all when there is none.
        patches: Vec<String>,
        /// Compile nothing; fail when a patch is malformed, does not apply, or names a test that does not exist.
        #[arg(long)]
        check: bool,
    },
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().task {
        Task::Generate { check } => generate::run(check),
        Task::CoverageOfRules => rules::run(),
        Task::Sabotage { check: true, .. } => sabotage::check(),
        Task::Sabotage { patches, .. } => sabotage::run(&patches),
    }
}
