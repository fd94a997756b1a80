//! What a provider's template may say (design section 8). Everything that would take the agent out of the worker's hands
//! is refused, with the field's name.

use serde_json::Value;
use subagent_crds::names;

/// A mistake in a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("spec.template{field}: {problem}; {remedy}")]
pub struct TemplateError {
    /// JSON path inside the template.
    pub field: String,
    /// What is wrong.
    pub problem: String,
    /// What to do.
    pub remedy: &'static str,
}

/// What a template consists of. Anything else would be dropped in silence (contract c7).
const FIELDS: &[&str] = &["metadata", "spec"];
/// What the operator takes over from `metadata`. Generators of manifests write an empty `creationTimestamp`.
const METADATA_FIELDS: &[&str] = &["labels", "annotations", "creationTimestamp"];
/// Probes and hooks on the agent's container: the kubelet would kill or signal it behind the worker's back.
const AGENT_FIELDS: &[&str] =
    &["lifecycle", "livenessProbe", "readinessProbe", "startupProbe", "restartPolicy", "restartPolicyRules"];
/// Variables that tell the worker where to look, for workers outside a pod. Its log level is anybody's.
const WORKER_VARIABLES: &str = "SUBAGENT_WORKER_";
const WORKER_LOG: &str = "SUBAGENT_WORKER_LOG";
/// How the names of the operator's volumes begin: the worker's binary, its configuration and its token are in them.
const VOLUMES: &str = "subagents-";

/// Checks a template.
///
/// # Errors
/// The first mistake found, in a fixed order.
pub fn check(template: &Value) -> Result<(), TemplateError> {
    shape(template)?;
    let spec = &template["spec"];
    types(template)?;
    pod(spec)?;
    let Some(agent) = agent(template) else {
        return error(".spec.containers", "no container is named \"agent\"", "name the agent's container agent");
    };
    agent_container(agent)?;
    for list in ["initContainers", "containers"] {
        for each in spec[list].as_array().into_iter().flatten() {
            container(list, each)?;
        }
    }
    for volume in spec["volumes"].as_array().into_iter().flatten() {
        let name = volume["name"].as_str().unwrap_or_default();
        if name.starts_with(VOLUMES) {
            let field = format!(".spec.volumes[{name}]");
            return error(&field, "names that start with subagents- are the operator's", "choose another name");
        }
    }
    Ok(())
}

/// True when a template refers to parameters of a run, in whatever place. Without a run they are not there.
pub fn refers_to_parameters(template: &Value) -> bool {
    template.to_string().contains(names::PARAMETER_PREFIX)
}

fn error(field: &str, problem: &str, remedy: &'static str) -> Result<(), TemplateError> {
    Err(TemplateError { field: field.to_owned(), problem: problem.to_owned(), remedy })
}

fn shape(template: &Value) -> Result<(), TemplateError> {
    let Some(fields) = template.as_object() else {
        return error("", "is not an object", "write a PodTemplateSpec");
    };
    if let Some(field) = fields.keys().find(|field| !FIELDS.contains(&field.as_str())) {
        return error(&format!(".{field}"), "is no field of a PodTemplateSpec", "write metadata and spec alone");
    }
    let metadata = template["metadata"].as_object();
    let unknown = metadata.into_iter().flat_map(|fields| fields.keys());
    if let Some(field) = unknown.into_iter().find(|field| !METADATA_FIELDS.contains(&field.as_str())) {
        let field = format!(".metadata.{field}");
        return error(&field, "only labels and annotations go from here to the pod", "remove it");
    }
    for kind in ["labels", "annotations"] {
        let entries = template["metadata"][kind].as_object();
        let ours = entries.into_iter().flatten().map(|(key, _)| key).find(|key| key.starts_with(names::PREFIX));
        if let Some(key) = ours {
            let field = format!(".metadata.{kind}[{key}]");
            return error(&field, "the prefix subagents.dev/ is the operator's", "remove it");
        }
    }
    Ok(())
}

/// What the operator reads or adds to must have the type that the API gives it: anything else would be replaced before the
/// API server sees it, and so be dropped in silence (contract c7).
fn types(template: &Value) -> Result<(), TemplateError> {
    let typed = |at: &str, object: &Value, fields: &[(&str, Type)]| {
        let wrong = fields.iter().find(|(field, type_)| !type_.holds(&object[*field]));
        wrong.map_or(Ok(()), |(field, type_)| error(&format!("{at}.{field}"), type_.problem(), "write it as such"))
    };
    typed("", template, &[("metadata", Type::Object), ("spec", Type::Object)])?;
    typed(".metadata", &template["metadata"], &[("labels", Type::Object), ("annotations", Type::Object)])?;
    let spec = &template["spec"];
    typed(".spec", spec, POD_TYPES)?;
    for list in ["initContainers", "containers"] {
        for (index, container) in spec[list].as_array().into_iter().flatten().enumerate() {
            let name = container["name"].as_str().map_or_else(|| index.to_string(), ToOwned::to_owned);
            typed(&format!(".spec.{list}[{name}]"), container, CONTAINER_TYPES)?;
        }
    }
    Ok(())
}

/// A type of JSON. An absent field has any.
#[derive(Clone, Copy)]
enum Type {
    List,
    Object,
    Text,
    Integer,
}

const POD_TYPES: &[(&str, Type)] = &[
    ("containers", Type::List),
    ("initContainers", Type::List),
    ("volumes", Type::List),
    ("securityContext", Type::Object),
    ("terminationGracePeriodSeconds", Type::Integer),
];
const CONTAINER_TYPES: &[(&str, Type)] = &[
    ("name", Type::Text),
    ("command", Type::List),
    ("args", Type::List),
    ("env", Type::List),
    ("volumeMounts", Type::List),
    ("volumeDevices", Type::List),
    ("workingDir", Type::Text),
    ("terminationMessagePath", Type::Text),
    ("securityContext", Type::Object),
    ("resources", Type::Object),
];

impl Type {
    fn holds(self, value: &Value) -> bool {
        value.is_null()
            || match self {
                Self::List => value.is_array(),
                Self::Object => value.is_object(),
                Self::Text => value.is_string(),
                Self::Integer => value.is_i64(),
            }
    }

    fn problem(self) -> &'static str {
        match self {
            Self::List => "is not a list",
            Self::Object => "is not an object",
            Self::Text => "is not a string",
            Self::Integer => "is not an integer",
        }
    }
}

fn pod(spec: &Value) -> Result<(), TemplateError> {
    for field in ["hostPID", "shareProcessNamespace"] {
        if spec[field] == true {
            return error(
                &format!(".spec.{field}"),
                "a shared process namespace takes away the proof that a run stopped",
                "remove it",
            );
        }
    }
    if spec.get("restartPolicy").is_some_and(|policy| policy != "Never") {
        return error(".spec.restartPolicy", "only Never is possible: a restarted agent would run twice", "remove it");
    }
    if spec.get("activeDeadlineSeconds").is_some() {
        return error(
            ".spec.activeDeadlineSeconds",
            "the kubelet would kill the agent behind the worker's back",
            "remove it and set activeDeadlineSeconds on the run or in runDefaults",
        );
    }
    if spec["enableServiceLinks"] == true {
        return error(
            ".spec.enableServiceLinks",
            "an agent gets no variables about the cluster",
            "remove it and write what the agent needs into env",
        );
    }
    Ok(())
}

fn agent_container(agent: &Value) -> Result<(), TemplateError> {
    let has_command = agent["command"]
        .as_array()
        .is_some_and(|command| !command.is_empty() && command.iter().all(Value::is_string) && command[0] != "");
    if !has_command {
        return error(
            ".spec.containers[agent].command",
            "is missing: the image's entrypoint is invisible here",
            "set it to the agent's ACP server",
        );
    }
    for field in AGENT_FIELDS {
        if agent.get(*field).is_some() {
            let field = format!(".spec.containers[agent].{field}");
            return error(&field, "the worker alone starts and stops the agent", "remove it");
        }
    }
    if agent["workingDir"].as_str().is_some_and(|dir| !dir.is_empty() && !dir.starts_with('/')) {
        return error(".spec.containers[agent].workingDir", "is not absolute", "write an absolute path");
    }
    if agent["workingDir"].as_str().is_some_and(|dir| dir.starts_with('/') && is_pod_dir(dir)) {
        let field = ".spec.containers[agent].workingDir";
        return error(field, "the folder /subagents is the operator's", "use another path");
    }
    for variable in agent["env"].as_array().into_iter().flatten() {
        let name = variable["name"].as_str().unwrap_or_default();
        if name.starts_with(WORKER_VARIABLES) && name != WORKER_LOG {
            let field = format!(".spec.containers[agent].env[{name}]");
            return error(&field, "names that start with SUBAGENT_WORKER_ are the worker's", "choose another name");
        }
    }
    Ok(())
}

/// What holds for every container, of either list.
fn container(list: &str, container: &Value) -> Result<(), TemplateError> {
    let name = container["name"].as_str().unwrap_or_default();
    let at = format!(".spec.{list}[{name}]");
    if name == names::WORKER_INIT_CONTAINER {
        return error(&at, "the name is the operator's", "choose another name");
    }
    let rules = container["restartPolicyRules"].as_array().into_iter().flatten();
    if rules.into_iter().any(|rule| rule["action"] == "RestartAllContainers") {
        return error(
            &format!("{at}.restartPolicyRules"),
            "the action RestartAllContainers would restart the agent, too",
            "remove it",
        );
    }
    let mounts = container["volumeMounts"].as_array().into_iter().flatten();
    let mut mounted = mounts.filter_map(|mount| mount["name"].as_str());
    if let Some(volume) = mounted.find(|name| name.starts_with(VOLUMES)) {
        return error(&format!("{at}.volumeMounts[{volume}]"), "the volume is the operator's", "remove it");
    }
    let paths = [("volumeMounts", "mountPath"), ("volumeDevices", "devicePath")].into_iter().flat_map(|(list, key)| {
        let items = container[list].as_array().into_iter().flatten();
        items.filter_map(move |item| Some((list, item[key].as_str()?)))
    });
    let message = container["terminationMessagePath"].as_str().map(|path| ("terminationMessagePath", path));
    if let Some((field, path)) = paths.chain(message).find(|(_, path)| covers_pod_dir(path)) {
        return error(&format!("{at}.{field}[{path}]"), "the folder /subagents is the operator's", "use another path");
    }
    Ok(())
}

/// True for the worker's folder, what is in it, and what would hide it.
fn covers_pod_dir(path: &str) -> bool {
    normal(path).is_empty() || is_pod_dir(path)
}

/// True for the worker's folder and what is in it.
fn is_pod_dir(path: &str) -> bool {
    normal(path).first() == Some(&subagent_link::POD_DIR.trim_start_matches('/'))
}

/// The parts of a path, however it is written.
fn normal(path: &str) -> Vec<&str> {
    let mut parts: Vec<&str> = vec![];
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts
}

/// The container that runs the agent.
pub fn agent(template: &Value) -> Option<&Value> {
    template["spec"]["containers"].as_array()?.iter().find(|container| container["name"] == names::AGENT_CONTAINER)
}

/// The agent's working directory.
pub fn working_dir(template: &Value) -> &str {
    let own = agent(template).and_then(|agent| agent["workingDir"].as_str());
    own.filter(|dir| !dir.is_empty()).unwrap_or(subagent_link::DEFAULT_CWD)
}

/// Why there is no place for a workspace, which is mounted at the agent's working directory, if there is none.
pub fn refuses_workspace(template: &Value) -> Option<String> {
    let (dir, agent) = (working_dir(template), "its spec.template.spec.containers[agent]");
    if covers_pod_dir(dir) {
        return Some(format!(
            "{agent}.workingDir is {dir}, and a workspace that is mounted there would hide the worker"
        ));
    }
    let path = brings_working_dir(template)?;
    let brings = format!("{agent}.volumeMounts[{path}] brings the working directory {dir} itself");
    Some(format!("{brings}, and a workspace is mounted there"))
}

/// Where the template mounts what the agent's working directory is in, if it does: at that folder or above it. A volume that is
/// mounted there, too, would hide that.
fn brings_working_dir(template: &Value) -> Option<&str> {
    let dir = normal(working_dir(template));
    let mounts = agent(template).and_then(|agent| agent["volumeMounts"].as_array()).into_iter().flatten();
    mounts.filter_map(|mount| mount["mountPath"].as_str()).find(|path| dir.starts_with(&normal(path)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn template() -> Value {
        json!({"spec": {"containers": [{"name": "agent", "image": "i", "command": ["a"]}]}})
    }

    #[rstest]
    #[case::host_pid("/spec/hostPID", json!(true), "spec.template.spec.hostPID")]
    #[case::share("/spec/shareProcessNamespace", json!(true), "spec.template.spec.shareProcessNamespace")]
    #[case::restart("/spec/restartPolicy", json!("Always"), "spec.template.spec.restartPolicy")]
    #[case::container_restart("/spec/containers/0/restartPolicy", json!("Always"), "containers[agent].restartPolicy")]
    #[case::rules("/spec/containers/0/restartPolicyRules", json!([]), "containers[agent].restartPolicyRules")]
    #[case::hook("/spec/containers/0/lifecycle", json!({}), "containers[agent].lifecycle")]
    #[case::probe("/spec/containers/0/livenessProbe", json!({}), "containers[agent].livenessProbe")]
    #[case::mount("/spec/containers/0/volumeMounts", json!([{"name": "v", "mountPath": "/subagents/x/"}]), "volumeMounts[/subagents/x/]")]
    #[case::mount_in_disguise("/spec/containers/0/volumeMounts", json!([{"name": "v", "mountPath": "/x/..//./subagents/bin"}]), "volumeMounts[/x/..//./subagents/bin]")]
    #[case::mount_over_all("/spec/containers/0/volumeMounts", json!([{"name": "v", "mountPath": "/"}]), "volumeMounts[/]")]
    #[case::device("/spec/containers/0/volumeDevices", json!([{"name": "v", "devicePath": "/subagents/dev"}]), "volumeDevices[/subagents/dev]")]
    #[case::message("/spec/containers/0/terminationMessagePath", json!("/subagents/bin/subagent-worker"), "containers[agent].terminationMessagePath")]
    #[case::readiness("/spec/containers/0/readinessProbe", json!({}), "containers[agent].readinessProbe")]
    #[case::startup("/spec/containers/0/startupProbe", json!({}), "containers[agent].startupProbe")]
    #[case::worker_variable("/spec/containers/0/env", json!([{"name": "SUBAGENT_WORKER_LINK_DIR", "value": "/tmp"}]), "containers[agent].env[SUBAGENT_WORKER_LINK_DIR]")]
    #[case::restart_all("/spec/initContainers", json!([{"name": "side", "restartPolicyRules": [{"action": "RestartAllContainers"}]}]), "initContainers[side].restartPolicyRules")]
    #[case::service_links("/spec/enableServiceLinks", json!(true), "spec.template.spec.enableServiceLinks")]
    #[case::finalizer("/metadata", json!({"finalizers": ["x/y"]}), "spec.template.metadata.finalizers")]
    #[case::misspelt_metadata("/metadata", json!({"label": {}}), "spec.template.metadata.label")]
    #[case::misspelt("/sepc", json!({}), "spec.template.sepc")]
    #[case::mount_itself("/spec/containers/0/volumeMounts", json!([{"name": "v", "mountPath": "/subagents"}]), "volumeMounts[/subagents]")]
    #[case::deadline("/spec/activeDeadlineSeconds", json!(5), "spec.template.spec.activeDeadlineSeconds")]
    #[case::label("/metadata", json!({"labels": {"subagents.dev/run": "x"}}), "metadata.labels[subagents.dev/run]")]
    #[case::annotation("/metadata", json!({"annotations": {"subagents.dev/x": "x"}}), "metadata.annotations[subagents.dev/x]")]
    #[case::no_command("/spec/containers/0/command", json!([]), "containers[agent].command")]
    #[case::no_agent("/spec/containers/0/name", json!("other"), "no container is named \"agent\"")]
    #[case::relative("/spec/containers/0/workingDir", json!("work"), "containers[agent].workingDir")]
    #[case::args("/spec/containers/0/args", json!("acp"), "containers[agent].args: is not a list")]
    #[case::command("/spec/containers/0/command", json!("acp"), "containers[agent].command: is not a list")]
    #[case::mounts("/spec/containers/0/volumeMounts", json!("y"), "containers[agent].volumeMounts: is not a list")]
    #[case::directory("/spec/containers/0/workingDir", json!(7), "containers[agent].workingDir: is not a string")]
    #[case::volumes("/spec/volumes", json!("x"), "spec.template.spec.volumes: is not a list")]
    #[case::init_containers("/spec/initContainers", json!("x"), "spec.template.spec.initContainers: is not a list")]
    #[case::grace("/spec/terminationGracePeriodSeconds", json!("9"), "terminationGracePeriodSeconds: is not an integer")]
    #[case::labels("/metadata", json!({"labels": "x"}), "spec.template.metadata.labels: is not an object")]
    #[case::init_environment("/spec/initContainers", json!([{"name": "c", "env": {}}]), "initContainers[c].env: is not a list")]
    #[case::link_volume("/spec/initContainers", json!([{"name": "c", "volumeMounts": [{"name": "subagents-link", "mountPath": "/l"}]}]), "initContainers[c].volumeMounts[subagents-link]")]
    #[case::in_pod_dir("/spec/containers/0/workingDir", json!("//subagents/link"), "containers[agent].workingDir")]
    #[case::volume("/spec/volumes", json!([{"name": "subagents-link"}]), "volumes[subagents-link]")]
    #[case::init("/spec/initContainers", json!([{"name": "subagent-worker"}]), "initContainers[subagent-worker]")]
    fn n7_n8_a_template_that_takes_the_agent_away_is_refused(
        #[case] pointer: &str,
        #[case] value: Value,
        #[case] named: &str,
    ) {
        let mut template = template();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        template.pointer_mut(parent).unwrap().as_object_mut().unwrap().insert(key.into(), value);
        let error = check(&template).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }

    #[rstest]
    #[case(json!({"name": "agent", "image": "i", "command": ["a"], "workingDir": "/w", "volumeMounts": [{"name": "v", "mountPath": "/subagentsx"}], "env": [{"name": "SUBAGENT_WORKER_LOG", "value": "debug"}]}))]
    fn a_good_template_passes(#[case] agent: Value) {
        check(&template()).unwrap();
        check(&json!({
            "metadata": {"creationTimestamp": null, "labels": {"team": "a"}},
            "spec": {"restartPolicy": "Never", "enableServiceLinks": false, "containers": [agent, {"name": "sidecar", "livenessProbe": {}}]},
        }))
        .unwrap();
    }

    #[rstest]
    #[case::nothing(json!({}), None)]
    #[case::at_the_default(json!({"volumeMounts": [{"mountPath": "/home"}, {"mountPath": "/workspace/"}]}), Some("/workspace/"))]
    #[case::elsewhere(json!({"workingDir": "/src", "volumeMounts": [{"mountPath": "/workspace"}]}), None)]
    #[case::above(json!({"workingDir": "/src/repo", "volumeMounts": [{"mountPath": "/src"}]}), Some("/src"))]
    #[case::below(json!({"workingDir": "/src", "volumeMounts": [{"mountPath": "/src/cache"}]}), None)]
    #[case::beside(json!({"workingDir": "/src", "volumeMounts": [{"mountPath": "/srcs"}]}), None)]
    #[case::in_disguise(json!({"workingDir": "/a/../src", "volumeMounts": [{"mountPath": "//src/."}]}), Some("//src/."))]
    fn what_the_template_brings_into_the_working_directory_is_found(
        #[case] agent: Value,
        #[case] expected: Option<&str>,
    ) {
        let mut template = template();
        for (field, value) in agent.as_object().unwrap() {
            template["spec"]["containers"][0][field] = value.clone();
        }
        assert_eq!(brings_working_dir(&template), expected);
        assert_eq!(refuses_workspace(&template).is_some(), expected.is_some());
    }

    /// A claim there would be mounted over everything, or over the worker.
    #[rstest]
    #[case("/", true)]
    #[case("/src/..", true)]
    #[case("/subagents/bin", true)]
    #[case("/src", false)]
    fn c7_a_working_directory_that_holds_the_worker_is_no_place_for_a_workspace(
        #[case] dir: &str,
        #[case] is_refused: bool,
    ) {
        let mut template = template();
        template["spec"]["containers"][0]["workingDir"] = dir.into();
        assert_eq!(refuses_workspace(&template).is_some(), is_refused);
    }
}
