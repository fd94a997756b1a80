//! Activations of continuable children, as the run controller sees them: the test does what the controller of children does,
//! step by step, and the operator may write none of them.

use crate::{
    replica::{Plan, Replica},
    world::{LIMIT, World, end, has, pod_name, status, text},
};
use integration_tests::make_subagent;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use std::{
    path::Path,
    time::{Duration, Instant},
};
use subagent_crds::{
    Phase, Subagent, SubagentProvider, SubagentRun, conditions, names,
    provider::{Probe, SessionState},
    run::{ParentKind, ParentRef},
};
use subagent_operator::subagent::{inbox, placing};
use tempfile::TempDir;

/// The surroundings: an operator with a session store, and a provider whose agent continues sessions.
struct Scene {
    world: World,
    operator: Replica,
    _folder: TempDir,
}

impl Scene {
    async fn new(hint: &str) -> Self {
        Self::around(World::without_children(hint).await).await
    }

    /// The same with the real controller of children.
    async fn with_children(hint: &str) -> Self {
        Self::around(World::new(hint).await).await
    }

    async fn around(world: World) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (store, state) = (folder.path().join("store"), folder.path().join("state"));
        for made in [&store, &state] {
            std::fs::create_dir(made).expect("a folder");
        }
        let arguments = vec![format!("--session-store=file://{}", store.display())];
        let operator = Replica::start(Plan { arguments, ..world.plan("first") });
        world.until_leader("first").await;
        world.node.serve();
        world.node.serve_probes();
        world.namespace.create(&provider(&world, &state)).await;
        world
            .namespace
            .until::<SubagentProvider>("provider", "continues sessions", LIMIT, |provider| {
                let known = provider.status.iter().flat_map(|status| &status.capabilities);
                known.into_iter().any(|capability| capability == "Continuation")
            })
            .await;
        Self { world, operator, _folder: folder }
    }

    /// A child that was accepted and has claimed its first activation for its first message; its run does not exist yet.
    async fn claimed(&self, name: &str, prompt: &str) -> Subagent {
        let mut child = make_subagent(name);
        child.spec.messages[0].text = Some(prompt.into());
        let child = self.world.namespace.create(&child).await;
        let uid = child.uid().expect("a UID");
        let revision = self.world.ready("provider").await;
        self.note(
            name,
            json!({
                "phase": "Active", "epochs": 1, "sequences": 1, "placements": 1,
                "lineage": {"depth": 1, "rootUID": uid},
                "descriptor": {"version": 1, "mode": "Continuable", "provider": "provider", "providerRevision": revision,
                    "context": "Fresh", "description": "say hello"},
                "activation": {"epoch": 1, "runName": format!("{name}-1"), "wokenBy": "m1"},
                "messages": [{"id": "m1", "sequence": 1, "placement": 1, "outcome": "Queued", "epoch": 1}],
            }),
        )
        .await
    }

    /// Writes a part of a child's status.
    async fn note(&self, name: &str, status: Value) -> Subagent {
        let patch = Patch::Merge(json!({"status": status}));
        let children = self.world.namespace.api::<Subagent>();
        children.patch_status(name, &PatchParams::default(), &patch).await.expect("a status")
    }

    /// Creates the run of the claimed activation.
    async fn created(&self, child: &Subagent) -> SubagentRun {
        self.world.namespace.create(&placing::run(child).expect("an activation")).await
    }

    /// Creates the run and stores its UID: from then on it may start.
    async fn activated(&self, name: &str, prompt: &str) -> SubagentRun {
        let child = self.claimed(name, prompt).await;
        let run = self.created(&child).await;
        self.note(name, json!({"activation": {"runUID": run.uid(), "state": "Starting"}})).await;
        run
    }

    async fn change(&self, run: &str, spec: Value) {
        let runs = self.world.namespace.api::<SubagentRun>();
        runs.patch(run, &PatchParams::default(), &Patch::Merge(json!({"spec": spec}))).await.expect("a change");
    }

    /// Creates a child below a run, for the real controller.
    async fn child_below(&self, name: &str, parent: &str, prompt: &str) -> Subagent {
        let mut child = make_subagent(name);
        child.spec.parent_ref = Some(ParentRef { kind: ParentKind::SubagentRun, name: parent.into(), uid: None });
        child.spec.messages[0].text = Some(prompt.into());
        self.world.namespace.create(&child).await
    }

    /// Waits until a child is at rest after that many completed turns.
    async fn rested(&self, name: &str, turns: i64) -> Subagent {
        let rests = |child: &Subagent| {
            let status = child.status.as_ref();
            status.is_some_and(|status| status.is_at_rest() && status.completed_turns == turns)
        };
        self.world.namespace.until(name, &format!("at rest after {turns} turns"), LIMIT, rests).await
    }

    async fn close(&self, run: &str) {
        self.change(run, json!({"activation": {"inbox": "Closed"}})).await;
    }

    async fn worked_off(&self, run: &str, turns: i64) -> SubagentRun {
        let what = format!("{turns} turns and at rest");
        let rests = |status: &subagent_crds::SubagentRunStatus| {
            status.report.as_ref().is_some_and(|report| report.idle && report.turn_count == turns)
        };
        self.world.until(run, &what, rests).await
    }
}

fn provider(world: &World, state: &Path) -> SubagentProvider {
    let state = state.display().to_string();
    let mut provider = world.make_provider("provider", &[("SCRIPTED_AGENT_STATE", state.as_str())]);
    provider.spec.probe = Probe::OnChange;
    provider.spec.session_state = Some(SessionState { paths: vec![state], max_bytes: 1 << 20 });
    provider
}

fn message(number: i64, text: &str) -> Value {
    json!({"id": format!("m{number}"), "placement": number, "text": text})
}

/// c35 c37 c44: turns one by one, each message claimed once; then the inbox is closed and the run completes with the last turn's
/// text. It goes only when somebody has noted what became of its messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c37_an_activation_runs_its_turns_and_completes_when_it_is_closed() {
    let scene = Scene::new("turns").await;
    let world = &scene.world;
    let run = scene.activated("child", "one").await;
    scene.worked_off("child-1", 1).await;
    scene.change("child-1", json!({"messages": [message(1, "one"), message(2, "two"), message(3, "three")]})).await;
    let rests = scene.worked_off("child-1", 3).await;
    let said = status(&rests).report.clone().expect("a report");
    let told: Vec<_> = said.messages.iter().map(|told| (told.id.as_str(), told.outcome.as_str(), told.turn)).collect();
    assert_eq!(told, [("m1", "Claimed", Some(1)), ("m2", "Claimed", Some(2)), ("m3", "Claimed", Some(3))]);
    assert!(said.checkpoint.is_some_and(|stored| stored.turn == 3), "each turn is stored before it counts");
    assert_eq!(status(&rests).phase, Some(Phase::Running));
    let lineage = status(&rests).lineage.clone().expect("a lineage");
    let child: Subagent = world.namespace.api().get("child").await.expect("the child");
    assert_eq!((lineage.depth, lineage.parent_uid, lineage.root_uid), (1, child.uid(), child.uid().expect("a UID")));
    let pod: Pod = world.namespace.api().get(&pod_name(&run, 1)).await.expect("the pod");
    let grace = pod.spec.expect("a spec").termination_grace_period_seconds;
    assert_eq!(grace, Some(2 + 1 + 1 + 15 + 30), "time to store a checkpoint");

    scene.close("child-1").await;
    let done = world.stopped("child-1").await;
    assert_eq!((end(&done), text(&done)), ((Phase::Completed, "Completed"), "echo: three"));
    assert_eq!(world.prompts("child-1"), 3);

    world.delete_run("child-1").await;
    let what = "let go but for the second finalizer";
    let held = |run: &SubagentRun| run.finalizers() == [names::FOLD_FINALIZER];
    let left = world.namespace.until::<SubagentRun>("child-1", what, LIMIT, held).await;
    assert!(left.metadata.deletion_timestamp.is_some());
    let runs = world.namespace.api::<SubagentRun>();
    let noted = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    runs.patch("child-1", &PatchParams::default(), &noted).await.expect("a release");
    world.gone("child-1").await;
    scene.operator.stop().await;
}

/// c36, R13: a run that the child's status does not name yet has no pod; the write that names it starts it at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c36_no_pod_before_the_child_names_its_run() {
    let scene = Scene::new("unnamed").await;
    let world = &scene.world;
    let child = scene.claimed("child", "hello").await;
    let run = scene.created(&child).await;
    // Others that came later are served meanwhile.
    for name in ["later", "latest"] {
        world.run(name, "provider", "hello").await;
        world.until(name, "has a pod", |status| status.pod_uid.is_some()).await;
    }
    let waits: SubagentRun = world.namespace.api().get("child-1").await.expect("the run");
    assert_eq!(waits.status, None, "nothing is written while it waits for that");
    assert_eq!(world.namespace.api::<Pod>().get_opt(&pod_name(&run, 1)).await.expect("a look"), None);
    scene.note("child", json!({"activation": {"runUID": run.uid()}})).await;
    scene.worked_off("child-1", 1).await;
    scene.close("child-1").await;
    assert_eq!(end(&world.stopped("child-1").await), (Phase::Completed, "Completed"));
    scene.operator.stop().await;
}

/// c36, D2: what looks like an activation and is not the one that the child names never has a pod.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c36_what_only_looks_like_an_activation_is_refused() {
    let scene = Scene::new("foreign").await;
    let world = &scene.world;
    let child = scene.claimed("child", "hello").await;
    scene.note("child", json!({"activation": {"runUID": "another"}})).await;
    let of = |name: &str, edit: &dyn Fn(&mut SubagentRun)| {
        let mut run = placing::run(&child).expect("an activation");
        // Without its owner, garbage collection has no say here.
        (run.metadata.name, run.metadata.owner_references) = (Some(name.into()), None);
        run.metadata.finalizers = None;
        edit(&mut run);
        run
    };
    let activation = |run: &mut SubagentRun| run.spec.activation.clone().expect("an activation");
    let wrong_child = of("wrong-child", &|run| {
        let mut other = activation(run);
        other.subagent_ref.uid = "another".into();
        run.spec.activation = Some(other);
    });
    let nobodys = of("nobodys", &|run| {
        let mut other = activation(run);
        other.subagent_ref.name = "nobody".into();
        run.spec.activation = Some(other);
    });
    for (run, reason) in
        [(of("not-named", &|_| {}), "Unauthorized"), (wrong_child, "Unauthorized"), (nobodys, "ParentUnavailable")]
    {
        let name = run.name_any();
        world.namespace.create(&run).await;
        let refused = world.stopped(&name).await;
        assert_eq!(end(&refused), (Phase::Rejected, reason), "{name}: {:?}", status(&refused).message);
        assert_eq!(status(&refused).attempt, None, "{name}: no pod");
    }
    // One whose number is past.
    scene.note("child", json!({"phase": "Settled", "activation": null})).await;
    world.namespace.create(&of("past", &|_| {})).await;
    assert_eq!(end(&world.stopped("past").await), (Phase::Rejected, "ParentUnavailable"));
    scene.operator.stop().await;
}

/// c43 S7: a cancel of the run ends the turn, and what waits is left to the child.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c43_a_cancelled_activation_ends_amid_its_turn() {
    let scene = Scene::new("cancel").await;
    let world = &scene.world;
    scene.activated("child", "!gate shut").await;
    world.event("child-1", "gate", "shut").await;
    scene.change("child-1", json!({"messages": [message(1, "!gate shut"), message(2, "two")]})).await;
    world.cancel("child-1").await;
    let done = world.stopped("child-1").await;
    assert_eq!(end(&done), (Phase::Cancelled, "Cancelled"));
    assert_eq!(status(&done).stop_reason.as_deref(), Some("Aborted"));
    assert_eq!(world.prompts("child-1"), 1, "the second was never claimed");
    let said = status(&done).report.clone().expect("a report");
    assert!(said.messages.iter().all(|told| told.id != "m2"), "{:?}", said.messages);
    // c9: one that is cancelled before anything began has no pod.
    let child = scene.claimed("other", "hello").await;
    let mut run = placing::run(&child).expect("an activation");
    run.spec.cancel = true;
    world.namespace.create(&run).await;
    let done = world.stopped("other-1").await;
    assert_eq!((end(&done).0, status(&done).attempt), (Phase::Cancelled, None));
    scene.operator.stop().await;
}

/// c2: without its provider a child goes on with the revision it had last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c2_an_activation_without_provider_uses_the_recorded_revision() {
    let scene = Scene::new("provider-gone").await;
    let world = &scene.world;
    let revision = world.ready("provider").await;
    let child = scene.claimed("child", "hello").await;
    scene.note("child", json!({"providerRevision": revision})).await;
    let providers = world.namespace.api::<SubagentProvider>();
    providers.delete("provider", &DeleteParams::default()).await.expect("a deletion");
    let (providers, plain) = (&providers, &world.run("plain", "provider", "hello").await);
    world
        .namespace
        .eventually("the provider is gone", LIMIT, async || match providers.get_opt("provider").await {
            Ok(None) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    let run = scene.created(&child).await;
    scene.note("child", json!({"activation": {"runUID": run.uid()}})).await;
    let rests = scene.worked_off("child-1", 1).await;
    assert_eq!(status(&rests).descriptor.as_ref().map(|it| it.provider_revision.as_str()), Some(revision.as_str()));
    scene.close("child-1").await;
    assert_eq!(end(&world.stopped("child-1").await), (Phase::Completed, "Completed"));
    // A run of its own waits, as ever.
    let waits: SubagentRun = world.namespace.api().get(&plain.name_any()).await.expect("the run");
    assert_eq!(waits.status.and_then(|status| status.attempt), None);
    scene.operator.stop().await;
}

/// Delivery 5: a residency ends with the pod's eviction as it would by being closed: nothing is lost, nothing is interrupted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n3_a_pod_that_is_deleted_at_rest_costs_nothing() {
    let scene = Scene::new("at-rest").await;
    let world = &scene.world;
    let run = scene.activated("child", "hello").await;
    scene.worked_off("child-1", 1).await;
    world.namespace.api::<Pod>().delete(&pod_name(&run, 1), &DeleteParams::default()).await.expect("a deletion");
    let done = world.stopped("child-1").await;
    assert_eq!(end(&done), (Phase::Completed, "Completed"), "{:?}", status(&done).message);
    assert!(!has(status(&done), conditions::INTERRUPTED));
    scene.operator.stop().await;
}

/// c11 c14 c15: a run below a child has the child's depth and one, is found by the child's root, and is turned away by one that
/// goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c11_c14_a_child_is_a_parent() {
    let scene = Scene::new("parent").await;
    let world = &scene.world;
    let below = async |name: &str, parent: &str| {
        let mut run = world.make_run(name, "provider", "hello");
        run.spec.parent_ref = Some(ParentRef { kind: ParentKind::Subagent, name: parent.into(), uid: None });
        world.namespace.create(&run).await
    };
    // The parent is not accepted yet: that is waited for, and the write that accepts it wakes who waits.
    let mut late = make_subagent("late");
    late.metadata.finalizers = Some(vec![names::SUBAGENT_FINALIZER.into()]);
    let late = world.namespace.create(&late).await;
    below("early", "late").await;
    world.until("early", "waits", |status| status.reason.as_deref() == Some("ParentUnavailable")).await;
    let root = late.uid().expect("a UID");
    scene
        .note(
            "late",
            json!({"phase": "Settled", "lineage": {"depth": 4, "parentUID": "p", "rootUID": root, "ancestors": ["p"]}}),
        )
        .await;
    let done = world.stopped("early").await;
    assert_eq!(end(&done), (Phase::Completed, "Completed"));
    let lineage = status(&done).lineage.clone().expect("a lineage");
    assert_eq!((lineage.depth, lineage.root_uid), (5, root.clone()));
    assert_eq!(lineage.ancestors, ["p".to_owned(), root]);
    // An activation's run goes before its child does, with all that is below it.
    scene.activated("child", "!gate shut").await;
    world.event("child-1", "gate", "shut").await;
    let mut run = world.make_run("grandchild", "provider", "hello");
    run.spec.parent_ref = Some(ParentRef { kind: ParentKind::SubagentRun, name: "child-1".into(), uid: None });
    world.namespace.create(&run).await;
    let refused = world.stopped("grandchild").await;
    assert_eq!(end(&refused), (Phase::Rejected, "InvalidArgs"));
    let message = status(&refused).message.clone().unwrap_or_default();
    assert!(message.contains("name its Subagent child in spec.parentRef"), "{message}");
    world.node.collector().open_gate("shut");

    world.namespace.api::<Subagent>().delete("late", &DeleteParams::default()).await.expect("a deletion");
    below("too-late", "late").await;
    let refused = world.stopped("too-late").await;
    assert_eq!(end(&refused), (Phase::Rejected, "ParentUnavailable"));
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    world.namespace.api::<Subagent>().patch("late", &PatchParams::default(), &free).await.expect("a release");
    below("nobodys", "nobody").await;
    assert_eq!(end(&world.stopped("nobodys").await), (Phase::Rejected, "ParentUnavailable"));
    scene.operator.stop().await;
}

/// c51 S4: a cancel of a run reaches the activation of a child below it, and the run ends after that; the child stays and can be
/// spoken to. A deletion takes it along.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c51_a_cancel_and_a_deletion_of_a_run_reach_the_children_below_it() {
    let scene = Scene::with_children("below-a-run").await;
    let world = &scene.world;
    world.run("root", "provider", "!gate root").await;
    world.event("root", "gate", "root").await;
    let child = scene.child_below("child", "root", "!gate child").await;
    let first = inbox::run_name(&child, 1);
    world.event(&first, "gate", "child").await;
    world.cancel("root").await;
    assert_eq!(end(&world.stopped("root").await), (Phase::Cancelled, "Cancelled"));
    // The run waited for it, so no further waiting here.
    let over: SubagentRun = world.namespace.api().get(&first).await.expect("the activation");
    assert_eq!(end(&over), (Phase::Cancelled, "Cancelled"));
    assert!(has(status(&over), conditions::STOPPED));
    let rests = scene.rested("child", 0).await;
    assert_eq!(rests.status.map(|status| (status.cancelled_through_epoch, status.epochs)), Some((1, 1)));
    assert_eq!(rests.metadata.deletion_timestamp, None);

    let more =
        json!({"spec": {"messages": [{"id": "m1", "text": "!gate child"}, {"id": "m2", "text": "still there?"}]}});
    let children = world.namespace.api::<Subagent>();
    children.patch("child", &PatchParams::default(), &Patch::Merge(&more)).await.expect("a message");
    scene.rested("child", 1).await;

    world.delete_run("root").await;
    world.gone("root").await;
    let left = children.get_opt("child").await.expect("a look");
    assert!(
        left.is_none_or(|child| child.metadata.deletion_timestamp.is_some()),
        "it was deleted before its parent went"
    );
    scene.operator.stop().await;
    scene.world.finish().await;
}

/// How long nothing is to happen to a run whose time is over while a child below it exists.
const KEPT: Duration = Duration::from_secs(4);

/// The time to live of a run waits for the children below it: its deletion would take them along. Their end wakes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_to_live_of_a_run_waits_for_its_children() {
    let scene = Scene::with_children("kept-for-a-child").await;
    let world = &scene.world;
    let mut root = world.make_run("root", "provider", "!gate root");
    root.spec.ttl_seconds_after_finished = Some(1);
    world.namespace.create(&root).await;
    world.event("root", "gate", "root").await;
    scene.child_below("child", "root", "hello").await;
    scene.rested("child", 1).await;
    world.node.collector().open_gate("root");
    world.stopped("root").await;
    tokio::time::sleep(KEPT).await;
    let kept: SubagentRun = world.namespace.api().get("root").await.expect("it is kept");
    assert_eq!(kept.metadata.deletion_timestamp, None);
    world.namespace.api::<Subagent>().delete("child", &DeleteParams::default()).await.expect("a deletion");
    let began = Instant::now();
    world.gone("root").await;
    assert!(began.elapsed() < Duration::from_secs(45), "its child's end did not wake it: {:?}", began.elapsed());
    scene.operator.stop().await;
    scene.world.finish().await;
}
