//! Gemini: `POST /v1beta/models/{model}:generateContent` and `:streamGenerateContent`.

use serde_json::{Value, json};

use super::{Encoder, Envelope, Event, Whole, tokens};
use crate::conversation::{Call, Conversation, Message, Role, Tool, text_of};
use crate::script::Stop;

/// Reads all but the model, which is in the path.
pub(super) fn read(body: &Value) -> Conversation {
    let mut conversation = Conversation::default();
    let system =
        if body["systemInstruction"].is_null() { &body["system_instruction"] } else { &body["systemInstruction"] };
    conversation.push_system(&text_of(if system["parts"].is_null() { system } else { &system["parts"] }));
    for content in body["contents"].as_array().into_iter().flatten() {
        let parts = content["parts"].as_array().map(Vec::as_slice).unwrap_or_default();
        let text = text_of(&content["parts"]);
        if content["role"] == "model" {
            conversation.push(Message {
                role: Role::Assistant,
                text,
                calls: parts
                    .iter()
                    .filter_map(|part| part.get("functionCall"))
                    .map(|call| Call {
                        name: call["name"].as_str().unwrap_or_default().to_owned(),
                        arguments: call["args"].clone(),
                    })
                    .collect(),
            });
            continue;
        }
        let mut results = false;
        for response in parts.iter().filter_map(|part| part.get("functionResponse")) {
            results = true;
            let response = &response["response"];
            let output = if response["output"].is_null() { response } else { &response["output"] };
            conversation.push(Message::text(Role::Tool, text_of(output)));
        }
        if !results || !text.is_empty() {
            conversation.push(Message::text(Role::User, text));
        }
    }
    for declaration in body["tools"].as_array().into_iter().flatten().flat_map(|tool| {
        tool["functionDeclarations"]
            .as_array()
            .or_else(|| tool["function_declarations"].as_array())
            .into_iter()
            .flatten()
    }) {
        if let Some(name) = declaration["name"].as_str() {
            let schema = if declaration["parametersJsonSchema"].is_null() {
                &declaration["parameters"]
            } else {
                &declaration["parametersJsonSchema"]
            };
            conversation.tools.push(Tool { name: name.to_owned(), schema: schema.clone() });
        }
    }
    conversation
}

fn finish_reason(stop: Stop) -> &'static str {
    match stop {
        Stop::Done | Stop::ToolCall => "STOP",
        Stop::MaxTokens => "MAX_TOKENS",
        Stop::Refusal => "SAFETY",
    }
}

fn function_call(call: &Call) -> Value {
    let args = if call.arguments.is_null() { json!({}) } else { call.arguments.clone() };
    json!({"functionCall": {"name": call.name, "args": args}})
}

fn response(envelope: &Envelope, parts: Vec<Value>, finish: Option<Stop>, output: u64) -> Value {
    let mut candidate = json!({"index": 0, "content": {"role": "model", "parts": parts}});
    if let Some(stop) = finish {
        candidate["finishReason"] = json!(finish_reason(stop));
    }
    json!({
        "candidates": [candidate],
        "usageMetadata": {"promptTokenCount": envelope.input_tokens, "candidatesTokenCount": output,
            "totalTokenCount": envelope.input_tokens + output},
        "modelVersion": envelope.model, "responseId": envelope.id("resp-", 0),
    })
}

pub(super) fn whole(envelope: &Envelope, whole: &Whole, stop: Stop) -> Value {
    let mut parts = Vec::new();
    if !whole.text.is_empty() {
        parts.push(json!({"text": whole.text}));
    }
    parts.extend(whole.calls.iter().map(function_call));
    response(envelope, parts, Some(stop), tokens(&whole.text))
}

pub(super) fn error(status: u16, message: &str) -> Value {
    let kind = match status {
        400 => "INVALID_ARGUMENT",
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        429 => "RESOURCE_EXHAUSTED",
        503 => "UNAVAILABLE",
        _ => "INTERNAL",
    };
    json!({"error": {"code": status, "message": message, "status": kind}})
}

/// Writes partial responses; the last one carries the finish reason.
pub struct Stream {
    envelope: Envelope,
    output: u64,
}

impl Stream {
    pub(super) fn new(envelope: Envelope) -> Self {
        Self { envelope, output: 0 }
    }
}

impl Encoder for Stream {
    fn start(&mut self) -> Vec<Event> {
        Vec::new()
    }

    fn text(&mut self, piece: &str) -> Vec<Event> {
        self.output += tokens(piece);
        vec![Event::data(&response(&self.envelope, vec![json!({"text": piece})], None, self.output))]
    }

    fn call(&mut self, call: &Call) -> Vec<Event> {
        vec![Event::data(&response(&self.envelope, vec![function_call(call)], None, self.output))]
    }

    fn finish(&mut self, stop: Stop) -> Vec<Event> {
        vec![Event::data(&response(&self.envelope, vec![json!({"text": ""})], Some(stop), self.output))]
    }

    fn error(&mut self, status: u16, message: &str) -> Vec<Event> {
        vec![Event::data(&error(status, message))]
    }
}
