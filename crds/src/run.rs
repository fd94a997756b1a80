//! `SubagentRun`: one run of a child agent.

use crate::{content::Prompt, message::PlacedMessage, run_status::SubagentRunStatus, schemas};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// SubagentRun is one run of a child agent: a prompt, a worker pod, a result.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "subagents.dev",
    version = "v1alpha1",
    kind = "SubagentRun",
    namespaced,
    status = "SubagentRunStatus",
    shortname = "sar",
    category = "subagents-all",
    derive = "PartialEq",
    doc = "SubagentRun is one run of a child agent: a prompt, a worker pod, a result. Its spec is fixed; append to spec.messages to steer it, set spec.cancel to stop it, delete it to stop and forget it.",
    selectable = ".status.lineage.parentUID",
    selectable = ".status.lineage.rootUID",
    validation = Rule::new("self.metadata.name.size() <= 63").message("metadata.name has at most 63 characters: it becomes a label value; choose a shorter name"),
    validation = Rule::new("!has(oldSelf.status) || has(self.status)").message("status cannot be removed").field_path(".status"),
    // Rules with oldSelf below status do not hold for the first status ever written; a late report must not be it (R17).
    validation = Rule::new("has(oldSelf.status) || !has(self.status) || !(has(self.status.report) || has(self.status.result) || has(self.status.transcript))").message("the first status has no report, result or transcript: they come from an earlier run of this name").field_path(".status"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase", description = "Where the run stands"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason", description = "Why"),
    printcolumn(name = "Provider", type_ = "string", json_path = ".spec.providerRef.name"),
    printcolumn(name = "Description", type_ = "string", json_path = ".spec.description"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Agent", type_ = "string", json_path = ".status.report.agent.name", description = "The agent's own name", priority = 1),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.report.agent.version", description = "The agent's own version", priority = 1),
    printcolumn(name = "Stopped", type_ = "string", json_path = ".status.conditions[?(@.type=='Stopped')].status", description = "Whether every process of the run is proven gone", priority = 1),
    printcolumn(name = "Attempt", type_ = "integer", json_path = ".status.attempt", priority = 1),
    printcolumn(name = "Depth", type_ = "integer", json_path = ".status.lineage.depth", priority = 1),
    printcolumn(name = "Pod", type_ = "string", json_path = ".status.attempts[0].podName", description = "Worker pod of the newest attempt", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.prompt) != has(self.activation)").message("a run has exactly one of prompt and activation; set prompt (activation is the operator's)"),
    validation = Rule::new("self.providerRef == oldSelf.providerRef").message("providerRef is immutable; create a new run"),
    validation = Rule::new("self.description == oldSelf.description").message("description is immutable; create a new run"),
    validation = Rule::new("has(self.prompt) == has(oldSelf.prompt) && (!has(self.prompt) || self.prompt == oldSelf.prompt)").message("prompt is immutable; create a new run"),
    validation = Rule::new("has(self.activation) == has(oldSelf.activation) && (!has(self.activation) || (self.activation.subagentRef == oldSelf.activation.subagentRef && self.activation.epoch == oldSelf.activation.epoch && has(self.activation.session) == has(oldSelf.activation.session) && (!has(self.activation.session) || self.activation.session == oldSelf.activation.session)))").message("activation is immutable but for its inbox; create a new run"),
    validation = Rule::new("!has(self.activation) || !has(oldSelf.activation) || oldSelf.activation.inbox == 'Open' || self.activation.inbox == 'Closed'").message("activation.inbox goes from Open to Closed once"),
    validation = Rule::new("!has(self.activation) || !has(oldSelf.activation) || oldSelf.activation.inbox == 'Open' || !has(self.messages) || self.messages.all(entry, has(oldSelf.messages) && oldSelf.messages.exists(old, old.id == entry.id && old.placement == entry.placement))").message("a closed inbox takes no new message"),
    validation = Rule::new("has(self.activation) || !has(self.messages) || self.messages.all(entry, has(entry.delivery) && entry.delivery == 'Steer' && has(entry.text) && !has(entry.content) && (!has(entry.placement) || entry.placement == 0))").message("a message of a one-shot run has an id, delivery Steer and text; create a new run for a follow-up, or a Subagent to go on"),
    validation = Rule::new("has(self.activation) || !has(oldSelf.messages) || oldSelf.messages.all(old, has(self.messages) && self.messages.exists(entry, entry.id == old.id))").message("messages of a one-shot run stay in the list; append another one with a new id"),
    validation = Rule::new("has(self.activation) || !has(self.messages) || self.messages.map(entry, has(entry.text) ? entry.text.size() : 0).sum() <= 262144").message("the texts of all messages of a one-shot run together have at most 262144 characters"),
    validation = Rule::new("has(self.parentRef) == has(oldSelf.parentRef) && (!has(self.parentRef) || self.parentRef == oldSelf.parentRef)").message("parentRef is immutable; create a new run"),
    validation = Rule::new("has(self.parameters) == has(oldSelf.parameters) && (!has(self.parameters) || self.parameters == oldSelf.parameters)").message("parameters are immutable; create a new run"),
    validation = Rule::new("has(self.agentOptions) == has(oldSelf.agentOptions) && (!has(self.agentOptions) || self.agentOptions == oldSelf.agentOptions)").message("agentOptions are immutable; create a new run"),
    validation = Rule::new("has(self.persona) == has(oldSelf.persona) && (!has(self.persona) || self.persona == oldSelf.persona)").message("persona is immutable; create a new run"),
    validation = Rule::new("has(self.toolFilter) == has(oldSelf.toolFilter) && (!has(self.toolFilter) || self.toolFilter == oldSelf.toolFilter)").message("toolFilter is immutable; create a new run"),
    validation = Rule::new("has(self.outputSchema) == has(oldSelf.outputSchema) && (!has(self.outputSchema) || self.outputSchema == oldSelf.outputSchema)").message("outputSchema is immutable; create a new run"),
    validation = Rule::new("has(self.maxDepth) == has(oldSelf.maxDepth) && (!has(self.maxDepth) || self.maxDepth == oldSelf.maxDepth)").message("maxDepth is immutable; create a new run"),
    validation = Rule::new("has(self.startDeadlineSeconds) == has(oldSelf.startDeadlineSeconds) && (!has(self.startDeadlineSeconds) || self.startDeadlineSeconds == oldSelf.startDeadlineSeconds)").message("startDeadlineSeconds is immutable; create a new run"),
    validation = Rule::new("has(self.activeDeadlineSeconds) == has(oldSelf.activeDeadlineSeconds) && (!has(self.activeDeadlineSeconds) || self.activeDeadlineSeconds == oldSelf.activeDeadlineSeconds)").message("activeDeadlineSeconds is immutable; create a new run"),
    validation = Rule::new("has(self.idleDeadlineSeconds) == has(oldSelf.idleDeadlineSeconds) && (!has(self.idleDeadlineSeconds) || self.idleDeadlineSeconds == oldSelf.idleDeadlineSeconds)").message("idleDeadlineSeconds is immutable; create a new run"),
    validation = Rule::new("has(self.ttlSecondsAfterFinished) == has(oldSelf.ttlSecondsAfterFinished) && (!has(self.ttlSecondsAfterFinished) || self.ttlSecondsAfterFinished == oldSelf.ttlSecondsAfterFinished)").message("ttlSecondsAfterFinished is immutable; create a new run"),
    validation = Rule::new("has(self.interruptionPolicy) == has(oldSelf.interruptionPolicy) && (!has(self.interruptionPolicy) || self.interruptionPolicy == oldSelf.interruptionPolicy)").message("interruptionPolicy is immutable; create a new run"),
    validation = Rule::new("has(self.maxAttempts) == has(oldSelf.maxAttempts) && (!has(self.maxAttempts) || self.maxAttempts == oldSelf.maxAttempts)").message("maxAttempts is immutable; create a new run"),
    validation = Rule::new("!oldSelf.cancel || self.cancel").message("cancel goes from false to true once; create a new run to start again")
)]
pub struct SubagentRunSpec {
    /// providerRef names the SubagentProvider in the same namespace. Immutable.
    pub provider_ref: ProviderRef,
    /// description says in three to five words what the run is for; kubectl get shows it. At most 128 characters. Immutable.
    #[schemars(length(min = 1, max = 128))]
    pub description: String,
    /// prompt is what the agent is asked. Exactly one of prompt and activation. Immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Prompt>,
    /// activation is set by the operator alone, on the runs of a continuable child: which child, and what it continues from.
    /// Immutable but for its inbox, which closes once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activation: Option<Activation>,
    /// parentRef is the run or child that delegates this one; cancelling a run, or deleting either, reaches this one, too. Naming
    /// a parent needs the right to update it. Immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_ref: Option<ParentRef>,
    /// parameters become environment variables SUBAGENT_PARAM_KEY in every container of the template. At most 32, 16 KiB
    /// together; names are upper-case. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::parameters")]
    pub parameters: Option<BTreeMap<String, String>>,
    /// agentOptions override the provider's settings. Each needs a capability of the provider: model needs AgentModel; what the
    /// others need none has in this version. Immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_options: Option<AgentOptions>,
    /// persona replaces the agent's deployment persona, literally. Presence counts, also when it is empty. Needs the
    /// provider's Persona capability. At most 16 KiB. Immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16384))]
    pub persona: Option<String>,
    /// toolFilter limits the agent's tools. Presence counts. Needs the provider's ToolFilter capability, which none has in
    /// this version. Immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_filter: Option<ToolFilter>,
    /// outputSchema asks for a structured result. Needs the provider's OutputSchema capability, which none has in this
    /// version. A subset of JSON Schema.
    /// Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::opaque_object")]
    pub output_schema: Option<serde_json::Value>,
    /// maxDepth is an absolute cap on this run's depth; a run without parent has depth 1. Default: no cap of its own. Immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub max_depth: Option<i32>,
    /// startDeadlineSeconds is the longest time from creation to Started. Default: the provider's, else 600. Immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 315360000))]
    pub start_deadline_seconds: Option<i64>,
    /// activeDeadlineSeconds is the longest time from Started to the end. Default: the provider's, else none. Immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 315360000))]
    pub active_deadline_seconds: Option<i64>,
    /// idleDeadlineSeconds is the longest time without a sign of life from the agent. Default: the provider's, else none. Immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 315360000))]
    pub idle_deadline_seconds: Option<i64>,
    /// interruptionPolicy says what happens when an attempt is lost after its turn began. Only Fail is available in this
    /// version. Default: the provider's, else Fail. Immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interruption_policy: Option<InterruptionPolicy>,
    /// maxAttempts is the most worker pods the run may use. Default: the provider's, else 3. Immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub max_attempts: Option<i32>,
    /// ttlSecondsAfterFinished is how long the finished run is kept. Default: the provider's, else seven days. Immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 315360000))]
    pub ttl_seconds_after_finished: Option<i64>,
    /// messages steer a one-shot run: append entries with an id, delivery Steer and text. Each goes into the turn that is running,
    /// or is rejected; status.messages tells. They stay, and never change. Needs the provider's Steering capability. Default [].
    /// At most 64, together 256 KiB. Those of an activation are written by the operator alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id", "placement"], "default" = []))]
    pub messages: Vec<PlacedMessage>,
    /// cancel stops the run and every run below it: false (default) to true, once. The run is kept; delete it to stop and
    /// forget it.
    #[serde(default)]
    pub cancel: bool,
}

/// A provider in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderRef {
    /// name of the SubagentProvider.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: String,
}

/// Kinds a parent can be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ParentKind {
    /// A continuable child.
    Subagent,
    /// A run.
    #[default]
    SubagentRun,
}

/// The parent of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ParentRef {
    /// kind of the parent.
    pub kind: ParentKind,
    /// name of the parent, in the same namespace.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: String,
    /// uid of the parent, as a precondition: another object of that name is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub uid: Option<String>,
}

/// One activation of a continuable child.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Activation {
    /// subagentRef is the child.
    pub subagent_ref: SubagentRef,
    /// epoch numbers the activation, from 1.
    #[schemars(range(min = 1, max = 9007199254740991_i64))]
    pub epoch: i64,
    /// session is what the activation continues. Absent: it begins a new session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<ContinuedSession>,
    /// inbox is Open (default) while more messages may come, and then Closed: what is there is worked off, and the
    /// activation ends.
    #[serde(default)]
    pub inbox: Inbox,
}

/// Whether more messages may come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Inbox {
    /// More may come.
    #[default]
    Open,
    /// No more come.
    Closed,
}

/// The session that an activation continues.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContinuedSession {
    /// id is the agent's session id.
    #[schemars(length(min = 1, max = 256))]
    pub id: String,
    /// checkpoint holds the agent's session files.
    pub checkpoint: CheckpointRef,
    /// completedTurns is the number of turns the session holds: a load that replays nothing is then an error.
    #[serde(default)]
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub completed_turns: i64,
}

/// A checkpoint in the session store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointRef {
    /// key under which it is stored.
    #[schemars(length(min = 1, max = 256))]
    pub key: String,
    /// digest is its SHA-256 in lower-case hex.
    #[schemars(length(min = 64, max = 64))]
    pub digest: String,
    /// size in bytes.
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub size: i64,
}

/// A continuable child, by name and UID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubagentRef {
    /// name of the Subagent.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// uid of the Subagent.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
}

/// Options of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentOptions {
    /// provider is the model provider to use.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub provider: Option<String>,
    /// model is the model to use.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub model: Option<String>,
    /// maxTokens caps the tokens of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 9007199254740991_i64))]
    pub max_tokens: Option<i64>,
}

/// Which tools the agent may use; allow comes before deny.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.allow) || has(self.deny)").message("toolFilter has allow, deny or both"))]
pub struct ToolFilter {
    /// allow lists the only tools shown; an empty list hides every tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::tool_names")]
    pub allow: Option<Vec<String>>,
    /// deny lists tools that are hidden.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::tool_names")]
    pub deny: Option<Vec<String>>,
}

/// What happens when an attempt is lost after its turn began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum InterruptionPolicy {
    /// The run ends.
    #[default]
    Fail,
    /// The session is loaded in a new attempt. Not available in this version.
    Resume,
    /// The run starts over in a new attempt. Not available in this version.
    Restart,
}
