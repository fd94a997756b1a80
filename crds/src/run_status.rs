//! Status of a run.

use crate::{
    message::{Code, Outcome},
    report::{Permissions, Report, RunResult, Transcript, Usage},
    run::{InterruptionPolicy, ToolFilter},
    schemas,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What was observed of a run. The gateway writes report, result and transcript; the controllers write the rest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(oldSelf.phase) || !(oldSelf.phase in ['Completed', 'Failed', 'Cancelled', 'Rejected']) || (has(self.phase) && self.phase == oldSelf.phase)").message("a terminal phase never changes"),
    validation = Rule::new("!has(oldSelf.phase) || !(oldSelf.phase in ['Completed', 'Failed', 'Cancelled', 'Rejected']) || (has(self.report) == has(oldSelf.report) && (!has(self.report) || self.report == oldSelf.report))").message("report is frozen once the phase is terminal"),
    validation = Rule::new("!has(oldSelf.phase) || !(oldSelf.phase in ['Completed', 'Failed', 'Cancelled', 'Rejected']) || (has(self.result) == has(oldSelf.result) && (!has(self.result) || self.result == oldSelf.result))").message("result is frozen once the phase is terminal"),
    validation = Rule::new("!has(oldSelf.phase) || !(oldSelf.phase in ['Completed', 'Failed', 'Cancelled', 'Rejected']) || (has(self.transcript) == has(oldSelf.transcript) && (!has(self.transcript) || self.transcript == oldSelf.transcript))").message("transcript is frozen once the phase is terminal"),
    validation = Rule::new("!has(oldSelf.lineage) || (has(self.lineage) && self.lineage == oldSelf.lineage)").message("lineage is written once"),
    validation = Rule::new("!has(oldSelf.descriptor) || (has(self.descriptor) && self.descriptor == oldSelf.descriptor)").message("descriptor is written once"),
    validation = Rule::new("!has(oldSelf.effective) || (has(self.effective) && self.effective == oldSelf.effective)").message("effective is written once"),
    validation = Rule::new("!has(oldSelf.stopping) || (has(self.stopping) && self.stopping == oldSelf.stopping)").message("stopping is written once"),
    validation = Rule::new("!has(oldSelf.attempt) || (has(self.attempt) && self.attempt >= oldSelf.attempt)").message("attempt never decreases"),
    validation = Rule::new("!has(oldSelf.report) || (has(self.report) && (self.report.attempt > oldSelf.report.attempt || (self.report.attempt == oldSelf.report.attempt && self.report.seq >= oldSelf.report.seq)))").message("report.attempt and report.seq never decrease"),
    validation = Rule::new("!has(self.report) || (has(oldSelf.report) && self.report == oldSelf.report) || (has(self.podUID) && self.report.podUID == self.podUID && has(self.attempt) && self.report.attempt == self.attempt)").message("a changed report must carry podUID and attempt of status: it comes from a pod that is not current"),
    validation = Rule::new("!has(self.result) || (has(oldSelf.result) && self.result == oldSelf.result) || (has(self.podUID) && self.result.podUID == self.podUID)").message("a changed result must carry podUID of status: it comes from a pod that is not current"),
    validation = Rule::new("!has(self.transcript) || (has(oldSelf.transcript) && self.transcript == oldSelf.transcript) || (has(self.podUID) && self.transcript.podUID == self.podUID)").message("a changed transcript must carry podUID of status: it comes from a pod that is not current")
)]
pub struct SubagentRunStatus {
    /// observedGeneration is the generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub observed_generation: Option<i64>,
    /// phase is where the run stands: Pending, Queued, Starting, Running, Cancelling, then exactly one of Completed, Failed,
    /// Cancelled, Rejected. It is derived from the conditions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// stopReason is how the agent's work ended: Completed, Aborted, Error, MaxTokens, Refusal; an open set, an unknown one is a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub stop_reason: Option<String>,
    /// reason is why, a stable word of the failure taxonomy.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub reason: Option<String>,
    /// message is for a person: what happened and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
    /// diagnostic holds a few facts about a failure, for reading. At most 4 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub diagnostic: Option<String>,
    /// conditions: Accepted, WorkerReady, Started, Interrupted, Stopped, Finished, Succeeded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schemas::conditions")]
    pub conditions: Vec<Condition>,
    /// lineage is computed by the operator at acceptance and written once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lineage: Option<Lineage>,
    /// descriptor is how the run was composed, written once at acceptance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub descriptor: Option<Descriptor>,
    /// effective holds the deadlines and policies in force, written once at acceptance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effective: Option<Effective>,
    /// stopping says why and since when the run is being stopped; written once, before anything is stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopping: Option<Stopping>,
    /// attempt is the current attempt, from 1. It only rises.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000000))]
    pub attempt: Option<i32>,
    /// podUID is the UID of the current attempt's pod; only this pod's worker is believed.
    #[serde(rename = "podUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub pod_uid: Option<String>,
    /// attempts are the newest 8 attempts, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub attempts: Vec<Attempt>,
    /// report is the worker's latest word, stored by the gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<Report>,
    /// result is the agent's output, stored by the gateway before the phase becomes terminal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<RunResult>,
    /// transcript is the archived tail of what was said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transcript: Option<Transcript>,
    /// messages are what became of the entries of spec.messages of a one-shot run, in the order they were first seen in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"]))]
    pub messages: Vec<RunMessage>,
    /// permissions counts answered permission requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permissions: Option<Permissions>,
    /// usage of tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// queuedSince is set while the run waits for room (phase Queued).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued_since: Option<Time>,
    /// queuedSeconds is the time spent Queued so far; it does not count towards the start deadline.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0, max = 315360000))]
    pub queued_seconds: i64,
    /// startedAt is when the ACP session existed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// finishedAt is when the phase became terminal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
}

fn is_zero(value: &i64) -> bool {
    *value == 0
}

/// What became of a message to a one-shot run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunMessage {
    /// id of the message.
    #[schemars(length(min = 1, max = 63))]
    pub id: String,
    /// placement is the number under which the worker knows it.
    #[schemars(range(min = 1, max = 9007199254740991_i64))]
    pub placement: i64,
    /// outcome: Queued while the worker has it, then Steered or Rejected.
    #[serde(default)]
    pub outcome: Outcome,
    /// code says why it was rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// message says for a person why it was rejected.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub message: String,
    /// at is when the outcome was noted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Not accepted yet.
    #[default]
    Pending,
    /// Accepted, waiting for room.
    Queued,
    /// Its pod is being started.
    Starting,
    /// Its session exists.
    Running,
    /// It is being stopped.
    Cancelling,
    /// The agent completed.
    Completed,
    /// It ended otherwise.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// It was refused: no pod ever.
    Rejected,
}

impl Phase {
    /// True for the four phases that never change.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled | Self::Rejected)
    }

    /// The API's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Queued => "Queued",
            Self::Starting => "Starting",
            Self::Running => "Running",
            Self::Cancelling => "Cancelling",
            Self::Completed => "Completed",
            Self::Failed => "Failed",
            Self::Cancelled => "Cancelled",
            Self::Rejected => "Rejected",
        }
    }
}

/// Who delegated whom.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Lineage {
    /// depth of the run: 1 without parent, else the parent's plus 1.
    #[schemars(range(min = 1, max = 2147483647))]
    pub depth: i32,
    /// parentUID is the UID of the parent.
    #[serde(rename = "parentUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub parent_uid: Option<String>,
    /// rootUID is the UID of the first ancestor, the run's own when it has none.
    #[serde(rename = "rootUID")]
    #[schemars(length(min = 1, max = 64))]
    pub root_uid: String,
    /// ancestors are the UIDs of all ancestors, root first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schemas::ancestors")]
    pub ancestors: Vec<String>,
}

/// Mode of a run that answers one prompt.
pub const MODE_ONE_SHOT: &str = "OneShot";
/// Mode of a child, and of its activations.
pub const MODE_CONTINUABLE: &str = "Continuable";

/// How a run was composed (contract c32).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// version of the descriptor, 1.
    #[schemars(range(min = 1, max = 1000))]
    pub version: i32,
    /// mode is OneShot or Continuable.
    #[schemars(length(max = 32))]
    pub mode: String,
    /// provider is the provider's name.
    #[schemars(length(max = 63))]
    pub provider: String,
    /// providerRevision is the ControllerRevision with the provider's spec.
    #[schemars(length(max = 253))]
    pub provider_revision: String,
    /// context is Fresh or Fork.
    #[schemars(length(max = 32))]
    pub context: String,
    /// description of the run.
    #[schemars(length(max = 128))]
    pub description: String,
    /// agentProvider is the model provider that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub agent_provider: Option<String>,
    /// agentModel is the model that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub agent_model: Option<String>,
    /// persona that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16384))]
    pub persona: Option<String>,
    /// toolFilter that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_filter: Option<ToolFilter>,
    /// maxDepth is the smallest cap of the run and its ancestors.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub max_depth: Option<i32>,
}

/// Deadlines and policies in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Effective {
    /// startDeadlineSeconds counts from creation, without the time spent Queued.
    #[schemars(range(min = 1, max = 315360000))]
    pub start_deadline_seconds: i64,
    /// activeDeadlineSeconds counts from Started.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 315360000))]
    pub active_deadline_seconds: Option<i64>,
    /// idleDeadlineSeconds counts from the latest sign of life.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 315360000))]
    pub idle_deadline_seconds: Option<i64>,
    /// ttlSecondsAfterFinished counts from finishedAt.
    #[schemars(range(min = 0, max = 315360000))]
    pub ttl_seconds_after_finished: i64,
    /// interruptionPolicy in force.
    #[serde(default)]
    pub interruption_policy: InterruptionPolicy,
    /// maxAttempts in force.
    #[schemars(range(min = 1, max = 100))]
    pub max_attempts: i32,
}

/// Why a run is being stopped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Stopping {
    /// reason the run will end with, unless the agent was done first.
    #[schemars(length(min = 1, max = 64))]
    pub reason: String,
    /// at is when the stop began; graces count from here.
    pub at: Time,
}

/// One worker pod of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// number of the attempt, from 1.
    #[schemars(range(min = 1, max = 1000000))]
    pub number: i32,
    /// podName of the attempt.
    #[schemars(length(max = 253))]
    pub pod_name: String,
    /// podUID of the attempt.
    #[serde(rename = "podUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub pod_uid: Option<String>,
    /// startedAt is when its pod was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// finishedAt is when it was proven stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// reason it ended for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub reason: Option<String>,
}
