//! Status of a continuable child.

use crate::{
    message::{Code, Outcome},
    report::TurnOutput,
    run_status::{Descriptor, Lineage},
    schemas,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What was observed of a child. The controllers alone write it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(oldSelf.lineage) || (has(self.lineage) && self.lineage == oldSelf.lineage)").message("lineage is written once"),
    validation = Rule::new("!has(oldSelf.descriptor) || (has(self.descriptor) && self.descriptor == oldSelf.descriptor)").message("descriptor is written once"),
    validation = Rule::new("!has(oldSelf.workspace) || (has(self.workspace) && self.workspace == oldSelf.workspace)").message("workspace is written once"),
    validation = Rule::new("!has(oldSelf.epochs) || (has(self.epochs) && self.epochs >= oldSelf.epochs)").message("epochs never decreases"),
    validation = Rule::new("!has(oldSelf.phase) || oldSelf.phase != 'Rejected' || (has(self.phase) && self.phase == 'Rejected')").message("a rejected child stays rejected")
)]
pub struct SubagentStatus {
    /// observedGeneration is the generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub observed_generation: Option<i64>,
    /// phase is where the child stands: Pending, Active, Waiting (its own work is done, children of it are live), Parked,
    /// Settled, Rejected, NotResumable, Terminating.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<SubagentPhase>,
    /// reason is why, a stable word of the failure taxonomy.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub reason: Option<String>,
    /// message is for a person: what happened and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
    /// conditions: Accepted, Active, Settled, Resumable, and where they apply WorkspaceCreated (the claim of spec.workspace was
    /// created), NumberSkipped (a foreign object has the name of an activation; False once a later one has its run), MemoryWhole
    /// (False: a part of the memory of ids is missing, and no new id is taken) and InboxPruned (False: what remembers the ids of
    /// messages that are over cannot be stored, so they do not leave the inbox).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schemas::conditions")]
    pub conditions: Vec<Condition>,
    /// lineage is computed by the operator at acceptance and written once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lineage: Option<Lineage>,
    /// descriptor is how the child was composed, written once at acceptance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub descriptor: Option<Descriptor>,
    /// providerRevision is the ControllerRevision the newest activation was given; one whose provider is gone keeps it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub provider_revision: Option<String>,
    /// workspace is the claim that was made for spec.workspace, written once. Without that very claim no activation starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<ChildWorkspace>,
    /// sessionID is the agent's session id.
    #[serde(rename = "sessionID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub session_id: Option<String>,
    /// activation is the current activation; absent while nothing runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activation: Option<CurrentActivation>,
    /// epochs is the number of the newest activation.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub epochs: i64,
    /// cancelledThroughEpoch is the number up to which activations were cancelled, by spec.cancelThroughEpoch or by way of their
    /// run; each cancellation is carried out once.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub cancelled_through_epoch: i64,
    /// cancellingDescendants is true from a cancellation until all that the child had delegated by then is told to stop.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancelling_descendants: bool,
    /// cancellingSince is since when cancellingDescendants is true; whoever cannot be told is given up five minutes later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancelling_since: Option<Time>,
    /// sequences is the highest sequence given to a message.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub sequences: i64,
    /// placements is the highest placement given to a message.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub placements: i64,
    /// queuedCount is the number of messages that wait for their turn.
    #[serde(default)]
    #[schemars(range(min = 0, max = 64))]
    pub queued_count: i32,
    /// parkedCount is the number of messages that wait for the next waking message.
    #[serde(default)]
    #[schemars(range(min = 0, max = 64))]
    pub parked_count: i32,
    /// messages are what became of the entries of spec.messages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"]))]
    pub messages: Vec<MessageStatus>,
    /// turns are the newest 32 turns, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub turns: Vec<ChildTurn>,
    /// completedTurns is the number of turns in all that the agent completed and whose checkpoint is stored.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub completed_turns: i64,
    /// checkpoint is what the next activation resumes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<ChildCheckpoint>,
    /// lastResult is the newest finished turn; it is kept for the life of the child.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_result: Option<ChildTurn>,
    /// sessionNotRemovedSince is since when the session of a child that is being deleted could not be removed from the store: it
    /// is tried for five minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_not_removed_since: Option<Time>,
    /// seenIDs is the memory of ids that have left status.messages: the same id again has no effect.
    #[serde(rename = "seenIDs", skip_serializing_if = "Option::is_none")]
    pub seen_ids: Option<SeenIds>,
}

fn is_zero(value: &i64) -> bool {
    *value == 0
}

impl SubagentStatus {
    /// True when no process of the child runs and none will without a new message: for those above it, that is its end.
    /// A child whose own children live (Waiting), or that is going away, is not at rest.
    pub fn is_at_rest(&self) -> bool {
        use SubagentPhase::{NotResumable, Parked, Rejected, Settled};
        self.activation.is_none()
            && self.phase.is_some_and(|phase| matches!(phase, Parked | Settled | Rejected | NotResumable))
    }
}

/// Where a child stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SubagentPhase {
    /// Not accepted yet.
    #[default]
    Pending,
    /// An activation is under way.
    Active,
    /// Its own work is done; children of it are live.
    Waiting,
    /// Messages wait for the next waking message.
    Parked,
    /// Nothing runs, nothing waits.
    Settled,
    /// It was refused: it never had a pod.
    Rejected,
    /// Its session cannot be continued; it stays for inspection.
    NotResumable,
    /// It is being deleted.
    Terminating,
}

impl SubagentPhase {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Active,
        Self::Waiting,
        Self::Parked,
        Self::Settled,
        Self::Rejected,
        Self::NotResumable,
        Self::Terminating,
    ];

    /// The API's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Active => "Active",
            Self::Waiting => "Waiting",
            Self::Parked => "Parked",
            Self::Settled => "Settled",
            Self::Rejected => "Rejected",
            Self::NotResumable => "NotResumable",
            Self::Terminating => "Terminating",
        }
    }
}

/// The claim that keeps a child's files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChildWorkspace {
    /// claimName is the name of its PersistentVolumeClaim.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: String,
    /// claimUID is the UID of that: another one of its name holds none of the child's files.
    #[serde(rename = "claimUID")]
    #[schemars(length(min = 1, max = 64))]
    pub claim_uid: String,
}

/// The activation that is under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CurrentActivation {
    /// epoch numbers it.
    #[schemars(range(min = 1, max = 9007199254740991_i64))]
    pub epoch: i64,
    /// runName is the name of its run.
    #[schemars(length(min = 1, max = 63))]
    pub run_name: String,
    /// runUID is the UID of its run; only this run may have a pod for it.
    #[serde(rename = "runUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub run_uid: Option<String>,
    /// state is Claimed (its number is taken), Starting, Running, Idle (nothing to do, the pod is kept) or Closing.
    #[serde(default)]
    pub state: ActivationState,
    /// wokenBy is the id of the message that started it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub woken_by: String,
    /// idleSince is since when there is nothing to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_since: Option<Time>,
    /// refusedSince is since when the API server refuses to create its run; the start deadline counts from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused_since: Option<Time>,
    /// runGoneSince is since when its run is gone, which somebody removed by force; a pod of it may still come for a while.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_gone_since: Option<Time>,
    /// foldedTurns is the number of its turns that status has taken in.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub folded_turns: i64,
}

/// Where an activation stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ActivationState {
    /// Its number is taken, its run may not exist yet.
    #[default]
    Claimed,
    /// Its run exists.
    Starting,
    /// Its session exists.
    Running,
    /// It has nothing to do, and its pod is kept for a while.
    Idle,
    /// It takes no more messages and ends.
    Closing,
}

/// What became of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MessageStatus {
    /// id of the message.
    #[schemars(length(min = 1, max = 63))]
    pub id: String,
    /// sequence is its place in the order of acceptance.
    #[schemars(range(min = 1, max = 9007199254740991_i64))]
    pub sequence: i64,
    /// placement is the newest number under which an activation was given it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 9007199254740991_i64))]
    pub placement: Option<i64>,
    /// outcome: Accepted, Queued, Parked, then exactly one of Started, Claimed, Steered, Applied, Rejected, Discarded.
    #[serde(default)]
    pub outcome: Outcome,
    /// code says why it was rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// message says for a person why it was not delivered, where the code alone does not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub message: String,
    /// interrupted is true once the interruption it asked for was carried out; its content then waits for a turn.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// conflict is true when an entry with the same id and other content was seen; that one was not delivered.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub conflict: bool,
    /// digest of delivery and content, by which a repeat is told from a conflict.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub digest: String,
    /// epoch of the activation that has or had it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 9007199254740991_i64))]
    pub epoch: Option<i64>,
    /// turn of that activation that took it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 9007199254740991_i64))]
    pub turn: Option<i64>,
    /// at is when the outcome was noted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
}

/// A turn of a child.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChildTurn {
    /// epoch of its activation.
    #[schemars(range(min = 1, max = 9007199254740991_i64))]
    pub epoch: i64,
    /// turn is its number within the activation.
    #[schemars(range(min = 1, max = 9007199254740991_i64))]
    pub turn: i64,
    /// messageID of the message whose turn it was.
    #[serde(rename = "messageID", default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub message_id: String,
    /// stopReason of the turn: Completed, Aborted, Error, MaxTokens, Refusal or Interrupted; an open set.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub stop_reason: String,
    /// preview is the first 1 KiB of its output.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub preview: Option<String>,
    /// output is where the whole output is kept, when the preview does not hold its text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<TurnOutput>,
    /// besideText is where the content that is not text is kept, when the preview holds the whole text. It has a field of its
    /// own because an operator of the version before reads no output without ref.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beside_text: Option<TurnOutput>,
    /// at is when it ended. RFC 3339.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub at: String,
}

impl ChildTurn {
    /// Says where its whole output is kept, unless that is said already.
    pub fn point_to(&mut self, output: &TurnOutput) {
        if self.output.is_none() && self.beside_text.is_none() {
            let place = if output.ref_.is_some() { &mut self.output } else { &mut self.beside_text };
            *place = Some(output.clone());
        }
    }

    /// What its preview does not hold of its output.
    pub fn kept(&self) -> Option<&TurnOutput> {
        self.output.as_ref().or(self.beside_text.as_ref())
    }
}

/// The checkpoint that the next activation resumes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChildCheckpoint {
    /// key under which it is stored.
    #[schemars(length(min = 1, max = 256))]
    pub key: String,
    /// digest is its SHA-256 in lower-case hex.
    #[schemars(length(min = 64, max = 64))]
    pub digest: String,
    /// size in bytes.
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub size: i64,
    /// epoch of the activation that took it.
    #[schemars(range(min = 1, max = 9007199254740991_i64))]
    pub epoch: i64,
    /// turn of that activation after which it was taken.
    #[schemars(range(min = 1, max = 9007199254740991_i64))]
    pub turn: i64,
    /// at is when it was noted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
}

/// The memory of ids that are over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SeenIds {
    /// count of ids remembered.
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub count: i64,
    /// configMaps that hold them, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schemas::word_set")]
    pub config_maps: Vec<String>,
}
