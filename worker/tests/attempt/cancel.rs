//! Stopping, at every point of an attempt (c27, c48, c49, S7).

use crate::harness::run;
use nix::sys::signal::Signal;
use rstest::rstest;
use std::time::{Duration, Instant};
use subagent_link::GatewayMessage;

#[tokio::test(flavor = "multi_thread")]
async fn c48_a_cancelled_turn_keeps_its_partial_output() {
    let attempt = run("!say partial\n!tool grep\n!hang").start().await;
    attempt.first("prompt");
    attempt.transcript_with("tool> grep").await;
    let asked = Instant::now();
    attempt.gateway.cancel();
    attempt.first("cancel");
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Aborted", "Cancelled"), "{}", ended.transcript);
    assert_eq!(ended.text(), "partial");
    assert!(ended.status.success());
    assert!(asked.elapsed() < Duration::from_secs(2), "an agent that answers and ends costs no grace");
    assert_eq!(ended.report.snapshot.turns[0].stop_reason.as_deref(), Some("Aborted"));
}

#[tokio::test(flavor = "multi_thread")]
async fn c57_a_deadlines_stop_names_the_deadline() {
    let attempt = run("!hang").start().await;
    attempt.first("prompt");
    attempt.gateway.say(GatewayMessage::Cancel { reason: "DeadlineExceeded".into() });
    let ended = attempt.finish().await;
    // The controller knows better than the worker why; what is reported stays what it was.
    assert_eq!(ended.words(), ("Aborted", "Cancelled"), "{}", ended.transcript);
    let own: Vec<_> = ended.transcript.lines().filter(|line| line.starts_with("worker: ")).collect();
    assert!(own.iter().any(|line| line.contains("activeDeadlineSeconds is over")), "{own:?}");
    assert!(!own.iter().any(|line| line.to_ascii_lowercase().contains("cancelled")), "{own:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c27_a_cancel_handled_before_the_response_wins() {
    let attempt = run("!say partial\n!hang").env("SCRIPTED_AGENT_CANCEL", "answer:end_turn").start().await;
    attempt.first("prompt");
    attempt.gateway.cancel();
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Aborted", "Cancelled"), "{}", ended.transcript);
}

#[tokio::test(flavor = "multi_thread")]
async fn c27_a_cancel_behind_the_response_changes_nothing() {
    let attempt = run("!gate end\n!say whole").start().await;
    attempt.first("prompt");
    attempt.gateway.hold_acks();
    attempt.collector.open_gate("end");
    attempt.gateway.end().await;
    attempt.gateway.cancel();
    attempt.transcript_with("worker: cancelled").await;
    attempt.gateway.release_acks();
    let ended = attempt.finish().await;
    assert_eq!((ended.words().0, ended.text()), ("Completed", "whole"));
    assert!(ended.status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn s1_an_agent_that_ignores_everything_is_gone_after_the_graces() {
    let attempt = run("!setsid forever stamp:50 ignore-term pipe\n!stamp 50\n!hang hard")
        .env("SCRIPTED_AGENT_CANCEL", "ignore")
        .env("SCRIPTED_AGENT_EOF", "ignore")
        .env("SCRIPTED_AGENT_SIGTERM", "ignore")
        .graces(1, 1, 1)
        .start()
        .await;
    attempt.event("stray", "");
    attempt.first("stamp");
    let asked = Instant::now();
    attempt.gateway.cancel();
    let (cancel, eof, signal) = (attempt.first("cancel"), attempt.first("eof"), attempt.first("signal"));
    // The rungs come in order and each takes its whole grace.
    assert!(eof.received_ms - cancel.received_ms >= 950, "{} {}", cancel.line(), eof.line());
    assert!(signal.received_ms - eof.received_ms >= 950, "{} {}", eof.line(), signal.line());
    let collector = attempt.collector.address();
    let pids: Vec<i64> = ["stray", "prompt"].iter().map(|kind| attempt.first(kind).pid).collect();
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Aborted", "Cancelled"), "{}", ended.transcript);
    assert!(asked.elapsed() >= Duration::from_secs(3) && asked.elapsed() < Duration::from_secs(8));
    for pid in pids {
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "{pid} still runs, collector {collector}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c48_a_permission_asked_after_the_cancel_is_answered_cancelled() {
    let attempt = run("!gate ask\n!permission rm allow_once:a,reject_once:r")
        .allow()
        .env("SCRIPTED_AGENT_CANCEL", "ignore")
        .start()
        .await;
    attempt.first("prompt");
    attempt.gateway.cancel();
    attempt.first("cancel");
    attempt.collector.open_gate("ask");
    attempt.event("permission", "cancelled");
    assert_eq!(attempt.finish().await.words(), ("Aborted", "Cancelled"));
}

#[rstest]
#[case("SCRIPTED_AGENT_INITIALIZE", "initialize", "Initialize")]
#[case("SCRIPTED_AGENT_NEW", "session/new", "SessionNew")]
#[tokio::test(flavor = "multi_thread")]
async fn s7_a_cancel_while_the_agent_hangs_at_a_stage(
    #[case] variable: &str,
    #[case] method: &str,
    #[case] stage: &str,
) {
    let attempt = run("hi").env(variable, "hang").start().await;
    attempt.event("request", method);
    attempt.gateway.cancel();
    let ended = attempt.finish().await;
    assert_eq!((ended.words(), ended.prompts), (("Aborted", "Cancelled"), 0), "{}", ended.transcript);
    assert_eq!(ended.diagnostic(), format!("cancelled in stage {stage}; no prompt was sent"));
}

#[tokio::test(flavor = "multi_thread")]
async fn s7_a_cancel_between_the_record_and_its_acknowledgement_sends_no_prompt() {
    let attempt = run("hi").start().await;
    attempt.gateway.hold_acks();
    attempt.gateway.report("the turn's record", |report| report.snapshot.turn_count == 1).await;
    attempt.gateway.cancel();
    attempt.gateway.end().await;
    attempt.gateway.release_acks();
    let ended = attempt.finish().await;
    assert_eq!((ended.words(), ended.prompts), (("Aborted", "Cancelled"), 0), "{}", ended.transcript);
}

#[tokio::test(flavor = "multi_thread")]
async fn s7_a_cancel_at_the_first_hello_sends_no_prompt() {
    let setup = run("hi");
    let gateway = crate::gateway::Gateway::start(setup.assignment.clone()).await;
    gateway.cancel();
    let ended = setup.start_with(gateway).await.finish().await;
    assert_eq!((ended.words(), ended.prompts), (("Aborted", "Cancelled"), 0), "{}", ended.transcript);
    assert!(ended.status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn c49_sigterm_runs_the_same_ladder_with_report_and_archive() {
    let attempt = run("!say partial\n!tool grep\n!hang").start().await;
    attempt.first("prompt");
    attempt.transcript_with("tool> grep").await;
    attempt.signal(Signal::SIGTERM);
    attempt.first("cancel");
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Error", "PodDeleted"), "{}", ended.transcript);
    assert_eq!(ended.text(), "partial");
    assert!(ended.report.transcript.is_some() && ended.status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn c49_a_cancel_behind_sigterm_is_a_cancel() {
    let attempt = run("!hang").env("SCRIPTED_AGENT_CANCEL", "ignore").start().await;
    attempt.first("prompt");
    attempt.signal(Signal::SIGTERM);
    attempt.first("cancel");
    attempt.gateway.cancel();
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Aborted", "Cancelled"), "{}", ended.transcript);
}

#[tokio::test(flavor = "multi_thread")]
async fn c27_a_recorded_failure_beats_a_later_cancel() {
    let attempt = run("!gate end\n!crash 3").start().await;
    attempt.first("prompt");
    attempt.gateway.hold_acks();
    attempt.collector.open_gate("end");
    attempt.gateway.end().await;
    attempt.gateway.cancel();
    attempt.transcript_with("worker: cancelled").await;
    attempt.gateway.release_acks();
    assert_eq!(attempt.finish().await.words(), ("Error", "AgentCrashed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn n5_a_slow_initialize_is_waited_for_and_named() {
    let attempt = run("hi").env("SCRIPTED_AGENT_INITIALIZE", "delay:6000").start().await;
    let named = attempt.gateway.report("the stage", |report| report.snapshot.stage == "Initialize").await;
    assert_eq!((named.seq, named.snapshot.turn_count), (1, 0));
    let ended = attempt.finish().await;
    assert_eq!((ended.words().0, ended.text()), ("Completed", "echo: hi"));
}
