//! What can go wrong, and what is said when an attempt stops: typed facts, none of which holds text of the agent.

use crate::state::{PackFault, RestoreFault};
use subagent_link::SessionOrigin;

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
    /// The turn is over, and its result or output, which fits no report, is being stored.
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
