//! What a test has: a namespace, the chart's rights for one operator, a node, and words for what is waited for.

use crate::{
    audit::{self, Mark},
    node::TestNode,
    programs,
    replica::{Plan, Replica, free_port},
    rights::Rights,
    undecodable,
};
use integration_tests::{TestNamespace, make_run};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use scripted_agent::{binary, collector::Event};
use serde_json::{Value, json};
use std::time::Duration;
use subagent_crds::{
    Phase, SubagentProvider, SubagentRun, SubagentRunStatus,
    conditions::{self, is_true},
    content::Prompt,
    names,
};

/// Long enough for a loaded machine; only a failing test waits for it.
pub const LIMIT: Duration = Duration::from_secs(90);

/// A test's surroundings.
pub struct World {
    /// Where it happens.
    pub namespace: TestNamespace,
    /// The operator's rights.
    pub rights: Rights,
    /// The node.
    pub node: TestNode,
    link_port: u16,
}

impl World {
    /// Surroundings without operator.
    pub async fn new(hint: &str) -> Self {
        Self::with_labels(hint, &[]).await
    }

    /// The same in a namespace with these labels.
    pub async fn with_labels(hint: &str, labels: &[(&str, &str)]) -> Self {
        undecodable::prepared().await;
        Self::around(TestNamespace::with_labels(hint, labels).await).await
    }

    /// The same in a namespace that exists.
    pub async fn around(namespace: TestNamespace) -> Self {
        let rights = Rights::grant(&namespace).await;
        Self::with_rights(namespace, rights).await
    }

    /// The same for an operator that leaves children to the test.
    pub async fn without_children(hint: &str) -> Self {
        undecodable::prepared().await;
        let namespace = TestNamespace::new(hint).await;
        let rights = Rights::grant_but_children(&namespace).await;
        Self::with_rights(namespace, rights).await
    }

    async fn with_rights(namespace: TestNamespace, rights: Rights) -> Self {
        // Compiling takes longer than some deadlines of runs.
        programs::worker();
        let node = TestNode::new(namespace.clone()).await;
        Self { namespace, rights, node, link_port: free_port() }
    }

    /// How the operator of that identity is started, with its own gateway.
    pub fn plan(&self, identity: &str) -> Plan {
        Plan {
            identity: identity.into(),
            namespace: self.namespace.name.clone(),
            rights: self.rights.clone(),
            link_port: self.link_port,
            told_port: self.link_port,
            arguments: vec![],
            watch_lag: Duration::ZERO,
            api_server: None,
        }
    }

    /// Starts the operator and waits until it leads.
    pub async fn operator(&self) -> Replica {
        let replica = Replica::start(self.plan("first"));
        self.until_leader("first").await;
        replica
    }

    /// Waits until that identity holds the lease.
    pub async fn until_leader(&self, identity: &str) {
        let holder = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone());
        let what = format!("leader {identity}");
        self.namespace
            .until::<Lease>(&self.rights.release, &what, LIMIT, |lease| holder(lease).as_deref() == Some(identity))
            .await;
    }

    /// Creates a provider whose agent is the scripted one, with these variables.
    pub async fn provider(&self, name: &str, env: &[(&str, &str)]) -> SubagentProvider {
        self.namespace.create(&self.make_provider(name, env)).await
    }

    /// A provider whose agent is the scripted one.
    pub fn make_provider(&self, name: &str, env: &[(&str, &str)]) -> SubagentProvider {
        let env: Vec<Value> = env.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        let mut provider = integration_tests::make_provider(name);
        provider.spec.template = json!({"spec": {"containers": [{
            "name": names::AGENT_CONTAINER,
            "image": "localhost/scripted-agent:dev",
            "command": [binary::scripted_agent()],
            "workingDir": self.node.cwd(),
            "env": env,
        }]}});
        provider.spec.stop.cancel_grace_seconds = 2;
        provider.spec.stop.eof_grace_seconds = 1;
        provider.spec.stop.term_grace_seconds = 1;
        provider
    }

    /// Writes a provider's spec.
    pub async fn edit_provider(&self, provider: &SubagentProvider) {
        let api = self.namespace.api::<SubagentProvider>();
        let patch = json!({"spec": {"template": provider.spec.template}});
        api.patch(&provider.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await.expect("an edit");
    }

    /// Waits until a provider is checked and ready, and gives its revision.
    pub async fn ready(&self, name: &str) -> String {
        let provider = self
            .namespace
            .until::<SubagentProvider>(name, "Ready", LIMIT, |provider| {
                let status = provider.status.clone().unwrap_or_default();
                status.observed_generation == provider.metadata.generation
                    && is_true(&status.conditions, conditions::READY)
            })
            .await;
        provider.status.and_then(|status| status.revision).expect("a revision")
    }

    /// A run of that provider with that prompt.
    pub fn make_run(&self, name: &str, provider: &str, prompt: &str) -> SubagentRun {
        let mut run = make_run(name);
        run.spec.provider_ref.name = provider.into();
        run.spec.prompt = Some(Prompt { text: Some(prompt.into()), ..Prompt::default() });
        run
    }

    /// Creates a run.
    pub async fn run(&self, name: &str, provider: &str, prompt: &str) -> SubagentRun {
        self.namespace.create(&self.make_run(name, provider, prompt)).await
    }

    /// Sets `spec.cancel`.
    pub async fn cancel(&self, run: &str) {
        let patch = json!({"spec": {"cancel": true}});
        let api = self.namespace.api::<SubagentRun>();
        api.patch(run, &PatchParams::default(), &Patch::Merge(&patch)).await.expect("a cancel");
    }

    /// Deletes a run.
    pub async fn delete_run(&self, run: &str) {
        self.namespace.api::<SubagentRun>().delete(run, &DeleteParams::default()).await.expect("a deletion");
    }

    /// Waits until a run's status fits.
    pub async fn until(&self, run: &str, what: &str, fits: impl Fn(&SubagentRunStatus) -> bool) -> SubagentRun {
        let fits = |run: &SubagentRun| run.status.as_ref().is_some_and(&fits);
        let api = self.namespace.api::<SubagentRun>();
        let (api, fits, node) = (&api, &fits, &self.node);
        self.namespace
            .eventually(&format!("{run}: {what}"), LIMIT, async || match api.get_opt(run).await {
                Ok(Some(object)) if fits(&object) => Ok(object),
                Ok(Some(_)) => Err(format!("it does not fit yet (see below)\n{}", node.said())),
                Ok(None) => Err("it does not exist".into()),
                Err(error) => Err(error.to_string()),
            })
            .await
    }

    /// Waits until a run is over and proven stopped.
    pub async fn stopped(&self, run: &str) -> SubagentRun {
        self.until(run, "terminal and Stopped", |status| is_terminal(status) && has(status, conditions::STOPPED)).await
    }

    /// Waits until a run is gone.
    pub async fn gone(&self, run: &str) {
        let api = self.namespace.api::<SubagentRun>();
        let api = &api;
        self.namespace
            .eventually(&format!("{run}: gone"), LIMIT, async || match api.get_opt(run).await {
                Ok(None) => Ok(()),
                other => Err(format!("{:?}", other.map(|run| run.and_then(|run| run.status)))),
            })
            .await;
    }

    /// Waits for the pod of an attempt.
    pub async fn pod(&self, run: &SubagentRun, attempt: i32) -> Pod {
        let name = pod_name(run, attempt);
        self.namespace.until::<Pod>(&name, "exists", LIMIT, |_| true).await
    }

    /// All worker pods.
    pub async fn pods(&self) -> Vec<Pod> {
        let params = ListParams::default().labels(names::RUN_UID_LABEL);
        self.namespace.api::<Pod>().list(&params).await.expect("pods").items
    }

    /// Waits for a report of a run's agent.
    pub async fn event(&self, run: &str, kind: &str, text: &str) -> Event {
        let node = &self.node;
        self.namespace
            .eventually(&format!("{run}: agent reports {kind} {text}"), LIMIT, async || {
                let events = node.collector().all();
                let fits = |event: &&Event| event.tag == run && event.kind == kind && event.text.contains(text);
                let found = events.iter().find(fits).cloned();
                found.ok_or_else(|| format!("{events:?}\n{}", node.said()))
            })
            .await
    }

    /// How many prompts a run's agents got, whatever the attempt.
    pub fn prompts(&self, run: &str) -> usize {
        let all = self.node.collector().all();
        all.iter()
            .filter(|event| event.tag == run && ["prompt", "second-prompt"].contains(&event.kind.as_str()))
            .count()
    }

    /// Ends the test: everything the operator did was within the chart's rights (D6).
    pub async fn finish(self) {
        let asked = Mark::START.requests_of(&self.rights.user);
        assert!(!asked.is_empty(), "nothing of {} in the audit log", self.rights.user);
        let forbidden: Vec<_> = asked.into_iter().filter(audit::Request::is_forbidden).collect();
        assert!(forbidden.is_empty(), "D6: the chart's rights are too few:\n{}", audit::lines(&forbidden));
    }
}

/// Name of the pod of an attempt.
pub fn pod_name(run: &SubagentRun, attempt: i32) -> String {
    subagent_operator::naming::pod(&run.name_any(), &run.uid().expect("a UID"), attempt)
}

/// Whether a condition is true.
pub fn has(status: &SubagentRunStatus, condition: &str) -> bool {
    is_true(&status.conditions, condition)
}

/// Whether the phase is terminal.
pub fn is_terminal(status: &SubagentRunStatus) -> bool {
    status.phase.is_some_and(Phase::is_terminal)
}

/// Status of a run that has one.
pub fn status(run: &SubagentRun) -> &SubagentRunStatus {
    run.status.as_ref().expect("a status")
}

/// Phase and reason of a run.
pub fn end(run: &SubagentRun) -> (Phase, &str) {
    let status = status(run);
    (status.phase.expect("a phase"), status.reason.as_deref().unwrap_or_default())
}

/// Text of a run's result.
pub fn text(run: &SubagentRun) -> &str {
    status(run).result.as_ref().and_then(|result| result.text.as_deref()).unwrap_or_default()
}
