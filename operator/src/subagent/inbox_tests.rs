//! The inbox alone, and together with a model of the worker, the run and everybody else who writes, in any order.

use super::{
    super::{placing, plan::Run},
    *,
};
use crate::run::orphans::LeftPod;
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;
use std::collections::BTreeMap;
use subagent_crds::{
    message::{MessageReport, PlacedMessage},
    report::{Session, Turn},
    run::Inbox as State,
};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn child() -> Subagent {
    serde_json::from_value(json!({
        "apiVersion": "subagents.dev/v1alpha1", "kind": "Subagent",
        "metadata": {"name": "child", "namespace": "n", "uid": "child-1"},
        "spec": {"providerRef": {"name": "p"}, "description": "d", "messages": []},
    }))
    .unwrap()
}

fn entry(id: &str, delivery: Delivery, text: Option<&str>) -> InboxMessage {
    InboxMessage { id: id.into(), delivery, text: text.map(str::to_owned), content: None }
}

/// A worker as the link's contract has it: it claims by placement, reports before it prompts, and forgets nothing but with
/// its death.
#[derive(Clone, Debug, Default)]
struct Worker {
    waiting: BTreeMap<i64, PlacedMessage>,
    told: BTreeMap<i64, MessageReport>,
    turns: Vec<Turn>,
    /// The turn that runs: message, and whether its prompt was sent.
    turn: Option<(String, bool)>,
    steering: Vec<(i64, String)>,
    interrupting: Option<(i64, String)>,
    closed: bool,
    seq: i64,
    over: Option<&'static str>,
}

impl Worker {
    fn tell(&mut self, placement: i64, id: &str, outcome: &str, code: Option<&str>) {
        let turn = Some(self.turns.len() as i64).filter(|turn| *turn > 0);
        let (id, outcome, code) = (id.to_owned(), outcome.to_owned(), code.map(str::to_owned));
        self.told.insert(placement, MessageReport { id, placement, outcome, code, turn, at: "t".into() });
    }

    fn hear(&mut self, run: &SubagentRun) {
        for message in &run.spec.messages {
            let at = message.placement;
            let known = self.waiting.contains_key(&at)
                || self.told.contains_key(&at)
                || self.steering.iter().any(|(steering, _)| *steering == at)
                || self.interrupting.as_ref().is_some_and(|(interrupting, _)| *interrupting == at);
            if known {
                continue;
            }
            match message.delivery {
                Delivery::Queue => drop(self.waiting.insert(at, message.clone())),
                Delivery::Steer if self.turn.as_ref().is_some_and(|turn| turn.1) && self.interrupting.is_none() => {
                    self.steering.push((at, message.id.clone()));
                }
                Delivery::Steer => self.tell(at, &message.id, "Rejected", Some("NotDelivered")),
                Delivery::Interrupt => {
                    for (parked, message) in std::mem::take(&mut self.waiting) {
                        self.tell(parked, &message.id, "Parked", None);
                    }
                    if self.turn.is_none() {
                        self.tell(at, &message.id, "Applied", None);
                    } else {
                        self.interrupting = Some((at, message.id.clone()));
                    }
                }
            }
        }
        self.told.retain(|at, _| run.spec.messages.iter().any(|message| message.placement == *at));
        self.closed |= run.spec.activation.as_ref().is_some_and(|activation| activation.inbox == State::Closed);
    }

    fn report(&mut self) -> Report {
        self.seq += 1;
        Report {
            pod_uid: "pod".into(),
            attempt: 1,
            seq: self.seq,
            // The first turn's record brings it.
            session: (!self.turns.is_empty()).then(|| Session { id: "s".into(), how: "New".into() }),
            turns: self.turns.clone(),
            turn_count: self.turns.len() as i64,
            messages: self.told.values().cloned().collect(),
            idle: self.turn.is_none() && self.waiting.is_empty(),
            ..Report::default()
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Append(Delivery, bool),
    CancelThrough,
    CancelRun,
    DeleteRun,
    DeleteChild,
    LoseRun,
    /// The pod of a run that was lost is proven stopped.
    LostPodStops,
    /// A controller reads, computes and writes; then it acts, unless it dies before that.
    Reconcile {
        acts: bool,
    },
    /// Another controller computed from what it read before, and writes now.
    Late,
    Read,
    RunGoesOn,
    WorkerHears,
    WorkerClaims,
    WorkerPrompts,
    TurnEnds,
    SteerAnswered(bool),
    WorkerCloses,
    WorkerDies,
    /// The API server refused the run of the activation for too long.
    NeverBorn,
}

struct World {
    child: Subagent,
    version: u64,
    old: Option<(Subagent, Run, u64)>,
    runs: BTreeMap<String, SubagentRun>,
    workers: BTreeMap<String, Worker>,
    /// Workers whose run was removed by force. Nothing of what they say is stored any more, and they work on.
    lost: BTreeMap<String, Worker>,
    /// Everything agents were prompted with, in order, and what they were steered with.
    prompted: Vec<String>,
    steered: Vec<String>,
    now: i64,
    next: usize,
    seen: BTreeMap<String, Outcome>,
}

impl World {
    fn new() -> Self {
        Self {
            child: child(),
            version: 0,
            old: None,
            runs: BTreeMap::new(),
            workers: BTreeMap::new(),
            lost: BTreeMap::new(),
            prompted: vec![],
            steered: vec![],
            now: 0,
            next: 1,
            seen: BTreeMap::new(),
        }
    }

    fn current(&self) -> Option<String> {
        self.child.status.as_ref()?.activation.as_ref().map(|activation| activation.run_name.clone())
    }

    fn run(&self) -> Option<&SubagentRun> {
        self.runs.get(&self.current()?)
    }

    /// What a live read finds of the activation's run, and of its pod when that is gone.
    fn found(&self) -> Run {
        let activation = self.child.status.as_ref().and_then(|status| status.activation.as_ref());
        let Some(activation) = activation else { return Run::Missing };
        match self.runs.get(&activation.run_name) {
            Some(run) => Run::Ours(Box::new(run.clone())),
            None if activation.run_uid.is_some() => {
                let left = |worker: &Worker| {
                    let is_stopped = worker.over.is_some();
                    LeftPod {
                        name: "pod".into(),
                        uid: "pod".into(),
                        is_stopped,
                        is_deleting: false,
                        is_held: !is_stopped,
                    }
                };
                Run::Removed(self.lost.get(&activation.run_name).map(left).into_iter().collect())
            }
            None => Run::Missing,
        }
    }

    fn live_worker(&mut self) -> Option<(String, &mut Worker)> {
        let (name, run) = self.runs.iter().find(|(_, run)| !is_over(run))?;
        let over = run.status.as_ref().and_then(|status| status.phase).is_some_and(Phase::is_terminal);
        let name = name.clone();
        self.workers.get_mut(&name).filter(|worker| !over && worker.over.is_none()).map(|worker| (name, worker))
    }

    fn advanced(child: &Subagent, run: &Run, now: i64) -> SubagentStatus {
        let facts =
            Facts { child, run: run.found(), memory: &HashMap::new(), is_memory_lost: false, has_live_children: false };
        let new = advance(&facts, at(now));
        let mut again = child.clone();
        again.status = Some(new.clone());
        let settled = advance(&Facts { child: &again, ..facts }, at(now));
        let mut twice = again.clone();
        twice.status = Some(settled.clone());
        let third = advance(&Facts { child: &twice, ..facts }, at(now));
        assert_eq!(settled, third, "it comes to rest without anything happening");
        new
    }

    fn write(&mut self, status: SubagentStatus) {
        for message in &status.messages {
            if let Some(known) = self.seen.get(&message.id) {
                assert_eq!(*known, message.outcome, "{}: a final outcome never changes", message.id);
            }
            if message.outcome.is_terminal() {
                self.seen.insert(message.id.clone(), message.outcome);
            }
        }
        if self.child.status.as_ref() != Some(&status) {
            self.child.status = Some(status);
            self.version += 1;
        }
    }

    /// What a controller does once its status is stored.
    fn act(&mut self) {
        let Some(name) = self.current() else { return };
        let uid = self.child.status.as_ref().and_then(|status| status.activation.as_ref()?.run_uid.clone());
        match self.runs.get(&name) {
            None if uid.is_none() && self.child.metadata.deletion_timestamp.is_some() => {}
            None if uid.is_none() => {
                assert!(self.runs.values().all(is_over), "c36: one activation at a time");
                let are_stopped = self.lost.values().all(|worker| worker.over.is_some());
                assert!(are_stopped, "c36, c50: the worker of a run that is gone still works");
                let mut run = placing::run(&self.child).unwrap();
                run.metadata.uid = Some(format!("uid-of-{name}"));
                self.runs.insert(name, run);
            }
            None => {}
            Some(run) => {
                if let Some(change) = placing::change(&self.child, run) {
                    let run = self.runs.get_mut(&name).unwrap();
                    let was = run.spec.activation.as_ref().unwrap().inbox;
                    let fresh = change.messages.iter().any(|message| !run.spec.messages.contains(message));
                    assert!(was == State::Open || !fresh, "c39: a closed inbox takes no new entry");
                    run.spec.messages = change.messages;
                    run.spec.activation.as_mut().unwrap().inbox = change.inbox;
                    run.spec.cancel = change.cancel;
                }
            }
        }
    }

    fn never_born(&mut self) {
        let activation = self.child.status.as_ref().and_then(|status| status.activation.as_ref());
        let is_unborn = activation.is_some_and(|one| one.run_uid.is_none() && !self.runs.contains_key(&one.run_name));
        if is_unborn && self.child.metadata.deletion_timestamp.is_none() {
            let memory = HashMap::new();
            let status = fail_unborn(&alone(&self.child, &memory), at(self.now));
            self.write(status);
        }
    }

    fn reconcile(&mut self, acts: bool) {
        let status = Self::advanced(&self.child, &self.found(), self.now);
        self.write(status);
        if acts {
            self.act();
        }
    }

    fn store(&mut self, name: &str) {
        let report = self.workers.get_mut(name).unwrap().report();
        let run = self.runs.get_mut(name).unwrap();
        let status = run.status.get_or_insert_default();
        assert!(!status.phase.is_some_and(Phase::is_terminal));
        status.report = Some(report);
    }

    /// What the run controller does: a pod only once the child names the run, an end once the worker is over.
    fn run_goes_on(&mut self) {
        let Some((name, run)) = self.runs.iter_mut().find(|(_, run)| !is_over(run)) else { return };
        let name = name.clone();
        let named = self.child.status.as_ref().and_then(|status| status.activation.as_ref()?.run_uid.clone());
        let cancelled = run.spec.cancel || run.metadata.deletion_timestamp.is_some();
        let status = run.status.get_or_insert_default();
        status.attempt = Some(1);
        let worker = self.workers.get(&name);
        let phase = match worker.map(|worker| worker.over) {
            None if cancelled => Some(Phase::Cancelled),
            None if named == run.metadata.uid => {
                self.workers.insert(name.clone(), Worker::default());
                None
            }
            None => None,
            Some(Some("Completed")) => Some(Phase::Completed),
            Some(Some(_)) if cancelled => Some(Phase::Cancelled),
            Some(Some(_)) => Some(Phase::Failed),
            Some(None) if cancelled => {
                self.workers.get_mut(&name).unwrap().over = Some("Cancelled");
                Some(Phase::Cancelled)
            }
            Some(None) => None,
        };
        if let Some(phase) = phase {
            status.phase = Some(phase);
            let stopped = json!([{"type": "Stopped", "status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
            status.conditions = serde_json::from_value(stopped).unwrap();
        }
    }

    fn step(&mut self, step: &Step) {
        self.now += 1;
        match step {
            Step::Append(delivery, content) => {
                let open = self.child.spec.messages.len() < 60;
                let content = *content || *delivery != Delivery::Interrupt;
                if open {
                    let id = format!("m{}", self.next);
                    self.next += 1;
                    self.child.spec.messages.push(entry(&id, *delivery, content.then_some("t")));
                    self.version += 1;
                }
            }
            Step::CancelThrough => {
                self.child.spec.cancel_through_epoch = self.child.status.as_ref().map_or(0, |status| status.epochs);
                self.version += 1;
            }
            Step::CancelRun => {
                if let Some(name) = self.current().filter(|name| self.runs.contains_key(name)) {
                    self.runs.get_mut(&name).unwrap().spec.cancel = true;
                }
            }
            Step::DeleteRun => {
                if let Some(name) = self.current().filter(|name| self.runs.contains_key(name)) {
                    self.runs.get_mut(&name).unwrap().metadata.deletion_timestamp = Some(Time(at(self.now)));
                }
            }
            Step::DeleteChild => {
                self.child.metadata.deletion_timestamp.get_or_insert(Time(at(self.now)));
            }
            Step::LoseRun => {
                // Somebody took the finalizers off; its worker may be at work, and hears nothing of that.
                if let Some(name) = self.current().filter(|name| self.runs.contains_key(name))
                    && self.child.status.as_ref().is_some_and(|status| {
                        status.activation.as_ref().is_some_and(|activation| activation.run_uid.is_some())
                    })
                {
                    self.runs.remove(&name);
                    let worker = self.workers.remove(&name);
                    self.lost.extend(worker.map(|worker| (name, worker)));
                }
            }
            Step::LostPodStops => {
                for worker in self.lost.values_mut() {
                    worker.over.get_or_insert("Lost");
                }
                self.now += POD_MAY_COME.as_secs().cast_signed();
            }
            Step::Reconcile { acts } => self.reconcile(*acts),
            Step::Read => self.old = Some((self.child.clone(), self.found(), self.version)),
            Step::Late => {
                if let Some((child, run, version)) = self.old.take() {
                    let status = Self::advanced(&child, &run, self.now);
                    // The API server refuses what was computed from another version.
                    if version == self.version {
                        self.write(status);
                    }
                    self.act();
                }
            }
            Step::RunGoesOn => self.run_goes_on(),
            Step::WorkerHears => {
                let Some((name, _)) = self.live_worker() else { return };
                let run = self.runs[&name].clone();
                self.workers.get_mut(&name).unwrap().hear(&run);
                self.store(&name);
            }
            Step::WorkerClaims => {
                let Some((name, worker)) = self.live_worker() else { return };
                if worker.turn.is_none()
                    && let Some((placement, message)) = worker.waiting.pop_first()
                {
                    let turn = worker.turns.len() as i64 + 1;
                    worker.turns.push(Turn { turn, message_id: Some(message.id.clone()), ..Turn::default() });
                    worker.tell(placement, &message.id, "Claimed", None);
                    worker.turn = Some((message.id, false));
                    self.store(&name);
                }
            }
            Step::WorkerPrompts => {
                // One whose run is gone goes on with what was acknowledged.
                let lost = self.lost.values_mut().find(|worker| worker.over.is_none());
                let worker = match lost {
                    Some(lost) => lost,
                    None => match self.live_worker() {
                        Some((_, worker)) => worker,
                        None => return,
                    },
                };
                if let Some((id, sent)) = worker.turn.as_mut().filter(|turn| !turn.1) {
                    *sent = true;
                    let id = id.clone();
                    self.prompted.push(id);
                }
            }
            Step::TurnEnds => {
                let Some((name, worker)) = self.live_worker() else { return };
                if worker.turn.take().is_some() {
                    for (placement, id) in std::mem::take(&mut worker.steering) {
                        worker.tell(placement, &id, "Rejected", Some("Unconfirmed"));
                    }
                    if let Some((placement, id)) = worker.interrupting.take() {
                        worker.tell(placement, &id, "Applied", None);
                    }
                    let turn = worker.turns.last_mut().unwrap();
                    (turn.finished_at, turn.stop_reason) = (Some("t".into()), Some("Completed".into()));
                    self.store(&name);
                }
            }
            Step::SteerAnswered(taken) => {
                let Some((name, worker)) = self.live_worker() else { return };
                if let Some((placement, id)) = worker.steering.pop() {
                    let outcome = if *taken { "Steered" } else { "Rejected" };
                    worker.tell(placement, &id, outcome, (!taken).then_some("NotDelivered"));
                    if *taken {
                        self.steered.push(id);
                    }
                    self.store(&name);
                }
            }
            Step::WorkerCloses => {
                let Some((name, worker)) = self.live_worker() else { return };
                if worker.closed && worker.turn.is_none() && worker.waiting.is_empty() {
                    self.store(&name);
                    self.workers.get_mut(&name).unwrap().over = Some("Completed");
                }
            }
            Step::NeverBorn => self.never_born(),
            Step::WorkerDies => {
                if let Some((_, worker)) = self.live_worker() {
                    worker.over = Some("Error");
                }
            }
        }
    }

    /// Everybody does what they have to, for long enough.
    fn drain(&mut self) {
        let mut quiet = 0;
        while quiet < 4 {
            let before = (self.version, self.seq());
            for step in [
                Step::Reconcile { acts: true },
                Step::RunGoesOn,
                Step::WorkerHears,
                Step::WorkerClaims,
                Step::WorkerPrompts,
                Step::SteerAnswered(true),
                Step::TurnEnds,
                Step::WorkerCloses,
                Step::LostPodStops,
            ] {
                self.step(&step);
            }
            quiet = if before == (self.version, self.seq()) { quiet + 1 } else { 0 };
        }
    }

    /// How often anything but the child changed that the drain waits for.
    fn seq(&self) -> (usize, usize, i64) {
        let phases = self.runs.values().filter(|run| is_over(run)).count()
            + self.lost.values().filter(|worker| worker.over.is_some()).count();
        (
            self.runs.len() + self.workers.len() + self.lost.len(),
            phases,
            self.workers.values().map(|worker| worker.turns.len() as i64).sum(),
        )
    }

    fn outcome(&self, id: &str) -> Outcome {
        let status = self.child.status.as_ref().unwrap();
        status.messages.iter().find(|message| message.id == id).unwrap().outcome
    }

    fn check(&self) {
        let status = self.child.status.as_ref().unwrap();
        assert!(status.activation.is_none(), "nothing is stuck: {:?}", status.activation);
        for message in &status.messages {
            let over = message.outcome.is_terminal() || message.outcome == Outcome::Parked;
            assert!(over, "{} is {:?}", message.id, message.outcome);
            let is_unsaid = matches!(message.code, Some(Code::NotDelivered | Code::Unconfirmed));
            assert!(!is_unsaid || says_why(message), "c38: {message:?}");
            let prompts = self.prompted.iter().filter(|id| **id == message.id).count();
            let steers = self.steered.iter().filter(|id| **id == message.id).count();
            assert!(prompts + steers <= 1, "{} was received {} times", message.id, prompts + steers);
            match message.outcome {
                Outcome::Started | Outcome::Claimed => assert_eq!(steers, 0),
                // The agent may have what nobody confirmed.
                Outcome::Steered => assert_eq!((prompts, steers), (0, 1)),
                Outcome::Rejected if message.code == Some(Code::Unconfirmed) => {}
                _ => assert_eq!(prompts + steers, 0, "{} is {:?} and was received", message.id, message.outcome),
            }
            if matches!(message.outcome, Outcome::Started | Outcome::Claimed) && status.turns.len() < bounds::TURNS {
                let has_turn = status.turns.iter().any(|turn| turn.message_id == message.id);
                assert!(has_turn, "c41: {} has a turn, however that ended: {:?}", message.id, status.turns);
            }
        }
        let number = |id: &String| id[1..].parse::<usize>().unwrap();
        assert!(self.prompted.is_sorted_by_key(number), "c37: in order: {:?}", self.prompted);
        let parked = status.messages.iter().filter(|message| message.outcome == Outcome::Parked).count();
        let phase = match (&self.child.metadata.deletion_timestamp, parked) {
            (Some(_), _) => SubagentPhase::Terminating,
            (None, 0) => SubagentPhase::Settled,
            (None, _) => SubagentPhase::Parked,
        };
        assert_eq!(status.phase, Some(phase));
    }
}

/// c38: what was not delivered, or may not have been, says why and what to do, in as much room as there is.
fn says_why(message: &MessageStatus) -> bool {
    message.message.contains("; ")
        && message.message.contains("append it under a new id")
        && message.message.len() <= MESSAGE
}

fn step() -> impl Strategy<Value = Step> {
    let delivery = prop_oneof![3 => Just(Delivery::Queue), 1 => Just(Delivery::Steer), 1 => Just(Delivery::Interrupt)];
    prop_oneof![
        6 => (delivery, any::<bool>()).prop_map(|(delivery, content)| Step::Append(delivery, content)),
        1 => Just(Step::CancelThrough),
        1 => Just(Step::CancelRun),
        1 => Just(Step::DeleteRun),
        1 => Just(Step::LoseRun),
        1 => Just(Step::LostPodStops),
        8 => any::<bool>().prop_map(|acts| Step::Reconcile { acts }),
        2 => Just(Step::Read),
        2 => Just(Step::Late),
        6 => Just(Step::RunGoesOn),
        6 => Just(Step::WorkerHears),
        5 => Just(Step::WorkerClaims),
        5 => Just(Step::WorkerPrompts),
        3 => Just(Step::TurnEnds),
        2 => any::<bool>().prop_map(Step::SteerAnswered),
        3 => Just(Step::WorkerCloses),
        1 => Just(Step::WorkerDies),
        1 => Just(Step::NeverBorn),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 2_000, ..ProptestConfig::default() })]

    /// c36, c37, c42-c44, R5, R9, R11, R13: whoever writes, crashes or comes late, in any order, every message has exactly one
    /// final outcome or a park, none is received twice, the order holds, and nothing is stuck.
    #[test]
    fn r11_every_message_exactly_one_outcome(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        world.step(&Step::Append(Delivery::Queue, true));
        for step in &steps {
            world.step(step);
        }
        world.drain();
        world.check();
    }

    /// c47: also when it is deleted at any moment in between.
    #[test]
    fn c47_a_deleted_child_comes_to_rest(
        before in prop::collection::vec(step(), 1..60),
        after in prop::collection::vec(step(), 0..30),
    ) {
        let mut world = World::new();
        world.step(&Step::Append(Delivery::Queue, true));
        for step in &before {
            world.step(step);
        }
        world.step(&Step::DeleteChild);
        for step in &after {
            world.step(step);
        }
        world.drain();
        world.check();
    }
}

/// Drives a world by words: `+q`, `+s`, `+i` and `+I` append a Queue, Steer, bare or speaking Interrupt; `r` reconciles;
/// `b` lets the run go on; `w` lets run and worker go on up to a prompt; `e` ends the turn; `x` kills the worker; `d` drains.
fn play(script: &str) -> World {
    let mut world = World::new();
    play_on(&mut world, script);
    world
}

fn play_on(world: &mut World, script: &str) {
    for word in script.split_whitespace() {
        match word {
            "+q" => world.step(&Step::Append(Delivery::Queue, true)),
            "+s" => world.step(&Step::Append(Delivery::Steer, true)),
            "+i" => world.step(&Step::Append(Delivery::Interrupt, false)),
            "+I" => world.step(&Step::Append(Delivery::Interrupt, true)),
            "r" => world.step(&Step::Reconcile { acts: true }),
            "b" => world.step(&Step::RunGoesOn),
            "w" => {
                for step in [Step::RunGoesOn, Step::WorkerHears, Step::WorkerClaims, Step::WorkerPrompts] {
                    world.step(&step);
                }
            }
            "a" => world.step(&Step::SteerAnswered(true)),
            "e" => world.step(&Step::TurnEnds),
            "x" => world.step(&Step::WorkerDies),
            "d" => world.drain(),
            other => panic!("{other}"),
        }
    }
}

fn words(world: &World) -> String {
    let messages = &world.child.status.as_ref().unwrap().messages;
    let words = messages.iter().map(|message| match message.code {
        Some(code) => format!("{:?}/{}", message.outcome, code.as_str()),
        None => format!("{:?}", message.outcome),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Design section 5, a row at a time.
#[rstest]
#[case::first_message("+q d", "Started")]
#[case::queued_while_it_starts("+q r +q d", "Started Claimed")]
#[case::queued_while_a_turn_runs("+q r r w r +q r w", "Started Queued")]
#[case::then_its_own_turn("+q r r w r +q d", "Started Claimed")]
#[case::follow_up("+q d +q d", "Started Started")]
#[case::steer_while_it_starts("+q r +s d", "Started Rejected/NotDelivered")]
#[case::steer_into_a_turn("+q r r w r +s r w a d", "Started Steered")]
#[case::steer_when_settled("+q d +s d", "Started Rejected/NotDelivered")]
#[case::bare_interrupt_while_it_starts("+q r +i d", "Started Applied")]
#[case::bare_interrupt_of_a_turn("+q r r w r +q r w +i r w e d", "Started Parked Applied")]
#[case::bare_interrupt_when_settled("+q d +i d", "Started Applied")]
#[case::parked_run_first("+q r r w r +q r w +i r w e d +q d", "Started Claimed Applied Started")]
#[case::speaking_interrupt_of_a_turn("+q r r w r +q r w +I r w e d", "Started Claimed Claimed")]
#[case::speaking_interrupt_when_settled("+q d +I d", "Started Started")]
#[case::worker_lost_in_a_turn("+q r r w r +q r w x d", "Started Parked")]
#[case::steer_with_its_worker_lost("+q r r w r +s r w x d", "Started Rejected/Unconfirmed")]
#[case::bare_interrupt_with_its_worker_lost("+q r r w r +i r w x d", "Started Applied")]
fn c38_c42_deliveries(#[case] script: &str, #[case] expected: &str) {
    let world = play(script);
    assert_eq!(words(&world), expected, "{:?}", world.prompted);
}

#[test]
fn c42_what_an_interruption_parks_runs_first_and_in_order() {
    let world = play("+q r r w r +q +q r w +i r w e d +q d");
    assert_eq!(world.prompted, ["m1", "m2", "m3", "m5"]);
    assert!(!world.child.status.as_ref().unwrap().cancelling_descendants, "what the child delegated goes on");
    let speaking = play("+q r r w r +q +q r w +I r w e d");
    assert_eq!(speaking.prompted, ["m1", "m2", "m3", "m4"], "an interruption that speaks queues behind them");
}

/// c41: an interruption that meets a turn between its record and its prompt. The claim is stored by then, so it stands, whatever
/// a worker says later: taken back, the message would have two final outcomes.
#[test]
fn c41_a_stored_claim_is_not_taken_back() {
    let mut world = play("+q +q r r");
    for step in [Step::RunGoesOn, Step::WorkerHears, Step::WorkerClaims, Step::Reconcile { acts: false }] {
        world.step(&step);
    }
    assert_eq!(words(&world), "Started Queued");
    let placement = world.child.status.as_ref().unwrap().messages[0].placement.unwrap();
    world.live_worker().unwrap().1.tell(placement, "m1", "Parked", None);
    world.step(&Step::WorkerHears);
    world.step(&Step::Reconcile { acts: true });
    assert_eq!(words(&world), "Started Queued");
}

/// What is told to the worker behind an interruption would be waiting when that parks the rest, and overtake it.
#[rstest]
#[case::bare("+i", &["m1", "m2", "m4"])]
#[case::speaking("+I", &["m1", "m2", "m3", "m4"])]
fn c42_nothing_is_placed_behind_an_interruption_that_is_not_carried_out(
    #[case] interruption: &str,
    #[case] prompted: &[&str],
) {
    let script = format!("+q r r w r +q r w {interruption} r +q r");
    let world = play(&script);
    assert_eq!(words(&world), "Started Queued Queued Accepted");
    let listed = &world.run().unwrap().spec.messages;
    assert!(listed.iter().all(|message| message.id != "m4"), "{listed:?}");
    let world = play(&format!("{script} w e d"));
    assert_eq!(world.prompted, prompted);
}

#[test]
fn r13_an_activation_that_fails_before_its_turn_rejects_what_woke_it_and_parks_the_rest() {
    let mut world = play("+q +q r r");
    world.step(&Step::RunGoesOn);
    world.step(&Step::WorkerDies);
    world.drain();
    assert_eq!(words(&world), "Rejected/ActivationFailed Parked");
    assert_eq!(world.child.status.as_ref().unwrap().epochs, 1, "no endless epochs");
    world.step(&Step::Append(Delivery::Queue, true));
    world.drain();
    assert_eq!(words(&world), "Rejected/ActivationFailed Claimed Started");
}

#[test]
fn r13_an_activation_without_a_run_fails_as_one_that_had_one() {
    let mut world = play("+q +q");
    world.step(&Step::Reconcile { acts: false });
    world.step(&Step::Append(Delivery::Queue, true));
    world.step(&Step::Reconcile { acts: false });
    world.step(&Step::NeverBorn);
    assert_eq!(words(&world), "Rejected/ActivationFailed Parked Parked");
    world.step(&Step::Append(Delivery::Queue, true));
    world.drain();
    assert_eq!(words(&world), "Rejected/ActivationFailed Claimed Claimed Started");
    world.check();
}

/// c43, c51: a number that was claimed and has no run yet is cancelled at once, with what was placed on it and nothing later;
/// also when somebody else has the name.
#[rstest]
#[case::no_run(false)]
#[case::somebody_elses(true)]
fn c43_a_claim_without_a_run_is_cancelled_at_once(#[case] is_foreign: bool) {
    let mut world = play("+q +q");
    world.step(&Step::Reconcile { acts: false });
    world.child.spec.cancel_through_epoch = 1;
    if is_foreign {
        let memory = HashMap::new();
        let facts = Facts { run: Found::Foreign, ..alone(&world.child, &memory) };
        let new = advance(&facts, at(1));
        assert!(new.messages.iter().all(|message| message.outcome == Outcome::Discarded), "{:?}", new.messages);
        assert_eq!((new.activation, new.epochs), (None, 1));
    }
    world.step(&Step::Reconcile { acts: false });
    assert_eq!(words(&world), "Discarded Discarded");
    world.step(&Step::Append(Delivery::Queue, true));
    world.drain();
    assert_eq!(words(&world), "Discarded Discarded Started");
    world.check();
}

#[test]
fn r15_a_cancellation_discards_what_was_there_and_nothing_later() {
    let mut world = play("+q r r w r +q r w");
    world.step(&Step::CancelThrough);
    world.step(&Step::Append(Delivery::Queue, true));
    world.drain();
    assert_eq!(words(&world), "Started Discarded Started");
    assert_eq!(world.prompted, ["m1", "m3"]);
}

#[test]
fn c43_deleting_the_run_discards_and_the_child_stays() {
    let mut world = play("+q r r w r +q r w");
    world.step(&Step::DeleteRun);
    world.drain();
    assert_eq!(words(&world), "Started Discarded");
    world.step(&Step::Append(Delivery::Queue, true));
    world.drain();
    assert_eq!(world.outcome("m3"), Outcome::Started);
}

/// c43, c39: an activation that is closing anyway is cancelled as any other: what waits by then is discarded, and what comes
/// later starts the next.
#[rstest]
#[case::cancelled(Step::CancelRun)]
#[case::deleted(Step::DeleteRun)]
fn c43_a_closing_activation_is_cancelled_by_way_of_its_run(#[case] how: Step) {
    // It rests, so it is told that nothing more comes; then the second message meets it.
    let mut world = play("+q r r w r w e r +q r");
    let closing = world.child.status.as_ref().unwrap().activation.as_ref().map(|activation| activation.state);
    assert_eq!(closing, Some(ActivationState::Closing));
    assert_eq!(words(&world), "Started Accepted");
    world.step(&how);
    world.step(&Step::Reconcile { acts: true });
    assert_eq!(words(&world), "Started Discarded");
    assert!(world.child.status.as_ref().unwrap().cancelling_descendants, "c51");
    world.step(&Step::Append(Delivery::Queue, true));
    world.drain();
    assert_eq!(words(&world), "Started Discarded Started");
    world.check();
}

/// c43: a cancel that comes late is not about the activation that has begun meanwhile, nor about what that delegates.
#[test]
fn c43_a_late_cancel_leaves_what_a_newer_activation_delegated() {
    let mut world = play("+q d +q r r w r");
    assert_eq!(world.child.status.as_ref().unwrap().epochs, 2);
    world.child.spec.cancel_through_epoch = 1;
    world.step(&Step::Reconcile { acts: true });
    let status = world.child.status.clone().unwrap();
    assert_eq!((status.cancelled_through_epoch, status.cancelling_descendants), (1, false));
    assert_ne!(status.activation.map(|activation| activation.state), Some(ActivationState::Closing));
    world.child.spec.cancel_through_epoch = 2;
    world.step(&Step::Reconcile { acts: true });
    assert!(world.child.status.as_ref().unwrap().cancelling_descendants);
}

/// c36, c50: that no pod is found proves nothing right after the run was seen gone: one may be on its way.
#[test]
fn c36_c50_no_pod_of_a_removed_run_is_a_proof_only_after_a_while() {
    let mut world = play("+q r r w r +q r w");
    world.step(&Step::LoseRun);
    world.lost.clear();
    for second in [0, 1, POD_MAY_COME.as_secs().cast_signed() - 9] {
        world.now += second;
        world.step(&Step::Reconcile { acts: true });
        assert_eq!(world.child.status.as_ref().unwrap().epochs, 1);
        assert!(world.child.status.as_ref().unwrap().activation.is_some(), "after {second} s");
    }
    world.now += 9;
    world.step(&Step::Reconcile { acts: true });
    assert_eq!(world.child.status.as_ref().unwrap().activation, None);
}

/// c36, c50: somebody took the finalizers off a run. Its pod may be at work, so nothing begins before the proof; what it held
/// has one outcome, and a turn that had begun is not lost without a word (c41).
#[test]
fn c36_c50_the_next_activation_waits_for_the_pod_of_a_run_that_was_removed_by_force() {
    let mut world = play("+q r r w r +q r w");
    world.step(&Step::LoseRun);
    world.step(&Step::Append(Delivery::Queue, true));
    for _ in 0..3 {
        world.step(&Step::Reconcile { acts: true });
    }
    let status = world.child.status.clone().unwrap();
    let state = status.activation.as_ref().map(|activation| (activation.epoch, activation.state));
    assert_eq!((state, status.epochs), (Some((1, ActivationState::Closing)), 1));
    assert_eq!(words(&world), "Started Queued Accepted", "the worker may have the second, and the third waits");
    let mut leaving = world.child.clone();
    leaving.metadata.deletion_timestamp = Some(Time(at(9)));
    assert!(World::advanced(&leaving, &world.found(), 9).activation.is_some(), "nor is the child let go");
    world.step(&Step::LostPodStops);
    world.drain();
    assert_eq!(words(&world), "Started Rejected/Unconfirmed Started");
    let turns: Vec<_> = world
        .child
        .status
        .as_ref()
        .unwrap()
        .turns
        .iter()
        .map(|turn| (turn.epoch, turn.turn, turn.message_id.as_str(), turn.stop_reason.as_str()))
        .collect();
    assert_eq!(turns, [(1, 1, "m1", INTERRUPTED), (2, 1, "m3", "Completed")]);
    assert_eq!(world.prompted, ["m1", "m3"]);
    world.check();
}

#[test]
fn r16_more_than_an_activation_holds_waits_and_an_interruption_does_not() {
    let mut world = play("+q r r w r");
    for _ in 0..40 {
        world.step(&Step::Append(Delivery::Queue, true));
    }
    world.step(&Step::Reconcile { acts: true });
    let count = |world: &World, wanted: Outcome| {
        let messages = &world.child.status.as_ref().unwrap().messages;
        messages.iter().filter(|message| message.outcome == wanted).count()
    };
    assert_eq!(count(&world, Outcome::Queued), bounds::PLACED);
    world.step(&Step::Append(Delivery::Interrupt, false));
    world.step(&Step::Reconcile { acts: true });
    assert_eq!(world.outcome("m42"), Outcome::Queued, "at once");
    world.drain();
    assert_eq!((count(&world, Outcome::Parked), world.outcome("m42")), (40, Outcome::Applied));
    assert_eq!(world.prompted, ["m1"]);
    world.step(&Step::Append(Delivery::Queue, true));
    world.drain();
    assert_eq!(world.prompted.len(), 42, "each once");
    world.check();
}

#[test]
fn r16_what_is_parked_is_woken_once_each_on_the_same_resident_activation() {
    let mut world = World::new();
    world.child.spec.activation.residency_seconds = 100_000;
    play_on(&mut world, "+q r r w r +q +q r w +i r w e d");
    assert_eq!((words(&world).as_str(), world.runs.len()), ("Started Parked Parked Applied", 1));
    play_on(&mut world, "+q d");
    assert_eq!((words(&world).as_str(), world.runs.len()), ("Started Claimed Claimed Applied Claimed", 1));
    assert_eq!(world.prompted, ["m1", "m2", "m3", "m5"]);
}

/// c46: every code, by what leads to it.
#[test]
fn c46_a_rejected_message_says_why() {
    assert_eq!(words(&play("+q d +s d")), "Started Rejected/NotDelivered");
    assert_eq!(words(&play("+q r r w r +s r w x d")), "Started Rejected/Unconfirmed");
    assert_eq!(words(&play("+q r r b x d")), "Rejected/ActivationFailed");
    let rejected = |change: &dyn Fn(&mut Subagent)| {
        let mut child = child();
        child.spec.messages = vec![entry("m1", Delivery::Queue, Some("t"))];
        change(&mut child);
        let new = advance(&alone(&child, &HashMap::new()), at(0));
        assert_eq!((new.messages[0].outcome, new.epochs), (Outcome::Rejected, 0));
        new.messages[0].code
    };
    let lost = |child: &mut Subagent| {
        child.status.get_or_insert_default().phase = Some(SubagentPhase::NotResumable);
    };
    assert_eq!(rejected(&lost), Some(Code::NotResumable));
    let large = |child: &mut Subagent| child.spec.messages[0].text = Some("x".repeat(bounds::MESSAGE_CONTENT + 1));
    assert_eq!(rejected(&large), Some(Code::TooLarge));
    let empty = |child: &mut Subagent| {
        let known = MessageStatus { id: "m1".into(), sequence: 1, ..MessageStatus::default() };
        child.status.get_or_insert_default().messages = vec![known];
        child.spec.messages.clear();
    };
    assert_eq!(rejected(&empty), Some(Code::InvalidContent));
}

#[test]
fn r12_the_same_id_again_has_no_effect_and_other_content_is_a_conflict() {
    let mut child = child();
    child.spec.messages = vec![entry("m1", Delivery::Queue, Some("a")), entry("m2", Delivery::Queue, Some("b"))];
    let told =
        |text: &str| Remembered { digest: digest(&entry("x", Delivery::Queue, Some(text))), outcome: Outcome::Claimed };
    let memory = HashMap::from([("m1".to_owned(), told("a")), ("m2".to_owned(), told("other"))]);
    let facts =
        Facts { child: &child, run: Found::Missing, memory: &memory, is_memory_lost: false, has_live_children: false };
    let new = advance(&facts, at(0));
    let seen: Vec<_> = new.messages.iter().map(|message| (message.outcome, message.conflict)).collect();
    assert_eq!(seen, [(Outcome::Claimed, false), (Outcome::Claimed, true)]);
    assert_eq!((new.epochs, new.phase), (0, Some(SubagentPhase::Settled)), "nothing starts");
}

#[test]
fn r12_with_a_part_of_the_memory_lost_no_new_id_is_taken() {
    let mut child = child();
    child.spec.messages = vec![entry("m1", Delivery::Queue, Some("a")), entry("m2", Delivery::Queue, Some("b"))];
    let seen = Remembered { digest: digest(&child.spec.messages[0])[..20].into(), outcome: Outcome::Claimed };
    let memory = HashMap::from([("m1".to_owned(), seen)]);
    let facts =
        Facts { child: &child, run: Found::Missing, memory: &memory, is_memory_lost: true, has_live_children: false };
    let new = advance(&facts, at(0));
    let seen: Vec<_> = new.messages.iter().map(|message| (message.outcome, message.code, message.conflict)).collect();
    assert_eq!(
        seen,
        [(Outcome::Claimed, None, false), (Outcome::Rejected, Some(Code::NotDelivered), false)],
        "what is remembered still is"
    );
    assert_eq!(new.epochs, 0);
}

fn alone<'a>(child: &'a Subagent, memory: &'a HashMap<String, Remembered>) -> Facts<'a> {
    Facts { child, run: Found::Missing, memory, is_memory_lost: false, has_live_children: false }
}

#[test]
fn t5_no_more_is_taken_in_than_the_status_holds() {
    let mut child = child();
    let ids: Vec<_> = (0..bounds::INBOX).map(|number| format!("m{number}")).collect();
    child.spec.messages = ids.iter().map(|id| entry(id, Delivery::Steer, Some("t"))).collect();
    let memory = HashMap::new();
    child.status = Some(advance(&alone(&child, &memory), at(0)));
    // Somebody's tool replaced the list, as it may: all of it is over.
    child.spec.messages = vec![entry("next", Delivery::Queue, Some("t"))];
    let full = advance(&alone(&child, &memory), at(1));
    assert_eq!((full.messages.len(), full.epochs), (bounds::INBOX, 0), "it waits until there is room");
}

#[test]
fn d2_a_foreign_run_under_the_name_costs_its_number() {
    let mut child = child();
    child.spec.messages = vec![entry("m1", Delivery::Queue, Some("a"))];
    child.status = Some(advance(
        &Facts {
            child: &child,
            run: Found::Missing,
            memory: &HashMap::new(),
            is_memory_lost: false,
            has_live_children: false,
        },
        at(0),
    ));
    let facts = Facts {
        child: &child,
        run: Found::Foreign,
        memory: &HashMap::new(),
        is_memory_lost: false,
        has_live_children: false,
    };
    let new = advance(&facts, at(1));
    let activation = new.activation.unwrap();
    assert_eq!((new.epochs, activation.epoch, new.messages[0].epoch), (2, 2, Some(2)));
    assert_eq!(activation.run_name, run_name(&child, 2));
}

#[test]
fn c45_a_child_with_live_children_waits() {
    let world = play("+q d");
    let facts = Facts {
        child: &world.child,
        run: Found::Missing,
        memory: &HashMap::new(),
        is_memory_lost: false,
        has_live_children: true,
    };
    assert_eq!(advance(&facts, at(9)).phase, Some(SubagentPhase::Waiting));
}

#[test]
fn an_idle_activation_is_kept_for_its_residency() {
    let mut world = World::new();
    world.child.spec.activation.residency_seconds = 10;
    world.step(&Step::Append(Delivery::Queue, true));
    world.drain();
    let state = |world: &World| world.child.status.as_ref().unwrap().activation.as_ref().map(|found| found.state);
    // The drain above took longer than the residency; another child rests for a while.
    assert_eq!(state(&world), None);
    let mut world = World::new();
    world.child.spec.activation.residency_seconds = 100_000;
    world.step(&Step::Append(Delivery::Queue, true));
    world.drain();
    assert_eq!(state(&world), Some(ActivationState::Idle));
    world.step(&Step::Append(Delivery::Queue, true));
    world.drain();
    assert_eq!((words(&world).as_str(), world.runs.len()), ("Started Claimed", 1), "no new pod");
    world.now += 100_000;
    world.drain();
    assert_eq!(state(&world), None);
}
