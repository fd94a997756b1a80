//! The agent: what it answers to each method of the protocol, and what its knobs make it do instead.

use std::collections::HashMap;
use std::io::{BufRead, stdin, stdout};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::processes;
use crate::reporter::{Reporter, now_ms};
use crate::sessions::{MODELS, MODES, Session, Sessions, Speaker};
use crate::stages::{Fault, Models, Settings, Stage};
use crate::steps;
use crate::turn::Turn;
use crate::wire::{
    self, INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, Incoming, METHOD_NOT_FOUND, NOT_FOUND, Outcome, RpcError,
    Wire,
};

/// The protocol version it speaks.
const VERSION: i64 = 1;
/// What a session that answers as another one calls itself.
const OTHER_SESSION: &str = "someone-elses";

/// The whole state of the process. Shared by the thread that reads stdin, one thread per turn, and one per slow stage.
pub struct Agent {
    /// The way to the client.
    pub wire: Wire,
    /// What the environment says.
    pub settings: Settings,
    /// The way to the collector.
    pub reporter: Arc<Reporter>,
    /// The conversations.
    pub sessions: Sessions,
    offer: Value,
    client: Mutex<Option<Value>>,
    authenticated: AtomicBool,
    created: AtomicU64,
    turns: Mutex<HashMap<String, Arc<Turn>>>,
}

/// How a stage goes on after its faults.
enum Passed {
    Answer,
    Silence,
    Refuse(RpcError),
}

impl Agent {
    /// An agent with these settings, on stdout.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            wire: Wire::new(stdout()),
            reporter: Arc::new(Reporter::new(settings.collector.clone(), settings.tag.clone())),
            sessions: Sessions::new(settings.state.clone()),
            offer: offer(&settings),
            client: Mutex::default(),
            authenticated: AtomicBool::new(false),
            created: AtomicU64::new(0),
            turns: Mutex::default(),
            settings,
        }
    }

    /// Runs until stdin ends and a knob does not say otherwise.
    pub fn run(self: Arc<Self>) -> ExitCode {
        let watching = Arc::clone(&self);
        processes::watch_signals(move |signal| watching.outlives(signal));
        if let Some(text) = &self.settings.stderr {
            eprintln!("{text}");
        }
        let arguments: Vec<_> = std::env::args().collect();
        self.reporter.report("start", json!({"argv": arguments}));
        if let Some(every) = self.settings.stamp {
            processes::stamp(Arc::clone(&self.reporter), every);
        }
        match self.pass(Stage::Start) {
            Passed::Answer => {}
            Passed::Silence | Passed::Refuse(_) => return stay(),
        }
        let mut input = stdin().lock();
        let mut line = Vec::new();
        while matches!(input.read_until(b'\n', &mut line), Ok(read) if read > 0) {
            if !line.trim_ascii().is_empty() {
                self.receive(&line);
            }
            line.clear();
        }
        self.reporter.report("eof", json!({}));
        if self.settings.has(Stage::Eof, &Fault::Ignore) {
            return stay();
        }
        self.pass(Stage::Eof);
        ExitCode::SUCCESS
    }

    fn outlives(&self, signal: Signal) -> bool {
        self.reporter.try_report("signal", json!({"text": signal.as_str()}));
        if signal != Signal::SIGTERM {
            return false;
        }
        if self.settings.has(Stage::Sigterm, &Fault::Ignore) {
            return true;
        }
        self.pass(Stage::Sigterm);
        false
    }

    fn receive(self: &Arc<Self>, line: &[u8]) {
        match wire::read(line) {
            Incoming::Request { id, method, params } => self.request(id, &method, params),
            Incoming::Notification { method, params } if method == "session/cancel" => self.cancel(&params),
            Incoming::Notification { method, params } => {
                self.reporter.report("notification", json!({"text": method, "params": params}));
            }
            Incoming::Response { id, outcome } => self.wire.settle(id, outcome),
            Incoming::Invalid => {
                self.reporter.report("invalid", json!({"text": String::from_utf8_lossy(line).trim_end()}));
                self.wire.refuse_line();
            }
        }
    }

    fn request(self: &Arc<Self>, id: Value, method: &str, params: Value) {
        let stage = match method {
            "initialize" => Stage::Initialize,
            "authenticate" => Stage::Authenticate,
            "session/new" => Stage::New,
            "session/load" => Stage::Load,
            "session/resume" => Stage::Resume,
            "session/close" => Stage::Close,
            "session/set_mode" => Stage::SetMode,
            "session/set_model" if self.settings.models == Some(Models::Older) => Stage::SetModel,
            "session/set_config_option" if self.settings.models == Some(Models::Options) => Stage::SetModel,
            "session/prompt" => return self.prompt(id, &params),
            "_session/steering" => Stage::Steering,
            _ => {
                self.reporter.report("request", json!({"text": method, "params": params}));
                return self.wire.respond(&id, &Err(unknown_method(method)));
            }
        };
        if stage == Stage::Steering {
            self.reporter.report("steer", json!({"text": text_of(&params["prompt"])}));
        } else {
            self.reporter.report("request", json!({"text": method, "params": params}));
        }
        if self.is_slow(stage) {
            // The agent goes on reading meanwhile: it must notice the end of stdin and a cancel.
            let agent = Arc::clone(self);
            thread::spawn(move || agent.serve(&id, stage, &params));
        } else {
            self.serve(&id, stage, &params);
        }
    }

    fn is_slow(&self, stage: Stage) -> bool {
        self.settings.faults(stage).iter().any(|fault| matches!(fault, Fault::Delay(_) | Fault::Gate(_)))
    }

    fn serve(&self, id: &Value, stage: Stage, params: &Value) {
        let outcome = match self.pass(stage) {
            Passed::Silence => return,
            Passed::Refuse(error) => Err(error),
            Passed::Answer => self.answer(stage, params),
        };
        let outcome = match outcome {
            Ok(_) if self.settings.has(stage, &Fault::NullResult) => Ok(Value::Null),
            outcome => outcome,
        };
        self.wire.respond(id, &outcome);
    }

    /// Lets the faults of a stage happen, in order.
    fn pass(&self, stage: Stage) -> Passed {
        for fault in self.settings.faults(stage) {
            match fault {
                Fault::Delay(time) => thread::sleep(*time),
                Fault::Gate(name) => {
                    if let Err(reason) = self.reporter.pass_gate(name) {
                        return Passed::Refuse(RpcError::new(INTERNAL_ERROR, reason));
                    }
                }
                Fault::Garbage(lines) => steps::noise::garbage(&self.wire, *lines),
                Fault::Banner => self.wire.line(BANNER),
                Fault::BannerExit => {
                    self.wire.line(BANNER);
                    self.exit(0);
                }
                Fault::BigLine(mib) => steps::noise::big_notification(&self.wire, *mib),
                Fault::Exit(code) => self.exit(*code),
                Fault::Kill(signal) => processes::die_by(*signal),
                Fault::Hang => return Passed::Silence,
                Fault::Error(error) => return Passed::Refuse(error.clone()),
                Fault::AuthRequired if !self.authenticated.load(Ordering::Acquire) => {
                    return Passed::Refuse(Fault::authentication_required());
                }
                // These change the answer and are looked for where it is made.
                Fault::AuthRequired
                | Fault::Version(_)
                | Fault::NoSessionId
                | Fault::UpdatesBefore
                | Fault::ReplayNothing
                | Fault::OtherSessionId
                | Fault::NullResult
                | Fault::PromptRequired
                | Fault::Ignore
                | Fault::Answer(_) => {}
            }
        }
        Passed::Answer
    }

    /// Ends the process, in the middle of whatever it does.
    pub fn exit(&self, code: i32) -> ! {
        self.reporter.try_report("exit", json!({"code": code}));
        std::process::exit(code)
    }

    fn answer(&self, stage: Stage, params: &Value) -> Outcome {
        if stage == Stage::Initialize {
            return self.initialize(params);
        }
        if self.client().is_none() {
            return Err(RpcError::new(INVALID_REQUEST, "initialize comes first"));
        }
        match stage {
            Stage::Authenticate => self.authenticate(params),
            Stage::New => self.new_session(params),
            Stage::Load | Stage::Resume => self.open_session(stage, params),
            Stage::Close => self.close_session(params),
            Stage::SetMode => self.set_mode(params),
            Stage::SetModel => self.set_model(params),
            Stage::Steering => self.steer(params),
            Stage::Start | Stage::Initialize | Stage::Prompt | Stage::Cancel | Stage::Eof | Stage::Sigterm => {
                Err(RpcError::new(INTERNAL_ERROR, "no request"))
            }
        }
    }

    fn initialize(&self, params: &Value) -> Outcome {
        if !params["protocolVersion"].is_i64() {
            return Err(RpcError::new(INVALID_PARAMS, "protocolVersion is missing"));
        }
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = Some(params.clone());
        Ok(self.offer.clone())
    }

    /// What the client said with `initialize`.
    #[must_use]
    pub fn client(&self) -> Option<Value> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn authenticate(&self, params: &Value) -> Outcome {
        let known = self.offer["authMethods"].as_array().is_some_and(|methods| {
            methods.iter().any(|method| method["id"].is_string() && method["id"] == params["methodId"])
        });
        if !known {
            return Err(RpcError::new(INVALID_PARAMS, format!("no auth method {}", params["methodId"])));
        }
        self.authenticated.store(true, Ordering::Release);
        Ok(json!({}))
    }

    fn new_session(&self, params: &Value) -> Outcome {
        check_opening(params)?;
        let number = self.created.fetch_add(1, Ordering::Relaxed);
        let id = format!("session-{:x}-{}-{number}", now_ms(), std::process::id());
        let opened = json!({"method": "session/new", "params": params});
        self.sessions.create(&id, opened).map_err(internal)?;
        self.dress(Stage::New, &id);
        let mut result = self.choices(&id)?;
        result["sessionId"] = json!(id);
        if self.settings.has(Stage::New, &Fault::NoSessionId)
            && let Some(members) = result.as_object_mut()
        {
            members.remove("sessionId");
        }
        Ok(result)
    }

    fn open_session(&self, stage: Stage, params: &Value) -> Outcome {
        let (method, served) = match stage {
            Stage::Load => ("session/load", self.offer["agentCapabilities"]["loadSession"] == true),
            _ => ("session/resume", self.offer["agentCapabilities"]["sessionCapabilities"]["resume"].is_object()),
        };
        if !served {
            return Err(unknown_method(method));
        }
        check_opening(params)?;
        let id = session_id(params)?;
        let opened = json!({"method": method, "params": params});
        let history = self.sessions.open(&id, opened).map_err(internal)?.ok_or_else(|| unknown_session(&id))?;
        self.dress(stage, &id);
        if stage == Stage::Load && !self.settings.has(Stage::Load, &Fault::ReplayNothing) {
            for said in history {
                let kind = match said.speaker {
                    Speaker::User => "user_message_chunk",
                    Speaker::Agent => "agent_message_chunk",
                };
                let content = json!({"type": "text", "text": said.text});
                self.update(&id, json!({"sessionUpdate": kind, "content": content}));
            }
        }
        self.choices(&id)
    }

    /// What can be chosen in a session, as the answer that opens it says.
    fn choices(&self, id: &str) -> Outcome {
        let session = self.session(id)?;
        let mut choices = json!({"modes": modes(&session)});
        match self.settings.models {
            None => {}
            Some(Models::Older) => {
                let available: Vec<_> = MODELS.iter().map(|model| json!({"modelId": model, "name": model})).collect();
                choices["models"] = json!({"currentModelId": model_of(&session), "availableModels": available});
            }
            Some(Models::Options) => choices["configOptions"] = json!([model_option(&session)]),
        }
        Ok(choices)
    }

    fn set_model(&self, params: &Value) -> Outcome {
        let id = session_id(params)?;
        self.session(&id)?;
        let is_option = self.settings.models == Some(Models::Options);
        if is_option && params["configId"] != "model" {
            return Err(RpcError::new(INVALID_PARAMS, format!("no option {}", params["configId"])));
        }
        let model = params[if is_option { "value" } else { "modelId" }].as_str().unwrap_or_default();
        if !MODELS.contains(&model) {
            return Err(RpcError::new(INVALID_PARAMS, format!("no model `{model}`")));
        }
        self.sessions.change(&id, |session| session.model = Some(model.into()));
        Ok(if is_option { json!({"configOptions": [model_option(&self.session(&id)?)]}) } else { json!({}) })
    }

    /// Applies what the knobs of a stage say about the session it opened.
    fn dress(&self, stage: Stage, id: &str) {
        if self.settings.has(stage, &Fault::OtherSessionId) {
            self.sessions.change(id, |session| session.updates_as = Some(OTHER_SESSION.into()));
        }
        if self.settings.has(stage, &Fault::UpdatesBefore) {
            self.update(id, steps::messages::commands());
            self.update(id, json!({"sessionUpdate": "usage_update", "used": 0, "size": 1000}));
        }
    }

    fn close_session(&self, params: &Value) -> Outcome {
        if !self.offer["agentCapabilities"]["sessionCapabilities"]["close"].is_object() {
            return Err(unknown_method("session/close"));
        }
        let id = session_id(params)?;
        if let Some(turn) = self.turns().get(&id) {
            turn.cancel();
        }
        if self.sessions.close(&id) { Ok(json!({})) } else { Err(unknown_session(&id)) }
    }

    fn set_mode(&self, params: &Value) -> Outcome {
        let id = session_id(params)?;
        self.session(&id)?;
        let mode = params["modeId"].as_str().unwrap_or_default();
        if !MODES.contains(&mode) {
            return Err(RpcError::new(INVALID_PARAMS, format!("no mode `{mode}`")));
        }
        self.sessions.change(&id, |session| session.mode = mode.into());
        Ok(json!({}))
    }

    fn steer(&self, params: &Value) -> Outcome {
        if self.offer["_meta"]["steering"]["supported"] != true {
            return Err(unknown_method("_session/steering"));
        }
        let id = session_id(params)?;
        self.session(&id)?;
        let text = text_of(&params["prompt"]);
        let turn = self.turns().get(&id).cloned();
        let refused = self.settings.has(Stage::Steering, &Fault::PromptRequired);
        if !refused && turn.is_some_and(|turn| turn.steer(&text)) {
            return Ok(json!({"outcome": "injected"}));
        }
        if params["_meta"]["steering"]["idleBehavior"] != "promptRequired" {
            // As published agents do it when nobody says what an idle agent should do: a turn that no prompt asked for.
            self.reporter.report("unowned-turn", json!({"text": text}));
            let content = json!({"type": "text", "text": format!("unowned: {text}")});
            self.update(&id, json!({"sessionUpdate": "agent_message_chunk", "content": content}));
            return Ok(json!({"outcome": "injected"}));
        }
        Ok(json!({"outcome": "promptRequired"}))
    }

    fn prompt(self: &Arc<Self>, id: Value, params: &Value) {
        let text = text_of(&params["prompt"]);
        let session = params["sessionId"].as_str().unwrap_or_default().to_string();
        self.reporter.report("prompt", json!({"text": text, "session": session, "blocks": params["prompt"]}));
        if self.sessions.get(&session).is_none() {
            return self.wire.respond(&id, &Err(unknown_session(&session)));
        }
        let turn = Arc::new(Turn::default());
        {
            let mut turns = self.turns();
            if turns.contains_key(&session) {
                drop(turns);
                self.reporter.report("second-prompt", json!({"text": text, "session": session}));
                return self.wire.respond(&id, &Err(RpcError::new(INVALID_REQUEST, "a turn is running")));
            }
            turns.insert(session.clone(), Arc::clone(&turn));
        }
        let agent = Arc::clone(self);
        thread::spawn(move || match agent.pass(Stage::Prompt) {
            Passed::Silence => {}
            Passed::Refuse(error) => {
                agent.finish_turn(&session);
                agent.wire.respond(&id, &Err(error));
            }
            Passed::Answer => steps::run_turn(&agent, &turn, &session, &id, &text),
        });
    }

    fn cancel(self: &Arc<Self>, params: &Value) {
        self.reporter.report("cancel", json!({"session": params["sessionId"]}));
        if self.settings.has(Stage::Cancel, &Fault::Ignore) {
            return;
        }
        let Some(turn) = self.turns().get(params["sessionId"].as_str().unwrap_or_default()).cloned() else { return };
        if self.is_slow(Stage::Cancel) {
            // On its own thread, because a late cancel must not keep the agent from reading.
            let agent = Arc::clone(self);
            thread::spawn(move || {
                agent.pass(Stage::Cancel);
                turn.cancel();
            });
        } else {
            // At once, so that nothing the client sends after it can overtake it.
            self.pass(Stage::Cancel);
            turn.cancel();
        }
    }

    /// Forgets the running turn of a session, so that the next prompt may come.
    pub fn finish_turn(&self, session: &str) {
        self.turns().remove(session);
    }

    /// Sends an update of a session, under the id it uses for that.
    pub fn update(&self, session: &str, update: Value) {
        let shown = self.sessions.get(session).and_then(|session| session.updates_as);
        let id = shown.as_deref().unwrap_or(session);
        self.wire.notify("session/update", json!({"sessionId": id, "update": update}));
    }

    fn session(&self, id: &str) -> Result<Session, RpcError> {
        self.sessions.get(id).ok_or_else(|| unknown_session(id))
    }

    fn turns(&self) -> MutexGuard<'_, HashMap<String, Arc<Turn>>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a program prints that was not made to be an agent.
const BANNER: &str = "scripted-agent: an agent for tests. Type `help` for help.";

/// The answer to `initialize`.
fn offer(settings: &Settings) -> Value {
    let keeps = settings.state.is_some();
    let mut offer = json!({
        "protocolVersion": VERSION,
        "agentCapabilities": {
            "loadSession": keeps,
            "promptCapabilities": {"image": true, "audio": true, "embeddedContext": true},
            "mcpCapabilities": {"http": false, "sse": false},
            "sessionCapabilities": {"close": {}, "systemPrompt": {"mode": {"override": {}}}},
        },
        "authMethods": [],
        "agentInfo": {
            "name": env!("CARGO_PKG_NAME"),
            "title": "Scripted agent",
            "version": env!("CARGO_PKG_VERSION"),
        },
        "_meta": {"steering": {"supported": true}},
    });
    if keeps {
        offer["agentCapabilities"]["sessionCapabilities"]["resume"] = json!({});
    }
    if let Some(patch) = &settings.capabilities {
        merge(&mut offer, patch);
    }
    for fault in settings.faults(Stage::Initialize) {
        if let Fault::Version(version) = fault {
            offer["protocolVersion"] = json!(version);
        }
    }
    offer
}

/// Merges as RFC 7396 says: objects member by member, null removes, everything else replaces.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(members) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, member) in members {
        if member.is_null() {
            if let Some(target) = target.as_object_mut() {
                target.remove(name);
            }
        } else {
            merge(&mut target[name], member);
        }
    }
}

/// A client must name an absolute working directory and its MCP servers, also when there are none.
fn check_opening(params: &Value) -> Result<(), RpcError> {
    if !params["cwd"].as_str().is_some_and(|cwd| Path::new(cwd).is_absolute()) {
        return Err(RpcError::new(INVALID_PARAMS, "cwd is no absolute path"));
    }
    if !params["mcpServers"].is_array() {
        return Err(RpcError::new(INVALID_PARAMS, "mcpServers is no list"));
    }
    Ok(())
}

fn modes(session: &Session) -> Value {
    let available: Vec<_> = MODES.iter().map(|mode| json!({"id": mode, "name": mode})).collect();
    json!({"currentModeId": session.mode, "availableModes": available})
}

fn model_of(session: &Session) -> &str {
    session.model.as_deref().unwrap_or(MODELS[0])
}

fn model_option(session: &Session) -> Value {
    let values: Vec<_> = MODELS.iter().map(|model| json!({"value": model, "name": model})).collect();
    json!({
        "id": "model", "name": "Model", "category": "model", "type": "select",
        "currentValue": model_of(session), "options": values,
    })
}

fn session_id(params: &Value) -> Result<String, RpcError> {
    params["sessionId"].as_str().map(String::from).ok_or_else(|| RpcError::new(INVALID_PARAMS, "sessionId is missing"))
}

/// The text blocks of a prompt, joined; a resource counts with its URI, so that it can be seen in an echo.
fn text_of(blocks: &Value) -> String {
    let text = |block: &Value| match block["type"].as_str()? {
        "text" => block["text"].as_str().map(String::from),
        "resource_link" => block["uri"].as_str().map(|uri| format!("[{uri}]")),
        "resource" => block["resource"]["uri"].as_str().map(|uri| format!("[{uri}]")),
        kind => Some(format!("[{kind}]")),
    };
    blocks.as_array().map(|blocks| blocks.iter().filter_map(text).collect::<Vec<_>>().join("\n")).unwrap_or_default()
}

fn unknown_method(method: &str) -> RpcError {
    RpcError::new(METHOD_NOT_FOUND, format!("no method {method}"))
}

fn unknown_session(id: &str) -> RpcError {
    RpcError::new(NOT_FOUND, format!("no session {id}"))
}

fn internal(error: std::io::Error) -> RpcError {
    RpcError::new(INTERNAL_ERROR, error.to_string())
}

/// Goes on living without a client, but not for ever.
fn stay() -> ExitCode {
    processes::stay_until(Instant::now() + processes::FOREVER);
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_adds_replaces_and_removes() {
        let mut target = json!({"a": {"b": 1, "c": 2}, "d": 3});
        merge(&mut target, &json!({"a": {"b": null, "e": {"f": 1}}, "d": [4]}));
        assert_eq!(target, json!({"a": {"c": 2, "e": {"f": 1}}, "d": [4]}));
    }

    #[test]
    fn the_text_of_a_prompt_shows_every_block() {
        let blocks = json!([
            {"type": "text", "text": "look at"},
            {"type": "resource_link", "uri": "file:///a", "name": "a"},
            {"type": "image", "data": "", "mimeType": "image/png"},
        ]);
        assert_eq!(text_of(&blocks), "look at\n[file:///a]\n[image]");
    }
}
