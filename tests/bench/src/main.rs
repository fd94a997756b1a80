//! What a run costs beside a bare Job and a bare Pod of the same image, on the local cluster: `make bench`.
//!
//! The three take turns, so that a busy moment of the machine meets all of them; ratios count, not seconds. Prints
//! Markdown for `docs/benchmarks.md`, and fails when a run's result takes longer than it may.

mod budget;
mod checkpoints;
mod children;
mod figures;
mod load;
mod memory;
mod single;
mod stages;
mod steps;

use children::Scene;
use clap::{Parser, ValueEnum};
use e2e_tests::{ScriptedProvider, TestNamespace, in_namespace};
use figures::Figures;
use std::process::ExitCode;
use std::time::Duration;

/// Largest ratio of the medians, create to Finished of a run over create to Complete of a Job: the result must not wait
/// for what a Job waits for.
const ALLOWED_RATIO: f64 = 0.8;

#[derive(Parser)]
#[command(about = "What a run costs beside a bare Job and a bare Pod")]
struct Cli {
    /// How many of each kind, one after the other.
    #[arg(long, default_value_t = 30)]
    number: usize,
    /// How many at once.
    #[arg(long, default_value_t = 20)]
    load: usize,
    /// How often the load is repeated.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// How many messages of each kind to a continuable child; half as many start an activation.
    #[arg(long, default_value_t = 30)]
    messages: usize,
    /// How often a session of each size is kept and brought back.
    #[arg(long, default_value_t = 3)]
    checkpoints: usize,
    /// Runs, children, or both when left out.
    #[arg(long)]
    only: Option<Part>,
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Runs,
    Children,
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut ratio = f64::INFINITY;
    if cli.only != Some(Part::Children) {
        in_namespace("bench", async |ns| ratio = bench(&ns, &cli).await).await;
    }
    if cli.only != Some(Part::Runs) {
        in_namespace("bench-children", async |ns| bench_children(ns, &cli).await).await;
    }
    if cli.only == Some(Part::Children) {
        return ExitCode::SUCCESS;
    }
    if ratio <= ALLOWED_RATIO {
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "create to Finished takes {ratio:.2} times as long as a Job's create to Complete; allowed: {ALLOWED_RATIO}"
    );
    ExitCode::FAILURE
}

async fn bench_children(ns: TestNamespace, cli: &Cli) {
    let scene = Scene::new(ns).await;
    println!("\n### Messages to a continuable child: {} of each, half as many to a settled one\n", cli.messages);
    println!("{}", children::tables(&scene, cli.messages).await);
    println!("### Keeping a session and bringing it back: {} times each\n", cli.checkpoints);
    println!("{}", checkpoints::table(&scene, cli.checkpoints).await);
}

async fn bench(ns: &TestNamespace, cli: &Cli) -> f64 {
    ns.provider(&ScriptedProvider::default()).await;
    // The first of each brings what later ones find in caches.
    for warm in 0..2 {
        let name = format!("warm-{warm}");
        single::run(ns, &name).await;
        single::job(ns, &name).await;
        single::pod(ns, &name).await;
    }
    let idle = memory::operator(&ns.client).await;
    let (mut runs, mut jobs, mut pods) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..cli.number {
        let name = format!("single-{number}");
        // Each kind is the first, the second and the third equally often.
        for kind in 0..3 {
            match (kind + number) % 3 {
                0 => runs.push(single::run(ns, &run_name(number)).await),
                1 => jobs.push(single::job(ns, &name).await),
                _ => pods.push(single::pod(ns, &name).await),
            }
        }
        eprintln!("{} of {}", number + 1, cli.number);
    }
    let (runs, jobs, pods) = (Figures::of(&runs), Figures::of(&jobs), Figures::of(&pods));
    println!("### One after the other: {} of each\n", cli.number);
    println!("| | median | maximum | median over a Job's |\n| --- | --- | --- | --- |");
    let row = |what: &str, own: &Figures| {
        println!("| {what} | {:.2} s | {:.2} s | {:.2} |", own.median, own.maximum, own.median / jobs.median);
    };
    row("SubagentRun, create to Finished", &runs);
    row("Job, create to Complete", &jobs);
    row("Pod, create to Succeeded", &pods);

    let names: Vec<_> = (0..cli.number).map(run_name).collect();
    println!("\n### Where a run's time goes\n");
    println!("{}", stages::table(&ns.name, &names));
    println!("### What a run asks of the API server\n");
    println!("{}", budget::table(&ns.name, &names));

    println!("### {} at once, {} times\n", cli.load, cli.rounds);
    println!("| | median until the last is done | maximum | per minute |\n| --- | --- | --- | --- |");
    let loads = load::rounds(ns, cli.load, cli.rounds).await;
    for (what, seconds) in [("SubagentRuns", &loads.runs), ("Jobs", &loads.jobs)] {
        let figures = Figures::of(seconds);
        let rate = cli.load as f64 / figures.median * 60.0;
        println!("| {what} | {:.1} s | {:.1} s | {rate:.0} |", figures.median, figures.maximum);
    }
    println!("\n### Memory of the operator\n");
    println!("| | without files | with the files it has mapped or read |\n| --- | --- | --- |");
    println!("| before | {idle} |\n| at most under load | {} |", loads.memory);
    runs.median / jobs.median
}

/// Not the name of a Job or Pod: the audit log tells them apart by their names.
fn run_name(number: usize) -> String {
    format!("run-{number}")
}

/// Seconds.
fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}
