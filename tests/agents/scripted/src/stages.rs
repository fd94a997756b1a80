//! Knobs in the environment: what goes wrong in the stages in which no prompt has arrived yet, or beside one.
//!
//! A stage is one variable, its value a comma-separated list of [`Fault`]s that happen in that order. The agent refuses to
//! start with a value it does not understand, because a test whose knob is misspelt would pass for the wrong reason.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::script::{self, Step};
use crate::wire::{AUTH_REQUIRED, INTERNAL_ERROR, RpcError};

/// A moment in the agent's life that has a knob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The process has started and read nothing.
    Start,
    /// `initialize` arrived.
    Initialize,
    /// `authenticate` arrived.
    Authenticate,
    /// `session/new` arrived.
    New,
    /// `session/load` arrived.
    Load,
    /// `session/resume` arrived.
    Resume,
    /// `session/close` arrived.
    Close,
    /// `session/set_mode` arrived.
    SetMode,
    /// `session/set_model` or `session/set_config_option` arrived.
    SetModel,
    /// `session/prompt` arrived.
    Prompt,
    /// `_session/steering` arrived.
    Steering,
    /// `session/cancel` arrived.
    Cancel,
    /// stdin ended.
    Eof,
    /// SIGTERM arrived.
    Sigterm,
}

/// Every stage with the end of its variable's name.
const STAGES: &[(&str, Stage)] = &[
    ("START", Stage::Start),
    ("INITIALIZE", Stage::Initialize),
    ("AUTHENTICATE", Stage::Authenticate),
    ("NEW", Stage::New),
    ("LOAD", Stage::Load),
    ("RESUME", Stage::Resume),
    ("CLOSE", Stage::Close),
    ("SET_MODE", Stage::SetMode),
    ("SET_MODEL", Stage::SetModel),
    ("PROMPT", Stage::Prompt),
    ("STEERING", Stage::Steering),
    ("CANCEL", Stage::Cancel),
    ("EOF", Stage::Eof),
    ("SIGTERM", Stage::Sigterm),
];

/// One thing that goes wrong, or just takes its time.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// `delay:MS`: waits first.
    Delay(Duration),
    /// `gate:NAME`: waits first, until the collector opens that gate.
    Gate(String),
    /// `garbage[:N]`: N lines that are not JSON.
    Garbage(u32),
    /// `banner`: a greeting on stdout, as a program prints that was not made to be an agent.
    Banner,
    /// `banner-exit`: the greeting, then exit code 0.
    BannerExit,
    /// `bigline:MIB`: one notification line of that size.
    BigLine(usize),
    /// `exit:CODE`: the process exits.
    Exit(i32),
    /// `kill:SIGNAL` (`crash` is `kill:ABRT`): the process ends itself by a signal.
    Kill(Signal),
    /// `hang`: never answers.
    Hang,
    /// `error[:CODE[:TEXT]]`: answers with a JSON-RPC error; `http-error:STATUS` with one of a model's API.
    Error(RpcError),
    /// `auth-required`: answers with error -32000 until `authenticate` succeeded.
    AuthRequired,
    /// `version:N`: answers this protocol version.
    Version(i64),
    /// `no-session-id`: the answer lacks the session id.
    NoSessionId,
    /// `updates-before`: updates of the session before the answer that names it.
    UpdatesBefore,
    /// `replay-nothing`: loads, but shows nothing of what was said before.
    ReplayNothing,
    /// `other-session-id`: replay and everything later carry another session id.
    OtherSessionId,
    /// `null-result`: succeeds with the result `null`.
    NullResult,
    /// `prompt-required`: refuses to steer although a turn runs.
    PromptRequired,
    /// `ignore`: behaves as if nothing had arrived.
    Ignore,
    /// `answer:REASON`: ends the cancelled turn with this stop reason.
    Answer(String),
}

impl Fault {
    fn parse(text: &str) -> Result<Self, String> {
        let (name, argument) = text.split_once(':').unwrap_or((text, ""));
        let number = || argument.parse::<i64>().map_err(|_| format!("`{text}` needs a number"));
        let plain = |fault: Fault| {
            if argument.is_empty() { Ok(fault) } else { Err(format!("`{name}` takes no argument")) }
        };
        match name {
            "delay" => Ok(Fault::Delay(Duration::from_millis(number()?.unsigned_abs()))),
            "gate" if !argument.is_empty() => Ok(Fault::Gate(argument.into())),
            "garbage" if argument.is_empty() => Ok(Fault::Garbage(1)),
            "garbage" => Ok(Fault::Garbage(u32::try_from(number()?).map_err(|error| error.to_string())?)),
            "banner" => plain(Fault::Banner),
            "banner-exit" => plain(Fault::BannerExit),
            "bigline" => Ok(Fault::BigLine(usize::try_from(number()?).map_err(|error| error.to_string())?)),
            "exit" => Ok(Fault::Exit(i32::try_from(number()?).map_err(|error| error.to_string())?)),
            "kill" => Ok(Fault::Kill(script::signal(argument)?)),
            "crash" => plain(Fault::Kill(Signal::SIGABRT)),
            "hang" => plain(Fault::Hang),
            "error" => {
                let (code, message) = argument.split_once(':').unwrap_or((argument, "scripted failure"));
                let code = match code {
                    "" => INTERNAL_ERROR,
                    code => code.parse().map_err(|_| format!("`{code}` is no error code"))?,
                };
                Ok(Fault::Error(RpcError::new(code, message)))
            }
            "http-error" => {
                let status = u16::try_from(number()?).map_err(|error| error.to_string())?;
                Ok(Fault::Error(RpcError::of_http(status)))
            }
            "auth-required" => plain(Fault::AuthRequired),
            "version" => Ok(Fault::Version(number()?)),
            "no-session-id" => plain(Fault::NoSessionId),
            "updates-before" => plain(Fault::UpdatesBefore),
            "replay-nothing" => plain(Fault::ReplayNothing),
            "other-session-id" => plain(Fault::OtherSessionId),
            "null-result" => plain(Fault::NullResult),
            "prompt-required" => plain(Fault::PromptRequired),
            "ignore" => plain(Fault::Ignore),
            "answer" if !argument.is_empty() => Ok(Fault::Answer(argument.into())),
            _ => Err(format!("`{text}` is no fault")),
        }
    }

    /// Whether the fault means something in that stage.
    fn fits(&self, stage: Stage) -> bool {
        let request = !matches!(stage, Stage::Start | Stage::Cancel | Stage::Eof | Stage::Sigterm);
        match self {
            Fault::Delay(_) | Fault::Exit(_) | Fault::Kill(_) => true,
            Fault::Gate(_) | Fault::Garbage(_) | Fault::Banner | Fault::BannerExit | Fault::BigLine(_) => {
                request || stage == Stage::Start
            }
            Fault::Hang => request || stage == Stage::Start,
            Fault::Error(_) => request || stage == Stage::Cancel,
            Fault::AuthRequired => matches!(stage, Stage::New | Stage::Load | Stage::Resume | Stage::Prompt),
            Fault::Version(_) => stage == Stage::Initialize,
            Fault::NoSessionId => stage == Stage::New,
            Fault::UpdatesBefore => matches!(stage, Stage::New | Stage::Load | Stage::Resume),
            Fault::ReplayNothing => stage == Stage::Load,
            Fault::OtherSessionId => matches!(stage, Stage::New | Stage::Load | Stage::Resume),
            Fault::NullResult => request && !matches!(stage, Stage::Initialize | Stage::New | Stage::Prompt),
            Fault::PromptRequired => stage == Stage::Steering,
            Fault::Ignore => matches!(stage, Stage::Cancel | Stage::Eof | Stage::Sigterm),
            Fault::Answer(_) => stage == Stage::Cancel,
        }
    }

    /// The error an `auth-required` stage answers with.
    #[must_use]
    pub fn authentication_required() -> RpcError {
        RpcError::new(AUTH_REQUIRED, "Authentication required")
    }
}

/// How the models of a session are offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Models {
    /// `models`: by `models` in the answer that opens a session, and `session/set_model`.
    Older,
    /// `options`: by a configuration option, and `session/set_config_option`.
    Options,
}

/// Everything the environment says.
#[derive(Debug, Default)]
pub struct Settings {
    stages: BTreeMap<Stage, Vec<Fault>>,
    /// `SCRIPTED_AGENT_SCRIPT`: run when a prompt has no steps of its own.
    pub script: Option<Vec<Step>>,
    /// `SCRIPTED_AGENT_CAPABILITIES`: merged into the answer to `initialize` (RFC 7396: null removes).
    pub capabilities: Option<Value>,
    /// `SCRIPTED_AGENT_STATE`: the folder in which sessions outlive the process.
    pub state: Option<PathBuf>,
    /// `SCRIPTED_AGENT_MODELS`: how models are offered; not at all without it.
    pub models: Option<Models>,
    /// `SCRIPTED_AGENT_COLLECTOR`: where to report, `HOST:PORT`.
    pub collector: Option<String>,
    /// `SCRIPTED_AGENT_TAG`: stands in every report, so that a collector can tell runs apart.
    pub tag: Option<String>,
    /// `SCRIPTED_AGENT_STAMP`: a stamp to the collector this often from the start on.
    pub stamp: Option<Duration>,
    /// `SCRIPTED_AGENT_STDERR`: a line on stderr at the start.
    pub stderr: Option<String>,
}

/// What all our variables start with.
const PREFIX: &str = "SCRIPTED_AGENT_";

impl Settings {
    /// Reads the variables that start with `SCRIPTED_AGENT_`; all others are none of its business.
    ///
    /// # Errors
    /// Names the variable that has no such name or value.
    pub fn read(variables: impl IntoIterator<Item = (String, String)>) -> Result<Self, String> {
        let mut settings = Self::default();
        for (variable, value) in variables {
            let Some(name) = variable.strip_prefix(PREFIX) else { continue };
            // What the kubelet adds for a Service called scripted-agent.
            if name.starts_with("SERVICE_") || name == "PORT" || name.starts_with("PORT_") {
                continue;
            }
            settings.set(name, value).map_err(|reason| format!("{variable}: {reason}"))?;
        }
        Ok(settings)
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), String> {
        if let Some((_, stage)) = STAGES.iter().find(|(known, _)| *known == name) {
            let mut faults = Vec::new();
            for text in value.split(',').map(str::trim).filter(|text| !text.is_empty()) {
                let fault = Fault::parse(text)?;
                if !fault.fits(*stage) {
                    return Err(format!("`{text}` means nothing here"));
                }
                faults.push(fault);
            }
            self.stages.insert(*stage, faults);
            return Ok(());
        }
        match name {
            "SCRIPT" => {
                self.script = script::parse(&value).map_err(|error| error.to_string())?;
                if self.script.is_none() {
                    return Err("no line starts with `!`".into());
                }
            }
            "CAPABILITIES" => {
                let value: Value = serde_json::from_str(&value).map_err(|error| error.to_string())?;
                if !value.is_object() {
                    return Err("is no JSON object".into());
                }
                self.capabilities = Some(value);
            }
            "STATE" => self.state = Some(value.into()),
            "MODELS" => {
                self.models = Some(match value.as_str() {
                    "models" => Models::Older,
                    "options" => Models::Options,
                    _ => return Err("is neither `models` nor `options`".into()),
                });
            }
            "COLLECTOR" => self.collector = Some(value).filter(|value| !value.is_empty()),
            "TAG" => self.tag = Some(value),
            "STAMP" => {
                let every = value.parse().map_err(|_| format!("`{value}` is no number of milliseconds"))?;
                self.stamp = Some(Duration::from_millis(every));
            }
            "STDERR" => self.stderr = Some(value),
            _ => return Err("no such knob".into()),
        }
        Ok(())
    }

    /// The faults of a stage, in order.
    #[must_use]
    pub fn faults(&self, stage: Stage) -> &[Fault] {
        self.stages.get(&stage).map_or(&[], Vec::as_slice)
    }

    /// Whether a stage has this fault.
    #[must_use]
    pub fn has(&self, stage: Stage, fault: &Fault) -> bool {
        self.faults(stage).contains(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn read(variable: &str, value: &str) -> Result<Settings, String> {
        Settings::read([(variable.to_string(), value.to_string()), ("PATH".into(), "/bin".into())])
    }

    #[rstest]
    #[case("INITIALIZE", "hang", Stage::Initialize, &[Fault::Hang])]
    #[case(
        "NEW",
        "updates-before, delay:20,error:-32000:log in",
        Stage::New,
        &[Fault::UpdatesBefore, Fault::Delay(Duration::from_millis(20)), Fault::Error(RpcError::new(-32000, "log in"))]
    )]
    #[case("INITIALIZE", "error", Stage::Initialize, &[Fault::Error(RpcError::new(-32603, "scripted failure"))])]
    #[case("RESUME", "http-error:503", Stage::Resume, &[Fault::Error(RpcError::of_http(503))])]
    #[case("START", "crash", Stage::Start, &[Fault::Kill(Signal::SIGABRT)])]
    #[case("INITIALIZE", "version:2", Stage::Initialize, &[Fault::Version(2)])]
    #[case("CANCEL", "answer:end_turn", Stage::Cancel, &[Fault::Answer("end_turn".into())])]
    #[case("EOF", "", Stage::Eof, &[])]
    fn a_stage_reads_its_faults(
        #[case] name: &str,
        #[case] value: &str,
        #[case] stage: Stage,
        #[case] faults: &[Fault],
    ) {
        let settings = read(&format!("SCRIPTED_AGENT_{name}"), value).expect("settings");
        assert_eq!(settings.faults(stage), faults);
    }

    #[rstest]
    #[case("SCRIPTED_AGENT_INITIALISE", "hang", "no such knob")]
    #[case("SCRIPTED_AGENT_INITIALIZE", "hangs", "no fault")]
    #[case("SCRIPTED_AGENT_INITIALIZE", "hang:3", "no argument")]
    #[case("SCRIPTED_AGENT_INITIALIZE", "delay", "needs a number")]
    #[case("SCRIPTED_AGENT_INITIALIZE", "no-session-id", "means nothing here")]
    #[case("SCRIPTED_AGENT_SIGTERM", "hang", "means nothing here")]
    #[case("SCRIPTED_AGENT_SCRIPT", "say hello", "no line")]
    #[case("SCRIPTED_AGENT_SCRIPT", "!sya hello", "no such step")]
    #[case("SCRIPTED_AGENT_CAPABILITIES", "[]", "no JSON object")]
    #[case("SCRIPTED_AGENT_STAMP", "often", "milliseconds")]
    #[case("SCRIPTED_AGENT_MODELS", "many", "neither")]
    fn a_mistake_is_named(#[case] variable: &str, #[case] value: &str, #[case] part: &str) {
        let error = read(variable, value).expect_err("refused");
        assert!(error.starts_with(variable) && error.contains(part), "{error}");
    }

    #[test]
    fn variables_of_a_service_are_skipped() {
        assert!(read("SCRIPTED_AGENT_SERVICE_HOST", "10.0.0.1").is_ok());
        assert!(read("SCRIPTED_AGENT_PORT_80_TCP", "tcp://10.0.0.1:80").is_ok());
    }

    #[test]
    fn every_stage_is_in_the_readme() {
        let readme = include_str!("../README.md");
        for (name, _) in STAGES {
            assert!(readme.contains(&format!("`{PREFIX}{name}`")), "{name} is not in the README");
        }
    }
}
