//! The cluster under test and the operator in it.

use crate::commands::{cluster_dir, helm, kubeconfig, kubectl, output, repository};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Namespace, PersistentVolumeClaim, Pod},
};
use kube::{
    Api, Client, Config,
    api::{ListParams, LogParams, Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use std::{
    net::{IpAddr, Ipv4Addr},
    time::{Duration, Instant},
};
use subagent_crds::names;
use tokio::sync::OnceCell;

/// Namespace and Helm release of the operator.
pub const OPERATOR_NAMESPACE: &str = "subagents-system";
/// Name of the release, of its Deployment and of its service account.
pub const RELEASE: &str = "subagent-operator";
/// Name of the operator in the audit log.
pub const OPERATOR_USER: &str = "system:serviceaccount:subagents-system:subagent-operator";
/// The claim for checkpoints. The one node's volumes may be mounted by several pods.
const SESSIONS_CLAIM: &str = "e2e-sessions";
/// How long the pods of finished runs are kept here: long enough to read their logs, short enough to wait for.
pub const POD_TTL_SECONDS: u64 = 45;

/// How long somebody else's operation on the release is waited for: an upgrade that waits for its pods takes seconds.
const OTHERS_OPERATION: Duration = Duration::from_secs(60);

static INSTALLED: OnceCell<()> = OnceCell::const_new();

/// A client with all rights, after the chart was installed. A client belongs to the runtime it was made in, so every
/// test makes its own.
pub async fn client() -> Client {
    let client = administrator().await;
    INSTALLED.get_or_init(|| install(&client)).await;
    client
}

async fn administrator() -> Client {
    let path = kubeconfig();
    let file = Kubeconfig::read_from(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; start the cluster with `make load-images`", path.display()));
    let config =
        Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("a usable kubeconfig");
    Client::try_from(config).expect("a client")
}

/// Installs or upgrades the chart and waits for the operator, in a namespace that enforces `restricted` like all others.
///
/// # Panics
/// When the operator does not become ready.
pub async fn install(client: &Client) {
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": OPERATOR_NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    });
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let params = PatchParams::apply("e2e-tests").force();
    namespaces.patch(OPERATOR_NAMESPACE, &params, &Patch::Apply(namespace)).await.expect("the operator's namespace");
    // Of the tests, not of the release: every test of several replicas needs one that all of them mount.
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": SESSIONS_CLAIM},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), OPERATOR_NAMESPACE);
    claims.patch(SESSIONS_CLAIM, &params, &Patch::Apply(claim)).await.expect("a claim for the sessions");
    let sessions = format!(
        "sessionStore.persistence.existingClaim={SESSIONS_CLAIM},sessionStore.persistence.accessMode=ReadWriteMany"
    );
    let chart = repository().join("charts/subagent-operator");
    let build = format!("podAnnotations.build=sha256-{}", image_id("localhost/subagent-operator:dev"));
    let ttl = format!("podTTLSeconds={POD_TTL_SECONDS}");
    let chart = chart.to_str().expect("a path in UTF-8");
    let mut arguments = vec!["upgrade", "--install", RELEASE, chart, "--namespace", OPERATOR_NAMESPACE];
    // A new build has the name of the one before it: its digest makes the pod start anew.
    arguments.extend(["--set", &ttl, "--set", &sessions, "--set-string", &build, "--wait", "--timeout", "120s"]);
    let deadline = Instant::now() + OTHERS_OPERATION;
    loop {
        let output = output("helm", &arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            return;
        }
        assert!(errors.contains("another operation"), "helm {}: {errors}", arguments.join(" "));
        if Instant::now() > deadline {
            // Whoever began it was broken off; nothing else ends its operation.
            helm(&["uninstall", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--wait"]);
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// Upgrades the release to these values, the others as they are, and waits.
pub fn upgrade(values: &[&str]) {
    let chart = repository().join("charts/subagent-operator");
    let chart = chart.to_str().expect("a path in UTF-8");
    let mut arguments = vec!["upgrade", RELEASE, chart, "--namespace", OPERATOR_NAMESPACE, "--reuse-values"];
    arguments.extend(values.iter().flat_map(|value| ["--set", value]));
    arguments.extend(["--wait", "--timeout", "120s"]);
    helm(&arguments);
}

/// Goes back to the release before the last upgrade, and waits.
pub fn roll_back() {
    helm(&ROLLBACK);
}

const ROLLBACK: [&str; 7] = ["rollback", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--wait", "--timeout", "120s"];

/// A release with other values; the values of before are back when this is dropped.
pub struct Upgraded(());

impl Upgraded {
    /// Upgrades to these values, the others as they are, and waits.
    pub fn to(values: &[&str]) -> Self {
        // First, so that also an upgrade that fails is taken back.
        let upgraded = Self(());
        upgrade(values);
        upgraded
    }

    /// No operator at all.
    pub fn to_none() -> Self {
        let none = Self::to(&["replicas=0"]);
        let of_operator = ["-l", "app.kubernetes.io/name=subagent-operator", "--namespace", OPERATOR_NAMESPACE];
        kubectl(&[&["wait", "pod", "--for=delete", "--timeout=120s"], &of_operator[..]].concat());
        none
    }
}

impl Drop for Upgraded {
    fn drop(&mut self) {
        // A second panic would end the process, with what the first one has to say.
        if std::thread::panicking() {
            output("helm", &ROLLBACK);
        } else {
            roll_back();
        }
    }
}

/// The digest of a loaded image.
fn image_id(name: &str) -> String {
    let path = cluster_dir().join("images.json");
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; load the images with `make load-images`", path.display()));
    let images: Value = serde_json::from_str(&text).expect("the loaded images");
    images[name].as_str().unwrap_or_else(|| panic!("image {name} is not loaded; `make load-images` does it")).to_owned()
}

/// This host's address as pods see it, where collectors listen. It follows from the cluster's number, which is in its
/// state (`hack/cluster.sh status` prints the address).
pub fn host_address() -> IpAddr {
    let path = cluster_dir().join("cluster.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let state: Value = serde_json::from_str(&text).expect("the cluster's state");
    let slot = state["slot"].as_u64().and_then(|slot| u8::try_from(slot).ok()).expect("the cluster's number");
    IpAddr::V4(Ipv4Addr::new(10, 201, slot, 1))
}

/// The operator's pods that are not being deleted.
pub async fn operator_pods(client: &Client) -> Vec<Pod> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), OPERATOR_NAMESPACE);
    let params = ListParams::default().labels("app.kubernetes.io/name=subagent-operator");
    let pods = pods.list(&params).await.expect("the operator's pods").items;
    pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect()
}

/// Since when the chart is installed, as the audit log writes times.
///
/// # Panics
/// When it is not.
pub async fn installed_since(client: &Client) -> String {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), OPERATOR_NAMESPACE);
    let deployment = deployments.get(RELEASE).await.expect("the operator's Deployment");
    deployment.metadata.creation_timestamp.expect("a time").0.to_string()
}

/// The end of the operator's log, from all its pods.
pub async fn operator_log(client: &Client, lines: i64) -> String {
    let pods: Api<Pod> = Api::namespaced(client.clone(), OPERATOR_NAMESPACE);
    let mut text = String::new();
    for pod in operator_pods(client).await {
        let name = pod.metadata.name.unwrap_or_default();
        let params = LogParams { tail_lines: Some(lines), ..LogParams::default() };
        let log = pods.logs(&name, &params).await.unwrap_or_else(|error| error.to_string());
        text.push_str(&format!("--- log of {name}\n{log}\n"));
    }
    text
}

/// Label selector of everything of a run.
pub fn of_run(run: &str) -> String {
    format!("{}={run}", names::RUN_LABEL)
}
