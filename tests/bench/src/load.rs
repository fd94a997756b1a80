//! Many at once.

use crate::{memory, seconds, single};
use e2e_tests::{TestNamespace, namespace::PATIENCE, run as make_run};
use futures::future::{join, join_all};
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use subagent_crds::SubagentRun;

/// How often memory is looked at meanwhile: the kubelet measures every ten seconds or so.
const LOOK: Duration = Duration::from_secs(2);

/// Seconds until the last one was done, for each round, and the operator's memory meanwhile.
pub struct Loads {
    pub runs: Vec<f64>,
    pub jobs: Vec<f64>,
    pub memory: memory::Memory,
}

/// Runs and Jobs take turns.
pub async fn rounds(ns: &TestNamespace, number: usize, rounds: usize) -> Loads {
    let done = AtomicBool::new(false);
    let measuring = async {
        let mut loads = (Vec::new(), Vec::new());
        for round in 0..rounds {
            let names: Vec<_> = (0..number).map(|index| format!("load-{round}-{index}")).collect();
            loads.0.push(runs(ns, &names).await);
            loads.1.push(jobs(ns, &names).await);
        }
        done.store(true, Ordering::Relaxed);
        loads
    };
    let watching = async {
        let mut most = memory::operator(&ns.client).await;
        while !done.load(Ordering::Relaxed) {
            tokio::time::sleep(LOOK).await;
            most = most.max(memory::operator(&ns.client).await);
        }
        most
    };
    let ((runs, jobs), memory) = join(measuring, watching).await;
    Loads { runs, jobs, memory }
}

async fn runs(ns: &TestNamespace, names: &[String]) -> f64 {
    let began = Instant::now();
    join_all(names.iter().map(async |name| {
        ns.create(&make_run(name, "hello")).await;
        ns.until::<SubagentRun>(name, "Finished", PATIENCE * 2, single::is_finished).await;
    }))
    .await;
    let taken = seconds(began.elapsed());
    join_all(names.iter().map(async |name| {
        let run = ns.stopped(name).await;
        ns.until::<Pod>(&e2e_tests::RunView::pod_name(&run), "released", PATIENCE, single::released).await;
    }))
    .await;
    taken
}

async fn jobs(ns: &TestNamespace, names: &[String]) -> f64 {
    let began = Instant::now();
    join_all(names.iter().map(async |name| {
        ns.create(&single::make_job(name)).await;
        ns.until::<Job>(name, "Complete", PATIENCE * 2, single::is_complete).await;
    }))
    .await;
    seconds(began.elapsed())
}
