//! What a test has: a namespace with the policies in force, users with the rights it gives them, and what they are told.

use integration_tests::{
    TestNamespace,
    chart::{POLICY_LIMIT, Release},
    claim_spec, client_as, make_provider, make_run, refusal,
};
use k8s_openapi::api::{
    core::v1::{ConfigMap, PersistentVolumeClaim, Pod},
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::fmt::Debug;
use subagent_crds::{
    SubagentRun, names,
    run::{Activation, SubagentRef},
};

/// A namespace with the chart's policies in force.
pub struct Scene {
    /// The release.
    pub release: Release,
}

impl Scene {
    pub async fn new(hint: &str) -> Self {
        let release = Release::install(TestNamespace::new(hint).await).await;
        let scene = Self { release };
        // The administrator breaks each policy until each refuses.
        let admin = scene.namespace().client.clone();
        let scene_ref = &scene;
        scene
            .namespace()
            .eventually("the policies are in force", POLICY_LIMIT, async || {
                let marked = scene_ref.config_map(json!({"name": "probe", "labels": {names::RUN_LABEL: "x"}}));
                let activation = activation_run("probe");
                let owned = dry_run(&admin, scene_ref, &marked).await;
                let runs = dry_run(&admin, scene_ref, &activation).await;
                match (owned, runs) {
                    (Err(_), Err(_)) => Ok(()),
                    (owned, runs) => Err(format!(
                        "marked ConfigMap refused: {}, activation refused: {}",
                        owned.is_err(),
                        runs.is_err()
                    )),
                }
            })
            .await;
        // The third has nothing an administrator could break.
        scene.grant("probe", &[("subagents.dev", "subagentproviders", &["create"], &[])]).await;
        let probe = scene.client("probe").await;
        scene
            .namespace()
            .eventually("the policy of providers is in force", POLICY_LIMIT, async || {
                match dry_run(&probe, scene_ref, &make_provider("probe")).await {
                    Err(message) if message.contains("needs the right to create pods") => Ok(()),
                    Err(message) => Err(message),
                    Ok(_) => Err("a provider was accepted".into()),
                }
            })
            .await;
        scene
    }

    pub fn namespace(&self) -> &TestNamespace {
        &self.release.namespace
    }

    /// A client of a user of this scene.
    pub async fn client(&self, user: &str) -> Client {
        client_as(&self.user(user), &["system:authenticated"]).await
    }

    pub fn user(&self, user: &str) -> String {
        format!("{user}-of-{}", self.namespace().name)
    }

    /// Gives a user rights in the namespace: group, resource, verbs, names.
    pub async fn grant(&self, user: &str, rights: &[(&str, &str, &[&str], &[&str])]) {
        let rules: Vec<Value> = rights
            .iter()
            .map(|(group, resource, verbs, names)| {
                json!({"apiGroups": [group], "resources": [resource], "verbs": verbs, "resourceNames": names})
            })
            .collect();
        let role: Role = serde_json::from_value(json!({"metadata": {"name": user}, "rules": rules})).expect("a role");
        let binding: RoleBinding = serde_json::from_value(json!({
            "metadata": {"name": user},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": self.user(user)}],
        }))
        .expect("a binding");
        self.namespace().create(&role).await;
        self.namespace().create(&binding).await;
    }

    pub fn claim(&self, metadata: Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": metadata, "spec": claim_spec()})).expect("a claim")
    }

    pub fn config_map(&self, metadata: Value) -> ConfigMap {
        serde_json::from_value(json!({"metadata": metadata, "data": {"one": "say one"}})).expect("a ConfigMap")
    }
}

pub fn activation_run(name: &str) -> SubagentRun {
    let mut run = make_run(name);
    run.spec.prompt = None;
    run.metadata.labels = Some(
        [(names::SUBAGENT_LABEL, "child"), (names::SUBAGENT_UID_LABEL, "u")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
    );
    run.spec.activation = Some(Activation {
        subagent_ref: SubagentRef { name: "child".into(), uid: "u".into() },
        epoch: 1,
        ..Activation::default()
    });
    run
}

/// A dry-run create by someone: their object, or what they were told.
pub async fn dry_run<K>(client: &Client, scene: &Scene, object: &K) -> Result<K, String>
where
    K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Serialize + Debug,
    K::DynamicType: Default,
{
    let api: Api<K> = Api::namespaced(client.clone(), &scene.namespace().name);
    let params = PostParams { dry_run: true, ..PostParams::default() };
    api.create(&params, object).await.map_err(|error| {
        let status = refusal::status(error);
        assert_eq!(status.code, 403, "refused for another reason: {}", status.message);
        status.message
    })
}

pub async fn patch<K>(client: &Client, scene: &Scene, name: &str, patch: Value) -> Result<K, String>
where
    K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    K::DynamicType: Default,
{
    let api: Api<K> = Api::namespaced(client.clone(), &scene.namespace().name);
    api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.map_err(|error| {
        let status = refusal::status(error);
        assert_eq!(status.code, 403, "refused for another reason: {}", status.message);
        status.message
    })
}

/// Asserts that someone was told all of this.
pub fn told<K: Debug>(outcome: Result<K, String>, words: &[&str]) {
    let message = outcome.expect_err("refused");
    for word in words {
        assert!(message.contains(word), "no '{word}' in: {message}");
    }
}

/// Garbage collection, with the rights Kubernetes gives it and no more.
pub async fn garbage_collector() -> Client {
    let groups = ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"];
    client_as("system:serviceaccount:kube-system:generic-garbage-collector", &groups).await
}

/// A pod with this metadata.
pub fn pod(metadata: Value) -> Pod {
    serde_json::from_value(
        json!({"metadata": metadata, "spec": {"containers": [{"name": "agent", "image": "localhost/agent:dev"}]}}),
    )
    .expect("a pod")
}
