//! Continuable children: with the real controllers, gateway, worker and session store, and the scripted agent, whose sessions
//! are files.

use crate::{
    audit::{Mark, Request, lines},
    replica::{Plan, Replica},
    watching::History,
    world::{LIMIT, World, end, has as run_has, pod_name},
};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Pod},
    events::v1::Event,
};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use nix::sys::signal::Signal;
use rstest::rstest;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
};
use subagent_crds::{
    Phase, Subagent, SubagentPhase, SubagentProvider, SubagentRun, SubagentRunStatus, SubagentStatus, bounds,
    conditions::{self, get, is_true},
    message::{Code, Outcome},
    names,
    provider::{Probe, SessionState},
    subagent_status::{ActivationState, MessageStatus},
};
use tempfile::TempDir;

mod outputs;

/// A world with a session store and an agent that keeps its sessions in files.
pub struct Children {
    /// The surroundings.
    pub world: World,
    folder: TempDir,
}

impl Children {
    /// The surroundings with an operator that leads, a node, and provider `provider`.
    pub async fn new(hint: &str) -> (Self, Replica) {
        let children = Self { world: World::new(hint).await, folder: tempfile::tempdir().expect("a folder") };
        fs::create_dir_all(children.store()).expect("a folder");
        let operator = children.operator("first").await;
        children.world.node.serve();
        children.world.node.serve_probes();
        children.provider("provider").await;
        (children, operator)
    }

    /// Where the agents of a provider keep their sessions. All pods of this node share it, so children that are at work at a
    /// time need a provider each.
    fn state(&self, provider: &str) -> PathBuf {
        self.folder.path().join(provider)
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    /// Starts an operator and waits until it leads.
    pub async fn operator(&self, identity: &str) -> Replica {
        let arguments = vec![format!("--session-store=file://{}", self.store().display())];
        let replica = Replica::start(Plan { arguments, ..self.world.plan(identity) });
        self.world.until_leader(identity).await;
        replica
    }

    async fn provider(&self, name: &str) -> SubagentProvider {
        self.provider_with(name, &[]).await
    }

    /// The same with more in the environment of its agents.
    async fn provider_with(&self, name: &str, env: &[(&str, &str)]) -> SubagentProvider {
        let state = self.state(name);
        fs::create_dir_all(&state).expect("a folder");
        let state = state.to_str().expect("a path").to_owned();
        let env = [&[("SCRIPTED_AGENT_STATE", state.as_str())], env].concat();
        let mut provider = self.world.make_provider(name, &env);
        provider.spec.probe = Probe::OnChange;
        provider.spec.session_state = Some(SessionState { paths: vec![state], max_bytes: 16 << 20 });
        self.world.namespace.create(&provider).await
    }

    /// The files of a pod go with it.
    fn wipe(&self) {
        for entry in fs::read_dir(self.state("provider")).expect("a folder") {
            fs::remove_file(entry.expect("an entry").path()).expect("a file");
        }
    }

    /// Creates a child of provider `provider` with more in its spec.
    pub async fn create(&self, name: &str, extra: Value) -> Subagent {
        let mut child = json!({
            "apiVersion": "subagents.dev/v1alpha1", "kind": "Subagent", "metadata": {"name": name},
            "spec": {"providerRef": {"name": "provider"}, "description": "speak again"},
        });
        let spec = child["spec"].as_object_mut().expect("a spec");
        spec.extend(extra.as_object().expect("fields").clone());
        let child: Subagent = serde_json::from_value(child).expect("a child");
        self.world.namespace.create(&child).await
    }

    /// A child whose first message is m1.
    pub async fn told(&self, name: &str, text: &str) -> Subagent {
        self.create(name, json!({"messages": [{"id": "m1", "text": text}]})).await
    }

    /// Appends messages as a person does: by a JSON patch.
    pub async fn append(&self, name: &str, messages: &[Value]) {
        let add = |message: &Value| json!({"op": "add", "path": "/spec/messages/-", "value": message});
        let operations = Value::Array(messages.iter().map(add).collect());
        let patch = Patch::<()>::Json(serde_json::from_value(operations).expect("a patch"));
        let api = self.world.namespace.api::<Subagent>();
        api.patch(name, &PatchParams::default(), &patch).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    async fn merge(&self, name: &str, patch: Value) {
        let api = self.world.namespace.api::<Subagent>();
        let patched = api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        patched.unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    /// Waits until a child's status fits.
    pub async fn until(&self, name: &str, what: &str, fits: impl Fn(&SubagentStatus) -> bool) -> SubagentStatus {
        let fits = |child: &Subagent| child.status.as_ref().is_some_and(&fits);
        let (api, fits, node) = (&self.world.namespace.api::<Subagent>(), &fits, &self.world.node);
        let child = self
            .world
            .namespace
            .eventually(&format!("{name}: {what}"), LIMIT, async || match api.get_opt(name).await {
                Ok(Some(child)) if fits(&child) => Ok(child),
                Ok(Some(child)) => {
                    let status = serde_saphyr::to_string(&child.status).unwrap_or_default();
                    Err(format!("it does not fit yet\n{status}\n{}", node.said()))
                }
                Ok(None) => Err("it does not exist".into()),
                Err(error) => Err(error.to_string()),
            })
            .await;
        child.status.expect("a status")
    }

    /// What `kubectl wait --for=condition=Settled` waits for.
    pub async fn settled(&self, name: &str) -> SubagentStatus {
        let api = self.world.namespace.api::<Subagent>();
        let generation = api.get(name).await.expect("a child").metadata.generation;
        let is_settled = |status: &SubagentStatus| {
            get(&status.conditions, conditions::SETTLED)
                .is_some_and(|settled| settled.status == "True" && settled.observed_generation >= generation)
        };
        self.until(name, "Settled", is_settled).await
    }

    pub async fn gone(&self, name: &str) {
        let (api, node) = (&self.world.namespace.api::<Subagent>(), &self.world.node);
        self.world
            .namespace
            .eventually(&format!("{name}: gone"), LIMIT, async || match api.get_opt(name).await {
                Ok(None) => Ok(()),
                other => {
                    let status = other.map(|child| child.and_then(|child| child.status));
                    Err(format!("{status:?}\n{}", node.said()))
                }
            })
            .await;
    }

    /// The run of an activation.
    pub async fn run(&self, name: &str, epoch: i64) -> SubagentRun {
        let child = self.world.namespace.api::<Subagent>().get(name).await.expect("a child");
        self.run_of(&child, epoch).await
    }

    async fn run_of(&self, child: &Subagent, epoch: i64) -> SubagentRun {
        self.world.namespace.api().get(&run_name(child, epoch)).await.expect("a run")
    }

    /// Waits until the run of an activation has lost its second finalizer.
    async fn let_go(&self, name: &str, epoch: i64) {
        let run = self.run(name, epoch).await.name_any();
        let is_free = |run: &SubagentRun| !run.finalizers().iter().any(|name| name == names::FOLD_FINALIZER);
        self.world.namespace.until::<SubagentRun>(&run, "let go", LIMIT, is_free).await;
    }

    async fn events(&self, name: &str) -> Vec<String> {
        let events = self.world.namespace.api::<Event>().list(&ListParams::default()).await.expect("events");
        let of_child = events.items.into_iter().filter(|event| {
            let about = event.regarding.as_ref();
            about.is_some_and(|about| about.name.as_deref() == Some(name) && about.kind.as_deref() == Some("Subagent"))
        });
        of_child.filter_map(|event| event.reason).collect()
    }

    /// Waits for an Event of that reason: they follow the status.
    pub async fn event(&self, name: &str, reason: &str) {
        let children = self;
        let what = format!("{name}: Event {reason}");
        self.world
            .namespace
            .eventually(&what, LIMIT, async || {
                let all = children.events(name).await;
                if all.iter().any(|one| one == reason) { Ok(()) } else { Err(format!("{all:?}")) }
            })
            .await;
    }

    /// Ends the test.
    pub async fn finish(self, operator: Replica) {
        operator.stop().await;
        self.world.finish().await;
    }
}

fn run_name(child: &Subagent, epoch: i64) -> String {
    subagent_operator::subagent::inbox::run_name(child, epoch)
}

/// A message that queues.
pub fn queue(id: &str, text: &str) -> Value {
    json!({"id": id, "text": text})
}

/// What became of a message.
pub fn message<'a>(status: &'a SubagentStatus, id: &str) -> &'a MessageStatus {
    status.messages.iter().find(|message| message.id == id).unwrap_or_else(|| panic!("{id}: {:?}", status.messages))
}

fn outcomes(status: &SubagentStatus) -> Vec<(&str, Outcome)> {
    status.messages.iter().map(|message| (message.id.as_str(), message.outcome)).collect()
}

fn preview(status: &SubagentStatus) -> &str {
    status.last_result.as_ref().and_then(|last| last.preview.as_deref()).unwrap_or_default()
}

/// The story of a child: it is told something, settles, its pod is gone, and it remembers in another pod.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c35_c40_c44_a_child_settles_and_goes_on_in_another_pod() {
    let (children, operator) = Children::new("again").await;
    children.told("child", "one").await;
    let first = children.settled("child").await;
    assert_eq!((first.phase, preview(&first)), (Some(SubagentPhase::Settled), "echo: one"));
    assert_eq!(outcomes(&first), [("m1", Outcome::Started)]);
    assert_eq!((first.epochs, first.completed_turns, first.activation.as_ref()), (1, 1, None));
    let descriptor = first.descriptor.clone().expect("a descriptor");
    assert_eq!(descriptor.mode, "Continuable");
    assert!(is_true(&first.conditions, conditions::RESUMABLE));
    for reason in ["Accepted", "Started", "Settled"] {
        children.event("child", reason).await;
    }
    let run = children.run("child", 1).await;
    let status = run.status.as_ref().expect("a status");
    assert!(status.phase == Some(Phase::Completed) && run_has(status, conditions::STOPPED), "{status:?}");

    children.wipe();
    children.append("child", &[queue("m2", "!history")]).await;
    let second = children.settled("child").await;
    assert_eq!(preview(&second), "turns before: 1");
    assert_eq!(outcomes(&second), [("m1", Outcome::Started), ("m2", Outcome::Started)]);
    assert_eq!((second.epochs, second.completed_turns, &second.session_id), (2, 2, &first.session_id));
    let run = children.run("child", 2).await;
    let report = run.status.and_then(|status| status.report).expect("a report");
    assert_eq!(report.session.expect("a session").how, "Resumed");
    for epoch in [1, 2] {
        children.let_go("child", epoch).await;
    }
    assert!(!children.events("child").await.iter().any(|reason| reason == "NewSession"));
    children.finish(operator).await;
}

/// c37: each its own turn, in order, in one activation; c40: its first prompt is never sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c37_messages_at_once_are_turns_in_order() {
    let (children, operator) = Children::new("order").await;
    children.told("child", "!gate open").await;
    let run = children.until("child", "at work", is_at_work).await;
    let run = run.activation.expect("an activation").run_name;
    children.world.event(&run, "prompt", "").await;
    children.append("child", &[queue("b", "second"), queue("a", "third")]).await;
    children.until("child", "both placed", |status| status.queued_count == 2).await;
    children.world.node.collector().open_gate("open");
    let status = children.settled("child").await;
    let expected = [("m1", Outcome::Started), ("b", Outcome::Claimed), ("a", Outcome::Claimed)];
    assert_eq!(outcomes(&status), expected);
    assert_eq!((status.epochs, preview(&status)), (1, "echo: third"));
    let turns: Vec<_> = status.turns.iter().map(|turn| turn.message_id.as_str()).collect();
    assert_eq!(turns, ["m1", "b", "a"]);
    assert_eq!(children.world.prompts(&run), 3);
    children.finish(operator).await;
}

/// Whether the turn of a message has begun.
fn has_begun(status: &SubagentStatus, id: &str) -> bool {
    let begun = |message: &MessageStatus| matches!(message.outcome, Outcome::Started | Outcome::Claimed);
    status.messages.iter().any(|message| message.id == id && begun(message))
}

fn is_at_work(status: &SubagentStatus) -> bool {
    has_begun(status, "m1")
}

/// c43, R15: what was there is discarded, the child settles, and what comes later is delivered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c43_r15_a_cancelled_activation_settles_the_child() {
    let (children, operator) = Children::new("cancel").await;
    children.told("child", "!hang").await;
    children.until("child", "at work", is_at_work).await;
    children.append("child", &[queue("m2", "never")]).await;
    children.until("child", "m2 is placed", |status| status.queued_count == 1).await;
    children.merge("child", json!({"spec": {"cancelThroughEpoch": 1}})).await;
    let status = children.settled("child").await;
    assert_eq!(outcomes(&status), [("m1", Outcome::Started), ("m2", Outcome::Discarded)]);
    assert_eq!((status.reason.as_deref(), status.cancelled_through_epoch), (Some("Cancelled"), 1));
    let refused = children.world.namespace.api::<Subagent>();
    let beyond = json!({"spec": {"cancelThroughEpoch": 7}});
    let refused = refused.patch("child", &PatchParams::default(), &Patch::Merge(&beyond)).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("at most status.epochs")));
    children.append("child", &[queue("m3", "later")]).await;
    let status = children.settled("child").await;
    assert_eq!((message(&status, "m3").outcome, preview(&status)), (Outcome::Started, "echo: later"));
    children.finish(operator).await;
}

/// c42: the turn ends, what was queued is parked, nothing starts by itself, and the next message runs them first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c42_an_interruption_parks_and_the_next_message_wakes() {
    let (children, operator) = Children::new("interrupt").await;
    children.told("child", "!hang").await;
    children.until("child", "at work", is_at_work).await;
    children.append("child", &[queue("m2", "parked")]).await;
    children.until("child", "m2 is placed", |status| status.queued_count == 1).await;
    children.append("child", &[json!({"id": "m3", "delivery": "Interrupt"})]).await;
    let parked = |status: &SubagentStatus| status.phase == Some(SubagentPhase::Parked);
    let status = children.until("child", "Parked", parked).await;
    let expected = [("m1", Outcome::Started), ("m2", Outcome::Parked), ("m3", Outcome::Applied)];
    assert_eq!((outcomes(&status), status.parked_count), (expected.to_vec(), 1));
    children.append("child", &[queue("m4", "wakes")]).await;
    let status = children.settled("child").await;
    let turns: Vec<_> = status.turns.iter().map(|turn| (turn.epoch, turn.message_id.as_str())).collect();
    assert_eq!(turns, [(1, "m1"), (2, "m2"), (2, "m4")]);
    children.finish(operator).await;
}

/// c39, R11: a message that meets the end of an activation starts the next, wherever it is met.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c39_r11_messages_that_meet_the_end_of_an_activation_are_each_delivered_once() {
    let (children, operator) = Children::new("closing").await;
    children.told("child", "one").await;
    // Each is sent as soon as the one before it has its turn: its activation is about to close, or closing.
    for number in 2..8 {
        let last = format!("m{}", number - 1);
        children.until("child", "the last one has its turn", |status| has_begun(status, &last)).await;
        children.append("child", &[queue(&format!("m{number}"), &format!("text {number}"))]).await;
    }
    let status = children.settled("child").await;
    assert!(status.messages.iter().all(|one| matches!(one.outcome, Outcome::Started | Outcome::Claimed)), "{status:?}");
    let turns: Vec<_> = status.turns.iter().map(|turn| turn.message_id.clone()).collect();
    assert_eq!(turns, (1..8).map(|number| format!("m{number}")).collect::<Vec<_>>());
    let runs = (1..=status.epochs).map(|epoch| async move { epoch });
    let mut prompts = 0;
    let child = children.world.namespace.api::<Subagent>().get("child").await.expect("a child");
    for epoch in runs {
        prompts += children.world.prompts(&subagent_operator::subagent::inbox::run_name(&child, epoch.await));
    }
    assert_eq!(prompts, 7, "each prompt once");
    children.finish(operator).await;
}

/// R11, c36, c39: as long as nobody knows that the pod of a closed activation has ended, nothing new begins. What comes then
/// waits, and starts the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r11_c36_messages_between_the_closing_and_the_pods_end_start_the_next_activation() {
    let (children, operator) = Children::new("between").await;
    let knows = |provider: &SubagentProvider| {
        provider.status.iter().flat_map(|status| &status.capabilities).any(|capability| capability == "Continuation")
    };
    children.world.namespace.until::<SubagentProvider>("provider", "continues sessions", LIMIT, knows).await;
    children.world.node.report_ends(false);
    children.told("child", "one").await;
    let closing = |status: &SubagentStatus| {
        status.activation.as_ref().is_some_and(|activation| activation.state == ActivationState::Closing)
    };
    let run = children.until("child", "Closing", closing).await.activation.expect("an activation").run_name;
    children.world.until(&run, "over", |status| status.phase == Some(Phase::Completed)).await;
    children.append("child", &[queue("b", "two"), queue("a", "three")]).await;
    let waiting =
        |status: &SubagentStatus| status.messages.iter().filter(|one| one.outcome == Outcome::Accepted).count() == 2;
    let status = children.until("child", "both wait", waiting).await;
    assert_eq!((status.epochs, children.world.pods().await.len()), (1, 1));
    children.world.node.report_ends(true);
    let status = children.settled("child").await;
    assert_eq!(outcomes(&status), [("m1", Outcome::Started), ("b", Outcome::Started), ("a", Outcome::Claimed)]);
    let turns: Vec<_> = status.turns.iter().map(|turn| (turn.epoch, turn.message_id.as_str())).collect();
    assert_eq!(turns, [(1, "m1"), (2, "b"), (2, "a")]);
    children.finish(operator).await;
}

/// R5, R4: the pod of an activation is lost before its first turn while five more messages come. The next attempt gives each its
/// turn, once and in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r5_r4_messages_during_a_change_of_pods_have_one_turn_each_in_order() {
    let (children, operator) = Children::new("swap").await;
    // Long enough to be hit before its first turn.
    children.provider_with("slow", &[("SCRIPTED_AGENT_NEW", "delay:2000")]).await;
    let spec = json!({"providerRef": {"name": "slow"}, "messages": [{"id": "m1", "text": "text m1"}]});
    children.create("child", spec).await;
    let run = children.until("child", "has an activation", |status| status.activation.is_some()).await;
    let run = run.activation.expect("an activation").run_name;
    children.world.event(&run, "start", "").await;
    let ids: Vec<String> = (2..7).map(|number| format!("m{number}")).collect();
    let first: SubagentRun = children.world.namespace.api().get(&run).await.expect("a run");
    let worker = children.world.node.worker(&pod_name(&first, 1)).await;
    children.append("child", &[queue(&ids[0], "text m2"), queue(&ids[1], "text m3")]).await;
    worker.signal(Signal::SIGKILL);
    let rest: Vec<Value> = ids[2..].iter().map(|id| queue(id, &format!("text {id}"))).collect();
    children.append("child", &rest).await;
    let status = children.settled("child").await;
    assert_eq!(status.epochs, 1);
    assert!(status.messages.iter().all(|one| matches!(one.outcome, Outcome::Started | Outcome::Claimed)), "{status:?}");
    let turns: Vec<_> = status.turns.iter().map(|turn| turn.message_id.as_str()).collect();
    assert_eq!(turns, ["m1", "m2", "m3", "m4", "m5", "m6"]);
    let run = children.run("child", 1).await;
    assert_eq!(run.status.as_ref().and_then(|status| status.attempt), Some(2));
    assert_eq!(children.world.prompts(&run.name_any()), 6, "each once");
    children.finish(operator).await;
}

/// T5, R12: the inbox is pruned, the ids are remembered, and the same id again has no effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t5_r12_an_id_is_known_after_its_entry_was_pruned() {
    let (children, operator) = Children::new("memory").await;
    children.told("child", "one").await;
    children.settled("child").await;
    // Steered into nothing: over at once.
    let steer = |number: usize| json!({"id": format!("s{number}"), "delivery": "Steer", "text": format!("t{number}")});
    for batch in 0..6 {
        let all: Vec<_> = (batch * 12..(batch + 1) * 12).map(steer).collect();
        children.append("child", &all).await;
        let has_room = |child: &Subagent| child.spec.messages.len() <= bounds::INBOX_PRUNED;
        children.world.namespace.until::<Subagent>("child", "has room", LIMIT, has_room).await;
        children.settled("child").await;
    }
    let pruned = |status: &SubagentStatus| {
        status.seen_ids.as_ref().is_some_and(|seen| seen.count >= 25) && status.messages.len() <= bounds::INBOX_PRUNED
    };
    let status = children.until("child", "pruned", pruned).await;
    let child = children.world.namespace.api::<Subagent>().get("child").await.expect("a child");
    assert!(child.spec.messages.len() <= bounds::INBOX_PRUNED && child.spec.messages[0].id == "m1");
    assert!(!status.messages.iter().any(|message| message.id == "s0"), "s0 has left");
    let other = json!({"id": "s1", "delivery": "Steer", "text": "something else"});
    children.append("child", &[steer(0), other, json!({"id": "new", "delivery": "Steer", "text": "x"})]).await;
    let status = children.settled("child").await;
    let seen = |id: &str| {
        let message = message(&status, id);
        (message.outcome, message.code, message.conflict)
    };
    assert_eq!(seen("s0"), (Outcome::Rejected, None, false));
    assert_eq!(seen("s1"), (Outcome::Rejected, None, true));
    assert_eq!(seen("new"), (Outcome::Rejected, Some(Code::NotDelivered), false));
    children.event("child", "MessageConflict").await;
    assert_eq!(status.epochs, 1);

    // A part of the memory is taken away: no new message is taken any more, and a condition says which part.
    let lost = status.seen_ids.expect("a memory").config_maps.remove(0);
    let config_maps = children.world.namespace.api::<ConfigMap>();
    config_maps.delete(&lost, &DeleteParams::default()).await.expect("a deletion");
    children.append("child", &[queue("m2", "is it new?")]).await;
    let status = children
        .until("child", "the loss is told", |status| {
            status.messages.iter().any(|message| message.id == "m2" && message.outcome == Outcome::Rejected)
        })
        .await;
    let whole = get(&status.conditions, conditions::MEMORY_WHOLE).expect("MemoryWhole");
    assert!(whole.status == "False" && whole.message.contains(&lost), "{whole:?}");
    children.finish(operator).await;
}

/// c47: a child that is deleted in the middle of a turn goes when that is proven stopped, and takes its session along.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c47_a_deleted_child_goes_with_its_pod_and_its_session() {
    let (children, operator) = Children::new("deletion").await;
    let namespace = &children.world.namespace;
    let (kids, runs) = (History::<Subagent>::of(namespace).await, History::<SubagentRun>::of(namespace).await);
    let child = children.told("child", "one").await;
    children.settled("child").await;
    let stored = children.store().join(child.uid().expect("a UID"));
    assert!(fs::read_dir(&stored).is_ok_and(|mut entries| entries.next().is_some()), "{}", stored.display());
    children.append("child", &[queue("m2", "!hang")]).await;
    children.until("child", "at work again", |status| has_begun(status, "m2")).await;
    let run = children.run("child", 2).await;
    let api = children.world.namespace.api::<Subagent>();
    api.delete("child", &DeleteParams::default()).await.expect("a deletion");
    children.gone("child").await;
    // Nobody collects garbage here: its runs are deleted by the operator, as with `--cascade=orphan`.
    for run in [run_name(&child, 1), run.name_any()] {
        children.world.gone(&run).await;
    }
    let is_stopped = |seen: &SubagentRun| {
        let status = seen.status.as_ref();
        let is_over =
            |status: &SubagentRunStatus| status.phase == Some(Phase::Cancelled) && run_has(status, conditions::STOPPED);
        seen.uid() == run.uid() && status.is_some_and(is_over)
    };
    let stopped = runs.at("the run is stopped", |seen| is_stopped(&seen.object)).await;
    let gone = kids.at("the child is gone", |seen| seen.is_gone).await;
    assert!(stopped < gone, "the child left before its run was proven stopped");
    let left: Vec<_> = fs::read_dir(&stored).into_iter().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    children.event("child", "Terminating").await;
    children.finish(operator).await;
}

/// c45, c51: a child with live children waits, hears of their end, and takes them along when it is deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c45_c47_c51_a_parent_waits_for_its_children_and_takes_them_along() {
    let (children, operator) = Children::new("family").await;
    children.told("parent", "one").await;
    children.settled("parent").await;
    let parent = json!({"kind": "Subagent", "name": "parent"});
    let provider = children.provider("other").await;
    let own = json!({"name": provider.name_any()});
    let below = json!({"parentRef": parent, "providerRef": own, "messages": [{"id": "m1", "text": "!gate done"}]});
    children.create("below", below).await;
    children.until("below", "at work", is_at_work).await;
    let lineage = children.until("below", "accepted", |status| status.lineage.is_some()).await.lineage;
    assert_eq!(lineage.expect("a lineage").depth, 2);
    // It was at rest, and is not any more.
    let waits = |status: &SubagentStatus| status.phase == Some(SubagentPhase::Waiting);
    let status = children.until("parent", "Waiting", waits).await;
    assert!(status.message.as_ref().is_some_and(|message| message.contains("below")), "{:?}", status.message);
    assert_eq!(status.activation, None, "it needs no pod for that");
    children.world.node.collector().open_gate("done");
    children.settled("below").await;
    children.settled("parent").await;
    children.event("parent", "ChildSettled").await;

    children.append("below", &[queue("m2", "!hang")]).await;
    children.until("below", "at work again", |status| has_begun(status, "m2")).await;
    let api = children.world.namespace.api::<Subagent>();
    api.delete("parent", &DeleteParams::default()).await.expect("a deletion");
    children.gone("parent").await;
    assert!(api.get_opt("below").await.expect("an answer").is_none(), "children first");
    children.finish(operator).await;
}

/// c43, c51: cancelling what a child does reaches the runs and children below that were there. All of them stay, and can be
/// spoken to again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c43_c51_a_cancelled_child_takes_along_what_it_delegated() {
    let (children, operator) = Children::new("cascade").await;
    let world = &children.world;
    children.told("parent", "!hang").await;
    children.until("parent", "at work", is_at_work).await;
    let parent = json!({"kind": "Subagent", "name": "parent"});
    let provider = children.provider("other").await.name_any();
    let below =
        json!({"parentRef": parent, "providerRef": {"name": provider}, "messages": [{"id": "m1", "text": "!hang"}]});
    children.create("below", below).await;
    children.until("below", "at work", is_at_work).await;
    world.provider("plain", &[]).await;
    let mut run = world.make_run("run", "plain", "!hang");
    run.spec.parent_ref = Some(serde_json::from_value(parent).expect("a parent"));
    world.namespace.create(&run).await;
    world.until("run", "at work", |status| status.phase == Some(Phase::Running)).await;

    children.merge("parent", json!({"spec": {"cancelThroughEpoch": 1}})).await;
    assert_eq!(end(&world.stopped("run").await).0, Phase::Cancelled);
    children.settled("parent").await;
    let told = children.settled("below").await;
    assert_eq!((told.reason.as_deref(), told.epochs), (Some("Cancelled"), 1));
    let told = children.until("parent", "all are told", |status| !status.cancelling_descendants).await;
    assert_eq!((told.reason.as_deref(), told.phase), (Some("Cancelled"), Some(SubagentPhase::Settled)));
    children.append("below", &[queue("m2", "two")]).await;
    assert_eq!(message(&children.settled("below").await, "m2").outcome, Outcome::Started);
    children.finish(operator).await;
}

/// R8, R10: a session that is lost is never replaced in silence.
#[rstest]
#[case::missing("missing", |folder: &Path| fs::remove_dir_all(folder).expect("a checkpoint"))]
#[case::corrupt("corrupt", |folder: &Path| {
    let turn = fs::read_dir(folder.join("1/1")).expect("a folder").next().expect("a checkpoint").expect("a checkpoint");
    let size = turn.metadata().expect("a file").len();
    fs::write(turn.path(), vec![7; usize::try_from(size).expect("a size")]).expect("a file");
})]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r8_r10_a_lost_checkpoint_is_not_resumable_and_the_child_stays_for_inspection(
    #[case] hint: &str,
    #[case] harm: fn(&Path),
) {
    let (children, operator) = Children::new(hint).await;
    let child = children.told("child", "one").await;
    children.settled("child").await;
    children.wipe();
    harm(&children.store().join(child.uid().expect("a UID")));
    children.append("child", &[queue("m2", "two"), queue("m3", "three")]).await;
    let lost = |status: &SubagentStatus| status.phase == Some(SubagentPhase::NotResumable);
    let status = children.until("child", "NotResumable", lost).await;
    assert_eq!(message(&status, "m2").code, Some(Code::NotResumable));
    assert_eq!((status.reason.as_deref(), preview(&status)), (Some("NotResumable"), "echo: one"));
    assert!(!is_true(&status.conditions, conditions::RESUMABLE));
    children.event("child", "NotResumable").await;
    children.append("child", &[queue("m4", "four")]).await;
    let all_over = |status: &SubagentStatus| {
        status.messages.len() == 4 && status.messages.iter().all(|message| message.outcome.is_terminal())
    };
    let status = children.until("child", "all rejected", all_over).await;
    assert_eq!((message(&status, "m4").code, status.epochs), (Some(Code::NotResumable), 2));
    children.finish(operator).await;
}

/// R10: a store that takes nothing costs the turn, and the next one goes on from the checkpoint before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r10_c41_a_turn_that_cannot_be_stored_leaves_the_older_checkpoint_to_go_on_from() {
    let (children, operator) = Children::new("unstored").await;
    let child = children.told("child", "one").await;
    let before = children.settled("child").await.checkpoint.expect("a checkpoint");
    // Nothing can be created where a file is, by whomever.
    let in_the_way = children.store().join(child.uid().expect("a UID")).join("2");
    fs::write(&in_the_way, "in the way").expect("a file");
    children.wipe();
    children.append("child", &[queue("m2", "two")]).await;
    let status = children.settled("child").await;
    assert_eq!((status.reason.as_deref(), status.completed_turns), (Some("DurabilityFailed"), 1));
    assert_eq!((message(&status, "m2").outcome, status.checkpoint.as_ref()), (Outcome::Started, Some(&before)));
    assert!(is_true(&status.conditions, conditions::RESUMABLE));
    let run = children.run("child", 2).await.status.expect("a status");
    assert!(run.message.is_some_and(|message| message.contains("name a folder in sessionStore.url")));
    fs::remove_file(in_the_way).expect("a file");
    children.wipe();
    children.append("child", &[queue("m3", "!history")]).await;
    let status = children.settled("child").await;
    assert_eq!((preview(&status), status.epochs, status.reason.as_deref()), ("turns before: 1", 3, None));
    children.finish(operator).await;
}

/// c34, R10: no child is taken into a store of somebody else, and one that waits for its session gets it when that is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r10_c34_a_store_of_somebody_else_is_unusable_until_the_right_one_is_back() {
    let (children, operator) = Children::new("mistaken").await;
    children.told("child", "one").await;
    children.settled("child").await;
    // Its pod begins anew with what is mounted.
    operator.stop().await;
    let (store, away) = (children.store(), children.folder.path().join("away"));
    let mark = "installation_of_the_operator";
    fs::rename(&store, &away).expect("a move");
    fs::create_dir_all(&store).expect("a folder");
    fs::write(store.join(mark), "another").expect("a mark");
    let operator = children.operator("second").await;
    children.wipe();
    children.append("child", &[queue("m2", "!history")]).await;
    let events = async |reason: &str| {
        let events = children.world.namespace.api::<Event>().list(&ListParams::default()).await.expect("events").items;
        let of_it = events.into_iter().filter(|event| event.reason.as_deref() == Some(reason));
        of_it.filter_map(|event| event.note).collect::<Vec<_>>()
    };
    let (namespace, seen) = (&children.world.namespace, &events);
    namespace
        .eventually("what is to be done", LIMIT, async || {
            let told = seen("CheckpointNotRead").await;
            if told.iter().any(|note| note.contains("delete configmap")) { Ok(()) } else { Err(format!("{told:?}")) }
        })
        .await;
    children.told("second", "one").await;
    let refused = |status: &SubagentStatus| status.reason.as_deref() == Some("PersistenceUnavailable");
    let status = children.until("second", "refused", refused).await;
    assert_eq!((status.phase, status.epochs), (Some(SubagentPhase::Rejected), 0));
    fs::remove_dir_all(&store).expect("the wrong one");
    fs::rename(&away, &store).expect("a move");
    let status = children.settled("child").await;
    assert_eq!((preview(&status), status.epochs), ("turns before: 1", 2));
    children.finish(operator).await;
}

/// R10, T5: a checkpoint goes when a newer one is recorded, but for those that runs began with, which stay as long as these.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r10_t5_what_a_recorded_checkpoint_replaces_goes_at_once() {
    let (children, operator) = Children::new("replaced").await;
    let child = children
        .create("child", json!({"historyLimit": 1, "messages": [{"id": "m1", "text": "!gate open"}]}))
        .await
        .uid()
        .expect("a UID");
    children.until("child", "at work", is_at_work).await;
    children.append("child", &[queue("m2", "second"), queue("m3", "third")]).await;
    children.until("child", "both placed", |status| status.queued_count == 2).await;
    children.world.node.collector().open_gate("open");
    children.settled("child").await;
    let (store, namespace) = (children.store(), &children.world.namespace);
    let keeps = async |expected: &[(i64, i64)]| {
        let (store, child) = (&store, &child);
        let there = async || {
            let found = checkpoints(&store.join(child));
            if found == expected { Ok(()) } else { Err(format!("{found:?}")) }
        };
        namespace.eventually(&format!("checkpoints {expected:?}"), LIMIT, there).await;
    };
    keeps(&[(1, 3)]).await;
    for (number, expected) in [
        (4, &[(1, 3), (2, 1)][..]),
        (5, &[(1, 3), (2, 1), (3, 1)]),
        // The run that began with the first is not kept any more.
        (6, &[(2, 1), (3, 1), (4, 1)]),
    ] {
        children.append("child", &[queue(&format!("m{number}"), "go on")]).await;
        children.settled("child").await;
        keeps(expected).await;
    }
    children.finish(operator).await;
}

/// Epoch and turn of everything that is stored of a child.
fn checkpoints(folder: &Path) -> Vec<(i64, i64)> {
    let number = |path: &Path| path.file_name().and_then(|name| name.to_str()?.parse::<i64>().ok()).expect("a number");
    let inside = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).into_iter().flatten().map(|entry| entry.expect("an entry").path()).collect()
    };
    let mut found = vec![];
    for epoch in inside(folder) {
        for turn in inside(&epoch).into_iter().filter(|turn| !inside(turn).is_empty()) {
            found.push((number(&epoch), number(&turn)));
        }
    }
    found.sort_unstable();
    found
}

/// R1, R9, c36: operators are killed at any moment; the turn goes on, its result arrives, and nothing is prompted twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r1_r9_an_operator_that_is_killed_changes_nothing() {
    let (children, mut operator) = Children::new("killed").await;
    children.told("child", "!gate one").await;
    children.until("child", "claimed", |status| status.activation.is_some()).await;
    operator.kill().await;
    operator = children.operator("second").await;
    children.until("child", "at work", is_at_work).await;
    children.append("child", &[queue("m2", "two")]).await;
    operator.kill().await;
    children.world.node.collector().open_gate("one");
    operator = children.operator("third").await;
    let status = children.settled("child").await;
    assert_eq!(outcomes(&status).len(), 2);
    let child = children.world.namespace.api::<Subagent>().get("child").await.expect("a child");
    let mut prompts = 0;
    for epoch in 1..=status.epochs {
        prompts += children.world.prompts(&subagent_operator::subagent::inbox::run_name(&child, epoch));
    }
    assert_eq!((prompts, preview(&status)), (2, "echo: two"));
    children.finish(operator).await;
}

/// R9, c36: leadership moves under load; each prompt is sent once, in order, by one activation at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r9_c36_moving_leadership_under_load_doubles_nothing() {
    let (children, mut operator) = Children::new("leaders").await;
    children.told("child", "text 0").await;
    for round in 1..5 {
        let own = |number: usize| queue(&format!("r{round}-{number}"), &format!("text {round} {number}"));
        children.append("child", &[own(1), own(2)]).await;
        operator.stop().await;
        operator = children.operator(&format!("leader-{round}")).await;
        children.append("child", &[own(3)]).await;
    }
    let status = children.settled("child").await;
    assert!(status.messages.iter().all(|one| matches!(one.outcome, Outcome::Started | Outcome::Claimed)), "{status:?}");
    let turns: Vec<_> = status.turns.iter().map(|turn| turn.message_id.clone()).collect();
    let sent = (1..5).flat_map(|round| (1..4).map(move |number| format!("r{round}-{number}")));
    assert_eq!(turns, ["m1".to_owned()].into_iter().chain(sent).collect::<Vec<_>>());
    let child = children.world.namespace.api::<Subagent>().get("child").await.expect("a child");
    let mut prompts = 0;
    for epoch in 1..=status.epochs {
        prompts += children.world.prompts(&subagent_operator::subagent::inbox::run_name(&child, epoch));
    }
    assert_eq!(prompts, 13);
    children.finish(operator).await;
}

/// A follow-up to a resident activation needs no pod, and what it costs the API server is bounded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follow_up_to_a_resident_activation_needs_no_new_pod_and_few_writes() {
    let (children, operator) = Children::new("resident").await;
    let resident = json!({"residencySeconds": 3600});
    children.create("child", json!({"activation": resident, "messages": [{"id": "m1", "text": "one"}]})).await;
    let idle = |turns: usize| {
        move |status: &SubagentStatus| {
            let state = status.activation.as_ref().map(|activation| activation.state);
            state == Some(ActivationState::Idle) && status.turns.len() == turns
        }
    };
    children.until("child", "Idle", idle(1)).await;
    let mark = Mark::now();
    children.append("child", &[queue("m2", "two")]).await;
    let status = children.until("child", "Idle again", idle(2)).await;
    let asked = mark.requests_of(&children.world.rights.user);
    let written: Vec<_> = asked.into_iter().filter(Request::is_counted_write).collect();
    println!("writes: {}\n{}", written.len(), lines(&written));
    // Its place and placing; the run's inbox; the worker's word of its begin and its end; what they mean for the child; and
    // what the run's controller sees of it.
    assert!(written.len() <= 8, "{} writes:\n{}", written.len(), lines(&written));
    assert_eq!((status.epochs, message(&status, "m2").outcome), (1, Outcome::Claimed));
    assert_eq!(children.world.pods().await.len(), 1);
    // Deleting the idle child needs no patience.
    let api = children.world.namespace.api::<Subagent>();
    api.delete("child", &DeleteParams::default()).await.expect("a deletion");
    children.gone("child").await;
    children.finish(operator).await;
}

/// Somebody takes the finalizer off a child and deletes it: its activation is stopped and let go all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s8_a_child_that_is_removed_by_force_leaves_nothing_at_work() {
    let (children, operator) = Children::new("forced").await;
    children.told("child", "!hang").await;
    children.until("child", "at work", is_at_work).await;
    let run = children.run("child", 1).await.name_any();
    let api = children.world.namespace.api::<Subagent>();
    // The finalizer is put back as long as the child lives, so it is deleted first. It may be gone by then.
    api.delete("child", &DeleteParams::default()).await.expect("a deletion");
    let none = json!({"metadata": {"finalizers": null}});
    let _ = api.patch("child", &PatchParams::default(), &Patch::Merge(&none)).await;
    children.gone("child").await;
    // Nobody collects garbage here, and nothing happens to the run by itself.
    children.world.gone(&run).await;
    children.finish(operator).await;
}

/// c36, c50: somebody takes the finalizers off an activation's run. Its worker may be at work, so the next one begins only
/// when its pod is proven stopped; until then the child names the pod.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c36_c50_an_activation_removed_by_force_is_proven_stopped_before_the_next() {
    let (children, operator) = Children::new("removed").await;
    children.told("child", "!hang").await;
    children.until("child", "at work", is_at_work).await;
    children.world.node.report_ends(false);
    let run = children.run("child", 1).await;
    let pod = pod_name(&run, 1);
    let runs = children.world.namespace.api::<SubagentRun>();
    // The first finalizer is put back as long as the run lives.
    runs.delete(&run.name_any(), &DeleteParams::default()).await.expect("a deletion");
    let none = json!({"metadata": {"finalizers": null}});
    runs.patch(&run.name_any(), &PatchParams::default(), &Patch::Merge(&none)).await.expect("a patch");
    let names_pod = |status: &SubagentStatus| {
        status.message.as_ref().is_some_and(|message| message.contains(&format!("pod {pod} is not proven stopped")))
    };
    children.until("child", "names the pod", names_pod).await;
    children.append("child", &[queue("m2", "two")]).await;
    let taken_in = |status: &SubagentStatus| status.messages.len() == 2;
    let waits = children.until("child", "took the message in", taken_in).await;
    assert_eq!((waits.epochs, message(&waits, "m2").outcome), (1, Outcome::Accepted));
    children
        .world
        .namespace
        .until::<Pod>(&pod, "told to stop", LIMIT, |pod| pod.metadata.deletion_timestamp.is_some())
        .await;
    assert_eq!(children.world.pods().await.len(), 1);
    children.world.node.report_ends(true);
    let status = children.settled("child").await;
    assert_eq!(outcomes(&status), [("m1", Outcome::Started), ("m2", Outcome::Started)]);
    let turns: Vec<_> = status.turns.iter().map(|turn| (turn.epoch, turn.stop_reason.as_str())).collect();
    assert_eq!(turns, [(1, "Interrupted"), (2, "Completed")]);
    children.finish(operator).await;
}

/// c50: the release annotation of a run that was removed by force went with it, so the child's counts: the message names the
/// command, and the next activation begins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c50_the_pod_of_an_activation_removed_by_force_is_released_on_its_child() {
    let (children, operator) = Children::new("released").await;
    children.told("child", "!hang").await;
    children.until("child", "at work", is_at_work).await;
    children.world.node.report_ends(false);
    let run = children.run("child", 1).await;
    let pod = children.world.namespace.api::<Pod>().get(&pod_name(&run, 1)).await.expect("a pod").uid().expect("a UID");
    let runs = children.world.namespace.api::<SubagentRun>();
    runs.delete(&run.name_any(), &DeleteParams::default()).await.expect("a deletion");
    let none = json!({"metadata": {"finalizers": null}});
    runs.patch(&run.name_any(), &PatchParams::default(), &Patch::Merge(&none)).await.expect("a patch");
    let release = format!("{}={pod}", names::RELEASE_ANNOTATION);
    let names_release =
        |status: &SubagentStatus| status.message.as_ref().is_some_and(|message| message.ends_with(&release));
    children.until("child", "names the command", names_release).await;
    let released = json!({"metadata": {"annotations": {names::RELEASE_ANNOTATION: pod}}});
    let api = children.world.namespace.api::<Subagent>();
    api.patch("child", &PatchParams::default(), &Patch::Merge(&released)).await.expect("a patch");
    let is_over = |status: &SubagentStatus| status.activation.is_none();
    let status = children.until("child", "its activation is over", is_over).await;
    assert_eq!(status.reason.as_deref(), Some("WorkerLost"));
    children.world.node.report_ends(true);
    children.finish(operator).await;
}

/// c34: without a store no child is taken, and nothing is left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c34_without_a_session_store_a_child_is_refused() {
    let children = Children { world: World::new("storeless").await, folder: tempfile::tempdir().expect("a folder") };
    let operator = children.world.operator().await;
    children.world.node.serve_probes();
    children.provider("provider").await;
    children.told("child", "one").await;
    let refused = |status: &SubagentStatus| status.phase == Some(SubagentPhase::Rejected);
    let status = children.until("child", "Rejected", refused).await;
    assert_eq!(status.reason.as_deref(), Some("PersistenceUnavailable"));
    let child = children.world.namespace.api::<Subagent>().get("child").await.expect("a child");
    assert!(child.finalizers().is_empty());
    children.append("child", &[queue("m2", "two")]).await;
    let told = |status: &SubagentStatus| status.messages.len() == 2;
    let status = children.until("child", "an outcome for each message", told).await;
    for told in &status.messages {
        assert_eq!((told.outcome, told.code), (Outcome::Rejected, Some(Code::ActivationFailed)), "c46");
    }
    children.merge("child", json!({"spec": {"messages": []}})).await;
    let runs = children.world.namespace.api::<SubagentRun>().list(&ListParams::default()).await.expect("runs");
    assert!(runs.items.is_empty());
    children.event("child", "Rejected").await;
    children.finish(operator).await;
}
