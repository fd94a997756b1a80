//! Where a pod stands whose worker has not been heard of, for a person (pitfall N4). Pure.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateRunning, ContainerStatus, Pod};
use subagent_crds::names;
use subagent_link::WorkerConfig;

/// What was seen last, and where to look.
pub fn standing(pod: &Pod) -> String {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let bound = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).is_some_and(|node| !node.is_empty());
    if !bound {
        return format!("pod {name} has no node{}; look at kubectl describe pod {name}", unscheduled(pod));
    }
    let status = pod.status.as_ref();
    let inits = status.and_then(|status| status.init_container_statuses.as_ref()).into_iter().flatten();
    let agent = status
        .and_then(|status| status.container_statuses.as_ref())
        .into_iter()
        .flatten()
        .find(|status| status.name == names::AGENT_CONTAINER);
    if let Some(running) = agent.and_then(state).and_then(|state| state.running.as_ref()) {
        return format!(
            "container agent of pod {name} runs{} and its worker has not connected to {}; look at what stands between the \
             two: names (dnsPolicy, hostAliases), network policies, proxies",
            since(running),
            gateway(pod)
        );
    }
    // A native sidecar runs on; it is not what is waited for.
    let is_sidecar = |name: &str| {
        let mut specs = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
        specs.any(|spec| spec.name == name && spec.restart_policy.as_deref() == Some("Always"))
    };
    let is_waited_for =
        |init: &&ContainerStatus| state(init).is_none_or(|state| state.terminated.is_none()) && !is_sidecar(&init.name);
    if let Some(init) = inits.into_iter().find(is_waited_for) {
        return match state(init).and_then(|state| state.running.as_ref()) {
            Some(running) => format!(
                "init container {} is running{} and has not ended; look at kubectl logs {name} -c {}",
                init.name,
                since(running),
                init.name
            ),
            None => format!(
                "init container {} has not started{}; look at kubectl describe pod {name}",
                init.name,
                waiting(init)
            ),
        };
    }
    format!(
        "container agent of pod {name} has not started{}; look at kubectl describe pod {name}",
        agent.map(waiting).unwrap_or_default()
    )
}

fn since(running: &ContainerStateRunning) -> String {
    running.started_at.as_ref().map(|at| format!(" since {}", at.0)).unwrap_or_default()
}

/// What a worker that never reported left as its container's termination message: what kept it from the gateway. Its
/// agent was never started, so nobody else can have written it.
pub fn last_words(pod: &Pod) -> Option<&str> {
    let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
    let agent = containers.iter().find(|status| status.name == names::AGENT_CONTAINER)?;
    let terminated = state(agent)?.terminated.as_ref()?;
    terminated.message.as_deref().map(str::trim).filter(|message| !message.is_empty())
}

fn state(status: &ContainerStatus) -> Option<&ContainerState> {
    status.state.as_ref()
}

fn waiting(status: &ContainerStatus) -> String {
    let waiting = state(status).and_then(|state| state.waiting.as_ref());
    let words = waiting.map(|waiting| [waiting.reason.as_deref(), waiting.message.as_deref()]);
    clause(words.into_iter().flatten().flatten())
}

fn unscheduled(pod: &Pod) -> String {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let scheduled = conditions.into_iter().find(|condition| condition.type_ == "PodScheduled");
    clause(scheduled.into_iter().flat_map(|it| [it.reason.as_deref(), it.message.as_deref()]).flatten())
}

fn clause<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    if words.is_empty() { String::new() } else { format!(" ({})", words.join(": ")) }
}

/// Where the pod's worker was told to connect.
fn gateway(pod: &Pod) -> String {
    let annotations = pod.metadata.annotations.as_ref();
    let config = annotations.and_then(|all| all.get(names::WORKER_CONFIG_ANNOTATION));
    let config = config.and_then(|text| serde_json::from_str::<WorkerConfig>(text).ok());
    config.map_or_else(|| "the gateway".into(), |config| config.gateway)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn container(name: &str, state: Value) -> Value {
        json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state})
    }

    #[rstest]
    #[case::no_node(json!({}), json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gated"}]}),
        &["has no node (SchedulingGated: gated)", "kubectl describe pod p"])]
    #[case::init_runs(json!({"nodeName": "n"}), json!({"initContainerStatuses": [
            container("subagent-worker", json!({"terminated": {"exitCode": 0}})), container("clone", json!({"running": {}}))]}),
        &["init container clone is running and has not ended", "kubectl logs p -c clone"])]
    #[case::sidecar_runs(json!({"nodeName": "n", "initContainers": [{"name": "side", "restartPolicy": "Always"}]}), json!({
            "initContainerStatuses": [{"name": "side", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}}],
            "containerStatuses": [container("agent", json!({"waiting": {"reason": "PodInitializing"}}))]}),
        &["container agent of pod p has not started (PodInitializing)"])]
    #[case::created(json!({"nodeName": "n"}), json!({"containerStatuses": [container("agent", json!({"waiting": {"reason": "ContainerCreating"}}))]}),
        &["container agent of pod p has not started (ContainerCreating)"])]
    #[case::runs(json!({"nodeName": "n"}), json!({"containerStatuses": [container("agent", json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}))]}),
        &["runs since 2026-01-01T00:00:00Z", "has not connected to wss://gateway:8443/v1/link", "network policies"])]
    fn n4_what_was_seen_last_is_said_with_where_to_look(
        #[case] spec: Value,
        #[case] status: Value,
        #[case] words: &[&str],
    ) {
        let mut spec = spec;
        spec["containers"] = json!([{"name": "agent"}]);
        let config = json!({"gateway": "wss://gateway:8443/v1/link", "namespace": "n", "run": "r", "runUid": "u", "attempt": 1, "cwd": "/",
            "stop": {"cancelGraceSeconds": 1, "eofGraceSeconds": 1, "termGraceSeconds": 1}});
        let annotations = json!({names::WORKER_CONFIG_ANNOTATION: config.to_string()});
        let pod = json!({"metadata": {"name": "p", "annotations": annotations}, "spec": spec, "status": status});
        let said = standing(&serde_json::from_value(pod).unwrap());
        for word in words {
            assert!(said.contains(word), "{word:?} in {said:?}");
        }
    }
}
