//! Where a message's time goes: the requests between its patch and its end, in the order of their answers.

use crate::{
    figures::Figures,
    stages::{kubelet_event, millisecond},
};
use e2e_tests::{audit::Request, cluster::OPERATOR_USER};
use std::fmt::Write as _;
use subagent_crds::names;

/// A point on a message's way.
pub struct Step {
    what: &'static str,
    /// Whose doing the time before it is.
    whose: &'static str,
    is: Is,
}

enum Is {
    /// The first request of that kind behind the step before.
    Next(fn(&Request) -> bool),
    /// The last one.
    Last(fn(&Request) -> bool),
    /// The sixth of the kubelet's Events about the pod: the agent's container is started.
    Started,
    /// The agent says that it has it.
    Arrived,
}

/// A follow-up to a child that is settled.
pub const SETTLED: &[Step] = &[
    Step {
        what: "message and activation claimed in the child's status",
        whose: "operator",
        is: Is::Next(child_status),
    },
    Step { what: "run created", whose: "operator", is: Is::Next(run_created) },
    Step { what: "its UID in the child's status", whose: "operator", is: Is::Next(child_status) },
    Step { what: "pod created", whose: "operator", is: Is::Next(pod_created) },
    Step { what: "agent's container started", whose: "scheduler, kubelet, init container", is: Is::Started },
    Step { what: "session resumed, turn stored", whose: "worker, agent, gateway", is: Is::Next(gateway_status) },
    Step { what: "prompt at the agent", whose: "worker, agent", is: Is::Arrived },
    Step { what: "checkpoint and turn's end stored", whose: "agent, worker, gateway", is: Is::Next(gateway_status) },
    Step { what: "Settled stored", whose: "operator, worker, kubelet", is: Is::Last(child_status) },
];

/// A follow-up to a child whose pod is kept.
pub const RESIDENT: &[Step] = &[
    Step { what: "message placed in the child's status", whose: "operator", is: Is::Next(child_status) },
    Step { what: "run told", whose: "operator", is: Is::Next(run_told) },
    Step { what: "turn stored", whose: "gateway, worker", is: Is::Next(gateway_status) },
    Step { what: "prompt at the agent", whose: "worker, agent", is: Is::Arrived },
    Step { what: "checkpoint and turn's end stored", whose: "agent, worker, gateway", is: Is::Next(gateway_status) },
    Step { what: "Idle in the child's status", whose: "operator", is: Is::Last(child_status) },
];

/// A message that steers a turn.
pub const STEER: &[Step] = &[
    Step { what: "message placed in the child's status", whose: "operator", is: Is::Next(child_status) },
    Step { what: "run told", whose: "operator", is: Is::Next(run_told) },
    Step { what: "message at the agent", whose: "gateway, worker, agent", is: Is::Arrived },
    Step { what: "the agent's word stored", whose: "agent, worker, gateway", is: Is::Next(gateway_status) },
    Step { what: "Steered in the child's status", whose: "operator", is: Is::Last(child_status) },
];

fn own(request: &Request, verb: &str, resource: &str) -> bool {
    request.user() == OPERATOR_USER
        && (request.verb(), request.resource().as_str()) == (verb, resource)
        && !request.is_dry_run()
        && (200..300).contains(&request.code())
}

fn child_status(request: &Request) -> bool {
    own(request, "patch", "subagents/status")
}

fn run_created(request: &Request) -> bool {
    own(request, "create", "subagentruns")
}

fn run_told(request: &Request) -> bool {
    own(request, "patch", "subagentruns")
}

fn pod_created(request: &Request) -> bool {
    own(request, "create", "pods")
}

fn gateway_status(request: &Request) -> bool {
    own(request, "patch", "subagentruns/status") && request.has_manager(names::GATEWAY_MANAGER)
}

/// The requests about a child and everything named after it while one message was under way.
pub struct Window {
    /// When it was sent and when its agent had it, in milliseconds since 1970.
    began: f64,
    arrived: f64,
    /// Each with the time of its answer.
    requests: Vec<(f64, Request)>,
    child: String,
}

impl Window {
    /// Out of all requests, between the first and the last of these times; the second is that of the agent.
    pub fn of(requests: &[Request], child: &str, (began, arrived, ended): (u64, u64, u64)) -> Self {
        let ours = |request: &&Request| request.name() == child || request.name().starts_with(&format!("{child}-"));
        let timed = |request: &Request| Some((millisecond(request.done_at())?, request.clone()));
        let mut found: Vec<_> = requests.iter().filter(ours).filter_map(timed).collect();
        found.retain(|(at, _)| *at >= began as f64 && *at <= ended as f64);
        found.sort_by(|one, other| one.0.total_cmp(&other.0));
        Self { began: began as f64, arrived: arrived as f64, requests: found, child: child.to_owned() }
    }

    /// Writes of the operator.
    pub fn writes(&self) -> usize {
        let is_write = |request: &Request| request.user() == OPERATOR_USER && request.is_counted_write();
        self.requests.iter().filter(|(_, request)| is_write(request)).count()
    }

    /// Milliseconds since it was sent, for each step that was found.
    fn times(&self, steps: &[Step]) -> Vec<Option<f64>> {
        let mut last = self.began;
        let mut time = |step: &Step| {
            let behind = |wanted: &dyn Fn(&Request) -> bool| {
                self.requests
                    .iter()
                    .filter(|(at, one)| *at > last && wanted(one))
                    .map(|(at, _)| *at)
                    .collect::<Vec<_>>()
            };
            let found = match &step.is {
                Is::Next(is) => behind(is).first().copied(),
                Is::Last(is) => behind(is).last().copied(),
                Is::Started => self.started(),
                Is::Arrived => Some(self.arrived),
            };
            last = found.unwrap_or(last).max(last);
            found.map(|at| at - self.began)
        };
        steps.iter().map(&mut time).collect()
    }

    fn started(&self) -> Option<f64> {
        let is_event =
            |request: &Request| request.name().starts_with(&self.child) && kubelet_event(request, request_run(request));
        self.requests.iter().filter(|(_, request)| is_event(request)).map(|(at, _)| *at).nth(5)
    }
}

/// The name of an Event's object, which the name of the Event begins with.
fn request_run(request: &Request) -> &str {
    request.name().split('.').next().unwrap_or_default().rsplitn(3, '-').nth(2).unwrap_or_default()
}

/// Medians and maxima of the steps of these messages.
pub fn table(windows: &[Window], steps: &[Step]) -> String {
    let times: Vec<_> = windows.iter().map(|window| window.times(steps)).collect();
    let mut text = String::from(
        "| until | since the step before, median | maximum | since the patch, median | whose |\n| --- | --- | --- | --- | --- |\n",
    );
    for (index, step) in steps.iter().enumerate() {
        let since = |one: &Vec<Option<f64>>| {
            let before = one[..index].iter().rev().flatten().next().copied().unwrap_or_default();
            Some(one[index]? - before)
        };
        let parts: Vec<f64> = times.iter().filter_map(since).collect();
        let totals: Vec<f64> = times.iter().filter_map(|one| one[index]).collect();
        if parts.is_empty() {
            let _ = writeln!(text, "| {} | not seen | | | {} |", step.what, step.whose);
            continue;
        }
        let (parts, totals) = (Figures::of(&parts), Figures::of(&totals));
        let _ = writeln!(
            text,
            "| {} | {:.0} ms | {:.0} ms | {:.0} ms | {} |",
            step.what, parts.median, parts.maximum, totals.median, step.whose
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::tests::entry;

    #[test]
    fn steps_are_told_by_requests_and_by_the_agent() {
        let ours = |verb: &str, resource: &str, name: &str, at| entry(OPERATOR_USER, verb, resource, name, "/x", at);
        let gateway = |at| {
            let uri = format!("/x?fieldManager={}", names::GATEWAY_MANAGER);
            entry(OPERATOR_USER, "patch", "subagentruns/status", "c-0a1b2c3d-1", &uri, at)
        };
        let requests = [
            ours("patch", "subagents/status", "c", 5),
            entry("me", "patch", "subagents", "c", "/x", 12),
            ours("patch", "subagents/status", "c", 20),
            ours("patch", "subagents/status", "other", 21),
            ours("patch", "subagentruns", "c-0a1b2c3d-1", 30),
            gateway(40),
            gateway(70),
            ours("patch", "subagents/status", "c", 75),
            ours("patch", "subagents/status", "c", 80),
            ours("patch", "subagents/status", "c", 95),
        ];
        let window = Window::of(&requests, "c", (10, 50, 90));
        let times: Vec<_> = window.times(RESIDENT).into_iter().map(|time| time.unwrap_or(-1.0) as i64).collect();
        assert_eq!(times, [10, 20, 30, 40, 60, 70]);
        assert_eq!(window.writes(), 6);
        assert!(table(&[window], RESIDENT).contains("| run told | 10 ms | 10 ms | 20 ms | operator |"));
    }

    #[test]
    fn the_start_of_an_agent_is_the_kubelets_sixth_word_about_its_pod() {
        let word = |at| entry("system:node:n", "create", "events", "c-0a1b2c3d-2-4e5f6a7b-1.18a", "/x", at);
        let requests: Vec<_> = (1..8).map(|number| word(number * 10)).collect();
        let window = Window::of(&requests, "c", (0, 65, 100));
        assert_eq!(window.times(&SETTLED[4..5]), [Some(60.0)]);
    }
}
