//! Continuable children: from a message to its agent, and what each message costs.

use crate::{
    figures::Figures,
    single,
    steps::{self, Step, Window},
};
use e2e_tests::{
    ScriptedProvider, TestNamespace,
    audit::requests_in,
    collector,
    collector::{seen, seen_event},
    namespace::PATIENCE,
    objects::PROVIDER,
};
use kube::api::{Patch, PatchParams};
use scripted_agent::{
    collector::{Collector, Event},
    reporter::now_ms,
};
use serde_json::{Value, json};
use std::sync::Arc;
use subagent_crds::{Subagent, SubagentPhase, SubagentStatus, message::Outcome, subagent_status::ActivationState};

/// A namespace with a provider whose agent keeps its sessions and reports here.
pub struct Scene {
    pub ns: TestNamespace,
    pub collector: Arc<Collector>,
}

impl Scene {
    /// Its provider takes sessions of that many bytes.
    pub async fn new(ns: TestNamespace) -> Self {
        let collector = collector();
        let provider = ScriptedProvider::keeping_sessions().reporting_to(collector.address());
        let provider = provider.env_of_pod("SCRIPTED_AGENT_TAG", "metadata.name");
        ns.continuable(&provider.spec(json!({"sessionState": {"maxBytes": 256 << 20}}))).await;
        Self { ns, collector }
    }

    /// Creates a child with a first message, and waits until that is done.
    pub async fn child(&self, name: &str, residency: i64, text: &str) {
        let spec = json!({
            "providerRef": {"name": PROVIDER}, "description": "measured",
            "activation": {"residencySeconds": residency}, "messages": [{"id": "first", "text": text}],
        });
        let child = Subagent::new(name, serde_json::from_value(spec).expect("a child's spec"));
        self.ns.create(&child).await;
        self.done(name, "first").await;
    }

    /// Appends a message; when that was begun, in milliseconds since 1970.
    pub async fn tell(&self, name: &str, message: Value) -> u64 {
        let add = json!([{"op": "add", "path": "/spec/messages/-", "value": message}]);
        let patch = Patch::<()>::Json(serde_json::from_value(add).expect("a patch"));
        let began = now_ms();
        let patched = self.ns.api::<Subagent>().patch(name, &PatchParams::default(), &patch).await;
        patched.unwrap_or_else(|error| panic!("{name}: {error}"));
        began
    }

    /// Waits until a message has its turn behind it, and nothing runs.
    pub async fn done(&self, name: &str, id: &str) -> Subagent {
        self.until(name, &format!("{id} is done"), |status| {
            let rests = status.phase == Some(SubagentPhase::Settled)
                || status.activation.as_ref().is_some_and(|activation| activation.state == ActivationState::Idle);
            rests && status.last_result.as_ref().is_some_and(|last| last.message_id == id)
        })
        .await
    }

    pub async fn until(
        &self,
        name: &str,
        what: &str,
        fits: impl Fn(&SubagentStatus) -> bool + Send + Sync,
    ) -> Subagent {
        self.ns.until(name, what, PATIENCE, |child: &Subagent| child.status.as_ref().is_some_and(&fits)).await
    }

    /// Waits until an agent reports.
    pub async fn event(&self, kind: &str, text: &str) -> Event {
        seen_event(&self.collector, PATIENCE, kind, text).await
    }

    /// Waits for the first report of a kind by an agent of a child that came after a time.
    pub async fn event_after(&self, kind: &'static str, child: &str, after: u64) -> Event {
        let prefix = format!("{child}-");
        seen(&self.collector, PATIENCE, move |events| {
            let fits =
                |event: &&Event| event.kind == kind && event.tag.starts_with(&prefix) && event.received_ms >= after;
            events.iter().find(fits).cloned()
        })
        .await
    }
}

/// Follow-ups to a settled child, each beside a Job, to one that is kept, and steering messages: tables.
pub async fn tables(scene: &Scene, number: usize) -> String {
    let settled = settled(scene, number.div_ceil(2)).await;
    let resident = resident(scene, number).await;
    let steered = steered(scene, number).await;
    // The audit log is complete once a later answer is there.
    let requests = requests_in(&scene.ns.name);
    let mut text = String::from("| | median | maximum | median over a Job's |\n| --- | --- | --- | --- |\n");
    let jobs = Figures::of(&settled.jobs);
    let mut row = |what: &str, measured: &[f64]| {
        let own = Figures::of(measured);
        let ratio = own.median / jobs.median;
        text.push_str(&format!("| {what} | {:.0} ms | {:.0} ms | {ratio:.2} |\n", own.median, own.maximum));
    };
    row("follow-up to a settled child, patch to prompt", &settled.prompts);
    row("the same, patch to Settled", &settled.ends);
    row("follow-up to a resident child, patch to prompt", &resident.prompts);
    row("the same, patch to Idle", &resident.ends);
    row("steering message, patch to agent", &steered.prompts);
    row("the same, patch to Steered", &steered.ends);
    row("Job, create to Complete", &settled.jobs);
    let parts: [(&str, &str, &Measured, &[Step]); 3] = [
        ("a follow-up to a settled child", "settled", &settled, steps::SETTLED),
        ("a follow-up to a resident child", "resident", &resident, steps::RESIDENT),
        ("a steering message", "resident", &steered, steps::STEER),
    ];
    let mut costs = String::from("| writes of the operator for | median | maximum |\n| --- | --- | --- |\n");
    for (what, child, measured, wanted) in parts {
        let windows: Vec<Window> = measured.spans.iter().map(|span| Window::of(&requests, child, *span)).collect();
        text.push_str(&format!("\n### Where the time of {what} goes\n\n{}", steps::table(&windows, wanted)));
        let writes: Vec<f64> = windows.iter().map(|window| window.writes() as f64).collect();
        let writes = Figures::of(&writes);
        costs.push_str(&format!("| {what} | {:.0} | {:.0} |\n", writes.median, writes.maximum));
    }
    format!("{text}\n### What a message asks of the API server\n\n{costs}")
}

/// What was measured of messages of one kind, in milliseconds.
#[derive(Default)]
struct Measured {
    /// From the patch until an agent had it.
    prompts: Vec<f64>,
    /// From the patch until it was over.
    ends: Vec<f64>,
    /// A Job between two of them, from create to Complete.
    jobs: Vec<f64>,
    /// When each was sent, when an agent had it, and when the next one may have been sent.
    spans: Vec<(u64, u64, u64)>,
}

impl Measured {
    fn note(&mut self, began: u64, arrived: &Event) {
        let ended = now_ms();
        self.prompts.push(arrived.received_ms.saturating_sub(began) as f64);
        self.ends.push(ended.saturating_sub(began) as f64);
        self.spans.push((began, arrived.received_ms, ended));
    }

    /// What is done behind a message's end is its doing, too.
    fn extend(&mut self) {
        if let Some(span) = self.spans.last_mut() {
            span.2 = now_ms();
        }
    }
}

async fn settled(scene: &Scene, number: usize) -> Measured {
    scene.child("settled", 0, "hello").await;
    let mut measured = Measured::default();
    for index in 0..number {
        let id = format!("follow-{index}");
        let began = scene.tell("settled", json!({"id": id, "text": id})).await;
        let arrived = scene.event("prompt", &id).await;
        scene.done("settled", &id).await;
        measured.note(began, &arrived);
        measured.jobs.push(single::job(&scene.ns, &format!("job-{index}")).await * 1000.0);
        measured.extend();
        eprintln!("settled: {} of {number}", index + 1);
    }
    measured
}

async fn resident(scene: &Scene, number: usize) -> Measured {
    scene.child("resident", 3600, "hello").await;
    let mut measured = Measured::default();
    for index in 0..number {
        let id = format!("visit-{index}");
        let began = scene.tell("resident", json!({"id": id, "text": id})).await;
        let arrived = scene.event("prompt", &id).await;
        scene.done("resident", &id).await;
        measured.note(began, &arrived);
    }
    measured
}

/// Into one long turn of the child that is resident.
async fn steered(scene: &Scene, number: usize) -> Measured {
    scene.tell("resident", json!({"id": "long", "text": "!report long\n!hang"})).await;
    scene.event("report", "long").await;
    let mut measured = Measured::default();
    for index in 0..number {
        let id = format!("steer-{index}");
        let began = scene.tell("resident", json!({"id": id, "delivery": "Steer", "text": id})).await;
        let arrived = scene.event("steer", &id).await;
        let is_steered = |status: &SubagentStatus| {
            status.messages.iter().any(|message| message.id == id && message.outcome == Outcome::Steered)
        };
        scene.until("resident", "Steered", is_steered).await;
        measured.note(began, &arrived);
    }
    scene.tell("resident", json!({"id": "enough", "delivery": "Interrupt"})).await;
    scene.done("resident", "long").await;
    measured
}
