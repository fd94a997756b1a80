//! What the operator counts, in the Prometheus text format.
//!
//! Label values come from closed sets of this program, never from a tenant: the number of series is bounded.

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

/// Labels of a reconcile.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ReconcileLabels {
    /// `run` or `provider`.
    pub controller: &'static str,
    /// `ok`, or the retry class of the error.
    pub outcome: &'static str,
}

/// Labels of a write to the API server.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct WriteLabels {
    /// `run`, `provider` or `gateway`.
    pub controller: &'static str,
    /// What was written: `status`, `pod`, `configmap`, ...
    pub kind: &'static str,
}

/// Labels of a controller.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ControllerLabels {
    /// `run` or `provider`.
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

/// Every metric of one operator process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
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
        metrics.registry = registry;
        metrics
    }

    /// The metrics as text, in the OpenMetrics format.
    ///
    /// # Errors
    /// Never in practice: writing to a string does not fail.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
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
}
