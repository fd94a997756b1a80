//! Helm's own way with the chart: install, upgrade, rollback, uninstall, install again, with runs in the cluster.

use integration_tests::{
    commands::{chart, on},
    make_provider, make_run,
    own_api_server::OwnApiServer,
    snapshot::assert_snapshot,
};
use serde_json::json;
use std::path::PathBuf;

const RELEASE: &str = "subagent-operator";
const NAMESPACE: &str = "subagents-system";

struct Cluster {
    kubeconfig: PathBuf,
    _server: OwnApiServer,
}

impl Cluster {
    fn start() -> Self {
        let server = OwnApiServer::start();
        Self { kubeconfig: server.kubeconfig(), _server: server }
    }

    fn helm(&self, verb: &str, arguments: &[&str]) -> String {
        on(&self.kubeconfig, "helm", &[&[verb, RELEASE], arguments, &["--namespace", NAMESPACE]].concat())
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        on(&self.kubeconfig, "kubectl", arguments)
    }

    /// Applies an object from a file, as people do.
    fn apply(&self, object: serde_json::Value) {
        let path = self.kubeconfig.with_file_name("object.json");
        std::fs::write(&path, object.to_string()).expect("a file");
        self.kubectl(&["apply", "-f", &path.display().to_string()]);
    }

    /// The chart's cluster-wide and own objects that exist, by kind and name.
    fn objects(&self) -> Vec<String> {
        let kinds = "deployments,services,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,\
                     poddisruptionbudgets,validatingadmissionpolicies,validatingadmissionpolicybindings";
        let selector = format!("app.kubernetes.io/instance={RELEASE}");
        let text = self.kubectl(&["get", kinds, "--all-namespaces", "--selector", &selector, "--output", "name"]);
        let mut names: Vec<String> = text.lines().map(str::to_owned).collect();
        names.sort();
        names
    }
}

/// C7: a run and its status outlive upgrade, rollback, uninstall and the next install.
#[test]
fn c7_runs_go_on_through_upgrade_rollback_uninstall_and_reinstall() {
    let cluster = Cluster::start();
    let chart = chart().display().to_string();
    let notes = cluster.helm("install", &[&chart, "--create-namespace"]);
    let notes = notes.split_once("NOTES:\n").expect("notes").1;
    assert_snapshot("chart-notes", notes);
    let first = cluster.objects();
    assert!(first.contains(&format!("deployment.apps/{RELEASE}")), "{first:?}");

    cluster.apply(serde_json::to_value(make_provider("provider")).expect("a provider"));
    cluster.apply(serde_json::to_value(make_run("run")).expect("a run"));
    let status = json!({"status": {"phase": "Running", "attempt": 1, "podUID": "pod-1"}}).to_string();
    cluster.kubectl(&["patch", "sar", "run", "--subresource=status", "--type=merge", "--patch", &status]);
    let identity = || cluster.kubectl(&["get", "sar", "run", "--output", "jsonpath={.metadata.uid} {.status.phase}"]);
    let before = identity();
    assert!(before.ends_with(" Running"), "{before}");

    let claim = || cluster.kubectl(&["get", "pvc", "-n", NAMESPACE, "--output", "jsonpath={.items[*].metadata.uid}"]);
    let sessions = claim();
    cluster.helm("upgrade", &[&chart, "--set", "replicas=2,watchNamespaces={default},sessionStore.url=s3://bucket/x"]);
    let upgraded = cluster.objects();
    assert!(upgraded.contains(&format!("poddisruptionbudget.policy/{RELEASE}")), "{upgraded:?}");
    assert!(
        !upgraded.contains(&format!("clusterrolebinding.rbac.authorization.k8s.io/{RELEASE}-workload")),
        "{upgraded:?}"
    );
    cluster.helm("rollback", &["1"]);
    assert_eq!(cluster.objects(), first, "the rollback is the first release again");
    assert_eq!(identity(), before);

    // There is nothing here that could run the hook.
    let said = cluster.helm("uninstall", &["--no-hooks"]);
    assert!(said.contains("subagentruns.subagents.dev"), "it says what it keeps: {said}");
    assert_eq!(cluster.objects(), Vec::<String>::new(), "nothing but the definitions and the sessions is left");
    assert_eq!((identity(), claim()), (before.clone(), sessions.clone()));

    // The definitions that were kept are taken up again.
    cluster.helm("install", &[&chart]);
    assert_eq!(cluster.objects(), first);
    assert_eq!(identity(), before);
    cluster.helm("upgrade", &[&chart]);
    assert_eq!((identity(), claim()), (before, sessions), "the sessions of all children are those of before");
}

/// Without `crds.keep` an uninstall takes everything, as its documentation says.
#[test]
fn c7_without_keep_the_definitions_go_with_the_release() {
    let cluster = Cluster::start();
    cluster.helm("install", &[&chart().display().to_string(), "--create-namespace", "--set", "crds.keep=false"]);
    cluster.helm("uninstall", &["--wait", "--no-hooks"]);
    let left = cluster.kubectl(&["get", "crd", "--output", "name"]);
    assert!(!left.contains("subagents.dev"), "{left}");
}
