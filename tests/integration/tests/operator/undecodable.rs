//! C1: objects that were written under an older schema and do not decode any more.

use crate::{
    audit::{Mark, lines},
    replica::Replica,
    tree::child,
    world::{LIMIT, World, end, status},
};
use clap::Parser;
use integration_tests::{TestNamespace, commands::repository, make_provider, make_run};
use k8s_openapi::{
    api::{apps::v1::ControllerRevision, core::v1::Pod, events::v1::Event},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    jiff::Timestamp,
};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, NamespaceResourceScope},
    runtime::events::{Recorder, Reporter},
};
use serde::Serialize;
use serde_json::{Value, json};
use std::{fmt::Debug, sync::Arc, time::Duration};
use subagent_crds::{Phase, SubagentProvider, SubagentRun, SubagentRunStatus, conditions, content::Prompt, names};
use subagent_operator::{
    announcements::Announcements,
    context::Context,
    metrics::Metrics,
    provider::{revision, sweep},
    settings::Settings,
    watching::Scope,
};
use tokio::sync::{OnceCell, watch};

/// A changed definition is in force within a second or two.
const IN_FORCE: Duration = Duration::from_secs(60);
/// Name of the object of each kind that does not decode.
const OLD: &str = "from-an-older-schema";

/// A run of which the API server takes no change: a rule of its definition cannot be evaluated. It has our finalizer.
const FROZEN: &str = "frozen";
/// A run that decodes, and is above those that do not.
const PARENT: &str = "is-cancelled";
/// Longer than a parent waits before it looks at those below it again.
const A_LOOK: Duration = Duration::from_secs(12);
/// How long nothing is to happen to what is left alone.
const KEPT: Duration = Duration::from_secs(4);

/// Their namespace.
static NAMESPACE: OnceCell<String> = OnceCell::const_new();

/// Writes the old objects, once and before any other test of this program: the definitions hold for everyone.
pub async fn prepared() -> &'static str {
    NAMESPACE
        .get_or_init(|| async {
            let namespace = TestNamespace::new("undecodable").await;
            let mut parent = make_run(PARENT);
            parent.spec.prompt = Some(Prompt { text: Some("!hang".into()), ..Prompt::default() });
            let parent = namespace.create(&parent).await.uid().expect("a UID");
            write_old(&namespace, &[make_provider(OLD)], &json!({})).await;
            let lineage = json!({"depth": 2, "parentUID": parent, "rootUID": parent, "ancestors": [parent]});
            let mut frozen = make_run(FROZEN);
            frozen.metadata.finalizers = Some(vec![names::RUN_FINALIZER.into()]);
            let status = json!({"status": {"phase": "Running", "lineage": lineage}});
            write_old(&namespace, &[make_run(OLD), frozen], &status).await;
            namespace.name
        })
        .await
}

/// Creates the objects with a number for a description, and this status, which takes a definition that says so.
async fn write_old<K>(namespace: &TestNamespace, objects: &[K], status: &Value)
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Serialize + Debug,
{
    let client = &namespace.client;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = format!("{}.{}", K::plural(&()), K::group(&()));
    let file = repository().join("crds").join(format!("{}.yaml", K::plural(&())));
    let current: Value = serde_saphyr::from_str(&std::fs::read_to_string(file).expect("a definition")).expect("YAML");
    let mut old = current.clone();
    old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["description"] =
        json!({"type": "integer"});
    let params = PatchParams::apply("integration-tests").force();

    definitions.patch(&name, &params, &Patch::Apply(&old)).await.expect("an older definition");
    let mut body = Value::Null;
    for object in objects {
        body = serde_json::to_value(object).expect("JSON");
        body["spec"]["description"] = json!(5);
        let body = &body;
        namespace
            .eventually("the older definition", IN_FORCE, async || create::<K>(namespace, body, false).await)
            .await;
        if status.get("status").is_some() {
            let (object, patch) = (object.meta().name.clone().unwrap_or_default(), Patch::Merge(status));
            untyped::<K>(namespace).patch_status(&object, &PatchParams::default(), &patch).await.expect("a status");
        }
    }
    definitions.patch(&name, &params, &Patch::Apply(&current)).await.expect("the definition of now");
    body["metadata"]["name"] = json!("another");
    namespace
        .eventually("the definition of now", IN_FORCE, async || match create::<K>(namespace, &body, true).await {
            Err(error) if error.contains("spec.description") => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
}

fn untyped<K>(namespace: &TestNamespace) -> Api<DynamicObject>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    Api::namespaced_with(namespace.client.clone(), &namespace.name, &ApiResource::erase::<K>(&()))
}

async fn create<K>(namespace: &TestNamespace, body: &Value, dry_run: bool) -> Result<(), String>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    let object = serde_json::from_value(body.clone()).expect("an object");
    let params = PostParams { dry_run, ..PostParams::default() };
    untyped::<K>(namespace).create(&params, &object).await.map(drop).map_err(|error| error.to_string())
}

/// A worker pod of such a run, as the controller would have made it; it runs.
async fn pod_of(world: &World, run: &str) -> Pod {
    let uid = untyped::<SubagentRun>(&world.namespace).get(run).await.expect("the run").uid().expect("a UID");
    let pod = json!({
        "metadata": {
            "name": format!("{run}-1"),
            "labels": {names::RUN_LABEL: run, names::RUN_UID_LABEL: uid},
            "finalizers": [names::POD_FINALIZER],
            "ownerReferences": [{
                "apiVersion": SubagentRun::api_version(&()), "kind": SubagentRun::kind(&()), "name": run, "uid": uid,
                "controller": true,
            }],
        },
        "spec": {"containers": [{"name": names::AGENT_CONTAINER, "image": "localhost/agent:dev"}]},
    });
    let pod = world.namespace.create(&serde_json::from_value::<Pod>(pod).expect("a pod")).await;
    world.node.pretend(&pod).await;
    pod
}

/// Waits until the API server is told to delete a pod.
async fn pod_is_deleted(world: &World, pod: &Pod) {
    let is_deleted = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    world.namespace.until::<Pod>(&pod.name_any(), "is deleted", LIMIT, is_deleted).await;
}

/// Waits until nothing holds a pod any more.
async fn pod_is_gone(world: &World, pod: &Pod) {
    let pods = world.namespace.api::<Pod>();
    let (pods, name) = (&pods, &pod.name_any());
    world
        .namespace
        .eventually(&format!("pod {name} is gone"), LIMIT, async || match pods.get_opt(name).await {
            Ok(None) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
}

/// Waits for an Event about an object.
async fn told(world: &World, kind: &str, name: &str, reason: &str, note: &str) {
    world
        .namespace
        .eventually(&format!("an Event {reason} on {kind} {name}"), LIMIT, async || {
            let events = world.namespace.api::<Event>().list(&ListParams::default()).await;
            let events = events.map_err(|error| error.to_string())?.items;
            let tells = |event: &Event| {
                let about = event.regarding.clone().unwrap_or_default();
                event.reason.as_deref() == Some(reason)
                    && (about.kind.as_deref(), about.name.as_deref()) == (Some(kind), Some(name))
                    && event.note.as_deref().is_some_and(|told| told.contains(note))
            };
            if events.iter().any(tells) { Ok(()) } else { Err(format!("{events:?}")) }
        })
        .await;
}

/// What a run says about its stop.
fn held_by(status: &SubagentRunStatus) -> String {
    let stopped = conditions::get(&status.conditions, conditions::STOPPED);
    stopped.map(|stopped| format!("{}: {}", stopped.reason, stopped.message)).unwrap_or_default()
}

/// C1. One undecodable object of each kind: it is reported, and those that have nothing to do with it go on. A parent waits
/// for those below it (c51), whose pods are stopped even when the API server takes no change of the run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c1_an_undecodable_object_of_each_kind_is_reported_and_holds_only_its_ancestors() {
    let namespace = TestNamespace { client: integration_tests::client().await, name: prepared().await.to_owned() };
    let world = World::around(namespace).await;
    let reads = world.namespace.api::<SubagentRun>().get(OLD).await.map(drop);
    assert!(matches!(reads, Err(kube::Error::SerdeError(_))), "the run decodes: {reads:?}");
    let reads = world.namespace.api::<SubagentProvider>().get(OLD).await.map(drop);
    assert!(matches!(reads, Err(kube::Error::SerdeError(_))), "the provider decodes: {reads:?}");
    let (old, frozen) = (pod_of(&world, OLD).await, pod_of(&world, FROZEN).await);

    let operator = world.operator().await;
    world.provider("provider", &[]).await;
    world.ready("provider").await;
    world.node.serve();
    world.run("completes", "provider", "hello").await;
    world.event(PARENT, "prompt", "").await;
    assert_eq!(end(&world.stopped("completes").await), (Phase::Completed, "Completed"));
    for kind in ["SubagentRun", "SubagentProvider"] {
        told(&world, kind, OLD, "Undecodable", "correct or delete it: spec.description: invalid type").await;
    }

    world.cancel(PARENT).await;
    pod_is_deleted(&world, &old).await;
    pod_is_deleted(&world, &frozen).await;
    let named =
        |name: &str| format!("{name} (does not decode, so its end cannot be stored; delete it: spec.description");
    let held = world
        .until(PARENT, "waits for those that do not decode", |status| {
            let why = held_by(status);
            why.starts_with("DescendantsLive") && why.contains(&named(OLD)) && why.contains(&named(FROZEN))
        })
        .await;
    assert_eq!(status(&held).phase, Some(Phase::Cancelling));
    // C3: what refuses the cancel and is stopping anyway is not asked with every look.
    let mark = Mark::now();
    tokio::time::sleep(A_LOOK).await;
    let asked = mark.requests_of(&world.rights.user);
    let asked: Vec<_> = asked.into_iter().filter(|request| request.is_patch_of(FROZEN)).collect();
    assert!(asked.is_empty(), "{}", lines(&asked));
    for pod in [&old, &frozen] {
        world.node.mark_ended(pod, 0).await;
    }
    let runs = untyped::<SubagentRun>(&world.namespace);
    for run in [OLD, FROZEN] {
        runs.delete(run, &DeleteParams::default()).await.expect("a deletion");
    }
    // What the API server does not let go of is told, with what to do.
    told(&world, "SubagentRun", FROZEN, "ReleaseRefused", "give the CustomResourceDefinition a schema").await;
    let still = world
        .until(PARENT, "waits for the frozen one alone", |status| {
            let why = held_by(status);
            why.contains(&format!("{FROZEN} (does not decode and is being deleted; see its Events"))
                && !why.contains(OLD)
        })
        .await;
    assert_eq!(status(&still).phase, Some(Phase::Cancelling));

    let log = operator.log();
    // A namespace that is going away takes no Events.
    let remedy =
        |line: &str| line.contains("trying again") && line.contains("give the CustomResourceDefinition a schema");
    assert!(log.lines().any(remedy), "{log}");
    for (kind, name) in [("SubagentRun", OLD), ("SubagentRun", FROZEN), ("SubagentProvider", OLD)] {
        // Not with every look and every event.
        let reported = |line: &&str| {
            line.contains("WARN")
                && line.contains("an object does not decode")
                && line.contains(&format!("kind={kind}"))
                && line.contains(name)
                && line.contains("spec.description: ")
        };
        assert_eq!(log.lines().filter(reported).count(), 1, "reports of {kind} {name}:\n{log}");
    }
    let metrics = operator.get("/metrics").await.expect("metrics");
    for line in [
        r#"subagents_undecodable_objects_total{kind="SubagentRun"} 2"#,
        r#"subagents_undecodable_objects_total{kind="SubagentProvider"} 1"#,
    ] {
        assert!(metrics.lines().any(|got| got == line), "{line} is not in\n{metrics}");
    }
    operator.stop().await;
    world.finish().await;
}

/// Makes a run undecodable that the operator made: the API server takes this for a time.
async fn make_undecodable(world: &World, run: &str) {
    let unknown = json!({"status": {"startedAt": "2026-01-01T00:00:00+99:99"}});
    let runs = untyped::<SubagentRun>(&world.namespace);
    runs.patch_status(run, &PatchParams::default(), &Patch::Merge(&unknown)).await.expect("a status");
    let reads = world.namespace.api::<SubagentRun>().get(run).await.map(drop);
    assert!(matches!(reads, Err(kube::Error::SerdeError(_))), "it decodes: {reads:?}");
}

/// C1, c51: one that does not decode is left alone, as another version of the operator may know it, until it is to stop
/// with its parent. Then its pod is stopped, and the parent waits until the run is deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c1_c51_a_parent_waits_for_a_child_that_does_not_decode_and_whose_pod_is_stopped() {
    let world = World::new("undecodable-child").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    world.ready("provider").await;
    world.run("parent", "provider", "!hang").await;
    world.event("parent", "prompt", "").await;
    let child = child(&world, "child", "parent", "!hang").await;
    world.event("child", "prompt", "").await;
    let pod = world.pod(&child, 1).await;
    make_undecodable(&world, "child").await;
    told(&world, "SubagentRun", "child", "Undecodable", "status.startedAt: ").await;
    tokio::time::sleep(KEPT).await;
    let left_alone = world.pod(&child, 1).await;
    assert_eq!(left_alone.metadata.deletion_timestamp, None, "nobody had cancelled it");

    world.cancel("parent").await;
    pod_is_deleted(&world, &pod).await;
    world.node.worker(&pod.name_any()).await.exit().await;
    let held = world
        .until("parent", "waits for its child", |status| {
            let why = held_by(status);
            why.starts_with("DescendantsLive")
                && why.contains("child (does not decode, so its end cannot be stored; delete it: status.startedAt: ")
        })
        .await;
    assert_eq!(status(&held).phase, Some(Phase::Cancelling));
    let runs = untyped::<SubagentRun>(&world.namespace);
    let cancelled = runs.get("child").await.expect("the child");
    assert_eq!(cancelled.data["spec"]["cancel"], json!(true));
    assert!(cancelled.finalizers().iter().any(|name| name == names::RUN_FINALIZER), "its end is stored nowhere");
    // It was told to stop and did: nothing is left to hold it for.
    pod_is_gone(&world, &pod).await;

    runs.delete("child", &DeleteParams::default()).await.expect("a deletion");
    assert_eq!(end(&world.stopped("parent").await), (Phase::Cancelled, "Cancelled"));
    world.gone("child").await;
    operator.stop().await;
    world.finish().await;
}

/// C1, c50: a run that does not decode is deleted like any other: its pod is stopped, and run and pod are released when a
/// live read proves that it did, by whichever process of the operator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c1_c50_a_deleted_run_that_does_not_decode_goes_when_its_pod_is_proven_stopped() {
    let world = World::new("undecodable-deleted").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    world.ready("provider").await;
    let run = world.run("run", "provider", "!hang").await;
    world.event("run", "prompt", "").await;
    let pod = world.pod(&run, 1).await;
    world.node.report_ends(false);
    make_undecodable(&world, "run").await;
    let runs = untyped::<SubagentRun>(&world.namespace);
    runs.delete("run", &DeleteParams::default()).await.expect("a deletion");
    pod_is_deleted(&world, &pod).await;
    let deleted = world.pod(&run, 1).await;
    assert_ne!(deleted.metadata.deletion_grace_period_seconds, Some(0));
    world.node.worker(&pod.name_any()).await.exit().await;
    operator.stop().await;

    // Nothing tells the next process about it but what is stored.
    let operator = Replica::start(world.plan("second"));
    world.until_leader("second").await;
    tokio::time::sleep(KEPT).await;
    let held = world.pod(&run, 1).await;
    assert!(held.finalizers().iter().any(|name| name == names::POD_FINALIZER), "the pod was let go without proof");
    let held = runs.get("run").await.expect("the run");
    assert!(held.finalizers().iter().any(|name| name == names::RUN_FINALIZER), "the run was let go without proof");
    world.node.report_ends(true);
    world.gone("run").await;
    let pods = world.namespace.api::<Pod>();
    let left = pods.get_opt(&pod.name_any()).await.expect("an answer");
    let is_held = |pod: &Pod| pod.finalizers().iter().any(|name| name == names::POD_FINALIZER);
    assert!(!left.as_ref().is_some_and(is_held), "the pod is held by a run that is gone");
    operator.stop().await;
    world.finish().await;
}

/// C1: nothing but its pod is left of a run that did not decode and was let go by force. The operator had known it before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c1_the_pod_of_an_undecodable_run_that_was_removed_by_force_is_stopped_and_let_go() {
    let world = World::new("undecodable-forced").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    world.ready("provider").await;
    let run = world.run("run", "provider", "!hang").await;
    world.event("run", "prompt", "").await;
    let pod = world.pod(&run, 1).await;
    make_undecodable(&world, "run").await;
    told(&world, "SubagentRun", "run", "Undecodable", "status.startedAt: ").await;
    let runs = untyped::<SubagentRun>(&world.namespace);
    let force = json!({"metadata": {"finalizers": null}});
    runs.patch("run", &PatchParams::default(), &Patch::Merge(&force)).await.expect("no finalizers");
    runs.delete("run", &DeleteParams::default()).await.expect("a deletion");
    pod_is_gone(&world, &pod).await;
    operator.stop().await;
    world.finish().await;
}

/// C1, c50: a drain waits for the pods that it deletes, and a namespace that goes away deletes its runs when none is left.
/// The deleted pod of a run that does not decode and was never stopped is held until the stop is proven, and not longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c1_c50_a_deleted_pod_of_a_live_run_that_does_not_decode_goes_when_it_is_proven_stopped() {
    let world = World::new("undecodable-drained").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    world.ready("provider").await;
    let run = world.run("run", "provider", "!hang").await;
    world.event("run", "prompt", "").await;
    let pod = world.pod(&run, 1).await;
    world.node.report_ends(false);
    make_undecodable(&world, "run").await;
    let pods = world.namespace.api::<Pod>();
    pods.delete(&pod.name_any(), &DeleteParams::default()).await.expect("a deletion");
    world.node.worker(&pod.name_any()).await.exit().await;
    tokio::time::sleep(KEPT).await;
    let held = world.pod(&run, 1).await;
    assert!(held.finalizers().iter().any(|name| name == names::POD_FINALIZER), "the pod was let go without proof");

    world.node.report_ends(true);
    pod_is_gone(&world, &pod).await;
    let runs = untyped::<SubagentRun>(&world.namespace);
    let live = runs.get("run").await.expect("the run");
    assert_eq!(live.metadata.deletion_timestamp, None);
    assert_ne!(live.data["spec"]["cancel"], json!(true), "nobody cancelled it");
    assert!(live.finalizers().iter().any(|name| name == names::RUN_FINALIZER), "nobody deleted it");
    runs.delete("run", &DeleteParams::default()).await.expect("a deletion");
    world.gone("run").await;
    operator.stop().await;
    world.finish().await;
}

/// C1: the sweep of revisions goes on beside an undecodable run and provider. What those refer to is not known, so nothing
/// of their namespace is swept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c1_the_sweep_leaves_a_namespace_with_undecodable_objects_alone_and_others_not() {
    let client = integration_tests::client().await;
    let with_old = TestNamespace { client: client.clone(), name: prepared().await.to_owned() };
    let without = TestNamespace::new("swept").await;
    let context = Context {
        client: client.clone(),
        settings: Arc::new(Settings::parse_from(["subagent-operator"])),
        recorder: Recorder::new(client.clone(), Reporter::from("a test")),
        announcements: Announcements::start().0,
        metrics: Arc::new(Metrics::new()),
        store: None,
        store_tried: subagent_operator::subagent::session::LastTry::default(),
        trimming: Arc::default(),
        roots: watch::channel(Arc::from("")).1,
    };
    for (namespace, expected) in [(&with_old, false), (&without, true)] {
        let mut provider = make_provider("swept");
        provider.metadata.namespace = Some(namespace.name.clone());
        provider.metadata.uid = Some("provider-uid".into());
        let name = revision::ensure(&client, &revision::of(&provider)).await.expect("a revision");
        let scope = Scope::Namespace(namespace.name.clone());
        sweep::pass(&context, &scope, Timestamp::now()).await.expect("a pass");
        let stored: ControllerRevision = namespace.api().get(&name).await.expect("the revision");
        assert_eq!(stored.annotations().contains_key(names::UNREFERENCED_ANNOTATION), expected, "{}", namespace.name);
    }
}
