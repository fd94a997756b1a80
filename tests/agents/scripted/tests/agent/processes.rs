//! Dying, not dying, and leaving others behind.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rstest::rstest;
use scripted_agent::collector::Event;
use serde_json::Value;

use crate::driver::{Driver, SOON};

#[rstest]
#[case("!crash 3", Some(3), None)]
#[case("!crash 0", Some(0), None)]
#[case("!kill KILL", None, Some(9))]
#[case("!kill SEGV", None, Some(11))]
#[case("!kill TERM", None, Some(15))]
fn a_turn_can_end_the_process(#[case] script: &str, #[case] code: Option<i32>, #[case] signal: Option<i32>) {
    let mut agent = Driver::open(&[]);
    agent.send_prompt(&format!("!say partial\n{script}"));
    agent.update("the partial text", |update| update["content"]["text"] == "partial");
    assert_eq!((agent.ended().code(), agent.killed_by()), (code, signal));
    agent.collector.wait_for_event(SOON, "disconnected", "").expect("its end is seen");
}

#[rstest]
#[case("!exit-after 1", "end_turn", 1)]
#[case("!exit-after 0\n!error -32603 failed", "-32603", 0)]
fn an_exit_can_contradict_the_answer(#[case] script: &str, #[case] end: &str, #[case] code: i32) {
    let mut agent = Driver::open(&[]);
    assert_eq!(agent.prompt(script).end(), end);
    assert_eq!(agent.ended().code(), Some(code));
}

#[test]
fn sigterm_is_reported_and_ends_the_agent() {
    let mut agent = Driver::open(&[]);
    kill(agent.pid(), Signal::SIGTERM).expect("it lives");
    assert_eq!(agent.killed_by(), Some(15));
    agent.collector.wait_for_event(SOON, "signal", "SIGTERM").expect("reported");
}

#[test]
fn sigterm_can_be_ignored_and_sigkill_cannot() {
    let mut agent = Driver::open(&[("SCRIPTED_AGENT_SIGTERM", "ignore")]);
    kill(agent.pid(), Signal::SIGTERM).expect("it lives");
    agent.collector.wait_for_event(SOON, "signal", "SIGTERM").expect("reported");
    assert_eq!(agent.prompt("hello").end(), "end_turn");
    kill(agent.pid(), Signal::SIGKILL).expect("it lives");
    assert_eq!(agent.killed_by(), Some(9));
}

#[test]
fn sigterm_can_lead_to_an_exit_code() {
    let mut agent = Driver::open(&[("SCRIPTED_AGENT_SIGTERM", "delay:10,exit:0")]);
    kill(agent.pid(), Signal::SIGTERM).expect("it lives");
    assert_eq!(agent.ended().code(), Some(0));
}

/// The stray as soon as it has reported, and what ends it when the test does.
struct Left(Pid);

impl Left {
    fn wait(agent: &Driver) -> Self {
        let event = agent
            .collector
            .wait_for(SOON, |events| events.iter().find(|event| event.kind == "stray").cloned())
            .expect("a stray");
        Left(Pid::from_raw(i32::try_from(event.pid).expect("a pid")))
    }

    fn lives(&self) -> bool {
        kill(self.0, None).is_ok()
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL);
    }
}

fn stamps(events: &[Event], pid: Pid) -> usize {
    events.iter().filter(|event| event.kind == "stamp" && event.pid == i64::from(pid.as_raw())).count()
}

#[test]
fn a_stray_outlives_the_agent_and_its_process_group() {
    let mut agent = Driver::open(&[("SCRIPTED_AGENT_TAG", "run-7")]);
    agent.prompt("!setsid forever stamp:10 ignore-term");
    let stray = Left::wait(&agent);
    kill(agent.pid(), Signal::SIGKILL).expect("it lives");
    agent.ended();
    agent.rest();
    kill(stray.0, Signal::SIGTERM).expect("it lives");
    let before = stamps(&agent.collector.all(), stray.0);
    agent
        .collector
        .wait_for(SOON, |events| (stamps(events, stray.0) > before + 5).then_some(()))
        .expect("it goes on stamping");
    assert!(agent.collector.of_kind("stamp").iter().all(|event| event.tag == "run-7"));
}

#[test]
fn a_stray_is_in_a_session_of_its_own_or_not() {
    let mut agent = Driver::open(&[]);
    let ids: Value = serde_json::from_str(&agent.prompt("!ids").text()).expect("JSON");
    let session = |pid: Pid| i64::from(nix::unistd::getsid(Some(pid)).expect("a session").as_raw());

    agent.prompt("!setsid forever");
    let stray = Left::wait(&agent);
    assert_ne!(ids["sid"], session(stray.0));

    let mut agent = Driver::open(&[]);
    agent.prompt("!setsid forever same-session");
    let child = Left::wait(&agent);
    assert_eq!(ids["sid"], session(child.0));
}

#[test]
fn a_stray_can_keep_the_pipe_open() {
    let mut agent = Driver::open(&[]);
    agent.prompt("!setsid forever pipe");
    let stray = Left::wait(&agent);
    agent.close_stdin();
    agent.ended();
    assert!(stray.lives());
    // Only now, when the stray ends, does stdout end.
    drop(stray);
    agent.rest();
    assert_eq!(agent.line(), Err("stdout ended"));
}

#[test]
fn a_stray_ends_when_its_time_is_over() {
    let mut agent = Driver::open(&[]);
    agent.prompt("!setsid 0");
    let pid = agent
        .collector
        .wait_for(SOON, |events| events.iter().find(|event| event.kind == "stray").map(|event| event.pid))
        .expect("a stray");
    agent
        .collector
        .wait_for(SOON, |events| events.iter().find(|event| event.kind == "disconnected" && event.pid == pid).cloned())
        .expect("its end");
}

#[test]
fn stamps_go_to_the_address_they_are_told() {
    let other = scripted_agent::collector::Collector::start("127.0.0.1:0").expect("a port");
    let mut agent = Driver::open(&[]);
    agent.prompt(&format!("!stamp 10 {}", other.address()));
    other.wait_for(SOON, |events| (events.len() > 3).then_some(())).expect("stamps");
    assert_eq!(agent.collector.of_kind("stamp").len(), 0);
}

#[test]
fn memory_is_really_taken() {
    let mut agent = Driver::open(&[]);
    let resident = |agent: &mut Driver| -> u64 {
        let text = agent.prompt("!read /proc/self/status").text();
        let line = text.lines().find(|line| line.starts_with("VmRSS:")).expect("a size").to_string();
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
    };
    let before = resident(&mut agent);
    agent.prompt("!memory 64");
    assert!(resident(&mut agent) >= before + (60 << 10));
}

#[test]
fn files_are_written_and_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("note").display().to_string();
    let turn = Driver::open(&[]).prompt(&format!("!write {path} a\\nb\n!read {path}\n!read {path}.gone"));
    assert!(turn.text().starts_with("a\nb\nerror: "), "{}", turn.text());
    Driver::open(&[]).prompt(&format!("!write-noise {path} 2"));
    let noise = std::fs::read(&path).expect("a file");
    assert_eq!(noise.len(), 2 << 20);
    assert!(noise.chunks(8).collect::<std::collections::HashSet<_>>().len() == 2 << 17, "nothing repeats");
}

#[test]
fn it_says_what_it_was_started_with() {
    let mut agent = Driver::open(&[("B", "2"), ("A", "1")]);
    assert!(agent.prompt("!env").text().starts_with("A=1\nB=2\nSCRIPTED_AGENT_COLLECTOR="));
    let argv: Value = serde_json::from_str(&agent.prompt("!argv").text()).expect("JSON");
    assert_eq!(argv.as_array().map(Vec::len), Some(1));
    let client: Value = serde_json::from_str(&agent.prompt("!client").text()).expect("JSON");
    assert_eq!(client["clientInfo"]["name"], "test");
}

#[test]
fn a_collector_that_is_not_there_does_not_stop_the_agent() {
    let mut agent = Driver::start(&[("SCRIPTED_AGENT_COLLECTOR", "")]);
    agent.initialize();
    agent.new_session();
    assert_eq!(agent.prompt("hello").text(), "echo: hello");
    assert_eq!(agent.collector.all(), []);
}
