//! Messages, endings, waits, permissions and steering.

use rstest::rstest;
use serde_json::{Value, json};

use crate::driver::{Driver, SOON};

#[test]
fn without_a_knob_it_echoes() {
    let mut agent = Driver::open(&[]);
    let turn = agent.prompt("hello\n  there !not a step");
    assert_eq!((turn.text().as_str(), turn.end().as_str()), ("echo: hello\n  there !not a step", "end_turn"));
    let prompt = agent.reported("prompt");
    assert_eq!(prompt.text, "hello\n  there !not a step");
}

#[test]
fn a_script_from_the_environment_is_for_prompts_without_steps() {
    let mut agent = Driver::open(&[("SCRIPTED_AGENT_SCRIPT", "!say from outside\n!stop refusal")]);
    let turn = agent.prompt("anything");
    assert_eq!((turn.text().as_str(), turn.end().as_str()), ("from outside", "refusal"));
    assert_eq!(agent.prompt("!say own").text(), "own");
}

#[rstest]
#[case("!stop end_turn", "end_turn")]
#[case("!stop max_tokens", "max_tokens")]
#[case("!stop max_turn_requests", "max_turn_requests")]
#[case("!stop refusal", "refusal")]
#[case("!stop cancelled", "cancelled")]
#[case("!stop tired", "tired")]
#[case("!error -32050 no luck", "-32050")]
#[case("!no-message", "end_turn")]
#[case("!nothing of the kind", "-32602")]
#[case("!write /no/such/folder/file text", "-32603")]
fn a_turn_ends_as_told(#[case] script: &str, #[case] end: &str) {
    let turn = Driver::open(&[]).prompt(script);
    assert_eq!(turn.end(), end);
    assert_eq!(turn.updates, Vec::<Value>::new());
}

#[test]
fn members_of_a_stop_go_into_the_response() {
    let turn = Driver::open(&[]).prompt("!stop end_turn {\"usage\": {\"totalTokens\": -5}}");
    assert_eq!(turn.answer["result"], json!({"stopReason": "end_turn", "usage": {"totalTokens": -5}}));
}

#[rstest]
#[case("!say a\n!say\n!say b\\n", &["a", "", "b\n"])]
#[case("!chunks 3 abcdefg", &["abc", "def", "g"])]
#[case("!stream 3 1 x", &["x", "x", "x"])]
#[case("!fill 7 ab", &["abababa"])]
#[case("!repeat 2 !say x", &["x", "x"])]
fn text_comes_in_these_chunks(#[case] script: &str, #[case] chunks: &[&str]) {
    let turn = Driver::open(&[]).prompt(script);
    let texts: Vec<_> = turn.of("agent_message_chunk").map(|update| update["content"]["text"].clone()).collect();
    assert_eq!(texts, chunks);
}

#[test]
fn a_long_text_is_whole_over_many_chunks() {
    let turn = Driver::open(&[]).prompt("!fill 300001 é");
    assert!(turn.updates.len() > 3);
    assert_eq!(turn.text(), scripted_agent::script::fill(300_001, "é"));
}

#[test]
fn facts_stand_on_lines_of_their_own() {
    let mut agent = Driver::open(&[("HOME", "/nowhere")]);
    let turn = agent.prompt("!env HOME\n!env SHELL\n!cwd");
    let cwd = std::env::current_dir().expect("a folder");
    assert_eq!(turn.text(), format!("HOME=/nowhere\nSHELL is not set\n{}", cwd.display()));
}

#[test]
fn message_ids_part_messages_and_join_chunks() {
    let turn = Driver::open(&[]).prompt("!say old\n!message-ids on\n!chunks 2 ab\n!say c\n!message-ids off\n!say d");
    let ids: Vec<_> = turn.of("agent_message_chunk").map(|update| update["messageId"].clone()).collect();
    assert_eq!(ids[0], Value::Null);
    assert!(ids[1].is_string() && ids[1] == ids[2] && ids[2] != ids[3]);
    assert_eq!(ids[4], Value::Null);
}

#[rstest]
#[case("!think why", json!({"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": "why"}}))]
#[case("!mode plan", json!({"sessionUpdate": "current_mode_update", "currentModeId": "plan"}))]
#[case("!title T", json!({"sessionUpdate": "session_info_update", "title": "T"}))]
#[case("!usage {\"used\": -1}", json!({"sessionUpdate": "usage_update", "used": -1}))]
#[case(
    "!plan a:completed,b",
    json!({"sessionUpdate": "plan", "entries": [
        {"content": "a", "priority": "medium", "status": "completed"},
        {"content": "b", "priority": "medium", "status": "pending"},
    ]})
)]
#[case(
    "!image 4",
    json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "image", "mimeType": "image/png", "data": "AAAAAA=="}})
)]
#[case(
    "!link file:///a/b.txt",
    json!({"sessionUpdate": "agent_message_chunk",
        "content": {"type": "resource_link", "uri": "file:///a/b.txt", "name": "b.txt"}})
)]
#[case(
    "!resource file:///a T",
    json!({"sessionUpdate": "agent_message_chunk",
        "content": {"type": "resource", "resource": {"uri": "file:///a", "mimeType": "text/plain", "text": "T"}}})
)]
#[case("!unknown-update", json!({"sessionUpdate": "scripted_unknown", "detail": [1, 2, 3]}))]
#[case("!unknown-content", json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "hologram", "points": 3}}))]
fn an_update_looks_like_this(#[case] script: &str, #[case] update: Value) {
    let mut agent = Driver::open(&[]);
    let turn = agent.prompt(script);
    assert_eq!(turn.updates, [json!({"sessionId": agent.session, "update": update})]);
    assert_eq!(turn.end(), "end_turn");
}

#[rstest]
#[case("!tool grep", &["pending", "in_progress", "completed"])]
#[case("!tool grep failed", &["pending", "in_progress", "failed"])]
#[case("!tool grep in_progress", &["pending", "in_progress"])]
#[case("!tool grep pending", &["pending"])]
fn a_tool_call_goes_through_its_states(#[case] script: &str, #[case] states: &[&str]) {
    let turn = Driver::open(&[]).prompt(script);
    let seen: Vec<_> = turn.updates.iter().map(|params| params["update"]["status"].clone()).collect();
    assert_eq!(seen, states);
    assert_eq!(turn.of("tool_call").next().map(|call| call["title"].clone()), Some(json!("grep")));
}

#[rstest]
#[case("!hang")]
#[case("!sleep 600000")]
#[case("!stream 1000 600000 x")]
#[case("!gate never")]
#[case("!await-steer")]
#[case("!tool dead-connection in_progress\n!hang\n!say never")]
fn a_wait_ends_with_a_cancel(#[case] script: &str) {
    let mut agent = Driver::open(&[]);
    let id = agent.send_prompt(&format!("!think ready\n{script}"));
    agent.update("the turn", |update| update["sessionUpdate"] == "agent_thought_chunk");
    agent.cancel();
    assert_eq!(agent.finish(id, 0).end(), "cancelled");
    assert_eq!(agent.reported_times("cancel", 1).len(), 1);
    assert_eq!(agent.prompt("again").end(), "end_turn");
}

#[rstest]
#[case("answer:end_turn", "end_turn")]
#[case("delay:50", "cancelled")]
#[case("error:-32000:interrupted", "-32000")]
fn a_cancel_is_answered_as_the_knob_says(#[case] knob: &str, #[case] end: &str) {
    let mut agent = Driver::open(&[("SCRIPTED_AGENT_CANCEL", knob)]);
    let id = agent.send_prompt("!say x\n!hang");
    agent.update("the turn", |_| true);
    agent.cancel();
    assert_eq!(agent.finish(id, 0).end(), end);
}

#[test]
fn a_cancel_without_a_turn_changes_nothing() {
    let mut agent = Driver::open(&[]);
    agent.cancel();
    agent.collector.wait_for_event(SOON, "cancel", "").expect("it arrived");
    assert_eq!(agent.prompt("hello").end(), "end_turn");
}

#[rstest]
#[case("!hang", Some("ignore"))]
#[case("!hang hard", None)]
fn an_ignored_cancel_leaves_the_turn_running(#[case] script: &str, #[case] knob: Option<&str>) {
    let knobs: Vec<_> = knob.map(|knob| ("SCRIPTED_AGENT_CANCEL", knob)).into_iter().collect();
    let mut agent = Driver::open(&knobs);
    let id = agent.send_prompt(&format!("!say x\n{script}"));
    agent.update("the turn", |_| true);
    agent.cancel();
    agent.collector.wait_for_event(SOON, "cancel", "").expect("it arrived");
    // A later request is answered, so the cancel has been handled; the prompt is still open.
    let answer = agent.send_prompt("second");
    assert_eq!(agent.answer(answer)["error"]["code"], -32600);
    assert_eq!(agent.reported_times("second-prompt", 1).len(), 1);
    assert!(!agent.seen.iter().any(|line| {
        serde_json::from_slice::<Value>(line).is_ok_and(|message| message["id"] == id && message["method"].is_null())
    }));
}

#[test]
fn a_gate_holds_the_turn_at_an_exact_point() {
    let mut agent = Driver::open(&[]);
    let id = agent.send_prompt("!say before\n!gate here\n!say after");
    agent.collector.wait_for_event(SOON, "gate", "here").expect("the agent at the gate");
    agent.collector.open_gate("here");
    assert_eq!(agent.finish(id, 0).text(), "beforeafter");
}

#[rstest]
#[case(json!({"outcome": {"outcome": "selected", "optionId": "no"}}), "permission: selected no", "failed")]
#[case(json!({"outcome": {"outcome": "selected", "optionId": "yes"}}), "permission: selected yes", "completed")]
#[case(json!({"outcome": {"outcome": "selected", "optionId": "x"}}), "permission: selected x, which was not offered", "failed")]
#[case(json!({"outcome": {"outcome": "cancelled"}}), "permission: cancelled", "failed")]
fn a_permission_is_asked_for_and_the_answer_said(#[case] result: Value, #[case] text: &str, #[case] status: &str) {
    let mut agent = Driver::open(&[]);
    let id = agent.send_prompt("!permission \"rm x\" allow_always:yes,reject_once:no");
    let request = agent
        .until("a request", |message| (message["method"] == "session/request_permission").then(|| message.clone()));
    assert_eq!(request["params"]["sessionId"], json!(agent.session));
    assert_eq!(request["params"]["toolCall"]["rawInput"], json!({"command": "rm x"}));
    assert_eq!(request["params"]["toolCall"]["kind"], "execute");
    let options: Vec<_> = request["params"]["options"].as_array().expect("options").clone();
    assert_eq!(options[0], json!({"optionId": "yes", "name": "allow_always (yes)", "kind": "allow_always"}));
    assert_eq!(options[1]["kind"], "reject_once");
    agent.send_line(&json!({"jsonrpc": "2.0", "id": request["id"], "result": result}).to_string());
    let turn = agent.finish(id, 0);
    assert_eq!(turn.text(), text);
    assert_eq!(turn.of("tool_call_update").last().map(|update| update["status"].clone()), Some(json!(status)));
}

#[test]
fn a_permission_can_hide_what_it_asks_for() {
    let mut agent = Driver::open(&[]);
    agent.send_prompt("!permission x allow_once:a no-input no-kind x2");
    for _ in 0..2 {
        let call = agent.until("a request", |message| {
            (message["method"] == "session/request_permission").then(|| message["params"]["toolCall"].clone())
        });
        assert_eq!((&call["rawInput"], &call["kind"]), (&Value::Null, &Value::Null));
    }
}

#[test]
fn a_cancelled_turn_still_waits_for_its_permission() {
    let mut agent = Driver::open(&[]);
    let id = agent.send_prompt("!permission x allow_once:a\n!say not reached");
    let request = agent.until("a request", |message| {
        (message["method"] == "session/request_permission").then(|| message["id"].clone())
    });
    agent.cancel();
    agent.collector.wait_for_event(SOON, "cancel", "").expect("it arrived");
    let result = json!({"outcome": {"outcome": "cancelled"}});
    agent.send_line(&json!({"jsonrpc": "2.0", "id": request, "result": result}).to_string());
    let turn = agent.finish(id, 0);
    assert_eq!((turn.text().as_str(), turn.end().as_str()), ("permission: cancelled", "cancelled"));
    agent.reported("permission");
    let kinds: Vec<_> = agent.collector.all().into_iter().map(|event| event.kind).collect();
    let at = |kind: &str| kinds.iter().position(|seen| seen == kind).expect("reported");
    assert!(at("cancel") < at("permission"));
}

#[test]
fn a_request_to_the_client_says_what_came_back() {
    let mut agent = Driver::open(&[]);
    let id = agent.send_prompt("!unknown-method fs/read_text_file {\"path\": \"/x\"}");
    let request =
        agent.until("a request", |message| (message["method"] == "fs/read_text_file").then(|| message.clone()));
    assert_eq!(request["params"], json!({"path": "/x"}));
    let error = json!({"code": -32601, "message": "no"});
    agent.send_line(&json!({"jsonrpc": "2.0", "id": request["id"], "error": error}).to_string());
    assert_eq!(agent.finish(id, 0).text(), "fs/read_text_file: error -32601");
}

#[test]
fn a_steered_text_reaches_the_running_turn() {
    let mut agent = Driver::open(&[]);
    let id = agent.send_prompt("!say ready\n!hang");
    agent.update("the turn", |_| true);
    assert_eq!(agent.steer("look left")["result"]["outcome"], "injected");
    assert_eq!(agent.steer("!stop refusal")["result"]["outcome"], "injected");
    let turn = agent.finish(id, 0);
    assert_eq!((turn.text().as_str(), turn.end().as_str()), ("ready\nsteered: look left", "refusal"));
    assert_eq!(agent.reported_times("steer", 2).len(), 2);
    assert_eq!(agent.steer("too late")["result"]["outcome"], "promptRequired");
}

#[test]
fn an_idle_agent_that_is_not_told_better_runs_a_turn_nobody_asked_for() {
    let mut agent = Driver::open(&[]);
    let session = agent.session.clone();
    let prompt = json!([{"type": "text", "text": "hi"}]);
    agent.call("_session/steering", json!({"sessionId": session, "prompt": prompt}));
    assert_eq!(agent.reported_times("unowned-turn", 1).len(), 1);
}

#[test]
fn a_steer_can_be_refused_or_unknown() {
    let mut agent = Driver::open(&[("SCRIPTED_AGENT_STEERING", "prompt-required")]);
    agent.send_prompt("!say x\n!hang");
    agent.update("the turn", |_| true);
    assert_eq!(agent.steer("x")["result"]["outcome"], "promptRequired");

    let mut agent = Driver::open(&[("SCRIPTED_AGENT_CAPABILITIES", r#"{"_meta": null}"#)]);
    assert_eq!(agent.steer("x")["error"]["code"], -32601);
}

#[test]
fn updates_can_follow_the_answer() {
    let mut agent = Driver::open(&[]);
    let turn = agent.prompt("!say x\n!update-after-response late");
    assert_eq!(turn.text(), "x");
    agent.update("the late text", |update| update["content"]["text"] == "late");
}

#[test]
fn another_session_id_can_be_shown() {
    let mut agent = Driver::open(&[]);
    let turn = agent.prompt("!say own\n!other-session-id them\n!say other");
    let ids: Vec<_> = turn.updates.iter().map(|params| params["sessionId"].clone()).collect();
    assert_eq!(ids, [json!(agent.session), json!("them")]);
}
