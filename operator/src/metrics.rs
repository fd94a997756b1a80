//! What the operator counts, in the Prometheus text format.
//!
//! Label values come from closed sets of this program, never from a tenant: the number of series is bounded.

use kube::runtime::reflector::Store;
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use std::{
    collections::HashMap,
    fmt,
    sync::{Mutex, PoisonError},
};
use subagent_crds::{
    Reason, Subagent, SubagentPhase,
    message::{Code, Delivery, Outcome},
};

/// Labels of a reconcile.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ReconcileLabels {
    /// `run`, `subagent` or `provider`.
    pub controller: &'static str,
    /// `ok`, or the retry class of the error.
    pub outcome: &'static str,
}

/// Labels of a write to the API server.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct WriteLabels {
    /// `run`, `subagent`, `provider` or `gateway`.
    pub controller: &'static str,
    /// What was written: `status`, `pod`, `configmap`, ...
    pub kind: &'static str,
}

/// Labels of a controller.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ControllerLabels {
    /// `run`, `subagent` or `provider`.
    pub controller: &'static str,
}

/// Labels of a refusal.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct RefusalLabels {
    /// The link's refusal reason.
    pub reason: &'static str,
}

/// Labels of a finished run.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct FinishedLabels {
    /// Terminal phase.
    pub phase: &'static str,
    /// Reason of the failure taxonomy.
    pub reason: &'static str,
}

/// Labels of objects that do not decode.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct UndecodableLabels {
    /// Their kind.
    pub kind: String,
}

/// Labels of a message that has its final outcome.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct MessageLabels {
    /// How it asked to be delivered; empty when its entry was gone.
    pub delivery: &'static str,
    /// Its outcome.
    pub outcome: &'static str,
    /// Why it was rejected; empty when it was not.
    pub code: &'static str,
}

/// Labels of an activation that is over.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ActivationLabels {
    /// Reason of the failure taxonomy, `Completed` included.
    pub reason: &'static str,
}

/// Labels of children.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct PhaseLabels {
    /// Their phase.
    pub phase: &'static str,
}

/// Labels of messages that wait.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct WaitingLabels {
    /// `queued`: for their turn; `parked`: for the next waking message.
    pub state: &'static str,
}

/// The children that the leader's controller knows, counted when somebody asks.
#[derive(Default)]
struct Children {
    known: Mutex<Option<Store<Subagent>>>,
    by_phase: Family<PhaseLabels, Gauge>,
    waiting: Family<WaitingLabels, Gauge>,
}

impl fmt::Debug for Children {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Children").finish_non_exhaustive()
    }
}

impl Children {
    fn count(&self) {
        let Some(known) = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone() else { return };
        let mut phases: HashMap<&str, i64> = HashMap::new();
        let (mut queued, mut parked) = (0, 0);
        for child in known.state() {
            let status = child.status.as_ref();
            let phase = status.and_then(|status| status.phase).unwrap_or_default();
            *phases.entry(phase.as_str()).or_default() += 1;
            queued += status.map_or(0, |status| i64::from(status.queued_count));
            parked += status.map_or(0, |status| i64::from(status.parked_count));
        }
        for phase in SubagentPhase::ALL {
            let phase = phase.as_str();
            self.by_phase.get_or_create(&PhaseLabels { phase }).set(phases.remove(phase).unwrap_or_default());
        }
        for (state, count) in [("queued", queued), ("parked", parked)] {
            self.waiting.get_or_create(&WaitingLabels { state }).set(count);
        }
    }
}

/// Every metric of one operator process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    children: Children,
    /// Open link connections that said a valid hello.
    pub link_connections: Gauge,
    /// Reports written to a status. A repeat that is acknowledged without a write is not counted.
    pub reports_stored: Counter,
    /// Seconds from a report's arrival until the API server had stored it.
    pub report_store_seconds: Histogram,
    /// Hellos and reports that were refused.
    pub link_refusals: Family<RefusalLabels, Counter>,
    /// Transcripts that were reported without an archive: the namespace is going away, a quota is full, or a foreign
    /// ConfigMap holds the name.
    pub transcripts_unarchived: Counter,
    /// Reconciles.
    pub reconciles: Family<ReconcileLabels, Counter>,
    /// Seconds a reconcile took.
    pub reconcile_seconds: Family<ControllerLabels, Histogram>,
    /// Successful creates, updates, patches and deletes.
    pub writes: Family<WriteLabels, Counter>,
    /// Objects found not to decode; counted once, and again when another field of it does not (pitfall C1).
    pub undecodable_objects: Family<UndecodableLabels, Counter>,
    /// 1 while this replica leads, else 0.
    pub leader: Gauge,
    /// Runs whose terminal phase was stored; counted on the stored transition only (pitfall T8).
    pub runs_finished: Family<FinishedLabels, Counter>,
    /// Seconds from the agent's end, as the worker saw it, until the terminal phase was stored (pitfall T11).
    pub run_settle_seconds: Histogram,
    /// Seconds from a run's creation until its session existed.
    pub run_start_seconds: Histogram,
    /// Messages whose final outcome was stored; a repeat of an id is none (pitfall T8).
    pub messages: Family<MessageLabels, Counter>,
    /// Activations whose number was claimed in a stored status.
    pub activations_begun: Counter,
    /// Activations whose end was stored in their child's status.
    pub activations_ended: Family<ActivationLabels, Counter>,
    /// Checkpoints that a stored report names for the first time.
    pub checkpoints_stored: Counter,
    /// Bytes of those.
    pub checkpoint_bytes: Counter,
    /// Seconds from the arrival of a checkpoint's first byte until the session store held it.
    pub checkpoint_store_seconds: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// From 5 ms to 82 s: a status write takes milliseconds, a pod with an image pull takes a minute.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.005, 2.0, 15))
}

impl Metrics {
    /// All metrics at zero.
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            children: Children::default(),
            link_connections: Gauge::default(),
            reports_stored: Counter::default(),
            report_store_seconds: seconds(),
            link_refusals: Family::default(),
            transcripts_unarchived: Counter::default(),
            reconciles: Family::default(),
            reconcile_seconds: Family::new_with_constructor(seconds),
            writes: Family::default(),
            undecodable_objects: Family::default(),
            leader: Gauge::default(),
            runs_finished: Family::default(),
            run_settle_seconds: seconds(),
            run_start_seconds: seconds(),
            messages: Family::default(),
            activations_begun: Counter::default(),
            activations_ended: Family::default(),
            checkpoints_stored: Counter::default(),
            checkpoint_bytes: Counter::default(),
            checkpoint_store_seconds: seconds(),
        };
        let mut registry = Registry::with_prefix("subagents");
        registry.register("link_connections", "Workers connected to this replica", metrics.link_connections.clone());
        registry.register("link_reports_stored", "Reports written to a status", metrics.reports_stored.clone());
        registry.register(
            "link_report_store_seconds",
            "Time from a report's arrival until it was stored",
            metrics.report_store_seconds.clone(),
        );
        registry.register("link_refusals", "Refused hellos and reports", metrics.link_refusals.clone());
        registry.register(
            "link_transcripts_unarchived",
            "Transcripts reported without an archive",
            metrics.transcripts_unarchived.clone(),
        );
        registry.register("reconciles", "Reconciles by outcome", metrics.reconciles.clone());
        registry.register("reconcile_seconds", "Time a reconcile took", metrics.reconcile_seconds.clone());
        registry.register("writes", "Successful writes to the API server", metrics.writes.clone());
        registry.register(
            "undecodable_objects",
            "Objects that were found not to decode",
            metrics.undecodable_objects.clone(),
        );
        registry.register("leader", "1 while this replica leads", metrics.leader.clone());
        registry.register("runs_finished", "Runs that reached a terminal phase", metrics.runs_finished.clone());
        registry.register(
            "run_settle_seconds",
            "Time from the agent's end until the terminal phase was stored",
            metrics.run_settle_seconds.clone(),
        );
        registry.register(
            "run_start_seconds",
            "Time from a run's creation until its session existed",
            metrics.run_start_seconds.clone(),
        );
        metrics.register_children(&mut registry);
        metrics.registry = registry;
        metrics
    }

    fn register_children(&self, registry: &mut Registry) {
        registry.register("children", "Children by phase; on the leader", self.children.by_phase.clone());
        registry.register(
            "messages_waiting",
            "Messages that wait for a turn or are parked; on the leader",
            self.children.waiting.clone(),
        );
        registry.register("messages", "Messages that have their final outcome", self.messages.clone());
        registry.register("activations_begun", "Activations that were claimed", self.activations_begun.clone());
        registry.register("activations_ended", "Activations that are over", self.activations_ended.clone());
        registry.register("checkpoints_stored", "Checkpoints stored", self.checkpoints_stored.clone());
        registry.register("checkpoint_bytes", "Bytes of the checkpoints stored", self.checkpoint_bytes.clone());
        registry.register(
            "checkpoint_store_seconds",
            "Time from a checkpoint's first byte until the session store held it",
            self.checkpoint_store_seconds.clone(),
        );
    }

    /// Counts these children from now on, whenever the metrics are read.
    pub fn watch_children(&self, children: Store<Subagent>) {
        *self.children.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(children);
    }

    /// The metrics as text, in the OpenMetrics format.
    ///
    /// # Errors
    /// Never in practice: writing to a string does not fail.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        self.children.count();
        let mut out = String::new();
        text::encode(&mut out, &self.registry)?;
        Ok(out)
    }

    /// Counts a reconcile.
    pub fn reconciled(&self, controller: &'static str, outcome: &'static str, seconds: f64) {
        self.reconciles.get_or_create(&ReconcileLabels { controller, outcome }).inc();
        self.reconcile_seconds.get_or_create(&ControllerLabels { controller }).observe(seconds);
    }

    /// Counts a successful write.
    pub fn wrote(&self, controller: &'static str, kind: &'static str) {
        self.writes.get_or_create(&WriteLabels { controller, kind }).inc();
    }

    /// Counts an object that was found not to decode.
    pub fn undecodable(&self, kind: &str) {
        self.undecodable_objects.get_or_create(&UndecodableLabels { kind: kind.to_owned() }).inc();
    }

    /// Counts a run whose terminal phase was stored.
    pub fn finished(&self, phase: subagent_crds::Phase, reason: subagent_crds::Reason) {
        self.runs_finished.get_or_create(&FinishedLabels { phase: phase.as_str(), reason: reason.as_str() }).inc();
    }

    /// Counts a message whose final outcome was stored.
    pub fn message(&self, delivery: Option<Delivery>, outcome: Outcome, code: Option<Code>) {
        let delivery = delivery.map(Delivery::as_str).unwrap_or_default();
        let code = code.map(Code::as_str).unwrap_or_default();
        self.messages.get_or_create(&MessageLabels { delivery, outcome: outcome.as_str(), code }).inc();
    }

    /// Counts an activation whose end was stored.
    pub fn activation_ended(&self, reason: Reason) {
        self.activations_ended.get_or_create(&ActivationLabels { reason: reason.as_str() }).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t8_a_finished_run_is_counted_by_phase_and_reason() {
        let metrics = Metrics::new();
        metrics.finished(subagent_crds::Phase::Failed, subagent_crds::Reason::AgentCrashed);
        metrics.reconciled("run", "ok", 0.01);
        metrics.wrote("gateway", "status");
        let text = metrics.encode().unwrap();
        for line in [
            r#"subagents_runs_finished_total{phase="Failed",reason="AgentCrashed"} 1"#,
            r#"subagents_reconciles_total{controller="run",outcome="ok"} 1"#,
            r#"subagents_writes_total{controller="gateway",kind="status"} 1"#,
            "subagents_leader 0",
        ] {
            assert!(text.lines().any(|got| got == line), "{line} is not in\n{text}");
        }
    }

    fn child(name: &str, status: serde_json::Value) -> Subagent {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "subagents.dev/v1alpha1", "kind": "Subagent", "metadata": {"name": name, "namespace": "n"},
            "spec": {"providerRef": {"name": "p"}, "description": "d", "messages": []}, "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn children_are_counted_by_phase_when_somebody_asks() {
        use kube::runtime::{reflector::store, watcher::Event};
        use serde_json::json;
        let (metrics, (reader, mut writer)) = (Metrics::new(), store::<Subagent>());
        assert!(!metrics.encode().unwrap().contains("subagents_children{"), "nobody knows them");
        metrics.watch_children(reader);
        let mut count = |name: &str, status| {
            writer.apply_watcher_event(&Event::Apply(child(name, status)));
            metrics.encode().unwrap()
        };
        count("a", json!({"phase": "Active", "queuedCount": 3, "parkedCount": 1}));
        count("b", json!({"phase": "Active", "queuedCount": 2}));
        let text = count("c", json!({}));
        for line in [
            r#"subagents_children{phase="Active"} 2"#,
            r#"subagents_children{phase="Pending"} 1"#,
            r#"subagents_children{phase="Settled"} 0"#,
            r#"subagents_messages_waiting{state="queued"} 5"#,
            r#"subagents_messages_waiting{state="parked"} 1"#,
        ] {
            assert!(text.lines().any(|got| got == line), "{line} is not in\n{text}");
        }
        let text = count("a", json!({"phase": "Settled"}));
        assert!(text.contains(r#"subagents_children{phase="Active"} 1"#), "{text}");
    }

    /// What has no sample yet is in no answer, so the names are read off the registry itself.
    #[test]
    fn every_metric_is_in_the_document() {
        let document = include_str!("../../docs/metrics.md");
        let registered = format!("{:?}", Metrics::new().registry);
        let names = registered.split("name: \"").skip(1).filter_map(|rest| rest.split('"').next());
        let names: Vec<_> = names.map(|name| format!("`subagents_{name}`")).collect();
        assert!(names.iter().any(|name| name == "`subagents_messages`") && names.len() >= 20, "{names:?}");
        let missing: Vec<_> = names.iter().filter(|name| !document.contains(*name)).collect();
        assert!(missing.is_empty(), "docs/metrics.md lacks {missing:?}");
    }
}
