//! The worker pod (design section 8). Pure: the same run, provider and attempt give the same pod. The pod of a probe is
//! the same one with another subcommand, so that it fails where a run would.

use crate::{naming, pod::template, provider::for_worker};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use subagent_crds::{SubagentProviderSpec, content::ConfigMapKeyRef, names};
use subagent_link as link;

/// Volume with the worker's binary and the spare home directory.
const BINARY_VOLUME: &str = "subagents-bin";
/// Volume with the worker's configuration, the gateway's roots and the link token.
const LINK_VOLUME: &str = "subagents-link";
/// Volume with a prompt from a ConfigMap.
const PROMPT_VOLUME: &str = "subagents-prompt";
/// Volume of the working directory: a child's workspace, else an empty folder at the default one.
const WORKSPACE_VOLUME: &str = "subagents-workspace";
/// Life of a link token in seconds; the kubelet renews it.
const TOKEN_SECONDS: i64 = 3600;
/// Time the worker needs beside the ladder's graces: sweep, last report, transcript.
const STOP_MARGIN_SECONDS: i64 = 15;
/// Time to store a checkpoint before the pod ends.
const CHECKPOINT_SECONDS: i64 = 30;
/// What a pod gets when its template says nothing.
const DEFAULT_TERMINATION_SECONDS: i64 = 30;

/// Which container `kubectl` means when nobody says.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// What the pod is for.
#[derive(Clone, Debug)]
pub struct Worker<'a> {
    /// Namespace of the run.
    pub namespace: &'a str,
    /// Name of the run.
    pub run: &'a str,
    /// UID of the run.
    pub run_uid: &'a str,
    /// Attempt, from 1.
    pub attempt: i32,
    /// The run's parameters.
    pub parameters: Option<&'a BTreeMap<String, String>>,
    /// A prompt to mount.
    pub prompt_file: Option<&'a ConfigMapKeyRef>,
    /// Name of the claim of the child's workspace, for its activations.
    pub workspace: Option<&'a str>,
    /// Image with the worker's binary.
    pub worker_image: &'a str,
    /// URL of the gateway.
    pub gateway_url: &'a str,
    /// PEM bundle of the gateway's roots.
    pub gateway_roots: &'a str,
}

/// Seconds from SIGTERM to SIGKILL of the pod: long enough for the whole ladder (contract c49).
pub fn termination_seconds(provider: &SubagentProviderSpec) -> i64 {
    let stop = &provider.stop;
    let ladder = stop.cancel_grace_seconds + stop.eof_grace_seconds + stop.term_grace_seconds + STOP_MARGIN_SECONDS;
    let ladder = if provider.session_state.is_some() { ladder + CHECKPOINT_SECONDS } else { ladder };
    let own = provider.template["spec"]["terminationGracePeriodSeconds"].as_i64();
    ladder.max(own.unwrap_or(DEFAULT_TERMINATION_SECONDS))
}

/// What a probe's pod is for.
#[derive(Clone, Debug)]
pub struct Probe<'a> {
    /// Namespace of the provider.
    pub namespace: &'a str,
    /// Name of the provider.
    pub provider: &'a str,
    /// UID of the provider.
    pub provider_uid: &'a str,
    /// Name of the pod.
    pub pod: &'a str,
    /// Number of the probe, from 1.
    pub attempt: i32,
    /// Seconds after which the kubelet ends it.
    pub deadline_seconds: i64,
    /// Image with the worker's binary.
    pub worker_image: &'a str,
}

/// What differs between the pods of one template.
struct Made<'a> {
    /// The worker's subcommand.
    subcommand: &'a str,
    worker_image: &'a str,
    parameters: Option<&'a BTreeMap<String, String>>,
    /// Claim of the working directory.
    workspace: Option<&'a str>,
    /// Volumes for container `agent`, each with its place.
    volumes: Vec<(&'a str, Value)>,
    metadata: Value,
}

/// Builds the pod of a run's attempt. The template must have passed [`template::check`].
pub fn build(provider: &SubagentProviderSpec, worker: &Worker<'_>) -> Value {
    let mut volumes = vec![(link::LINK_DIR, link_volume())];
    if let Some(reference) = worker.prompt_file {
        volumes.push(("/subagents/prompt", json!({"name": PROMPT_VOLUME, "configMap": {"name": reference.name, "items": [{"key": reference.key, "path": "prompt"}]}})));
    }
    let made = Made {
        subcommand: "run",
        worker_image: worker.worker_image,
        parameters: worker.parameters,
        workspace: worker.workspace,
        volumes,
        metadata: metadata(provider, worker),
    };
    assemble(provider, made)
}

/// Builds the pod of a probe: nothing of it is for the gateway, and nothing keeps it when its provider goes.
pub fn build_probe(provider: &SubagentProviderSpec, probe: &Probe<'_>) -> Value {
    let made = Made {
        subcommand: "probe",
        worker_image: probe.worker_image,
        parameters: None,
        workspace: None,
        volumes: vec![(link::LINK_DIR, config_volume())],
        metadata: probe_metadata(provider, probe),
    };
    let mut pod = assemble(provider, made);
    pod["spec"]["activeDeadlineSeconds"] = json!(probe.deadline_seconds);
    // The finding is the termination message: where the worker leaves it, and nothing but what it leaves there.
    let containers = pod["spec"]["containers"].as_array_mut().into_iter().flatten();
    for agent in containers.filter(|container| container["name"] == names::AGENT_CONTAINER) {
        for field in ["terminationMessagePath", "terminationMessagePolicy"] {
            agent.as_object_mut().map(|agent| agent.remove(field));
        }
    }
    pod
}

fn working_dir(provider: &SubagentProviderSpec) -> String {
    template::working_dir(&provider.template).to_owned()
}

fn assemble(provider: &SubagentProviderSpec, made: Made<'_>) -> Value {
    let mut spec = provider.template["spec"].as_object().cloned().unwrap_or_default();
    let agent = template::agent(&provider.template).cloned().unwrap_or_default();
    let cwd = working_dir(provider);
    let is_default = cwd.trim_end_matches('/') == link::DEFAULT_CWD;

    let mut agent_mounts = vec![json!({"name": BINARY_VOLUME, "mountPath": link::POD_DIR})];
    let mut volumes = vec![json!({"name": BINARY_VOLUME, "emptyDir": {}})];
    for (path, volume) in made.volumes {
        agent_mounts.push(json!({"name": volume["name"], "mountPath": path, "readOnly": true}));
        volumes.push(volume);
    }
    if let Some(claim) = made.workspace {
        agent_mounts.push(json!({"name": WORKSPACE_VOLUME, "mountPath": cwd}));
        volumes.push(json!({"name": WORKSPACE_VOLUME, "persistentVolumeClaim": {"claimName": claim}}));
    } else if is_default && !mounts(&agent).any(|path| path == link::DEFAULT_CWD) {
        agent_mounts.push(json!({"name": WORKSPACE_VOLUME, "mountPath": link::DEFAULT_CWD}));
        volumes.push(json!({"name": WORKSPACE_VOLUME, "emptyDir": {}}));
    }
    append(&mut spec, "volumes", volumes);

    let mut init = vec![init_container(&agent, made.worker_image)];
    init.extend(spec.get("initContainers").and_then(Value::as_array).cloned().unwrap_or_default());
    spec.insert("initContainers".into(), Value::Array(init));
    for container in containers(&mut spec, "containers") {
        if container.get("name").is_some_and(|name| name == names::AGENT_CONTAINER) {
            wrap(container, made.subcommand, &cwd, agent_mounts.clone());
        }
    }
    for list in ["initContainers", "containers"] {
        containers(&mut spec, list).for_each(|container| {
            parameterise(container, made.parameters);
            secure_container(container);
        });
    }
    secure_pod(&mut spec);
    spec.insert("restartPolicy".into(), json!("Never"));
    spec.entry("automountServiceAccountToken").or_insert(json!(false));
    spec.insert("enableServiceLinks".into(), json!(false));
    spec.insert("terminationGracePeriodSeconds".into(), json!(termination_seconds(provider)));

    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": made.metadata,
        "spec": spec,
    })
}

fn metadata(provider: &SubagentProviderSpec, worker: &Worker<'_>) -> Value {
    let template = &provider.template["metadata"];
    let mut labels = template["labels"].as_object().cloned().unwrap_or_default();
    labels.insert(names::RUN_LABEL.into(), json!(worker.run));
    labels.insert(names::RUN_UID_LABEL.into(), json!(worker.run_uid));
    labels.insert(names::ATTEMPT_LABEL.into(), json!(worker.attempt.to_string()));
    let config = link::WorkerConfig {
        gateway: worker.gateway_url.to_owned(),
        namespace: worker.namespace.to_owned(),
        run: worker.run.to_owned(),
        run_uid: worker.run_uid.to_owned(),
        attempt: worker.attempt,
        cwd: working_dir(provider),
        stop: for_worker::stop(provider),
    };
    let mut annotations = annotations(template, &config);
    annotations.insert(names::GATEWAY_ROOTS_ANNOTATION.into(), json!(worker.gateway_roots));
    // So that `kubectl logs` and `kubectl exec` need no -c, and do not say which container they picked.
    annotations.entry(DEFAULT_CONTAINER).or_insert(json!(names::AGENT_CONTAINER));
    json!({
        "name": naming::pod(worker.run, worker.run_uid, worker.attempt),
        "namespace": worker.namespace,
        "labels": labels,
        "annotations": annotations,
        "finalizers": [names::POD_FINALIZER],
        "ownerReferences": [owner("SubagentRun", worker.run, worker.run_uid)],
    })
}

fn probe_metadata(provider: &SubagentProviderSpec, probe: &Probe<'_>) -> Value {
    let template = &provider.template["metadata"];
    let mut labels = template["labels"].as_object().cloned().unwrap_or_default();
    labels.insert(names::PROVIDER_LABEL.into(), json!(probe.provider));
    labels.insert(names::PROVIDER_UID_LABEL.into(), json!(probe.provider_uid));
    labels.insert(names::PROBE_LABEL.into(), json!(probe.attempt.to_string()));
    let config = link::ProbeConfig {
        namespace: probe.namespace.to_owned(),
        provider: probe.provider.to_owned(),
        attempt: probe.attempt,
        cwd: working_dir(provider),
        stop: for_worker::stop(provider),
        transport: for_worker::transport(provider).unwrap_or_default(),
    };
    let mut annotations = annotations(template, &config);
    annotations.entry(DEFAULT_CONTAINER).or_insert(json!(names::AGENT_CONTAINER));
    json!({
        "name": probe.pod,
        "namespace": probe.namespace,
        "labels": labels,
        "annotations": annotations,
        "ownerReferences": [owner("SubagentProvider", probe.provider, probe.provider_uid)],
    })
}

/// The template's annotations, and the worker's configuration.
fn annotations(template: &Value, config: &impl Serialize) -> Map<String, Value> {
    let mut annotations = template["annotations"].as_object().cloned().unwrap_or_default();
    let config = serde_json::to_string(config).unwrap_or_default();
    annotations.insert(names::WORKER_CONFIG_ANNOTATION.into(), json!(config));
    annotations
}

fn owner(kind: &str, name: &str, uid: &str) -> Value {
    json!({
        "apiVersion": format!("{}/{}", subagent_crds::GROUP, subagent_crds::VERSION),
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": true,
    })
}

/// A file of a projected volume that holds an annotation of the pod.
fn annotation_file(key: &str, path: &str) -> Value {
    json!({"path": path, "fieldRef": {"fieldPath": format!("metadata.annotations['{key}']")}})
}

fn link_volume() -> Value {
    json!({"name": LINK_VOLUME, "projected": {"sources": [
        {"downwardAPI": {"items": [
            annotation_file(names::WORKER_CONFIG_ANNOTATION, link::CONFIG_FILE),
            annotation_file(names::GATEWAY_ROOTS_ANNOTATION, link::ROOTS_FILE),
        ]}},
        {"serviceAccountToken": {"audience": link::AUDIENCE, "expirationSeconds": TOKEN_SECONDS, "path": link::TOKEN_FILE}},
    ]}})
}

/// The same without what a connection to the gateway needs.
fn config_volume() -> Value {
    let config = annotation_file(names::WORKER_CONFIG_ANNOTATION, link::CONFIG_FILE);
    json!({"name": LINK_VOLUME, "projected": {"sources": [{"downwardAPI": {"items": [config]}}]}})
}

/// Brings the worker's binary into the pod. It runs as the agent does, so that what passes for the agent passes for it.
fn init_container(agent: &Value, image: &str) -> Value {
    let mut container = json!({
        "name": names::WORKER_INIT_CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/subagent-worker", "install", link::POD_DIR],
        "resources": init_resources(agent),
        "volumeMounts": [{"name": BINARY_VOLUME, "mountPath": link::POD_DIR}],
    });
    if let Some(context) = agent.get("securityContext") {
        container["securityContext"] = context.clone();
    }
    container
}

/// What the init container gets. A limit of CPU that suits its few milliseconds of work holds up the container runtime,
/// too, which prepares a container inside its limit: half a second for every run. So the limit is the agent's, with its
/// request: a pod is counted by the larger of both, so nothing is asked for twice, and its quality of service stays.
fn init_resources(agent: &Value) -> Value {
    let mut resources = json!({"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"memory": "32Mi"}});
    let own = &agent["resources"];
    if let Some(limit) = own["limits"].get("cpu") {
        resources["limits"]["cpu"] = limit.clone();
        // Without a request of its own the limit is the request, as it is for the agent.
        resources["requests"]["cpu"] = own["requests"].get("cpu").unwrap_or(limit).clone();
    }
    resources
}

/// Puts the worker in front of the agent's own command line.
fn wrap(container: &mut Map<String, Value>, subcommand: &str, cwd: &str, mounts: Vec<Value>) {
    let list = |field: Option<Value>| field.and_then(|value| value.as_array().cloned()).unwrap_or_default();
    let mut argv = vec![json!(subcommand), json!("--")];
    argv.extend(list(container.remove("command")));
    argv.extend(list(container.remove("args")));
    container.insert("command".into(), json!([link::WORKER_BINARY]));
    container.insert("args".into(), Value::Array(argv));
    container.insert("workingDir".into(), json!(cwd));
    append(container, "volumeMounts", mounts);
}

/// The run's parameters come first, so that the template's own variables may refer to them. A variable of the template
/// that has a parameter's name is its default, and goes: the kubelet takes the last of two.
fn parameterise(container: &mut Map<String, Value>, parameters: Option<&BTreeMap<String, String>>) {
    let Some(parameters) = parameters.filter(|parameters| !parameters.is_empty()) else { return };
    let variable = |key: &str| format!("{}{key}", names::PARAMETER_PREFIX);
    // `$` would start a reference to another variable.
    let entries =
        parameters.iter().map(|(key, value)| json!({"name": variable(key), "value": value.replace('$', "$$")}));
    let mut env: Vec<Value> = entries.collect();
    let own = container.get("env").and_then(Value::as_array).cloned().unwrap_or_default();
    let is_given = |own: &Value| parameters.keys().any(|key| own["name"] == variable(key));
    env.extend(own.into_iter().filter(|own| !is_given(own)));
    container.insert("env".into(), Value::Array(env));
}

/// Defaults of a `restricted` namespace, only where the template is silent.
fn secure_container(container: &mut Map<String, Value>) {
    let context = container.entry("securityContext").or_insert_with(|| json!({}));
    let Some(context) = context.as_object_mut() else { return };
    if context.get("privileged") != Some(&json!(true)) {
        context.entry("allowPrivilegeEscalation").or_insert(json!(false));
    }
    let capabilities = context.entry("capabilities").or_insert_with(|| json!({}));
    if let Some(capabilities) = capabilities.as_object_mut() {
        capabilities.entry("drop").or_insert_with(|| json!(["ALL"]));
    }
}

fn secure_pod(spec: &mut Map<String, Value>) {
    let context = spec.entry("securityContext").or_insert_with(|| json!({}));
    if let Some(context) = context.as_object_mut() {
        context.entry("runAsNonRoot").or_insert(json!(true));
        context.entry("seccompProfile").or_insert_with(|| json!({"type": "RuntimeDefault"}));
    }
}

fn containers<'a>(spec: &'a mut Map<String, Value>, list: &str) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

fn mounts(container: &Value) -> impl Iterator<Item = &str> {
    let mounts = container["volumeMounts"].as_array().into_iter().flatten();
    mounts.filter_map(|mount| mount["mountPath"].as_str()).map(|path| path.trim_end_matches('/'))
}

fn append(object: &mut Map<String, Value>, list: &str, items: Vec<Value>) {
    match object.entry(list).or_insert_with(|| json!([])) {
        Value::Array(old) => old.extend(items),
        other => *other = Value::Array(items),
    }
}

#[cfg(test)]
#[path = "build_tests.rs"]
mod tests;
