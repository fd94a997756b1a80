//! The worker's requests, and what it reads from their answers. Pure.

use super::connection::Call;
use crate::{
    outcome::{BadReply, ProtocolStop},
    transcript::clip,
};
use agent_client_protocol::{
    schema::ProtocolVersion,
    v1::schema::{
        AGENT_METHOD_NAMES, AuthenticateRequest, CancelNotification, CloseSessionRequest, ContentBlock, ImageContent,
        Implementation, InitializeRequest, NewSessionRequest, PromptRequest, ResourceLink, SessionConfigOptionValue,
        SetSessionConfigOptionRequest, SetSessionModeRequest, StopReason, TextContent,
    },
};
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};
use subagent_link::{Agent, ContentBlock as PromptBlock};

/// Largest answer of the handshake in bytes. Real ones are a few KiB; modes and models make them grow.
const MAX_REPLY_BYTES: usize = 1024 * 1024;
/// Longest session id and longest name or version of an agent in bytes (see `subagent_link::Agent`).
const MAX_NAME_BYTES: usize = 256;
/// Method of the steering extension; agents advertise it at `initialize` in `_meta.steering`.
const STEERING: &str = "_session/steering";

fn call(method: &'static str, params: &impl Serialize) -> Call {
    // The crate's types hold strings and numbers only; these always serialise.
    Call { method, params: serde_json::to_value(params).unwrap_or_default() }
}

/// `initialize` with version 1 and nothing but what this client serves: no files, no terminals (c53).
pub fn initialize() -> Call {
    let info = Implementation::new("subagent-worker", env!("CARGO_PKG_VERSION"));
    call(AGENT_METHOD_NAMES.initialize, &InitializeRequest::new(ProtocolVersion::V1).client_info(info))
}

/// `authenticate`.
pub fn authenticate(method: &str) -> Call {
    call(AGENT_METHOD_NAMES.authenticate, &AuthenticateRequest::new(method.to_owned()))
}

/// `session/new`, without MCP servers.
pub fn new_session(cwd: &str) -> Call {
    call(AGENT_METHOD_NAMES.session_new, &NewSessionRequest::new(cwd))
}

/// `session/prompt`.
pub fn prompt(session_id: &str, blocks: &[PromptBlock]) -> Call {
    let blocks: Vec<ContentBlock> = blocks
        .iter()
        .map(|block| match block {
            PromptBlock::Text { text } => ContentBlock::Text(TextContent::new(text.clone())),
            PromptBlock::ResourceLink { uri, name } => {
                ContentBlock::ResourceLink(ResourceLink::new(name.clone(), uri.clone()))
            }
            PromptBlock::Image { data, mime_type } => {
                ContentBlock::Image(ImageContent::new(data.clone(), mime_type.clone()))
            }
        })
        .collect();
    call(AGENT_METHOD_NAMES.session_prompt, &PromptRequest::new(session_id.to_owned(), blocks))
}

/// The extension by which a message goes into a running turn. Without `idleBehavior` an idle agent would begin a turn that
/// nobody asked for.
pub fn steer(session_id: &str, blocks: &[PromptBlock]) -> Call {
    let mut call = prompt(session_id, blocks);
    call.method = STEERING;
    if let Some(params) = call.params.as_object_mut() {
        params.insert("_meta".to_owned(), json!({"steering": {"idleBehavior": "promptRequired"}}));
    }
    call
}

/// Whether the agent took a steering message into its turn.
pub fn read_steered(reply: &RawValue) -> bool {
    read(reply).is_ok_and(|reply| reply.get("outcome").and_then(Value::as_str) == Some("injected"))
}

/// `session/cancel`.
pub fn cancel(session_id: &str) -> Call {
    call(AGENT_METHOD_NAMES.session_cancel, &CancelNotification::new(session_id.to_owned()))
}

/// `session/close`.
pub fn close_session(session_id: &str) -> Call {
    call(AGENT_METHOD_NAMES.session_close, &CloseSessionRequest::new(session_id.to_owned()))
}

/// What an agent says of itself.
#[derive(Debug, PartialEq)]
pub enum Introduced {
    /// It speaks version 1.
    Agent(Agent),
    /// It speaks this other version.
    OtherVersion(i64),
}

/// Reads the answer to `initialize`.
///
/// # Errors
/// [`BadReply::Malformed`] when there is no version in it.
pub fn read_initialize(reply: &RawValue) -> Result<Introduced, BadReply> {
    let reply = read(reply)?;
    let version = reply.get("protocolVersion").and_then(Value::as_i64).ok_or(BadReply::Malformed)?;
    if version != 1 {
        return Ok(Introduced::OtherVersion(version));
    }
    let name = |path: &str| clip(reply.pointer(path).and_then(Value::as_str).unwrap_or_default(), MAX_NAME_BYTES);
    Ok(Introduced::Agent(Agent {
        name: name("/agentInfo/name"),
        version: name("/agentInfo/version"),
        protocol_version: 1,
        capabilities: capabilities(&reply),
    }))
}

/// The capabilities an agent advertised, under the names providers show. A flag is `true`; a group is there as an
/// object.
fn capabilities(reply: &Value) -> Vec<String> {
    const ADVERTISED: [(&str, &str); 9] = [
        ("LoadSession", "/agentCapabilities/loadSession"),
        ("ResumeSession", "/agentCapabilities/sessionCapabilities/resume"),
        ("ForkSession", "/agentCapabilities/sessionCapabilities/fork"),
        ("CloseSession", "/agentCapabilities/sessionCapabilities/close"),
        ("Persona", "/agentCapabilities/sessionCapabilities/systemPrompt"),
        ("ImagePrompt", "/agentCapabilities/promptCapabilities/image"),
        ("AudioPrompt", "/agentCapabilities/promptCapabilities/audio"),
        ("EmbeddedContext", "/agentCapabilities/promptCapabilities/embeddedContext"),
        ("Steering", "/_meta/steering/supported"),
    ];
    ADVERTISED
        .iter()
        .filter(|(_, path)| reply.pointer(path).is_some_and(|value| value.is_object() || value == &Value::Bool(true)))
        .map(|(name, _)| (*name).to_owned())
        .collect()
}

/// How a wanted mode is set.
#[derive(Debug)]
pub enum ModeChange {
    /// By this request.
    Request(Call),
    /// Not at all: the agent lists its modes and it is not among them.
    NotOffered,
}

/// A new session.
#[derive(Debug)]
pub struct NewSession {
    /// Its id.
    pub id: String,
    reply: Value,
}

/// Reads the answer to `session/new`.
///
/// # Errors
/// [`BadReply`] without a session id that fits the API.
pub fn read_session(reply: &RawValue) -> Result<NewSession, BadReply> {
    let reply = read(reply)?;
    let id = reply.get("sessionId").and_then(Value::as_str).ok_or(BadReply::NoSessionId)?.to_owned();
    if id.is_empty() || id.len() > MAX_NAME_BYTES {
        return Err(BadReply::NoSessionId);
    }
    Ok(NewSession { id, reply })
}

/// How to bring a session into a mode: by `session/set_mode` where the agent lists modes, by a configuration option of
/// the category `mode` where it has one of those, and by `session/set_mode` on trust where it lists neither.
pub fn mode_change(session: &NewSession, mode: &str) -> ModeChange {
    let set_mode = || {
        let request = SetSessionModeRequest::new(session.id.clone(), mode.to_owned());
        ModeChange::Request(call(AGENT_METHOD_NAMES.session_set_mode, &request))
    };
    let listed = session.reply.pointer("/modes/availableModes").and_then(Value::as_array);
    if listed.is_some_and(|modes| modes.iter().any(|offered| offered.get("id").and_then(Value::as_str) == Some(mode))) {
        return set_mode();
    }
    let options = session.reply.get("configOptions").and_then(Value::as_array);
    let option = options.into_iter().flatten().find(|option| {
        let is = |field: &str| option.get(field).and_then(Value::as_str) == Some("mode");
        (is("category") || is("id")) && offers(option, mode)
    });
    if let Some(id) = option.and_then(|option| option.get("id")).and_then(Value::as_str) {
        let value = SessionConfigOptionValue::value_id(mode.to_owned());
        let request = SetSessionConfigOptionRequest::new(session.id.clone(), id.to_owned(), value);
        return ModeChange::Request(call(AGENT_METHOD_NAMES.session_set_config_option, &request));
    }
    if listed.is_some() { ModeChange::NotOffered } else { set_mode() }
}

/// True when a select option has this value, directly or in a group.
fn offers(option: &Value, wanted: &str) -> bool {
    let values = option.get("options").and_then(Value::as_array);
    values.into_iter().flatten().any(|value| {
        value.get("value").and_then(Value::as_str) == Some(wanted)
            || (value.get("options").is_some() && offers(value, wanted))
    })
}

/// A turn's end.
#[derive(Debug, PartialEq)]
pub struct TurnEnd {
    /// Its stop reason.
    pub stop: ProtocolStop,
    /// Usage, unchecked.
    pub usage: Option<Value>,
}

/// Reads the answer to `session/prompt`; `None` without a stop reason. One the protocol does not have is
/// [`ProtocolStop::Unknown`].
pub fn read_stop(reply: &RawValue) -> Option<TurnEnd> {
    let reply = read(reply).ok()?;
    let stop = reply.get("stopReason").filter(|stop| stop.is_string())?;
    let stop = match serde_json::from_value(stop.clone()) {
        Ok(StopReason::EndTurn) => ProtocolStop::EndTurn,
        Ok(StopReason::MaxTokens) => ProtocolStop::MaxTokens,
        Ok(StopReason::MaxTurnRequests) => ProtocolStop::MaxTurnRequests,
        Ok(StopReason::Refusal) => ProtocolStop::Refusal,
        Ok(StopReason::Cancelled) => ProtocolStop::Cancelled,
        _ => ProtocolStop::Unknown,
    };
    Some(TurnEnd { stop, usage: reply.get("usage").cloned() })
}

fn read(reply: &RawValue) -> Result<Value, BadReply> {
    if reply.get().len() > MAX_REPLY_BYTES {
        return Err(BadReply::Malformed);
    }
    serde_json::from_str(reply.get()).map_err(|_| BadReply::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::value::to_raw_value;

    fn raw(value: Value) -> Box<RawValue> {
        to_raw_value(&value).unwrap()
    }

    #[test]
    fn c53_only_what_is_served_is_advertised() {
        let call = initialize();
        assert_eq!(call.method, "initialize");
        assert_eq!(call.params["protocolVersion"], 1);
        assert_eq!(
            call.params["clientCapabilities"],
            json!({"fs": {"readTextFile": false, "writeTextFile": false}, "terminal": false, "auth": {"terminal": false}})
        );
    }

    #[test]
    fn c18_the_session_has_the_working_directory_and_no_mcp_servers() {
        assert_eq!(new_session("/workspace").params, json!({"cwd": "/workspace", "mcpServers": []}));
    }

    #[test]
    fn prompts_keep_their_blocks() {
        let blocks = [
            PromptBlock::Text { text: "hi".into() },
            PromptBlock::ResourceLink { uri: "file:///a".into(), name: "a".into() },
            PromptBlock::Image { data: "QQ==".into(), mime_type: "image/png".into() },
        ];
        let want = json!({"sessionId": "s", "prompt": [
            {"type": "text", "text": "hi"},
            {"type": "resource_link", "name": "a", "uri": "file:///a"},
            {"type": "image", "data": "QQ==", "mimeType": "image/png"},
        ]});
        assert_eq!(prompt("s", &blocks).params, want);
    }

    #[test]
    fn c38_a_steer_asks_for_no_turn_and_counts_when_the_agent_confirms_it() {
        let call = steer("s", &[PromptBlock::Text { text: "left".into() }]);
        assert_eq!(call.method, "_session/steering");
        assert_eq!(call.params["sessionId"], "s");
        assert_eq!(call.params["prompt"][0]["text"], "left");
        assert_eq!(call.params["_meta"]["steering"]["idleBehavior"], "promptRequired");
        assert!(read_steered(&raw(json!({"outcome": "injected"}))));
        for other in [json!({"outcome": "promptRequired"}), json!({}), json!(null), json!([])] {
            assert!(!read_steered(&raw(other)));
        }
    }

    #[test]
    fn agents_introduce_themselves() {
        let reply = json!({
            "protocolVersion": 1,
            "agentInfo": {"name": "a\u{1b}", "version": "1.2"},
            "agentCapabilities": {
                "loadSession": true,
                "promptCapabilities": {"image": true, "audio": false},
                "sessionCapabilities": {"resume": {}, "fork": null},
            },
            "_meta": {"steering": {"supported": true}},
        });
        let want = Agent {
            name: "a ".into(),
            version: "1.2".into(),
            protocol_version: 1,
            capabilities: ["LoadSession", "ResumeSession", "ImagePrompt", "Steering"].map(Into::into).to_vec(),
        };
        assert_eq!(read_initialize(&raw(reply)), Ok(Introduced::Agent(want)));
    }

    #[rstest]
    #[case(json!({"protocolVersion": 2}), Ok(Introduced::OtherVersion(2)))]
    #[case(json!({"protocolVersion": "1"}), Err(BadReply::Malformed))]
    #[case(json!(null), Err(BadReply::Malformed))]
    fn c53_other_versions_and_bad_replies(#[case] reply: Value, #[case] want: Result<Introduced, BadReply>) {
        assert_eq!(read_initialize(&raw(reply)), want);
    }

    #[rstest]
    #[case(json!({}))]
    #[case(json!({"sessionId": ""}))]
    #[case(json!({"sessionId": 7}))]
    #[case(json!({"sessionId": "x".repeat(257)}))]
    fn c53_a_session_needs_an_id(#[case] reply: Value) {
        assert_eq!(read_session(&raw(reply)).unwrap_err(), BadReply::NoSessionId);
    }

    #[rstest]
    #[case(json!({"modes": {"availableModes": [{"id": "plan"}, {"id": "ask"}]}}), "session/set_mode")]
    #[case(json!({"modes": {"availableModes": [{"id": "ask"}]}}), "not offered")]
    #[case(json!({}), "session/set_mode")]
    #[case(
        json!({"configOptions": [{"id": "m", "category": "mode", "type": "select", "options": [{"value": "plan"}]}]}),
        "session/set_config_option"
    )]
    #[case(
        json!({"configOptions": [{"id": "mode", "options": [{"group": "g", "options": [{"value": "plan"}]}]}]}),
        "session/set_config_option"
    )]
    fn modes_are_set_the_way_the_agent_offers(#[case] mut reply: Value, #[case] want: &str) {
        reply["sessionId"] = json!("s");
        let session = read_session(&raw(reply)).unwrap();
        match mode_change(&session, "plan") {
            ModeChange::Request(call) => assert_eq!(call.method, want),
            ModeChange::NotOffered => assert_eq!("not offered", want),
        }
    }

    #[rstest]
    #[case(json!({"stopReason": "end_turn"}), Some(ProtocolStop::EndTurn))]
    #[case(json!({"stopReason": "max_tokens"}), Some(ProtocolStop::MaxTokens))]
    #[case(json!({"stopReason": "max_turn_requests"}), Some(ProtocolStop::MaxTurnRequests))]
    #[case(json!({"stopReason": "refusal"}), Some(ProtocolStop::Refusal))]
    #[case(json!({"stopReason": "cancelled"}), Some(ProtocolStop::Cancelled))]
    #[case(json!({"stopReason": "bored"}), Some(ProtocolStop::Unknown))]
    #[case(json!({"stopReason": null}), None)]
    #[case(json!(null), None)]
    fn c25_stop_reasons(#[case] reply: Value, #[case] want: Option<ProtocolStop>) {
        assert_eq!(read_stop(&raw(reply)).map(|end| end.stop), want);
    }
}
