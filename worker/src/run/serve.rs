//! An activation of a continuable child: messages come one by one, each with a turn of its own or into the one that runs,
//! until the operator closes the inbox and nothing waits any more.

use super::{
    agent::AgentEvent,
    attempt::{Attempt, Halt, Wake, now, timestamp},
    stop::is_completed,
};
use crate::{
    acp::{self, OpenSession},
    inbox::{Asked, Turn},
    ledger::Answered,
    outcome::{End, Stage, settle},
};
use serde_json::value::RawValue;
use std::time::Duration;
use subagent_link::{InboxMessage, Session};
use tokio::time::Instant;

/// How long after a turn its steering messages may still be answered. Agents answer within milliseconds; one that does not is
/// not waited for, and what became of the message is then unknown.
const LATE_STEERS: Duration = Duration::from_secs(2);

impl Attempt {
    /// Serves the inbox to its end.
    ///
    /// # Errors
    /// [`Halt`]: stopped, refused, or the agent failed.
    pub async fn serve(&mut self, session: &OpenSession) -> Result<End, Halt> {
        loop {
            self.go_on(Stage::Idle, self.ledger.turns() > 0)?;
            if let Some(exit) = self.gone {
                return Err(Halt::End(End::CrashedIdle(exit)));
            }
            if !self.inbox.is_empty() {
                self.turn_of_first(session).await?;
            } else if self.inbox.is_done() {
                return Ok(End::WorkedOff);
            } else {
                self.rest(session).await?;
            }
        }
    }

    /// The turn of the first message that waits. What the agent answers is the turn's and ends nothing else. The turn counts
    /// as done once its output and the session it left are kept (c31, c41).
    async fn turn_of_first(&mut self, session: &OpenSession) -> Result<(), Halt> {
        let Some(message) = self.inbox.claim(self.ledger.turns() + 1, &timestamp()) else { return Ok(()) };
        self.output.reset();
        self.turn = Turn::Recorded;
        self.ledger.set_messages(self.inbox.told());
        let permit = self.record_turn(session, Some(message.id)).await?;
        self.turn = Turn::Running;
        let end = self.turn(permit, session, &message.content).await?;
        self.wait_for_steers().await;
        self.turn = Turn::Answered;
        if self.state.is_some() && self.inbox.is_interrupting() {
            // R16: nothing runs any more, however long it takes until the session is kept.
            self.inbox.turn_over(&timestamp());
            self.tell_messages();
        }
        let is_completed = is_completed(&end);
        let (end, output) = self.keep_output(end).await?;
        let settlement = settle(&end, &self.circumstances);
        self.say(&format!("turn {}: {}", self.ledger.turns(), settlement.reason));
        let is_lost = matches!(end, End::DurabilityFailed { .. });
        let checkpoint = match self.keep_session(is_completed).await {
            // What was not stored first says more.
            Err(Halt::End(End::NotKept { .. })) if is_lost => None,
            kept => kept?,
        };
        self.turn = Turn::None;
        self.inbox.turn_over(&timestamp());
        let answered = Answered { stop_reason: settlement.stop_reason, preview: self.output.preview(), output };
        self.ledger.end_turn(answered, timestamp(), checkpoint);
        self.ledger.set_messages(self.inbox.told());
        // The next turn would fare no better. The session of this one is kept all the same.
        if is_lost { Err(Halt::End(end)) } else { Ok(()) }
    }

    /// Nothing waits: tells so once, and waits until that changes.
    async fn rest(&mut self, session: &OpenSession) -> Result<(), Halt> {
        self.enter(Stage::Idle);
        self.ledger.rest(Session { id: session.id.clone(), how: session.how }, now());
        while self.inbox.is_empty() && !self.inbox.is_done() && self.gone.is_none() {
            self.go_on(Stage::Idle, self.ledger.turns() > 0)?;
            match self.next(None).await {
                Wake::Agent(event) => self.take(event)?,
                Wake::News | Wake::Deadline => {}
            }
        }
        Ok(())
    }

    /// Takes in a message of the inbox, whatever is going on.
    pub(super) fn take_message(&mut self, message: InboxMessage) {
        let before = self.inbox.told().len();
        match self.inbox.deliver(message, self.turn, &timestamp()) {
            // The turn notices, and its end tells what was parked.
            Asked::Interrupt => return,
            Asked::Steer(message) => self.steer(message),
            Asked::Nothing => {}
        }
        if self.inbox.told().len() != before {
            self.tell_messages();
        }
    }

    /// Reports what became of messages at once: somebody waits to hear it.
    fn tell_messages(&mut self) {
        self.ledger.set_messages(self.inbox.told());
        // Before there is a session this travels with the first report.
        if self.ledger.seq() > 0 {
            self.ledger.publish(now());
        }
    }

    fn steer(&mut self, message: InboxMessage) {
        let placement = message.placement;
        let sent = match &self.session_id {
            // Once the answer to the prompt was read there is no turn any more that it could steer (c38).
            Some(session) if self.open_prompt.is_some() && self.agent_takes("Steering") => {
                let call = acp::steer(session, &message.content);
                self.request(call).ok()
            }
            _ => None,
        };
        match sent {
            Some(id) => {
                self.say(&format!("steering with message {}", message.id));
                self.show_prompt(&message.content);
                self.steers.insert(id, placement);
            }
            None => self.inbox.steered(placement, Some(false), self.ledger.turns(), &timestamp()),
        }
    }

    /// The agent answered a request that is not its prompt: a steering message, or nothing that matters. `None`: with an
    /// error.
    pub(super) fn steer_answered(&mut self, id: u64, reply: Option<&RawValue>) {
        let Some(placement) = self.steers.remove(&id) else { return };
        let taken = reply.is_some_and(acp::read_steered);
        self.inbox.steered(placement, Some(taken), self.ledger.turns(), &timestamp());
        self.tell_messages();
    }

    /// Waits a little for answers to steering messages; what is not answered then stays unknown.
    pub(super) async fn wait_for_steers(&mut self) {
        let until = Instant::now() + LATE_STEERS;
        while !self.steers.is_empty() && self.stop.is_none() && self.gone.is_none() {
            match self.next(Some(until)).await {
                Wake::Deadline | Wake::Agent(AgentEvent::TooLong) => break,
                Wake::Agent(event) => {
                    let _ = self.take(event);
                }
                Wake::News => {}
            }
        }
        for (_, placement) in std::mem::take(&mut self.steers) {
            self.inbox.steered(placement, None, self.ledger.turns(), &timestamp());
        }
    }

    /// Asks the agent to end its turn. Returns until when it is waited for.
    pub(super) fn interrupt(&self, session: &OpenSession) -> Instant {
        self.say("the turn is interrupted");
        let told = self.agent.as_ref().is_some_and(|agent| agent.connection.notify(acp::cancel(&session.id)).is_ok());
        let grace = u64::try_from(self.stop_graces.cancel_grace_seconds).unwrap_or(0);
        // An agent that does not even read gets no grace for an answer.
        Instant::now() + if told { Duration::from_secs(grace) } else { Duration::ZERO }
    }
}
