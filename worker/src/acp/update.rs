//! `session/update` notifications, reduced to what the worker uses. Pure.
//!
//! Each field is read on its own: one with a wrong type counts as absent, an unknown kind of update or content as
//! nothing (contract c54).

use crate::transcript::clip;
use agent_client_protocol::v1::schema::{ToolCallStatus, ToolKind};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};
use std::borrow::Cow;

/// Longest title and tool input that is shown, in bytes.
const SHOWN_BYTES: usize = 400;
/// Largest usage or plan that is looked into, in bytes.
const MAX_SMALL_BYTES: usize = 256 * 1024;
/// Lines of a tool's output that are shown.
const SHOWN_LINES: usize = 8;

/// An update and the session it is for.
#[derive(Debug, PartialEq)]
pub struct SessionUpdate {
    /// The session.
    pub session_id: String,
    /// What happened.
    pub update: Update,
}

/// What happened.
#[derive(Debug, PartialEq)]
pub enum Update {
    /// Text of the agent's message.
    AgentText {
        /// The message's id, if the agent gives any.
        id: Option<String>,
        /// The text.
        text: String,
    },
    /// A block of another kind in the agent's message.
    AgentBlock {
        /// The message's id, if the agent gives any.
        id: Option<String>,
        /// Its type, clipped.
        kind: String,
        /// The whole block as JSON.
        json: String,
    },
    /// Text of the agent's thinking.
    Thought(String),
    /// Text of the user's message, as replayed.
    UserText(String),
    /// A tool call or a change of one.
    Tool(ToolCall),
    /// The plan: state and text of each entry.
    Plan(Vec<(String, String)>),
    /// Usage, unchecked.
    Usage(Value),
    /// The session's mode changed.
    Mode(String),
    /// Anything else.
    Ignored,
}

/// A tool call as far as it was told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolCall {
    /// Its id.
    pub id: String,
    /// True for `tool_call`, false for `tool_call_update`.
    pub announced: bool,
    /// Title, clipped.
    pub title: Option<String>,
    /// Kind, as the protocol names it.
    pub kind: Option<&'static str>,
    /// State, as the protocol names it.
    pub status: Option<&'static str>,
    /// Input as JSON, clipped.
    pub input: Option<String>,
    /// First lines of its output, clipped.
    pub output: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    #[serde(borrow)]
    session_id: Cow<'a, str>,
    #[serde(borrow)]
    update: &'a RawValue,
}

/// Every field an update may have that is of use here.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Fields<'a> {
    #[serde(borrow)]
    session_update: Cow<'a, str>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    message_id: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_call_id: Option<&'a RawValue>,
    #[serde(borrow)]
    title: Option<&'a RawValue>,
    #[serde(borrow)]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
    #[serde(borrow)]
    raw_input: Option<&'a RawValue>,
    #[serde(borrow)]
    entries: Option<&'a RawValue>,
    #[serde(borrow)]
    current_mode_id: Option<&'a RawValue>,
}

/// Reads the parameters of a `session/update`; `None` when they name no session or hold no update.
pub fn parse(params: &RawValue) -> Option<SessionUpdate> {
    let params: Params<'_> = serde_json::from_str(params.get()).ok()?;
    let update = serde_json::from_str::<Fields<'_>>(params.update.get())
        .map_or(Update::Ignored, |fields| read(&fields, params.update));
    Some(SessionUpdate { session_id: params.session_id.into_owned(), update })
}

/// Reads the tool call of a permission request.
pub fn parse_tool_call(call: &RawValue) -> ToolCall {
    serde_json::from_str::<Fields<'_>>(call.get()).map_or_else(|_| ToolCall::default(), |fields| tool(&fields, false))
}

fn read(fields: &Fields<'_>, whole: &RawValue) -> Update {
    match fields.session_update.as_ref() {
        "agent_message_chunk" => match block(fields.content) {
            Some(Block::Text(text)) => Update::AgentText { id: string(fields.message_id), text },
            Some(Block::Other(kind)) => Update::AgentBlock {
                id: string(fields.message_id),
                kind,
                json: fields.content.map(|content| content.get().to_owned()).unwrap_or_default(),
            },
            None => Update::Ignored,
        },
        "agent_thought_chunk" => match block(fields.content) {
            Some(Block::Text(text)) => Update::Thought(text),
            _ => Update::Ignored,
        },
        "user_message_chunk" => match block(fields.content) {
            Some(Block::Text(text)) => Update::UserText(text),
            _ => Update::Ignored,
        },
        "tool_call" => Update::Tool(tool(fields, true)),
        "tool_call_update" => Update::Tool(tool(fields, false)),
        "plan" => Update::Plan(plan(fields.entries)),
        "usage_update" => small::<Value>(Some(whole)).map_or(Update::Ignored, Update::Usage),
        "current_mode_update" => {
            string(fields.current_mode_id).map_or(Update::Ignored, |mode| Update::Mode(clip(&mode, 100)))
        }
        _ => Update::Ignored,
    }
}

enum Block {
    Text(String),
    Other(String),
}

fn block(content: Option<&RawValue>) -> Option<Block> {
    #[derive(Deserialize)]
    struct Content<'a> {
        #[serde(borrow)]
        r#type: Cow<'a, str>,
        #[serde(borrow, default)]
        text: Option<&'a RawValue>,
    }
    let content: Content<'_> = serde_json::from_str(content?.get()).ok()?;
    if content.r#type == "text" {
        string(content.text).map(Block::Text)
    } else {
        Some(Block::Other(clip(&content.r#type, 40)))
    }
}

fn tool(fields: &Fields<'_>, announced: bool) -> ToolCall {
    ToolCall {
        id: string(fields.tool_call_id).map(|id| clip(&id, 256)).unwrap_or_default(),
        announced,
        title: string(fields.title).map(|title| clip(&title, SHOWN_BYTES)),
        kind: small(fields.kind).map(tool_kind),
        status: small(fields.status).map(tool_status),
        input: fields.raw_input.map(|input| clip(input.get(), SHOWN_BYTES)),
        output: fields.content.map(tool_output).unwrap_or_default(),
    }
}

fn tool_kind(kind: ToolKind) -> &'static str {
    match kind {
        ToolKind::Read => "read",
        ToolKind::Edit => "edit",
        ToolKind::Delete => "delete",
        ToolKind::Move => "move",
        ToolKind::Search => "search",
        ToolKind::Execute => "execute",
        ToolKind::Think => "think",
        ToolKind::Fetch => "fetch",
        ToolKind::SwitchMode => "switch_mode",
        _ => "other",
    }
}

fn tool_status(status: ToolCallStatus) -> &'static str {
    match status {
        ToolCallStatus::Pending => "pending",
        ToolCallStatus::InProgress => "in progress",
        ToolCallStatus::Completed => "completed",
        ToolCallStatus::Failed => "failed",
        _ => "in an unknown state",
    }
}

/// The first lines of the text among a tool's content.
fn tool_output(content: &RawValue) -> Vec<String> {
    #[derive(Deserialize)]
    struct Item<'a> {
        #[serde(borrow, default)]
        content: Option<&'a RawValue>,
    }
    let items: Vec<&RawValue> = serde_json::from_str(content.get()).unwrap_or_default();
    let mut lines = Vec::new();
    for item in items {
        let Ok(item) = serde_json::from_str::<Item<'_>>(item.get()) else { continue };
        if let Some(Block::Text(text)) = block(item.content) {
            lines.extend(text.lines().take(SHOWN_LINES + 1 - lines.len()).map(|line| clip(line, SHOWN_BYTES)));
        }
        if lines.len() > SHOWN_LINES {
            lines.truncate(SHOWN_LINES);
            lines.push("...".to_owned());
            break;
        }
    }
    lines
}

fn plan(entries: Option<&RawValue>) -> Vec<(String, String)> {
    let entries: Vec<Value> = small(entries).unwrap_or_default();
    let field =
        |entry: &Value, name: &str, bytes| clip(entry.get(name).and_then(Value::as_str).unwrap_or_default(), bytes);
    entries.iter().take(50).map(|entry| (field(entry, "status", 20), field(entry, "content", SHOWN_BYTES))).collect()
}

fn string(raw: Option<&RawValue>) -> Option<String> {
    serde_json::from_str(raw?.get()).ok()
}

fn small<T: DeserializeOwned>(raw: Option<&RawValue>) -> Option<T> {
    let text = raw?.get();
    if text.len() <= MAX_SMALL_BYTES { serde_json::from_str(text).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{json, value::to_raw_value};

    fn update(update: Value) -> Update {
        let params = to_raw_value(&json!({"sessionId": "s", "update": update})).unwrap();
        let parsed = parse(&params).unwrap();
        assert_eq!(parsed.session_id, "s");
        parsed.update
    }

    #[rstest]
    #[case(
        json!({"sessionUpdate": "agent_message_chunk", "messageId": "m", "content": {"type": "text", "text": "a\nb"}}),
        Update::AgentText { id: Some("m".into()), text: "a\nb".into() }
    )]
    #[case(
        json!({"sessionUpdate": "agent_message_chunk", "messageId": 7, "content": {"type": "text", "text": "a"}}),
        Update::AgentText { id: None, text: "a".into() }
    )]
    #[case(
        json!({"sessionUpdate": "agent_message_chunk", "messageId": "m", "content": {"type": "image", "data": ""}}),
        Update::AgentBlock { id: Some("m".into()), kind: "image".into(), json: r#"{"type":"image","data":""}"#.into() }
    )]
    #[case(
        json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "hologram"}}),
        Update::AgentBlock { id: None, kind: "hologram".into(), json: r#"{"type":"hologram"}"#.into() }
    )]
    #[case(json!({"sessionUpdate": "agent_message_chunk", "content": "text"}), Update::Ignored)]
    #[case(json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": 1}}), Update::Ignored)]
    #[case(
        json!({"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": "hm"}}),
        Update::Thought("hm".into())
    )]
    #[case(
        json!({"sessionUpdate": "plan", "entries": [{"content": "c", "priority": "high", "status": "pending"}, 3]}),
        Update::Plan(vec![("pending".into(), "c".into()), (String::new(), String::new())])
    )]
    #[case(json!({"sessionUpdate": "current_mode_update", "currentModeId": "plan"}), Update::Mode("plan".into()))]
    #[case(json!({"sessionUpdate": "dance", "content": {}}), Update::Ignored)]
    #[case(json!({"sessionUpdate": 5}), Update::Ignored)]
    #[case(json!("x"), Update::Ignored)]
    fn c54_updates_are_read_leniently(#[case] told: Value, #[case] want: Update) {
        assert_eq!(update(told), want);
    }

    #[test]
    fn c57_tool_calls_are_reduced_to_what_is_shown() {
        let told = json!({
            "sessionUpdate": "tool_call", "toolCallId": "t1", "title": "Run\nls", "kind": "execute", "status": "in_progress",
            "rawInput": {"command": "ls"}, "content": [{"type": "content", "content": {"type": "text", "text": "a\nb"}}, 3]
        });
        let want = ToolCall {
            id: "t1".into(),
            announced: true,
            title: Some("Run ls".into()),
            kind: Some("execute"),
            status: Some("in progress"),
            input: Some(r#"{"command":"ls"}"#.into()),
            output: vec!["a".into(), "b".into()],
        };
        assert_eq!(update(told), Update::Tool(want));
        let odd = json!({"sessionUpdate": "tool_call_update", "toolCallId": 3, "title": null, "kind": "juggle", "status": []});
        let want = ToolCall { kind: Some("other"), ..ToolCall::default() };
        assert_eq!(update(odd), Update::Tool(want));
    }

    #[test]
    fn a_tools_output_is_bounded() {
        let text = "line\n".repeat(1000);
        let told = json!({"sessionUpdate": "tool_call", "toolCallId": "t",
            "content": [{"content": {"type": "text", "text": text}}, {"content": {"type": "text", "text": text}}]});
        let Update::Tool(call) = update(told) else { panic!("a tool call") };
        assert_eq!(call.output.len(), SHOWN_LINES + 1);
    }

    #[test]
    fn params_without_a_session_are_nothing() {
        assert!(parse(&to_raw_value(&json!({"update": {}})).unwrap()).is_none());
        assert!(parse(&to_raw_value(&json!(null)).unwrap()).is_none());
    }
}
