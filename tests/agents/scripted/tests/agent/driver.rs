//! The client's side: starts the agent, talks to it, and shows everything it said when something is missing.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use scripted_agent::collector::{Collector, Event};
use serde_json::{Value, json};

/// Far longer than anything here takes on a busy machine; only a failing test waits so long.
pub const SOON: Duration = Duration::from_secs(30);

/// One line of the agent's stdout, without its end.
pub type Line = Vec<u8>;

/// A running agent and everything it said so far.
pub struct Driver {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Line>,
    stderr: Option<thread::JoinHandle<String>>,
    /// All lines so far.
    pub seen: Vec<Line>,
    /// Where the agent reports to.
    pub collector: Collector,
    /// The open session.
    pub session: String,
    next: i64,
}

/// What a prompt led to.
pub struct Turn {
    /// The whole answer.
    pub answer: Value,
    /// Every update before it, in order.
    pub updates: Vec<Value>,
}

impl Turn {
    /// The stop reason, or the error code as text.
    pub fn end(&self) -> String {
        match &self.answer["error"]["code"] {
            Value::Null => self.answer["result"]["stopReason"].as_str().unwrap_or("nothing").to_string(),
            code => code.to_string(),
        }
    }

    /// All text of messages.
    pub fn text(&self) -> String {
        self.of("agent_message_chunk").filter_map(|update| update["content"]["text"].as_str()).collect()
    }

    /// The updates of a kind.
    pub fn of(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.updates.iter().map(|params| &params["update"]).filter(move |update| update["sessionUpdate"] == kind)
    }
}

impl Driver {
    /// Starts an agent with these variables and no others.
    pub fn start(variables: &[(&str, &str)]) -> Self {
        let collector = Collector::start("127.0.0.1:0").expect("a port");
        let mut command = Command::new(env!("CARGO_BIN_EXE_scripted-agent"));
        command.env_clear().env("SCRIPTED_AGENT_COLLECTOR", collector.address().to_string());
        command.envs(variables.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the agent starts");
        let stdout = child.stdout.take().expect("a pipe");
        let mut errors = child.stderr.take().expect("a pipe");
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).split(b'\n') {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let stderr = thread::spawn(move || {
            let mut text = Vec::new();
            let _ = errors.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Self {
            stdin: child.stdin.take(),
            child,
            lines,
            stderr: Some(stderr),
            seen: Vec::new(),
            collector,
            session: String::new(),
            next: 0,
        }
    }

    /// An agent with an open session.
    pub fn open(variables: &[(&str, &str)]) -> Self {
        let mut driver = Self::start(variables);
        driver.initialize();
        driver.new_session();
        driver
    }

    pub fn initialize(&mut self) -> Value {
        self.call("initialize", json!({"protocolVersion": 1, "clientInfo": {"name": "test", "version": "1"}}))
    }

    pub fn new_session(&mut self) -> Value {
        let answer = self.call("session/new", json!({"cwd": "/", "mcpServers": []}));
        self.session = answer["result"]["sessionId"].as_str().unwrap_or_default().into();
        answer
    }

    /// Sends a line as it is.
    pub fn send_line(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("stdin is open");
        writeln!(stdin, "{line}").expect("the agent reads");
    }

    /// Sends a request and returns its id.
    pub fn send(&mut self, method: &str, params: Value) -> i64 {
        let id = self.next;
        self.next += 1;
        self.send_line(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string());
        id
    }

    /// Sends a request and waits for its answer.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params);
        self.answer(id)
    }

    /// Waits for the answer to a request.
    pub fn answer(&mut self, id: i64) -> Value {
        let wanted = |message: &Value| message["id"] == id && message["method"].is_null();
        let early = self.seen.iter().filter_map(|line| serde_json::from_slice(line).ok()).find(wanted);
        if let Some(message) = early {
            return message;
        }
        self.until("an answer", |message| (message["id"] == id && message["method"].is_null()).then(|| message.clone()))
    }

    /// Sends a prompt and returns its id.
    pub fn send_prompt(&mut self, text: &str) -> i64 {
        let session = self.session.clone();
        self.send("session/prompt", json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]}))
    }

    /// A whole turn.
    pub fn prompt(&mut self, text: &str) -> Turn {
        let from = self.seen.len();
        let id = self.send_prompt(text);
        self.finish(id, from)
    }

    /// The rest of a turn; its updates are those since line `from`.
    pub fn finish(&mut self, id: i64, from: usize) -> Turn {
        let answer = self.answer(id);
        let updates = self.seen[from..]
            .iter()
            .filter_map(|line| serde_json::from_slice::<Value>(line).ok())
            .filter(|message| message["method"] == "session/update")
            .map(|message| message["params"].clone())
            .collect();
        Turn { answer, updates }
    }

    /// Waits for an update for which `wanted` is true.
    pub fn update(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.until(what, |message| {
            let update = &message["params"]["update"];
            (message["method"] == "session/update" && wanted(update)).then(|| update.clone())
        })
    }

    /// The first report of a kind, as soon as it is there.
    pub fn reported(&self, kind: &str) -> Event {
        self.reported_times(kind, 1).remove(0)
    }

    /// The reports of a kind, as soon as there are so many.
    pub fn reported_times(&self, kind: &str, times: usize) -> Vec<Event> {
        let found = self.collector.wait_for(SOON, |events| {
            let found: Vec<_> = events.iter().filter(|event| event.kind == kind).cloned().collect();
            (found.len() >= times).then_some(found)
        });
        found.unwrap_or_else(|missing| panic!("{kind}: {missing}"))
    }

    pub fn cancel(&mut self) {
        let session = self.session.clone();
        self.send_line(
            &json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}).to_string(),
        );
    }

    pub fn steer(&mut self, text: &str) -> Value {
        let session = self.session.clone();
        self.call(
            "_session/steering",
            json!({
                "sessionId": session, "prompt": [{"type": "text", "text": text}],
                "_meta": {"steering": {"idleBehavior": "promptRequired"}},
            }),
        )
    }

    /// Reads on until a message is what is wanted.
    pub fn until<T>(&mut self, what: &str, wanted: impl Fn(&Value) -> Option<T>) -> T {
        loop {
            let line = self.line().unwrap_or_else(|reason| panic!("{reason} before {what}\n{}", self.dump()));
            if let Some(value) = serde_json::from_slice(&line).ok().and_then(|message| wanted(&message)) {
                return value;
            }
        }
    }

    /// The next line.
    pub fn line(&mut self) -> Result<Line, &'static str> {
        match self.lines.recv_timeout(SOON) {
            Ok(line) => {
                self.seen.push(line.clone());
                Ok(line)
            }
            Err(RecvTimeoutError::Timeout) => Err("no more lines"),
            Err(RecvTimeoutError::Disconnected) => Err("stdout ended"),
        }
    }

    /// Reads until stdout ends.
    pub fn rest(&mut self) {
        while self.line().is_ok() {}
    }

    pub fn pid(&self) -> nix::unistd::Pid {
        nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"))
    }

    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Waits until the process has ended.
    pub fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + SOON;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(Instant::now() < deadline, "the agent still lives\n{}", self.dump());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether the process still runs now.
    pub fn lives(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    /// The signal that ended the process.
    pub fn killed_by(&mut self) -> Option<i32> {
        self.ended().signal()
    }

    /// Ends the process and returns its stderr.
    pub fn stderr(mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.stderr.take().map(|reading| reading.join().expect("no panic")).unwrap_or_default()
    }

    fn dump(&self) -> String {
        let mut text = format!("the agent said {} lines:\n", self.seen.len());
        for line in self.seen.iter().rev().take(20).rev() {
            text.extend(String::from_utf8_lossy(line).chars().take(300));
            text.push('\n');
        }
        for event in self.collector.all().iter().rev().take(20).rev() {
            text.extend(event.line().chars().take(300));
            text.push('\n');
        }
        text
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
