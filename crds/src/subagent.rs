//! `Subagent`: a continuable child, which outlives its pods.

use crate::{
    message::InboxMessage,
    run::{AgentOptions, ParentRef, ProviderRef, ToolFilter},
    schemas,
    subagent_status::SubagentStatus,
};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Subagent is a continuable child: an inbox, a session, and a worker pod while there is something to do.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "subagents.dev",
    version = "v1alpha1",
    kind = "Subagent",
    namespaced,
    status = "SubagentStatus",
    shortname = "sag",
    category = "subagents-all",
    derive = "PartialEq",
    doc = "Subagent is a continuable child: an inbox, a session, and a worker pod while there is something to do. Append to spec.messages to speak to it; delete it to stop and forget it.",
    selectable = ".status.lineage.parentUID",
    selectable = ".status.lineage.rootUID",
    validation = Rule::new("self.metadata.name.size() <= 63").message("metadata.name has at most 63 characters: it becomes a label value; choose a shorter name"),
    validation = Rule::new("!has(oldSelf.status) || has(self.status)").message("status cannot be removed").field_path(".status"),
    validation = Rule::new("oldSelf.spec.messages.all(old, self.spec.messages.exists(entry, entry.id == old.id) || (has(self.status) && has(self.status.messages) && self.status.messages.exists(seen, seen.id == old.id && seen.outcome in ['Started', 'Claimed', 'Steered', 'Applied', 'Rejected', 'Discarded'])))").message("a message can be removed only when status.messages shows a final outcome for it; leave those that are under way in the list").field_path(".spec.messages"),
    validation = Rule::new("self.spec.cancelThroughEpoch == oldSelf.spec.cancelThroughEpoch || (has(self.status) && has(self.status.epochs) && self.spec.cancelThroughEpoch <= self.status.epochs)").message("cancelThroughEpoch is at most status.epochs: only an activation that exists can be cancelled").field_path(".spec.cancelThroughEpoch"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase", description = "Where the child stands"),
    printcolumn(name = "Epoch", type_ = "integer", json_path = ".status.epochs", description = "Number of the newest activation"),
    printcolumn(name = "Queued", type_ = "integer", json_path = ".status.queuedCount", description = "Messages that wait for their turn"),
    printcolumn(name = "Last", type_ = "string", json_path = ".status.lastResult.stopReason", description = "How the last turn ended"),
    printcolumn(name = "Description", type_ = "string", json_path = ".spec.description"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Parked", type_ = "integer", json_path = ".status.parkedCount", description = "Messages that wait for the next waking message", priority = 1),
    printcolumn(name = "Turns", type_ = "integer", json_path = ".status.completedTurns", description = "Completed turns in all", priority = 1),
    printcolumn(name = "Resumable", type_ = "string", json_path = ".status.conditions[?(@.type=='Resumable')].status", description = "Whether the session can be continued", priority = 1),
    printcolumn(name = "Run", type_ = "string", json_path = ".status.activation.runName", description = "Run of the current activation", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("oldSelf.hasValue() || self.messages.size() == 1").optional_old_self(true).message("a new Subagent has exactly one message: what it is told first"),
    validation = Rule::new("oldSelf.hasValue() || self.cancelThroughEpoch == 0").optional_old_self(true).message("cancelThroughEpoch of a new Subagent is 0: nothing has run yet"),
    validation = Rule::new("self.cancelThroughEpoch >= oldSelf.cancelThroughEpoch").message("cancelThroughEpoch only rises"),
    validation = Rule::new("self.providerRef == oldSelf.providerRef").message("providerRef is immutable; create a new Subagent"),
    validation = Rule::new("self.description == oldSelf.description").message("description is immutable; create a new Subagent"),
    validation = Rule::new("has(self.parentRef) == has(oldSelf.parentRef) && (!has(self.parentRef) || self.parentRef == oldSelf.parentRef)").message("parentRef is immutable; create a new Subagent"),
    validation = Rule::new("has(self.parameters) == has(oldSelf.parameters) && (!has(self.parameters) || self.parameters == oldSelf.parameters)").message("parameters are immutable; create a new Subagent"),
    validation = Rule::new("has(self.agentOptions) == has(oldSelf.agentOptions) && (!has(self.agentOptions) || self.agentOptions == oldSelf.agentOptions)").message("agentOptions are immutable; create a new Subagent"),
    validation = Rule::new("has(self.persona) == has(oldSelf.persona) && (!has(self.persona) || self.persona == oldSelf.persona)").message("persona is immutable; create a new Subagent"),
    validation = Rule::new("has(self.toolFilter) == has(oldSelf.toolFilter) && (!has(self.toolFilter) || self.toolFilter == oldSelf.toolFilter)").message("toolFilter is immutable; create a new Subagent"),
    validation = Rule::new("has(self.maxDepth) == has(oldSelf.maxDepth) && (!has(self.maxDepth) || self.maxDepth == oldSelf.maxDepth)").message("maxDepth is immutable; create a new Subagent"),
    validation = Rule::new("has(self.workspace) == has(oldSelf.workspace) && (!has(self.workspace) || self.workspace == oldSelf.workspace)").message("workspace is immutable; create a new Subagent")
)]
pub struct SubagentSpec {
    /// providerRef names the SubagentProvider in the same namespace. It must be able to continue a session. Immutable.
    pub provider_ref: ProviderRef,
    /// description says in three to five words what the child is for; kubectl get shows it. At most 128 characters. Immutable.
    #[schemars(length(min = 1, max = 128))]
    pub description: String,
    /// parentRef is the run or child that delegates to this one; deleting it deletes this one, too. Naming a parent needs the
    /// right to update it. Immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_ref: Option<ParentRef>,
    /// parameters become environment variables SUBAGENT_PARAM_KEY in every container of the template. At most 32, 16 KiB
    /// together; names are upper-case. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::parameters")]
    pub parameters: Option<BTreeMap<String, String>>,
    /// agentOptions override the provider's settings; each needs a capability of the provider. Immutable.
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
    /// maxDepth is an absolute cap on the child's depth; one without parent has depth 1. Default: no cap of its own. Immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub max_depth: Option<i32>,
    /// activation holds the deadlines of each activation, and how long its pod is kept when there is nothing to do.
    #[serde(default, skip_serializing_if = "ActivationSettings::is_empty")]
    pub activation: ActivationSettings,
    /// workspace asks for a volume that keeps the child's files for its life. Needs the provider's Workspace capability.
    /// Default: none, each activation begins with an empty folder. Immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Workspace>,
    /// historyLimit is the number of finished activation runs to keep; the newest is always kept. Default 5.
    #[serde(default = "default_history_limit")]
    #[schemars(range(min = 0, max = 100))]
    pub history_limit: i32,
    /// messages are the inbox. Append to it, each entry with an id of its own; an entry never changes, and may be removed
    /// once status.messages shows its final outcome. A new Subagent has exactly one. At most 64, together 256 KiB.
    #[serde(default)]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"]))]
    #[x_kube(validation = Rule::new("self.map(entry, (has(entry.text) ? entry.text.size() : 0) + (has(entry.content) ? entry.content.map(block, (has(block.text) ? block.text.size() : 0) + (has(block.resourceLink) ? block.resourceLink.uri.size() + block.resourceLink.name.size() : 0)).sum() : 0)).sum() <= 262144").message("the contents of all messages together have at most 262144 characters; wait until some are over, and remove those"))]
    pub messages: Vec<InboxMessage>,
    /// cancelThroughEpoch cancels every activation up to this number, discards what was queued or parked by then, and cancels the
    /// runs and children below that were there. They stay, as the child does, and can be spoken to again. Default 0. It only rises, at most to status.epochs.
    #[serde(default)]
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub cancel_through_epoch: i64,
}

fn default_history_limit() -> i32 {
    5
}

/// Settings of each activation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActivationSettings {
    /// startDeadlineSeconds is the longest time from an activation's creation to its session. Default: the provider's, else 600.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 315360000))]
    pub start_deadline_seconds: Option<i64>,
    /// activeDeadlineSeconds is the longest time from Started to the end of an activation. Default: the provider's, else none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 315360000))]
    pub active_deadline_seconds: Option<i64>,
    /// idleDeadlineSeconds is the longest time without a sign of life during a turn. Default: the provider's, else none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 315360000))]
    pub idle_deadline_seconds: Option<i64>,
    /// residencySeconds is how long an activation keeps its pod once there is nothing to do, so that a follow-up needs no new
    /// one. Default 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0, max = 315360000))]
    pub residency_seconds: i64,
}

fn is_zero(value: &i64) -> bool {
    *value == 0
}

impl ActivationSettings {
    /// True when nothing is set.
    pub fn is_empty(&self) -> bool {
        self == &Self::default()
    }
}

/// A volume for the life of a child.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Workspace {
    /// claimTemplate is the spec of the PersistentVolumeClaim that is made for the child, goes with it, and is mounted at the
    /// working directory of container agent. It needs accessModes and resources.requests.storage.
    #[schemars(schema_with = "schemas::claim_spec")]
    pub claim_template: serde_json::Value,
}
