//! Sessions that outlive their process.

use rstest::rstest;
use serde_json::{Value, json};

use crate::driver::Driver;

struct Kept {
    folder: tempfile::TempDir,
    session: String,
}

/// A session with one complete turn and one that was killed in the middle.
fn kept() -> Kept {
    let folder = tempfile::tempdir().expect("a folder");
    let mut agent = open(&folder, &[]);
    agent.new_session();
    agent.prompt("!say first\n!say  answer");
    agent.send_prompt("!say partial\n!kill KILL");
    assert_eq!(agent.killed_by(), Some(9));
    Kept { session: agent.session.clone(), folder }
}

fn open(folder: &tempfile::TempDir, more: &[(&str, &str)]) -> Driver {
    let state = folder.path().to_str().expect("a name");
    let mut variables = vec![("SCRIPTED_AGENT_STATE", state)];
    variables.extend(more);
    let mut agent = Driver::start(&variables);
    agent.initialize();
    agent
}

fn request(kept: &Kept) -> Value {
    json!({"sessionId": kept.session, "cwd": "/", "mcpServers": []})
}

fn replayed(agent: &Driver) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    agent
        .seen
        .iter()
        .filter_map(|line| serde_json::from_slice::<Value>(line).ok())
        .map(|message| message["params"]["update"].clone())
        .filter(|update| update.is_object())
        .map(|update| (text(&update["sessionUpdate"]), text(&update["content"]["text"])))
        .collect()
}

#[test]
fn load_replays_what_was_said_before_its_answer() {
    let kept = kept();
    let mut agent = open(&kept.folder, &[]);
    assert!(agent.call("session/load", request(&kept))["error"].is_null());
    let texts = [
        ("user_message_chunk", "!say first\n!say  answer"),
        ("agent_message_chunk", "firstanswer"),
        ("user_message_chunk", "!say partial\n!kill KILL"),
    ];
    assert_eq!(replayed(&agent), texts.map(|(kind, text)| (kind.to_string(), text.to_string())));
    agent.session = kept.session;
    assert_eq!(agent.prompt("!history").text(), "turns before: 2");
}

#[test]
fn resume_replays_nothing_and_remembers() {
    let kept = kept();
    let mut agent = open(&kept.folder, &[]);
    assert!(agent.call("session/resume", request(&kept))["error"].is_null());
    assert_eq!(replayed(&agent), []);
    agent.session = kept.session;
    assert_eq!(agent.prompt("!history").text(), "turns before: 2");
}

#[rstest]
#[case("session/load")]
#[case("session/resume")]
fn an_unknown_session_is_an_error(#[case] method: &str) {
    let kept = kept();
    let mut agent = open(&kept.folder, &[]);
    let params = json!({"sessionId": "never-seen", "cwd": "/", "mcpServers": []});
    assert_eq!(agent.call(method, params)["error"]["code"], -32002);
}

#[test]
fn load_can_replay_nothing() {
    let kept = kept();
    let mut agent = open(&kept.folder, &[("SCRIPTED_AGENT_LOAD", "replay-nothing,null-result")]);
    let answer = agent.call("session/load", request(&kept));
    assert!(answer["error"].is_null() && answer["result"].is_null());
    assert_eq!(replayed(&agent), []);
}

#[rstest]
#[case("SCRIPTED_AGENT_LOAD", "session/load")]
#[case("SCRIPTED_AGENT_RESUME", "session/resume")]
fn a_reopened_session_can_speak_as_another(#[case] variable: &str, #[case] method: &str) {
    let kept = kept();
    let mut agent = open(&kept.folder, &[(variable, "other-session-id")]);
    agent.call(method, request(&kept));
    agent.session = kept.session;
    let turn = agent.prompt("hello");
    assert_eq!(turn.updates[0]["sessionId"], "someone-elses");
}

#[rstest]
#[case(r#"{"agentCapabilities": {"loadSession": false}}"#, "session/load", "session/resume")]
#[case(r#"{"agentCapabilities": {"sessionCapabilities": {"resume": null}}}"#, "session/resume", "session/load")]
fn only_what_is_advertised_is_served(#[case] patch: &str, #[case] refused: &str, #[case] served: &str) {
    let kept = kept();
    let mut agent = open(&kept.folder, &[("SCRIPTED_AGENT_CAPABILITIES", patch)]);
    assert_eq!(agent.call(refused, request(&kept))["error"]["code"], -32601);
    assert!(agent.call(served, request(&kept))["error"].is_null());
}

#[test]
fn a_session_says_how_it_was_opened() {
    let kept = kept();
    let mut agent = open(&kept.folder, &[]);
    let mut params = request(&kept);
    params["systemPrompt"] = json!({"mode": "override", "content": [{"type": "text", "text": "be brief"}]});
    agent.call("session/resume", params.clone());
    agent.session = kept.session;
    let opened: Value = serde_json::from_str(&agent.prompt("!session").text()).expect("JSON");
    assert_eq!(opened, json!({"method": "session/resume", "params": params, "mode": "default"}));
}

#[rstest]
#[case("models", "session/set_model", json!({"modelId": "large"}), "session/set_config_option")]
#[case("options", "session/set_config_option", json!({"configId": "model", "value": "large"}), "session/set_model")]
fn a_model_is_chosen_the_way_it_is_offered(
    #[case] offered: &str,
    #[case] method: &str,
    #[case] mut choice: Value,
    #[case] other: &str,
) {
    let mut agent = Driver::start(&[("SCRIPTED_AGENT_MODELS", offered)]);
    agent.initialize();
    let opened = agent.new_session();
    assert_eq!(opened["result"]["models"].is_object(), offered == "models");
    assert_eq!(opened["result"]["configOptions"].is_array(), offered == "options");
    choice["sessionId"] = json!(agent.session);
    assert_eq!(agent.call(other, choice.clone())["error"]["code"], -32601);
    assert!(agent.call(method, choice.clone())["error"].is_null());
    let opened: Value = serde_json::from_str(&agent.prompt("!session").text()).expect("JSON");
    assert_eq!(opened["model"], "large");
    choice[if offered == "models" { "modelId" } else { "value" }] = json!("huge");
    assert_eq!(agent.call(method, choice)["error"]["code"], -32602);
}

#[test]
fn a_closed_session_takes_no_prompt() {
    let mut agent = Driver::open(&[]);
    let session = agent.session.clone();
    let id = agent.send_prompt("!say x\n!hang");
    agent.update("the turn", |_| true);
    let closing = agent.send("session/close", json!({"sessionId": session}));
    // The turn ends by it; which of the two answers comes first is open.
    let mut open = vec![id, closing];
    while !open.is_empty() {
        let answered = agent.until("both answers", |message| message["id"].as_i64());
        open.retain(|id| *id != answered);
    }
    assert_eq!(agent.prompt("hello").end(), "-32002");
}
