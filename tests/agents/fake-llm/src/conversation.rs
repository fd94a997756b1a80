//! What a request says, whatever dialect it was written in.
//!
//! The four dialects differ in spelling only: all carry a system text, messages with roles, offered tools, calls of
//! those tools and their results. The decision what to answer is made on this form alone.

use serde_json::Value;

/// Who wrote a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The person, or the agent speaking in their name (reminders, environment descriptions).
    User,
    /// The model, that is: this server, earlier.
    Assistant,
    /// Results of tool calls.
    Tool,
}

/// One tool call the model asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Name as offered in the request.
    pub name: String,
    /// Arguments as a JSON object, or a JSON string for a freeform tool.
    pub arguments: Value,
}

/// One message. Text, calls and results never mix except text and calls of an assistant.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Who wrote it.
    pub role: Role,
    /// All text parts, joined by line breaks. For [`Role::Tool`] the text of the results.
    pub text: String,
    /// Tool calls of an assistant message.
    pub calls: Vec<Call>,
}

impl Message {
    /// A message of text alone.
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Self { role, text: text.into(), calls: Vec::new() }
    }

    /// An assistant message that asks for one tool call.
    pub fn call(name: impl Into<String>, arguments: Value) -> Self {
        Self { role: Role::Assistant, text: String::new(), calls: vec![Call { name: name.into(), arguments }] }
    }
}

/// A tool the request offers.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// The JSON schema of its arguments; null for a freeform tool.
    pub schema: Value,
}

/// A request in normal form.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// The model asked for; any name is accepted.
    pub model: String,
    /// All system, developer and instruction texts, joined by line breaks.
    pub system: String,
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// The tools on offer.
    pub tools: Vec<Tool>,
}

impl Conversation {
    /// Adds `message`, merged into the last one when both are an assistant's: some dialects send a text and a call of
    /// one answer as two items.
    pub fn push(&mut self, message: Message) {
        if let Some(last) = self.messages.last_mut()
            && last.role == message.role
            && message.role != Role::User
        {
            if !message.text.is_empty() {
                if !last.text.is_empty() {
                    last.text.push('\n');
                }
                last.text.push_str(&message.text);
            }
            last.calls.extend(message.calls);
            return;
        }
        self.messages.push(message);
    }

    /// Adds a system text.
    pub fn push_system(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if !self.system.is_empty() {
            self.system.push('\n');
        }
        self.system.push_str(text);
    }

    /// The text of the newest tool result, trimmed; empty when there is none.
    pub fn last_tool_result(&self) -> &str {
        self.messages.iter().rev().find(|m| m.role == Role::Tool).map_or("", |m| m.text.trim())
    }
}

/// The text of a content field: a plain string, or a list of parts of which those with a `text` count.
pub(crate) fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part.as_str().or_else(|| part["text"].as_str()))
            .collect::<Vec<_>>()
            .join("\n"),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
