//! OpenAI responses: `POST /v1/responses`.

use serde_json::{Value, json};

use super::{Encoder, Envelope, Event, Whole, arguments_text, arguments_value, tokens};
use crate::conversation::{Call, Conversation, Message, Role, Tool, text_of};
use crate::script::Stop;

pub(super) fn read(body: &Value) -> Conversation {
    let mut conversation =
        Conversation { model: body["model"].as_str().unwrap_or_default().to_owned(), ..Conversation::default() };
    conversation.push_system(body["instructions"].as_str().unwrap_or_default());
    if let Some(text) = body["input"].as_str() {
        conversation.push(Message::text(Role::User, text));
    }
    for item in body["input"].as_array().into_iter().flatten() {
        let call = |arguments: Value| Message::call(item["name"].as_str().unwrap_or_default(), arguments);
        match item["type"].as_str() {
            Some("function_call") => {
                conversation.push(call(arguments_value(item["arguments"].as_str().unwrap_or_default())));
            }
            Some("custom_tool_call") => conversation.push(call(item["input"].clone())),
            Some("function_call_output" | "custom_tool_call_output") => {
                conversation.push(Message::text(Role::Tool, text_of(&item["output"])));
            }
            // How Codex offers tools to its newer models.
            Some("additional_tools") => offer(&mut conversation, &item["tools"]),
            Some("message") | None => {
                let text = text_of(&item["content"]);
                match item["role"].as_str() {
                    Some("system" | "developer") => conversation.push_system(&text),
                    Some("assistant") => conversation.push(Message::text(Role::Assistant, text)),
                    _ => conversation.push(Message::text(Role::User, text)),
                }
            }
            // Reasoning and hosted tools: nothing a script could depend on.
            Some(_) => {}
        }
    }
    offer(&mut conversation, &body["tools"]);
    conversation
}

/// Takes in a list of tools; a namespace is a list of its own.
fn offer(conversation: &mut Conversation, tools: &Value) {
    for tool in tools.as_array().into_iter().flatten() {
        if tool["type"] == "namespace" {
            offer(conversation, &tool["tools"]);
        } else if let Some(name) = tool["name"].as_str() {
            conversation.tools.push(Tool { name: name.to_owned(), schema: tool["parameters"].clone() });
        }
    }
}

fn usage(envelope: &Envelope, output: u64) -> Value {
    json!({
        "input_tokens": envelope.input_tokens, "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": output, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": envelope.input_tokens + output,
    })
}

fn message_item(id: &str, text: &str, status: &str) -> Value {
    json!({"type": "message", "id": id, "status": status, "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": []}]})
}

/// A call with a JSON object is a function's, one with a bare string is a freeform tool's.
fn call_item(envelope: &Envelope, index: usize, call: &Call) -> Value {
    let (id, call_id) = (envelope.id("fc_", index), envelope.id("call_", index));
    if let Value::String(input) = &call.arguments {
        return json!({"type": "custom_tool_call", "id": id, "call_id": call_id, "name": call.name, "input": input, "status": "completed"});
    }
    json!({"type": "function_call", "id": id, "call_id": call_id, "name": call.name,
        "arguments": arguments_text(call), "status": "completed"})
}

fn response(envelope: &Envelope, status: &str, output: &[Value], usage: Value) -> Value {
    json!({
        "id": envelope.id("resp_", 0), "object": "response", "created_at": envelope.created, "status": status,
        "model": envelope.model, "output": output, "error": null, "incomplete_details": null, "usage": usage,
        "parallel_tool_calls": false, "tool_choice": "auto", "tools": [], "metadata": {},
    })
}

/// The closing response: complete, or incomplete with its reason.
fn closed(envelope: &Envelope, output: &[Value], stop: Stop, tokens: u64) -> Value {
    let why = match stop {
        Stop::Done | Stop::ToolCall => return response(envelope, "completed", output, usage(envelope, tokens)),
        Stop::MaxTokens => "max_output_tokens",
        Stop::Refusal => "content_filter",
    };
    let mut closed = response(envelope, "incomplete", output, usage(envelope, tokens));
    closed["incomplete_details"] = json!({"reason": why});
    closed
}

pub(super) fn whole(envelope: &Envelope, whole: &Whole, stop: Stop) -> Value {
    let mut output = Vec::new();
    if !whole.text.is_empty() {
        output.push(message_item(&envelope.id("msg_", 0), &whole.text, "completed"));
    }
    for call in &whole.calls {
        output.push(call_item(envelope, output.len(), call));
    }
    closed(envelope, &output, stop, tokens(&whole.text))
}

/// Writes the event sequence from `response.created` to `response.completed`.
pub struct Stream {
    envelope: Envelope,
    sequence: u64,
    output: Vec<Value>,
    text: Option<String>,
    tokens: u64,
}

impl Stream {
    pub(super) fn new(envelope: Envelope) -> Self {
        Self { envelope, sequence: 0, output: Vec::new(), text: None, tokens: 0 }
    }

    fn event(&mut self, name: &'static str, mut value: Value) -> Event {
        value["type"] = json!(name);
        value["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        Event::named(name, &value)
    }

    fn close_text(&mut self, events: &mut Vec<Event>) {
        let Some(text) = self.text.take() else { return };
        let index = self.output.len();
        let id = self.envelope.id("msg_", index);
        let item = message_item(&id, &text, "completed");
        let part = json!({"type": "output_text", "text": text, "annotations": []});
        events.push(self.event(
            "response.output_text.done",
            json!({"item_id": id, "output_index": index, "content_index": 0, "text": text}),
        ));
        events.push(self.event(
            "response.content_part.done",
            json!({"item_id": id, "output_index": index, "content_index": 0, "part": part}),
        ));
        events.push(self.event("response.output_item.done", json!({"output_index": index, "item": item})));
        self.output.push(item);
    }
}

impl Encoder for Stream {
    fn start(&mut self) -> Vec<Event> {
        let opened = response(&self.envelope, "in_progress", &[], Value::Null);
        vec![
            self.event("response.created", json!({"response": opened})),
            self.event("response.in_progress", json!({"response": opened})),
        ]
    }

    fn text(&mut self, piece: &str) -> Vec<Event> {
        self.tokens += tokens(piece);
        let index = self.output.len();
        let id = self.envelope.id("msg_", index);
        let mut events = Vec::new();
        if self.text.is_none() {
            let item =
                json!({"type": "message", "id": id, "status": "in_progress", "role": "assistant", "content": []});
            let part = json!({"type": "output_text", "text": "", "annotations": []});
            events.push(self.event("response.output_item.added", json!({"output_index": index, "item": item})));
            events.push(self.event(
                "response.content_part.added",
                json!({"item_id": id, "output_index": index, "content_index": 0, "part": part}),
            ));
        }
        self.text.get_or_insert_default().push_str(piece);
        events.push(self.event(
            "response.output_text.delta",
            json!({"item_id": id, "output_index": index, "content_index": 0, "delta": piece}),
        ));
        events
    }

    fn call(&mut self, call: &Call) -> Vec<Event> {
        let mut events = Vec::new();
        self.close_text(&mut events);
        let index = self.output.len();
        let item = call_item(&self.envelope, index, call);
        let freeform = item["type"] == "custom_tool_call";
        let (field, changed, done) = if freeform {
            ("input", "response.custom_tool_call_input.delta", "response.custom_tool_call_input.done")
        } else {
            ("arguments", "response.function_call_arguments.delta", "response.function_call_arguments.done")
        };
        let mut opened = item.clone();
        opened[field] = json!("");
        opened["status"] = json!("in_progress");
        let id = item["id"].clone();
        events.push(self.event("response.output_item.added", json!({"output_index": index, "item": opened})));
        events.push(self.event(changed, json!({"item_id": id, "output_index": index, "delta": item[field]})));
        let mut last = json!({"item_id": id, "output_index": index});
        last[field] = item[field].clone();
        events.push(self.event(done, last));
        events.push(self.event("response.output_item.done", json!({"output_index": index, "item": item})));
        self.output.push(item);
        events
    }

    fn finish(&mut self, stop: Stop) -> Vec<Event> {
        let mut events = Vec::new();
        self.close_text(&mut events);
        let closed = closed(&self.envelope, &self.output, stop, self.tokens.max(1));
        let name = if closed["status"] == "completed" { "response.completed" } else { "response.incomplete" };
        events.push(self.event(name, json!({"response": closed})));
        events
    }

    fn error(&mut self, status: u16, message: &str) -> Vec<Event> {
        let mut failed = response(&self.envelope, "failed", &self.output, Value::Null);
        failed["error"] =
            json!({"code": if status == 429 { "rate_limit_exceeded" } else { "server_error" }, "message": message});
        vec![self.event("response.failed", json!({"response": failed}))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_offered_beside_the_conversation_or_in_it() {
        let exec = json!({"type": "custom", "name": "exec"});
        let body = json!({
            "tools": [{"type": "function", "name": "bash", "parameters": {"type": "object"}}, {"type": "web_search"}],
            "input": [
                {"type": "additional_tools", "role": "developer",
                    "tools": [{"type": "namespace", "name": "functions", "tools": [exec]}, {"type": "custom", "name": "wait"}]},
                {"type": "message", "role": "user", "content": "hi"},
            ],
        });
        let conversation = read(&body);
        let names: Vec<_> = conversation.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!((names, conversation.messages.len()), (vec!["exec", "wait", "bash"], 1));
    }
}
