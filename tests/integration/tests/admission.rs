//! The chart's admission policies, with tenants who have only the rights a test gives them.

use integration_tests::{
    TestNamespace,
    chart::{POLICY_LIMIT, Release},
    client_as, make_provider, make_run, refusal,
};
use k8s_openapi::api::{
    apps::v1::ControllerRevision,
    core::v1::{ConfigMap, Pod},
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::fmt::Debug;
use subagent_crds::{
    SubagentProvider, SubagentRun,
    content::{ConfigMapKeyRef, Prompt},
    names,
    run::{Activation, ParentKind, ParentRef, SubagentRef},
};

/// A namespace with the chart's policies in force.
struct Scene {
    release: Release,
}

impl Scene {
    async fn new(hint: &str) -> Self {
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

    fn namespace(&self) -> &TestNamespace {
        &self.release.namespace
    }

    /// A client of a user of this scene.
    async fn client(&self, user: &str) -> Client {
        client_as(&self.user(user), &["system:authenticated"]).await
    }

    fn user(&self, user: &str) -> String {
        format!("{user}-of-{}", self.namespace().name)
    }

    /// Gives a user rights in the namespace: group, resource, verbs, names.
    async fn grant(&self, user: &str, rights: &[(&str, &str, &[&str], &[&str])]) {
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

    fn config_map(&self, metadata: Value) -> ConfigMap {
        serde_json::from_value(json!({"metadata": metadata, "data": {"one": "say one"}})).expect("a ConfigMap")
    }
}

fn activation_run(name: &str) -> SubagentRun {
    let mut run = make_run(name);
    run.spec.prompt = None;
    run.spec.activation =
        Some(Activation { subagent_ref: SubagentRef { name: "child".into(), uid: "u".into() }, epoch: 1 });
    run
}

fn prompt_from(name: &str, config_map: &str) -> SubagentRun {
    let mut run = make_run(name);
    let reference = ConfigMapKeyRef { name: config_map.into(), key: "one".into() };
    run.spec.prompt = Some(Prompt { config_map_key_ref: Some(reference), ..Prompt::default() });
    run
}

fn child_of(name: &str, kind: ParentKind, parent: &str) -> SubagentRun {
    let mut run = make_run(name);
    run.spec.parent_ref = Some(ParentRef { kind, name: parent.into(), uid: None });
    run
}

/// A dry-run create by someone: their object, or what they were told.
async fn dry_run<K>(client: &Client, scene: &Scene, object: &K) -> Result<K, String>
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

async fn patch<K>(client: &Client, scene: &Scene, name: &str, patch: Value) -> Result<K, String>
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
fn told<K: Debug>(outcome: Result<K, String>, words: &[&str]) {
    let message = outcome.expect_err("refused");
    for word in words {
        assert!(message.contains(word), "no '{word}' in: {message}");
    }
}

/// D3: a tenant with `create subagentruns` only.
#[tokio::test]
async fn d3_a_tenant_reads_no_config_map_through_a_run() {
    let scene = Scene::new("prompt").await;
    let runs: (&str, &str, &[&str], &[&str]) = ("subagents.dev", "subagentruns", &["create"], &[]);
    scene.grant("tenant", &[runs]).await;
    scene.grant("reader", &[runs, ("", "configmaps", &["get"], &["mine"])]).await;
    let (tenant, reader) = (scene.client("tenant").await, scene.client("reader").await);
    dry_run(&tenant, &scene, &make_run("plain")).await.expect("a prompt of one's own");
    told(
        dry_run(&tenant, &scene, &prompt_from("run", "mine")).await,
        &[
            "SubagentRun run:",
            "spec.prompt.configMapKeyRef",
            "get ConfigMap mine",
            &scene.namespace().name,
            "write the prompt into spec.prompt.text",
        ],
    );
    dry_run(&reader, &scene, &prompt_from("run", "mine")).await.expect("a ConfigMap the tenant may get");
    told(dry_run(&reader, &scene, &prompt_from("run", "other")).await, &["get ConfigMap other"]);
}

/// D1 D3: a parent is named only by who may update it.
#[tokio::test]
async fn d3_a_tenant_hangs_no_child_on_a_parent_it_may_not_update() {
    let scene = Scene::new("parent").await;
    scene.grant("tenant", &[("subagents.dev", "subagentruns", &["create", "get", "patch"], &[])]).await;
    scene
        .grant(
            "delegate",
            &[
                ("subagents.dev", "subagentruns", &["create"], &[]),
                ("subagents.dev", "subagentruns", &["update"], &["mine"]),
                ("subagents.dev", "subagents", &["update"], &["child"]),
            ],
        )
        .await;
    let (tenant, delegate) = (scene.client("tenant").await, scene.client("delegate").await);
    told(
        dry_run(&tenant, &scene, &child_of("run", ParentKind::SubagentRun, "mine")).await,
        &["SubagentRun run:", "spec.parentRef", "update SubagentRun mine", "leave spec.parentRef out"],
    );
    dry_run(&delegate, &scene, &child_of("run", ParentKind::SubagentRun, "mine")).await.expect("its own parent");
    told(
        dry_run(&delegate, &scene, &child_of("run", ParentKind::SubagentRun, "other")).await,
        &["update SubagentRun other"],
    );
    dry_run(&delegate, &scene, &child_of("run", ParentKind::Subagent, "child")).await.expect("its own child");
    told(dry_run(&delegate, &scene, &child_of("run", ParentKind::Subagent, "mine")).await, &["update Subagent mine"]);
}

/// D3: activations are the operator's, their inbox too.
#[tokio::test]
async fn d3_only_the_operator_writes_activations() {
    let scene = Scene::new("activation").await;
    let admin = scene.namespace().client.clone();
    told(
        dry_run(&admin, &scene, &activation_run("run")).await,
        &["SubagentRun run:", "spec.activation is set by the operator alone", "set spec.prompt"],
    );
    // The chart gives the operator no right to create runs before there are continuable children; here it has one.
    scene.grant("operator", &[("subagents.dev", "subagentruns", &["create", "update", "patch"], &[])]).await;
    let binding = json!({"subjects": [{"kind": "ServiceAccount", "name": scene.release.name, "namespace": scene.namespace().name}]});
    let bindings: Api<RoleBinding> = scene.namespace().api();
    bindings.patch("operator", &PatchParams::default(), &Patch::Merge(&binding)).await.expect("a binding");
    let operator = client_as(&scene.release.operator(), &["system:serviceaccounts", "system:authenticated"]).await;
    let api: Api<SubagentRun> = Api::namespaced(operator.clone(), &scene.namespace().name);
    let (api, run) = (&api, &activation_run("run"));
    scene
        .namespace()
        .eventually("the operator creates an activation", POLICY_LIMIT, async || {
            api.create(&PostParams::default(), run).await.map(drop).map_err(|error| error.to_string())
        })
        .await;
    let message = json!({"spec": {"messages": [{"id": "m1", "text": "go on"}]}});
    let refused =
        scene.namespace().api::<SubagentRun>().patch("run", &PatchParams::default(), &Patch::Merge(&message)).await;
    // Today the schema refuses every message, before any policy is asked; the policy must not let one through either.
    assert!(matches!(refusal::status(refused.expect_err("refused")).code, 403 | 422));
    let other_epoch = json!({"spec": {"activation": {"epoch": 2}}});
    told(
        patch::<SubagentRun>(&admin, &scene, "run", other_epoch.clone()).await,
        &["spec.activation is changed by the operator alone"],
    );
    patch::<SubagentRun>(&operator, &scene, "run", other_epoch).await.expect("the operator");
    // Cancelling an activation is anyone's who may update the run (c43).
    patch::<SubagentRun>(&admin, &scene, "run", json!({"spec": {"cancel": true}})).await.expect("a cancel");
}

/// D3: a provider's template becomes pods.
#[tokio::test]
async fn d3_a_provider_needs_the_right_to_create_pods() {
    let scene = Scene::new("provider").await;
    let providers: (&str, &str, &[&str], &[&str]) =
        ("subagents.dev", "subagentproviders", &["create", "get", "update", "patch"], &[]);
    scene.grant("tenant", &[providers]).await;
    scene.grant("deployer", &[providers, ("", "pods", &["create"], &[])]).await;
    let (tenant, deployer) = (scene.client("tenant").await, scene.client("deployer").await);
    told(
        dry_run(&tenant, &scene, &make_provider("provider")).await,
        &[
            "SubagentProvider provider:",
            "create pods in namespace",
            &scene.namespace().name,
            "spec.template becomes pods",
            "the verb create on pods",
        ],
    );
    let api: Api<SubagentProvider> = Api::namespaced(deployer.clone(), &scene.namespace().name);
    api.create(&PostParams::default(), &make_provider("provider")).await.expect("who may create pods");
    let image = json!({"spec": {"template": {"spec": {"containers": [{"name": "agent", "image": "localhost/other:dev", "command": ["/agent"]}]}}}});
    told(patch::<SubagentProvider>(&tenant, &scene, "provider", image.clone()).await, &["create pods in namespace"]);
    patch::<SubagentProvider>(&deployer, &scene, "provider", image).await.expect("who may create pods");
    // What is not spec needs no more than the right to patch.
    patch::<SubagentProvider>(&tenant, &scene, "provider", json!({"metadata": {"labels": {"team": "a"}}}))
        .await
        .expect("a label");
}

/// What makes an object look like the operator's: a label, an annotation, an owner.
fn marks() -> [(Value, &'static str); 3] {
    [
        (json!({"labels": {names::RUN_LABEL: "run", "app": "x"}}), "labels under subagents.dev/"),
        (json!({"annotations": {names::WORKER_CONFIG_ANNOTATION: "{}"}}), "annotations under subagents.dev/"),
        (
            json!({"ownerReferences": [{"apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentRun", "name": "run", "uid": "u", "controller": true}]}),
            "owner references to kinds of subagents.dev",
        ),
    ]
}

fn pod(metadata: Value) -> Pod {
    serde_json::from_value(
        json!({"metadata": metadata, "spec": {"containers": [{"name": "agent", "image": "localhost/agent:dev"}]}}),
    )
    .expect("a pod")
}

/// D1 D2: nobody but the operator makes pods, ConfigMaps or revisions that look like its own, or makes them look so later.
#[tokio::test]
async fn d1_d2_only_the_operator_marks_objects_as_its_own() {
    let scene = Scene::new("marks").await;
    let all: &[&str] = &["create", "get", "update", "patch", "delete"];
    scene
        .grant(
            "tenant",
            &[("", "pods", all, &[]), ("", "configmaps", all, &[]), ("apps", "controllerrevisions", all, &[])],
        )
        .await;
    let tenant = scene.client("tenant").await;
    let operator = client_as(&scene.release.operator(), &["system:serviceaccounts", "system:authenticated"]).await;
    for (mark, words) in marks() {
        let mut metadata = mark.clone();
        metadata["name"] = json!("forged");
        told(dry_run(&tenant, &scene, &pod(metadata.clone())).await, &["Pod forged:", words]);
        told(dry_run(&tenant, &scene, &scene.config_map(metadata.clone())).await, &["ConfigMap forged:", words]);
        let revision: ControllerRevision =
            serde_json::from_value(json!({"metadata": metadata, "revision": 1, "data": {}})).expect("a revision");
        told(dry_run(&tenant, &scene, &revision).await, &["ControllerRevision forged:", words]);
        dry_run(&operator, &scene, &pod(metadata.clone())).await.expect("the operator's pod");
        dry_run(&operator, &scene, &scene.config_map(metadata.clone())).await.expect("the operator's ConfigMap");
        dry_run(&operator, &scene, &revision).await.expect("the operator's revision");
    }
    // Later: nothing of it can be added, changed or taken from an object, while everything else goes on as ever.
    let mut own = marks().into_iter().fold(json!({"name": "own"}), |mut all, (mark, _)| {
        for (key, value) in mark.as_object().expect("a mark") {
            all[key] = value.clone();
        }
        all
    });
    own["finalizers"] = json!([names::POD_FINALIZER]);
    Api::namespaced(operator, &scene.namespace().name)
        .create(&PostParams::default(), &pod(own))
        .await
        .expect("the operator's pod");
    Api::namespaced(tenant.clone(), &scene.namespace().name)
        .create(&PostParams::default(), &pod(json!({"name": "plain"})))
        .await
        .expect("a tenant's pod");
    for (mark, words) in marks() {
        told(patch::<Pod>(&tenant, &scene, "plain", json!({"metadata": mark})).await, &["Pod plain:", words]);
    }
    for change in [
        json!({"labels": {names::RUN_LABEL: "other"}}),
        json!({"labels": {names::RUN_LABEL: null}}),
        json!({"labels": {names::RUN_UID_LABEL: "u"}}),
        json!({"annotations": {names::WORKER_CONFIG_ANNOTATION: "{\"url\": \"wss://elsewhere\"}"}}),
        json!({"annotations": {names::GATEWAY_ROOTS_ANNOTATION: "mine"}}),
        json!({"ownerReferences": [{"apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentRun", "name": "run", "uid": "other", "controller": true}]}),
    ] {
        told(patch::<Pod>(&tenant, &scene, "own", json!({"metadata": change})).await, &["Pod own:", "operator alone"]);
    }
    for change in [
        json!({"labels": {"app": "y", "team": "a"}}),
        json!({"annotations": {"note": "seen"}}),
        // Garbage collection clears blockOwnerDeletion and, when dependents are orphaned, owners.
        json!({"ownerReferences": [{"apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentRun", "name": "run", "uid": "u", "controller": true, "blockOwnerDeletion": false}]}),
        json!({"ownerReferences": null}),
        // The documented way out when no operator is left.
        json!({"finalizers": null}),
    ] {
        patch::<Pod>(&tenant, &scene, "own", json!({"metadata": change.clone()}))
            .await
            .unwrap_or_else(|e| panic!("{change}: {e}"));
    }
}

/// What kubelets and controllers do to an operator's pod is none of the policies' business.
#[tokio::test]
async fn kubelets_and_controllers_are_not_hindered() {
    let scene = Scene::new("kubelet").await;
    let operator = client_as(&scene.release.operator(), &["system:serviceaccounts", "system:authenticated"]).await;
    let own: Pod =
        pod(json!({"name": "own", "labels": {names::RUN_LABEL: "run"}, "finalizers": [names::POD_FINALIZER]}));
    let created = Api::<Pod>::namespaced(operator, &scene.namespace().name)
        .create(&PostParams::default(), &own)
        .await
        .expect("a pod");
    let pods: Api<Pod> = scene.namespace().api();
    let status = json!({"status": {"phase": "Failed", "containerStatuses": [{"name": "agent", "image": "x", "imageID": "x", "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 137}}}]}});
    pods.patch_status("own", &PatchParams::default(), &Patch::Merge(&status)).await.expect("a kubelet's status");
    let collector = client_as("system:serviceaccount:kube-system:generic-garbage-collector", &["system:masters"]).await;
    let api: Api<Pod> = Api::namespaced(collector, &scene.namespace().name);
    api.delete("own", &DeleteParams::default()).await.expect("a delete");
    let finalizers = json!({"metadata": {"finalizers": null, "uid": created.uid()}});
    api.patch("own", &PatchParams::default(), &Patch::Merge(&finalizers)).await.expect("a finalizer off");
    // Objects without the operator's marks are as free as ever.
    let plain = scene.config_map(json!({"name": "plain", "labels": {"app": "x"}, "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "u"}]}));
    dry_run(&scene.namespace().client, &scene, &plain).await.expect("a ConfigMap of others");
}
