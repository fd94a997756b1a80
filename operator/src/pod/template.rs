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

/// Probes and hooks on the agent's container: the kubelet would kill or signal it behind the worker's back.
const AGENT_FIELDS: &[&str] =
    &["lifecycle", "livenessProbe", "readinessProbe", "startupProbe", "restartPolicy", "restartPolicyRules"];

/// Checks a template.
///
/// # Errors
/// The first mistake found, in a fixed order.
pub fn check(template: &Value) -> Result<(), TemplateError> {
    let error = |field: &str, problem: &str, remedy| {
        Err(TemplateError { field: field.to_owned(), problem: problem.to_owned(), remedy })
    };
    if !template.is_object() {
        return error("", "is not an object", "write a PodTemplateSpec");
    }
    for kind in ["labels", "annotations"] {
        let entries = template["metadata"][kind].as_object();
        if let Some(key) = entries.into_iter().flatten().map(|(key, _)| key).find(|key| key.starts_with(names::PREFIX))
        {
            return error(
                &format!(".metadata.{kind}[{key}]"),
                "the prefix subagents.dev/ is the operator's",
                "remove it",
            );
        }
    }
    let spec = &template["spec"];
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
    let Some(agent) = agent(template) else {
        return error(".spec.containers", "no container is named \"agent\"", "name the agent's container agent");
    };
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
            return error(
                &format!(".spec.containers[agent].{field}"),
                "the worker alone starts and stops the agent",
                "remove it",
            );
        }
    }
    if agent["workingDir"].as_str().is_some_and(|dir| !dir.is_empty() && !dir.starts_with('/')) {
        return error(".spec.containers[agent].workingDir", "is not absolute", "write an absolute path");
    }
    for list in ["initContainers", "containers"] {
        for container in spec[list].as_array().into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default();
            if name == names::WORKER_INIT_CONTAINER {
                return error(&format!(".spec.{list}[{name}]"), "the name is the operator's", "choose another name");
            }
            for mount in container["volumeMounts"].as_array().into_iter().flatten() {
                let path = mount["mountPath"].as_str().unwrap_or_default().trim_end_matches('/');
                if path == subagent_link::POD_DIR || path.starts_with(&format!("{}/", subagent_link::POD_DIR)) {
                    return error(
                        &format!(".spec.{list}[{name}].volumeMounts[{path}]"),
                        "the folder /subagents is the operator's",
                        "mount it elsewhere",
                    );
                }
            }
        }
    }
    for volume in spec["volumes"].as_array().into_iter().flatten() {
        let name = volume["name"].as_str().unwrap_or_default();
        if name.starts_with("subagents-") {
            return error(
                &format!(".spec.volumes[{name}]"),
                "names that start with subagents- are the operator's",
                "choose another name",
            );
        }
    }
    Ok(())
}

/// The container that runs the agent.
pub fn agent(template: &Value) -> Option<&Value> {
    template["spec"]["containers"].as_array()?.iter().find(|container| container["name"] == names::AGENT_CONTAINER)
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
    #[case::mount("/spec/containers/0/volumeMounts", json!([{"name": "v", "mountPath": "/subagents/x/"}]), "volumeMounts[/subagents/x]")]
    #[case::mount_itself("/spec/containers/0/volumeMounts", json!([{"name": "v", "mountPath": "/subagents"}]), "volumeMounts[/subagents]")]
    #[case::deadline("/spec/activeDeadlineSeconds", json!(5), "spec.template.spec.activeDeadlineSeconds")]
    #[case::label("/metadata", json!({"labels": {"subagents.dev/run": "x"}}), "metadata.labels[subagents.dev/run]")]
    #[case::annotation("/metadata", json!({"annotations": {"subagents.dev/x": "x"}}), "metadata.annotations[subagents.dev/x]")]
    #[case::no_command("/spec/containers/0/command", json!([]), "containers[agent].command")]
    #[case::no_agent("/spec/containers/0/name", json!("other"), "no container is named \"agent\"")]
    #[case::relative("/spec/containers/0/workingDir", json!("work"), "containers[agent].workingDir")]
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
    #[case(json!({"name": "agent", "image": "i", "command": ["a"], "workingDir": "/w", "volumeMounts": [{"name": "v", "mountPath": "/subagentsx"}]}))]
    fn a_good_template_passes(#[case] agent: Value) {
        check(&template()).unwrap();
        check(&json!({"spec": {"restartPolicy": "Never", "containers": [agent, {"name": "sidecar", "livenessProbe": {}}]}})).unwrap();
    }
}
