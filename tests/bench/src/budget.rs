//! Writes and reconciles of runs.

use crate::figures::Figures;
use e2e_tests::{
    audit::{Request, requests_in},
    budget::{self, Cost},
    cluster::OPERATOR_USER,
};

/// Median and maximum of what these runs cost.
pub fn table(namespace: &str, runs: &[String]) -> String {
    let asked: Vec<Request> =
        requests_in(namespace).into_iter().filter(|request| request.user() == OPERATOR_USER).collect();
    let costs: Vec<Cost> = runs.iter().map(|run| budget::cost(&asked, run)).collect();
    let row = |what: &str, count: fn(&Cost) -> usize| {
        let figures = Figures::of(&costs.iter().map(|cost| count(cost) as f64).collect::<Vec<_>>());
        format!("| {what} | {:.0} | {:.0} |\n", figures.median, figures.maximum)
    };
    let writes =
        row("writes (create, update, patch, delete; no Events, Leases, TokenReviews)", |cost| cost.writes.len());
    let reads =
        row("reads of the run (each reconcile begins with one, so there are at most as many)", |cost| cost.reads);
    format!("| creation to stopped and released | median | maximum |\n| --- | --- | --- |\n{writes}{reads}")
}
