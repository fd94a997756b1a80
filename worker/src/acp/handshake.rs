//! The worker's requests, and what it reads from their answers. Pure.

use super::connection::Call;
use crate::{
    outcome::{BadReply, ProtocolStop},
    transcript::clip,
};
use agent_client_protocol::{
    schema::ProtocolVersion,
    v1::schema::{
        AGENT_METHOD_NAMES, AuthenticateRequest, CancelNotification, ContentBlock, ImageContent, Implementation,
        InitializeRequest, PromptRequest, ResourceLink, StopReason, TextContent,
    },
};
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};
use subagent_link::{Agent, ContentBlock as PromptBlock};

/// Largest answer of the handshake in bytes. Real ones are a few KiB; modes and models make them grow.
const MAX_REPLY_BYTES: usize = 1024 * 1024;
/// Longest session id and longest name or version of an agent in bytes (see `subagent_link::Agent`).
pub(super) const MAX_NAME_BYTES: usize = 256;
/// Method of the steering extension; agents advertise it at `initialize` in `_meta.steering`.
const STEERING: &str = "_session/steering";

/// A request or notification with the parameters of the protocol's own types.
pub(super) fn call(method: &'static str, params: &impl Serialize) -> Call {
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
        // A persona replaces the agent's own instructions (contract c17); one that is only added to them is none.
        ("Persona", "/agentCapabilities/sessionCapabilities/systemPrompt/mode/override"),
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

/// An answer as JSON.
pub(super) fn read(reply: &RawValue) -> Result<Value, BadReply> {
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
                "sessionCapabilities": {"resume": {}, "fork": null, "systemPrompt": {"mode": null}},
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
