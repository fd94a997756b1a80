//! What a pod's status says: why it does not start, how its agent container ended, and whether it is proven stopped.
//! Pure; the pod must come from a live GET.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod};
use subagent_crds::{Reason, names};

/// Why a pod is not running yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartProblem {
    /// Reason of the taxonomy.
    pub reason: Reason,
    /// What Kubernetes says, for a person.
    pub message: String,
    /// True when waiting cannot help: the run fails at once.
    pub is_final: bool,
}

/// Why no process of a pod can be running any more (design section 6, attempts; contract c50).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Every container is reported terminated.
    ContainersTerminated,
    /// It is being deleted and was never bound; binding is refused from then on.
    NeverBound,
    /// The kubelet rejected it: phase Failed and no container ever reported.
    RejectedByNode,
    /// A person said that the pod is dead.
    Released,
    /// Its node does not exist any more, or is tainted out-of-service.
    NodeGone,
    /// The object is gone although it had our finalizer: somebody removed it by force.
    ObjectGone,
}

impl Proof {
    /// Reason of the condition `Stopped`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ContainersTerminated => "ContainersTerminated",
            Self::NeverBound => "NeverBound",
            Self::RejectedByNode => "RejectedByNode",
            Self::Released => "Released",
            Self::NodeGone => "NodeGone",
            Self::ObjectGone => "PodRemoved",
        }
    }

    /// The same for a person.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::ContainersTerminated => "every container of the worker pod is reported terminated",
            Self::NeverBound => "the worker pod was deleted before it had a node",
            Self::RejectedByNode => "the node rejected the worker pod and started none of its containers",
            Self::Released => "the annotation subagents.dev/release-pod says that the worker pod is dead",
            Self::NodeGone => "the node of the worker pod does not exist any more or is out of service",
            Self::ObjectGone => "the worker pod was removed together with its finalizer",
        }
    }
}

/// How a pod's agent container ended without the worker's word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Reason of the taxonomy.
    pub reason: Reason,
    /// What Kubernetes says, for a person.
    pub message: String,
}

/// What is known about a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Set while the pod does not start.
    pub problem: Option<StartProblem>,
    /// Set once the agent container (or the pod as a whole) ended.
    pub ended: Option<Ended>,
    /// Set once something took it away (a drain, a preemption, its node), also while its worker still stops: why.
    pub evicted: Option<String>,
    /// Set once nothing of it can be running.
    pub proof: Option<Proof>,
    /// True when the agent container ended and another one still runs.
    pub sidecar_lives: bool,
    /// True when it is being deleted.
    pub deleting: bool,
}

/// What is known of a pod's node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Node {
    /// It is there, or was not asked for.
    #[default]
    Present,
    /// It does not exist, or is tainted `node.kubernetes.io/out-of-service`.
    Gone,
}

/// Reads a pod. `released` is true when the run's release annotation names this pod's UID.
pub fn observe(pod: &Pod, node: Node, released: bool) -> Observed {
    let deleting = pod.metadata.deletion_timestamp.is_some();
    let proof = proof(pod, node, released, deleting);
    let ended = ended(pod, node, deleting, proof);
    Observed {
        problem: if ended.is_none() && !deleting { problem(pod) } else { None },
        sidecar_lives: agent_terminated(pod) && proof.is_none(),
        evicted: evicted(pod),
        ended,
        proof,
        deleting,
    }
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    [
        status.and_then(|status| status.init_container_statuses.as_ref()),
        status.and_then(|status| status.container_statuses.as_ref()),
        status.and_then(|status| status.ephemeral_container_statuses.as_ref()),
    ]
    .into_iter()
    .flatten()
    .flatten()
}

fn container<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    statuses(pod).find(|status| status.name == name)
}

fn state(status: &ContainerStatus) -> Option<&ContainerState> {
    status.state.as_ref()
}

fn is_terminated(status: &ContainerStatus) -> bool {
    state(status).is_some_and(|state| state.terminated.is_some())
}

fn agent_terminated(pod: &Pod) -> bool {
    container(pod, names::AGENT_CONTAINER).is_some_and(is_terminated)
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn proof(pod: &Pod, node: Node, released: bool, deleting: bool) -> Option<Proof> {
    let spec = pod.spec.as_ref();
    let bound = spec.and_then(|spec| spec.node_name.as_deref()).is_some_and(|name| !name.is_empty());
    let expected = spec.map_or(usize::MAX, |spec| spec.containers.len());
    let reported = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref()).map_or(0, Vec::len);
    let ended = matches!(phase(pod), "Succeeded" | "Failed");
    if bound && reported >= expected && statuses(pod).all(is_terminated) {
        return Some(Proof::ContainersTerminated);
    }
    // A pod that ended while containers had never been started: the kubelet leaves those waiting, and starts nothing in
    // a pod that has ended.
    let none_running = statuses(pod).all(|status| state(status).is_some_and(|state| state.running.is_none()));
    if bound && ended && reported > 0 && none_running {
        return Some(Proof::ContainersTerminated);
    }
    if deleting && !bound {
        return Some(Proof::NeverBound);
    }
    if bound && phase(pod) == "Failed" && statuses(pod).next().is_none() && node == Node::Present {
        return Some(Proof::RejectedByNode);
    }
    if node == Node::Gone && bound {
        return Some(Proof::NodeGone);
    }
    released.then_some(Proof::Released)
}

fn ended(pod: &Pod, node: Node, deleting: bool, proof: Option<Proof>) -> Option<Ended> {
    let status = pod.status.as_ref();
    let pod_reason = status.and_then(|status| status.reason.as_deref()).unwrap_or_default();
    let pod_message = status.and_then(|status| status.message.as_deref()).unwrap_or_default();
    let end = |reason, message: String| Some(Ended { reason, message });
    if node == Node::Gone {
        return end(Reason::NodeLost, "the node of the worker pod is gone".into());
    }
    if let Some(why) = evicted(pod)
        && (pod_reason == EVICTED || agent_terminated(pod) || proof.is_some())
    {
        return end(Reason::Evicted, why);
    }
    if let Some(terminated) =
        container(pod, names::AGENT_CONTAINER).and_then(state).and_then(|state| state.terminated.as_ref())
    {
        let code = terminated.exit_code;
        return match terminated.reason.as_deref() {
            Some("OOMKilled") => {
                end(Reason::OOMKilled, format!("container agent used more memory than {}", limit(pod)))
            }
            Some("StartError" | "ContainerCannotRun") => {
                let why = terminated.message.as_deref().unwrap_or_default();
                end(Reason::AgentStartFailed, format!("container agent could not be started: {why}"))
            }
            _ if deleting => {
                end(Reason::PodDeleted, format!("the worker pod was deleted; its worker ended with exit code {code}"))
            }
            _ => end(Reason::WorkerLost, format!("the worker ended with exit code {code} and without a final report")),
        };
    }
    if proof == Some(Proof::RejectedByNode) {
        return end(Reason::PodRejected, format!("the node rejected the worker pod: {pod_reason} {pod_message}"));
    }
    if let Some((name, code)) = failed_init(pod) {
        let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
        let unset = unset_parameters(pod, name);
        let uses = if unset.is_empty() {
            "something in the template, or in the run's spec.parameters that it uses".to_owned()
        } else {
            format!("it uses {}, which neither the run's spec.parameters nor the template sets", unset.join(", "))
        };
        return end(
            Reason::InvalidTemplate,
            format!(
                "init container {name} of the provider's template failed with exit code {code}; kubectl logs {pod_name} -c \
                 {name} says why: {uses}"
            ),
        );
    }
    if proof.is_some() && deleting {
        return end(Reason::PodDeleted, "the worker pod was deleted".into());
    }
    if matches!(phase(pod), "Failed" | "Succeeded") {
        return end(Reason::WorkerLost, format!("the worker pod ended: {pod_reason} {pod_message}"));
    }
    None
}

/// Parameters that a container's command, arguments or variables refer to and that it does not have: Kubernetes leaves the
/// reference as it is, and the program gets a strange word.
fn unset_parameters(pod: &Pod, name: &str) -> Vec<String> {
    let spec = pod.spec.as_ref();
    let containers = spec.into_iter().flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    let Some(container) = containers.into_iter().find(|container| container.name == name) else { return Vec::new() };
    let env = || container.env.iter().flatten();
    let values = env().filter_map(|variable| variable.value.as_ref());
    let texts = container.command.iter().flatten().chain(container.args.iter().flatten()).chain(values);
    let mut unset: Vec<String> = texts
        .flat_map(|text| text.split("$(").skip(1))
        .filter_map(|reference| reference.split_once(')'))
        .map(|(reference, _)| reference.to_owned())
        .filter(|reference| reference.starts_with(names::PARAMETER_PREFIX))
        .filter(|reference| !env().any(|variable| variable.name == *reference))
        .collect();
    unset.sort();
    unset.dedup();
    unset
}

/// The kubelet's word for a pod it removed for want of a resource.
const EVICTED: &str = "Evicted";
/// The kubelet's word for a pod it removed because the pod's own time was over. No template sets one: somebody gave it to
/// the pod. (The run's deadline is the controller's, and no word of a pod.)
const OWN_DEADLINE: &str = "DeadlineExceeded";

fn evicted(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let disrupted = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "DisruptionTarget" && condition.status == "True")
        .map(|condition| condition.message.clone().unwrap_or_default());
    let removed = || status.message.clone().unwrap_or_default();
    let why = disrupted.or_else(|| match status.reason.as_deref() {
        Some(EVICTED) => Some(removed()),
        Some(OWN_DEADLINE) => {
            let seconds = pod.spec.as_ref().and_then(|spec| spec.active_deadline_seconds);
            let seconds = seconds.map(|seconds| format!(" of {seconds} s")).unwrap_or_default();
            Some(format!("the pod's own activeDeadlineSeconds{seconds} is over, which neither run nor provider set"))
        }
        _ => None,
    })?;
    Some(format!("the worker pod was evicted: {why}"))
}

fn failed_init(pod: &Pod) -> Option<(&str, i32)> {
    let inits = pod.status.as_ref()?.init_container_statuses.as_ref()?;
    // A native sidecar is started again by the kubelet: its end is not the pod's.
    let is_sidecar = |name: &str| {
        let specs = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
        specs.into_iter().any(|spec| spec.name == name && spec.restart_policy.as_deref() == Some("Always"))
    };
    inits.iter().filter(|init| !is_sidecar(&init.name)).find_map(|init| {
        let terminated = state(init)?.terminated.as_ref()?;
        (terminated.exit_code != 0).then_some((init.name.as_str(), terminated.exit_code))
    })
}

fn limit(pod: &Pod) -> String {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let agent = containers.into_iter().find(|container| container.name == names::AGENT_CONTAINER);
    let limits = agent.and_then(|agent| agent.resources.as_ref()).and_then(|resources| resources.limits.as_ref());
    match limits.and_then(|limits| limits.get("memory")) {
        Some(quantity) => format!("its limit of {}", quantity.0),
        None => "the node could give (it has no memory limit)".into(),
    }
}

/// Why a pod does not start, whether or not it has ended meanwhile.
pub fn problem(pod: &Pod) -> Option<StartProblem> {
    let make = |reason, is_final, message: String| Some(StartProblem { reason, message, is_final });
    for status in statuses(pod) {
        let Some(waiting) = state(status).and_then(|state| state.waiting.as_ref()) else { continue };
        let message = waiting.message.as_deref().unwrap_or_default();
        let named = format!("container {}: {message}", status.name);
        match waiting.reason.as_deref().unwrap_or_default() {
            "ErrImageNeverPull" => return make(Reason::ImagePullFailed, true, named),
            "InvalidImageName" => return make(Reason::ImagePullFailed, true, named),
            "ErrImagePull" | "ImagePullBackOff" | "RegistryUnavailable" | "ImageInspectError" => {
                return make(Reason::ImagePullFailed, false, named);
            }
            "CreateContainerConfigError"
                if message.contains("runAsNonRoot") || message.contains("non-numeric user") =>
            {
                return make(Reason::ImageUserRefused, true, named);
            }
            "CreateContainerConfigError" => return make(Reason::MissingReference, false, named),
            "CreateContainerError" | "RunContainerError" => return make(Reason::AgentStartFailed, false, named),
            _ => {}
        }
    }
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let unscheduled = conditions.into_iter().flatten().find(|condition| {
        condition.type_ == "PodScheduled"
            && condition.status == "False"
            && condition.reason.as_deref() == Some("Unschedulable")
    })?;
    make(Reason::Unschedulable, false, unscheduled.message.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn pod(spec: Value, status: Value, deleting: bool) -> Pod {
        let mut metadata = json!({"name": "p"});
        if deleting {
            metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let mut full = json!({"containers": [{"name": "agent", "resources": {"limits": {"memory": "64Mi"}}}]});
        full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        serde_json::from_value(json!({"metadata": metadata, "spec": full, "status": status})).unwrap()
    }

    fn agent(state: Value) -> Value {
        json!({"containerStatuses": [{"name": "agent", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}]})
    }

    fn bound() -> Value {
        json!({"nodeName": "n"})
    }

    #[test]
    fn n1_an_init_container_that_lacks_a_parameter_says_which() {
        let spec = json!({"nodeName": "n", "initContainers": [{
            "name": "clone", "command": ["git", "clone", "$(URL)"], "args": ["$(SUBAGENT_PARAM_BRANCH)", "$(HOME)"],
            "env": [{"name": "SUBAGENT_PARAM_BRANCH", "value": "b"}, {"name": "URL", "value": "$(SUBAGENT_PARAM_REPO)"}],
        }]});
        let failed = json!({"initContainerStatuses": [{"name": "clone", "image": "", "imageID": "", "ready": false,
            "restartCount": 0, "state": {"terminated": {"exitCode": 128}}}]});
        let found = pod(spec, failed, false);
        assert_eq!(unset_parameters(&found, "clone"), ["SUBAGENT_PARAM_REPO"]);
        let ended = observe(&found, Node::Present, false).ended.unwrap();
        assert_eq!(ended.reason, Reason::InvalidTemplate);
        assert!(
            ended.message.contains("SUBAGENT_PARAM_REPO, which neither the run's spec.parameters"),
            "{}",
            ended.message
        );
    }

    #[rstest]
    #[case::terminated(bound(), agent(json!({"terminated": {"exitCode": 0}})), false, Some(Proof::ContainersTerminated))]
    #[case::running(bound(), agent(json!({"running": {}})), true, None)]
    #[case::waiting_while_pulling(bound(), agent(json!({"waiting": {"reason": "ImagePullBackOff"}})), true, None)]
    #[case::never_bound(json!({}), json!({}), true, Some(Proof::NeverBound))]
    #[case::unbound_but_alive(json!({}), json!({}), false, None)]
    #[case::bound_and_deleting(bound(), json!({}), true, None)]
    #[case::rejected(bound(), json!({"phase": "Failed", "reason": "OutOfpods"}), false, Some(Proof::RejectedByNode))]
    #[case::failed_and_never_started(bound(), json!({"phase": "Failed", "containerStatuses": agent(json!({"waiting": {}}))["containerStatuses"]}), true, Some(Proof::ContainersTerminated))]
    fn c50_only_a_proof_counts(
        #[case] spec: Value,
        #[case] status: Value,
        #[case] deleting: bool,
        #[case] expected: Option<Proof>,
    ) {
        assert_eq!(observe(&pod(spec, status, deleting), Node::Present, false).proof, expected);
    }

    /// The kubelet's end of a pod with a deadline of its own; its worker says that it got SIGTERM, as with a deletion.
    #[test]
    fn n3_the_pods_own_deadline_is_no_deletion() {
        let over = json!({"phase": "Failed", "reason": "DeadlineExceeded",
            "message": "Pod was active on the node longer than the specified deadline"});
        let spec = json!({"nodeName": "n", "activeDeadlineSeconds": 5});
        for state in [json!({"running": {}}), json!({"terminated": {"exitCode": 143}})] {
            let mut status = agent(state.clone());
            status.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
            let observed = observe(&pod(spec.clone(), status, false), Node::Present, false);
            let why = observed.evicted.unwrap();
            assert!(why.contains("own activeDeadlineSeconds of 5 s is over"), "{why}");
            if state.get("terminated").is_some() {
                assert_eq!(observed.ended.unwrap().reason, Reason::Evicted);
            }
        }
    }

    #[test]
    fn c50_a_running_sidecar_is_not_stopped() {
        let status = json!({"containerStatuses": [
            {"name": "agent", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 0}}},
            {"name": "side", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {"running": {}}},
        ]});
        let spec = json!({"nodeName": "n", "containers": [{"name": "agent"}, {"name": "side"}]});
        let observed = observe(&pod(spec, status, false), Node::Present, false);
        assert_eq!((observed.proof, observed.sidecar_lives), (None, true));
    }

    /// N7, c26: the kubelet starts a native sidecar again; a turn goes on meanwhile.
    #[test]
    fn n7_a_native_sidecar_that_restarts_ends_nothing() {
        let spec = json!({"nodeName": "n", "initContainers": [{"name": "side", "restartPolicy": "Always"}], "containers": [{"name": "agent"}]});
        let mut status = agent(json!({"running": {}}));
        status["initContainerStatuses"] = json!([{"name": "side", "image": "", "imageID": "", "ready": false, "restartCount": 1, "state": {"terminated": {"exitCode": 7}}}]);
        let observed = observe(&pod(spec, status, false), Node::Present, false);
        assert_eq!((observed.ended, observed.proof), (None, None));
    }

    #[test]
    fn c50_a_container_without_status_is_not_stopped() {
        let spec = json!({"nodeName": "n", "containers": [{"name": "agent"}, {"name": "side"}]});
        let status = agent(json!({"terminated": {"exitCode": 0}}));
        assert_eq!(observe(&pod(spec, status, false), Node::Present, false).proof, None);
    }

    #[test]
    fn n3_a_lost_node_and_a_release_prove_the_stop() {
        let pod = pod(bound(), agent(json!({"running": {}})), true);
        assert_eq!(observe(&pod, Node::Gone, false).proof, Some(Proof::NodeGone));
        assert_eq!(observe(&pod, Node::Gone, false).ended.unwrap().reason, Reason::NodeLost);
        assert_eq!(observe(&pod, Node::Present, true).proof, Some(Proof::Released));
    }

    #[rstest]
    #[case::oom(json!({"exitCode": 137, "reason": "OOMKilled"}), false, Reason::OOMKilled, "64Mi")]
    #[case::start(json!({"exitCode": 128, "reason": "StartError", "message": "no such file"}), false, Reason::AgentStartFailed, "no such file")]
    #[case::deleted(json!({"exitCode": 143}), true, Reason::PodDeleted, "143")]
    #[case::lost(json!({"exitCode": 137}), false, Reason::WorkerLost, "137")]
    fn n2_an_end_without_a_report_has_its_reason(
        #[case] terminated: Value,
        #[case] deleting: bool,
        #[case] reason: Reason,
        #[case] says: &str,
    ) {
        let ended = observe(&pod(bound(), agent(json!({"terminated": terminated})), deleting), Node::Present, false)
            .ended
            .unwrap();
        assert_eq!(ended.reason, reason);
        assert!(ended.message.contains(says), "{}", ended.message);
    }

    #[rstest]
    #[case::back_off("ImagePullBackOff", "back-off", Reason::ImagePullFailed, false)]
    #[case::never("ErrImageNeverPull", "", Reason::ImagePullFailed, true)]
    #[case::root(
        "CreateContainerConfigError",
        "container has runAsNonRoot and image will run as root",
        Reason::ImageUserRefused,
        true
    )]
    #[case::name(
        "CreateContainerConfigError",
        "container has runAsNonRoot and image has non-numeric user (node)",
        Reason::ImageUserRefused,
        true
    )]
    #[case::secret("CreateContainerConfigError", "secret \"x\" not found", Reason::MissingReference, false)]
    fn n1_n6_a_pod_that_does_not_start_says_why(
        #[case] word: &str,
        #[case] message: &str,
        #[case] reason: Reason,
        #[case] is_final: bool,
    ) {
        let observed = observe(
            &pod(bound(), agent(json!({"waiting": {"reason": word, "message": message}})), false),
            Node::Present,
            false,
        );
        let problem = observed.problem.unwrap();
        assert_eq!((problem.reason, problem.is_final), (reason, is_final));
        assert_eq!(observed.ended, None);
    }
}
