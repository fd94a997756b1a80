//! The other end of the reports: a TCP server outside the agent's pod that keeps every line with the time it came.
//!
//! What is here can be trusted when the agent's own client cannot: which prompts really arrived, whether anything still
//! runs, when a process was gone (its connection closes). It also holds gates, with which a test makes an agent wait at
//! an exact point without sleeping.

use std::collections::HashSet;
use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::reporter::now_ms;

/// What the collector answers when it opens a gate.
pub const OPEN: &str = "open";

/// One report.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// When it arrived here, in milliseconds since 1970, by this machine's clock.
    pub received_ms: u64,
    /// What it is: `start`, `prompt`, `cancel`, `stamp`, ... or `disconnected`, which the collector adds itself when the
    /// connection of a process closes.
    pub kind: String,
    /// The reporting process, in its own PID namespace.
    pub pid: i64,
    /// When it was sent, in milliseconds since 1970, by the sender's clock.
    pub time_ms: u64,
    /// The run it belongs to, as far as the agent was told (`SCRIPTED_AGENT_TAG`), else empty.
    pub tag: String,
    /// The text of it: the prompt, the steered message, the gate's name; else empty.
    pub text: String,
    /// The whole report.
    pub report: Value,
}

impl Event {
    fn read(line: &str) -> Self {
        let report: Value = serde_json::from_str(line).unwrap_or_else(|_| Value::String(line.to_string()));
        let text = |name: &str| report[name].as_str().unwrap_or_default().to_string();
        Self {
            received_ms: now_ms(),
            kind: text("kind"),
            pid: report["pid"].as_i64().unwrap_or_default(),
            time_ms: report["time_ms"].as_u64().unwrap_or_default(),
            tag: text("tag"),
            text: text("text"),
            report,
        }
    }

    /// The report as one line of JSON, with the time it was received.
    #[must_use]
    pub fn line(&self) -> String {
        let mut report = self.report.clone();
        if let Value::Object(members) = &mut report {
            members.insert("received_ms".into(), self.received_ms.into());
        }
        report.to_string()
    }
}

/// A condition that did not come true in time, with what was seen instead.
#[derive(Debug)]
pub struct NotSeen {
    waited: Duration,
    seen: Vec<Event>,
}

impl fmt::Display for NotSeen {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            "not seen within {:?}; the collector saw {} events, the last of them:",
            self.waited,
            self.seen.len()
        )?;
        for event in self.seen.iter().rev().take(50).rev() {
            writeln!(out, "  {}", event.line())?;
        }
        Ok(())
    }
}

impl std::error::Error for NotSeen {}

#[derive(Default)]
struct Inner {
    events: Vec<Event>,
    opened: HashSet<String>,
}

#[derive(Default)]
struct Shared {
    inner: Mutex<Inner>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, event: Event) {
        self.lock().events.push(event);
        self.changed.notify_all();
    }

    fn open(&self, name: &str) {
        self.lock().opened.insert(name.to_string());
        self.changed.notify_all();
    }
}

/// A running collector. Its threads live until the process ends, which is what a test wants of it.
pub struct Collector {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Collector {
    /// Listens on that address; port 0 takes a free one.
    ///
    /// # Errors
    /// When it cannot listen there.
    pub fn start(address: impl ToSocketAddrs) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&accepting);
                thread::spawn(move || serve(&shared, stream));
            }
        });
        Ok(Self { address, shared })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Everything so far, in the order of arrival.
    #[must_use]
    pub fn all(&self) -> Vec<Event> {
        self.shared.lock().events.clone()
    }

    /// Everything so far of that kind.
    #[must_use]
    pub fn of_kind(&self, kind: &str) -> Vec<Event> {
        self.shared.lock().events.iter().filter(|event| event.kind == kind).cloned().collect()
    }

    /// Waits until the predicate finds something in the events so far, and returns it.
    ///
    /// # Errors
    /// After `within`, with what was seen.
    pub fn wait_for<T>(&self, within: Duration, mut found: impl FnMut(&[Event]) -> Option<T>) -> Result<T, NotSeen> {
        let deadline = Instant::now() + within;
        let mut inner = self.shared.lock();
        loop {
            if let Some(value) = found(&inner.events) {
                return Ok(value);
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                return Err(NotSeen { waited: within, seen: inner.events.clone() });
            };
            inner = self.shared.changed.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for the first event of that kind whose text is that text.
    ///
    /// # Errors
    /// After `within`, with what was seen.
    pub fn wait_for_event(&self, within: Duration, kind: &str, text: &str) -> Result<Event, NotSeen> {
        self.wait_for(within, |events| events.iter().find(|event| event.kind == kind && event.text == text).cloned())
    }

    /// Opens a gate, for who waits there now and who comes later.
    pub fn open_gate(&self, name: &str) {
        self.shared.open(name);
    }

    /// Hands every event on, those so far and all later ones, and never returns.
    pub fn follow(&self, mut take: impl FnMut(&Event)) -> ! {
        let mut next = 0;
        loop {
            let events = {
                let mut inner = self.shared.lock();
                while inner.events.len() == next {
                    inner = self.shared.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
                }
                inner.events[next..].to_vec()
            };
            next += events.len();
            events.iter().for_each(&mut take);
        }
    }
}

fn serve(shared: &Shared, stream: TcpStream) {
    let Ok(mut answers) = stream.try_clone() else { return };
    let mut last: Option<Event> = None;
    for line in BufReader::new(stream).split(b'\n') {
        let Ok(line) = line else { break };
        let event = Event::read(&String::from_utf8_lossy(&line));
        if event.kind == "open-gate" {
            shared.open(&event.text);
        }
        shared.add(event.clone());
        if event.kind == "gate" {
            wait_until_open(shared, &event.text);
            let _ = writeln!(answers, "{OPEN}");
            // A gate has its own connection, whose end says nothing about the process.
            return;
        }
        last = Some(event);
    }
    if let Some(event) = last {
        let report = serde_json::json!({
            "kind": "disconnected", "pid": event.pid, "time_ms": now_ms(), "tag": event.tag,
        });
        shared.add(Event::read(&report.to_string()));
    }
}

fn wait_until_open(shared: &Shared, name: &str) {
    let mut inner = shared.lock();
    while !inner.opened.contains(name) {
        inner = shared.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reporter::Reporter;
    use serde_json::json;

    const SOON: Duration = Duration::from_secs(10);

    #[test]
    fn reports_arrive_in_order_with_their_members() {
        let collector = Collector::start("127.0.0.1:0").expect("a port");
        let reporter = Reporter::new(Some(collector.address().to_string()), Some("run-1".into()));
        reporter.report("start", json!({}));
        reporter.report("prompt", json!({"text": "hello\nthere", "turn": 1}));
        let events = collector.wait_for(SOON, |events| (events.len() == 2).then(|| events.to_vec())).expect("both");
        assert_eq!(events[0].kind, "start");
        assert_eq!((events[1].text.as_str(), events[1].tag.as_str()), ("hello\nthere", "run-1"));
        assert_eq!(events[1].report["turn"], 1);
        assert_eq!(events[1].pid, i64::from(std::process::id()));
        drop(reporter);
        collector.wait_for_event(SOON, "disconnected", "").expect("the end of the connection");
    }

    #[test]
    fn what_was_seen_is_told_when_something_is_missing() {
        let collector = Collector::start("127.0.0.1:0").expect("a port");
        let reporter = Reporter::new(Some(collector.address().to_string()), None);
        reporter.report("start", json!({"text": "only this"}));
        collector.wait_for_event(SOON, "start", "only this").expect("the start");
        let error = collector.wait_for_event(Duration::from_millis(1), "stop", "").expect_err("nothing of the kind");
        assert!(error.to_string().contains("only this"), "{error}");
    }

    #[test]
    fn a_gate_holds_until_it_is_opened() {
        let collector = Collector::start("127.0.0.1:0").expect("a port");
        let address = collector.address().to_string();
        let waiting = thread::spawn(move || Reporter::new(Some(address), None).pass_gate("a"));
        collector.wait_for_event(SOON, "gate", "a").expect("someone at the gate");
        assert!(!waiting.is_finished());
        collector.open_gate("a");
        waiting.join().expect("no panic").expect("through");
    }

    #[test]
    fn a_gate_can_be_opened_from_outside() {
        let collector = Collector::start("127.0.0.1:0").expect("a port");
        let reporter = Reporter::new(Some(collector.address().to_string()), None);
        reporter.report("open-gate", json!({"text": "b"}));
        reporter.pass_gate("b").expect("through");
    }
}
