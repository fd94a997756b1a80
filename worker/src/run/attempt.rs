//! An attempt: what is known, and the one loop that everything comes through.

use super::{
    agent::{AgentEvent, RunningAgent},
    keep::State,
    share::Share,
    upload::{self, Upload},
};
use crate::{
    config::Settings,
    inbox::{Inbox, Turn},
    ledger::Ledger,
    link::{Link, LinkEvent},
    outcome::{Circumstances, End, NotResumable, Stage, StopCause},
    output::Output,
    process::{Exit, Memory, Reaper},
    transcript::{Speaker, Transcript},
};
use anyhow::Context;
use std::{
    collections::HashMap,
    ffi::OsString,
    path::Path,
    time::{Duration, SystemTime},
};
use subagent_link::{Assignment, MAX_INLINE_RESULT_BYTES, MAX_RESULT_BYTES, PermissionMode, RefusalReason, StopGraces};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    time::{Instant, sleep_until},
};

/// A stage before the turn that takes longer than this is reported, so that a deadline can name it. Agents take up to
/// five seconds for `initialize` and `session/new`, and a report costs a write to the API.
const SLOW_STAGE: Duration = Duration::from_secs(5);

/// Why the work does not go on.
#[derive(Debug)]
pub enum Halt {
    /// The attempt is over, like this.
    End(End),
    /// The gateway refused this worker for good: nothing it says will be heard.
    Refused,
}

/// What [`Attempt::next`] came back with.
#[derive(Debug)]
pub enum Wake {
    /// The agent did something.
    Agent(AgentEvent),
    /// The gateway or a signal changed what is known.
    News,
    /// The time given is over.
    Deadline,
}

/// One attempt.
#[derive(Debug)]
pub struct Attempt {
    pub(super) settings: Settings,
    pub(super) transcript: Transcript,
    pub(super) ledger: Ledger,
    pub(super) link: Link,
    pub(super) reaper: Reaper,
    pub(super) agent: Option<RunningAgent>,
    /// Came and was not taken yet.
    pub(super) assignment: Option<Box<Assignment>>,
    has_assignment: bool,
    pub(super) permission: PermissionMode,
    pub(super) stop_graces: StopGraces,
    terminate: Signal,
    interrupt: Signal,
    /// Somebody wants the attempt to end.
    pub(super) stop: Option<StopCause>,
    /// When SIGTERM came, if it did.
    pub(super) terminated_at: Option<Instant>,
    refused: Option<RefusalReason>,
    /// Why there is no connection, the latest cause; absent while there is one.
    pub(super) last_trouble: Option<String>,
    stage: Stage,
    /// When a slow stage is to be reported; `None` once it was.
    slow_at: Option<Instant>,
    pub(super) output: Output,
    /// The newest gateway takes the outputs of turns. Who stores one hears of a change.
    pub(super) takes_outputs: watch::Sender<bool>,
    /// The end that waits until its result is stored.
    pub(super) upload: Option<Upload>,
    /// What the other tasks of the thread are owed.
    share: Share,
    /// Number of the prompt's request, while its response is awaited.
    pub(super) open_prompt: Option<u64>,
    /// Messages of an activation.
    pub(super) inbox: Inbox,
    /// The turn of an activation.
    pub(super) turn: Turn,
    /// The session files of a continuable child.
    pub(super) state: Option<State>,
    /// The agent ended while nobody waited for anything of it; how, unless it only closed its output.
    pub(super) gone: Option<Option<Exit>>,
    /// Placements of steering messages by the number of their request.
    pub(super) steers: HashMap<u64, i64>,
    /// The agent's session.
    pub(super) session_id: Option<String>,
    /// It is one of an earlier pod: no other may take its place.
    pub(super) is_continued: bool,
    /// Updates of the session's past so far, while it is being loaded.
    pub(super) replayed: Option<u64>,
    /// The agent spoke of another session than the one it continues.
    pub(super) has_strayed: bool,
    pub(super) circumstances: Circumstances,
    pub(super) memory: Memory,
    /// Titles of tool calls, for updates that carry only the id.
    pub(super) tools: HashMap<String, super::narrate::Told>,
}

impl Attempt {
    /// Begins: handlers, transcript, link.
    ///
    /// # Errors
    /// When a signal handler cannot be installed.
    pub fn begin(settings: Settings) -> anyhow::Result<Self> {
        let worker = &settings.worker;
        let opening = format!(
            "run {}/{}, attempt {}, connecting to {}",
            worker.namespace, worker.run, worker.attempt, worker.gateway
        );
        Self::new(settings, &opening, |settings| Link::start(settings.clone()))
    }

    /// Begins a probe: the same without anybody to talk to but the agent.
    ///
    /// # Errors
    /// When a signal handler cannot be installed.
    pub fn begin_probe(settings: Settings) -> anyhow::Result<Self> {
        let worker = &settings.worker;
        let opening = format!("provider {}/{}, probe {}", worker.namespace, worker.run, worker.attempt);
        Self::new(settings, &opening, |_| Link::nowhere())
    }

    fn new(settings: Settings, opening: &str, link: impl FnOnce(&Settings) -> Link) -> anyhow::Result<Self> {
        let terminate = signal(SignalKind::terminate()).context("handling SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("handling SIGINT")?;
        let reaper = Reaper::start().context("handling SIGCHLD")?;
        let transcript = Transcript::on_stdout();
        transcript.line(Speaker::Worker, opening);
        Ok(Self {
            link: link(&settings),
            transcript,
            ledger: Ledger::new(),
            reaper,
            agent: None,
            assignment: None,
            has_assignment: false,
            permission: PermissionMode::default(),
            stop_graces: settings.worker.stop,
            terminate,
            interrupt,
            stop: None,
            terminated_at: None,
            refused: None,
            last_trouble: None,
            stage: Stage::Connecting,
            slow_at: None,
            output: Output::new(MAX_INLINE_RESULT_BYTES, false),
            takes_outputs: watch::Sender::new(false),
            upload: None,
            share: Share::default(),
            open_prompt: None,
            inbox: Inbox::default(),
            turn: Turn::None,
            state: None,
            gone: None,
            steers: HashMap::new(),
            session_id: None,
            is_continued: false,
            replayed: None,
            has_strayed: false,
            circumstances: Circumstances::default(),
            memory: Memory::watch(),
            tools: HashMap::new(),
            settings,
        })
    }

    /// Bounds the result (pitfall T3). A gateway that takes no uploads gets what fits a report.
    pub fn limit_result(&mut self, assignment: &Assignment) {
        let most = if assignment.uploads { MAX_RESULT_BYTES } else { MAX_INLINE_RESULT_BYTES };
        let limit = usize::try_from(assignment.max_result_bytes).unwrap_or(0).min(most);
        self.output = Output::new(limit, assignment.uploads);
    }

    /// Enters a stage.
    pub fn enter(&mut self, stage: Stage) {
        self.stage = stage;
        self.ledger.enter(stage.name());
        self.slow_at = match stage {
            Stage::Connecting | Stage::Prompt | Stage::Idle | Stage::Stopping => None,
            _ => Some(Instant::now() + SLOW_STAGE),
        };
    }

    /// The stage.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Starts the agent.
    ///
    /// # Errors
    /// [`End::NotStarted`].
    pub fn start_agent(&mut self, argv: &[OsString]) -> Result<(), Halt> {
        let words: Vec<_> = argv.iter().map(|word| word.to_string_lossy()).collect();
        self.say(&format!("starting {} in {}", words.join(" "), self.settings.worker.cwd));
        let cwd = Path::new(&self.settings.worker.cwd);
        let agent = RunningAgent::start(argv, cwd, &self.settings.home_dir, &self.reaper, &self.transcript)
            .map_err(|fault| Halt::End(End::NotStarted(fault)))?;
        self.agent = Some(agent);
        Ok(())
    }

    /// A line of the worker's own in the transcript.
    pub fn say(&self, text: &str) {
        self.transcript.line(Speaker::Worker, text);
    }

    /// Whether the work goes on: not when somebody wants it to end.
    ///
    /// # Errors
    /// [`Halt`] when it does not.
    pub fn go_on(&self, stage: Stage, prompted: bool) -> Result<(), Halt> {
        if self.refused.is_some() {
            return Err(Halt::Refused);
        }
        // R8: whatever came of it is not the child's.
        if self.has_strayed {
            return Err(Halt::End(End::NotResumable(NotResumable::OtherSession)));
        }
        match self.stop {
            Some(cause) => Err(Halt::End(End::Stopped { cause, stage, prompted })),
            None => Ok(()),
        }
    }

    /// True when the gateway refused for good.
    pub fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// Waits for the next thing that happens, at most until `deadline`. Reports what is due on the way.
    pub async fn next(&mut self, deadline: Option<Instant>) -> Wake {
        self.share.give().await;
        loop {
            self.link.post(&self.ledger);
            let flush_at = self.ledger.flush_at().map(Instant::from_std);
            let (never, slow_at) = (Instant::now() + Duration::from_secs(86_400), self.slow_at);
            let (agent, upload) = (&mut self.agent, &mut self.upload);
            tokio::select! {
                // In this order: a cancel and a SIGTERM are few and must not wait behind an agent that talks without
                // pause.
                biased;
                event = self.link.next() => return self.hear(event),
                _ = self.terminate.recv() => return self.terminate(),
                _ = self.interrupt.recv() => return self.terminate(),
                event = upload::next_of(upload) => return self.hear_upload(event),
                () = sleep_until(deadline.unwrap_or(never)), if deadline.is_some() => return Wake::Deadline,
                () = sleep_until(flush_at.unwrap_or(never)), if flush_at.is_some() => self.ledger.publish(now()),
                () = sleep_until(slow_at.unwrap_or(never)), if slow_at.is_some() => {
                    self.slow_at = None;
                    self.say(&format!("still in stage {}", self.stage.name()));
                    self.ledger.publish(now());
                }
                event = next_of(agent) => {
                    self.share.used();
                    return Wake::Agent(event);
                }
            }
        }
    }

    fn terminate(&mut self) -> Wake {
        if self.terminated_at.is_none() {
            self.say("SIGTERM: the pod is being deleted");
            self.terminated_at = Some(Instant::now());
            self.stop.get_or_insert(StopCause::Terminated);
        }
        Wake::News
    }

    fn hear(&mut self, event: LinkEvent) -> Wake {
        match event {
            LinkEvent::Connected { turn_outputs } => {
                self.takes_outputs.send_replace(turn_outputs);
                self.last_trouble = None;
                self.say("connected to the gateway");
            }
            LinkEvent::Trouble(trouble) => {
                let trouble = format!("no connection to the gateway: {trouble}");
                self.say(&trouble);
                self.last_trouble = Some(trouble);
            }
            // A worker that has one keeps it: it may have begun already.
            LinkEvent::Assignment(assignment) if !self.has_assignment => {
                self.has_assignment = true;
                self.assignment = Some(assignment);
            }
            LinkEvent::Assignment(_) => {}
            LinkEvent::Acknowledged(seq) => self.ledger.acknowledge(seq),
            LinkEvent::Cancel(reason) => {
                // Said again at every connection. A cancel that comes after SIGTERM is the better reason.
                if !matches!(self.stop, Some(StopCause::Cancel(_))) {
                    self.say(reason.words().trim_end_matches(','));
                    self.stop = Some(StopCause::Cancel(reason));
                }
            }
            LinkEvent::Message(message) => self.take_message(*message),
            LinkEvent::Listed(placements) => {
                self.inbox.list(&placements);
                self.ledger.set_messages(self.inbox.told());
            }
            // A one-shot run has one prompt and ends by itself.
            LinkEvent::Close => self.inbox.close(),
            LinkEvent::Refused(reason) => {
                let trouble = format!("the gateway refused this worker: {reason:?}");
                self.say(&trouble);
                self.last_trouble = Some(trouble);
                self.refused = Some(reason);
            }
        }
        Wake::News
    }
}

async fn next_of(agent: &mut Option<RunningAgent>) -> AgentEvent {
    match agent {
        Some(agent) => agent.next().await,
        None => std::future::pending().await,
    }
}

/// The time for the ledger.
pub fn now() -> std::time::Instant {
    std::time::Instant::now()
}

/// The time as the API writes it.
pub fn timestamp() -> String {
    crate::clock::rfc3339(SystemTime::now())
}
