//! Where a run's time goes, from the audit log: who asked the API server for what, and when it was answered.

use crate::figures::Figures;
use e2e_tests::{
    audit::{Request, requests_in},
    budget,
    cluster::OPERATOR_USER,
};
use k8s_openapi::jiff::Timestamp;
use std::fmt::Write as _;

/// A point in a run's life, told by one of its requests.
struct Stage {
    what: &'static str,
    /// Whose doing the time before it is.
    whose: &'static str,
    /// Which request it is, and which of several.
    is: fn(&Request, &str) -> bool,
    which: Which,
}

enum Which {
    /// Counted from zero.
    Nth(usize),
    Last,
}

/// In the order of their time. The kubelet's are told by its Events: pulled, created and started for each container.
const STAGES: &[Stage] = &[
    Stage { what: "run stored", whose: "API server", is: run_created, which: Which::Nth(0) },
    Stage { what: "finalizer stored", whose: "operator", is: finalizer, which: Which::Nth(0) },
    Stage { what: "acceptance stored", whose: "operator", is: controller_status, which: Which::Nth(0) },
    Stage { what: "pod created", whose: "operator", is: pod_created, which: Which::Nth(0) },
    Stage { what: "pod bound", whose: "scheduler", is: bound, which: Which::Nth(0) },
    Stage { what: "init container about to be made", whose: "kubelet", is: kubelet_event, which: Which::Nth(0) },
    Stage { what: "init container started", whose: "kubelet", is: kubelet_event, which: Which::Nth(2) },
    Stage { what: "its end seen", whose: "init container, then kubelet", is: kubelet_event, which: Which::Nth(3) },
    Stage { what: "agent's container started", whose: "kubelet", is: kubelet_event, which: Which::Nth(5) },
    Stage {
        what: "session and turn 1 stored",
        whose: "worker, agent, gateway",
        is: gateway_status,
        which: Which::Nth(0),
    },
    Stage { what: "result stored", whose: "worker, agent, gateway", is: gateway_status, which: Which::Last },
    Stage { what: "Finished stored", whose: "operator", is: controller_status, which: Which::Last },
];

fn run_created(request: &Request, run: &str) -> bool {
    (request.verb(), request.resource().as_str(), request.name()) == ("create", "subagentruns", run)
}

fn own(request: &Request, verb: &str, resource: &str) -> bool {
    request.user() == OPERATOR_USER && request.verb() == verb && request.resource() == resource && !request.is_dry_run()
}

fn finalizer(request: &Request, run: &str) -> bool {
    own(request, "patch", "subagentruns") && request.name() == run
}

fn controller_status(request: &Request, run: &str) -> bool {
    own(request, "patch", "subagentruns/status")
        && request.name() == run
        && request.has_manager(subagent_crds::names::CONTROLLER_MANAGER)
}

fn gateway_status(request: &Request, run: &str) -> bool {
    own(request, "patch", "subagentruns/status")
        && request.name() == run
        && request.has_manager(subagent_crds::names::GATEWAY_MANAGER)
}

fn pod_created(request: &Request, run: &str) -> bool {
    own(request, "create", "pods") && budget::belongs_to(request.name(), run)
}

fn bound(request: &Request, run: &str) -> bool {
    request.resource() == "pods/binding" && budget::belongs_to(request.name(), run)
}

/// One of the kubelet's Events about a pod of a run.
pub fn kubelet_event(request: &Request, run: &str) -> bool {
    request.user().starts_with("system:node:")
        && (request.verb(), request.resource().as_str()) == ("create", "events")
        && budget::belongs_to(request.name(), run)
}

/// Milliseconds since the run was asked for, for each stage that was found before the run was Finished.
fn times(requests: &[Request], run: &str) -> Vec<Option<f64>> {
    let Some(began) =
        requests.iter().find(|request| run_created(request, run)).and_then(|request| millisecond(request.at()))
    else {
        return vec![None; STAGES.len()];
    };
    // What comes after Finished, such as Stopped, is not waited for: that is the status write behind the last report.
    let reported = nth(requests, run, gateway_status, &Which::Last).map(Request::done_at);
    let finished = requests
        .iter()
        .find(|request| controller_status(request, run) && reported.is_some_and(|reported| request.at() >= reported));
    let until = finished.map(Request::done_at).unwrap_or_default().to_owned();
    let before: Vec<Request> = requests.iter().filter(|request| request.done_at() <= until.as_str()).cloned().collect();
    let time = |stage: &Stage| Some(millisecond(nth(&before, run, stage.is, &stage.which)?.done_at())? - began);
    STAGES.iter().map(time).collect()
}

fn nth<'a>(requests: &'a [Request], run: &str, is: fn(&Request, &str) -> bool, which: &Which) -> Option<&'a Request> {
    let mut fitting = requests.iter().filter(|request| is(request, run));
    match which {
        Which::Nth(index) => fitting.nth(*index),
        Which::Last => fitting.next_back(),
    }
}

/// Milliseconds since 1970 of a time in the audit log.
pub fn millisecond(text: &str) -> Option<f64> {
    let time: Timestamp = text.parse().ok()?;
    Some(time.as_microsecond() as f64 / 1000.0)
}

/// The stages of these runs.
pub fn table(namespace: &str, runs: &[String]) -> String {
    let mut requests: Vec<Request> = requests_in(namespace);
    requests.sort_by_cached_key(|request| request.done_at().to_owned());
    let times: Vec<_> = runs.iter().map(|run| times(&requests, run)).collect();
    let mut text = String::from(
        "| until | since the stage before, median | maximum | since create, median | whose |\n| --- | --- | --- | --- | --- |\n",
    );
    for (index, stage) in STAGES.iter().enumerate() {
        let steps: Vec<f64> = times.iter().filter_map(|run| step(run, index)).collect();
        let totals: Vec<f64> = times.iter().filter_map(|run| run[index]).collect();
        if steps.is_empty() {
            let _ = writeln!(text, "| {} | not seen | | | {} |", stage.what, stage.whose);
            continue;
        }
        let (steps, totals) = (Figures::of(&steps), Figures::of(&totals));
        let _ = writeln!(
            text,
            "| {} | {:.0} ms | {:.0} ms | {:.0} ms | {} |",
            stage.what, steps.median, steps.maximum, totals.median, stage.whose
        );
    }
    text
}

/// Time since the nearest earlier stage that was seen.
fn step(run: &[Option<f64>], index: usize) -> Option<f64> {
    let before = run[..index].iter().rev().flatten().next().copied().unwrap_or_default();
    Some(run[index]? - before)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    /// A request of the audit log, so many milliseconds after the beginning of 1970.
    pub(crate) fn entry(user: &str, verb: &str, resource: &str, name: &str, uri: &str, millisecond: u32) -> Request {
        let (resource, sub) = resource.split_once('/').unwrap_or((resource, ""));
        let at = format!("1970-01-01T00:00:00.{millisecond:03}000Z");
        Request {
            entry: json!({
                "user": {"username": user}, "verb": verb, "requestURI": uri,
                "objectRef": {"resource": resource, "subresource": sub, "name": name},
                "requestReceivedTimestamp": at, "stageTimestamp": at, "responseStatus": {"code": 200},
            }),
        }
    }

    #[test]
    fn stages_are_told_by_requests_and_end_with_finished() {
        let status = |manager: &str, millisecond| {
            entry(
                OPERATOR_USER,
                "patch",
                "subagentruns/status",
                "r",
                &format!("/x?fieldManager={manager}"),
                millisecond,
            )
        };
        let (controller, gateway) = (subagent_crds::names::CONTROLLER_MANAGER, subagent_crds::names::GATEWAY_MANAGER);
        let node = |millisecond| entry("system:node:n", "create", "events", "r-00000000-1.e", "/x", millisecond);
        let requests = [
            entry("me", "create", "subagentruns", "r", "/x", 0),
            entry(OPERATOR_USER, "patch", "subagentruns", "r", "/x", 10),
            status(controller, 20),
            entry(OPERATOR_USER, "create", "pods", "r-00000000-1", "/x", 30),
            entry("system:kube-scheduler", "create", "pods/binding", "r-00000000-1", "/x", 40),
            node(50),
            node(51),
            node(60),
            node(70),
            node(71),
            node(80),
            status(gateway, 90),
            status(controller, 95),
            status(gateway, 100),
            status(controller, 110),
            status(controller, 200),
        ];
        let times: Vec<_> = times(&requests, "r").into_iter().map(|time| time.unwrap() as i64).collect();
        assert_eq!(times, [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110]);
        assert_eq!(step(&[Some(1.0), None, Some(4.0)], 2), Some(3.0));
    }
}
