//! Many messages to one child: fifty at once by several writers, and as many as a long life brings.
//!
//!     make scale MESSAGES=10000

use crate::{
    audit::{Mark, Request},
    children::{Children, message, queue},
    world::LIMIT,
};
use futures::{StreamExt, TryStreamExt, future::join_all};
use kube::{
    Api,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};
use subagent_crds::{
    Subagent, SubagentStatus, bounds,
    message::{InboxMessage, Outcome},
};
use subagent_operator::subagent::memory;

/// Sends a patch until it is taken: others write at the same time, and a full inbox takes nothing.
async fn send(children: &Children, manager: &str, patch: &Patch<Value>) {
    let api = children.world.namespace.api::<Subagent>();
    let params = match patch {
        Patch::Apply(_) => PatchParams::apply(manager),
        _ => PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() },
    };
    let (api, params) = (&api, &params);
    children
        .world
        .namespace
        .eventually(&format!("{manager} is heard"), LIMIT, async || {
            api.patch("child", params, patch).await.map(drop).map_err(|error| error.to_string())
        })
        .await;
}

/// A manifest with these messages, for server-side apply: of its manager's, it removes what it does not list.
fn applied(messages: &[Value]) -> Patch<Value> {
    Patch::Apply(json!({
        "apiVersion": "subagents.dev/v1alpha1", "kind": "Subagent", "metadata": {"name": "child"},
        "spec": {"messages": messages},
    }))
}

fn appended(messages: &[Value]) -> Patch<Value> {
    let add = |message: &Value| json!({"op": "add", "path": "/spec/messages/-", "value": message});
    Patch::Json(serde_json::from_value(messages.iter().map(add).collect()).expect("a patch"))
}

/// What a watch saw of the inbox: each message's first sequence, and its final outcome.
#[derive(Clone, Default)]
struct Watched(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    sequences: BTreeMap<String, i64>,
    outcomes: BTreeMap<String, Outcome>,
    changed: Vec<String>,
}

impl Watched {
    fn follow(api: Api<Subagent>) -> Self {
        let watched = Self::default();
        let seeing = watched.clone();
        let mut changes = watcher(api, watcher::Config::default()).default_backoff().applied_objects().boxed();
        tokio::spawn(async move {
            loop {
                // An error is of a watch that begins anew by itself.
                if let Ok(Some(child)) = changes.try_next().await {
                    seeing.see(&child.status.unwrap_or_default());
                }
            }
        });
        watched
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().expect("what was seen")
    }

    fn see(&self, status: &SubagentStatus) {
        let mut seen = self.lock();
        for message in &status.messages {
            seen.sequences.entry(message.id.clone()).or_insert(message.sequence);
            match seen.outcomes.get(&message.id) {
                Some(first) if *first != message.outcome => {
                    let changed = format!("{}: {first:?} became {:?}", message.id, message.outcome);
                    seen.changed.push(changed);
                }
                None if message.outcome.is_terminal() => {
                    seen.outcomes.insert(message.id.clone(), message.outcome);
                }
                _ => {}
            }
        }
    }
}

/// Texts of all prompts that any agent got, in order. Each is the id of its message.
fn prompts(children: &Children) -> Vec<String> {
    let mut all = children.world.node.collector().of_kind("prompt");
    all.extend(children.world.node.collector().of_kind("second-prompt"));
    all.into_iter().map(|event| event.text.lines().next().unwrap_or_default().to_owned()).collect()
}

fn saying(id: &str) -> Value {
    queue(id, id)
}

/// R11, R12, c37: five writers send ten messages each, all at once: two apply one more each time, one appends them one by one,
/// one appends all, one applies all. Each message has one outcome and one turn, in the order in which they were accepted, which
/// for each writer is the order in which it sent them. What comes again after it was pruned has no effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r11_r12_fifty_messages_at_once_by_five_writers_have_one_turn_each() {
    let (children, operator) = Children::new("fifty").await;
    let watched = Watched::follow(children.world.namespace.api());
    children.told("child", "m1").await;
    let writers = ["a", "b", "c", "d", "e"];
    let ids = |writer: &str| (0..10).map(|number| format!("{writer}{number}")).collect::<Vec<_>>();
    join_all(writers.map(async |writer| {
        let messages: Vec<Value> = ids(writer).iter().map(|id| saying(id)).collect();
        match writer {
            "a" | "b" => {
                for up_to in 1..=messages.len() {
                    send(&children, writer, &applied(&messages[..up_to])).await;
                }
            }
            "c" => {
                for message in &messages {
                    send(&children, writer, &appended(std::slice::from_ref(message))).await;
                }
            }
            "d" => send(&children, writer, &appended(&messages)).await,
            _ => send(&children, writer, &applied(&messages)).await,
        }
    }))
    .await;
    let status = children.settled("child").await;
    let all: BTreeSet<String> = writers.iter().flat_map(|writer| ids(writer)).chain(["m1".to_owned()]).collect();
    let complete = async || {
        let seen = watched.lock();
        let missing: Vec<_> = all.iter().filter(|id| !seen.outcomes.contains_key(*id)).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("no outcome of {missing:?}")) }
    };
    children.world.namespace.eventually("the watch saw every outcome", LIMIT, complete).await;
    let prompted = prompts(&children);
    {
        let seen = watched.lock();
        assert_eq!(seen.changed, Vec::<String>::new(), "a final outcome never changes");
        assert_eq!(seen.outcomes.keys().cloned().collect::<BTreeSet<_>>(), all);
        let taken = |outcome: &Outcome| matches!(outcome, Outcome::Started | Outcome::Claimed);
        assert!(seen.outcomes.values().all(taken), "{:?}", seen.outcomes);
        let mut in_order: Vec<_> = all.iter().cloned().collect();
        in_order.sort_by_key(|id| seen.sequences[id]);
        assert_eq!(prompted, in_order, "each once, in the order of acceptance");
    }
    for writer in writers {
        let own: Vec<_> = prompted.iter().filter(|id| id.starts_with(writer)).cloned().collect();
        assert_eq!(own, ids(writer), "in the order in which they were sent");
    }

    let child = children.world.namespace.api::<Subagent>().get("child").await.expect("the child");
    let is_listed = |id: &str| child.spec.messages.iter().any(|entry| entry.id == id);
    let pruned: Vec<_> = prompted.iter().filter(|id| !is_listed(id)).take(2).collect();
    let [same, other] = pruned[..] else { panic!("the inbox was not pruned: {pruned:?}") };
    send(&children, "again", &appended(&[saying(same), queue(other, "something else")])).await;
    let again = children.settled("child").await;
    assert_eq!((message(&again, same).conflict, message(&again, other).conflict), (false, true));
    assert_eq!((again.epochs, prompts(&children)), (status.epochs, prompted));
    children.finish(operator).await;
}

/// Messages without `MESSAGES`: the inbox is pruned some twenty times.
const MESSAGES: usize = 320;
/// Messages that are sent together: beside what pruning leaves at most they fill the inbox.
const BATCH: usize = bounds::INBOX - bounds::INBOX_PRUNED;
/// After so many messages the child is left alone until it has settled, so that it has many activations.
const ACTIVATION: usize = 10 * BATCH;
/// One message in so many has a turn of its own; the others steer. A batch begins with one that has.
const TURN: usize = 16;
/// The gate in the first turn of a batch.
const STEERED: &str = "steered";
/// One message in so many is as large as one may be.
const LARGE: usize = 50;
/// A third of what etcd takes in one object unless told otherwise.
const SMALL: usize = 512 * 1024;
/// ConfigMaps that may remember ids: of two in a row the older one is more than twice as large.
const PARTS: usize = 14;
/// Entries of `managedFields`: the operator's, and those of whoever has an entry in the inbox.
const MANAGERS: usize = bounds::INBOX + 8;

fn id_of(number: usize) -> String {
    format!("m{number}")
}

fn has_turn(number: usize) -> bool {
    number.is_multiple_of(TURN) || number % BATCH == 1
}

fn nth(number: usize) -> Value {
    let id = id_of(number);
    match number {
        // It lasts until one was steered into it.
        1 => queue(&id, &format!("{id}\n!gate {STEERED}")),
        _ if has_turn(number) => saying(&id),
        _ if number.is_multiple_of(LARGE - 1) => {
            let text = format!("{id:x<size$}", size = bounds::MESSAGE_CONTENT);
            json!({"id": id, "delivery": "Steer", "text": text})
        }
        _ => json!({"id": id, "delivery": "Steer", "text": id}),
    }
}

/// The largest of what was seen, in bytes as the API server tells it.
#[derive(Debug, Default)]
struct Largest {
    child: usize,
    run: usize,
    part: usize,
    parts: usize,
    runs: usize,
    managers: usize,
}

impl Largest {
    async fn look(&mut self, children: &Children) {
        let (namespace, client) = (&children.world.namespace.name, &children.world.namespace.client);
        let list = async |path: String| {
            let request = http::Request::get(path).body(vec![]).expect("a request");
            let mut list: Value = client.request(request).await.expect("a list");
            serde_json::from_value::<Vec<Value>>(list["items"].take()).expect("items")
        };
        let largest = |items: &[Value]| items.iter().map(|item| item.to_string().len()).max().unwrap_or_default();
        let ours = format!("/apis/subagents.dev/v1alpha1/namespaces/{namespace}");
        let found = list(format!("{ours}/subagents")).await;
        self.child = self.child.max(largest(&found));
        let managers = found.iter().filter_map(|child| child["metadata"]["managedFields"].as_array()).map(Vec::len);
        self.managers = managers.chain([self.managers]).max().unwrap_or_default();
        let found = list(format!("{ours}/subagentruns")).await;
        (self.run, self.runs) = (self.run.max(largest(&found)), self.runs.max(found.len()));
        let label = format!("{}={}", subagent_crds::names::CONTENT_LABEL, subagent_crds::names::CONTENT_SEEN_IDS);
        let found = list(format!("/api/v1/namespaces/{namespace}/configmaps?labelSelector={label}")).await;
        (self.part, self.parts) = (self.part.max(largest(&found)), self.parts.max(found.len()));
    }
}

/// The writes of the operator, by what was written.
fn writes(children: &Children, since: Mark) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for request in since.requests_of(&children.world.rights.user).iter().filter(|one| one.is_counted_write()) {
        *counts.entry(Request::what(request)).or_default() += 1;
    }
    counts
}

/// T5, R12: thousands of messages in the life of one child. Its objects stay small and can be written, every message has its
/// outcome and is remembered, those that have turns have them once and in order, and an old id sent again has no effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t5_r12_a_long_life_stays_small_and_forgets_no_message() {
    let count: usize = std::env::var("MESSAGES").map_or(MESSAGES, |text| text.parse().expect("a number"));
    let (children, operator) = Children::new("life").await;
    let first = json!({"activation": {"residencySeconds": 3}, "messages": [saying("m0")]});
    let child = children.create("child", first).await;
    let api = children.world.namespace.api::<Subagent>();
    let (began, mark, mut largest) = (Instant::now(), Mark::now(), Largest::default());
    for first in (1..=count).step_by(BATCH) {
        let batch: Vec<Value> = (first..(first + BATCH).min(count + 1)).map(nth).collect();
        // Every batch begins with the message of a writer that is never heard again.
        send(&children, &format!("writer-{first}"), &applied(&batch[..1])).await;
        if first == 1 {
            let has_begun = async || {
                let seen = children.world.node.collector().of_kind("gate");
                if seen.iter().any(|event| event.text == STEERED) { Ok(()) } else { Err(format!("{seen:?}")) }
            };
            children.world.namespace.eventually("the agent waits at the gate", LIMIT, has_begun).await;
        }
        send(&children, "writer", &appended(&batch[1..])).await;
        if first == 1 {
            let is_steered = |child: &Subagent| {
                let mut seen = child.status.iter().flat_map(|status| &status.messages);
                seen.any(|message| message.outcome == Outcome::Steered)
            };
            children.world.namespace.until::<Subagent>("child", "steered", LIMIT, is_steered).await;
            children.world.node.collector().open_gate(STEERED);
        }
        largest.look(&children).await;
        if first % ACTIVATION == 1 {
            children.settled("child").await;
            println!("{first} of {count} messages after {:.0?}: {largest:?}", began.elapsed());
        }
        let has_room = |child: &Subagent| {
            let bytes: usize = child.spec.messages.iter().map(InboxMessage::bytes).sum();
            child.spec.messages.len() <= bounds::INBOX_PRUNED && bytes <= bounds::INBOX_TOTAL_PRUNED
        };
        children.world.namespace.until::<Subagent>("child", "has room", LIMIT, has_room).await;
    }
    let status = children.settled("child").await;
    let (taken, written) = (began.elapsed(), writes(&children, mark));
    largest.look(&children).await;

    let turns: Vec<String> = (0..=count).filter(|number| has_turn(*number)).map(id_of).collect();
    assert_eq!(prompts(&children), turns, "each once, in order");
    let now = api.get("child").await.expect("the child");
    let memory = memory::load(&children.world.namespace.client, &now).await.expect("the memory");
    let mut steered: BTreeMap<String, usize> = BTreeMap::new();
    for event in children.world.node.collector().of_kind("steer") {
        *steered.entry(event.text.trim_end_matches('x').to_owned()).or_default() += 1;
    }
    let mut outcomes: BTreeMap<&str, usize> = BTreeMap::new();
    for number in 0..=count {
        let id = id_of(number);
        let listed = status.messages.iter().find(|message| message.id == id).map(|message| message.outcome);
        let outcome = listed.or_else(|| memory.recall(&id).map(|seen| seen.outcome));
        let outcome = outcome.unwrap_or_else(|| panic!("{id} is forgotten"));
        let received = steered.get(&id).copied().unwrap_or_default();
        let fits = match outcome {
            Outcome::Started | Outcome::Claimed => has_turn(number),
            Outcome::Steered => !has_turn(number) && received == 1,
            // The agent may have been asked, and have said no.
            Outcome::Rejected => !has_turn(number) && received <= 1,
            _ => false,
        };
        assert!(fits, "{id} ended as {outcome:?}, and was steered {received} times");
        *outcomes.entry(outcome.as_str()).or_default() += 1;
    }
    assert!(outcomes.contains_key(Outcome::Steered.as_str()), "nothing was steered: {outcomes:?}");

    // An old id, with the same content and with another; then something new.
    let old = [17, 18].map(id_of);
    assert!(now.spec.messages.iter().all(|entry| !old.contains(&entry.id)), "both were pruned");
    let other = json!({"id": old[1], "delivery": "Queue", "text": "something else"});
    send(&children, "again", &appended(&[nth(17), other])).await;
    let again = children.settled("child").await;
    assert_eq!(old.each_ref().map(|id| message(&again, id).conflict), [false, true]);
    assert_eq!((again.epochs, prompts(&children).len()), (status.epochs, turns.len()));
    send(&children, "again", &appended(&[saying("last")])).await;
    let last = children.settled("child").await;
    assert_eq!((message(&last, "last").outcome, last.epochs), (Outcome::Started, status.epochs + 1));
    assert_eq!(prompts(&children).len(), turns.len() + 1);
    assert_eq!(child.metadata.uid, now.metadata.uid);

    println!("{}", figures(count, turns.len(), taken, &written, &largest));
    println!("outcomes {outcomes:?}, activations {}, seen ids {:?}\nwrites {written:#?}", last.epochs, last.seen_ids);
    assert!(largest.child.max(largest.run).max(largest.part) <= SMALL, "{largest:?}");
    assert!(largest.parts <= PARTS && largest.managers <= MANAGERS, "{largest:?}");
    assert!(last.turns.len() <= bounds::TURNS && last.messages.len() <= bounds::INBOX);
    children.finish(operator).await;
}

/// Lines for `docs/benchmarks.md`.
fn figures(
    count: usize,
    turns: usize,
    taken: Duration,
    written: &BTreeMap<String, usize>,
    largest: &Largest,
) -> String {
    let mut text = format!("| {count} messages to one child, {turns} of them with a turn | |\n| --- | --- |\n");
    let writes: usize = written.values().sum();
    let mut row = |what: &str, value: String| {
        let _ = writeln!(text, "| {what} | {value} |");
    };
    let kibibytes = |bytes: usize| format!("{:.0} KiB", bytes as f64 / 1024.0);
    row("time", format!("{:.0} s", taken.as_secs_f64()));
    row("writes of the operator for each message", format!("{:.1}", writes as f64 / count as f64));
    row("largest Subagent", kibibytes(largest.child));
    row("largest run of an activation", kibibytes(largest.run));
    row("largest ConfigMap with ids", kibibytes(largest.part));
    row("ConfigMaps with ids at a time", largest.parts.to_string());
    row("runs at a time", largest.runs.to_string());
    row("field managers at a time", largest.managers.to_string());
    text
}
