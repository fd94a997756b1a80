//! The collector as a program.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use scripted_agent::reporter::Reporter;
use serde_json::{Value, json};

#[test]
fn the_collector_prints_its_address_and_then_every_report() {
    let mut collector = Command::new(env!("CARGO_BIN_EXE_collector"))
        .arg("127.0.0.1:0")
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(collector.stdout.take().expect("a pipe")).lines();
    let address = lines.next().expect("a line").expect("text");
    let reporter = Reporter::new(Some(address), Some("run-1".into()));
    reporter.report("prompt", json!({"text": "hello"}));
    let report: Value = serde_json::from_str(&lines.next().expect("a line").expect("text")).expect("JSON");
    assert_eq!(
        (&report["kind"], &report["text"], &report["tag"]),
        (&json!("prompt"), &json!("hello"), &json!("run-1"))
    );
    assert!(report["received_ms"].is_u64());
    drop(reporter);
    let end = lines.next().expect("a line").expect("text");
    assert!(end.contains("disconnected"), "{end}");
    collector.kill().expect("it lives");
    collector.wait().expect("a child");
}

#[test]
fn the_collector_refuses_what_it_does_not_know_and_a_file_it_cannot_write() {
    let folder = tempfile::tempdir().expect("a folder");
    let refused = Command::new(env!("CARGO_BIN_EXE_collector")).arg("--help").output().expect("it starts");
    assert_eq!(refused.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("usage: collector"));
    let nowhere = folder.path().join("no/such/file");
    let failed =
        Command::new(env!("CARGO_BIN_EXE_collector")).arg("127.0.0.1:0").arg(nowhere).output().expect("it starts");
    assert_eq!(failed.status.code(), Some(1));
}
