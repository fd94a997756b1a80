//! Faults in stages that have no prompt.

use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::{Value, json};

use crate::driver::{Driver, SOON};

#[test]
fn initialize_tells_who_it_is_and_what_it_can() {
    let result = Driver::start(&[]).initialize()["result"].clone();
    assert_eq!(result["protocolVersion"], 1);
    let info = json!({"name": "scripted-agent", "title": "Scripted agent", "version": env!("CARGO_PKG_VERSION")});
    assert_eq!(result["agentInfo"], info);
    assert_eq!(result["agentCapabilities"]["loadSession"], false);
    assert_eq!(result["_meta"]["steering"]["supported"], true);
}

#[test]
fn capabilities_are_merged() {
    let patch = r#"{"agentCapabilities": {"loadSession": true, "sessionCapabilities": {"close": null}},
        "_meta": null, "authMethods": [{"id": "token", "name": "Token"}]}"#;
    let mut agent = Driver::start(&[("SCRIPTED_AGENT_CAPABILITIES", patch)]);
    let result = agent.initialize()["result"].clone();
    assert_eq!(result["agentCapabilities"]["loadSession"], true);
    assert_eq!(result["agentCapabilities"]["promptCapabilities"]["image"], true);
    assert_eq!(result["agentCapabilities"]["sessionCapabilities"]["close"], Value::Null);
    assert_eq!(result["_meta"], Value::Null);
    agent.new_session();
    let session = agent.session.clone();
    assert_eq!(agent.call("session/close", json!({"sessionId": session}))["error"]["code"], -32601);
}

#[rstest]
#[case("SCRIPTED_AGENT_INITIALIZE", "hang")]
#[case("SCRIPTED_AGENT_NEW", "hang")]
fn a_stage_can_hang_and_the_agent_still_reads(#[case] variable: &str, #[case] fault: &str) {
    let mut agent = Driver::start(&[(variable, fault)]);
    let initialize = json!({"protocolVersion": 1});
    let id = if variable.ends_with("NEW") {
        agent.call("initialize", initialize);
        agent.send("session/new", json!({"cwd": "/", "mcpServers": []}))
    } else {
        agent.send("initialize", initialize)
    };
    // A later request is answered, the one before is not.
    assert_eq!(agent.call("no/such", json!({}))["error"]["code"], -32601);
    agent.close_stdin();
    assert_eq!(agent.ended().code(), Some(0));
    agent.rest();
    assert!(!agent.seen.iter().any(|line| {
        serde_json::from_slice::<Value>(line).is_ok_and(|message| message["id"] == id && !message["result"].is_null())
    }));
}

#[test]
fn a_delay_takes_its_time_and_no_more() {
    let mut agent = Driver::start(&[("SCRIPTED_AGENT_INITIALIZE", "delay:300")]);
    let start = Instant::now();
    assert_eq!(agent.initialize()["result"]["protocolVersion"], 1);
    assert!(start.elapsed() >= Duration::from_millis(300));
}

#[test]
fn a_gate_holds_a_stage() {
    let mut agent = Driver::start(&[("SCRIPTED_AGENT_INITIALIZE", "gate:init")]);
    let id = agent.send("initialize", json!({"protocolVersion": 1}));
    agent.collector.wait_for_event(SOON, "gate", "init").expect("the agent at the gate");
    agent.collector.open_gate("init");
    assert_eq!(agent.answer(id)["result"]["protocolVersion"], 1);
}

#[rstest]
#[case("error", json!({"code": -32603, "message": "scripted failure"}))]
#[case("error:-32000:log in: now", json!({"code": -32000, "message": "log in: now"}))]
#[case("garbage:3,error:1", json!({"code": 1, "message": "scripted failure"}))]
fn a_stage_can_fail(#[case] fault: &str, #[case] error: Value) {
    let mut agent = Driver::start(&[("SCRIPTED_AGENT_INITIALIZE", fault)]);
    assert_eq!(agent.initialize()["error"], error);
}

#[rstest]
#[case("START", "exit:3", Some(3), None)]
#[case("START", "banner-exit", Some(0), None)]
#[case("START", "kill:SEGV", None, Some(11))]
#[case("INITIALIZE", "exit:7", Some(7), None)]
#[case("INITIALIZE", "banner-exit", Some(0), None)]
#[case("INITIALIZE", "crash", None, Some(6))]
#[case("NEW", "exit:9", Some(9), None)]
#[case("PROMPT", "kill:KILL", None, Some(9))]
fn a_stage_can_end_the_process(
    #[case] stage: &str,
    #[case] fault: &str,
    #[case] code: Option<i32>,
    #[case] signal: Option<i32>,
) {
    let variable = format!("SCRIPTED_AGENT_{stage}");
    let mut agent = Driver::start(&[(&variable, fault)]);
    if stage != "START" {
        agent.send("initialize", json!({"protocolVersion": 1}));
    }
    if stage == "NEW" || stage == "PROMPT" {
        let id = agent.send("session/new", json!({"cwd": "/", "mcpServers": []}));
        if stage == "PROMPT" {
            agent.session = agent.answer(id)["result"]["sessionId"].as_str().expect("a session").into();
            agent.send_prompt("never answered");
        }
    }
    assert_eq!((agent.ended().code(), agent.killed_by()), (code, signal));
    agent.rest();
    let banner = agent.seen.first().is_some_and(|line| line.starts_with(b"scripted-agent: "));
    assert_eq!(banner, fault == "banner-exit");
    agent.collector.wait_for_event(SOON, "disconnected", "").expect("its end is seen");
}

#[rstest]
#[case("banner")]
#[case("garbage")]
#[case("bigline:12")]
fn a_stage_can_be_noisy_and_go_on(#[case] fault: &str) {
    let mut agent = Driver::start(&[("SCRIPTED_AGENT_INITIALIZE", fault)]);
    assert_eq!(agent.initialize()["result"]["protocolVersion"], 1);
    assert_eq!(agent.seen.len(), 2);
}

#[test]
fn another_version_can_be_answered() {
    let mut agent = Driver::start(&[("SCRIPTED_AGENT_INITIALIZE", "version:2")]);
    assert_eq!(agent.initialize()["result"]["protocolVersion"], 2);
}

#[test]
fn a_session_can_need_authentication() {
    let methods = r#"{"authMethods": [{"id": "token", "name": "Token"}]}"#;
    let mut agent = Driver::start(&[("SCRIPTED_AGENT_NEW", "auth-required"), ("SCRIPTED_AGENT_CAPABILITIES", methods)]);
    agent.initialize();
    assert_eq!(agent.new_session()["error"]["code"], -32000);
    assert_eq!(agent.call("authenticate", json!({"methodId": "key"}))["error"]["code"], -32602);
    assert_eq!(agent.new_session()["error"]["code"], -32000);
    assert_eq!(agent.call("authenticate", json!({"methodId": "token"}))["result"], json!({}));
    assert!(agent.new_session()["result"]["sessionId"].is_string());
}

#[test]
fn a_session_can_lack_its_id() {
    let mut agent = Driver::start(&[("SCRIPTED_AGENT_NEW", "no-session-id")]);
    agent.initialize();
    let answer = agent.new_session();
    assert!(answer["result"].is_object() && answer["result"]["sessionId"].is_null());
}

#[test]
fn updates_can_come_before_the_session() {
    let mut agent = Driver::start(&[("SCRIPTED_AGENT_NEW", "updates-before")]);
    agent.initialize();
    let from = agent.seen.len();
    agent.new_session();
    let first: Value = serde_json::from_slice(&agent.seen[from]).expect("JSON");
    assert_eq!((&first["method"], &first["params"]["sessionId"]), (&json!("session/update"), &json!(agent.session)));
}

#[rstest]
#[case(json!({"cwd": "relative", "mcpServers": []}), -32602)]
#[case(json!({"cwd": "/"}), -32602)]
fn a_session_needs_its_parameters(#[case] params: Value, #[case] code: i64) {
    let mut agent = Driver::start(&[]);
    assert_eq!(agent.call("session/new", json!({"cwd": "/", "mcpServers": []}))["error"]["code"], -32600);
    agent.initialize();
    assert_eq!(agent.call("session/new", params)["error"]["code"], code);
}

#[test]
fn a_mode_is_set_when_there_is_one() {
    let mut agent = Driver::open(&[("SCRIPTED_AGENT_SET_MODE", "null-result")]);
    let session = agent.session.clone();
    let set = |mode: &str| json!({"sessionId": session, "modeId": mode});
    assert_eq!(agent.call("session/set_mode", set("plan"))["result"], Value::Null);
    assert_eq!(agent.call("session/set_mode", set("lazy"))["error"]["code"], -32602);
    let opened: Value = serde_json::from_str(&agent.prompt("!session").text()).expect("JSON");
    assert_eq!(opened["mode"], "plan");
}

#[test]
fn eof_ends_the_agent_unless_told_otherwise() {
    let mut agent = Driver::open(&[]);
    agent.send_prompt("!hang");
    agent.close_stdin();
    assert_eq!(agent.ended().code(), Some(0));

    let mut agent = Driver::open(&[("SCRIPTED_AGENT_EOF", "exit:5")]);
    agent.close_stdin();
    assert_eq!(agent.ended().code(), Some(5));

    let mut agent = Driver::open(&[("SCRIPTED_AGENT_EOF", "ignore"), ("SCRIPTED_AGENT_STAMP", "10")]);
    agent.close_stdin();
    agent.collector.wait_for_event(SOON, "eof", "").expect("it saw the end");
    let stamps = agent.collector.of_kind("stamp").len();
    agent
        .collector
        .wait_for(SOON, |events| {
            (events.iter().filter(|event| event.kind == "stamp").count() > stamps + 3).then_some(())
        })
        .expect("it goes on");
    assert!(agent.lives());
}
