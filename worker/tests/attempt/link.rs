//! The link: the ledger before the prompt, reconnects, refusals, rotation (c41, R1, R14).

use crate::{
    gateway::{Gateway, strange_root},
    harness::{Attempt, run},
};
use nix::sys::signal::Signal;
use subagent_link::{Assignment, ContentBlock, GatewayMessage, Prompt, RefusalReason};

#[tokio::test(flavor = "multi_thread")]
async fn c41_no_prompt_before_the_turns_record_is_acknowledged() {
    let setup = run("hi");
    let gateway = Gateway::start(setup.assignment.clone()).await;
    gateway.hold_acks();
    let attempt = setup.start_with(gateway).await;
    let record = attempt.gateway.report("the turn's record", |report| report.snapshot.turn_count == 1).await;
    assert_eq!(record.snapshot.turns[0].turn, 1);
    assert!(record.snapshot.session.is_some() && record.snapshot.agent.is_some(), "R3: the session id is in it");
    // An acknowledgement of what was never sent counts for nothing.
    attempt.gateway.say(GatewayMessage::Ack { seq: 99 });
    // Two reconnects later the record has been sent three times, and still nothing was prompted.
    for connection in 2..=3 {
        attempt.gateway.drop_connection();
        attempt.gateway.report("the record again", |report| report.connection == connection).await;
    }
    assert_eq!(attempt.collector.of_kind("prompt").len(), 0);
    attempt.gateway.release_acks();
    attempt.first("prompt");
    let ended = attempt.finish().await;
    assert_eq!((ended.words().0, ended.prompts), ("Completed", 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn r1_a_link_dropped_in_the_turn_disturbs_nothing() {
    let attempt = run("!say before\n!gate mid\n!say , after").start().await;
    attempt.first("prompt");
    for connection in 2..=4 {
        attempt.gateway.drop_connection();
        attempt.gateway.connection(connection).await;
    }
    assert_eq!(attempt.gateway.hellos(), [(1, 0), (2, 1), (3, 1), (4, 1)], "the worker says how far it is");
    assert_eq!(attempt.gateway.reports().len(), 1, "what is acknowledged is not sent again");
    attempt.collector.open_gate("mid");
    let ended = attempt.finish().await;
    assert_eq!((ended.words().0, ended.text(), ended.prompts), ("Completed", "before, after", 1));
    assert_eq!((ended.report.connection, ended.report.seq), (4, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn r14_a_turn_that_ends_while_the_gateway_is_away_arrives_later() {
    let attempt = run("!gate end\n!say result").start().await;
    attempt.first("prompt");
    attempt.gateway.go_down();
    attempt.collector.open_gate("end");
    attempt.transcript_with("worker: Completed").await;
    attempt.transcript_with("no connection to the gateway").await;
    assert!(attempt.gateway.reports().iter().all(|report| report.end().is_none()));
    attempt.gateway.come_up();
    let ended = attempt.finish().await;
    assert_eq!((ended.words().0, ended.text(), ended.prompts), ("Completed", "result", 1));
    assert!(ended.status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_newest_snapshot_is_sent_again() {
    let attempt = run("hi").start().await;
    attempt.gateway.hold_acks();
    attempt.gateway.report("the turn's record", |report| report.seq == 1).await;
    attempt.gateway.cancel();
    attempt.gateway.end().await;
    attempt.gateway.drop_connection();
    attempt.gateway.report("a report on connection 2", |report| report.connection == 2).await;
    attempt.gateway.release_acks();
    let seqs: Vec<_> = attempt.gateway.reports().iter().map(|report| (report.connection, report.seq)).collect();
    assert_eq!(seqs, [(1, 1), (1, 2), (2, 2)]);
    assert!(attempt.finish().await.status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_work_takes_no_other_assignment() {
    let attempt = run("!gate end\n!say mine").start().await;
    attempt.first("prompt");
    let other = Prompt::Inline { content: vec![ContentBlock::Text { text: "other".into() }] };
    let assignment = Assignment { prompt: Some(other), ..run("").assignment };
    attempt.gateway.say(GatewayMessage::Assignment(Box::new(assignment)));
    attempt.gateway.say(GatewayMessage::Close);
    // Said in order on the same connection: once this is heard, the assignment was.
    attempt.gateway.drop_connection();
    attempt.gateway.connection(2).await;
    attempt.collector.open_gate("end");
    let ended = attempt.finish().await;
    assert_eq!((ended.text(), ended.prompts), ("mine", 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_that_may_pass_is_retried() {
    let setup = run("hi");
    let gateway = Gateway::start(setup.assignment.clone()).await;
    gateway.refuse(&[(RefusalReason::NotYet, true), (RefusalReason::Unavailable, true)]);
    let attempt = setup.start_with(gateway).await;
    attempt.gateway.connection(3).await;
    let ended = attempt.finish().await;
    assert_eq!((ended.words().0, ended.report.connection), ("Completed", 3));
    assert!(ended.transcript.contains("NotYet"), "{}", ended.transcript);
}

#[tokio::test(flavor = "multi_thread")]
async fn d5_a_worker_that_is_not_current_starts_nothing() {
    let setup = run("hi");
    let gateway = Gateway::start(setup.assignment.clone()).await;
    gateway.refuse(&[(RefusalReason::NotCurrent, false)]);
    let mut attempt = setup.start_with(gateway).await;
    assert!(!attempt.exit().await.success());
    assert_eq!(attempt.collector.all().len(), 0, "no agent was started");
    assert_eq!(attempt.gateway.hellos().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_refused_in_its_turn_stops_the_agent_and_fails() {
    let mut attempt = run("!hang").start().await;
    attempt.first("prompt");
    attempt.gateway.refuse(&[(RefusalReason::Terminal, false)]);
    attempt.gateway.drop_connection();
    attempt.first("cancel");
    assert!(!attempt.exit().await.success());
    attempt.first("disconnected");
    assert!(attempt.gateway.reports().iter().all(|report| report.end().is_none()));
}

#[tokio::test(flavor = "multi_thread")]
async fn n8_a_worker_that_lost_its_memory_prompts_nothing() {
    let mut attempt = run("!hang").start().await;
    attempt.first("prompt");
    attempt.signal(Signal::SIGKILL);
    attempt.exit().await;
    let Attempt { gateway, .. } = attempt;
    let mut second = run("!hang").start_with(gateway).await;
    assert!(!second.exit().await.success());
    assert!(second.said().contains("WorkerLost"), "{}", second.said());
    assert_eq!(second.collector.all().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn n4_a_gateway_of_another_root_is_not_trusted_until_its_root_arrives() {
    let mut setup = run("hi");
    setup.roots = Some(strange_root());
    let attempt = setup.start().await;
    attempt.transcript_with("no connection to the gateway: TLS with the gateway").await;
    assert_eq!(attempt.gateway.connections(), 0);
    // Roots and token are read at every connection, so both can be rotated under a live pod.
    let both = format!("{}{}", strange_root(), attempt.gateway.roots);
    std::fs::write(attempt.link.join("token"), "token-2").unwrap();
    std::fs::write(attempt.link.join("roots.pem"), both).unwrap();
    attempt.gateway.connection(1).await;
    assert_eq!(attempt.gateway.bearers(), ["Bearer token-2"]);
    assert_eq!(attempt.finish().await.words().0, "Completed");
}
