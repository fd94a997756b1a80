//! The turn: recorded first, then prompted, then followed to its response.

use super::{
    agent::AgentEvent,
    attempt::{Attempt, Halt, Wake, now, timestamp},
    handshake::not_reading,
};
use crate::{
    acp::{
        self, Frame, OpenSession,
        permission::{Decision, PermissionRequest},
    },
    ledger::PromptPermit,
    outcome::{End, ProtocolFault, ProtocolStop, RpcFault, Stage},
    usage,
};
use serde_json::value::RawValue;
use std::time::Duration;
use subagent_link::{ContentBlock, Session};
use tokio::time::Instant;

/// How long after the response updates are still taken in: agents tell usage right behind it.
const LATE_UPDATES: Duration = Duration::from_millis(50);

impl Attempt {
    /// Records the session and that a turn starts, and waits until that is stored (c41). `message_id` is the message whose
    /// turn it is; a run's own prompt has none.
    ///
    /// # Errors
    /// [`Halt`]: stopped, refused, or the agent ended meanwhile. No prompt was sent then, and none will be.
    pub async fn record_turn(
        &mut self,
        session: &OpenSession,
        message_id: Option<String>,
    ) -> Result<PromptPermit, Halt> {
        self.enter(Stage::Prompt);
        let recorded = Session { id: session.id.clone(), how: session.how };
        self.ledger.record_turn(recorded, message_id, timestamp(), now());
        self.circumstances.accounted_turns = self.ledger.turns();
        loop {
            self.go_on(Stage::Prompt, false)?;
            if let Some(permit) = self.ledger.permit() {
                return Ok(permit);
            }
            match self.next(None).await {
                Wake::Agent(AgentEvent::Gone(exit)) => return Err(Halt::End(End::Crashed(exit))),
                Wake::Agent(event) => self.take(event)?,
                Wake::News | Wake::Deadline => {}
            }
        }
    }

    /// Sends the prompt and follows the turn to its end. The permit is used up: there is no second prompt. An interruption
    /// that comes before the response is read ends the turn as cancelled, whatever the agent then says (c27, c42). One that
    /// comes before the prompt does so, too: the turn is stored as that of its message, and a message that is claimed stays
    /// claimed (c41). Its sender may send it again, as after any interruption.
    ///
    /// # Errors
    /// [`Halt`]: anything but the prompt's response.
    pub async fn turn(
        &mut self,
        _permit: PromptPermit,
        session: &OpenSession,
        blocks: &[ContentBlock],
    ) -> Result<End, Halt> {
        if self.inbox.is_interrupting() {
            self.say("the turn is interrupted before its prompt was sent: the agent has not seen the message");
            return Ok(End::Answered(ProtocolStop::Cancelled));
        }
        self.show_prompt(blocks);
        let id = self.request(acp::prompt(&session.id, blocks))?;
        self.open_prompt = Some(id);
        let mut cancelled_until = None;
        loop {
            self.go_on(Stage::Prompt, true)?;
            if cancelled_until.is_none() && self.inbox.is_interrupting() {
                cancelled_until = Some(self.interrupt(session));
            }
            match self.next(cancelled_until).await {
                Wake::Agent(AgentEvent::Frame(Frame::Response { id: answered, outcome })) if answered == id => {
                    self.open_prompt = None;
                    let mut end = self.read_end(outcome);
                    if cancelled_until.is_some() {
                        end = End::Answered(ProtocolStop::Cancelled);
                    }
                    self.take_late_updates().await;
                    return Ok(end);
                }
                Wake::Agent(AgentEvent::Gone(exit)) => return Err(Halt::End(End::Crashed(exit))),
                Wake::Agent(event) => self.take(event)?,
                Wake::Deadline => {
                    return Err(Halt::End(End::Protocol(Stage::Prompt, ProtocolFault::NotInterrupted)));
                }
                Wake::News => {}
            }
        }
    }

    fn read_end(&mut self, outcome: Result<Box<RawValue>, RpcFault>) -> End {
        let fault = match outcome {
            Ok(reply) => match acp::read_stop(&reply) {
                Some(end) => {
                    if let Some(told) = end.usage {
                        self.ledger.note(|snapshot| usage::apply(snapshot, usage::fold_response, &told));
                    }
                    return End::Answered(end.stop);
                }
                None => ProtocolFault::PromptMalformed,
            },
            Err(fault) if fault.code == acp::AUTH_REQUIRED => return End::AuthRequired(Stage::Prompt),
            Err(fault) => ProtocolFault::PromptError(fault),
        };
        End::Protocol(Stage::Prompt, fault)
    }

    /// Takes in what the agent says right behind its response. Nothing in it changes the end any more.
    async fn take_late_updates(&mut self) {
        let until = Instant::now() + LATE_UPDATES;
        loop {
            match self.next(Some(until)).await {
                Wake::Deadline | Wake::Agent(AgentEvent::TooLong) => return,
                Wake::Agent(event) => {
                    let over = matches!(event, AgentEvent::Gone(_) | AgentEvent::Exited);
                    let _ = self.take(event);
                    if over {
                        return;
                    }
                }
                Wake::News => {}
            }
        }
    }

    /// Takes an event that nobody waits for: updates, requests, garbage, answers to nothing.
    ///
    /// # Errors
    /// [`Halt`] when the protocol breaks down.
    pub(super) fn take(&mut self, event: AgentEvent) -> Result<(), Halt> {
        match event {
            AgentEvent::Frame(Frame::Notification { method, params }) => {
                if method == acp::SESSION_UPDATE {
                    self.take_update(&params);
                }
            }
            AgentEvent::Frame(Frame::Request { id, method, params }) => return self.answer(&id, &method, &params),
            AgentEvent::Frame(Frame::Response { id, outcome }) => self.steer_answered(id, outcome.ok().as_deref()),
            AgentEvent::Gone(exit) => self.gone = Some(exit),
            AgentEvent::Exited => {}
            AgentEvent::Garbage(line) => self.skip_line(&line),
            AgentEvent::TooLong => {
                let fault = ProtocolFault::FrameTooLong(acp::MAX_LINE_BYTES);
                return Err(Halt::End(End::Protocol(self.stage(), fault)));
            }
        }
        Ok(())
    }

    /// Answers a request at once: permissions by policy, everything else with "method not found". So none is ever left
    /// open, also not when a cancel comes.
    fn answer(&mut self, id: &RawValue, method: &str, params: &RawValue) -> Result<(), Halt> {
        let stage = self.stage();
        let decision = (method == acp::REQUEST_PERMISSION).then(|| {
            let request = PermissionRequest::parse(params);
            let ours = self.session_id.as_deref() == Some(request.session_id.as_str());
            // Nothing is allowed any more once the turn is over or to be over.
            let in_turn = self.open_prompt.is_some() && self.stop.is_none() && !self.inbox.is_interrupting();
            let decision = if ours && in_turn { request.decide(self.permission) } else { Decision::Cancelled };
            self.count_permission(&request, &decision);
            decision
        });
        let Some(agent) = &self.agent else { return Ok(()) };
        let sent = match decision {
            Some(decision) => agent.connection.answer(id, &decision.response()),
            None => agent.connection.refuse(id),
        };
        sent.map_err(|_| not_reading(stage))
    }
}
