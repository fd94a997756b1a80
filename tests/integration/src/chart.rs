//! The chart, rendered and applied without Helm's own bookkeeping.

use crate::{
    TestNamespace,
    commands::{chart, helm},
};
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::Value;
use std::time::Duration;

/// A release of a name of its own, in a test's namespace and for that namespace alone: its policies bind nobody else.
pub struct Release {
    /// Full name of its objects.
    pub name: String,
    /// What it consists of.
    pub objects: Vec<Value>,
    /// Where it is and works.
    pub namespace: TestNamespace,
}

/// Kinds that are worth applying to an API server without controllers. The definitions are there already.
const APPLIED: [&str; 8] = [
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "Service",
];

/// How long until policies are in force: the API server learns of them by a watch and compiles them.
pub const POLICY_LIMIT: Duration = Duration::from_secs(30);

impl Release {
    /// Renders the chart for a namespace and applies it.
    pub async fn install(namespace: TestNamespace) -> Self {
        let name = format!("so-{}", namespace.name);
        // The name of a Service has at most 63 characters.
        let name = name.chars().take(45).collect::<String>().trim_end_matches('-').to_owned();
        let watched = format!("watchNamespaces={{{}}}", namespace.name);
        // Aggregated rights would reach every test's users.
        let set = [
            "--set",
            &format!("fullnameOverride={name}"),
            "--set",
            &watched,
            "--set",
            "rbac.aggregateToDefaultRoles=false",
        ];
        let objects = render(&namespace.name, &set);
        for object in &objects {
            if APPLIED.contains(&object["kind"].as_str().unwrap_or_default()) {
                apply(&namespace.client, object).await;
            }
        }
        Self { name, objects, namespace }
    }

    /// User name of the operator.
    pub fn operator(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace.name, self.name)
    }
}

/// All objects of the chart with these arguments to `helm template`.
pub fn render(namespace: &str, arguments: &[&str]) -> Vec<Value> {
    let chart = chart().display().to_string();
    let text = helm(&[&["template", "subagent-operator", &chart, "--namespace", namespace], arguments].concat());
    let documents = text.split("\n---\n").map(|document| document.trim_start_matches("---\n"));
    let objects = documents.map(|document| serde_saphyr::from_str::<Value>(document).expect("rendered YAML"));
    objects.filter(|object| !object.is_null()).collect()
}

/// The object of a kind and name.
///
/// # Panics
/// When there is none.
pub fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

async fn apply(client: &Client, object: &Value) {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (version, kind, name, namespace) =
        (text("/apiVersion"), text("/kind"), text("/metadata/name"), text("/metadata/namespace"));
    let (group, version) = version.split_once('/').unwrap_or(("", &version));
    let mut resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
    if kind.ends_with("Policy") {
        resource.plural = "validatingadmissionpolicies".into();
    }
    let api: Api<DynamicObject> = if namespace.is_empty() {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), &namespace, &resource)
    };
    let params = PatchParams::apply("integration-tests").force();
    api.patch(&name, &params, &Patch::Apply(object)).await.unwrap_or_else(|e| panic!("apply {kind} {name}: {e}"));
}
