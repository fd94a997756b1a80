//! Telling the collector what happens in the agent, also when the agent's own client never hears of it.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

/// How long one attempt to connect may take; a collector in the same cluster answers within milliseconds.
const CONNECT: Duration = Duration::from_secs(1);
/// How long a report that a test counts on is tried again: a pod's network rules may come up after its processes.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two attempts.
const RETRY: Duration = Duration::from_millis(50);

/// A connection to the collector, or none: then every report goes nowhere.
pub struct Reporter {
    address: Option<String>,
    tag: Option<String>,
    stream: Mutex<Option<TcpStream>>,
}

impl Reporter {
    /// A reporter for that address; it connects with the first report.
    #[must_use]
    pub fn new(address: Option<String>, tag: Option<String>) -> Self {
        Self { address, tag, stream: Mutex::new(None) }
    }

    /// The address it reports to.
    #[must_use]
    pub fn address(&self) -> Option<&str> {
        self.address.as_deref()
    }

    /// What stands in every report of this run.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// Reports and does not return before the line is on its way, so that what comes next may be the end of the
    /// process. Gives up after five seconds, and says so on stderr.
    pub fn report(&self, kind: &str, members: Value) {
        self.send(kind, members, PATIENCE);
    }

    /// Reports if that works at once; for stamps, of which the next one comes soon, and for signals, which must not be
    /// held up.
    pub fn try_report(&self, kind: &str, members: Value) {
        self.send(kind, members, Duration::ZERO);
    }

    fn send(&self, kind: &str, members: Value, patience: Duration) {
        let Some(address) = &self.address else { return };
        let line = self.line(kind, members);
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        loop {
            if stream.is_none() {
                *stream = connect(address).ok();
            }
            if let Some(open) = stream.as_mut() {
                if open.write_all(line.as_bytes()).is_ok() {
                    return;
                }
                *stream = None;
            }
            if start.elapsed() >= patience {
                if patience > Duration::ZERO {
                    eprintln!("scripted-agent: no collector at {address}: lost {kind}");
                }
                return;
            }
            thread::sleep(RETRY);
        }
    }

    fn line(&self, kind: &str, members: Value) -> String {
        let mut report = json!({"kind": kind, "pid": std::process::id(), "time_ms": now_ms()});
        if let Some(tag) = &self.tag {
            report["tag"] = json!(tag);
        }
        if let Value::Object(members) = members {
            for (name, value) in members {
                report[name] = value;
            }
        }
        format!("{report}\n")
    }

    /// Asks for a gate and blocks until the collector opens it.
    ///
    /// # Errors
    /// When there is no collector, or it goes away before it opened the gate.
    pub fn pass_gate(&self, name: &str) -> Result<(), String> {
        let address = self.address.as_ref().ok_or("a gate needs SCRIPTED_AGENT_COLLECTOR")?;
        let start = Instant::now();
        let mut stream = loop {
            match connect(address) {
                Ok(stream) => break stream,
                Err(error) if start.elapsed() >= PATIENCE => return Err(format!("no collector at {address}: {error}")),
                Err(_) => thread::sleep(RETRY),
            }
        };
        let line = self.line("gate", json!({"text": name}));
        stream.write_all(line.as_bytes()).map_err(|error| error.to_string())?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).map_err(|error| error.to_string())?;
        if answer.trim() == crate::collector::OPEN { Ok(()) } else { Err(format!("gate {name}: collector is gone")) }
    }
}

fn connect(address: &str) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::other("the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Milliseconds since 1970; zero on a machine whose clock is before that.
#[must_use]
pub fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| u64::try_from(since.as_millis()).ok())
        .unwrap_or_default()
}
