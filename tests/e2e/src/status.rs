//! Reading a run.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use subagent_crds::{Phase, SubagentRun, SubagentRunStatus, conditions};

/// What tests ask of a run.
pub trait RunView {
    /// Its status, empty when it has none.
    fn seen(&self) -> SubagentRunStatus;
    /// Its phase.
    fn phase(&self) -> Option<Phase> {
        self.seen().phase
    }
    /// Its reason, empty when it has none.
    fn reason(&self) -> String {
        self.seen().reason.unwrap_or_default()
    }
    /// Its stop reason, empty when it has none.
    fn stop_reason(&self) -> String {
        self.seen().stop_reason.unwrap_or_default()
    }
    /// Its message, empty when it has none.
    fn message(&self) -> String {
        self.seen().message.unwrap_or_default()
    }
    /// The text of its result, empty when it has none.
    fn text(&self) -> String {
        self.seen().result.and_then(|result| result.text).unwrap_or_default()
    }
    /// A condition of it.
    fn condition(&self, type_: &str) -> Option<Condition> {
        conditions::get(&self.seen().conditions, type_).cloned()
    }
    /// True when that condition is `True`.
    fn is(&self, type_: &str) -> bool {
        conditions::is_true(&self.seen().conditions, type_)
    }
    /// Name of the newest attempt's pod.
    ///
    /// # Panics
    /// When there is none.
    fn pod_name(&self) -> String {
        self.seen().attempts.first().expect("an attempt").pod_name.clone()
    }
    /// Phase, stop reason and reason, for one comparison.
    fn end(&self) -> (String, String, String) {
        let phase = self.phase().map(Phase::as_str).unwrap_or_default().to_owned();
        (phase, self.stop_reason(), self.reason())
    }
}

impl RunView for SubagentRun {
    fn seen(&self) -> SubagentRunStatus {
        self.status.clone().unwrap_or_default()
    }
}

/// The expected end of a run, for [`RunView::end`].
pub fn end(phase: &str, stop_reason: &str, reason: &str) -> (String, String, String) {
    (phase.into(), stop_reason.into(), reason.into())
}
