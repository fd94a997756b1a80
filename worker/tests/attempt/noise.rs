//! Agents that write what they should not (c54, T4).

use crate::harness::run;
use rstest::rstest;

#[rstest]
#[case::garbage_lines("!garbage 100000\n!say fine")]
#[case::big_notification("!bigline 12\n!say fine")]
#[case::big_thought("!bigline 12 thought\n!say fine")]
#[case::big_garbage("!bigline 12 garbage\n!say fine")]
#[case::invalid_utf8("!invalid-utf8 line\n!say fine")]
#[case::unknown_kinds("!unknown-update\n!unknown-content\n!unknown-notification\n!tool x\n!say fine")]
#[case::odd_json("!raw [1,2,3]\n!raw {\"id\":null}\n!raw {\"id\":777,\"result\":{}}\n!raw 42\n!say fine")]
#[case::stderr("!stderr-fill 1000000\n!say fine")]
#[tokio::test(flavor = "multi_thread")]
async fn t4_noise_is_survived(#[case] script: &str) {
    let ended = run(script).start().await.finish().await;
    assert_eq!((ended.words().0, ended.text()), ("Completed", "fine"), "{}", ended.diagnostic());
    assert!(ended.transcript.lines().all(|line| line.len() <= 5000));
}

#[tokio::test(flavor = "multi_thread")]
async fn t4_garbage_is_counted() {
    let ended = run("!garbage 100000\n!stop refusal").start().await.finish().await;
    assert!(ended.diagnostic().contains("no frames: 100000"), "{}", ended.diagnostic());
    assert!(ended.transcript.lines().filter(|line| line.starts_with("stdout| ")).count() <= 20);
}

#[rstest]
#[case("!bigline 30")]
#[case("!bigline 30 garbage")]
#[case("!flood 30")]
#[tokio::test(flavor = "multi_thread")]
async fn t4_a_line_of_30_mib_fails_that_run_in_bounded_memory(#[case] script: &str) {
    let attempt = run(script).env("SCRIPTED_AGENT_EOF", "ignore").start().await;
    let end = attempt.gateway.end().await;
    let memory = peak_memory_mib(attempt.pid.as_raw());
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Error", "AgentProtocolError"), "{}", ended.transcript);
    assert!(ended.diagnostic().contains("16777216 bytes"), "{}", ended.diagnostic());
    assert_eq!(end.result, None);
    // 16 MiB of a line, twice while its buffer grows, and the worker itself.
    assert!(memory < 80, "{memory} MiB");
}

#[tokio::test(flavor = "multi_thread")]
async fn t4_a_message_of_12_mib_lives_and_is_too_large_for_a_result() {
    let attempt = run("!bigline 12 message").env("SCRIPTED_AGENT_EOF", "ignore").start().await;
    attempt.gateway.end().await;
    let memory = peak_memory_mib(attempt.pid.as_raw());
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Error", "ResultTooLarge"), "{}", ended.diagnostic());
    assert!(memory < 120, "{memory} MiB");
}

#[tokio::test(flavor = "multi_thread")]
async fn c54_invalid_utf8_in_a_message_is_replaced() {
    let ended = run("!say a\n!invalid-utf8 text").start().await.finish().await;
    assert_eq!(ended.words().0, "Completed", "{}", ended.transcript);
    assert!(ended.text().contains('\u{fffd}'), "{:?}", ended.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn c54_unknown_requests_are_answered_with_32601() {
    let script = "!unknown-method\n!unknown-method fs/read_text_file {\"path\": \"/etc/passwd\"}\n!unknown-method terminal/create";
    let ended = run(script).start().await.finish().await;
    assert_eq!(ended.text().matches("error -32601").count(), 3, "{}", ended.text());
}

fn peak_memory_mib(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

#[tokio::test(flavor = "multi_thread")]
async fn t4_an_agent_that_only_makes_noise_can_be_cancelled() {
    let attempt = run("hi").argv(&["yes"]).start().await;
    attempt.transcript_with("only counted").await;
    attempt.gateway.cancel();
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Aborted", "Cancelled"), "{}", ended.transcript);
}

#[tokio::test(flavor = "multi_thread")]
async fn t4_an_agent_that_asks_without_reading_fails_in_bounded_memory() {
    let attempt = run("hi").argv(&["yes", r#"{"id":1,"method":"x"}"#]).start().await;
    attempt.gateway.end().await;
    let memory = peak_memory_mib(attempt.pid.as_raw());
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Error", "AgentProtocolError"), "{}", ended.transcript);
    assert!(ended.diagnostic().contains("does not read its stdin"), "{}", ended.diagnostic());
    assert!(memory < 80, "{memory} MiB");
}
