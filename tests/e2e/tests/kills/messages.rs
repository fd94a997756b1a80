//! The same under continuable children, with messages flowing: whatever is killed when, each message comes to exactly one
//! outcome and reaches an agent at most once, in order, and no child is stuck or has two activations at a time.

use crate::{
    dice::Dice,
    history::History,
    number,
    overlap::{self, Pods},
    seeded,
    victims::Kill,
};
use e2e_tests::{RunView, ScriptedProvider, TestNamespace, collector, objects::PROVIDER};
use futures::{StreamExt, TryStreamExt};
use kube::{
    ResourceExt,
    api::ListParams,
    runtime::{WatchStreamExt, watcher},
};
use scripted_agent::collector::Collector;
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use subagent_crds::{
    StopReason, Subagent, SubagentPhase, SubagentRun, bounds, conditions,
    message::{Delivery, Outcome},
    names,
};

/// Kills without `KILLS`: with what surrounds them as many as fit into a minute or two.
const KILLS: usize = 10;
/// Children that are spoken to.
const CHILDREN: usize = 3;
/// Longest pause between two things that are done, in milliseconds.
const PAUSE_MS: u64 = 700;
/// Entries of an inbox beyond which nothing is appended: the API server would refuse above 64.
const FULL: usize = 56;
/// How long after the last kill every child must be settled.
const SETTLE: Duration = Duration::from_secs(300);
/// Largest child, in bytes: its few hundred bytes for each entry, turn and condition. However much happens, it grows no further.
const LARGEST: usize = 128 * 1024;
/// Most finished runs that a child keeps: its history, and that of the last result.
const RUNS: usize = 6;

/// R5, R9, R11, R13, R16, c36 to c44.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r5_r9_r11_random_kills_under_messages_lose_and_double_nothing() {
    seeded("messages", number("KILLS").map_or(KILLS, |kills| kills as usize), rampage).await;
}

/// Agents that stamp as long as they live, and take a moment to open a session, so that kills meet that, too.
fn provider(collector: SocketAddr) -> ScriptedProvider {
    let provider = ScriptedProvider::keeping_sessions().reporting_to(collector);
    let provider = provider.env("SCRIPTED_AGENT_STAMP", "200").env("SCRIPTED_AGENT_NEW", "delay:100");
    provider.env_of_pod("SCRIPTED_AGENT_TAG", "metadata.name")
}

/// A message that was sent.
struct Sent {
    child: usize,
    id: String,
    delivery: Delivery,
    has_content: bool,
}

async fn rampage(ns: &TestNamespace, mut dice: Dice, kills: usize) -> String {
    let began = Instant::now();
    let collector = collector();
    ns.continuable(&provider(collector.address())).await;
    let (runs, inboxes, pods) = (History::follow(ns), Inboxes::follow(ns), Pods::follow(ns, child_of));
    let mut sent = vec![];
    for child in 0..CHILDREN {
        let message = json!({"id": id_of(child, 0), "text": text(&id_of(child, 0), &mut dice)});
        let spec = json!({"providerRef": {"name": PROVIDER}, "description": "spoken to", "messages": [message]});
        ns.create(&Subagent::new(&name(child), serde_json::from_value(spec).expect("a child's spec"))).await;
        sent.push(Sent { child, id: id_of(child, 0), delivery: Delivery::Queue, has_content: true });
    }
    let mut done: BTreeMap<Kill, usize> = BTreeMap::new();
    let mut deadline = Instant::now() + SETTLE;
    while done.values().sum::<usize>() < kills {
        assert!(Instant::now() < deadline, "nobody to hit within {SETTLE:?}");
        if let Some(message) = speak(ns, &inboxes, sent.len(), &mut dice) {
            sent.push(message);
        }
        if dice.below(2) == 0 {
            let kill = Kill::roll(&mut dice);
            if hit(ns, &runs, kill, &mut dice).await {
                *done.entry(kill).or_default() += 1;
                deadline = Instant::now() + SETTLE;
            }
        }
        tokio::time::sleep(Duration::from_millis(dice.below(PAUSE_MS))).await;
    }
    for child in 0..CHILDREN {
        // What an interruption or a lost activation has parked waits for the next message; the last one may be parked itself.
        for number in 9000.. {
            let id = id_of(child, number);
            append(ns, child, &json!({"id": id, "text": format!("!report {id}")}));
            sent.push(Sent { child, id, delivery: Delivery::Queue, has_content: true });
            let rests = [SubagentPhase::Settled, SubagentPhase::Parked];
            let name = name(child);
            let at_rest = ns.until(&name, "Settled or Parked", SETTLE, |child: &Subagent| {
                child.status.as_ref().is_some_and(|status| {
                    status.phase.is_some_and(|phase| rests.contains(&phase))
                        && status.observed_generation == child.metadata.generation
                })
            });
            let phase = at_rest.await.status.and_then(|status| status.phase);
            if phase == Some(SubagentPhase::Settled) {
                break;
            }
            assert!(number < 9005, "{name} is parked again and again, with nobody killing");
        }
    }
    ns.eventually("the watch saw every outcome", SETTLE, async || {
        let seen = inboxes.lock();
        let missing: Vec<&str> =
            sent.iter().filter(|message| !seen.outcomes.contains_key(&message.id)).map(|it| it.id.as_str()).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("without an outcome: {missing:?}")) }
    })
    .await;
    let mut wrong = faults(&sent, &inboxes, &runs, &collector);
    wrong.extend(pods.wrong());
    wrong.extend(overlap::of_agents(&collector.all(), child_of));
    wrong.extend(grown(ns).await);
    assert!(wrong.is_empty(), "{} things are wrong:\n{}", wrong.len(), wrong.join("\n"));
    let mut outcomes: BTreeMap<&str, usize> = BTreeMap::new();
    for outcome in inboxes.lock().outcomes.values() {
        *outcomes.entry(outcome.as_str()).or_default() += 1;
    }
    let epochs = runs.all().len();
    nothing_is_held(ns).await;
    ns.kubectl(&["delete", "subagents", "--all", "--timeout=180s"]);
    format!(
        "{kills} kills {done:?} under {} messages {outcomes:?} in {epochs} activations, {:.0?}",
        sent.len(),
        began.elapsed()
    )
}

fn name(child: usize) -> String {
    format!("child-{child}")
}

/// The child whose pod that is.
fn child_of(pod: &str) -> Option<String> {
    (0..CHILDREN).map(name).find(|child| pod.strip_prefix(child.as_str()).is_some_and(|rest| rest.starts_with('-')))
}

fn id_of(child: usize, number: usize) -> String {
    format!("c{child}-{number:04}")
}

/// A turn that reports its message and then works for up to a second and a half.
fn text(id: &str, dice: &mut Dice) -> String {
    format!("!report {id}\n!sleep {}\n!say {id}", dice.below(1500))
}

/// As the README does it.
fn append(ns: &TestNamespace, child: usize, message: &serde_json::Value) {
    let patch = json!([{"op": "add", "path": "/spec/messages/-", "value": message}]).to_string();
    ns.kubectl(&["patch", "subagent", &name(child), "--type=json", "-p", &patch]);
}

/// Says something to a child by the dice; nothing when its inbox is full.
fn speak(ns: &TestNamespace, inboxes: &Inboxes, number: usize, dice: &mut Dice) -> Option<Sent> {
    let child = dice.below(CHILDREN as u64) as usize;
    if inboxes.lock().entries.get(&name(child)).copied().unwrap_or_default() >= FULL {
        return None;
    }
    let id = id_of(child, number);
    let (delivery, has_content) = match dice.below(10) {
        0 => (Delivery::Interrupt, false),
        1 => (Delivery::Interrupt, true),
        2 | 3 => (Delivery::Steer, true),
        _ => (Delivery::Queue, true),
    };
    let mut message = json!({"id": id, "delivery": delivery.as_str()});
    if has_content {
        let said = if delivery == Delivery::Steer { format!("!report {id}") } else { text(&id, dice) };
        message["text"] = said.into();
    }
    append(ns, child, &message);
    Some(Sent { child, id, delivery, has_content })
}

async fn hit(ns: &TestNamespace, runs: &History, kill: Kill, dice: &mut Dice) -> bool {
    if !kill.hits_a_run() && kill != Kill::Link {
        return kill.hit_operator(&ns.client, dice).await;
    }
    dice.one_of(&runs.alive()).is_some_and(|run| kill.hit_run(run))
}

fn faults(sent: &[Sent], inboxes: &Inboxes, runs: &History, collector: &Collector) -> Vec<String> {
    let seen = inboxes.lock();
    let mut wrong = seen.wrong.clone();
    let reports = collector.of_kind("report");
    for message in sent {
        let received = reports.iter().filter(|event| event.text == message.id).count();
        let outcome = seen.outcomes[&message.id];
        let limit = match outcome {
            Outcome::Discarded | Outcome::Applied => 0,
            _ => 1,
        };
        if received > limit {
            wrong.push(format!("message {} ({outcome:?}) reached an agent {received} times", message.id));
        }
        match seen.turns.get(&message.id) {
            Some(turns) if turns.len() > 1 => wrong.push(format!("message {} had the turns {turns:?}", message.id)),
            Some(turns) => {
                let completed = turns.iter().any(|turn| turn.2 == StopReason::Completed.as_str());
                if completed && received != 1 {
                    wrong.push(format!("message {} has a completed turn and reached no agent", message.id));
                }
            }
            None if matches!(outcome, Outcome::Started | Outcome::Claimed) => {
                wrong.push(format!("message {} is {outcome:?} and no turn of it was told", message.id));
            }
            None => {}
        }
        let fits = match (message.delivery, message.has_content) {
            (Delivery::Steer, _) => matches!(outcome, Outcome::Steered | Outcome::Rejected),
            (Delivery::Interrupt, false) => outcome == Outcome::Applied,
            _ => matches!(outcome, Outcome::Started | Outcome::Claimed | Outcome::Rejected),
        };
        if !fits {
            wrong.push(format!("message {} ({:?}) ended as {outcome:?}", message.id, message.delivery));
        }
    }
    for child in 0..CHILDREN {
        let own = sent.iter().filter(|message| message.child == child && message.delivery != Delivery::Steer);
        let order: Vec<usize> =
            own.filter_map(|message| reports.iter().position(|event| event.text == message.id)).collect();
        if !order.is_sorted() {
            wrong.push(format!("{} was told in another order than it was sent: {order:?}", name(child)));
        }
    }
    wrong.extend(two_at_a_time(runs));
    wrong.extend(runs.all().into_values().flat_map(|seen| seen.wrong));
    wrong
}

/// Contract c36: the next activation's run is created after the proof that the one before it has stopped.
fn two_at_a_time(runs: &History) -> Vec<String> {
    let mut by_child: BTreeMap<String, Vec<SubagentRun>> = BTreeMap::new();
    for run in runs.all().into_values().filter_map(|seen| seen.last) {
        if let Some(activation) = &run.spec.activation {
            by_child.entry(activation.subagent_ref.uid.clone()).or_default().push(run);
        }
    }
    let mut wrong = vec![];
    for own in by_child.values_mut() {
        own.sort_by_key(|run| run.spec.activation.as_ref().map(|activation| activation.epoch));
        for pair in own.windows(2) {
            let status = pair[0].status.clone().unwrap_or_default();
            let stopped = conditions::get(&status.conditions, conditions::STOPPED).map(|it| it.last_transition_time.0);
            let next = pair[1].creation_timestamp().map(|time| time.0);
            if stopped > next {
                wrong.push(format!("{} was created before {} had stopped", pair[1].name_any(), pair[0].name_any()));
            }
        }
    }
    wrong
}

/// Children that hold more than they may after all that.
async fn grown(ns: &TestNamespace) -> Vec<String> {
    let mut wrong = vec![];
    for number in 0..CHILDREN {
        let child: Subagent = ns.api().get(&name(number)).await.expect("the child");
        let status = child.status.clone().unwrap_or_default();
        let bytes = serde_json::to_vec(&child).map_or(usize::MAX, |json| json.len());
        println!("{}: {bytes} bytes, {} epochs", name(number), status.epochs);
        let lists = [child.spec.messages.len(), status.messages.len(), status.turns.len()];
        if bytes > LARGEST || lists[0].max(lists[1]) > bounds::INBOX || lists[2] > bounds::TURNS {
            wrong.push(format!("{} has grown: {bytes} bytes, entries, outcomes and turns {lists:?}", name(number)));
        }
    }
    wrong
}

/// Waits until what is left of the activations is what is kept of them, over and let go.
async fn nothing_is_held(ns: &TestNamespace) {
    ns.eventually("few runs, all let go", SETTLE, async || {
        let runs = ns.api::<SubagentRun>().list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
        let held: Vec<String> = runs
            .iter()
            .filter(|run| !run.is(conditions::STOPPED) || run.finalizers().iter().any(|it| it == names::FOLD_FINALIZER))
            .map(ResourceExt::name_any)
            .collect();
        let few = runs.len() <= CHILDREN * RUNS;
        if held.is_empty() && few { Ok(()) } else { Err(format!("{} runs, of which are held: {held:?}", runs.len())) }
    })
    .await;
}

/// What a watch saw of every inbox.
#[derive(Clone, Default)]
struct Inboxes(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    /// Final outcome of every message, as it was stored first.
    outcomes: BTreeMap<String, Outcome>,
    /// Epoch, number and stop reason of the turns of every message.
    turns: BTreeMap<String, BTreeSet<(i64, i64, String)>>,
    /// Entries of each child's inbox.
    entries: BTreeMap<String, usize>,
    wrong: Vec<String>,
}

impl Inboxes {
    fn follow(ns: &TestNamespace) -> Self {
        let inboxes = Self::default();
        let (children, seen) = (ns.api::<Subagent>(), inboxes.clone());
        let mut changes = watcher(children, watcher::Config::default()).default_backoff().applied_objects().boxed();
        tokio::spawn(async move {
            loop {
                // An error is of a watch that begins anew by itself.
                if let Ok(Some(child)) = changes.try_next().await {
                    seen.see(&child);
                }
            }
        });
        inboxes
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn see(&self, child: &Subagent) {
        let mut seen = self.lock();
        seen.entries.insert(child.name_any(), child.spec.messages.len());
        for turn in child.status.iter().flat_map(|status| &status.turns) {
            let told = (turn.epoch, turn.turn, turn.stop_reason.clone());
            seen.turns.entry(turn.message_id.clone()).or_default().insert(told);
        }
        for message in child.status.iter().flat_map(|status| &status.messages) {
            let before = seen.outcomes.get(&message.id).copied();
            match before {
                Some(first) if first != message.outcome => {
                    seen.wrong.push(format!("the outcome {first:?} of {} became {:?}", message.id, message.outcome));
                }
                None if message.outcome.is_terminal() => {
                    seen.outcomes.insert(message.id.clone(), message.outcome);
                }
                _ => {}
            }
        }
    }
}
