//! Anthropic messages: `POST /v1/messages`.

use serde_json::{Value, json};

use super::{Encoder, Envelope, Event, Whole, arguments_text, tokens};
use crate::conversation::{Call, Conversation, Message, Role, Tool, text_of};
use crate::script::Stop;

pub(super) fn read(body: &Value) -> Conversation {
    let mut conversation =
        Conversation { model: body["model"].as_str().unwrap_or_default().to_owned(), ..Conversation::default() };
    conversation.push_system(&text_of(&body["system"]));
    for message in body["messages"].as_array().into_iter().flatten() {
        let content = &message["content"];
        // Newer clients put parts of the system text among the messages.
        if message["role"] == "system" {
            conversation.push_system(&text_of(content));
            continue;
        }
        let parts = content.as_array().map(Vec::as_slice).unwrap_or_default();
        let of_kind = |kind: &'static str| parts.iter().filter(move |part| part["type"] == kind);
        if message["role"] == "assistant" {
            conversation.push(Message {
                role: Role::Assistant,
                text: text_of(content),
                calls: of_kind("tool_use")
                    .map(|part| Call {
                        name: part["name"].as_str().unwrap_or_default().to_owned(),
                        arguments: part["input"].clone(),
                    })
                    .collect(),
            });
            continue;
        }
        // One user message carries both: the results come first, a text beside them was written after them.
        for part in of_kind("tool_result") {
            conversation.push(Message::text(Role::Tool, text_of(&part["content"])));
        }
        let text = text_of(content);
        if !text.is_empty() || of_kind("tool_result").next().is_none() {
            conversation.push(Message::text(Role::User, text));
        }
    }
    for tool in body["tools"].as_array().into_iter().flatten() {
        if let Some(name) = tool["name"].as_str() {
            conversation.tools.push(Tool { name: name.to_owned(), schema: tool["input_schema"].clone() });
        }
    }
    conversation
}

fn stop_reason(stop: Stop) -> &'static str {
    match stop {
        Stop::Done => "end_turn",
        Stop::ToolCall => "tool_use",
        Stop::MaxTokens => "max_tokens",
        Stop::Refusal => "refusal",
    }
}

fn input(call: &Call) -> Value {
    match &call.arguments {
        Value::Null => json!({}),
        other => other.clone(),
    }
}

pub(super) fn whole(envelope: &Envelope, whole: &Whole, stop: Stop) -> Value {
    let mut content = Vec::new();
    if !whole.text.is_empty() {
        content.push(json!({"type": "text", "text": whole.text}));
    }
    for (index, call) in whole.calls.iter().enumerate() {
        content.push(
            json!({"type": "tool_use", "id": envelope.id("toolu_", index), "name": call.name, "input": input(call)}),
        );
    }
    json!({
        "id": envelope.id("msg_", 0), "type": "message", "role": "assistant", "model": envelope.model, "content": content,
        "stop_reason": stop_reason(stop), "stop_sequence": null,
        "usage": {"input_tokens": envelope.input_tokens, "output_tokens": tokens(&whole.text)},
    })
}

pub(super) fn error(status: u16, message: &str) -> Value {
    let kind = match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        429 => "rate_limit_error",
        529 => "overloaded_error",
        400..500 => "invalid_request_error",
        _ => "api_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": message}})
}

/// Writes the event sequence from `message_start` to `message_stop`.
pub struct Stream {
    envelope: Envelope,
    /// Number of the next content block.
    block: usize,
    in_text: bool,
    output: u64,
}

impl Stream {
    pub(super) fn new(envelope: Envelope) -> Self {
        Self { envelope, block: 0, in_text: false, output: 0 }
    }

    fn close_text(&mut self, events: &mut Vec<Event>) {
        if self.in_text {
            events.push(stop_block(self.block));
            self.block += 1;
            self.in_text = false;
        }
    }
}

fn start_block(index: usize, block: Value) -> Event {
    Event::named("content_block_start", &json!({"type": "content_block_start", "index": index, "content_block": block}))
}

fn delta(index: usize, delta: Value) -> Event {
    Event::named("content_block_delta", &json!({"type": "content_block_delta", "index": index, "delta": delta}))
}

fn stop_block(index: usize) -> Event {
    Event::named("content_block_stop", &json!({"type": "content_block_stop", "index": index}))
}

impl Encoder for Stream {
    fn start(&mut self) -> Vec<Event> {
        let message = json!({
            "id": self.envelope.id("msg_", 0), "type": "message", "role": "assistant", "model": self.envelope.model,
            "content": [], "stop_reason": null, "stop_sequence": null,
            "usage": {"input_tokens": self.envelope.input_tokens, "output_tokens": 0},
        });
        vec![Event::named("message_start", &json!({"type": "message_start", "message": message}))]
    }

    fn text(&mut self, piece: &str) -> Vec<Event> {
        self.output += tokens(piece);
        let mut events = Vec::new();
        if !self.in_text {
            self.in_text = true;
            events.push(start_block(self.block, json!({"type": "text", "text": ""})));
        }
        events.push(delta(self.block, json!({"type": "text_delta", "text": piece})));
        events
    }

    fn call(&mut self, call: &Call) -> Vec<Event> {
        let mut events = Vec::new();
        self.close_text(&mut events);
        let index = self.block;
        self.block += 1;
        let id = self.envelope.id("toolu_", index);
        events.push(start_block(index, json!({"type": "tool_use", "id": id, "name": call.name, "input": {}})));
        events.push(delta(index, json!({"type": "input_json_delta", "partial_json": arguments_text(call)})));
        events.push(stop_block(index));
        events
    }

    fn finish(&mut self, stop: Stop) -> Vec<Event> {
        let mut events = Vec::new();
        self.close_text(&mut events);
        events.push(Event::named(
            "message_delta",
            &json!({
                "type": "message_delta", "delta": {"stop_reason": stop_reason(stop), "stop_sequence": null},
                "usage": {"output_tokens": self.output.max(1)},
            }),
        ));
        events.push(Event::named("message_stop", &json!({"type": "message_stop"})));
        events
    }

    fn error(&mut self, status: u16, message: &str) -> Vec<Event> {
        vec![Event::named("error", &error(status, message))]
    }
}
