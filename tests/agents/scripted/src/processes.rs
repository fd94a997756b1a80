//! Processes and signals: dying on purpose, not dying on purpose, and leaving others behind.

use std::env;
use std::io;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, raise};
use nix::unistd::setsid;
use serde_json::json;

use crate::reporter::Reporter;
use crate::script::Stray;

/// First argument of a process that the agent leaves behind; nobody else starts one.
pub const STRAY_ARGUMENT: &str = "--scripted-agent-stray";
/// First argument of the process in between, whose end makes the stray an orphan.
pub const ORPHAN_MAKER_ARGUMENT: &str = "--scripted-agent-orphan-maker";

/// How long a process stays that nobody ends: far longer than any test watches one, and not until the machine restarts
/// when a test was broken off.
pub const FOREVER: Duration = Duration::from_secs(30 * 60);

/// Signals that are reported before they take effect.
const REPORTED: &[Signal] = &[Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];

/// Takes the reported signals away from every thread that is started later, so that one thread can wait for them.
/// Called before any other thread exists.
pub fn hold_signals() {
    let _ = reported().thread_block();
}

fn reported() -> SigSet {
    REPORTED.iter().copied().collect()
}

/// Waits for signals for ever; `decide` says for each whether the process goes on living (true) or ends by it.
pub fn watch_signals(decide: impl Fn(Signal) -> bool + Send + 'static) {
    thread::spawn(move || {
        loop {
            match reported().wait() {
                Ok(signal) if decide(signal) => {}
                Ok(signal) => die_by(signal),
                Err(_) => return,
            }
        }
    });
}

/// Ends this process by that signal, as if it had come from outside.
pub fn die_by(signal: Signal) -> ! {
    let _ = SigSet::from(signal).thread_unblock();
    // Twice, because the standard library's own handler of a fault gives way only to the second one.
    let _ = raise(signal);
    let _ = raise(signal);
    // Process 1 of a PID namespace, and a signal that does nothing by default.
    std::process::exit(128 + signal as i32)
}

/// Sends stamps from a thread of its own until the process is gone.
pub fn stamp(reporter: Arc<Reporter>, every: Duration) {
    thread::spawn(move || {
        for count in 0_u64.. {
            reporter.try_report("stamp", json!({"count": count}));
            thread::sleep(every);
        }
    });
}

/// Takes memory, writes to every page of it and never gives it back.
pub fn take_memory(mib: usize) {
    for _ in 0..mib {
        // One MiB at a time, so that a limit is met while the process still looks alive from outside.
        // An optimiser takes away what nobody looks at.
        std::hint::black_box(Box::leak(vec![1_u8; 1 << 20].into_boxed_slice()));
    }
}

/// Leaves a process behind: a grandchild whose parent is gone, in a session of its own unless told otherwise.
///
/// # Errors
/// When no process can be started.
pub fn leave_behind(stray: &Stray, reporter: &Reporter) -> io::Result<()> {
    let mut command = Command::new(env::current_exe()?);
    command.arg(if stray.same_session { STRAY_ARGUMENT } else { ORPHAN_MAKER_ARGUMENT });
    command.arg(stray.lifetime.map_or_else(|| "forever".into(), |time| time.as_millis().to_string()));
    command.arg(stray.stamp.map_or_else(|| "never".into(), |every| every.as_millis().to_string()));
    command.arg(if stray.ignore_term { "ignore-term" } else { "obey" });
    command.arg(reporter.address().unwrap_or_default());
    command.arg(reporter.tag().unwrap_or_default());
    command.stdin(Stdio::null());
    if !stray.pipe {
        command.stdout(Stdio::null()).stderr(Stdio::null());
    }
    let mut child = command.spawn()?;
    if stray.same_session {
        // Never waited for: it is meant to be somebody else's to clean up.
        return Ok(());
    }
    child.wait().map(drop)
}

/// The life of the process in between: starts the stray in a new session and ends.
///
/// # Errors
/// When the stray cannot be started.
pub fn make_orphan(arguments: &[String]) -> io::Result<()> {
    setsid()?;
    Command::new(env::current_exe()?).arg(STRAY_ARGUMENT).args(arguments).spawn().map(drop)
}

/// The life of a stray: reports that it is there, stamps, and ends when its time is over.
pub fn live_as_stray(arguments: &[String]) {
    let argument = |index: usize| arguments.get(index).map(String::as_str).unwrap_or_default();
    let millis = |text: &str| text.parse().ok().map(Duration::from_millis);
    let optional = |text: &str| Some(text.to_string()).filter(|text| !text.is_empty());
    if argument(2) == "ignore-term" {
        // Blocked and never taken.
        hold_signals();
    }
    let end = Instant::now() + millis(argument(0)).unwrap_or(FOREVER);
    let reporter = Arc::new(Reporter::new(optional(argument(3)), optional(argument(4))));
    reporter.report("stray", json!({}));
    if let Some(every) = millis(argument(1)) {
        stamp(Arc::clone(&reporter), every);
    }
    stay_until(end);
}

/// Does nothing until then.
pub fn stay_until(end: Instant) {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::park_timeout(left);
    }
}
