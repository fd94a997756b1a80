//! `SubagentProvider`: a named way to run child agents.

use crate::schemas;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// SubagentProvider is a named way to run child agents in its namespace: which agent, how to speak to it, in what pod.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "subagents.dev",
    version = "v1alpha1",
    kind = "SubagentProvider",
    namespaced,
    status = "SubagentProviderStatus",
    shortname = "sap",
    category = "subagents-all",
    derive = "PartialEq",
    doc = "SubagentProvider is a named way to run child agents in its namespace: which agent, how to speak to it, in what pod.",
    validation = Rule::new("self.metadata.name.size() <= 63").message("metadata.name has at most 63 characters: it becomes a label value; choose a shorter name"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status", description = "Whether runs can start"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason", description = "Why it is ready or not"),
    printcolumn(name = "Description", type_ = "string", json_path = ".spec.description", description = "What it is for"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Agent", type_ = "string", json_path = ".status.agent.name", description = "What the agent called itself when it was probed", priority = 1),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.agent.version", description = "The agent's version", priority = 1),
    printcolumn(name = "Capabilities", type_ = "string", json_path = ".status.capabilities", description = "What runs may ask for", priority = 1),
    printcolumn(name = "Permission", type_ = "string", json_path = ".spec.transport.acp.permission.mode", description = "How permission requests are answered", priority = 1),
    printcolumn(name = "Revision", type_ = "string", json_path = ".status.revision", description = "ControllerRevision that new runs get", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].message", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct SubagentProviderSpec {
    /// description says what this provider is good for. It is told to a model that may choose it. At most 512 characters.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub description: String,
    /// context says what a child starts from: Fresh (default) is an empty conversation. Fork (the parent's last completed
    /// turn) is not available in this version and leaves the provider not ready.
    #[serde(default)]
    pub context: Context,
    /// transport is how the agent is spoken to. Exactly one member.
    pub transport: Transport,
    /// template is the worker pod's template, a PodTemplateSpec. Its container "agent" must have a command: the agent's
    /// ACP server. It is checked by a dry-run create; a mistake shows in the Ready condition.
    #[schemars(schema_with = "schemas::opaque_object")]
    pub template: serde_json::Value,
    /// sessionState names what makes a child continuable: where the agent keeps its sessions. With an agent that can load or
    /// resume them the provider has the capability Continuation. Default: none, no Subagent can use the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_state: Option<SessionState>,
    /// runDefaults apply to runs that do not say otherwise.
    #[serde(default, skip_serializing_if = "RunDefaults::is_empty")]
    pub run_defaults: RunDefaults,
    /// stop holds the graces of the stop ladder: session/cancel, end of input, SIGTERM, SIGKILL.
    #[serde(default)]
    pub stop: Stop,
    /// maxConcurrentRuns caps how many runs have a pod at a time. Not available in this version: a provider that sets it is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100000))]
    pub max_concurrent_runs: Option<i32>,
    /// probe says when the agent is tried. OnChange (default): a short pod of the same template starts it after every
    /// accepted change, and what it answers is in status.agent and status.capabilities. Never: not at all; a capability
    /// that only an agent can advertise counts as absent.
    #[serde(default)]
    pub probe: Probe,
}

/// What a child's conversation starts from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Context {
    /// An empty conversation.
    #[default]
    Fresh,
    /// The parent's last completed turn.
    Fork,
}

/// When a provider's agent is probed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Probe {
    /// After every accepted change.
    #[default]
    OnChange,
    /// Not at all.
    Never,
}

/// How the agent is spoken to. Exactly one member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.acp)").message("transport has exactly one member; set transport.acp"))]
pub struct Transport {
    /// acp is the Agent Client Protocol over the agent's standard input and output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acp: Option<Acp>,
}

/// Settings of the ACP transport.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Acp {
    /// permission says how the agent's permission requests are answered: nobody sits beside it.
    #[serde(default)]
    pub permission: Permission,
    /// authMethod is the id of the ACP authenticate method to call after initialize. Empty (default): none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 128))]
    pub auth_method: String,
    /// sessionMode is the id of the ACP session mode to set on every session. Empty (default): the agent's own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 128))]
    pub session_mode: String,
}

/// The permission policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Permission {
    /// mode is Reject (default) or Allow. Rejected requests are counted and shown as a Warning Event.
    #[serde(default)]
    pub mode: PermissionMode,
}

/// How permission requests are answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PermissionMode {
    /// With a rejecting option.
    #[default]
    Reject,
    /// With an allowing option.
    Allow,
}

/// What must survive for a child to be continued.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionState {
    /// paths are the absolute folders the agent keeps its sessions in. What is mounted read-only at or below them, as Secrets and
    /// ConfigMaps are, is not kept. 1 to 16.
    #[schemars(schema_with = "schemas::paths")]
    pub paths: Vec<String>,
    /// maxBytes is the most a checkpoint may hold, in bytes. Default 256 MiB.
    #[serde(default = "default_max_bytes")]
    #[schemars(range(min = 1024, max = 17179869184_i64))]
    pub max_bytes: i64,
}

fn default_max_bytes() -> i64 {
    256 * 1024 * 1024
}

/// Defaults for runs of a provider. All in seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunDefaults {
    /// startDeadlineSeconds is the longest time from creation to Started. Default 600.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 315360000))]
    pub start_deadline_seconds: Option<i64>,
    /// activeDeadlineSeconds is the longest time from Started to the end. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 315360000))]
    pub active_deadline_seconds: Option<i64>,
    /// idleDeadlineSeconds is the longest time without a sign of life from the agent. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 315360000))]
    pub idle_deadline_seconds: Option<i64>,
    /// ttlSecondsAfterFinished is how long a finished run is kept. Default seven days.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 315360000))]
    pub ttl_seconds_after_finished: Option<i64>,
    /// interruptionPolicy says what happens when an attempt is lost after its turn began. Default Fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interruption_policy: Option<crate::run::InterruptionPolicy>,
    /// maxAttempts is the most worker pods one run may use. Default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub max_attempts: Option<i32>,
}

impl RunDefaults {
    /// True when nothing is set.
    pub fn is_empty(&self) -> bool {
        self == &Self::default()
    }
}

/// Graces of the stop ladder (contract c48), in seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Stop {
    /// cancelGraceSeconds is the time between session/cancel and the end of the agent's input. Default 10.
    #[serde(default = "default_cancel_grace")]
    #[schemars(range(min = 0, max = 600))]
    pub cancel_grace_seconds: i64,
    /// eofGraceSeconds is the time between the end of input and SIGTERM. Default 6.
    #[serde(default = "default_eof_grace")]
    #[schemars(range(min = 0, max = 600))]
    pub eof_grace_seconds: i64,
    /// termGraceSeconds is the time between SIGTERM and SIGKILL. Default 3.
    #[serde(default = "default_term_grace")]
    #[schemars(range(min = 0, max = 600))]
    pub term_grace_seconds: i64,
}

fn default_cancel_grace() -> i64 {
    10
}
fn default_eof_grace() -> i64 {
    6
}
fn default_term_grace() -> i64 {
    3
}

impl Default for Stop {
    fn default() -> Self {
        Self {
            cancel_grace_seconds: default_cancel_grace(),
            eof_grace_seconds: default_eof_grace(),
            term_grace_seconds: default_term_grace(),
        }
    }
}

/// What was observed of a provider.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubagentProviderStatus {
    /// observedGeneration is the generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub observed_generation: Option<i64>,
    /// conditions: Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schemas::conditions")]
    pub conditions: Vec<Condition>,
    /// revision is the ControllerRevision that holds the last accepted spec; new runs get it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub revision: Option<String>,
    /// agent is what the agent said of itself to the probe of this revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<crate::report::Agent>,
    /// capabilities are what a run of this provider may ask for: what every agent has here, and what this one advertised
    /// to the probe.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schemas::word_set")]
    pub capabilities: Vec<String>,
    /// probe is what the last finished probe of the agent came to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<Probed>,
}

/// What a finished probe came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Probed {
    /// revision that was probed.
    #[schemars(length(max = 253))]
    pub revision: String,
    /// attempt is the number of the probe among those of the revision, from 1.
    #[schemars(range(min = 1, max = 1000000))]
    pub attempt: i32,
    /// finishedAt is when its end was seen.
    pub finished_at: Time,
    /// reason is why it failed, as in a run's status.reason. Absent when the agent answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub reason: Option<String>,
    /// message says more about the failure, for a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}
