//! OpenAI chat completions: `POST /v1/chat/completions`.

use serde_json::{Value, json};

use super::{Encoder, Envelope, Event, Whole, arguments_text, arguments_value, tokens};
use crate::conversation::{Call, Conversation, Message, Role, Tool, text_of};
use crate::script::Stop;

pub(super) fn read(body: &Value) -> Conversation {
    let mut conversation =
        Conversation { model: body["model"].as_str().unwrap_or_default().to_owned(), ..Conversation::default() };
    for message in body["messages"].as_array().into_iter().flatten() {
        let text = text_of(&message["content"]);
        match message["role"].as_str() {
            Some("system" | "developer") => conversation.push_system(&text),
            Some("assistant") => {
                let calls = message["tool_calls"].as_array().into_iter().flatten();
                conversation.push(Message {
                    role: Role::Assistant,
                    text,
                    calls: calls
                        .map(|call| Call {
                            name: call["function"]["name"].as_str().unwrap_or_default().to_owned(),
                            arguments: arguments_value(call["function"]["arguments"].as_str().unwrap_or_default()),
                        })
                        .collect(),
                });
            }
            Some("tool" | "function") => conversation.push(Message::text(Role::Tool, text)),
            _ => conversation.push(Message::text(Role::User, text)),
        }
    }
    for tool in body["tools"].as_array().into_iter().flatten() {
        if let Some(name) = tool["function"]["name"].as_str() {
            conversation.tools.push(Tool { name: name.to_owned(), schema: tool["function"]["parameters"].clone() });
        }
    }
    conversation
}

fn finish_reason(stop: Stop) -> &'static str {
    match stop {
        Stop::Done => "stop",
        Stop::ToolCall => "tool_calls",
        Stop::MaxTokens => "length",
        Stop::Refusal => "content_filter",
    }
}

fn usage(envelope: &Envelope, output: u64) -> Value {
    json!({"prompt_tokens": envelope.input_tokens, "completion_tokens": output, "total_tokens": envelope.input_tokens + output})
}

pub(super) fn whole(envelope: &Envelope, whole: &Whole, stop: Stop) -> Value {
    let mut message = json!({"role": "assistant", "content": whole.text});
    if !whole.calls.is_empty() {
        let calls = whole.calls.iter().enumerate().map(|(index, call)| {
            json!({"id": envelope.id("call_", index), "type": "function",
                "function": {"name": call.name, "arguments": arguments_text(call)}})
        });
        message["tool_calls"] = calls.collect();
    }
    json!({
        "id": envelope.id("chatcmpl-", 0), "object": "chat.completion", "created": envelope.created, "model": envelope.model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason(stop)}],
        "usage": usage(envelope, tokens(&whole.text)),
    })
}

pub(super) fn error(status: u16, message: &str) -> Value {
    let kind = if status == 429 {
        "rate_limit_error"
    } else if status < 500 {
        "invalid_request_error"
    } else {
        "server_error"
    };
    json!({"error": {"message": message, "type": kind, "code": status.to_string(), "param": null}})
}

/// Writes `chat.completion.chunk` objects and the closing `[DONE]`.
pub struct Stream {
    envelope: Envelope,
    calls: usize,
    output: u64,
}

impl Stream {
    pub(super) fn new(envelope: Envelope) -> Self {
        Self { envelope, calls: 0, output: 0 }
    }

    fn chunk(&self, choices: Value) -> Value {
        json!({"id": self.envelope.id("chatcmpl-", 0), "object": "chat.completion.chunk",
            "created": self.envelope.created, "model": self.envelope.model, "choices": choices})
    }

    fn delta(&self, delta: Value) -> Event {
        Event::data(&self.chunk(json!([{"index": 0, "delta": delta, "finish_reason": null}])))
    }
}

impl Encoder for Stream {
    fn start(&mut self) -> Vec<Event> {
        vec![self.delta(json!({"role": "assistant", "content": ""}))]
    }

    fn text(&mut self, piece: &str) -> Vec<Event> {
        self.output += tokens(piece);
        vec![self.delta(json!({"content": piece}))]
    }

    fn call(&mut self, call: &Call) -> Vec<Event> {
        let index = self.calls;
        self.calls += 1;
        let id = self.envelope.id("call_", index);
        vec![
            self.delta(json!({"tool_calls": [{"index": index, "id": id, "type": "function",
                "function": {"name": call.name, "arguments": ""}}]})),
            self.delta(json!({"tool_calls": [{"index": index, "function": {"arguments": arguments_text(call)}}]})),
        ]
    }

    fn finish(&mut self, stop: Stop) -> Vec<Event> {
        let mut events =
            vec![Event::data(&self.chunk(json!([{"index": 0, "delta": {}, "finish_reason": finish_reason(stop)}])))];
        if self.envelope.stream_usage {
            let mut chunk = self.chunk(json!([]));
            chunk["usage"] = usage(&self.envelope, self.output);
            events.push(Event::data(&chunk));
        }
        events.push(Event { name: None, data: "[DONE]".into() });
        events
    }

    fn error(&mut self, status: u16, message: &str) -> Vec<Event> {
        vec![Event::data(&error(status, message))]
    }
}
