//! Published agents, unmodified, and the scripted model that they ask.

use crate::{
    TestNamespace,
    commands::{kubectl, repository},
    namespace::PATIENCE,
    objects::merge,
};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use subagent_crds::SubagentProvider;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Pods of one agent at a time: each takes 200 to 700 MB.
const PODS: usize = 2;

/// What tests have to know of an agent.
#[derive(Clone, Copy)]
pub struct Published {
    /// Its provider in `examples/`.
    pub provider: &'static str,
    /// As it calls itself.
    pub name: &'static str,
    /// Whether its provider takes an API key from the Secret `llm`.
    has_key: bool,
    /// Whether what is said to it during a turn goes into that.
    pub steers: bool,
    /// What it asks before it writes a file and reads it back, when its provider is as in the example.
    pub asked: i64,
    /// The session mode in which it asks before it runs a command, where that is not the example's.
    asking_mode: Option<&'static str>,
    /// A model's answer that runs a command, for which it then asks.
    pub asking_shell: fn(&str) -> Value,
    /// How a run ends whose command is refused.
    pub refused: (&'static str, &'static str, &'static str),
    pods: &'static Semaphore,
}

impl Published {
    /// opencode: asks where its configuration says so.
    pub fn opencode() -> Self {
        static ITS_PODS: Semaphore = Semaphore::const_new(PODS);
        Self {
            provider: "opencode",
            name: "OpenCode",
            has_key: false,
            steers: false,
            asked: 1,
            asking_mode: None,
            asking_shell: |command| json!({"shell": command}),
            // It takes a refusal for the end of its turn.
            refused: ("Completed", "Completed", "Completed"),
            pods: &ITS_PODS,
        }
    }

    /// Claude Code through its ACP adapter: asks in the session mode of its example.
    pub fn claude() -> Self {
        static ITS_PODS: Semaphore = Semaphore::const_new(PODS);
        Self {
            provider: "claude",
            name: "@agentclientprotocol/claude-agent-acp",
            has_key: true,
            steers: true,
            // For writing the file; it reads without asking.
            asked: 1,
            asking_mode: None,
            asking_shell: |command| json!({"shell": command}),
            refused: ("Completed", "Completed", "Completed"),
            pods: &ITS_PODS,
        }
    }

    /// Codex through its ACP adapter: asks in another session mode than that of its example.
    pub fn codex() -> Self {
        static ITS_PODS: Semaphore = Semaphore::const_new(PODS);
        Self {
            provider: "codex",
            name: "@agentclientprotocol/codex-acp",
            has_key: true,
            steers: true,
            asked: 0,
            asking_mode: Some("read-only"),
            // As a model asks that has found that its sandbox does not work.
            asking_shell: |command| {
                json!({"toolCall": {"name": "exec_command", "arguments": {
                    "cmd": command, "sandbox_permissions": "require_escalated", "justification": "The sandbox cannot run it.",
                }}})
            },
            // It takes a refusal for a cancelled turn.
            refused: ("Cancelled", "Aborted", "Cancelled"),
            pods: &ITS_PODS,
        }
    }

    /// Those that `make test` has, and with the feature every-agent all that there is an image of.
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::opencode(), Self::claude()];
        if cfg!(feature = "every-agent") {
            all.push(Self::codex());
        }
        all
    }

    /// Waits until that many pods of it may run.
    ///
    /// # Panics
    /// Never: nobody closes what is waited for.
    pub async fn pods(&self, number: u32) -> SemaphorePermit<'static> {
        self.pods.acquire_many(number).await.expect("an open semaphore")
    }

    /// Its provider as in the example, with a patch to its spec.
    ///
    /// # Panics
    /// When the example is no provider.
    pub fn provider(&self, name: &str, patch: Value) -> SubagentProvider {
        let path = repository().join(format!("examples/provider-{}.yaml", self.provider));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut provider: Value = serde_saphyr::from_str(&text).expect("a manifest");
        merge(&mut provider, json!({"metadata": {"name": name}, "spec": patch}));
        serde_json::from_value(provider).expect("a provider")
    }

    /// A merge patch to its provider's spec with which it asks before it runs a command.
    pub fn asks(&self) -> Value {
        self.asking_mode.map_or_else(|| json!({}), |mode| json!({"transport": {"acp": {"sessionMode": mode}}}))
    }

    /// Creates its provider as in the example, under the agent's own name, with short graces and without anybody to ask, and
    /// waits until it is known that its sessions can be continued.
    pub async fn continuable(&self, ns: &TestNamespace) -> SubagentProvider {
        let patch = json!({"transport": {"acp": {"permission": {"mode": "Allow"}}},
            "stop": {"cancelGraceSeconds": 5, "eofGraceSeconds": 2, "termGraceSeconds": 1}});
        ns.create(&self.provider(self.provider, patch)).await;
        ns.continues(self.provider).await
    }
}

/// A prompt that says what the model answers.
pub fn scripted(actions: &[Value]) -> String {
    format!("Please do. <fake-llm>{}</fake-llm>", Value::from(actions))
}

/// A word that nobody can have prepared an answer to.
pub fn nonce(ns: &TestNamespace) -> String {
    format!("{:x}", Sha256::digest(&ns.name))[..32].to_owned()
}

/// The model in a namespace; with a Secret `llm` there it answers only to who shows its key.
pub struct Model {
    /// Where its Service is.
    address: String,
    path: String,
}

impl Model {
    /// Starts it, with the Secret if the agent's provider wants that.
    ///
    /// # Panics
    /// When it does not become available.
    pub async fn start(ns: &TestNamespace, agent: &Published) -> Self {
        if agent.has_key {
            ns.kubectl(&["create", "secret", "generic", "llm", "--from-literal=api-key=of-this-test"]);
        }
        let manifest = repository().join("tests/agents/fake-llm/manifest.yaml");
        ns.kubectl(&["apply", "-f", manifest.to_str().expect("a path in UTF-8")]);
        ns.until("fake-llm", "available", PATIENCE, |deployment: &Deployment| {
            deployment.status.as_ref().and_then(|status| status.available_replicas) == Some(1)
        })
        .await;
        let service: Service = ns.api().get("fake-llm").await.expect("the model's Service");
        let address = service.spec.and_then(|spec| spec.cluster_ip).expect("an address");
        let path = format!("/api/v1/namespaces/{}/services/fake-llm:http/proxy", ns.name);
        Self { address: format!("{address}:8080"), path }
    }

    /// A command that leaves a mark here: the agents' images have nothing in common but such a program.
    pub fn mark(&self, name: &str) -> String {
        format!("wget -q -O - --post-data= http://{}/__gates/{name}", self.address)
    }

    /// Whether that command was run.
    pub fn is_marked(&self, name: &str) -> bool {
        self.get("__gates")[name]["open"] == true
    }

    /// Waits until an answer is held at a gate.
    pub async fn holds(&self, ns: &TestNamespace, gate: &str) {
        ns.eventually(&format!("an answer waits for gate {gate}"), crate::children::REST, async || {
            let gates = self.get("__gates");
            if gates[gate]["waiting"].as_u64() > Some(0) { Ok(()) } else { Err(gates.to_string()) }
        })
        .await;
    }

    /// Lets the answers go on that wait for a gate.
    pub fn open(&self, gate: &str) {
        kubectl(&["create", "--raw", &format!("{}/__gates/{gate}", self.path), "-f", "/dev/null"]);
    }

    /// The requests that contain these words and were answered by a script, so not the titles and suggestions that agents
    /// ask for besides.
    pub fn asked(&self, words: &str) -> Vec<Value> {
        let listing = self.get("__requests");
        let all = listing["requests"].as_array().cloned().unwrap_or_default();
        let is_scripted = |request: &Value| {
            request["source"].as_str().is_some_and(|source| source == "directive" || source.starts_with("rule"))
        };
        all.into_iter().filter(|one| is_scripted(one) && one["body"].to_string().contains(words)).collect()
    }

    fn get(&self, path: &str) -> Value {
        let answer = kubectl(&["get", "--raw", &format!("{}/{path}", self.path)]);
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{path}: {error}: {answer}"))
    }
}
