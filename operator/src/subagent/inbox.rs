//! The inbox of a continuable child: from its spec, its status and the run of its activation, what its messages' status is
//! next. Pure, and the only place that decides what becomes of a message (design section 5).
//!
//! One call computes everything that the facts allow, and one guarded write stores it. What is to be done to the run then
//! follows from the stored status alone (`placing`), so a crash in between changes nothing.

use crate::{provider::capabilities::without_steering, settings::CALL_TIMEOUT};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use sha2::{Digest, Sha256};
use std::{collections::HashMap, time::Duration};
use subagent_crds::{
    Phase, Reason, StopReason, Subagent, SubagentPhase, SubagentRun, SubagentStatus, bounds, conditions,
    message::{Code, Delivery, InboxMessage, MessageReport, Outcome},
    report::Report,
    subagent_status::{ActivationState, ChildCheckpoint, ChildTurn, CurrentActivation, MessageStatus},
};

/// Stop reason of a turn whose worker was lost: what it did is unknown, and it is not repeated (contract c41).
pub const INTERRUPTED: &str = "Interrupted";

/// Why a worker does not deliver a steer.
pub const NOT_TAKEN: &str = "the agent did not take it into its turn, or that was over or interrupted before it did";
/// What to do about a message that did not go into a turn.
const REMEDY: &str = "append it under a new id with delivery Queue";
/// What is known of a message that an agent was given and nobody heard of any more.
const NOT_CONFIRMED: &str = "nobody confirmed that the agent took it: it may have it, or may not";
/// Why a child that was refused is told nothing.
const NEVER_BEGINS: &str =
    "the child was refused and never runs a turn; create another Subagent, with this as a message of it";
/// Why no new id is taken.
const MEMORY_LOST: &str = "a part of the memory of ids is lost, so nobody can tell whether this id is new; condition MemoryWhole \
                           names the ConfigMap: restore it, and append it under a new id";
/// How long after a run was seen gone a pod of it may still come: its controller may be between its last look at the run and
/// the pod, with a read of the revision and the create to go.
pub const POD_MAY_COME: Duration = CALL_TIMEOUT.saturating_mul(2);
/// Longest text about a message, in bytes, as the schema has it: an inbox holds 64 of them.
const MESSAGE: usize = 256;

/// What is found under the name of the activation's run.
#[derive(Clone, Copy, Debug)]
pub enum Found<'a> {
    /// Nothing, or nothing was looked for.
    Missing,
    /// Nothing any more: the run whose UID is stored was removed by force.
    Removed {
        /// True when live reads prove that no pod of it runs any more.
        is_stopped: bool,
    },
    /// An object that is not of this activation.
    Foreign,
    /// The run of this activation.
    Ours(&'a SubagentRun),
}

/// An id that has left the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// Digest of delivery and content, or how it begins.
    pub digest: String,
    /// What became of it.
    pub outcome: Outcome,
}

/// Everything the inbox depends on, from live reads.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The child.
    pub child: &'a Subagent,
    /// The run of its activation.
    pub run: Found<'a>,
    /// What is remembered of ids in the spec that the status does not list.
    pub memory: &'a HashMap<String, Remembered>,
    /// True when a part of that memory is lost: nobody can tell whether an id is new.
    pub is_memory_lost: bool,
    /// True while a child of this child is live (contract c45).
    pub has_live_children: bool,
}

impl Facts<'_> {
    fn is_interruption(&self, id: &str) -> bool {
        self.child.spec.messages.iter().any(|entry| entry.id == id && entry.delivery == Delivery::Interrupt)
    }
}

/// The next status. Equal to the old one when there is nothing to do.
pub fn advance(facts: &Facts<'_>, now: Timestamp) -> SubagentStatus {
    let mut inbox = Inbox { facts, new: facts.child.status.clone().unwrap_or_default(), now: Time(now) };
    inbox.cancel();
    inbox.follow_run();
    inbox.take_in();
    inbox.deliver();
    inbox.settle();
    inbox.new
}

/// The status when an activation fails that never had a run: what woke it is rejected, and the rest is parked (pitfall R13).
pub fn fail_unborn(facts: &Facts<'_>, now: Timestamp) -> SubagentStatus {
    let mut inbox = Inbox { facts, new: facts.child.status.clone().unwrap_or_default(), now: Time(now) };
    inbox.fail_unborn();
    inbox.settle();
    inbox.new
}

/// The status of a child that was refused, with an outcome for each of its messages, so that every entry can be removed: no
/// activation will ever begin with one. What has left the inbox is forgotten: its id would be turned away again.
pub fn turn_down(child: &Subagent, old: &SubagentStatus, now: Timestamp) -> SubagentStatus {
    let (memory, mut new) = (HashMap::new(), old.clone());
    new.messages.retain(|message| child.spec.messages.iter().any(|entry| entry.id == message.id));
    let facts = Facts { child, run: Found::Missing, memory: &memory, is_memory_lost: false, has_live_children: false };
    let mut inbox = Inbox { facts: &facts, new, now: Time(now) };
    inbox.take_in();
    for at in inbox.in_order(|message| !message.outcome.is_terminal()) {
        let entry = inbox.spec(&inbox.new.messages[at].id);
        let (delivery, has_content) =
            entry.map_or((Delivery::Queue, false), |entry| (entry.delivery, entry.has_content()));
        match delivery {
            Delivery::Steer => inbox.not_delivered(at, NEVER_BEGINS),
            Delivery::Interrupt if !has_content => inbox.conclude(at, Outcome::Applied, None),
            _ => inbox.conclude(at, Outcome::Rejected, Some(Code::ActivationFailed)),
        }
    }
    inbox.new
}

/// Name of the run of an activation.
pub fn run_name(child: &Subagent, epoch: i64) -> String {
    let name = child.metadata.name.as_deref().unwrap_or_default();
    let uid = child.metadata.uid.as_deref().unwrap_or_default();
    crate::naming::derived(name, uid, &epoch.to_string())
}

/// Digest by which a repeat of an id is told from another message.
pub fn digest(message: &InboxMessage) -> String {
    let content = serde_json::json!([message.delivery, message.text, message.content]);
    crate::naming::hex(&Sha256::digest(content.to_string().as_bytes()))
}

/// Whether a run is that of this child's activation: by UID and number, never by name alone.
pub fn is_of(run: &SubagentRun, child: &Subagent, epoch: i64) -> bool {
    let activation = run.spec.activation.as_ref();
    activation.is_some_and(|activation| {
        Some(&activation.subagent_ref.uid) == child.metadata.uid.as_ref() && activation.epoch == epoch
    })
}

/// True once nothing of a run can change any more: it is over, and every process of it is gone.
pub fn is_over(run: &SubagentRun) -> bool {
    run.status.as_ref().is_some_and(|status| {
        status.phase.is_some_and(Phase::is_terminal) && conditions::is_true(&status.conditions, conditions::STOPPED)
    })
}

/// The word of the worker of the run's current attempt.
pub fn report_of(run: &SubagentRun) -> Option<&Report> {
    let status = run.status.as_ref()?;
    status.report.as_ref().filter(|report| Some(report.attempt) == status.attempt)
}

struct Inbox<'a> {
    facts: &'a Facts<'a>,
    new: SubagentStatus,
    now: Time,
}

impl<'a> Inbox<'a> {
    fn spec(&self, id: &str) -> Option<&'a InboxMessage> {
        self.facts.child.spec.messages.iter().find(|message| message.id == id)
    }

    fn activation(&mut self) -> Option<&mut CurrentActivation> {
        self.new.activation.as_mut()
    }

    /// Indexes of messages in the order of their sequence.
    fn in_order(&self, wanted: impl Fn(&MessageStatus) -> bool) -> Vec<usize> {
        let mut found: Vec<_> = (0..self.new.messages.len()).filter(|&at| wanted(&self.new.messages[at])).collect();
        found.sort_by_key(|&at| self.new.messages[at].sequence);
        found
    }

    fn conclude(&mut self, at: usize, outcome: Outcome, code: Option<Code>) {
        let message = &mut self.new.messages[at];
        message.outcome = outcome;
        message.code = code;
        message.at = Some(self.now.clone());
    }

    /// A steer that is not delivered, and why (contract c38).
    fn not_delivered(&mut self, at: usize, why: &str) {
        self.conclude(at, Outcome::Rejected, Some(Code::NotDelivered));
        self.new.messages[at].message = conditions::cut(why, MESSAGE);
    }

    /// A cancellation is carried out once: what is raised together with it is discarded together with it, and a message that
    /// is not sequenced yet comes after it (contract c43, pitfall R15). What a worker holds is discarded when that is over: it
    /// may be claiming it right now. A newer activation goes on, with what it delegates.
    fn cancel(&mut self) {
        let through = self.facts.child.spec.cancel_through_epoch.min(self.new.epochs);
        if through <= self.new.cancelled_through_epoch {
            return;
        }
        self.new.cancelled_through_epoch = through;
        self.discard_waiting();
        if let Some(activation) = self.activation() {
            if activation.epoch > through {
                return;
            }
            activation.state = ActivationState::Closing;
        }
        self.cancel_below();
    }

    fn cancel_below(&mut self) {
        self.new.cancelling_descendants = true;
        self.new.cancelling_since = Some(self.now.clone());
    }

    /// Takes in what the run of the activation tells, and its end.
    fn follow_run(&mut self) {
        let Some(activation) = self.new.activation.clone() else { return };
        match self.facts.run {
            // Of an activation that is over; this one's was not looked for yet.
            Found::Ours(run) if !is_of(run, self.facts.child, activation.epoch) => {}
            Found::Removed { .. } if activation.run_uid.is_none() => {}
            Found::Ours(run) => {
                self.fold(run);
                let phase = run.status.as_ref().and_then(|status| status.phase);
                let is_cancelled = run.spec.cancel || run.metadata.deletion_timestamp.is_some();
                if is_cancelled || phase == Some(Phase::Cancelled) {
                    self.close_cancelled();
                }
                if is_over(run) {
                    self.end(Some(run));
                }
            }
            // Somebody took even the finalizers off it. What its worker did last is unknown, so nothing is repeated; and it may
            // still be at work, so nothing begins before the proof (c36, c50).
            Found::Removed { is_stopped } => {
                self.close_cancelled();
                if is_stopped && self.is_long_gone() {
                    self.end(None);
                }
            }
            // A run that comes in the last moment is not named here and never gets a pod.
            Found::Missing if self.is_deleting() => {
                self.discard_waiting();
                self.discard_unborn(activation.epoch);
                self.new.activation = None;
            }
            // Cancelled before it had one: nobody has what was placed on it, and nothing is left to wait for.
            Found::Missing | Found::Foreign if activation.epoch <= self.new.cancelled_through_epoch => {
                self.discard_unborn(activation.epoch);
                self.new.activation = None;
            }
            // Its number may be claimed and nothing more.
            Found::Missing => {}
            Found::Foreign => self.skip_number(),
        }
    }

    /// The activation was cancelled by way of its run: what waits by now is discarded (contract c43), also when it was closing
    /// anyway. What comes from now on meets a closing activation and starts the next (c39).
    fn close_cancelled(&mut self) {
        let Some(activation) = self.activation() else { return };
        activation.state = ActivationState::Closing;
        let epoch = activation.epoch;
        if epoch <= self.new.cancelled_through_epoch {
            return;
        }
        self.new.cancelled_through_epoch = epoch;
        self.discard_waiting();
        self.cancel_below();
    }

    /// True when the run of the activation is gone for so long that no pod of it can come any more: until then none may be there
    /// because it is only being created.
    fn is_long_gone(&mut self) -> bool {
        let now = self.now.clone();
        let Some(activation) = self.activation() else { return false };
        let since = activation.run_gone_since.get_or_insert_with(|| now.clone()).0;
        now.0 >= since + POD_MAY_COME
    }

    fn discard_waiting(&mut self) {
        for at in self.in_order(|message| matches!(message.outcome, Outcome::Accepted | Outcome::Parked)) {
            self.conclude(at, Outcome::Discarded, None);
        }
    }

    /// Discards what was placed on a run that does not exist: no worker ever had it.
    fn discard_unborn(&mut self, epoch: i64) {
        for at in self.in_order(|message| !message.outcome.is_terminal() && message.epoch == Some(epoch)) {
            self.conclude(at, Outcome::Discarded, None);
        }
    }

    /// A cancelled activation discards what was placed on it; what came later starts the next.
    fn fail_unborn(&mut self) {
        let Some(activation) = self.new.activation.take() else { return };
        if activation.epoch <= self.new.cancelled_through_epoch {
            self.discard_unborn(activation.epoch);
            return;
        }
        for at in self.in_order(|message| !message.outcome.is_terminal()) {
            if self.new.messages[at].id == activation.woken_by {
                self.conclude(at, Outcome::Rejected, Some(Code::ActivationFailed));
                continue;
            }
            let message = &mut self.new.messages[at];
            (message.outcome, message.placement, message.epoch) = (Outcome::Parked, None, None);
            message.at = Some(self.now.clone());
        }
    }

    fn is_deleting(&self) -> bool {
        self.facts.child.metadata.deletion_timestamp.is_some()
    }

    /// The name of the run is taken: the next number has another.
    fn skip_number(&mut self) {
        self.new.epochs += 1;
        let (epoch, run_name) = (self.new.epochs, run_name(self.facts.child, self.new.epochs));
        let Some(activation) = self.activation() else { return };
        let skipped = activation.epoch;
        (activation.epoch, activation.run_name, activation.run_uid) = (epoch, run_name, None);
        activation.refused_since = None;
        for message in &mut self.new.messages {
            if message.epoch == Some(skipped) && !message.outcome.is_terminal() {
                message.epoch = Some(epoch);
            }
        }
    }

    fn fold(&mut self, run: &SubagentRun) {
        let report = report_of(run);
        let Some(activation) = self.activation() else { return };
        activation.run_uid.clone_from(&run.metadata.uid);
        activation.refused_since = None;
        if activation.state == ActivationState::Claimed {
            activation.state = ActivationState::Starting;
        }
        let (epoch, woken_by) = (activation.epoch, activation.woken_by.clone());
        let Some(report) = report else { return };
        if report.session.is_some() && activation.state == ActivationState::Starting {
            activation.state = ActivationState::Running;
        }
        for told in &report.messages {
            self.fold_message(told, &woken_by);
        }
        self.fold_turns(report, epoch, is_over(run));
        if let Some(session) = &report.session {
            self.new.session_id = Some(session.id.clone());
        }
    }

    /// A worker speaks of one placing, so a parked message that came back is not taken for the one before.
    fn fold_message(&mut self, told: &MessageReport, woken_by: &str) {
        let held = |message: &&mut MessageStatus| {
            message.id == told.id && message.placement == Some(told.placement) && message.outcome == Outcome::Queued
        };
        let spec = self.spec(&told.id);
        let now = self.now.clone();
        let Some(message) = self.new.messages.iter_mut().find(held) else { return };
        match told.outcome.as_str() {
            "Parked" => message.outcome = Outcome::Parked,
            "Started" | "Claimed" => {
                message.outcome = if message.id == woken_by { Outcome::Started } else { Outcome::Claimed };
                message.turn = told.turn;
            }
            "Steered" => (message.outcome, message.turn) = (Outcome::Steered, told.turn),
            // The interruption; what it says besides still waits for its turn.
            "Applied" if spec.is_some_and(InboxMessage::has_content) => {
                (message.outcome, message.interrupted) = (Outcome::Accepted, true);
                (message.placement, message.epoch) = (None, None);
            }
            "Applied" => message.outcome = Outcome::Applied,
            "Rejected" => {
                let code = told.code.as_deref().and_then(Code::parse).unwrap_or(Code::NotDelivered);
                (message.outcome, message.code) = (Outcome::Rejected, Some(code));
                match code {
                    Code::NotDelivered => message.message = format!("{NOT_TAKEN}; {REMEDY}"),
                    Code::Unconfirmed => message.message = format!("{NOT_CONFIRMED}; {REMEDY}"),
                    _ => {}
                }
            }
            // A word of a newer worker: the end of the activation settles it.
            _ => return,
        }
        message.at = Some(now);
    }

    fn fold_turns(&mut self, report: &Report, epoch: i64, is_over: bool) {
        let folded = self.new.activation.as_ref().map_or(0, |activation| activation.folded_turns);
        let checkpointed = report.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.turn);
        for turn in report.turns.iter().filter(|turn| turn.turn > folded) {
            let finished = turn.stop_reason.is_some();
            if !finished && !is_over {
                break;
            }
            let stop_reason = turn.stop_reason.clone().filter(|_| finished).unwrap_or_else(|| INTERRUPTED.to_owned());
            let mut told = ChildTurn {
                epoch,
                turn: turn.turn,
                message_id: turn.message_id.clone().unwrap_or_default(),
                stop_reason,
                preview: turn.preview.clone(),
                output: None,
                beside_text: None,
                at: turn.finished_at.clone().unwrap_or_default(),
            };
            if let Some(output) = &turn.output {
                told.point_to(output);
            }
            // Of one that failed or was cancelled the session may know nothing: an empty one is not a lost one then (c40).
            if told.stop_reason == StopReason::Completed.as_str() && turn.turn <= checkpointed {
                self.new.completed_turns += 1;
            }
            self.add_turn(told);
            if let Some(activation) = self.activation() {
                activation.folded_turns = turn.turn;
            }
        }
        if let Some(stored) = &report.checkpoint {
            let newest = self.new.checkpoint.as_ref().map(|old| (old.epoch, old.turn));
            if newest < Some((epoch, stored.turn)) {
                self.new.checkpoint = Some(ChildCheckpoint {
                    key: stored.key.clone(),
                    digest: stored.digest.clone(),
                    size: stored.size,
                    epoch,
                    turn: stored.turn,
                    at: Some(self.now.clone()),
                });
            }
        }
    }

    fn add_turn(&mut self, turn: ChildTurn) {
        self.new.last_result = Some(turn.clone());
        self.new.turns.push(turn);
        let surplus = self.new.turns.len().saturating_sub(bounds::TURNS);
        self.new.turns.drain(..surplus);
    }

    /// The turns of a run that is gone of which only the begin was told: how they ended nobody knows any more (c41).
    fn interrupt_turns(&mut self, epoch: i64, folded: i64) {
        let claimed = |message: &&MessageStatus| {
            message.epoch == Some(epoch) && matches!(message.outcome, Outcome::Started | Outcome::Claimed)
        };
        let begun =
            self.new.messages.iter().filter(claimed).filter_map(|message| Some((message.turn?, message.id.clone())));
        let mut begun: Vec<_> = begun.filter(|(turn, _)| *turn > folded).collect();
        begun.sort();
        for (turn, message_id) in begun {
            self.add_turn(ChildTurn {
                epoch,
                turn,
                message_id,
                stop_reason: INTERRUPTED.to_owned(),
                ..ChildTurn::default()
            });
        }
    }

    /// The activation is over: every message it had gets an outcome, goes back, or is parked. `None` when its run is gone.
    fn end(&mut self, run: Option<&SubagentRun>) {
        let Some(activation) = self.new.activation.take() else { return };
        if run.is_none() {
            self.interrupt_turns(activation.epoch, activation.folded_turns);
        }
        let status = run.and_then(|run| run.status.as_ref());
        let phase = status.and_then(|status| status.phase);
        let reason = status.and_then(|status| status.reason.as_deref());
        let not_resumable = reason == Some(Reason::NotResumable.as_str());
        let is_cancelled =
            run.is_none() || phase == Some(Phase::Cancelled) || activation.epoch <= self.new.cancelled_through_epoch;
        let is_failed = !is_cancelled && phase != Some(Phase::Completed);
        for at in self.in_order(|message| !message.outcome.is_terminal()) {
            let message = &mut self.new.messages[at];
            let was_placed = message.outcome == Outcome::Queued;
            let delivery = self.facts.child.spec.messages.iter().find(|entry| entry.id == message.id);
            let (is_steer, is_bare) = delivery.map_or((false, false), |entry| {
                (entry.delivery == Delivery::Steer, entry.delivery == Delivery::Interrupt && !entry.has_content())
            });
            message.interrupted |= was_placed && self.facts.is_interruption(&message.id);
            if was_placed && (is_steer || run.is_none()) {
                // The agent may have it, or may not.
                self.conclude(at, Outcome::Rejected, Some(Code::Unconfirmed));
                self.new.messages[at].message = format!("{NOT_CONFIRMED}; {REMEDY}");
            } else if was_placed && is_bare {
                self.conclude(at, Outcome::Applied, None);
            } else if was_placed && is_cancelled {
                self.conclude(at, Outcome::Discarded, None);
            } else if not_resumable && !is_steer && !is_bare || is_failed && message.id == activation.woken_by {
                let code = if not_resumable { Code::NotResumable } else { Code::ActivationFailed };
                self.conclude(at, Outcome::Rejected, Some(code));
            } else if is_steer || is_bare {
                // Not placed yet: it is decided below, with nothing running.
            } else if is_failed || was_placed {
                message.outcome = if is_failed { Outcome::Parked } else { Outcome::Accepted };
                (message.placement, message.epoch) = (None, None);
                message.at = Some(self.now.clone());
            }
        }
        if not_resumable {
            self.new.phase = Some(SubagentPhase::NotResumable);
            self.new.reason = Some(Reason::NotResumable.to_string());
        }
    }

    /// Sequences what the status does not list, in the order of the list, as far as there is room. The same id again has no
    /// effect.
    fn take_in(&mut self) {
        for entry in &self.facts.child.spec.messages {
            let digest = digest(entry);
            if let Some(known) = self.new.messages.iter_mut().find(|known| known.id == entry.id) {
                known.conflict |= known.digest != digest;
                continue;
            }
            if self.new.messages.len() >= bounds::INBOX {
                break;
            }
            self.new.sequences += 1;
            let mut message = MessageStatus {
                id: entry.id.clone(),
                sequence: self.new.sequences,
                digest: digest.clone(),
                at: Some(self.now.clone()),
                ..MessageStatus::default()
            };
            if let Some(seen) = self.facts.memory.get(&entry.id) {
                message.outcome = seen.outcome;
                message.conflict = !digest.starts_with(&seen.digest);
            } else if self.facts.is_memory_lost {
                (message.outcome, message.code) = (Outcome::Rejected, Some(Code::NotDelivered));
                message.message = MEMORY_LOST.to_owned();
            } else if entry.bytes() > bounds::MESSAGE_CONTENT {
                (message.outcome, message.code) = (Outcome::Rejected, Some(Code::TooLarge));
            }
            self.new.messages.push(message);
        }
    }

    /// Gives accepted messages to the activation, begins one, or closes it.
    fn deliver(&mut self) {
        let deleting = self.is_deleting();
        let is_busy = self.is_busy();
        let not_steerable = if is_busy { self.not_steerable() } else { Some(self.no_turn()) };
        for at in self.in_order(|message| message.outcome == Outcome::Accepted) {
            let Some(entry) = self.spec(&self.new.messages[at].id) else {
                // Nothing is known of what it says; the API's rules keep entries that are under way.
                self.conclude(at, Outcome::Rejected, Some(Code::InvalidContent));
                continue;
            };
            match entry.delivery {
                Delivery::Steer if not_steerable.is_some() => {
                    self.not_delivered(at, not_steerable.as_deref().unwrap_or_default());
                }
                Delivery::Interrupt if !is_busy && !entry.has_content() => self.conclude(at, Outcome::Applied, None),
                _ if deleting => self.conclude(at, Outcome::Discarded, None),
                _ if self.new.phase == Some(SubagentPhase::NotResumable) => {
                    self.conclude(at, Outcome::Rejected, Some(Code::NotResumable));
                }
                _ => {}
            }
        }
        match self.new.activation.as_ref().map(|activation| activation.state) {
            None => self.begin(),
            Some(ActivationState::Closing) => {}
            Some(_) => self.place(is_busy),
        }
        self.rest();
    }

    /// True while a turn runs, or the worker is between two of them, by its stored word. The prompt of a turn is sent only after
    /// that is stored, so when it says no, nothing runs.
    fn is_busy(&self) -> bool {
        let state = self.new.activation.as_ref().map(|activation| activation.state);
        let running = matches!(state, Some(ActivationState::Running | ActivationState::Idle));
        running && self.report().is_some_and(|report| report.session.is_some() && !report.idle)
    }

    /// What there is in the place of a running turn.
    fn no_turn(&self) -> String {
        let is = match &self.new.activation {
            None => "nothing runs".to_owned(),
            Some(activation) => {
                let state = match activation.state {
                    ActivationState::Claimed | ActivationState::Starting => "is only starting",
                    ActivationState::Closing => "is ending",
                    ActivationState::Running | ActivationState::Idle => "has nothing to do",
                };
                format!("activation {} {state}", activation.epoch)
            }
        };
        format!("{is}, and a steer goes into a running turn or nowhere; append it under a new id with delivery Queue")
    }

    /// Why the agent at work takes no steer, if that is known.
    fn not_steerable(&self) -> Option<String> {
        let agent = self.report()?.agent.as_ref()?;
        let why = without_steering(agent, &self.facts.child.spec.provider_ref.name)?;
        Some(format!("{why}; append it under a new id with delivery Queue or Interrupt"))
    }

    /// The stored word of the activation's worker.
    fn report(&self) -> Option<&'a Report> {
        let Found::Ours(run) = self.facts.run else { return None };
        let epoch = self.new.activation.as_ref()?.epoch;
        report_of(run).filter(|_| is_of(run, self.facts.child, epoch))
    }

    /// Claims the next number when a message wants a turn. Parked ones come along: theirs is the first.
    fn begin(&mut self) {
        let Some(&waking) = self.in_order(|message| message.outcome == Outcome::Accepted).first() else { return };
        self.new.epochs += 1;
        let epoch = self.new.epochs;
        self.new.activation = Some(CurrentActivation {
            epoch,
            run_name: run_name(self.facts.child, epoch),
            woken_by: self.new.messages[waking].id.clone(),
            ..CurrentActivation::default()
        });
        self.place(false);
    }

    /// Numbers messages for the worker, in order, as many as it may hold. Behind an interruption nothing is placed until that was
    /// carried out: what it parks must not be overtaken.
    fn place(&mut self, is_busy: bool) {
        let Some(epoch) = self.new.activation.as_ref().map(|activation| activation.epoch) else { return };
        let wants_turn = |message: &MessageStatus| {
            let entry = self.facts.child.spec.messages.iter().find(|entry| entry.id == message.id);
            entry.is_some_and(|entry| entry.delivery != Delivery::Steer && entry.has_content())
        };
        let accepted = |message: &MessageStatus| message.outcome == Outcome::Accepted;
        let interrupting = |message: &MessageStatus| is_busy && accepted(message) && self.interrupts(message);
        let last_interruption = self.in_order(interrupting).last().map_or(0, |&at| self.new.messages[at].sequence);
        let wakes =
            |message: &MessageStatus| accepted(message) && message.sequence >= last_interruption && wants_turn(message);
        let is_woken = self.new.messages.iter().any(wakes);
        if is_woken {
            for message in &mut self.new.messages {
                if message.outcome == Outcome::Parked {
                    (message.outcome, message.placement, message.epoch) = (Outcome::Accepted, None, None);
                }
            }
        }
        let placed = |message: &MessageStatus| message.outcome == Outcome::Queued;
        let mut room = bounds::PLACED.saturating_sub(self.in_order(placed).len());
        let mut interrupting = self.new.messages.iter().any(|message| placed(message) && self.interrupts(message));
        for at in self.in_order(accepted) {
            let message = &self.new.messages[at];
            let interrupts = is_busy && self.interrupts(message);
            let is_steer = self.spec(&message.id).is_some_and(|entry| entry.delivery == Delivery::Steer);
            if !(is_steer || interrupts) && (interrupting || room == 0) {
                continue;
            }
            if interrupts {
                interrupting = true;
                if !is_woken {
                    self.park_before(at);
                }
            } else if !is_steer {
                room -= 1;
            }
            self.new.placements += 1;
            let placement = self.new.placements;
            let message = &mut self.new.messages[at];
            // What it would interrupt is over: only what it says is left.
            message.interrupted |= !is_steer && !interrupts && self.facts.is_interruption(&message.id);
            (message.outcome, message.placement, message.epoch) = (Outcome::Queued, Some(placement), Some(epoch));
            message.at = Some(self.now.clone());
        }
    }

    /// An interruption that is to be, or being, carried out.
    fn interrupts(&self, message: &MessageStatus) -> bool {
        !message.interrupted && self.facts.is_interruption(&message.id)
    }

    /// Parks what comes before an interruption and no worker holds.
    fn park_before(&mut self, at: usize) {
        let sequence = self.new.messages[at].sequence;
        let now = self.now.clone();
        for message in &mut self.new.messages {
            if message.outcome == Outcome::Accepted && message.sequence < sequence {
                (message.outcome, message.at) = (Outcome::Parked, Some(now.clone()));
            }
        }
    }

    /// Notes that there is nothing to do, and closes the inbox when that has lasted.
    fn rest(&mut self) {
        let is_done =
            self.new.messages.iter().all(|message| message.outcome.is_terminal() || message.outcome == Outcome::Parked);
        let is_idle = self.report().is_some_and(|report| report.session.is_some() && report.idle);
        let residency = self.facts.child.spec.activation.residency_seconds;
        let now = self.now.clone();
        let deleting = self.is_deleting();
        let Some(activation) = self.activation() else { return };
        if activation.state == ActivationState::Closing {
            return;
        }
        if deleting {
            activation.state = ActivationState::Closing;
        } else if !(is_done && is_idle) {
            activation.idle_since = None;
            if activation.state == ActivationState::Idle {
                activation.state = ActivationState::Running;
            }
        } else {
            let since = activation.idle_since.get_or_insert_with(|| now.clone()).0;
            let rested = now.0.as_second() - since.as_second();
            activation.state = if rested >= residency { ActivationState::Closing } else { ActivationState::Idle };
        }
    }

    /// Counts and phase, in the same write as what they count (contract c44).
    fn settle(&mut self) {
        let count = |outcomes: &[Outcome]| {
            let found = self.new.messages.iter().filter(|message| outcomes.contains(&message.outcome)).count();
            i32::try_from(found).unwrap_or(i32::MAX)
        };
        let (queued, parked) = (count(&[Outcome::Accepted, Outcome::Queued]), count(&[Outcome::Parked]));
        (self.new.queued_count, self.new.parked_count) = (queued, parked);
        let is_cancelling = self.new.cancelling_descendants;
        self.new.cancelling_since =
            is_cancelling.then(|| self.new.cancelling_since.take().unwrap_or_else(|| self.now.clone()));
        self.new.phase = Some(if self.is_deleting() {
            SubagentPhase::Terminating
        } else if self.new.activation.is_some() {
            SubagentPhase::Active
        } else if self.new.phase == Some(SubagentPhase::NotResumable) {
            SubagentPhase::NotResumable
        } else if self.facts.has_live_children {
            SubagentPhase::Waiting
        } else if parked > 0 {
            SubagentPhase::Parked
        } else {
            SubagentPhase::Settled
        });
    }
}

#[cfg(test)]
#[path = "inbox_tests.rs"]
mod tests;
