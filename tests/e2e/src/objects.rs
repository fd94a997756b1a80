//! Objects of the tests.

use serde_json::{Value, json};
use std::net::SocketAddr;
use subagent_crds::{SubagentProvider, SubagentRun};

/// Name of the provider that [`run`] names.
pub const PROVIDER: &str = "scripted";

/// A run of provider `scripted` with a prompt.
pub fn run(name: &str, prompt: &str) -> SubagentRun {
    run_with(name, json!({"prompt": {"text": prompt}}))
}

/// A run of provider `scripted` whose spec is changed by a merge patch.
///
/// # Panics
/// When that is no spec.
pub fn run_with(name: &str, patch: Value) -> SubagentRun {
    let mut spec =
        json!({"providerRef": {"name": PROVIDER}, "description": "an end-to-end test", "prompt": {"text": "hello"}});
    merge(&mut spec, patch);
    SubagentRun::new(name, serde_json::from_value(spec).expect("a run's spec"))
}

/// RFC 7396: objects are merged, null removes, everything else replaces.
pub fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().expect("an object").remove(&key);
        } else {
            merge(&mut target[&key], value);
        }
    }
}

/// A provider of the scripted agent, with short graces: nobody wants to wait for an agent that is never going to listen.
/// It is not probed unless asked for: one pod for each would load the node, and say nothing about runs.
#[derive(Clone, Debug)]
pub struct ScriptedProvider {
    name: String,
    spec: Value,
}

impl Default for ScriptedProvider {
    fn default() -> Self {
        Self::named(PROVIDER)
    }
}

impl ScriptedProvider {
    /// With a name of its own.
    pub fn named(name: &str) -> Self {
        let spec = json!({
            "description": "The scripted agent",
            "transport": {"acp": {}},
            "stop": {"cancelGraceSeconds": 2, "eofGraceSeconds": 1, "termGraceSeconds": 1},
            "probe": "Never",
            "template": {"spec": {"containers": [{
                "name": "agent",
                "image": "localhost/scripted-agent:dev",
                "imagePullPolicy": "Never",
                "command": ["/usr/bin/scripted-agent"],
                "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}},
                "env": [],
            }]}},
        });
        Self { name: name.into(), spec }
    }

    /// One whose agent keeps its sessions in a folder, which is all that survives a pod; so its children can be continued.
    pub fn keeping_sessions() -> Self {
        const SESSIONS: &str = "/state/sessions";
        Self::default()
            .probed()
            .env("SCRIPTED_AGENT_STATE", SESSIONS)
            .agent(json!({"volumeMounts": [{"name": "state", "mountPath": "/state"}]}))
            .pod(json!({"volumes": [{"name": "state", "emptyDir": {}}]}))
            .spec(json!({"sessionState": {"paths": [SESSIONS], "maxBytes": 16_777_216}}))
    }

    /// A variable of the agent's environment.
    pub fn env(self, name: &str, value: &str) -> Self {
        self.env_entry(json!({"name": name, "value": value}))
    }

    /// A variable of the agent's environment that holds a field of its pod.
    pub fn env_of_pod(self, name: &str, field: &str) -> Self {
        self.env_entry(json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}))
    }

    fn env_entry(mut self, entry: Value) -> Self {
        let entries = self.spec["template"]["spec"]["containers"][0]["env"].as_array_mut().expect("the environment");
        entries.push(entry);
        self
    }

    /// Lets the agent report to a collector.
    pub fn reporting_to(self, address: SocketAddr) -> Self {
        self.env("SCRIPTED_AGENT_COLLECTOR", &address.to_string())
    }

    /// Lets its agent be probed, as by default.
    pub fn probed(self) -> Self {
        self.spec(json!({"probe": null}))
    }

    /// Changes the spec by a merge patch.
    pub fn spec(mut self, patch: Value) -> Self {
        merge(&mut self.spec, patch);
        self
    }

    /// Changes the container `agent` by a merge patch.
    pub fn agent(mut self, patch: Value) -> Self {
        merge(&mut self.spec["template"]["spec"]["containers"][0], patch);
        self
    }

    /// Changes the pod's spec by a merge patch.
    pub fn pod(mut self, patch: Value) -> Self {
        merge(&mut self.spec["template"]["spec"], patch);
        self
    }

    /// Adds a container beside the agent.
    pub fn sidecar(mut self, container: Value) -> Self {
        self.spec["template"]["spec"]["containers"].as_array_mut().expect("the containers").push(container);
        self
    }

    /// The object.
    ///
    /// # Panics
    /// When that is no spec.
    pub fn build(&self) -> SubagentProvider {
        SubagentProvider::new(&self.name, serde_json::from_value(self.spec.clone()).expect("a provider's spec"))
    }
}
