//! From the started process to a session: initialize, authenticate, session/new, load or resume, model, mode (contract c40,
//! c53).

use super::{
    agent::AgentEvent,
    attempt::{Attempt, Halt, Wake},
};
use crate::{
    acp::{self, Change, Frame, Introduced, OpenSession},
    outcome::{BadReply, End, Lack, NotResumable, ProtocolFault, RpcFault, Stage},
};
use serde_json::value::RawValue;
use subagent_link::{AcpTransport, Assignment, ContinuedSession, SessionOrigin};

/// What a session is to be, beside what its provider says of every session.
#[derive(Debug, Default)]
pub struct Wanted {
    /// The session to continue; a new one when absent.
    pub session: Option<ContinuedSession>,
    /// It is to be continued later.
    pub is_kept: bool,
    /// The persona.
    pub persona: Option<String>,
    /// The model.
    pub model: Option<String>,
}

impl Wanted {
    /// What an assignment asks for.
    pub fn of(assignment: &Assignment) -> Self {
        let continuation = assignment.continuation.as_ref();
        Self {
            session: continuation.and_then(|continuation| continuation.session.clone()),
            is_kept: continuation.is_some_and(|continuation| !continuation.state_paths.is_empty()),
            persona: assignment.persona.clone(),
            model: assignment.model.clone(),
        }
    }
}

impl Attempt {
    /// Shakes hands and opens a session.
    ///
    /// # Errors
    /// [`Halt`]: the agent fails at it, or the attempt is stopped.
    pub async fn handshake(&mut self, transport: &AcpTransport, wanted: &Wanted) -> Result<OpenSession, Halt> {
        self.introduce(transport).await?;
        self.open_session(transport, wanted).await
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

    /// session/new, or the way to continue a session, and then its model and mode: the agent knows them no more after that.
    ///
    /// # Errors
    /// As [`handshake`](Self::handshake).
    pub(super) async fn open_session(
        &mut self,
        transport: &AcpTransport,
        wanted: &Wanted,
    ) -> Result<OpenSession, Halt> {
        if wanted.persona.is_some() && !self.agent_takes("Persona") {
            return Err(Halt::End(End::Lacks(Lack::Persona)));
        }
        let session = match &wanted.session {
            Some(session) => self.continue_session(session, wanted.persona.as_deref()).await?,
            None => self.new_session(wanted).await?,
        };
        if session.offers_models() {
            self.ledger.note(|snapshot| {
                if let Some(agent) = &mut snapshot.agent {
                    agent.capabilities.push("AgentModel".to_owned());
                }
            });
        }
        if let Some(model) = &wanted.model {
            match session.model_change(model) {
                Change::NoneOffered => return Err(Halt::End(End::Lacks(Lack::Model(session.how)))),
                Change::NotOffered(offered) => {
                    self.circumstances.offered = offered;
                    return Err(bad(Stage::SessionModel, BadReply::ModelNotOffered));
                }
                Change::Request(request) => {
                    self.call(Stage::SessionModel, request).await?;
                    self.say(&format!("model {model}"));
                }
            }
        }
        if !transport.session_mode.is_empty() {
            match session.mode_change(&transport.session_mode) {
                Change::NotOffered(_) | Change::NoneOffered => {
                    return Err(bad(Stage::SessionMode, BadReply::ModeNotOffered));
                }
                Change::Request(request) => {
                    self.call(Stage::SessionMode, request).await?;
                    self.say(&format!("session mode {}", transport.session_mode));
                }
            }
        }
        Ok(session)
    }

    async fn new_session(&mut self, wanted: &Wanted) -> Result<OpenSession, Halt> {
        // R6: said at the start, not after the first turn.
        if wanted.is_kept && !self.agent_takes("LoadSession") && !self.agent_takes("ResumeSession") {
            return Err(Halt::End(End::Lacks(Lack::Continuation)));
        }
        let request = acp::new_session(&self.settings.worker.cwd, wanted.persona.as_deref());
        let reply = self.call(Stage::SessionNew, request).await?;
        let session = acp::read_session(&reply).map_err(|reply| bad(Stage::SessionNew, reply))?;
        self.session_id = Some(session.id.clone());
        self.say(&format!("session {}", session.id));
        Ok(session)
    }

    /// session/resume, or session/load where only that is advertised. Whatever keeps the agent from it ends the attempt:
    /// there is no other session that could be meant (contract c40).
    async fn continue_session(
        &mut self,
        session: &ContinuedSession,
        persona: Option<&str>,
    ) -> Result<OpenSession, Halt> {
        let (id, cwd) = (session.id.as_str(), self.settings.worker.cwd.clone());
        let (stage, how, request) = if self.agent_takes("ResumeSession") {
            (Stage::SessionResume, SessionOrigin::Resumed, acp::resume_session(id, &cwd, persona))
        } else if self.agent_takes("LoadSession") {
            (Stage::SessionLoad, SessionOrigin::Loaded, acp::load_session(id, &cwd, persona))
        } else {
            return Err(not_resumable(NotResumable::NoWay));
        };
        // From here on every update has to be of this session.
        self.session_id = Some(id.to_owned());
        self.is_continued = true;
        self.replayed = (how == SessionOrigin::Loaded).then_some(0);
        let reply = self.call(stage, request).await.map_err(|halt| match halt {
            // With an HTTP status the fault is that of a model's API: the agent did not come as far as a verdict on the session.
            Halt::End(End::BadReply(stage, BadReply::Error(fault))) if fault.http_status.is_none() => {
                not_resumable(NotResumable::Unknown(stage, fault))
            }
            other => other,
        })?;
        let replayed = self.replayed.take();
        let opened = acp::read_reopened(id, how, &reply).map_err(|reply| bad(stage, reply))?;
        let opened = opened.ok_or_else(|| not_resumable(NotResumable::OtherSession))?;
        // The last updates of a replay come right before the answer.
        self.go_on(stage, false)?;
        if replayed == Some(0) && session.completed_turns > 0 {
            return Err(not_resumable(NotResumable::Empty { turns: session.completed_turns }));
        }
        match replayed {
            Some(count) => self.say(&format!("session {id} loaded; {count} updates told of its past")),
            None => self.say(&format!("session {id} resumed")),
        }
        Ok(opened)
    }

    /// session/close. Nothing is decided by its answer.
    ///
    /// # Errors
    /// As [`handshake`](Self::handshake).
    pub(super) async fn close_session(&mut self, session: &OpenSession) -> Result<(), Halt> {
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

fn not_resumable(why: NotResumable) -> Halt {
    Halt::End(End::NotResumable(why))
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
