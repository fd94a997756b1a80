//! One operator process, as far as one can be had inside a test: a runtime of its own that can be shut down in good order
//! or dropped in the middle of everything.

use crate::{lagging, rights::Rights};
use clap::Parser;
use kube::Client;
use std::{
    io::Write,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};
use subagent_operator::{process, settings::Settings};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::{Builder, Runtime},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

/// Ports for listeners, below the range the kernel gives to outgoing connections: an operator that starts again must get
/// the same one.
static NEXT_PORT: AtomicU16 = AtomicU16::new(0);
const FIRST_PORT: u16 = 25_000;
const PORTS: u16 = 7_000;

/// A port nobody listens on.
pub fn free_port() -> u16 {
    let own = (std::process::id() % 100) as u16 * 64;
    loop {
        let offset = own.wrapping_add(NEXT_PORT.fetch_add(1, Ordering::Relaxed)) % PORTS;
        let port = FIRST_PORT + offset;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// What an operator needs to know.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its identity in the election.
    pub identity: String,
    /// Namespace it watches and lives in.
    pub namespace: String,
    /// Its rights.
    pub rights: Rights,
    /// Where its own gateway listens.
    pub link_port: u16,
    /// Where workers are told to connect: another replica's gateway, or its own.
    pub told_port: u16,
    /// Further arguments.
    pub arguments: Vec<String>,
    /// How late its watches are.
    pub watch_lag: Duration,
    /// Port of this machine under which it finds the API server; none for the API server's own.
    pub api_server: Option<u16>,
}

/// A running operator.
pub struct Replica {
    runtime: Option<Runtime>,
    task: Option<JoinHandle<anyhow::Result<()>>>,
    shutdown: CancellationToken,
    http: SocketAddr,
    log: Log,
    identity: String,
}

impl Replica {
    /// Starts it.
    pub fn start(plan: Plan) -> Self {
        let http = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let own = [
            "subagent-operator".to_owned(),
            format!("--pod-name={}", plan.identity),
            format!("--pod-namespace={}", plan.namespace),
            format!("--watch-namespaces={}", plan.namespace),
            format!("--lease-name={}", plan.rights.release),
            format!("--root-secret={}-gateway-root", plan.rights.release),
            format!("--session-store-config-map={}-session-mark", plan.rights.release),
            format!("--gateway-url=wss://127.0.0.1:{}{}", plan.told_port, subagent_link::LINK_PATH),
            format!("--link-address=127.0.0.1:{}", plan.link_port),
            format!("--http-address={http}"),
        ];
        let settings = Settings::parse_from(own.into_iter().chain(plan.arguments));
        let log = Log::default();
        let lines = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new("info,subagent_operator=debug"))
            .with_ansi(false)
            .with_writer(log.clone())
            .finish();
        let lines = tracing::Dispatch::new(lines);
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(&plan.identity)
            .enable_all()
            // The thread ends with the runtime, and its log with it.
            .on_thread_start(move || std::mem::forget(tracing::dispatcher::set_default(&lines)))
            .build()
            .expect("a runtime");
        let shutdown = CancellationToken::new();
        let (rights, lag, port, token) = (plan.rights, plan.watch_lag, plan.api_server, shutdown.clone());
        let task = runtime.spawn(async move {
            let mut config = rights.config().await;
            if let Some(port) = port {
                config.cluster_url = format!("https://127.0.0.1:{port}").parse().expect("a URL");
            }
            let client =
                if lag.is_zero() { Client::try_from(config).expect("a client") } else { lagging::client(config, lag) };
            let ended = process::run(client, settings, token).await;
            tracing::info!(?ended, "the operator ended");
            ended
        });
        Self { runtime: Some(runtime), task: Some(task), shutdown, http, log, identity: plan.identity }
    }

    /// Ends it as SIGTERM does.
    ///
    /// # Panics
    /// When it ends with an error.
    pub async fn stop(mut self) {
        self.shutdown.cancel();
        let task = self.task.take().expect("it runs");
        task.await.expect("no panic").expect("an end in good order");
        self.end_runtime().await;
    }

    /// Waits until it ends by itself, and says why it did.
    ///
    /// # Panics
    /// When it goes on, or ends without an error.
    pub async fn ends(mut self, within: Duration) -> String {
        let task = self.task.take().expect("it runs");
        let ended = tokio::time::timeout(within, task).await.expect("it goes on").expect("no panic");
        let error = ended.expect_err("it must not end in good order");
        self.end_runtime().await;
        format!("{error:#}")
    }

    /// Ends it as SIGKILL does: nothing is released, nothing is said.
    pub async fn kill(mut self) {
        self.end_runtime().await;
    }

    async fn end_runtime(&mut self) {
        let runtime = self.runtime.take().expect("it runs");
        let ending = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(Duration::from_secs(10)));
        ending.await.expect("the runtime ends");
    }

    /// Everything it logged so far.
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// Body of an answer of its HTTP server, when the status is 200.
    ///
    /// # Errors
    /// What came instead.
    pub async fn get(&self, path: &str) -> Result<String, String> {
        let ask = async {
            let mut stream = TcpStream::connect(self.http).await?;
            stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            std::io::Result::Ok(answer)
        };
        let answer = ask.await.map_err(|error| error.to_string())?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        if head.contains(" 200 ") { Ok(body.to_owned()) } else { Err(answer) }
    }

    /// Reconciles of runs so far, whatever their outcome.
    pub async fn reconciles(&self) -> u64 {
        let metrics = self.get("/metrics").await.expect("metrics");
        let lines = metrics.lines().filter(|line| line.starts_with("subagents_reconciles_total{"));
        let runs = lines.filter(|line| line.contains(r#"controller="run""#));
        runs.map(|line| line.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok()).expect("a count")).sum()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of operator {}\n{}", self.identity, self.log.text());
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Log lines in memory.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("the log")).into_owned()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("the log").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}
