//! Sessions: opened anew or again, and brought into the wanted mode and to the wanted model. Pure.

use super::{
    connection::Call,
    handshake::{MAX_NAME_BYTES, call, read},
};
use crate::outcome::BadReply;
use agent_client_protocol::v1::schema::{
    AGENT_METHOD_NAMES, CloseSessionRequest, ContentBlock, LoadSessionRequest, NewSessionRequest, ResumeSessionRequest,
    SessionConfigOptionValue, SetSessionConfigOptionRequest, SetSessionModeRequest, SystemPrompt, SystemPromptMode,
    TextContent,
};
use serde_json::{Value, json, value::RawValue};
use subagent_link::SessionOrigin;

/// Method of the older way to choose a model, which newer schemas do not have any more; agents offer it with `models`.
const SET_MODEL: &str = "session/set_model";
/// Most models that are named to a person, and the longest name in bytes.
const MAX_NAMED: usize = 32;
const MAX_MODEL_BYTES: usize = 80;

/// The persona in place of the agent's own instructions, literally; one that is empty is one (contract c6, c17).
fn instructions(persona: Option<&str>) -> Option<SystemPrompt> {
    let text = ContentBlock::Text(TextContent::new(persona?.to_owned()));
    Some(SystemPrompt::new(vec![text]).mode(SystemPromptMode::Override))
}

/// `session/new`, without MCP servers.
pub fn new_session(cwd: &str, persona: Option<&str>) -> Call {
    let request = NewSessionRequest::new(cwd).system_prompt(instructions(persona));
    call(AGENT_METHOD_NAMES.session_new, &request)
}

/// `session/load`, with everything a new session gets (c17, c18).
pub fn load_session(id: &str, cwd: &str, persona: Option<&str>) -> Call {
    let request = LoadSessionRequest::new(id.to_owned(), cwd).system_prompt(instructions(persona));
    call(AGENT_METHOD_NAMES.session_load, &request)
}

/// `session/resume`, with everything a new session gets (c17, c18).
pub fn resume_session(id: &str, cwd: &str, persona: Option<&str>) -> Call {
    let request = ResumeSessionRequest::new(id.to_owned(), cwd).system_prompt(instructions(persona));
    let mut call = call(AGENT_METHOD_NAMES.session_resume, &request);
    // Left out by the crate when there are none. Other agents than it knows ask for it, as for the other two.
    if let Some(params) = call.params.as_object_mut() {
        params.entry("mcpServers").or_insert_with(|| json!([]));
    }
    call
}

/// `session/close`.
pub fn close_session(session_id: &str) -> Call {
    call(AGENT_METHOD_NAMES.session_close, &CloseSessionRequest::new(session_id.to_owned()))
}

/// An open session.
#[derive(Debug)]
pub struct OpenSession {
    /// Its id.
    pub id: String,
    /// How it came to be.
    pub how: SessionOrigin,
    reply: Value,
}

/// Reads the answer to `session/new`.
///
/// # Errors
/// [`BadReply`] without a session id that fits the API.
pub fn read_session(reply: &RawValue) -> Result<OpenSession, BadReply> {
    let reply = read(reply)?;
    let id = reply.get("sessionId").and_then(Value::as_str).ok_or(BadReply::NoSessionId)?.to_owned();
    if id.is_empty() || id.len() > MAX_NAME_BYTES {
        return Err(BadReply::NoSessionId);
    }
    Ok(OpenSession { id, how: SessionOrigin::New, reply })
}

/// Reads the answer to `session/load` or `session/resume`, which may be `null`. `None` when it names another session.
///
/// # Errors
/// [`BadReply::Malformed`].
pub fn read_reopened(id: &str, how: SessionOrigin, reply: &RawValue) -> Result<Option<OpenSession>, BadReply> {
    let reply = read(reply)?;
    let named = reply.get("sessionId").and_then(Value::as_str);
    let is_ours = named.is_none_or(|named| named == id);
    Ok(is_ours.then(|| OpenSession { id: id.to_owned(), how, reply }))
}

/// How a wanted mode or model is set.
#[derive(Debug)]
pub enum Change {
    /// By this request.
    Request(Call),
    /// Not at all: the agent lists what it offers, and it is not among them. What it offers, as far as these are names.
    NotOffered(Vec<String>),
    /// Not at all: the agent offers none.
    NoneOffered,
}

impl OpenSession {
    /// How to bring it into a mode: by `session/set_mode` where the agent lists modes, by a configuration option of the
    /// category `mode` where it has one of those, and by `session/set_mode` on trust where it lists neither.
    pub fn mode_change(&self, mode: &str) -> Change {
        let set_mode = || {
            let request = SetSessionModeRequest::new(self.id.clone(), mode.to_owned());
            Change::Request(call(AGENT_METHOD_NAMES.session_set_mode, &request))
        };
        let listed = self.list("/modes/availableModes", "id");
        if listed.as_ref().is_some_and(|modes| modes.contains(&mode)) {
            return set_mode();
        }
        if let Some((id, _)) = self.options("mode").into_iter().find(|(_, values)| values.contains(&mode)) {
            return self.set_option(id, mode);
        }
        listed.map_or_else(set_mode, |modes| Change::NotOffered(names(&modes)))
    }

    /// How to choose a model: by a configuration option of the category `model`, or the older way where the agent lists
    /// models.
    pub fn model_change(&self, model: &str) -> Change {
        let options = self.options("model");
        if let Some((id, _)) = options.iter().find(|(_, values)| values.contains(&model)) {
            return self.set_option(id, model);
        }
        let listed = self.list("/models/availableModels", "modelId");
        if listed.as_ref().is_some_and(|models| models.contains(&model)) {
            let params = json!({"sessionId": self.id, "modelId": model});
            return Change::Request(Call { method: SET_MODEL, params });
        }
        let offered: Vec<&str> =
            options.into_iter().flat_map(|(_, values)| values).chain(listed.into_iter().flatten()).collect();
        if offered.is_empty() { Change::NoneOffered } else { Change::NotOffered(names(&offered)) }
    }

    /// True when a model can be chosen.
    pub fn offers_models(&self) -> bool {
        let options = self.options("model").into_iter().any(|(_, values)| !values.is_empty());
        options || self.list("/models/availableModels", "modelId").is_some_and(|models| !models.is_empty())
    }

    fn set_option(&self, id: &str, value: &str) -> Change {
        let value = SessionConfigOptionValue::value_id(value.to_owned());
        let request = SetSessionConfigOptionRequest::new(self.id.clone(), id.to_owned(), value);
        Change::Request(call(AGENT_METHOD_NAMES.session_set_config_option, &request))
    }

    /// The ids in a list of the answer, `None` without the list.
    fn list(&self, path: &str, field: &str) -> Option<Vec<&str>> {
        let items = self.reply.pointer(path)?.as_array()?;
        Some(items.iter().filter_map(|item| item.get(field)?.as_str()).collect())
    }

    /// The configuration options of a category, or of that name: id and values.
    fn options(&self, category: &str) -> Vec<(&str, Vec<&str>)> {
        let options = self.reply.get("configOptions").and_then(Value::as_array);
        let named = options.into_iter().flatten().filter_map(|option| {
            let is = |field: &str| option.get(field).and_then(Value::as_str) == Some(category);
            let id = option.get("id")?.as_str()?;
            (is("category") || is("id")).then(|| (id, values(option)))
        });
        named.collect()
    }
}

/// The values of a select option, those in groups as well.
fn values(option: &Value) -> Vec<&str> {
    let items = option.get("options").and_then(Value::as_array).into_iter().flatten();
    let own = |item| match Value::get(item, "options") {
        Some(_) => values(item),
        None => item.get("value").and_then(Value::as_str).into_iter().collect(),
    };
    items.flat_map(own).collect()
}

/// What is named to a person: names, and no other text of the agent (contract c30).
fn names(offered: &[&str]) -> Vec<String> {
    let is_name = |name: &&&str| {
        !name.is_empty()
            && name.len() <= MAX_MODEL_BYTES
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.:/@+[]".contains(c))
    };
    let mut names: Vec<String> = offered.iter().filter(is_name).map(|name| (*name).to_owned()).collect();
    if names.len() > MAX_NAMED {
        names.truncate(MAX_NAMED);
        names.push("...".to_owned());
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::value::to_raw_value;

    fn raw(value: Value) -> Box<RawValue> {
        to_raw_value(&value).unwrap()
    }

    fn session(mut reply: Value) -> OpenSession {
        reply["sessionId"] = json!("s");
        read_session(&raw(reply)).unwrap()
    }

    fn words(change: Change) -> String {
        match change {
            Change::Request(call) => format!("{} {}", call.method, call.params),
            Change::NotOffered(names) => format!("not offered: {}", names.join(" ")),
            Change::NoneOffered => "none offered".into(),
        }
    }

    #[test]
    fn c18_the_session_has_the_working_directory_and_no_mcp_servers() {
        assert_eq!(new_session("/workspace", None).params, json!({"cwd": "/workspace", "mcpServers": []}));
        let again = json!({"sessionId": "s", "cwd": "/workspace", "mcpServers": []});
        assert_eq!(load_session("s", "/workspace", None).params, again);
        assert_eq!(resume_session("s", "/workspace", None).params, again);
    }

    #[rstest]
    #[case("be {brief}\n$HOME")]
    #[case("")]
    fn c6_c17_a_persona_is_literal_and_in_every_request(#[case] persona: &str) {
        let want = json!({"mode": "override", "content": [{"type": "text", "text": persona}]});
        let calls = [
            new_session("/w", Some(persona)),
            load_session("s", "/w", Some(persona)),
            resume_session("s", "/w", Some(persona)),
        ];
        for call in calls {
            assert_eq!(call.params["systemPrompt"], want, "{}", call.method);
        }
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
    #[case(json!(null), true)]
    #[case(json!({"modes": {}}), true)]
    #[case(json!({"sessionId": "s"}), true)]
    #[case(json!({"sessionId": "t"}), false)]
    fn c40_a_session_opened_again_keeps_its_id(#[case] reply: Value, #[case] is_ours: bool) {
        let opened = read_reopened("s", SessionOrigin::Loaded, &raw(reply)).unwrap();
        assert_eq!(opened.map(|session| session.id), is_ours.then(|| "s".to_owned()));
    }

    #[rstest]
    #[case(json!({"modes": {"availableModes": [{"id": "plan"}, {"id": "ask"}]}}), "session/set_mode")]
    #[case(json!({"modes": {"availableModes": [{"id": "ask"}]}}), "not offered: ask")]
    #[case(json!({}), "session/set_mode")]
    #[case(
        json!({"configOptions": [{"id": "m", "category": "mode", "type": "select", "options": [{"value": "plan"}]}]}),
        "session/set_config_option"
    )]
    #[case(
        json!({"configOptions": [{"id": "mode", "options": [{"group": "g", "options": [{"value": "plan"}]}]}]}),
        "session/set_config_option"
    )]
    fn modes_are_set_the_way_the_agent_offers(#[case] reply: Value, #[case] want: &str) {
        let change = words(session(reply).mode_change("plan"));
        assert!(change.starts_with(want), "{change}");
    }

    #[rstest]
    #[case::option(
        json!({"configOptions": [{"id": "m", "category": "model", "options": [{"value": "small"}, {"value": "large"}]}]}),
        r#"session/set_config_option {"sessionId":"s","configId":"m","value":"large"}"#
    )]
    #[case::older(
        json!({"models": {"currentModelId": "small", "availableModels": [{"modelId": "small"}, {"modelId": "large"}]}}),
        r#"session/set_model {"sessionId":"s","modelId":"large"}"#
    )]
    #[case::option_before_older(
        json!({
            "configOptions": [{"id": "model", "options": [{"value": "large"}]}],
            "models": {"availableModels": [{"modelId": "large"}]},
        }),
        r#"session/set_config_option {"sessionId":"s","configId":"model","value":"large"}"#
    )]
    #[case::unknown(
        json!({
            "configOptions": [{"id": "model", "options": [{"value": "a/small-1.5"}, {"value": "no name"}]}],
            "models": {"availableModels": [{"modelId": "tiny"}]},
        }),
        "not offered: a/small-1.5 tiny"
    )]
    #[case::many(
        json!({"models": {"availableModels": vec![json!({"modelId": "m"}); 33]}}),
        &format!("not offered:{} ...", " m".repeat(32))
    )]
    #[case::none(json!({"configOptions": [{"id": "thinking", "options": [{"value": "large"}]}]}), "none offered")]
    fn c7_models_are_chosen_the_way_the_agent_offers(#[case] reply: Value, #[case] want: &str) {
        let session = session(reply);
        assert_eq!(session.offers_models(), want != "none offered");
        assert_eq!(words(session.model_change("large")), want);
    }
}
