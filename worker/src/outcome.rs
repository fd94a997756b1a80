//! How an attempt ended, and what that means: stop reason, reason and diagnostic (contract c25-c30).
//!
//! Pure. A diagnostic is built from typed facts alone (stage, category, exit code, signal, error code, HTTP status,
//! sizes): there is no way for text of the agent, of the prompt or of stderr to get into it.

use crate::{
    output::floor,
    process::Exit,
    state::{PackFault, RestoreFault},
};
use std::fmt::{self, Display, Write as _};
use subagent_link::{MAX_DIAGNOSTIC_BYTES, SessionOrigin};

/// Where an attempt is. The names are those of the snapshot's `stage`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Waiting for the gateway and its assignment.
    Connecting,
    /// The session files of an earlier pod are being put back.
    Restoring,
    /// Starting the agent's process.
    Spawning,
    /// `initialize` is unanswered.
    Initialize,
    /// `authenticate` is unanswered.
    Authenticate,
    /// `session/new` is unanswered.
    SessionNew,
    /// `session/load` is unanswered.
    SessionLoad,
    /// `session/resume` is unanswered.
    SessionResume,
    /// The session's model is being chosen.
    SessionModel,
    /// The session's mode is being set.
    SessionMode,
    /// The turn's record is being stored, or the turn runs.
    Prompt,
    /// The turn is answered, and the session files it left are being kept.
    Checkpoint,
    /// No turn runs; another message may come.
    Idle,
    /// The turn is over, and its result, which fits no report, is being stored.
    StoringResult,
    /// The agent is being stopped.
    Stopping,
}

impl Stage {
    /// The stage's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connecting => "Connecting",
            Self::Restoring => "Restoring",
            Self::Spawning => "Spawning",
            Self::Initialize => "Initialize",
            Self::Authenticate => "Authenticate",
            Self::SessionNew => "SessionNew",
            Self::SessionLoad => "SessionLoad",
            Self::SessionResume => "SessionResume",
            Self::SessionModel => "SessionModel",
            Self::SessionMode => "SessionMode",
            Self::Prompt => "Prompt",
            Self::Checkpoint => "Checkpoint",
            Self::Idle => "Idle",
            Self::StoringResult => "StoringResult",
            Self::Stopping => "Stopping",
        }
    }
}

/// Why a working directory cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CwdFault {
    /// Not an absolute path.
    Relative,
    /// Nothing is there.
    Missing,
    /// Not a folder.
    NotAFolder,
    /// The container's user may not enter it.
    NotEnterable,
}

/// Why the agent's process did not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartFault {
    /// The working directory.
    Cwd(CwdFault),
    /// The command is not on PATH, or no such file.
    CommandNotFound,
    /// The file is there, but not executable by the container's user.
    CommandNotExecutable,
    /// Executable, but no program for this machine.
    NotAProgram,
    /// The system refused; its error number.
    Spawn(i32),
    /// The prompt that is mounted from a ConfigMap.
    Prompt(PromptFault),
    /// The checkpoint to continue from does not fit the pod; nothing is wrong with itself.
    State(RestoreFault),
    /// It cannot be written to the pod's disk on its way; the system's error number.
    Spool(Option<i32>),
}

/// Why a mounted prompt cannot be used. The controller looked at it before: it was changed since, or came later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptFault {
    /// Not there, or not readable for the container's user.
    Unreadable,
    /// No byte in it.
    Empty,
    /// Larger than a ConfigMap holds.
    TooLarge,
    /// Not UTF-8.
    NotText,
}

/// What was wrong with an answer during the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadReply {
    /// Not what the protocol says.
    Malformed,
    /// `session/new` without a usable session id.
    NoSessionId,
    /// The wanted mode is not among those the agent offers.
    ModeNotOffered,
    /// The wanted model is not among those the agent offers.
    ModelNotOffered,
    /// A JSON-RPC error.
    Error(RpcFault),
}

/// A JSON-RPC error, reduced to its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpcFault {
    /// The error's code.
    pub code: i64,
    /// An HTTP status in the error's data, as adapters of model APIs put there.
    pub http_status: Option<u16>,
}

/// How the protocol breaks down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolFault {
    /// A line over the limit in bytes (pitfall T4).
    FrameTooLong(usize),
    /// `session/prompt` was answered with an error.
    PromptError(RpcFault),
    /// `session/prompt` was answered without a stop reason.
    PromptMalformed,
    /// The agent does not read what it is sent.
    NotReading,
    /// The agent did not end its turn when it was interrupted.
    NotInterrupted,
}

/// A stop reason of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolStop {
    /// `end_turn`
    EndTurn,
    /// `max_tokens`
    MaxTokens,
    /// `max_turn_requests`
    MaxTurnRequests,
    /// `refusal`
    Refusal,
    /// `cancelled`
    Cancelled,
    /// Anything else.
    Unknown,
}

/// Why the gateway stops an attempt; only for what a person reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StopReason {
    /// The run was cancelled or deleted, or nothing was said.
    #[default]
    Cancelled,
    /// startDeadlineSeconds.
    StartDeadline,
    /// activeDeadlineSeconds.
    ActiveDeadline,
    /// idleDeadlineSeconds.
    IdleDeadline,
    /// Anything else the controller found; the run's status says what.
    Other,
}

impl StopReason {
    /// From the word of the failure taxonomy.
    pub fn parse(reason: &str) -> Self {
        match reason {
            "" | "Cancelled" => Self::Cancelled,
            "StartDeadlineExceeded" => Self::StartDeadline,
            "DeadlineExceeded" => Self::ActiveDeadline,
            "IdleDeadlineExceeded" => Self::IdleDeadline,
            _ => Self::Other,
        }
    }

    /// What happened, in a few words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::StartDeadline => "stopped, startDeadlineSeconds is over,",
            Self::ActiveDeadline => "stopped, activeDeadlineSeconds is over,",
            Self::IdleDeadline => "stopped, idleDeadlineSeconds is over,",
            Self::Other => "stopped by the operator",
        }
    }
}

/// Who stopped an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// The gateway said cancel.
    Cancel(StopReason),
    /// Process 1 got SIGTERM: the pod is being deleted (c49).
    Terminated,
}

/// Why a result was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStored {
    /// The gateway refused it with this HTTP status.
    Refused(u16),
    /// It was tried again and again.
    InVain {
        /// HTTP status of the last answer; absent when the last try got none.
        status: Option<u16>,
        /// Who ended that; absent when the time for it was over.
        stopped: Option<StopCause>,
    },
}

/// Why a session was not kept after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotKept {
    /// Its files could not be packed.
    Packed(PackFault),
    /// The checkpoint was not stored.
    Stored {
        /// Size in bytes.
        size: i64,
        /// Why.
        why: NotStored,
    },
}

/// What an assignment can ask for and the agent does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// A session that can be continued later.
    Continuation,
    /// A persona in place of its own.
    Persona,
    /// A choice of models, in the answer that opened its session in this way.
    Model(SessionOrigin),
}

/// Why a session cannot be continued. Nothing is ever begun in its place (contract c40).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotResumable {
    /// The session store does not have its checkpoint, or has something else in its place.
    Gone,
    /// What came from the session store is not what was stored.
    Different,
    /// The checkpoint cannot be put back.
    Unusable(RestoreFault),
    /// The agent can neither load nor resume.
    NoWay,
    /// The agent answered with an error.
    Unknown(Stage, RpcFault),
    /// The agent loaded it without anything of its turns.
    Empty {
        /// Turns that were completed before.
        turns: i64,
    },
    /// The agent opened another session in its place.
    OtherSession,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The turn's response was read.
    Answered(ProtocolStop),
    /// No further message comes and none waits.
    WorkedOff,
    /// Stopped before that.
    Stopped {
        /// By whom.
        cause: StopCause,
        /// When.
        stage: Stage,
        /// Whether the prompt had been sent.
        prompted: bool,
    },
    /// The process did not start.
    NotStarted(StartFault),
    /// The agent ended before there was a session; `None` when it only closed its output.
    EndedEarly(Stage, Option<Exit>),
    /// An answer of the handshake was no use.
    BadReply(Stage, BadReply),
    /// The agent speaks only this other protocol version.
    Version(i64),
    /// The agent wants to be authenticated.
    AuthRequired(Stage),
    /// The prompt holds a kind of content the agent does not take.
    ImagesNotTaken,
    /// The agent lacks what the run asks for: nothing is accepted and then ignored (contract c7).
    Lacks(Lack),
    /// The session cannot be continued.
    NotResumable(NotResumable),
    /// The checkpoint to continue from could not be fetched.
    NotFetched(NotStored),
    /// The agent ended during a turn; `None` when it only closed its output.
    Crashed(Option<Exit>),
    /// The agent ended with a session and no turn; `None` when it only closed its output.
    CrashedIdle(Option<Exit>),
    /// The protocol broke down.
    Protocol(Stage, ProtocolFault),
    /// The turn ended well, the result does not fit.
    ResultTooLarge {
        /// Size in bytes.
        size: u64,
        /// Limit in bytes.
        limit: usize,
    },
    /// The turn ended well, the result could not be stored (contract c31).
    DurabilityFailed {
        /// Size in bytes.
        size: u64,
        /// Why.
        why: NotStored,
    },
    /// The turn was answered, but what it left is not kept: the turn does not count as done (contract c41).
    NotKept {
        /// The turn.
        turn: i64,
        /// Why.
        why: NotKept,
    },
}

/// Facts beside the end itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Circumstances {
    /// Turns recorded in the ledger.
    pub accounted_turns: i64,
    /// Lines on the agent's stdout that were no frames.
    pub skipped_lines: u64,
    /// Updates for another session.
    pub foreign_updates: u64,
    /// Size of a partial output that was too large, or could not be stored.
    pub dropped_output: Option<u64>,
    /// The kernel killed a process because the container used more memory than this, in bytes (pitfall N2).
    pub exceeded_memory: Option<u64>,
    /// What was in the way of what was not stored: the gateway's words or the system's, never the agent's.
    pub trouble: Option<String>,
    /// Names of the models the agent offers, when the wanted one is not among them: names and no other text.
    pub offered: Vec<String>,
}

/// The end in the API's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// Stop reason.
    pub stop_reason: &'static str,
    /// Reason of the failure taxonomy.
    pub reason: &'static str,
    /// Facts for a person; absent when the turn completed.
    pub diagnostic: Option<String>,
}

/// Translates an end.
pub fn settle(end: &End, circumstances: &Circumstances) -> Settlement {
    let (stop_reason, reason) = words(end, circumstances);
    let diagnostic = (stop_reason != "Completed").then(|| bounded(diagnostic(end, circumstances)));
    Settlement { stop_reason, reason, diagnostic }
}

fn words(end: &End, circumstances: &Circumstances) -> (&'static str, &'static str) {
    match end {
        // c29: completed without an accounted turn contradicts itself. An activation may have had nothing to do: what it was
        // made for was taken back, or an interruption alone.
        End::Answered(ProtocolStop::EndTurn) if circumstances.accounted_turns < 1 => ("Error", "AgentProtocolError"),
        End::Answered(ProtocolStop::EndTurn) | End::WorkedOff => ("Completed", "Completed"),
        End::Answered(ProtocolStop::MaxTokens) => ("MaxTokens", "MaxTokens"),
        End::Answered(ProtocolStop::MaxTurnRequests) => ("Error", "TurnLimit"),
        End::Answered(ProtocolStop::Refusal) => ("Refusal", "AgentRefused"),
        End::Answered(ProtocolStop::Cancelled) => ("Aborted", "Cancelled"),
        End::Answered(ProtocolStop::Unknown) => ("Error", "AgentProtocolError"),
        End::Stopped { cause: StopCause::Cancel(_), .. } => ("Aborted", "Cancelled"),
        End::Stopped { cause: StopCause::Terminated, .. } => ("Error", "PodDeleted"),
        End::NotStarted(_) => ("Error", "AgentStartFailed"),
        End::EndedEarly(_, Some(Exit::Signal(9)))
        | End::Crashed(Some(Exit::Signal(9)))
        | End::CrashedIdle(Some(Exit::Signal(9)))
            if circumstances.exceeded_memory.is_some() =>
        {
            ("Error", "OOMKilled")
        }
        End::EndedEarly(..) | End::BadReply(..) | End::Version(_) => ("Error", "AgentHandshakeFailed"),
        End::AuthRequired(_) => ("Error", "AgentAuthRequired"),
        End::ImagesNotTaken | End::Lacks(_) => ("Error", "AgentHandshakeFailed"),
        End::NotResumable(_) => ("Error", "NotResumable"),
        End::Crashed(_) | End::CrashedIdle(_) => ("Error", "AgentCrashed"),
        End::Protocol(..) => ("Error", "AgentProtocolError"),
        End::ResultTooLarge { .. } => ("Error", "ResultTooLarge"),
        End::DurabilityFailed { .. } | End::NotKept { .. } | End::NotFetched(_) => ("Error", "DurabilityFailed"),
    }
}

fn diagnostic(end: &End, circumstances: &Circumstances) -> String {
    let mut text = match end {
        End::Answered(ProtocolStop::EndTurn) => "the turn ended, but no turn was recorded".to_owned(),
        End::WorkedOff => "the inbox was worked off".to_owned(),
        End::Answered(ProtocolStop::MaxTokens) => "the model reached its token limit".to_owned(),
        End::Answered(ProtocolStop::MaxTurnRequests) => {
            "the agent reached its limit of model requests in one turn".to_owned()
        }
        End::Answered(ProtocolStop::Refusal) => "the agent refused to go on".to_owned(),
        End::Answered(ProtocolStop::Cancelled) => {
            "the agent ended the turn as cancelled without being asked".to_owned()
        }
        End::Answered(ProtocolStop::Unknown) => {
            "the agent ended the turn with a stop reason that protocol version 1 does not have".to_owned()
        }
        End::Stopped { cause, stage, prompted } => {
            let cause = stopped(*cause);
            let prompted = if *prompted { "after the prompt was sent" } else { "no prompt was sent" };
            format!("{cause} in stage {}; {prompted}", stage.name())
        }
        End::NotStarted(fault) => start_fault(*fault),
        End::EndedEarly(stage, exit) => format!("in stage {}, {}", stage.name(), Ended(*exit)),
        End::BadReply(stage, reply) => format!("in stage {}, {}", stage.name(), bad_reply(*reply)),
        End::Version(version) => format!("the agent speaks protocol version {version}, this worker version 1"),
        End::AuthRequired(stage) => {
            format!(
                "in stage {}, the agent asked to be authenticated; give it credentials or an authMethod",
                stage.name()
            )
        }
        End::ImagesNotTaken => "the prompt holds an image, which the agent does not take".to_owned(),
        End::Lacks(lack) => lacks(*lack),
        End::NotResumable(why) => not_resumable(*why),
        End::NotFetched(why) => {
            format!("the checkpoint to continue from was not fetched: {}", not_stored(*why))
        }
        End::Crashed(exit) => format!("during the turn, {}", Ended(*exit)),
        End::CrashedIdle(exit) => format!("between two turns, {}", Ended(*exit)),
        End::Protocol(stage, fault) => format!("in stage {}, {}", stage.name(), protocol_fault(*fault)),
        End::ResultTooLarge { size, limit } => {
            format!(
                "the result has {size} bytes, the limit is {limit}; the transcript holds it as far as that was archived"
            )
        }
        End::DurabilityFailed { size, why } => format!(
            "the result of {size} bytes was not stored: {}; the transcript holds it as far as that was archived",
            not_stored(*why)
        ),
        End::NotKept { turn, why: NotKept::Packed(fault) } => {
            format!("the session was not kept after turn {turn}: {fault}")
        }
        End::NotKept { turn, why: NotKept::Stored { size, why } } => {
            format!("the checkpoint of {size} bytes after turn {turn} was not stored: {}", not_stored(*why))
        }
    };
    if !circumstances.offered.is_empty() {
        let _ = write!(text, "; it offers: {}", circumstances.offered.join(", "));
    }
    if let Some(trouble) = &circumstances.trouble {
        let _ = write!(text, "; in the way was: {}", trouble.trim_end_matches('.'));
    }
    if let Some(limit) = circumstances.exceeded_memory {
        let _ = write!(
            text,
            "; the kernel killed a process because the container used more memory than its limit of {limit} bytes ({} MiB)",
            limit >> 20
        );
    }
    if circumstances.skipped_lines > 0 {
        let _ = write!(text, "; lines on stdout that were no frames: {}", circumstances.skipped_lines);
    }
    if circumstances.foreign_updates > 0 {
        let _ = write!(text, "; updates for another session: {}", circumstances.foreign_updates);
    }
    if let Some(size) = circumstances.dropped_output {
        let _ = write!(
            text,
            "; the partial output of {size} bytes is too large or was not stored; the transcript holds it as far as that was archived"
        );
    }
    text
}

fn lacks(lack: Lack) -> String {
    let what = match lack {
        Lack::Continuation => {
            "the agent advertises neither session/load nor session/resume: its session could never be continued"
        }
        Lack::Persona => {
            "the agent does not advertise that a persona can replace its own instructions \
             (sessionCapabilities.systemPrompt.mode.override)"
        }
        Lack::Model(how) => {
            let request = match how {
                SessionOrigin::New => "session/new",
                SessionOrigin::Loaded => "session/load",
                SessionOrigin::Resumed => "session/resume",
            };
            return format!(
                "the agent offers no choice of models in its answer to {request}, and agentOptions.model names one"
            );
        }
    };
    what.to_owned()
}

fn not_resumable(why: NotResumable) -> String {
    match why {
        NotResumable::Gone => {
            "the session store does not have the child's checkpoint, or has something else in its place".to_owned()
        }
        NotResumable::Different => "what came from the session store is not the checkpoint that was stored".to_owned(),
        NotResumable::Unusable(fault) => format!("the child's checkpoint cannot be put back: {fault}"),
        NotResumable::NoWay => "the agent advertises neither session/load nor session/resume".to_owned(),
        NotResumable::Unknown(stage, fault) => {
            format!("in stage {}, the agent did not open the session: it answered with {fault}", stage.name())
        }
        NotResumable::Empty { turns } => {
            format!("the agent loaded the session without anything of its past, although {turns} turns were completed")
        }
        NotResumable::OtherSession => "the agent speaks of another session than the one it was to continue".to_owned(),
    }
}

fn stopped(cause: StopCause) -> &'static str {
    match cause {
        StopCause::Cancel(reason) => reason.words(),
        StopCause::Terminated => "stopped by SIGTERM, the pod is being deleted,",
    }
}

fn not_stored(why: NotStored) -> String {
    let answered = |status: Option<u16>| match status {
        Some(status) => format!("the gateway answered the last try with HTTP status {status}"),
        None => "the last try got no answer of a gateway".to_owned(),
    };
    match why {
        NotStored::Refused(status) => format!("the gateway refused it with HTTP status {status}"),
        NotStored::InVain { status, stopped: None } => format!("the time for it is over, and {}", answered(status)),
        NotStored::InVain { status, stopped: Some(cause) } => {
            format!("{} before that; {}", stopped(cause), answered(status))
        }
    }
}

fn start_fault(fault: StartFault) -> String {
    match fault {
        StartFault::Cwd(CwdFault::Relative) => "the working directory is not an absolute path".to_owned(),
        StartFault::Cwd(CwdFault::Missing) => "the working directory does not exist".to_owned(),
        StartFault::Cwd(CwdFault::NotAFolder) => "the working directory is not a folder".to_owned(),
        StartFault::Cwd(CwdFault::NotEnterable) => {
            "the container's user may not enter the working directory".to_owned()
        }
        StartFault::CommandNotFound => {
            "the command was not found in the container: it is the first word of command of container agent".to_owned()
        }
        StartFault::CommandNotExecutable => "the command is not executable by the container's user".to_owned(),
        StartFault::NotAProgram => {
            "the command is no program for this machine: another architecture, or a script without an interpreter line"
                .to_owned()
        }
        StartFault::Spawn(number) => format!("the system refused to start the command, error number {number}"),
        StartFault::State(fault) => format!("the checkpoint to continue from was not put back: {fault}"),
        StartFault::Spool(number) => {
            let number = number.map(|number| format!(", error number {number}")).unwrap_or_default();
            format!("the checkpoint to continue from cannot be written to the pod's disk{number}")
        }
        StartFault::Prompt(fault) => {
            let what = match fault {
                PromptFault::Unreadable => "cannot be read by the container's user",
                PromptFault::Empty => "is empty",
                PromptFault::TooLarge => "is larger than 1 MiB",
                PromptFault::NotText => "is not UTF-8 text",
            };
            format!("the prompt in the ConfigMap of spec.prompt.configMapKeyRef {what}")
        }
    }
}

fn bad_reply(reply: BadReply) -> String {
    match reply {
        BadReply::Malformed => "the agent's answer is not what the protocol says".to_owned(),
        BadReply::NoSessionId => "the agent's answer holds no session id of 1 to 256 bytes".to_owned(),
        BadReply::ModeNotOffered => "the agent does not offer the session mode the provider asks for".to_owned(),
        BadReply::ModelNotOffered => "the agent does not offer the model of agentOptions.model".to_owned(),
        BadReply::Error(fault) => format!("the agent answered with {fault}"),
    }
}

fn protocol_fault(fault: ProtocolFault) -> String {
    match fault {
        ProtocolFault::FrameTooLong(limit) => format!("the agent wrote a line of more than {limit} bytes"),
        ProtocolFault::PromptError(fault) => format!("the agent answered the prompt with {fault}"),
        ProtocolFault::PromptMalformed => "the agent answered the prompt without a stop reason".to_owned(),
        ProtocolFault::NotReading => "the agent does not read its stdin".to_owned(),
        ProtocolFault::NotInterrupted => {
            "the agent did not end its turn within cancelGraceSeconds after session/cancel".to_owned()
        }
    }
}

impl Display for RpcFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JSON-RPC error {}", self.code)?;
        self.http_status.map_or(Ok(()), |status| write!(f, " (HTTP status {status})"))
    }
}

/// How the agent's process ended, as a clause.
struct Ended(Option<Exit>);

impl Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => write!(f, "the agent closed its output"),
            Some(Exit::Code(code)) => write!(f, "the agent ended with exit code {code}"),
            // Where nobody counts the kills of the kernel's out-of-memory killer, this signal is all that is seen of it.
            Some(Exit::Signal(9)) => {
                write!(f, "the agent was ended by signal 9 (SIGKILL), which is how running out of memory looks")
            }
            Some(Exit::Signal(signal)) => write!(f, "the agent was ended by signal {signal}"),
        }
    }
}

/// Cuts to the API's bound, on a character boundary, with a mark (c30).
fn bounded(mut text: String) -> String {
    const MARK: &str = " [cut]";
    if text.len() > MAX_DIAGNOSTIC_BYTES {
        text.truncate(floor(&text, MAX_DIAGNOSTIC_BYTES - MARK.len()));
        text.push_str(MARK);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const ONE_TURN: Circumstances = Circumstances {
        accounted_turns: 1,
        skipped_lines: 0,
        foreign_updates: 0,
        dropped_output: None,
        exceeded_memory: None,
        trouble: None,
        offered: Vec::new(),
    };

    #[rstest]
    #[case(End::Answered(ProtocolStop::EndTurn), "Completed", "Completed")]
    #[case(End::Answered(ProtocolStop::MaxTokens), "MaxTokens", "MaxTokens")]
    #[case(End::Answered(ProtocolStop::MaxTurnRequests), "Error", "TurnLimit")]
    #[case(End::Answered(ProtocolStop::Refusal), "Refusal", "AgentRefused")]
    #[case(End::Answered(ProtocolStop::Cancelled), "Aborted", "Cancelled")]
    #[case(End::Answered(ProtocolStop::Unknown), "Error", "AgentProtocolError")]
    #[case(End::Stopped { cause: StopCause::Cancel(StopReason::Cancelled), stage: Stage::Prompt, prompted: true }, "Aborted", "Cancelled")]
    #[case(End::Stopped { cause: StopCause::Terminated, stage: Stage::Prompt, prompted: true }, "Error", "PodDeleted")]
    #[case(End::NotStarted(StartFault::CommandNotFound), "Error", "AgentStartFailed")]
    #[case(End::EndedEarly(Stage::Initialize, Some(Exit::Code(0))), "Error", "AgentHandshakeFailed")]
    #[case(End::BadReply(Stage::SessionNew, BadReply::NoSessionId), "Error", "AgentHandshakeFailed")]
    #[case(End::Version(2), "Error", "AgentHandshakeFailed")]
    #[case(End::AuthRequired(Stage::SessionNew), "Error", "AgentAuthRequired")]
    #[case(End::NotResumable(NotResumable::Gone), "Error", "NotResumable")]
    #[case(End::Lacks(Lack::Persona), "Error", "AgentHandshakeFailed")]
    #[case(End::NotFetched(NotStored::Refused(507)), "Error", "DurabilityFailed")]
    #[case(End::NotStarted(StartFault::State(RestoreFault::TooLarge(1))), "Error", "AgentStartFailed")]
    #[case(End::Crashed(Some(Exit::Code(0))), "Error", "AgentCrashed")]
    #[case(End::Protocol(Stage::Prompt, ProtocolFault::FrameTooLong(1)), "Error", "AgentProtocolError")]
    #[case(End::ResultTooLarge { size: 2, limit: 1 }, "Error", "ResultTooLarge")]
    #[case::c41(End::NotKept { turn: 1, why: NotKept::Packed(PackFault::Nothing) }, "Error", "DurabilityFailed")]
    #[case::c31(End::DurabilityFailed { size: 2, why: NotStored::Refused(507) }, "Error", "DurabilityFailed")]
    fn c25_c26_stop_reason_and_reason(#[case] end: End, #[case] stop_reason: &str, #[case] reason: &str) {
        let settlement = settle(&end, &ONE_TURN);
        assert_eq!((settlement.stop_reason, settlement.reason), (stop_reason, reason));
        // c30: a diagnostic on everything but a completed turn.
        assert_eq!(settlement.diagnostic.is_none(), stop_reason == "Completed");
    }

    #[test]
    fn c29_completed_without_a_turn_is_an_error() {
        let settlement = settle(&End::Answered(ProtocolStop::EndTurn), &Circumstances::default());
        assert_eq!((settlement.stop_reason, settlement.diagnostic.is_some()), ("Error", true));
        let settlement = settle(&End::WorkedOff, &Circumstances::default());
        assert_eq!(settlement.reason, "Completed", "an activation may have had nothing to do");
    }

    #[rstest]
    #[case(
        End::Crashed(Some(Exit::Signal(9))),
        "during the turn, the agent was ended by signal 9 (SIGKILL), which is how running out of memory looks"
    )]
    #[case(
        End::EndedEarly(Stage::Initialize, Some(Exit::Code(3))),
        "in stage Initialize, the agent ended with exit code 3"
    )]
    #[case(
        End::Protocol(Stage::Prompt, ProtocolFault::PromptError(RpcFault { code: -32603, http_status: Some(529) })),
        "in stage Prompt, the agent answered the prompt with JSON-RPC error -32603 (HTTP status 529)"
    )]
    #[case(
        End::Stopped { cause: StopCause::Cancel(StopReason::Cancelled), stage: Stage::Initialize, prompted: false },
        "cancelled in stage Initialize; no prompt was sent"
    )]
    #[case(
        End::Stopped { cause: StopCause::Cancel(StopReason::IdleDeadline), stage: Stage::Prompt, prompted: true },
        "stopped, idleDeadlineSeconds is over, in stage Prompt; after the prompt was sent"
    )]
    #[case(
        End::DurabilityFailed { size: 9, why: NotStored::InVain { status: Some(503), stopped: Some(StopCause::Terminated) } },
        "the result of 9 bytes was not stored: stopped by SIGTERM, the pod is being deleted, before that; the gateway \
         answered the last try with HTTP status 503; the transcript holds it as far as that was archived"
    )]
    #[case(
        End::DurabilityFailed { size: 9, why: NotStored::InVain { status: None, stopped: None } },
        "the result of 9 bytes was not stored: the time for it is over, and the last try got no answer of a gateway; \
         the transcript holds it as far as that was archived"
    )]
    fn c30_diagnostics_are_facts(#[case] end: End, #[case] text: &str) {
        assert_eq!(settle(&end, &ONE_TURN).diagnostic.as_deref(), Some(text));
    }

    /// N2: the agent alone was killed, at any stage; a tool that was killed is told, and the agent's own end decides.
    #[rstest]
    #[case(End::Crashed(Some(Exit::Signal(9))), "OOMKilled")]
    #[case(End::EndedEarly(Stage::Initialize, Some(Exit::Signal(9))), "OOMKilled")]
    #[case(End::Crashed(Some(Exit::Code(1))), "AgentCrashed")]
    fn n2_memory_over_the_limit_is_named(#[case] end: End, #[case] reason: &str) {
        let settlement = settle(&end, &Circumstances { exceeded_memory: Some(64 << 20), ..ONE_TURN });
        assert_eq!(settlement.reason, reason);
        let diagnostic = settlement.diagnostic.unwrap();
        assert!(diagnostic.contains("more memory than its limit of 67108864 bytes (64 MiB)"), "{diagnostic}");
    }

    #[test]
    fn c30_circumstances_are_told() {
        let told = Circumstances { skipped_lines: 5, foreign_updates: 2, dropped_output: Some(9), ..ONE_TURN };
        let text = settle(&End::Version(7), &told).diagnostic.unwrap();
        assert!(
            text.contains("no frames: 5") && text.contains("another session: 2") && text.contains("9 bytes"),
            "{text}"
        );
    }

    #[test]
    fn c30_a_long_diagnostic_is_cut_on_a_character_with_a_mark() {
        let text = bounded("é".repeat(4000));
        assert!(text.len() <= MAX_DIAGNOSTIC_BYTES && text.ends_with("é [cut]"), "{}", text.len());
        assert_eq!(bounded("short".into()), "short");
    }
}
