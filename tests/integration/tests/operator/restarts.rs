//! Operators that come and go under a turn.

use crate::{
    link::Way,
    replica::{Plan, Replica, free_port},
    world::{LIMIT, World, end, has, pod_name, status, text},
};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use nix::sys::signal::Signal;
use serde_json::json;
use std::{
    collections::HashSet,
    time::{Duration, Instant},
};
use subagent_crds::{Phase, SubagentRun, SubagentRunStatus, conditions};
use subagent_operator::{api::WriteError, run::apply::write_status};

/// Pitfall C5: how long a rolling update may leave nobody leading.
const GAP: Duration = Duration::from_secs(2);

/// How long an operator may take to notice that it leads no more: it gives up renewing after 10 s.
const LOST_WITHIN: Duration = Duration::from_secs(30);

/// R1: ended in good order and ended in the middle of everything, each time in the same turn; the turn goes on, its
/// result arrives, and the agent was asked once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r1_a_turn_survives_an_operator_that_stops_or_is_killed() {
    let world = World::new("restarted").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    let run = world.run("run", "provider", "!gate one\n!gate two\n!say survived").await;
    world.event("run", "gate", "one").await;
    let before = world.until("run", "running", |status| status.phase == Some(Phase::Running)).await;
    operator.stop().await;

    world.node.collector().open_gate("one");
    world.event("run", "gate", "two").await;
    let operator = world.operator().await;
    operator.kill().await;
    let operator = world.operator().await;
    world.node.collector().open_gate("two");
    let after = world.stopped("run").await;
    assert_eq!((end(&after), text(&after)), ((Phase::Completed, "Completed"), "survived"));
    assert_eq!(world.prompts("run"), 1);
    assert_eq!((status(&after).attempt, &status(&after).pod_uid), (Some(1), &status(&before).pod_uid));
    assert_eq!(after.uid(), run.uid());
    operator.stop().await;
    world.finish().await;
}

/// R14: the turn ends while nobody is there; the operator that comes, another one, waits for the dead one's lease to
/// expire, and the result is stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r14_a_turn_that_ends_without_an_operator_is_not_lost() {
    let world = World::new("absent").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    world.run("run", "provider", "!gate end\n!say kept").await;
    world.event("run", "gate", "end").await;
    operator.kill().await;
    world.node.collector().open_gate("end");
    // The agent's process ends only after its worker has taken the answer.
    world.event("run", "eof", "").await;
    let operator = Replica::start(world.plan("second"));
    world.until_leader("second").await;
    let run = world.stopped("run").await;
    assert_eq!((end(&run), text(&run)), ((Phase::Completed, "Completed"), "kept"));
    assert_eq!(world.prompts("run"), 1);
    operator.stop().await;
    world.finish().await;
}

/// R9, C5: two operators at once, runs under way and runs created in the very moment of the change; one pod for each,
/// the next leader is there in time, and no turn notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r9_c5_leadership_moves_without_a_second_pod_or_a_disturbed_turn() {
    let world = World::new("handover").await;
    // Workers are told the address of the replica that stays, as a Service would find it.
    let stays = free_port();
    let first = Replica::start(Plan { told_port: stays, link_port: free_port(), ..world.plan("first") });
    world.until_leader("first").await;
    let second = Replica::start(Plan { told_port: stays, link_port: stays, ..world.plan("second") });
    world.namespace.eventually("the second is ready", LIMIT, async || second.get("/readyz").await).await;
    world.node.serve();
    world.provider("provider", &[]).await;
    world.ready("provider").await;
    world.run("under-way", "provider", "!gate open\n!say undisturbed").await;
    world.event("under-way", "gate", "open").await;

    let names: Vec<String> = (0..6).map(|i| format!("created-{i}")).collect();
    for name in &names[..3] {
        world.run(name, "provider", "hello").await;
    }
    first.stop().await;
    let released = Instant::now();
    for name in &names[3..] {
        world.run(name, "provider", "hello").await;
    }
    let lease = &world.rights.release;
    let holder = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone());
    let taken = |lease: &Lease| holder(lease).as_deref() == Some("second");
    world.namespace.until::<Lease>(lease, "taken by the second", LIMIT, taken).await;
    let gap = released.elapsed();
    println!("leaderless for {gap:?}");
    assert!(gap < GAP, "leaderless for {gap:?}");

    world.node.collector().open_gate("open");
    let undisturbed = world.stopped("under-way").await;
    assert_eq!((end(&undisturbed), text(&undisturbed)), ((Phase::Completed, "Completed"), "undisturbed"));
    for name in &names {
        let run = world.stopped(name).await;
        assert_eq!(end(&run), (Phase::Completed, "Completed"));
        assert_eq!(status(&run).attempt, Some(1));
        assert_eq!(world.prompts(name), 1);
    }
    assert_eq!(world.prompts("under-way"), 1);
    let pods = world.pods().await;
    let runs: HashSet<_> = pods.iter().map(|pod| pod.labels()[subagent_crds::names::RUN_LABEL].clone()).collect();
    assert_eq!((pods.len(), runs.len()), (names.len() + 1, names.len() + 1), "more pods than runs");
    second.stop().await;
    world.finish().await;
}

/// R9: an operator whose lease went to somebody else, while it was paused, say, ends at once: another one works now, and
/// what it has under way cannot be called back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r9_an_operator_that_lost_its_lease_ends() {
    let world = World::new("lost-lease").await;
    let operator = world.operator().await;
    let taken = json!({"spec": {"holderIdentity": "somebody-else"}});
    let leases = world.namespace.api::<Lease>();
    leases.patch(&world.rights.release, &PatchParams::default(), &Patch::Merge(&taken)).await.expect("a lease");
    let why = operator.ends(LOST_WITHIN).await;
    assert!(why.contains("leadership lost"), "{why}");
    let lease = leases.get(&world.rights.release).await.expect("the lease");
    assert_eq!(lease.spec.and_then(|spec| spec.holder_identity).as_deref(), Some("somebody-else"));
    world.finish().await;
}

/// R9, T8: a status that was computed from an older view, by a leader that was paused, say, is refused: it changes
/// nothing of what others have written since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r9_t8_a_status_from_an_older_view_is_refused() {
    let world = World::new("older-view").await;
    let runs = world.namespace.api::<SubagentRun>();
    let old = world.run("run", "provider", "hello").await;
    let waiting = SubagentRunStatus { phase: Some(Phase::Pending), ..SubagentRunStatus::default() };
    let stored = write_status(&runs, &old, &waiting).await.expect("the first status");
    let late = SubagentRunStatus { phase: Some(Phase::Starting), ..SubagentRunStatus::default() };
    let refused = write_status(&runs, &old, &late).await;
    assert!(matches!(refused, Err(WriteError::Conflict(_))), "{refused:?}");
    let now: SubagentRun = runs.get("run").await.expect("the run");
    assert_eq!(now.resource_version(), stored.resource_version());
    write_status(&runs, &now, &late).await.expect("from the newest view");
}

/// R1, R3: a worker that is killed in its turn. The session was stored before the prompt, the run says that side effects
/// are possible, and nobody is asked again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r1_r3_a_worker_killed_in_its_turn_ends_the_run_interrupted() {
    let world = World::new("worker-killed").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    let run = world.run("run", "provider", "!hang").await;
    world.event("run", "prompt", "").await;
    // Read now, without waiting: the prompt has left, so the session is stored.
    let asked: SubagentRun = world.namespace.api().get("run").await.expect("the run");
    let report = status(&asked).report.clone().expect("a report");
    assert!(report.session.is_some_and(|session| !session.id.is_empty()), "R3: the session is not stored");
    assert_eq!(report.turns.len(), 1, "c41: the turn is not stored");
    world.node.worker(&pod_name(&run, 1)).await.signal(Signal::SIGKILL);
    let run = world.stopped("run").await;
    assert_eq!(end(&run), (Phase::Failed, "WorkerLost"));
    assert!(has(status(&run), conditions::INTERRUPTED));
    assert_eq!((status(&run).attempt, world.prompts("run")), (Some(1), 1));
    operator.stop().await;
    world.finish().await;
}

/// C8, R14: the API server is out of reach during a turn. The leader gives up; the operator that is started meanwhile lives
/// and waits instead of ending again and again; the agent goes on, and its end arrives when the API server is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c8_r14_a_turn_ends_while_the_api_server_is_out_of_reach() {
    let world = World::new("out-of-reach").await;
    let url = world.rights.config().await.cluster_url;
    let way = Way::to(url.port_u16().expect("the API server's port")).await;
    let plan = Plan { api_server: Some(way.port), ..world.plan("first") };
    let operator = Replica::start(plan.clone());
    world.until_leader("first").await;
    world.node.serve();
    world.provider("provider", &[]).await;
    world.run("run", "provider", "!gate away\n!say ended meanwhile").await;
    world.event("run", "gate", "away").await;
    world.until("run", "running", |status| status.phase == Some(Phase::Running)).await;

    way.close();
    let why = operator.ends(LOST_WITHIN).await;
    assert!(why.contains("leadership lost"), "{why}");
    let operator = Replica::start(plan);
    world.namespace.eventually("the process lives", LIMIT, async || operator.get("/healthz").await).await;
    let unready = operator.get("/readyz").await.expect_err("ready without an API server");
    assert!(unready.contains("not ready: gateway"), "{unready}");
    world.node.collector().open_gate("away");
    // The agent's process ends only after its worker has taken the answer.
    world.event("run", "eof", "").await;
    let before: SubagentRun = world.namespace.api().get("run").await.expect("the run");
    assert_eq!(status(&before).phase, Some(Phase::Running), "nobody could store its end");

    way.open();
    let run = world.stopped("run").await;
    assert_eq!((end(&run), text(&run)), ((Phase::Completed, "Completed"), "ended meanwhile"));
    assert_eq!((world.prompts("run"), world.pods().await.len()), (1, 1));
    operator.stop().await;
    world.finish().await;
}

/// S6: a run deleted while nobody is there drains when the operator is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s6_a_run_deleted_without_an_operator_is_stopped_when_it_is_back() {
    let world = World::new("deleted-alone").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    let run = world.run("run", "provider", "!hang").await;
    world.event("run", "prompt", "").await;
    operator.stop().await;
    world.delete_run("run").await;
    let operator = world.operator().await;
    world.event("run", "cancel", "").await;
    world.gone("run").await;
    world.node.worker(&pod_name(&run, 1)).await.exit().await;
    operator.stop().await;
    world.finish().await;
}
