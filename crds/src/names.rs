//! Labels, annotations, finalizers, field managers and environment: each name that another program sees, once.

/// Label on a worker pod and everything made for a run: the run's name. `kubectl logs -l subagents.dev/run=NAME`.
pub const RUN_LABEL: &str = "subagents.dev/run";
/// Label on everything made for a run: the run's UID. Ownership is matched by UID, never by name.
pub const RUN_UID_LABEL: &str = "subagents.dev/run-uid";
/// Label on a worker pod: the number of its attempt.
pub const ATTEMPT_LABEL: &str = "subagents.dev/attempt";
/// Label on a ConfigMap with what a run left: [`CONTENT_RESULT`], [`CONTENT_BLOCKS`], [`CONTENT_TURN`],
/// [`CONTENT_TURN_BLOCKS`] or [`CONTENT_TRANSCRIPT`].
pub const CONTENT_LABEL: &str = "subagents.dev/content";
/// A part of a result's text.
pub const CONTENT_RESULT: &str = "result";
/// A part of a result's other content.
pub const CONTENT_BLOCKS: &str = "result-blocks";
/// A part of the text of a turn's output.
pub const CONTENT_TURN: &str = "turn";
/// A part of the other content of a turn's output.
pub const CONTENT_TURN_BLOCKS: &str = "turn-blocks";
/// A transcript.
pub const CONTENT_TRANSCRIPT: &str = "transcript";
/// Annotation on a ConfigMap with what a run left: UID of the pod it is of.
pub const POD_UID_ANNOTATION: &str = "subagents.dev/pod-uid";
/// Annotation on such a ConfigMap: SHA-256 of the whole content, of which it may hold a part, in lower-case hex.
pub const SHA256_ANNOTATION: &str = "subagents.dev/sha256";
/// Annotation on such a ConfigMap: size of the whole content in bytes.
pub const SIZE_ANNOTATION: &str = "subagents.dev/size";
/// Annotation on such a ConfigMap: in how many of them the whole content is.
pub const CHUNKS_ANNOTATION: &str = "subagents.dev/chunks";
/// Annotation on a transcript's ConfigMap: bytes that came before it.
pub const DROPPED_BYTES_ANNOTATION: &str = "subagents.dev/dropped-bytes";
/// Annotation on a transcript's ConfigMap: Worker or Log, as in `status.transcript.source`.
pub const SOURCE_ANNOTATION: &str = "subagents.dev/source";
/// Label on the pod of a probe, and nothing else: the number of the probe. Such a pod belongs to a provider and to no run.
pub const PROBE_LABEL: &str = "subagents.dev/probe";
/// Label on a ControllerRevision and on the pod of a probe: the provider's UID.
pub const PROVIDER_UID_LABEL: &str = "subagents.dev/provider-uid";
/// Label on a ControllerRevision and on the pod of a probe: the provider's name.
pub const PROVIDER_LABEL: &str = "subagents.dev/provider";
/// Prefix of every label and annotation that belongs to the operator.
pub const PREFIX: &str = "subagents.dev/";
/// Annotation on a worker pod: the worker's configuration as JSON, read through the downward API.
pub const WORKER_CONFIG_ANNOTATION: &str = "subagents.dev/worker-config";
/// Annotation on a worker pod: PEM bundle of the gateway's roots. It is updated on live pods when a root is added.
pub const GATEWAY_ROOTS_ANNOTATION: &str = "subagents.dev/gateway-roots";
/// Annotation on a ControllerRevision that nothing refers to: since when.
pub const UNREFERENCED_ANNOTATION: &str = "subagents.dev/unreferenced-since";
/// Annotation a person sets on a run to release it when the proof of stop can never come (a node that is gone for good).
/// Its value is the UID of the pod that is known to be dead. When the run itself was removed by force, the annotation is set on
/// the Subagent whose activation it was.
pub const RELEASE_ANNOTATION: &str = "subagents.dev/release-pod";
/// Annotation on a run that was cancelled together with one above it: that one's name. For a person reading.
pub const CANCELLED_BY_ANNOTATION: &str = "subagents.dev/cancelled-by";
/// Finalizer of a run: it leaves once every worker pod is proven stopped.
pub const RUN_FINALIZER: &str = "subagents.dev/run-stopped";
/// Second finalizer of an activation's run: it leaves once the child's status holds what became of every message.
pub const FOLD_FINALIZER: &str = "subagents.dev/messages-noted";
/// Label on a run: the UID of the child it activates. On a claim or a ConfigMap: the UID of the child it is made for.
pub const SUBAGENT_UID_LABEL: &str = "subagents.dev/subagent-uid";
/// Label on a run: the name of the child it activates. On a claim or a ConfigMap: the name of the child it is made for,
/// also by way of its run.
pub const SUBAGENT_LABEL: &str = "subagents.dev/subagent";
/// Label on a ConfigMap with the output of a turn: the number of the activation.
pub const EPOCH_LABEL: &str = "subagents.dev/epoch";
/// Label on a ConfigMap with the output of a turn: the number of the turn within its activation.
pub const TURN_LABEL: &str = "subagents.dev/turn";
/// Finalizer of a child: it leaves once its activations are proven stopped, its children are gone and its session is removed
/// from the store.
pub const SUBAGENT_FINALIZER: &str = "subagents.dev/child-forgotten";
/// Annotation a person sets to `true` on a child that is being deleted to let it go although its session cannot be removed
/// from the store.
pub const FORGET_ANNOTATION: &str = "subagents.dev/release-session";
/// Ids of a child's messages that have left its status.
pub const CONTENT_SEEN_IDS: &str = "seen-ids";
/// Finalizer of a worker pod: it keeps the containers' end readable until it is stored (contract c50).
pub const POD_FINALIZER: &str = "subagents.dev/proof-of-stop";
/// Field manager of the controllers.
pub const CONTROLLER_MANAGER: &str = "subagent-operator";
/// Field manager of the gateway's status writes.
pub const GATEWAY_MANAGER: &str = "subagent-gateway";
/// Reporter of Events.
pub const REPORTER: &str = "subagents.dev/operator";
/// Name of the container that runs the agent.
pub const AGENT_CONTAINER: &str = "agent";
/// Name of the init container that brings the worker's binary.
pub const WORKER_INIT_CONTAINER: &str = "subagent-worker";
/// Prefix of the environment variables that carry a run's parameters.
pub const PARAMETER_PREFIX: &str = "SUBAGENT_PARAM_";
/// Selectable field of runs: the UID of the first ancestor, the run's own when it has none.
pub const ROOT_UID_FIELD: &str = "status.lineage.rootUID";
