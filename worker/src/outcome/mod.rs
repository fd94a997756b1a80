//! How an attempt ended, and what that means: stop reason, reason and diagnostic (contract c25-c30).
//!
//! Pure. A diagnostic is built from typed facts alone (stage, category, exit code, signal, error code, HTTP status,
//! sizes): there is no way for text of the agent, of the prompt or of stderr to get into it.
//!
//! - `facts`: stages, faults and causes that an end is made of.
//! - `diagnostic`: what a person reads of them.

mod diagnostic;
mod facts;

pub use facts::{
    BadReply, CwdFault, Lack, NotKept, NotResumable, NotStored, PromptFault, ProtocolFault, ProtocolStop, RpcFault,
    Stage, StartFault, StopCause, StopReason,
};

use crate::process::Exit;
use diagnostic::{bounded, diagnostic};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{PackFault, RestoreFault};
    use rstest::rstest;

    pub(super) const ONE_TURN: Circumstances = Circumstances {
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
}
