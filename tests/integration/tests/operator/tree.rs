//! Runs below runs: a cancel or a deletion reaches all of them, from the top down, and the end comes from the bottom up.

use crate::{
    audit::{Mark, Request, lines},
    watching::{History, Version},
    world::{World, end, has, is_terminal, status},
};
use integration_tests::TestNamespace;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use subagent_crds::{
    Phase, SubagentRun, conditions, names,
    run::{ParentKind, ParentRef},
};

/// A run below another.
pub async fn child(world: &World, name: &str, parent: &str, prompt: &str) -> SubagentRun {
    let mut run = world.make_run(name, "provider", prompt);
    run.spec.parent_ref = Some(ParentRef { kind: ParentKind::SubagentRun, name: parent.into(), uid: None });
    world.namespace.create(&run).await
}

/// A run, one below it, and one below that, all in their turns.
async fn three_generations(world: &World) {
    world.run("root", "provider", "!hang").await;
    world.event("root", "prompt", "").await;
    child(world, "middle", "root", "!hang").await;
    world.event("middle", "prompt", "").await;
    child(world, "leaf", "middle", "!hang").await;
    world.event("leaf", "prompt", "").await;
}

fn of(name: &str, fits: impl Fn(&SubagentRun) -> bool) -> impl Fn(&Version<SubagentRun>) -> bool {
    move |seen| seen.object.name_any() == name && fits(&seen.object)
}

fn gone(name: &str) -> impl Fn(&Version<SubagentRun>) -> bool {
    move |seen| seen.is_gone && seen.object.name_any() == name
}

fn is_over(run: &SubagentRun) -> bool {
    run.status.as_ref().is_some_and(|status| is_terminal(status) && has(status, conditions::STOPPED))
}

/// c51, S4: the stop of the root is stored before anybody below is told; all are told, also below one that is deleted
/// meanwhile or over already; nobody ends before those below.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c51_s4_a_cancel_goes_down_the_tree_and_ends_from_the_bottom_up() {
    let world = World::new("tree").await;
    let history = History::<SubagentRun>::of(&world.namespace).await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    three_generations(&world).await;
    child(&world, "done", "root", "hello").await;
    let done = world.stopped("done").await;
    child(&world, "deleted", "root", "!hang").await;
    world.event("deleted", "prompt", "").await;
    world.run("stranger", "provider", "!gate end").await;
    world.event("stranger", "gate", "end").await;

    world.delete_run("deleted").await;
    world.cancel("root").await;
    for name in ["root", "middle", "leaf"] {
        let run = world.stopped(name).await;
        assert_eq!(end(&run), (Phase::Cancelled, "Cancelled"), "{name}: {:?}", status(&run).message);
        assert_eq!(status(&run).stop_reason.as_deref(), Some("Aborted"));
        let says_why = status(&run).message.as_deref().is_some_and(|it| it.contains("cancelled together with"));
        assert_eq!(says_why, name != "root", "{name}: {:?}", status(&run).message);
        world.event(name, "cancel", "").await;
    }
    world.gone("deleted").await;
    let still = world.stopped("done").await;
    assert_eq!((end(&still), still.spec.cancel), ((Phase::Completed, "Completed"), false));
    assert_eq!(still.resource_version(), done.resource_version(), "what is over is left alone");

    let stopping = |run: &SubagentRun| run.status.as_ref().is_some_and(|status| status.stopping.is_some());
    let closed = history.at("the root's stop", of("root", stopping)).await;
    for name in ["middle", "leaf"] {
        let told = history.at("a cancel", of(name, |run| run.spec.cancel)).await;
        assert!(closed < told, "{name} was told before the root was closed");
    }
    let over = async |name: &str| history.at(&format!("the end of {name}"), of(name, is_over)).await;
    let ends = [over("leaf").await, over("middle").await, over("root").await];
    assert!(ends.is_sorted(), "an end before those below");
    // c3: nobody else is touched.
    world.node.collector().open_gate("end");
    assert_eq!(end(&world.stopped("stranger").await), (Phase::Completed, "Completed"));
    operator.stop().await;
    world.finish().await;
}

/// c51: what was alive goes with the one that is deleted, deepest first; what had finished stays for its own time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c51_a_deletion_takes_the_live_descendants_along() {
    let world = World::new("tree-deleted").await;
    let history = History::<SubagentRun>::of(&world.namespace).await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    three_generations(&world).await;
    child(&world, "done", "middle", "hello").await;
    world.stopped("done").await;

    world.delete_run("root").await;
    for name in ["root", "middle", "leaf"] {
        world.gone(name).await;
    }
    let gone = async |name: &str| history.at(&format!("{name} gone"), gone(name)).await;
    let root = gone("root").await;
    assert!(gone("leaf").await < root && gone("middle").await < root, "the root went first");
    let done = world.stopped("done").await;
    assert_eq!((end(&done), done.metadata.deletion_timestamp.is_some()), ((Phase::Completed, "Completed"), false));
    operator.stop().await;
    world.finish().await;
}

/// c51: a parent that is over already has children that go on; deleted, it stops them before it goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c51_a_finished_parent_that_is_deleted_stops_its_children_first() {
    let world = World::new("tree-finished").await;
    let history = History::<SubagentRun>::of(&world.namespace).await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    world.run("root", "provider", "!gate root").await;
    world.event("root", "gate", "root").await;
    child(&world, "child", "root", "!hang").await;
    world.event("child", "prompt", "").await;
    world.node.collector().open_gate("root");
    assert_eq!(end(&world.stopped("root").await), (Phase::Completed, "Completed"));
    world.delete_run("root").await;
    world.gone("root").await;
    world.gone("child").await;
    world.event("child", "cancel", "").await;
    let stopped = history.at("the child's end", of("child", is_over)).await;
    let gone = history.at("the root gone", gone("root")).await;
    assert!(stopped < gone, "the root went before its child was stopped");
    operator.stop().await;
    world.finish().await;
}

/// S3, c50: one that cannot be stopped, because its node says nothing any more. It settles as CleanupFailed and names its
/// pod; the one above stays Cancelling and names it, until somebody who knows that the pod is dead says so, with the
/// command that the message gives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s3_c50_c51_a_parent_stays_cancelling_until_its_stuck_child_is_released() {
    let world = World::new("stuck").await;
    let operator = world.operator().await;
    let mut provider = world.make_provider("provider", &[]);
    // The ladder and 15 s more are the least.
    provider.spec.template["spec"]["terminationGracePeriodSeconds"] = json!(1);
    world.namespace.create(&provider).await;
    let root = world.run("root", "provider", "!hang").await;
    world.node.start(&world.pod(&root, 1).await).await;
    world.event("root", "prompt", "").await;
    let silent = child(&world, "silent", "root", "hello").await;
    let pod = world.pod(&silent, 1).await;
    world.node.pretend(&pod).await;
    world.until("silent", "its pod is known", |status| status.pod_uid.is_some()).await;
    world.cancel("root").await;

    let named = |run: &str, word: &str| {
        let (run, word) = (run.to_owned(), word.to_owned());
        let world = &world;
        async move {
            let fits = |status: &subagent_crds::SubagentRunStatus| {
                let stopped = conditions::get(&status.conditions, conditions::STOPPED);
                stopped.is_some_and(|stopped| stopped.status == "False" && stopped.message.contains(&word))
            };
            world.until(&run, &format!("Stopped=False names {word}"), fits).await
        }
    };
    let waits = named("root", "silent").await;
    assert_eq!(status(&waits).phase, Some(Phase::Cancelling));
    let stuck = named("silent", "could not be proven stopped").await;
    assert_eq!(end(&stuck), (Phase::Cancelled, "CleanupFailed"));
    let message = status(&stuck).message.clone().unwrap_or_default();
    let (name, uid) = (pod.name_any(), pod.uid().expect("a UID"));
    let command = format!(
        "kubectl annotate subagentrun silent --namespace {} {}={uid}",
        world.namespace.name,
        names::RELEASE_ANNOTATION
    );
    assert!(message.contains(&name) && message.contains(&command), "{message}");
    let waits = named("root", "silent (not proven stopped)").await;
    assert_eq!(status(&waits).phase, Some(Phase::Cancelling), "S3");

    // A pod's UID that is not the one releases nothing.
    release(&world.namespace, "silent", "another").await;
    let still: SubagentRun = world.namespace.api().get("silent").await.expect("the run");
    assert!(!has(status(&still), conditions::STOPPED));
    release(&world.namespace, "silent", &uid).await;
    let released = world.stopped("silent").await;
    let proof = conditions::get(&status(&released).conditions, conditions::STOPPED).map(|one| one.reason.clone());
    assert_eq!((proof.as_deref(), end(&released)), (Some("Released"), (Phase::Cancelled, "CleanupFailed")));
    assert_eq!(end(&world.stopped("root").await), (Phase::Cancelled, "Cancelled"));
    operator.stop().await;
    world.finish().await;
}

async fn release(namespace: &TestNamespace, run: &str, pod_uid: &str) {
    let patch = json!({"metadata": {"annotations": {names::RELEASE_ANNOTATION: pod_uid}}});
    let runs = namespace.api::<SubagentRun>();
    runs.patch(run, &PatchParams::default(), &Patch::Merge(&patch)).await.expect("an annotation");
}

/// How many children of one parent the next test has: enough for a square to show, few enough for this machine.
const CHILDREN: usize = 40;

/// C2: the cost of each child does not depend on how many there are, neither while they start nor when all are cancelled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c2_c51_many_children_cost_a_bounded_number_of_reconciles_each() {
    let world = World::new("wide").await;
    let operator = world.operator().await;
    world.provider("provider", &[]).await;
    world.ready("provider").await;
    // Nobody takes their pods: what is counted is the controller alone.
    world.run("root", "provider", "hello").await;
    world.until("root", "has a pod", |status| status.pod_uid.is_some()).await;
    let (mark, before) = (Mark::now(), operator.reconciles().await);
    for number in 0..CHILDREN {
        child(&world, &format!("child-{number}"), "root", "hello").await;
    }
    for number in 0..CHILDREN {
        world.until(&format!("child-{number}"), "has a pod", |status| status.pod_uid.is_some()).await;
    }
    let started = operator.reconciles().await;
    world.cancel("root").await;
    world.stopped("root").await;
    let stopped = operator.reconciles().await;
    for number in 0..CHILDREN {
        let run = world.stopped(&format!("child-{number}")).await;
        assert_eq!(end(&run), (Phase::Cancelled, "Cancelled"));
    }
    let written = mark.requests_of(&world.rights.user);
    let written: Vec<Request> = written.into_iter().filter(Request::is_counted_write).collect();
    let each = |count: usize| count.div_ceil(CHILDREN);
    let (starting, stopping) = (each((started - before) as usize), each((stopped - started) as usize));
    println!("each of {CHILDREN}: {starting} reconciles to start, {stopping} to stop, {} writes", each(written.len()));
    assert!(starting <= 5 && stopping <= 8, "{starting} to start and {stopping} to stop");
    assert!(each(written.len()) <= 12, "{} writes:\n{}", written.len(), lines(&written));
    operator.stop().await;
    world.finish().await;
}

/// How many children are created after the cancel.
const LATE: usize = 12;
/// Time between two: the operator takes them as fast as they come.
const PACE: Duration = Duration::from_millis(30);

/// c14, S4: children created in the very moment of the cancel. Each is refused, or found and cancelled with the others;
/// the parent ends after all that were admitted, and nothing is left running.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c14_c51_s4_no_child_slips_through_a_cancel() {
    let world = World::new("racing").await;
    let history = History::<SubagentRun>::of(&world.namespace).await;
    let operator = world.operator().await;
    world.provider("provider", &[]).await;
    world.ready("provider").await;
    world.run("root", "provider", "hello").await;
    world.until("root", "has a pod", |status| status.pod_uid.is_some()).await;
    // They come one after the other, also for a while after the cancel.
    let is_cancelled = AtomicBool::new(false);
    let creating = async {
        let (mut count, mut more) = (0, LATE);
        while more > 0 {
            child(&world, &format!("child-{count}"), "root", "hello").await;
            count += 1;
            more -= usize::from(is_cancelled.load(Ordering::Relaxed));
            tokio::time::sleep(PACE).await;
        }
        count
    };
    let cancelling = async {
        world.until("child-3", "accepted", |status| status.lineage.is_some()).await;
        world.cancel("root").await;
        is_cancelled.store(true, Ordering::Relaxed);
    };
    let (count, ()) = tokio::join!(creating, cancelling);
    world.stopped("root").await;
    let over = async |name: &str| history.at(&format!("the end of {name}"), of(name, is_over)).await;
    let root_over = over("root").await;
    let (mut cancelled, mut refused) = (0, 0);
    for number in 0..count {
        let name = format!("child-{number}");
        let run = world.stopped(&name).await;
        match end(&run) {
            (Phase::Cancelled, "Cancelled") => {
                cancelled += 1;
                assert!(over(&name).await < root_over, "{name} outlived its parent");
            }
            (Phase::Rejected, "ParentUnavailable") => refused += 1,
            other => panic!("{name}: {other:?}"),
        }
    }
    println!("{cancelled} cancelled, {refused} refused");
    assert!(cancelled > 0 && refused > 0, "the cancel did not come in the middle");
    let left = world.pods().await.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    assert_eq!(left.map(|pod| pod.name_any()).collect::<Vec<_>>(), Vec::<String>::new());
    operator.stop().await;
    world.finish().await;
}

/// A parent and its child can be applied together, in any order of acceptance.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c14_a_child_waits_for_its_parent_to_be_accepted() {
    let world = World::new("together").await;
    let operator = world.operator().await;
    world.provider("provider", &[]).await;
    world.ready("provider").await;
    world.run("root", "late", "hello").await;
    child(&world, "child", "root", "hello").await;
    world.until("child", "waits for its parent", |status| status.reason.as_deref() == Some("ParentUnavailable")).await;
    world.provider("late", &[]).await;
    let accepted = world.until("child", "accepted", |status| status.pod_uid.is_some()).await;
    assert_eq!(status(&accepted).lineage.as_ref().map(|lineage| lineage.depth), Some(2));
    // What waits and is refused in the end hears of it as well.
    world.run("cancelled", "later", "hello").await;
    child(&world, "orphan", "cancelled", "hello").await;
    world.until("orphan", "waits", |status| status.reason.as_deref() == Some("ParentUnavailable")).await;
    world.cancel("cancelled").await;
    assert_eq!(end(&world.stopped("orphan").await), (Phase::Rejected, "ParentUnavailable"));
    operator.stop().await;
    world.finish().await;
}

/// How long nothing is to happen to a run whose time is over while one below it lives.
const KEPT: Duration = Duration::from_secs(4);

/// The time to live of a run counts from its end and waits for live descendants, whose end wakes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_to_live_waits_for_live_descendants() {
    let world = World::new("outlived").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    let mut root = world.make_run("root", "provider", "!gate root");
    root.spec.ttl_seconds_after_finished = Some(1);
    world.namespace.create(&root).await;
    let mut alone = world.make_run("alone", "provider", "hello");
    alone.spec.ttl_seconds_after_finished = Some(1);
    world.namespace.create(&alone).await;
    world.event("root", "gate", "root").await;
    child(&world, "child", "root", "!gate child").await;
    world.event("child", "gate", "child").await;
    world.node.collector().open_gate("root");
    world.stopped("root").await;
    world.gone("alone").await;
    tokio::time::sleep(KEPT).await;
    let kept: SubagentRun = world.namespace.api().get("root").await.expect("it is kept");
    assert_eq!(kept.metadata.deletion_timestamp, None);
    world.node.collector().open_gate("child");
    assert_eq!(end(&world.stopped("child").await), (Phase::Completed, "Completed"), "nobody was cancelled");
    let ended = Instant::now();
    world.gone("root").await;
    assert!(ended.elapsed() < Duration::from_secs(20), "its child's end did not wake it: {:?}", ended.elapsed());
    operator.stop().await;
    world.finish().await;
}
