//! D3: what a run or provider names must be within the rights of who writes it.

use crate::scene::{Scene, activation_run, dry_run, patch, told};
use integration_tests::{chart::POLICY_LIMIT, claim_spec, client_as, make_provider, make_run, make_subagent, refusal};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use subagent_crds::{
    Subagent, SubagentProvider, SubagentRun,
    content::{ConfigMapKeyRef, Prompt},
    names,
    run::{ParentKind, ParentRef},
    subagent::Workspace,
};

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

/// D3: the same for children, and the claim of their workspace is made in their creator's name.
#[tokio::test]
async fn d3_a_tenant_gets_no_more_from_a_child_than_it_may_do_itself() {
    let scene = Scene::new("child").await;
    let children: (&str, &str, &[&str], &[&str]) = ("subagents.dev", "subagents", &["create", "get", "patch"], &[]);
    scene.grant("tenant", &[children]).await;
    let (claims, mine) = (("", "persistentvolumeclaims", &["create"] as &[&str], &[] as &[&str]), ["mine"]);
    scene.grant("owner", &[children, claims, ("subagents.dev", "subagents", &["update"], &mine)]).await;
    let (tenant, owner) = (scene.client("tenant").await, scene.client("owner").await);
    let plain = make_subagent("child");
    let mut below = plain.clone();
    below.spec.parent_ref = Some(ParentRef { kind: ParentKind::Subagent, name: "mine".into(), uid: None });
    let mut with_workspace = plain.clone();
    with_workspace.spec.workspace = Some(Workspace { claim_template: claim_spec() });
    // The policy of children has nothing an administrator could break.
    let (probed, tried, within) = (&tenant, &below, &scene);
    scene
        .namespace()
        .eventually("the policy of children is in force", POLICY_LIMIT, async || {
            dry_run(probed, within, tried).await.map_or(Ok(()), |_| Err("a foreign parent was accepted".into()))
        })
        .await;
    dry_run(&tenant, &scene, &plain).await.expect("a child of nobody");
    told(
        dry_run(&tenant, &scene, &below).await,
        &["Subagent child:", "spec.parentRef", "update Subagent mine", "leave spec.parentRef out"],
    );
    dry_run(&owner, &scene, &below).await.expect("its own parent");
    told(
        dry_run(&tenant, &scene, &with_workspace).await,
        &["Subagent child:", "spec.workspace", "create PersistentVolumeClaims", "leave spec.workspace out"],
    );
    dry_run(&owner, &scene, &with_workspace).await.expect("who may create claims");
    // Speaking to a child is for whoever may change it.
    scene.namespace().create(&plain).await;
    let more = json!({"spec": {"messages": [{"id": "m1", "text": "hello"}, {"id": "m2", "text": "go on"}]}});
    patch::<Subagent>(&tenant, &scene, "child", more).await.expect("a message");
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
    let refused = refusal::status(refused.expect_err("refused"));
    assert_eq!(refused.code, 403, "{}", refused.message);
    assert!(refused.message.contains("append the message to spec.messages of its Subagent"), "{}", refused.message);
    let closed = json!({"spec": {"activation": {"inbox": "Closed"}}});
    told(
        patch::<SubagentRun>(&admin, &scene, "run", closed.clone()).await,
        &["spec.activation is changed by the operator alone"],
    );
    patch::<SubagentRun>(&operator, &scene, "run", closed).await.expect("the operator");
    for labels in [json!({names::SUBAGENT_UID_LABEL: null}), json!({names::SUBAGENT_LABEL: "another"})] {
        told(
            patch::<SubagentRun>(&admin, &scene, "run", json!({"metadata": {"labels": labels}})).await,
            &["labels subagents.dev/subagent and subagents.dev/subagent-uid of an activation are the operator's"],
        );
    }
    patch::<SubagentRun>(&admin, &scene, "run", json!({"metadata": {"labels": {"team": "a"}}})).await.expect("a label");
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
