//! The end: the turn is quieted, the end reported, the agent stopped by the ladder of contract c48, nothing left behind.
//! A result that fits no report is stored first (`upload`).

use super::{
    agent::AgentEvent,
    attempt::{Attempt, Wake, now, timestamp},
};
use crate::{
    acp::{self, Frame},
    outcome::{End, ProtocolStop, Settlement, Stage, StopCause, StopReason, settle},
    output::Collected,
    process::{self, sweep},
    transcript::Speaker,
};
use nix::sys::signal::Signal;
use std::time::Duration;
use subagent_link::{FINAL_ACK_TIMEOUT, Final, ResultPayload};
use tokio::time::Instant;

/// How long the final report may still wait after the ladder once SIGTERM came. The pod's grace period is 15 s longer
/// than the ladder (design section 8); this leaves some for a clean exit.
const ACK_AFTER_SIGTERM: Duration = Duration::from_secs(12);
/// How much of that a result may take that is still being stored: what is left is for the report without it.
const UPLOAD_AFTER_SIGTERM: Duration = Duration::from_secs(7);
/// How long the agent's process is awaited after SIGKILL before the sweep goes on without it.
const KILLED: Duration = Duration::from_secs(5);

impl Attempt {
    /// The first rung, for a turn that is still running: `session/cancel`, and up to the grace for the response. What
    /// the agent says until then is partial output.
    pub async fn quiet_turn(&mut self, end: &End) {
        match end {
            End::Stopped { prompted: true, .. } => self.cancel_turn().await,
            _ => self.open_prompt = None,
        }
    }

    /// Cancels the running turn, if there is one, and waits for its response.
    pub async fn cancel_turn(&mut self) {
        let (Some(id), Some(session_id)) = (self.open_prompt, self.session_id.clone()) else { return };
        self.enter(Stage::Stopping);
        let deadline = Instant::now() + seconds(self.stop_graces.cancel_grace_seconds);
        // An agent that does not even read gets no grace for an answer.
        let mut waits =
            self.agent.as_ref().is_some_and(|agent| agent.connection.notify(acp::cancel(&session_id)).is_ok());
        while waits {
            waits = match self.next(Some(deadline)).await {
                Wake::Deadline | Wake::Agent(AgentEvent::Gone(_) | AgentEvent::TooLong) => false,
                Wake::Agent(AgentEvent::Frame(Frame::Response { id: answered, .. })) if answered == id => false,
                Wake::Agent(event) => self.take(event).is_ok(),
                Wake::News => true,
            };
        }
        self.open_prompt = None;
    }

    /// Fixes the end. Once: a later one is not heard. It is reported at once, or when its result is stored.
    pub fn report_end(&mut self, end: &End) {
        self.enter(Stage::Stopping);
        self.ledger.close();
        self.ledger.set_messages(self.inbox.told());
        let mut end = *end;
        if let End::Stopped { cause, .. } = &mut end {
            // A cancel that came during the ladder is a better word than the SIGTERM before it.
            *cause = self.stop.unwrap_or(*cause);
        }
        match self.output.collect() {
            Collected::Whole(whole) if matches!(end, End::DurabilityFailed { .. }) => self.lament(&end, whole),
            Collected::Whole(whole) => self.deliver(end, whole),
            Collected::TooLarge { size, limit } if is_completed(&end) => {
                self.conclude(&End::ResultTooLarge { size, limit }, None);
            }
            Collected::TooLarge { size, .. } => {
                self.circumstances.dropped_output = Some(size);
                self.conclude(&end, None);
            }
        }
    }

    /// Composes and publishes the final report.
    pub(super) fn conclude(&mut self, end: &End, result: Option<ResultPayload>) {
        let settlement = self.judge(end);
        let end = Final {
            stop_reason: settlement.stop_reason.to_owned(),
            reason: settlement.reason.to_owned(),
            diagnostic: settlement.diagnostic,
            at: timestamp(),
        };
        self.ledger.finish(end, self.output.preview(), result, self.transcript.archive(), now());
        self.link.post(&self.ledger);
    }

    /// What an end means, with everything that is known by now; the transcript says it.
    pub(super) fn judge(&mut self, end: &End) -> Settlement {
        self.circumstances.exceeded_memory = self.memory.exceeded();
        let settlement = settle(end, &self.circumstances);
        let mut line = settlement.stop_reason.to_owned();
        let is_deadline =
            matches!(end, End::Stopped { cause: StopCause::Cancel(why), .. } if *why != StopReason::Cancelled);
        if settlement.reason != settlement.stop_reason && !is_deadline {
            line.push_str(&format!(", reason {}", settlement.reason));
        }
        if let Some(diagnostic) = &settlement.diagnostic {
            line.push_str(&format!(": {diagnostic}"));
        }
        self.transcript.line(Speaker::Worker, &line);
        settlement
    }

    /// The other rungs: stdin closed, SIGTERM to the group, SIGKILL to the group, and then everything that got out of
    /// the group. Reports and acknowledgements go on meanwhile.
    pub async fn stop_agent(&mut self) {
        let graces = self.stop_graces;
        if let Some(agent) = &mut self.agent {
            let group = agent.group;
            agent.connection.close_stdin();
            if !self.wait_for_exit(seconds(graces.eof_grace_seconds)).await {
                self.say("the agent does not end by itself: SIGTERM");
                process::signal_group(group, Signal::SIGTERM);
                if !self.wait_for_exit(seconds(graces.term_grace_seconds)).await {
                    self.say("the agent ignores SIGTERM: SIGKILL");
                }
            }
            process::signal_group(group, Signal::SIGKILL);
            self.wait_for_exit(KILLED).await;
        }
        if !sweep(&self.reaper).await {
            self.say("some processes did not end; the end of the container takes them");
        }
        self.agent = None;
    }

    /// Waits until the result is stored, if it has to be, and the final report acknowledged. False when it was not:
    /// refused, or too late.
    pub async fn wait_for_acknowledgement(&mut self) -> bool {
        while self.upload.is_some() && !self.is_refused() {
            let deadline = self.terminated_at.map(|at| at + self.ladder() + UPLOAD_AFTER_SIGTERM);
            if let Wake::Deadline = self.next(deadline).await {
                self.give_up_upload();
            }
        }
        let latest = Instant::now() + FINAL_ACK_TIMEOUT;
        while !self.ledger.is_settled() {
            let deadline = self.terminated_at.map_or(latest, |at| latest.min(at + self.ladder() + ACK_AFTER_SIGTERM));
            if self.is_refused() || matches!(self.next(Some(deadline)).await, Wake::Deadline) {
                return self.ledger.is_settled();
            }
        }
        true
    }

    /// The last: transcript written, connection closed. A worker that could not tell its end over the link leaves what
    /// kept it from that as the container's termination message (pitfall N4).
    pub async fn leave(self, acknowledged: bool) {
        if !acknowledged {
            let trouble = self.last_trouble.as_deref().unwrap_or("the final report was not acknowledged");
            process::leave_message(&self.settings.message_file, trouble);
        }
        self.transcript.flush();
        self.link.close().await;
    }

    /// Waits for the agent's process; true once it ended.
    async fn wait_for_exit(&mut self, grace: Duration) -> bool {
        let deadline = Instant::now() + grace;
        while self.agent.as_ref().is_some_and(|agent| !agent.has_exited()) {
            if let Wake::Deadline = self.next(Some(deadline)).await {
                return self.agent.as_ref().is_none_or(super::agent::RunningAgent::has_exited);
            }
        }
        true
    }

    /// All graces of the ladder together.
    fn ladder(&self) -> Duration {
        let graces = self.stop_graces;
        seconds(graces.cancel_grace_seconds) + seconds(graces.eof_grace_seconds) + seconds(graces.term_grace_seconds)
    }
}

/// Whether the agent ended its turn well.
pub(super) fn is_completed(end: &End) -> bool {
    matches!(end, End::Answered(ProtocolStop::EndTurn) | End::WorkedOff)
}

/// A grace; the API bounds it, and a negative one is none.
fn seconds(grace: i64) -> Duration {
    Duration::from_secs(u64::try_from(grace).unwrap_or(0))
}
