//! The diagnostic of an end: facts in words (contract c30).

use super::{
    BadReply, Circumstances, CwdFault, End, Lack, NotKept, NotResumable, NotStored, PromptFault, ProtocolFault,
    ProtocolStop, RpcFault, StartFault, StopCause,
};
use crate::{output::floor, process::Exit};
use std::fmt::{self, Display, Write as _};
use subagent_link::{MAX_DIAGNOSTIC_BYTES, SessionOrigin};

/// What happened, for a person; bounded by the caller.
pub(super) fn diagnostic(end: &End, circumstances: &Circumstances) -> String {
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
pub(super) fn bounded(mut text: String) -> String {
    const MARK: &str = " [cut]";
    if text.len() > MAX_DIAGNOSTIC_BYTES {
        text.truncate(floor(&text, MAX_DIAGNOSTIC_BYTES - MARK.len()));
        text.push_str(MARK);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Stage, StopReason, settle, tests::ONE_TURN},
        *,
    };
    use rstest::rstest;

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
