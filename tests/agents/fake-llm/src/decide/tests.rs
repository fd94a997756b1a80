//! Tables for the decision.

use rstest::rstest;
use serde_json::json;

use super::*;
use crate::conversation::Tool;
use crate::script::Rule;

const SCRIPT: &str = r#"<fake-llm>[{"text":"a"},{"toolCall":{"name":"bash","arguments":{"command":"x {{toolResult}}"}}},
    {"delay":5},{"shell":"y"},{"hold":"g"},{"text":"got {{toolResult}}"},{"stop":"refusal"}]</fake-llm>"#;

fn user(text: &str) -> Message {
    Message::text(Role::User, text)
}

fn said(text: &str) -> Message {
    Message::text(Role::Assistant, text)
}

fn call() -> Message {
    Message::call("bash", json!({}))
}

fn result(text: &str) -> Message {
    Message::text(Role::Tool, text)
}

fn bash() -> Tool {
    Tool {
        name: "bash".into(),
        schema: json!({"properties": {"command": {"type": "string"}}, "required": ["command"]}),
    }
}

fn talk(messages: Vec<Message>) -> Conversation {
    Conversation { model: "m".into(), system: "You are a coder.".into(), messages, tools: vec![bash()] }
}

/// An answer in one line.
fn line(answer: &Answer) -> String {
    let mut words: Vec<String> = answer
        .steps
        .iter()
        .map(|step| match step {
            Step::Text(cut) => format!("say {}", cut.value),
            Step::Call(call) => format!("call {} {}", call.name, call.arguments["command"].as_str().unwrap_or("-")),
            Step::Delay(millis) => format!("delay {millis}"),
            Step::Hold(gate) => format!("hold {gate}"),
            Step::Error(status, _) => format!("error {status}"),
        })
        .collect();
    words.push(format!("{:?}", answer.stop));
    words.join(", ")
}

#[rstest]
#[case::first(vec![user(SCRIPT)], "say a, call bash x , ToolCall")]
#[case::after_one_result(vec![user(SCRIPT), call(), result(" r1 ")], "delay 5, call bash y, ToolCall")]
#[case::after_two(vec![user(SCRIPT), call(), result("r1"), call(), result("r2")], "hold g, say got r2, Refusal")]
#[case::past_the_end(vec![user(SCRIPT), call(), result(""), call(), result(""), call(), result("")], "Done")]
#[case::second_turn_starts_anew(
    vec![user(SCRIPT), call(), result("r"), said("done"), user(SCRIPT)], "say a, call bash x r, ToolCall")]
#[case::earlier_turns_are_over(vec![user(SCRIPT), said("done"), user("hello")], "say This prompt is not scripted., Done")]
#[case::reminder_during_a_turn(
    vec![user(SCRIPT), call(), result("r"), user("<system-reminder>be good</system-reminder>")], "delay 5, call bash y, ToolCall")]
#[case::steered_without_a_script_goes_on(
    vec![user(SCRIPT), call(), result("r"), user("hurry up")], "delay 5, call bash y, ToolCall")]
#[case::steered_with_a_script_changes_course(
    vec![user(SCRIPT), call(), result("r"), user("<fake-llm>[{\"text\":\"new\"}]</fake-llm>")], "say new, Done")]
#[case::cancelled_prompt_is_not_taken_up_again(vec![user(SCRIPT), user("hello")], "say This prompt is not scripted., Done")]
#[case::reminder_after_the_prompt(vec![user(SCRIPT), user("<env>x</env>")], "say a, call bash x , ToolCall")]
#[case::environment_before_the_prompt(vec![user("<env>x</env>"), user(SCRIPT)], "say a, call bash x , ToolCall")]
#[case::mistake(vec![user("<fake-llm>[{\"txt\":1}]</fake-llm>")], "error 400, Done")]
#[case::unknown_form(vec![user("<fake-llm>[{\"text\":\"{{no}}\"}]</fake-llm>")], "error 400, Done")]
#[case::nothing(vec![], "say This prompt is not scripted., Done")]
fn the_answer_follows_from_the_conversation(#[case] messages: Vec<Message>, #[case] expected: &str) {
    assert_eq!(line(&decide(&talk(messages), &Script::default())), expected);
}

#[test]
fn a_side_call_quoting_the_prompt_is_not_scripted() {
    let mut conversation = talk(vec![user("Generate a title:"), user(SCRIPT)]);
    conversation.tools.clear();
    let answer = decide(&conversation, &Script::default());
    assert_eq!((line(&answer).as_str(), answer.source), ("say Scripted conversation, Done", Source::SideCall));
    // Without a system text it is a person with curl.
    conversation.system.clear();
    assert_eq!(decide(&conversation, &Script::default()).source, Source::Directive);
}

#[test]
fn a_rule_may_ask_for_side_calls() {
    let rules: Vec<Rule> = serde_json::from_value(
        json!([{"when": {"system": "title", "sideCalls": true}, "then": [{"text": "My title"}]}]),
    )
    .unwrap();
    let mut conversation = talk(vec![user("anything")]);
    conversation.tools.clear();
    conversation.system = "You are a title generator".into();
    assert_eq!(line(&decide(&conversation, &Script::new(rules))), "say My title, Done");
}

#[test]
fn rules_are_tried_in_order_and_directives_win() {
    let rules: Vec<Rule> = serde_json::from_value(json!([
        {"when": {"contains": ["red"]}, "then": [{"text": "first {{prompt}}"}]},
        {"when": {"regex": ["r(e)d"]}, "then": [{"text": "second"}]},
        {"when": {"regex": ["gr(?<vowel>.)+n"]}, "then": [{"text": "third {{vowel}}"}]},
    ]))
    .unwrap();
    let script = Script::new(rules);
    let line_of = |text: &str| line(&decide(&talk(vec![user(text)]), &script));
    assert_eq!(line_of("red"), "say first red, Done");
    assert_eq!(line_of("green"), "say third e, Done");
    assert_eq!(line_of("red <fake-llm>[{\"text\":\"mine\"}]</fake-llm>"), "say mine, Done");
    assert_eq!(line_of("blue"), "say This prompt is not scripted., Done");
}

/// The prompt of the demonstration: three answers, the file written through the tool on offer, the digest at the end.
#[test]
fn a_nonce_is_digested_written_read_back_and_answered() {
    let digest = crate::template::sha256_hex("00ff00ff");
    let prompt = "nonce: 00ff00ff\nWrite the SHA-256 of the nonce to the file answer.txt.";
    let mut conversation = talk(vec![user(prompt)]);
    conversation.system = "<env>\n  Working directory: /workspace\n</env>".into();
    let script = Script::default();
    assert_eq!(
        line(&decide(&conversation, &script)),
        format!(
            "say Writing the digest of the nonce., call bash printf %s '{digest}\n' > '/workspace/answer.txt', ToolCall"
        )
    );
    conversation.messages.extend([call(), result("written")]);
    assert_eq!(line(&decide(&conversation, &script)), "call bash cat answer.txt, ToolCall");
    conversation.messages.extend([call(), result("read")]);
    assert_eq!(line(&decide(&conversation, &script)), format!("say {digest}, Done"));
    // With a gate in the prompt somebody may look at the file while the agent still runs.
    conversation.messages[0].text.push_str("\ngate: look-1");
    assert_eq!(line(&decide(&conversation, &script)), format!("hold look-1, say {digest}, Done"));
}

#[rstest]
#[case("Current working directory: /a/b\nnext", Some("/a/b"))]
#[case("I'm currently working in the directory: /c", Some("/c"))]
#[case("<cwd>/d</cwd>", Some("/d"))]
#[case("working directory: unknown", None)]
fn the_working_directory_is_read_where_agents_state_it(#[case] text: &str, #[case] expected: Option<&str>) {
    let conversation = Conversation { messages: vec![user(text)], ..Conversation::default() };
    assert_eq!(working_directory(&conversation).as_deref(), expected);
}

#[rstest]
#[case::told(vec![user("Remember this nonce: 0123456789abcdef"), said("Noted."), user("Which nonce was it?")], "say 0123456789abcdef, Done")]
#[case::not_told(vec![user("Which nonce was it?")], "say Nobody told me a nonce., Done")]
#[case::in_the_same_text(vec![user("Which nonce is nonce: 0123456789abcdef?")], "say Nobody told me a nonce., Done")]
#[case::telling(vec![user("Remember this nonce: 0123456789abcdef")], "say Noted., Done")]
fn what_was_said_before_can_be_asked_for(#[case] messages: Vec<Message>, #[case] expected: &str) {
    assert_eq!(line(&decide(&talk(messages), &Script::default())), expected);
}
