//! What keeping and bringing back a session costs, by its size.

use crate::{children::Scene, figures::Figures, memory, stages::millisecond};
use e2e_tests::{
    RunView,
    audit::{Request, requests_in},
    cluster::OPERATOR_USER,
    gate, processes,
};
use scripted_agent::reporter::now_ms;
use serde_json::json;
use std::fmt::Write as _;
use subagent_crds::{
    Subagent, names,
    subagent_status::{ActivationState, CurrentActivation},
};

/// MiB of session files that cannot be compressed; with none there is what the agent itself writes.
const SIZES: &[usize] = &[0, 1, 10, 200];

/// Kept long enough for a look at its worker.
const RESIDENCY: i64 = 3600;

/// What one size costs.
#[derive(Default)]
struct Costs {
    /// Milliseconds from the turn's end until its checkpoint was stored.
    stored: Vec<f64>,
    /// Milliseconds from the start of the worker's container to the start of its agent, in the pod that restores.
    restored: Vec<f64>,
    /// Peaks of resident memory in bytes.
    worker_storing: u64,
    worker_restoring: u64,
    gateway: u64,
}

/// A table with a row for each size.
pub async fn table(scene: &Scene, times: usize) -> String {
    let mut text = String::from(
        "| session files | turn's end to checkpoint stored | restore: container started to agent started | worker's peak, storing | worker's peak, restoring | gateway's peak |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    for mebibytes in SIZES {
        let mut costs = Costs::default();
        for time in 0..times {
            measure(scene, &format!("kept-{mebibytes}-{time}"), *mebibytes, &mut costs).await;
            eprintln!("checkpoints of {mebibytes} MiB: {} of {times}", time + 1);
        }
        let (stored, restored) = (Figures::of(&costs.stored), Figures::of(&costs.restored));
        let mib = |bytes: u64| format!("{:.0} MiB", bytes as f64 / 1024.0 / 1024.0);
        let _ = writeln!(
            text,
            "| {mebibytes} MiB | {:.0} ms (at most {:.0}) | {:.0} ms (at most {:.0}) | {} | {} | {} |",
            stored.median,
            stored.maximum,
            restored.median,
            restored.maximum,
            mib(costs.worker_storing),
            mib(costs.worker_restoring),
            mib(costs.gateway),
        );
    }
    text
}

async fn measure(scene: &Scene, child: &str, mebibytes: usize, costs: &mut Costs) {
    let operators = memory::operators(&scene.ns.client).await;
    operators.iter().copied().for_each(memory::forget_peak);
    let written = match mebibytes {
        0 => String::new(),
        _ => format!("!write-noise /state/sessions/noise {mebibytes}\n"),
    };
    scene.child(child, RESIDENCY, &format!("{written}!report {child} has answered")).await;
    let answered = scene.event("report", &format!("{child} has answered")).await.received_ms;
    let worker = processes::worker(&pod_uid(scene, child).await).expect("a worker");
    costs.worker_storing = costs.worker_storing.max(memory::peak(worker).unwrap_or_default());
    let stored = requests_in(&scene.ns.name);
    let stored = stored.iter().filter(|request| is_report(request, child));
    let stored = stored.filter_map(|request| millisecond(request.done_at())).find(|at| *at >= answered as f64);
    costs.stored.extend(stored.map(|at| at - answered as f64));

    // The pod goes, and another one goes on.
    scene.ns.patch::<Subagent>(child, json!({"spec": {"cancelThroughEpoch": 1}})).await;
    scene.until(child, "at rest", |status| status.activation.is_none()).await;
    let gate = gate();
    let began = scene.tell(child, json!({"id": "again", "text": format!("!gate {gate}")})).await;
    scene.event("gate", &gate).await;
    let worker = processes::worker(&pod_uid(scene, child).await).expect("a worker");
    costs.worker_restoring = costs.worker_restoring.max(memory::peak(worker).unwrap_or_default());
    costs.gateway = operators.iter().filter_map(|process| memory::peak(*process)).fold(costs.gateway, u64::max);
    let agent = scene.event_after("start", child, began).await.received_ms;
    costs.restored.push(agent as f64 - started(worker));
    scene.collector.open_gate(&gate);
    scene.done(child, "again").await;
    scene.ns.kubectl(&["delete", "subagent", child, "--timeout=120s"]);
}

/// UID of the pod of the child's activation.
async fn pod_uid(scene: &Scene, child: &str) -> String {
    let known =
        |activation: &CurrentActivation| matches!(activation.state, ActivationState::Running | ActivationState::Idle);
    let child = scene.until(child, "at work", |status| status.activation.as_ref().is_some_and(known)).await;
    let activation = child.status.and_then(|status| status.activation).expect("an activation");
    scene.ns.run(&activation.run_name).await.seen().pod_uid.expect("a pod")
}

/// When a process was started, in milliseconds since 1970, as exact as the kernel's ticks: ten milliseconds.
fn started(process: i32) -> f64 {
    const TICK_MS: f64 = 10.0;
    let first = |file: &str| std::fs::read_to_string(file).expect("a file of /proc");
    let up: f64 = first("/proc/uptime").split(' ').next().and_then(|word| word.parse().ok()).expect("seconds");
    let stat = first(&format!("/proc/{process}/stat"));
    // Behind the name, which may hold anything, this is the twentieth word.
    let words = stat.rsplit_once(')').expect("a name").1;
    let ticks: f64 = words.split_whitespace().nth(19).and_then(|word| word.parse().ok()).expect("ticks");
    now_ms() as f64 - (up * 1000.0 - ticks * TICK_MS)
}

fn is_report(request: &Request, child: &str) -> bool {
    request.user() == OPERATOR_USER
        && request.verb() == "patch"
        && request.resource() == "subagentruns/status"
        && request.has_manager(names::GATEWAY_MANAGER)
        && request.name().starts_with(&format!("{child}-"))
}
