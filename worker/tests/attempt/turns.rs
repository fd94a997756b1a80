//! Turns that come to their end, and what becomes of them.

use crate::{
    activation::{message, start, told},
    harness::run,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use rstest::rstest;
use subagent_link::{ContentBlock, Delivery, Prompt, SessionOrigin};

#[tokio::test(flavor = "multi_thread")]
async fn c53_an_echo_from_the_assignment_to_the_exit() {
    let attempt = run("hello\nworld").env("HOME", "/nowhere").start().await;
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Completed", "Completed"), "{}", ended.transcript);
    assert_eq!(ended.text(), "echo: hello\nworld");
    assert!(ended.status.success());
    assert_eq!(ended.prompts, 1);
    let snapshot = &ended.report.snapshot;
    let turn = &snapshot.turns[0];
    assert_eq!(
        (turn.turn, turn.stop_reason.as_deref(), turn.preview.as_deref()),
        (1, Some("Completed"), Some("echo: hello\nworld"))
    );
    assert!(turn.finished_at.is_some() && snapshot.turn_count == 1);
    assert_eq!(snapshot.session.as_ref().unwrap().how, SessionOrigin::New);
    assert_eq!(snapshot.agent.as_ref().unwrap().name, "scripted-agent");
    assert_eq!(ended.report.end().unwrap().diagnostic, None, "c30: none on a completed run");
}

/// c38: the one turn of a one-shot run takes a steer as those of a child do, and it is no second prompt.
#[tokio::test(flavor = "multi_thread")]
async fn c38_the_turn_of_a_one_shot_run_is_steered() {
    let prompt = "!await-steer\n!gate on\n!say done";
    let attempt = start(run(prompt)).await;
    attempt.event("prompt", prompt);
    attempt.gateway.say(message(1, Delivery::Steer, "left"));
    told(&attempt, "m1:Steered").await;
    attempt.collector.open_gate("on");
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Completed", "Completed"), "{}", ended.transcript);
    assert_eq!((ended.prompts, ended.report.snapshot.messages.len()), (1, 1));
    assert!(ended.text().contains("steered: left") && ended.text().contains("done"), "{}", ended.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn c57_the_transcript_reads_well_and_is_archived() {
    let attempt =
        run("look\n!think hm\n!tool grep\n!say one\\u{1b}[31m\n!stderr oops\n!plan a:completed,b").start().await;
    let ended = attempt.finish().await;
    for line in [
        "user> look",
        "thought> hm",
        "agent> one\\u{1b}[31m",
        "stderr| oops",
        "plan> [completed] a",
        "worker: Completed",
    ] {
        assert!(ended.transcript.lines().any(|said| said == line), "{line}\n{}", ended.transcript);
    }
    assert!(ended.transcript.contains("tool> grep"), "{}", ended.transcript);
    // T9: the archive is the same transcript up to the end of the turn.
    let archive = ended.report.transcript.unwrap();
    let text = zstd::decode_all(STANDARD.decode(archive.data).unwrap().as_slice()).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.ends_with("worker: Completed\n") && ended.transcript.starts_with(&text), "{text}");
    assert_eq!(archive.dropped_bytes, 0);
}

#[rstest]
#[case("end_turn", "Completed", "Completed")]
#[case("max_tokens", "MaxTokens", "MaxTokens")]
#[case("max_turn_requests", "Error", "TurnLimit")]
#[case("refusal", "Refusal", "AgentRefused")]
#[case("cancelled", "Aborted", "Cancelled")]
#[case("bored", "Error", "AgentProtocolError")]
#[tokio::test(flavor = "multi_thread")]
async fn c25_stop_reasons_of_the_protocol(#[case] told: &str, #[case] stop_reason: &str, #[case] reason: &str) {
    let attempt = run(&format!("!say partial\n!stop {told}")).start().await;
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), (stop_reason, reason), "{}", ended.transcript);
    assert_eq!(ended.text(), "partial", "c27: partial output is kept");
    assert!(ended.status.success(), "a failed run is a clean end of the worker");
    assert_eq!(ended.diagnostic().is_empty(), stop_reason == "Completed");
    assert_eq!(ended.report.snapshot.turns[0].stop_reason.as_deref(), Some(stop_reason));
}

#[rstest]
#[case("!say fine\n!exit-after 1", "Completed")]
#[case("!exit-after 0\n!stop refusal", "Refusal")]
#[case("!exit-after 0\n!error -32603 out of luck", "Error")]
#[tokio::test(flavor = "multi_thread")]
async fn t10_the_protocol_decides_and_not_the_exit_code(#[case] script: &str, #[case] stop_reason: &str) {
    let ended = run(script).start().await.finish().await;
    assert_eq!(ended.words().0, stop_reason, "{}", ended.transcript);
}

#[rstest]
#[case("!say one\n!tool grep\n!say two", "two")]
#[case("!say one\n!think hm\n!chunks 3 two and more", "two and more")]
#[case("!say one\n!think hm\n!no-message", "one")]
#[case("!message-ids on\n!say one\n!say two", "two")]
#[case("!say one\n!image\n!audio", "one")]
#[tokio::test(flavor = "multi_thread")]
async fn c28_the_result_is_the_last_message(#[case] script: &str, #[case] text: &str) {
    let ended = run(script).start().await.finish().await;
    assert_eq!(ended.text(), text, "{}", ended.transcript);
    assert_eq!(ended.report.result.unwrap().other_blocks, if script.contains("image") { 2 } else { 0 });
}

#[tokio::test(flavor = "multi_thread")]
async fn c54_updates_around_the_turn_are_no_output() {
    let attempt = run("!say mine\n!update-after-response late text").env("SCRIPTED_AGENT_NEW", "updates-before");
    let ended = attempt.start().await.finish().await;
    assert_eq!((ended.words().0, ended.text()), ("Completed", "mine"), "{}", ended.transcript);
    assert!(ended.transcript.contains("agent> late text"), "{}", ended.transcript);
    assert!(ended.report.snapshot.usage.is_some(), "usage behind the response counts");
}

#[tokio::test(flavor = "multi_thread")]
async fn c54_updates_of_another_session_are_ignored_and_counted() {
    let ended = run("!say mine\n!other-session-id x\n!say foreign\n!stop refusal").start().await.finish().await;
    assert_eq!(ended.text(), "mine", "{}", ended.transcript);
    assert!(ended.diagnostic().contains("updates for another session: 1"), "{}", ended.diagnostic());
}

#[tokio::test(flavor = "multi_thread")]
async fn t2_hostile_usage_is_refused() {
    let script = "!usage {\"used\": 10, \"size\": 100, \"cost\": {\"amount\": 2, \"currency\": \"USD\"}}\n\
                  !usage {\"used\": -1, \"size\": 1e30, \"cost\": {\"amount\": 1, \"currency\": \"USD\"}}\n\
                  !usage {\"used\": -1, \"size\": NaN}\n\
                  !stop end_turn {\"usage\": {\"totalTokens\": -5, \"inputTokens\": 7}}";
    let ended = run(script).start().await.finish().await;
    let usage = ended.report.snapshot.usage.unwrap();
    assert_eq!((usage.context_used, usage.context_size), (Some(10), Some(100)), "{}", ended.transcript);
    assert_eq!(usage.cost.unwrap().amount, "2");
    assert_eq!((usage.total_tokens, usage.input_tokens), (None, Some(7)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_from_a_file_is_sent_with_its_digest() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompt");
    std::fs::write(&path, "from a file").unwrap();
    let mut setup = run("");
    setup.assignment.prompt = Some(Prompt::File { path: path.to_str().unwrap().into() });
    let ended = setup.start().await.finish().await;
    assert_eq!(ended.text(), "echo: from a file");
    assert_eq!(ended.report.snapshot.prompt.unwrap().size, 11);
}

/// The controller looked at the ConfigMap; what is mounted may be another one by then. No agent is started for it.
#[rstest]
#[case::not_text(Some(&b"\xff"[..]), "is not UTF-8 text")]
#[case::empty(Some(&b""[..]), "is empty")]
#[case::missing(None, "cannot be read")]
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_holds_no_prompt_is_told(#[case] bytes: Option<&[u8]>, #[case] fault: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompt");
    if let Some(bytes) = bytes {
        std::fs::write(&path, bytes).unwrap();
    }
    let mut setup = run("");
    setup.assignment.prompt = Some(Prompt::File { path: path.to_str().unwrap().into() });
    let ended = setup.start().await.finish().await;
    assert_eq!((ended.words(), ended.prompts), (("Error", "AgentStartFailed"), 0), "{}", ended.transcript);
    let diagnostic = ended.diagnostic();
    assert!(diagnostic.contains("spec.prompt.configMapKeyRef") && diagnostic.contains(fault), "{diagnostic}");
}

#[tokio::test(flavor = "multi_thread")]
async fn links_and_images_reach_the_agent() {
    let mut setup = run("");
    setup.assignment.prompt = Some(Prompt::Inline {
        content: vec![
            ContentBlock::Text { text: "see".into() },
            ContentBlock::ResourceLink { uri: "file:///a".into(), name: "a".into() },
            ContentBlock::Image { data: "QQ==".into(), mime_type: "image/png".into() },
        ],
    });
    let attempt = setup.start().await;
    let prompt = attempt.first("prompt");
    let blocks = prompt.report["blocks"].to_string();
    assert!(blocks.contains("resource_link") || prompt.report["blocks"].as_u64() == Some(3), "{}", prompt.line());
    assert_eq!(attempt.finish().await.words().0, "Completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn c53_the_session_mode_is_set_before_the_prompt() {
    let mut setup = run("!session");
    setup.assignment.transport.session_mode = "plan".into();
    let ended = setup.start().await.finish().await;
    assert!(ended.text().contains("plan"), "{}", ended.text());
    let mut setup = run("hi");
    setup.assignment.transport.session_mode = "no-such-mode".into();
    let ended = setup.start().await.finish().await;
    assert_eq!((ended.words(), ended.prompts), (("Error", "AgentHandshakeFailed"), 0), "{}", ended.transcript);
}

#[tokio::test(flavor = "multi_thread")]
async fn c53_authentication_comes_before_the_session() {
    let setup = run("hi")
        .env("SCRIPTED_AGENT_NEW", "auth-required")
        .env("SCRIPTED_AGENT_CAPABILITIES", r#"{"authMethods": [{"id": "token", "name": "Token"}]}"#);
    let mut with_method = run("hi");
    with_method.env = setup.env.clone();
    with_method.assignment.transport.auth_method = "token".into();
    assert_eq!(with_method.start().await.finish().await.words().0, "Completed");
    let ended = setup.start().await.finish().await;
    assert_eq!((ended.words(), ended.prompts), (("Error", "AgentAuthRequired"), 0), "{}", ended.transcript);
}

#[tokio::test(flavor = "multi_thread")]
async fn c56_the_agent_sees_the_containers_environment_and_no_more() {
    let attempt = run("!env\n!cwd\n!argv").env("SUBAGENT_PARAM_REPO", "r").env("HOME", "/nowhere");
    let attempt = attempt.start().await;
    let home = attempt.folder.path().join("home");
    let cwd = attempt.folder.path().join("work");
    let ended = attempt.finish().await;
    let text = ended.text();
    assert!(text.contains("SUBAGENT_PARAM_REPO=r"), "{text}");
    assert!(!text.contains("SUBAGENT_WORKER_") && !text.contains("KUBERNETES_"), "{text}");
    assert!(text.contains(&format!("HOME={}", home.display())), "N6: {text}");
    assert!(text.contains(cwd.to_str().unwrap()), "c18: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_are_few() {
    // Pitfall C3, design section 9: one report for the turn's record, one for the end, whatever the agent says between.
    let attempt = run("!repeat 200 !say x\n!think y\n!tool z\n!usage {\"used\": 1, \"size\": 2}").start().await;
    assert_eq!(attempt.finish().await.report.seq, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_at_work_is_reported_within_the_idle_deadline() {
    let mut setup = run("!stream 20 100 x\n!gate end");
    setup.assignment.deadlines.idle_seconds = Some(2);
    let attempt = setup.start().await;
    let report = attempt.gateway.report("activity", |report| report.seq == 2).await;
    assert!(report.end().is_none(), "still in its turn");
    assert_eq!(report.snapshot.activity.unwrap().summary, "writing");
    attempt.collector.open_gate("end");
    assert_eq!(attempt.finish().await.words().0, "Completed");
}
