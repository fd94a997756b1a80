//! Starts a worker between a gateway, an agent and a collector.

use crate::gateway::{Gateway, Report, Uploaded};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use scripted_agent::{
    binary,
    collector::{Collector, Event},
};
use std::{
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};
use subagent_link::{
    AcpTransport, Assignment, ContentBlock, Deadlines, PermissionMode, Prompt, StopGraces, WorkerConfig,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::{Child, Command},
    task::JoinHandle,
    time::timeout,
};

/// Long enough for a loaded machine; no test waits for it unless it fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// An attempt to be started.
pub struct Setup {
    pub assignment: Assignment,
    pub cwd: Option<PathBuf>,
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    /// Roots the worker trusts, when not the gateway's.
    pub roots: Option<String>,
    /// Process 1 of a PID namespace of its own, as in a pod.
    pub as_process_1: bool,
}

/// A run with this prompt, graces of 2, 2 and 2 seconds.
pub fn run(prompt: &str) -> Setup {
    Setup {
        assignment: Assignment {
            prompt: Some(Prompt::Inline { content: vec![ContentBlock::Text { text: prompt.to_owned() }] }),
            continuation: None,
            persona: None,
            model: None,
            transport: AcpTransport::default(),
            stop: StopGraces { cancel_grace_seconds: 2, eof_grace_seconds: 2, term_grace_seconds: 2 },
            deadlines: Deadlines::default(),
            max_result_bytes: 4 * 1024 * 1024,
            uploads: true,
        },
        cwd: None,
        argv: vec![binary::scripted_agent().to_str().unwrap().to_owned()],
        env: Vec::new(),
        roots: None,
        as_process_1: false,
    }
}

impl Setup {
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn allow(mut self) -> Self {
        self.assignment.transport.permission = PermissionMode::Allow;
        self
    }

    pub fn graces(mut self, cancel: i64, eof: i64, term: i64) -> Self {
        self.assignment.stop =
            StopGraces { cancel_grace_seconds: cancel, eof_grace_seconds: eof, term_grace_seconds: term };
        self
    }

    pub fn argv(mut self, argv: &[&str]) -> Self {
        self.argv = argv.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Starts gateway, collector and worker.
    pub async fn start(self) -> Attempt {
        let gateway = Gateway::start(self.assignment.clone()).await;
        self.start_with(gateway).await
    }

    /// The same with a gateway that answers uploads with these statuses.
    pub async fn start_with_answers(self, statuses: &[u16]) -> Attempt {
        let gateway = Gateway::start(self.assignment.clone()).await;
        gateway.answer_uploads(statuses);
        self.start_with(gateway).await
    }

    /// Starts the worker against this gateway.
    pub async fn start_with(self, gateway: Gateway) -> Attempt {
        let folder = tempfile::tempdir().unwrap();
        let (link, home, cwd) = (folder.path().join("link"), folder.path().join("home"), folder.path().join("work"));
        for path in [&link, &home, &cwd] {
            std::fs::create_dir(path).unwrap();
        }
        let config = WorkerConfig {
            gateway: gateway.url.clone(),
            namespace: "demo".into(),
            run: "run-1".into(),
            run_uid: "uid-1".into(),
            attempt: 1,
            cwd: self.cwd.unwrap_or(cwd).to_str().unwrap().to_owned(),
            stop: self.assignment.stop,
        };
        std::fs::write(link.join("config.json"), serde_json::to_vec(&config).unwrap()).unwrap();
        std::fs::write(link.join("roots.pem"), self.roots.as_ref().unwrap_or(&gateway.roots)).unwrap();
        std::fs::write(link.join("token"), "token-1\n").unwrap();
        let collector = Collector::start("127.0.0.1:0").unwrap();
        let mut child = command(self.as_process_1)
            .arg("run")
            .arg("--")
            .args(&self.argv)
            .env("SUBAGENT_WORKER_LINK_DIR", &link)
            .env("SUBAGENT_WORKER_HOME_DIR", &home)
            .env("SUBAGENT_WORKER_LOG", "debug")
            .env("KUBERNETES_SERVICE_HOST", "10.0.0.1")
            // It is for this process; the agent refuses knobs it does not have.
            .env_remove("SCRIPTED_AGENT_BINARY")
            .env("SCRIPTED_AGENT_COLLECTOR", collector.address().to_string())
            .envs(self.env)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let transcript = Captured::new(child.stdout.take().unwrap());
        let log = Captured::new(child.stderr.take().unwrap());
        let pid = Pid::from_raw(child.id().unwrap() as i32);
        Attempt { gateway, collector, folder, link, child, pid, transcript, log }
    }
}

/// The worker's binary.
pub fn command(as_process_1: bool) -> Command {
    let worker = env!("CARGO_BIN_EXE_subagent-worker");
    if !as_process_1 {
        return Command::new(worker);
    }
    let mut command = Command::new("unshare");
    if !nix::unistd::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", worker]);
    command
}

/// An attempt that runs.
pub struct Attempt {
    pub gateway: Gateway,
    pub collector: Collector,
    pub folder: TempDir,
    pub link: PathBuf,
    child: Child,
    pub pid: Pid,
    transcript: Captured,
    log: Captured,
}

/// How an attempt ended.
pub struct Ended {
    pub report: Report,
    pub status: ExitStatus,
    pub transcript: String,
    pub prompts: usize,
    /// What the gateway took, in that order.
    pub uploads: Vec<Uploaded>,
}

impl Ended {
    /// Stop reason and reason.
    pub fn words(&self) -> (&str, &str) {
        let end = self.report.end().unwrap();
        (end.stop_reason.as_str(), end.reason.as_str())
    }

    pub fn diagnostic(&self) -> &str {
        self.report.end().unwrap().diagnostic.as_deref().unwrap_or_default()
    }

    pub fn text(&self) -> &str {
        self.report.result.as_ref().and_then(|result| result.text.as_deref()).unwrap_or_default()
    }
}

impl Attempt {
    /// Waits for the final report and the worker's end.
    pub async fn finish(mut self) -> Ended {
        let report = self.gateway.end().await;
        let status = self.exit().await;
        let transcript = self.transcript.all().await;
        let (prompts, uploads) = (self.collector.of_kind("prompt").len(), self.gateway.uploads());
        Ended { report, status, transcript, prompts, uploads }
    }

    /// Waits for the worker's end.
    pub async fn exit(&mut self) -> ExitStatus {
        match timeout(PATIENCE, self.child.wait()).await {
            Ok(status) => status.unwrap(),
            Err(_) => panic!("the worker does not end; {}\n{}", self.gateway.seen(), self.said()),
        }
    }

    /// Sends the worker a signal.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid, signal).unwrap();
    }

    /// Waits for a report of the agent.
    pub fn event(&self, kind: &str, text: &str) -> Event {
        self.collector.wait_for_event(PATIENCE, kind, text).unwrap_or_else(|error| panic!("{error}\n{}", self.said()))
    }

    /// Waits for the first report of that kind.
    pub fn first(&self, kind: &str) -> Event {
        self.collector
            .wait_for(PATIENCE, |events| events.iter().find(|event| event.kind == kind).cloned())
            .unwrap_or_else(|error| panic!("{error}\n{}", self.said()))
    }

    /// Waits until the transcript holds this.
    pub async fn transcript_with(&self, text: &str) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !self.transcript.so_far().contains(text) {
            assert!(tokio::time::Instant::now() < deadline, "{text:?} was not said\n{}", self.said());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Everything the worker wrote so far.
    pub fn said(&self) -> String {
        format!("transcript:\n{}\nlog:\n{}", self.transcript.so_far(), self.log.so_far())
    }
}

/// What a stream said.
struct Captured {
    text: Arc<Mutex<String>>,
    task: JoinHandle<()>,
}

impl Captured {
    fn new(stream: impl AsyncRead + Unpin + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(String::new()));
        let writing = text.clone();
        let task = tokio::spawn(async move {
            let mut lines = BufReader::new(stream).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let mut text = writing.lock().unwrap();
                text.push_str(&line);
                text.push('\n');
            }
        });
        Self { text, task }
    }

    fn so_far(&self) -> String {
        self.text.lock().unwrap().clone()
    }

    async fn all(self) -> String {
        let _ = timeout(PATIENCE, self.task).await;
        let text = self.text.lock().unwrap();
        text.clone()
    }
}
