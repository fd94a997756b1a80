//! Running a script: one turn from its prompt to its answer.

pub mod clients;
pub mod messages;
pub mod noise;
pub mod surroundings;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::processes;
use crate::reporter::Reporter;
use crate::script::{self, Step};
use crate::sessions::Speaker;
use crate::stages::{Fault, Stage};
use crate::turn::{Turn, Wake};
use crate::wire::{INTERNAL_ERROR, INVALID_PARAMS, RpcError};

/// How a turn ends.
#[derive(Debug, Clone, PartialEq)]
enum Ending {
    /// With a stop reason, and more members of the response as text.
    Stop { reason: String, members: String },
    /// With an error.
    Error(RpcError),
}

impl Ending {
    fn stop(reason: &str) -> Self {
        Ending::Stop { reason: reason.into(), members: String::new() }
    }
}

/// What follows the answer.
#[derive(Default)]
struct Afterwards {
    updates: Vec<String>,
    exit: Option<i32>,
}

/// A running turn.
pub struct Run<'a> {
    agent: &'a Agent,
    turn: &'a Arc<Turn>,
    session: &'a str,
    prompt: &'a str,
    /// What was said in earlier turns.
    past: usize,
    /// All text of this turn.
    said: String,
    /// Whether the client still adds text to the same message, and there is some.
    in_message: bool,
    message_ids: bool,
    messages: u32,
    tools: u32,
    afterwards: Afterwards,
}

/// Runs one turn and answers its prompt.
pub fn run_turn(agent: &Agent, turn: &Arc<Turn>, session: &str, id: &Value, prompt: &str) {
    let past = agent
        .sessions
        .get(session)
        .map_or(0, |session| session.history.iter().filter(|said| said.speaker == Speaker::User).count());
    let mut run = Run {
        agent,
        turn,
        session,
        prompt,
        past,
        said: String::new(),
        in_message: false,
        message_ids: false,
        messages: 0,
        tools: 0,
        afterwards: Afterwards::default(),
    };
    let ending = match agent.sessions.remember(session, Speaker::User, prompt) {
        Ok(()) => run.play_prompt(),
        Err(error) => Ending::Error(RpcError::new(INTERNAL_ERROR, format!("session: {error}"))),
    };
    run.answer(id, ending);
}

impl Run<'_> {
    fn play_prompt(&mut self) -> Ending {
        let steps = match script::parse(self.prompt) {
            Ok(Some(steps)) => steps,
            Ok(None) => self.agent.settings.script.clone().unwrap_or_else(|| vec![Step::Echo]),
            Err(error) => return Ending::Error(RpcError::new(INVALID_PARAMS, error.to_string())),
        };
        if let Err(ending) = self.play(&steps) {
            return ending;
        }
        // A text that was accepted as steered belongs to this turn, also when it came with the last step.
        while let Some(text) = self.turn.end() {
            if let Err(ending) = self.steered(&text) {
                return ending;
            }
        }
        Ending::stop("end_turn")
    }

    /// Plays steps until one of them ends the turn.
    fn play(&mut self, steps: &[Step]) -> Result<(), Ending> {
        if steps.contains(&Step::Hang(true)) {
            // From the first step on: a cancel that comes before the hang must not spare the client the hang.
            self.turn.go_deaf();
        }
        for step in steps {
            if self.turn.is_cancelled() {
                return Err(self.cancelled());
            }
            while let Some(text) = self.turn.take_steered() {
                self.steered(&text)?;
            }
            self.step(step)?;
        }
        if self.turn.is_cancelled() { Err(self.cancelled()) } else { Ok(()) }
    }

    /// A steered text: its steps, or an answer that shows it has arrived.
    fn steered(&mut self, text: &str) -> Result<(), Ending> {
        match script::parse(text) {
            Ok(Some(steps)) => self.play(&steps),
            Ok(None) => {
                self.fact(&format!("steered: {text}"));
                Ok(())
            }
            Err(error) => Err(Ending::Error(RpcError::new(INVALID_PARAMS, error.to_string()))),
        }
    }

    fn cancelled(&self) -> Ending {
        for fault in self.agent.settings.faults(Stage::Cancel) {
            match fault {
                Fault::Answer(reason) => return Ending::stop(reason),
                Fault::Error(error) => return Ending::Error(error.clone()),
                _ => {}
            }
        }
        Ending::stop("cancelled")
    }

    /// Waits; a steered text is played meanwhile. `time` `None` is forever.
    fn wait(&mut self, time: Option<Duration>, mut ready: impl FnMut() -> bool) -> Result<(), Ending> {
        let end = time.map(|time| std::time::Instant::now() + time);
        loop {
            let left = end.map(|end| end.saturating_duration_since(std::time::Instant::now()));
            match self.turn.wait(left, &mut ready) {
                Wake::Ready => return Ok(()),
                Wake::Cancelled => return Err(self.cancelled()),
                Wake::Steered(text) => self.steered(&text)?,
            }
        }
    }

    /// Waits for something that blocks, without ceasing to notice a cancel.
    fn wait_for<T: Send + 'static>(&mut self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Ending> {
        let (sender, receiver) = std::sync::mpsc::channel();
        let turn = Arc::clone(self.turn);
        thread::spawn(move || {
            let _ = sender.send(work());
            turn.nudge();
        });
        let mut value = None;
        self.wait(None, || {
            value = receiver.try_recv().ok();
            value.is_some()
        })?;
        value.ok_or_else(|| Ending::Error(RpcError::new(INTERNAL_ERROR, "waited for nothing")))
    }

    fn step(&mut self, step: &Step) -> Result<(), Ending> {
        match step {
            Step::Stop(reason, members) => {
                return Err(Ending::Stop { reason: reason.clone(), members: members.clone() });
            }
            Step::Error(code, text) => return Err(Ending::Error(RpcError::new(*code, text))),
            Step::Crash(code) => self.agent.exit(*code),
            Step::Kill(signal) => kill(*signal),
            Step::ExitAfter(code) => self.afterwards.exit = Some(*code),
            Step::Hang(false) => self.wait(None, || false)?,
            // Deaf since the script was read, but a steered `!stop` still ends it.
            Step::Hang(true) => self.wait(None, || false)?,
            Step::UpdateAfterResponse(text) => self.afterwards.updates.push(text.clone()),
            Step::NoMessage => {}

            Step::Sleep(time) => self.wait(Some(*time), || false)?,
            Step::Gate(name) => {
                let (reporter, name) = (Arc::clone(&self.agent.reporter), name.clone());
                let passed = self.wait_for(move || reporter.pass_gate(&name))?;
                passed.map_err(|reason| Ending::Error(RpcError::new(INTERNAL_ERROR, reason)))?;
            }
            Step::AwaitSteer => match self.turn.wait(None, || false) {
                Wake::Steered(text) => self.steered(&text)?,
                Wake::Cancelled | Wake::Ready => return Err(self.cancelled()),
            },

            Step::Say(text) => self.say(text),
            Step::Echo => self.say(&format!("echo: {}", self.prompt)),
            Step::Chunks(count, text) => self.chunks(*count, text),
            Step::Stream(count, pause, text) => self.stream(*count, *pause, text)?,
            Step::Fill(bytes, unit) => self.fill(*bytes, unit),
            Step::Think(text) => self.think(text),
            Step::MessageIds(on) => self.message_ids = *on,
            Step::Image(bytes) => self.media("image", "image/png", *bytes),
            Step::Audio(bytes) => self.media("audio", "audio/wav", *bytes),
            Step::Resource(uri, text) => self.resource(uri, text),
            Step::Link(uri) => self.link(uri),
            Step::Plan(entries) => self.plan(entries),
            Step::Tool(name, status) => self.tool(name, *status),
            Step::Usage(members) => self.usage(members),
            Step::Mode(mode) => self.mode(mode),
            Step::Title(text) => self.update(json!({"sessionUpdate": "session_info_update", "title": text})),
            Step::Commands => self.update(messages::commands()),
            Step::OtherSessionId(id) => {
                self.agent.sessions.change(self.session, |session| session.updates_as = Some(id.clone()));
            }

            Step::Permission(permission) => self.permission(permission),
            Step::UnknownMethod(method, params) => self.unknown_method(method, params)?,

            Step::Garbage(lines) => noise::garbage(&self.agent.wire, *lines),
            Step::BigLine(mib, kind) => self.big_line(*mib, *kind),
            Step::Flood(mib) => noise::flood(&self.agent.wire, *mib),
            Step::InvalidUtf8(in_text) => self.invalid_utf8(*in_text),
            Step::UnknownUpdate => self.update(json!({"sessionUpdate": "scripted_unknown", "detail": [1, 2, 3]})),
            Step::UnknownContent => {
                self.message(json!({"type": "hologram", "points": 3}));
            }
            Step::UnknownNotification => self.agent.wire.notify("scripted/unknown", json!({"session": self.session})),
            Step::Raw(text) => self.agent.wire.line(&text.replace("{session}", self.session)),
            Step::Stderr(text) => eprintln!("{text}"),
            Step::StderrFill(bytes) => eprintln!("{}", script::fill(*bytes, "stderr ")),
            Step::CloseStdout => noise::close_stdout().map_err(failed)?,

            Step::Cwd => self.cwd(),
            Step::Env(name) => self.env(name.as_deref()),
            Step::Argv => self.fact(&json!(std::env::args().collect::<Vec<_>>()).to_string()),
            Step::Ids => self.fact(&surroundings::ids().to_string()),
            Step::Read(path) => self.read(path),
            Step::Write(path, text) => std::fs::write(path, text).map_err(failed)?,
            Step::WriteNoise(path, mebibytes) => surroundings::write_noise(path, *mebibytes).map_err(failed)?,
            Step::Session => self.opened(),
            Step::Client => self.fact(&self.agent.client().unwrap_or_default().to_string()),
            Step::History => self.fact(&format!("turns before: {}", self.past)),

            Step::Stray(stray) => processes::leave_behind(stray, &self.agent.reporter).map_err(failed)?,
            Step::Stamp(every, address) => {
                let reporter = match address {
                    None => Arc::clone(&self.agent.reporter),
                    Some(address) => {
                        let tag = self.agent.settings.tag.clone();
                        Arc::new(Reporter::new(Some(address.clone()), tag))
                    }
                };
                processes::stamp(reporter, *every);
            }
            Step::Memory(mib) => processes::take_memory(*mib),
            Step::Report(text) => self.agent.reporter.report("report", json!({"text": text})),
            Step::Repeat(times, step) => {
                for _ in 0..*times {
                    self.play(std::slice::from_ref(step))?;
                }
            }
        }
        Ok(())
    }

    /// Sends an update of this session.
    fn update(&self, update: Value) {
        self.agent.update(self.session, update);
    }

    fn answer(self, id: &Value, ending: Ending) {
        let complete = matches!(&ending, Ending::Stop { reason, .. } if reason != "cancelled");
        let mut ending = ending;
        // As published agents do it: the part of an answer that was cancelled is not remembered.
        if complete
            && !self.said.is_empty()
            && let Err(error) = self.agent.sessions.remember(self.session, Speaker::Agent, &self.said)
        {
            ending = Ending::Error(RpcError::new(INTERNAL_ERROR, format!("session: {error}")));
        }
        // Ends it for steering, whatever has not been taken by now.
        while self.turn.end().is_some() {}
        // Before the answer: the client may send its next prompt the moment it reads it.
        self.agent.finish_turn(self.session);
        match ending {
            Ending::Error(error) => self.agent.wire.respond(id, &Err(error)),
            Ending::Stop { reason, members } => {
                let more = if members.is_empty() { String::new() } else { format!(",{members}") };
                self.agent.wire.respond_raw(id, &format!(r#"{{"stopReason":{}{more}}}"#, json!(reason)));
            }
        }
        for text in &self.afterwards.updates {
            self.update(json!({"sessionUpdate": "usage_update", "used": 1, "size": 1000}));
            self.update(json!({"sessionUpdate": "session_info_update", "title": "after the answer"}));
            self.update(messages::commands());
            if !text.is_empty() {
                self.update(json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}));
            }
        }
        if let Some(code) = self.afterwards.exit {
            self.agent.exit(code);
        }
    }
}

/// Ends the process by a signal. One that does not end it, and SIGKILL of process 1, fall back to an exit code.
fn kill(signal: Signal) -> ! {
    processes::die_by(signal)
}

fn failed(error: impl std::fmt::Display) -> Ending {
    Ending::Error(RpcError::new(INTERNAL_ERROR, error.to_string()))
}
