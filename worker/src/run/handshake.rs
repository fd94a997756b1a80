//! From the started process to a session: initialize, authenticate, session/new, mode (contract c53).

use super::{
    agent::AgentEvent,
    attempt::{Attempt, Halt, Wake},
};
use crate::{
    acp::{self, Frame, Introduced, ModeChange, NewSession},
    outcome::{BadReply, End, ProtocolFault, RpcFault, Stage},
};
use serde_json::value::RawValue;
use subagent_link::AcpTransport;

impl Attempt {
    /// Shakes hands and opens a session.
    ///
    /// # Errors
    /// [`Halt`]: the agent fails at it, or the attempt is stopped.
    pub async fn handshake(&mut self, transport: &AcpTransport) -> Result<NewSession, Halt> {
        self.introduce(transport).await?;
        self.open_session(transport).await
    }

    /// initialize, and authenticate where the provider says how.
    ///
    /// # Errors
    /// As [`handshake`](Self::handshake).
    pub(super) async fn introduce(&mut self, transport: &AcpTransport) -> Result<(), Halt> {
        let reply = self.call(Stage::Initialize, acp::initialize()).await?;
        match acp::read_initialize(&reply).map_err(|reply| bad(Stage::Initialize, reply))? {
            Introduced::OtherVersion(version) => return Err(Halt::End(End::Version(version))),
            Introduced::Agent(agent) => {
                let name = if agent.name.is_empty() { "an agent without a name" } else { &agent.name };
                self.say(&format!("agent {name} {}, ACP version {}", agent.version, agent.protocol_version));
                self.ledger.note(|snapshot| snapshot.agent = Some(agent));
            }
        }
        if !transport.auth_method.is_empty() {
            self.call(Stage::Authenticate, acp::authenticate(&transport.auth_method)).await?;
        }
        Ok(())
    }

    /// session/new, and its mode.
    ///
    /// # Errors
    /// As [`handshake`](Self::handshake).
    pub(super) async fn open_session(&mut self, transport: &AcpTransport) -> Result<NewSession, Halt> {
        let cwd = self.settings.worker.cwd.clone();
        let reply = self.call(Stage::SessionNew, acp::new_session(&cwd)).await?;
        let session = acp::read_session(&reply).map_err(|reply| bad(Stage::SessionNew, reply))?;
        self.session_id = Some(session.id.clone());
        self.say(&format!("session {}", session.id));
        if !transport.session_mode.is_empty() {
            match acp::mode_change(&session, &transport.session_mode) {
                ModeChange::NotOffered => return Err(bad(Stage::SessionMode, BadReply::ModeNotOffered)),
                ModeChange::Request(request) => {
                    self.call(Stage::SessionMode, request).await?;
                    self.say(&format!("session mode {}", transport.session_mode));
                }
            }
        }
        Ok(session)
    }

    /// session/close. Nothing is decided by its answer.
    ///
    /// # Errors
    /// As [`handshake`](Self::handshake).
    pub(super) async fn close_session(&mut self, session: &NewSession) -> Result<(), Halt> {
        self.call(Stage::Stopping, acp::close_session(&session.id)).await.map(drop)
    }

    /// True when the agent advertised this capability.
    pub fn agent_takes(&self, capability: &str) -> bool {
        let agent = self.ledger.snapshot().agent.as_ref();
        agent.is_some_and(|agent| agent.capabilities.iter().any(|known| known == capability))
    }

    /// Sends a request of the handshake and waits for its result. There is no time limit of its own: the run's start
    /// deadline holds, and slow stages are reported.
    async fn call(&mut self, stage: Stage, call: acp::Call) -> Result<Box<RawValue>, Halt> {
        self.enter(stage);
        let id = self.request(call)?;
        loop {
            self.go_on(stage, false)?;
            match self.next(None).await {
                Wake::Agent(AgentEvent::Frame(Frame::Response { id: answered, outcome })) if answered == id => {
                    return outcome.map_err(|fault| Halt::End(handshake_error(stage, fault)));
                }
                Wake::Agent(AgentEvent::Gone(exit)) => return Err(Halt::End(End::EndedEarly(stage, exit))),
                Wake::Agent(event) => self.take(event)?,
                Wake::News | Wake::Deadline => {}
            }
        }
    }

    /// Sends a request.
    pub(super) fn request(&mut self, call: acp::Call) -> Result<u64, Halt> {
        let stage = self.stage();
        let Some(agent) = &mut self.agent else { return Err(Halt::End(End::EndedEarly(stage, None))) };
        agent.connection.request(call).map_err(|_| not_reading(stage))
    }
}

fn bad(stage: Stage, reply: BadReply) -> Halt {
    Halt::End(End::BadReply(stage, reply))
}

/// An agent that does not read.
pub(super) fn not_reading(stage: Stage) -> Halt {
    Halt::End(End::Protocol(stage, ProtocolFault::NotReading))
}

fn handshake_error(stage: Stage, fault: RpcFault) -> End {
    if fault.code == acp::AUTH_REQUIRED {
        End::AuthRequired(stage)
    } else {
        End::BadReply(stage, BadReply::Error(fault))
    }
}
