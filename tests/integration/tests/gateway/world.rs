//! A gateway in this process, and the objects the controllers would have made.

use integration_tests::{TestNamespace, make_provider, make_run, objects::PROVIDER};
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    core::v1::{Pod, ServiceAccount},
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use subagent_crds::{SubagentRun, names, provider::SessionState};
use subagent_link::AUDIENCE;
use subagent_operator::{
    gateway::{self, GatewayError, GatewaySettings},
    http::Health,
    metrics::Metrics,
    pki::{Pki, PkiSettings, Timing},
    provider::revision,
    session_store::Store,
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// Longest wait for anything a test waits for: above the three calls of 15 s each that the gateway may take for one report.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Largest checkpoint that the provider here allows, in bytes: above one part of the store.
pub const MAX_STATE_BYTES: i64 = 10 * 1024 * 1024;

/// One replica.
pub struct Replica {
    pub address: SocketAddr,
    pub roots: Arc<str>,
    pub metrics: Arc<Metrics>,
    shutdown: CancellationToken,
    serving: JoinHandle<Result<(), GatewayError>>,
}

impl Replica {
    /// Starts one and waits until it is ready. Replicas of one namespace share their root.
    pub async fn start(namespace: &TestNamespace, client: Client) -> Self {
        Self::start_with(namespace, client, None).await
    }

    /// The same with a session store.
    pub async fn start_with(namespace: &TestNamespace, client: Client, store: Option<Arc<Store>>) -> Self {
        let settings = PkiSettings {
            namespace: namespace.name.clone(),
            secret_name: "gateway-root".into(),
            names: vec!["localhost".into()],
            timing: Timing::default(),
        };
        let (pki, _keeper) = Pki::start(namespace.client.clone(), settings).await.expect("certificates");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (health, metrics, shutdown) = (Health::new(), Arc::new(Metrics::new()), CancellationToken::new());
        let ready = health.register("gateway");
        let roots = pki.roots().borrow().clone();
        let serving = tokio::spawn({
            let (metrics, shutdown) = (metrics.clone(), shutdown.clone());
            let settings =
                GatewaySettings { namespaces: vec![namespace.name.clone()], max_result_bytes: 4 * 1024 * 1024, store };
            async move { gateway::serve(listener, settings, client, &pki, metrics, ready, shutdown).await }
        });
        namespace
            .eventually("the gateway is ready", LIMIT, async || match health.missing() {
                missing if missing.is_empty() => Ok(()),
                missing => Err(format!("{missing:?}")),
            })
            .await;
        Self { address, roots, metrics, shutdown, serving }
    }

    /// Ends it in good order.
    pub async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(LIMIT, self.serving).await.expect("it ends").expect("no panic").expect("no error");
    }
}

/// A namespace with a gateway.
pub struct World {
    pub namespace: TestNamespace,
    pub replica: Replica,
    /// Where the provider says that the agent's session files are.
    pub state: String,
}

impl World {
    pub async fn new(hint: &str) -> Self {
        Self::with_store(hint, None).await
    }

    /// The same with a session store.
    pub async fn with_store(hint: &str, store: Option<Arc<Store>>) -> Self {
        let namespace = TestNamespace::new(hint).await;
        let replica = Replica::start_with(&namespace, namespace.client.clone(), store).await;
        Self { namespace, replica, state: "/state".into() }
    }

    /// A run that the controllers have accepted, without an attempt.
    pub async fn run(&self, name: &str) -> SubagentRun {
        self.run_with(name, |_| {}).await
    }

    /// The same with a spec that was changed before.
    pub async fn run_with(&self, name: &str, change: impl FnOnce(&mut SubagentRun)) -> SubagentRun {
        let mut provider = make_provider(PROVIDER);
        provider.spec.stop.cancel_grace_seconds = 7;
        provider.spec.session_state =
            Some(SessionState { paths: vec![self.state.clone()], max_bytes: MAX_STATE_BYTES });
        provider.metadata.namespace = Some(self.namespace.name.clone());
        provider.metadata.uid = Some("provider-uid".into());
        let revision = revision::ensure(&self.namespace.client, &revision::of(&provider)).await.expect("a revision");
        let mut run = make_run(name);
        change(&mut run);
        self.namespace.create(&run).await;
        self.set_status(
            name,
            json!({
                "phase": "Starting",
                "descriptor": {
                    "version": 1, "mode": "OneShot", "provider": PROVIDER, "providerRevision": revision,
                    "context": "Fresh", "description": "say hello",
                },
                "effective": {
                    "startDeadlineSeconds": 600, "activeDeadlineSeconds": 90, "ttlSecondsAfterFinished": 60,
                    "interruptionPolicy": "Fail", "maxAttempts": 3,
                },
            }),
        )
        .await
    }

    /// A worker pod of a run; nobody starts it.
    pub async fn pod(&self, name: &str, run: &SubagentRun) -> Pod {
        let pod = json!({
            "metadata": {"name": name, "labels": {names::RUN_LABEL: run.name_any()}},
            "spec": {
                "automountServiceAccountToken": false,
                "containers": [{"name": "agent", "image": "localhost/agent:dev"}],
            },
        });
        self.namespace.create(&serde_json::from_value::<Pod>(pod).expect("a pod")).await
    }

    /// Opens an attempt, as the controller does.
    pub async fn begin(&self, run: &SubagentRun, attempt: i32, pod: &Pod) -> SubagentRun {
        let uid = pod.uid().expect("a UID");
        self.set_status(
            &run.name_any(),
            json!({
                "attempt": attempt, "podUID": uid,
                "attempts": [{"number": attempt, "podName": pod.name_any(), "podUID": uid}],
            }),
        )
        .await
    }

    /// A run with a pod in its first attempt, and the pod's token.
    pub async fn started(&self, name: &str) -> (SubagentRun, Pod, String) {
        let run = self.run(name).await;
        let pod = self.pod(&format!("{name}-1"), &run).await;
        let run = self.begin(&run, 1, &pod).await;
        let token = self.token(&pod, AUDIENCE).await;
        (run, pod, token)
    }

    /// A write of the controllers to the status.
    pub async fn set_status(&self, name: &str, status: Value) -> SubagentRun {
        let params = PatchParams { field_manager: Some(names::CONTROLLER_MANAGER.into()), ..PatchParams::default() };
        let patch = Patch::Merge(json!({"status": status}));
        self.runs().patch_status(name, &params, &patch).await.expect("a status")
    }

    pub fn runs(&self) -> Api<SubagentRun> {
        self.namespace.api()
    }

    pub async fn live(&self, name: &str) -> SubagentRun {
        self.runs().get(name).await.expect("the run")
    }

    /// A token that is bound to a pod, as the kubelet would ask for it.
    pub async fn token(&self, pod: &Pod, audience: &str) -> String {
        let bound = BoundObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            name: Some(pod.name_any()),
            uid: pod.uid(),
        };
        self.request_token(audience, Some(bound)).await
    }

    pub async fn request_token(&self, audience: &str, bound_object_ref: Option<BoundObjectReference>) -> String {
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(vec![audience.into()]),
                bound_object_ref,
                expiration_seconds: Some(600),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let accounts: Api<ServiceAccount> = self.namespace.api();
        let answer = accounts.create_token_request("default", &PostParams::default(), &request).await;
        answer.expect("a token").status.and_then(|status| status.token).expect("its status")
    }
}
