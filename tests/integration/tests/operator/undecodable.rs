//! C1: objects that were written under an older schema and do not decode any more.

use crate::world::{LIMIT, World, end, status};
use clap::Parser;
use integration_tests::{TestNamespace, commands::repository, make_provider, make_run};
use k8s_openapi::{
    api::{apps::v1::ControllerRevision, events::v1::Event},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, NamespaceResourceScope},
    runtime::events::{Recorder, Reporter},
};
use serde::Serialize;
use serde_json::{Value, json};
use std::{fmt::Debug, sync::Arc, time::Duration};
use subagent_crds::{Phase, SubagentProvider, SubagentRun, conditions, content::Prompt, names};
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

/// A run that decodes, and is above the one that does not: it is cancelled, and nobody's end waits for the other (c51).
const PARENT: &str = "is-cancelled";

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
            write_old(&namespace, &make_provider(OLD), &json!({})).await;
            let lineage = json!({"depth": 2, "parentUID": parent, "rootUID": parent, "ancestors": [parent]});
            write_old(&namespace, &make_run(OLD), &json!({"status": {"phase": "Running", "lineage": lineage}})).await;
            namespace.name
        })
        .await
}

/// Creates the object with a number for a description, and this status, which takes a definition that says so.
async fn write_old<K>(namespace: &TestNamespace, object: &K, status: &Value)
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
    let mut body = serde_json::to_value(object).expect("JSON");
    body["spec"]["description"] = json!(5);
    let params = PatchParams::apply("integration-tests").force();

    definitions.patch(&name, &params, &Patch::Apply(&old)).await.expect("an older definition");
    namespace
        .eventually("the older definition", IN_FORCE, async || create::<K>(client, namespace, &body, false).await)
        .await;
    if status.get("status").is_some() {
        let untyped: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), &namespace.name, &ApiResource::erase::<K>(&()));
        untyped.patch_status(OLD, &PatchParams::default(), &Patch::Merge(status)).await.expect("a status");
    }
    definitions.patch(&name, &params, &Patch::Apply(&current)).await.expect("the definition of now");
    body["metadata"]["name"] = json!("another");
    namespace
        .eventually("the definition of now", IN_FORCE, async || {
            match create::<K>(client, namespace, &body, true).await {
                Err(error) if error.contains("spec.description") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
}

async fn create<K>(client: &Client, namespace: &TestNamespace, body: &Value, dry_run: bool) -> Result<(), String>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace.name, &ApiResource::erase::<K>(&()));
    let object = serde_json::from_value(body.clone()).expect("an object");
    let params = PostParams { dry_run, ..PostParams::default() };
    api.create(&params, &object).await.map(drop).map_err(|error| error.to_string())
}

/// C1. One undecodable object of each kind: it is reported, and everything else goes on as if it were not there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c1_an_undecodable_object_of_each_kind_is_reported_and_holds_nobody_up() {
    let namespace = TestNamespace { client: integration_tests::client().await, name: prepared().await.to_owned() };
    let world = World::around(namespace).await;
    let reads = world.namespace.api::<SubagentRun>().get(OLD).await.map(drop);
    assert!(matches!(reads, Err(kube::Error::SerdeError(_))), "the run decodes: {reads:?}");
    let reads = world.namespace.api::<SubagentProvider>().get(OLD).await.map(drop);
    assert!(matches!(reads, Err(kube::Error::SerdeError(_))), "the provider decodes: {reads:?}");

    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    world.ready("provider").await;
    world.run("completes", "provider", "hello").await;
    world.event(PARENT, "prompt", "").await;
    world.cancel(PARENT).await;
    assert_eq!(end(&world.stopped("completes").await), (Phase::Completed, "Completed"));
    let cancelled = world.stopped(PARENT).await;
    assert_eq!(end(&cancelled), (Phase::Cancelled, "Cancelled"));
    assert!(conditions::is_true(&status(&cancelled).conditions, conditions::STARTED));
    let log = operator.log();
    let told = |line: &str| line.contains("WARN") && line.contains(OLD) && line.contains("a run of this tree");
    assert!(log.lines().any(told), "the one in the tree is not reported:\n{log}");
    for kind in ["SubagentRun", "SubagentProvider"] {
        let reported =
            |line: &str| line.contains("WARN") && line.contains(OLD) && line.contains(&format!("kind={kind}"));
        assert!(log.lines().any(reported), "the {kind} is not reported:\n{log}");
        // And on the object, where its owner looks.
        world
            .namespace
            .eventually(&format!("an Event on the {kind}"), LIMIT, async || {
                let events = world.namespace.api::<Event>().list(&ListParams::default()).await;
                let events = events.map_err(|error| error.to_string())?.items;
                let tells = |event: &Event| {
                    let about = event.regarding.clone().unwrap_or_default();
                    event.reason.as_deref() == Some("Undecodable")
                        && (about.kind.as_deref(), about.name.as_deref()) == (Some(kind), Some(OLD))
                        && event.note.as_deref().is_some_and(|note| note.contains("correct or delete it"))
                };
                if events.iter().any(tells) { Ok(()) } else { Err(format!("{events:?}")) }
            })
            .await;
    }
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
