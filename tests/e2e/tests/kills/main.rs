//! Random kills: workers, agents, connections, and both replicas of the operator, by the dice, while runs come and go.
//! What must hold is looked at from outside: the API server's objects and audit log, what the agents themselves report,
//! and the processes of this host.
//!
//!     make chaos SEED=1 KILLS=200
//!
//! A seed gives the same kills and the same runs again, not the same timing.

mod dice;
mod history;
mod messages;
mod overlap;
mod scripted;
mod victims;

use dice::Dice;
use e2e_tests::{
    RunView, TestNamespace, audit, cluster, collector, in_namespace, operator::scale, processes, status::end,
};
use history::{History, Seen};
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt, api::ListParams};
use scripted_agent::collector::{Collector, Event};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use subagent_crds::{SubagentRun, conditions, names};
use victims::Kill;

/// Kills without `KILLS`: as many as fit into a minute.
const KILLS: usize = 15;
/// Runs under way at a time.
const RUNS: usize = 6;
/// Longest pause between two kills, in milliseconds.
const PAUSE_MS: u64 = 1200;
/// How long after the last kill every run must be over: a held operator, its lease, a container that waits to be started
/// again, and a worker that waits for its connection, one after the other.
const SETTLE: Duration = Duration::from_secs(240);
/// How a run may end whose worker or agent was killed, beside completed.
const KILLED: &[&str] = &["WorkerLost", "AgentCrashed", "AgentStartFailed", "AgentHandshakeFailed", "PodDeleted"];

/// R1, R3, R4, R9, R14, C4, C5, T8: whatever is killed when, every run comes to exactly one end, every prompt arrives at
/// most once, nothing outlives its run, and results are right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r1_r4_r9_r14_c5_random_kills_lose_and_double_nothing() {
    seeded("kills", number("KILLS").map_or(KILLS, |kills| kills as usize), rampage).await;
}

/// Plays in a namespace of its own, with two replicas of the operator, and says with which seed.
async fn seeded(hint: &str, kills: usize, play: impl AsyncFnOnce(&TestNamespace, Dice, usize) -> String) {
    /// The replicas are those of all tests.
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _alone = ALONE.lock().await;
    let nanoseconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
    let seed = number("SEED").unwrap_or_else(|| nanoseconds.into());
    println!("SEED={seed} KILLS={kills}");
    in_namespace(hint, async |ns| {
        scale(2);
        let told = std::panic::AssertUnwindSafe(play(&ns, Dice::new(seed), kills));
        let told = futures::FutureExt::catch_unwind(told).await;
        scale(1);
        match told {
            Ok(told) => println!("SEED={seed}: {told}"),
            Err(panic) => {
                println!("it was SEED={seed} KILLS={kills}");
                std::panic::resume_unwind(panic);
            }
        }
    })
    .await;
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().filter(|text| !text.is_empty()).map(|text| text.parse().expect("a number"))
}

/// A run as it was created and hit.
struct Made {
    text: String,
    hits: Vec<Kill>,
}

async fn rampage(ns: &TestNamespace, mut dice: Dice, kills: usize) -> String {
    let began = Instant::now();
    let collector = collector();
    ns.provider(&scripted::provider(collector.address())).await;
    let history = History::follow(ns);
    let mut made: BTreeMap<String, Made> = BTreeMap::new();
    let mut done: BTreeMap<Kill, usize> = BTreeMap::new();
    while done.values().sum::<usize>() < kills {
        let kill = Kill::roll(&mut dice);
        // What has nobody to hit now will have later.
        let deadline = Instant::now() + SETTLE;
        loop {
            while made.len() - history.stopped() < RUNS {
                let name = format!("r{:03}", made.len());
                let scripted = scripted::roll(&mut dice, &name);
                ns.create(&scripted.run).await;
                made.insert(name, Made { text: scripted.text, hits: vec![] });
            }
            if hit(ns, &history, &mut made, kill, &mut dice).await {
                break;
            }
            assert!(Instant::now() < deadline, "{kill:?} found nobody within {SETTLE:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        *done.entry(kill).or_default() += 1;
        tokio::time::sleep(Duration::from_millis(dice.below(PAUSE_MS))).await;
    }
    for name in made.keys() {
        let is_over = |run: &SubagentRun| run.is(conditions::FINISHED) && run.is(conditions::STOPPED);
        ns.until(name, "Finished and Stopped", SETTLE, is_over).await;
    }
    // The history is complete when it has seen that, too.
    let all = made.len();
    let complete =
        async || if history.stopped() == all { Ok(()) } else { Err(format!("{} of {all}", history.stopped())) };
    ns.eventually("the watch saw every end", SETTLE, complete).await;

    let seen = history.all();
    let mut wrong = vec![];
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    let events = events_by_run(&collector);
    for (name, made) in &made {
        let seen = &seen[name];
        let none = vec![];
        wrong.extend(faults(made, seen, events.get(name).unwrap_or(&none)).into_iter().map(|fault| {
            format!("{name} (hit by {:?}): {fault}; phases {:?}, end {:?}", made.hits, seen.phases, seen.end)
        }));
        *ends
            .entry(seen.end.clone().map(|(phase, _, reason)| format!("{phase}/{reason}")).unwrap_or_default())
            .or_default() += 1;
    }
    wrong.extend(pods_made_twice(&ns.name));
    assert!(wrong.is_empty(), "{} things are wrong:\n{}", wrong.len(), wrong.join("\n"));
    gone_without_a_trace(ns, &seen).await;
    format!("{kills} kills {done:?} under {all} runs {ends:?} in {:.0?}", began.elapsed())
}

async fn hit(
    ns: &TestNamespace,
    history: &History,
    made: &mut BTreeMap<String, Made>,
    kill: Kill,
    dice: &mut Dice,
) -> bool {
    if !kill.hits_a_run() && kill != Kill::Link {
        return kill.hit_operator(&ns.client, dice).await;
    }
    let alive = history.alive();
    let Some(run) = dice.one_of(&alive) else { return false };
    // Written before it is done: it may show at once.
    let hits = &mut made.get_mut(&run.name_any()).expect("a run of this test").hits;
    hits.push(kill);
    let is_hit = kill.hit_run(run);
    if !is_hit {
        hits.pop();
    }
    is_hit
}

fn events_by_run(collector: &Collector) -> BTreeMap<String, Vec<Event>> {
    let mut by_run: BTreeMap<String, Vec<Event>> = BTreeMap::new();
    for event in collector.all() {
        by_run.entry(event.tag.clone()).or_default().push(event);
    }
    by_run
}

/// What is wrong with a run that is over.
fn faults(made: &Made, seen: &Seen, events: &[Event]) -> Vec<String> {
    let mut faults = seen.wrong.clone();
    let run = seen.last.clone().expect("it was seen");
    let prompts = events.iter().filter(|event| ["prompt", "second-prompt"].contains(&event.kind.as_str())).count();
    if prompts > 1 {
        faults.push(format!("its prompt arrived {prompts} times"));
    }
    let terminal = ["Completed", "Failed", "Cancelled", "Rejected"];
    if seen.phases.iter().filter(|phase| terminal.contains(&phase.as_str())).count() != 1 {
        faults.push("not exactly one terminal phase".into());
    }
    let ended = run.end();
    if ended == end("Completed", "Completed", "Completed") {
        if prompts != 1 {
            faults.push(format!("completed with {prompts} prompts"));
        }
        if run.text() != made.text {
            faults.push(format!("its result is {:?}, not {:?}", run.text(), made.text));
        }
    } else if !made.hits.iter().any(|kill| kill.hits_a_run()) {
        faults.push(format!("nobody touched it, and it ended: {}", run.message()));
    } else if ended.0 != "Failed" || !KILLED.contains(&ended.2.as_str()) {
        faults.push(format!("an end no kill explains: {}", run.message()));
    } else if prompts == 1 && !run.is(conditions::INTERRUPTED) && ended.2 != "AgentCrashed" {
        faults.push("Interrupted is not said although the prompt had arrived".into());
    }
    let stopped_ms = seen.stopped_ms.unwrap_or_default();
    if let Some(late) = events.iter().find(|event| event.kind == "stamp" && event.time_ms > stopped_ms) {
        faults.push(format!("its agent lived {} ms after Stopped", late.time_ms - stopped_ms));
    }
    faults
}

/// Pods that were created twice for one attempt.
fn pods_made_twice(namespace: &str) -> Vec<String> {
    let text = format!("\"namespace\":\"{namespace}\"");
    let created = audit::requests(&text, |request| {
        request.verb() == "create" && request.resource() == "pods" && !request.is_dry_run() && request.code() == 201
    });
    let mut names = BTreeSet::new();
    let twice = created.into_iter().filter(|request| !names.insert(request.name().to_owned()));
    twice.map(|request| format!("a second pod for an attempt: {}", request.line())).collect()
}

/// Deletes the runs; then no pod is left, and no process of any of them.
async fn gone_without_a_trace(ns: &TestNamespace, seen: &BTreeMap<String, Seen>) {
    ns.kubectl(&["delete", "subagentruns", "--all", "--timeout=120s"]);
    let params = ListParams::default().labels(names::RUN_UID_LABEL);
    let params = &params;
    ns.eventually("no pod outlives its run", SETTLE, async || {
        let pods = ns.api::<Pod>().list(params).await.map_err(|error| error.to_string())?.items;
        if pods.is_empty() { Ok(()) } else { Err(format!("{:?}", pods.iter().map(Pod::name_any).collect::<Vec<_>>())) }
    })
    .await;
    let left: Vec<i32> = seen.values().flat_map(|seen| &seen.pods).flat_map(|uid| processes::of_pod(uid)).collect();
    assert!(left.is_empty(), "processes {left:?} outlive their runs");
    assert!(!cluster::operator_pods(&ns.client).await.is_empty());
}
