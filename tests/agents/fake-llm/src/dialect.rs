//! The four wire forms. Each reads a request body into a [`Conversation`] and writes an answer, whole or as a stream.

pub mod chat;
pub mod gemini;
pub mod messages;
pub mod responses;

use serde_json::Value;

use crate::conversation::{Call, Conversation};
use crate::script::Stop;

/// One server-sent event.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The `event:` line, where the dialect has one.
    pub name: Option<&'static str>,
    /// The `data:` line.
    pub data: String,
}

impl Event {
    fn data(value: &Value) -> Self {
        Self { name: None, data: value.to_string() }
    }

    fn named(name: &'static str, value: &Value) -> Self {
        Self { name: Some(name), data: value.to_string() }
    }
}

/// What an encoder has to know of the request it answers.
#[derive(Debug, Clone)]
pub struct Envelope {
    /// Number of the request, unique in this server: identifiers are made from it.
    pub number: u64,
    /// The model name to echo.
    pub model: String,
    /// Tokens of the prompt, estimated.
    pub input_tokens: u64,
    /// Seconds since 1970.
    pub created: u64,
    /// Whether the client asked for usage in the stream (chat completions only).
    pub stream_usage: bool,
}

impl Envelope {
    /// An identifier, unique in this server.
    fn id(&self, prefix: &str, index: usize) -> String {
        format!("{prefix}{:08x}{index:04x}", self.number)
    }
}

/// A whole answer.
#[derive(Debug, Clone, Default)]
pub struct Whole {
    /// All text.
    pub text: String,
    /// The tool calls.
    pub calls: Vec<Call>,
}

/// Estimated tokens of a text: four characters each, at least one. Clients only need a plausible number.
pub(crate) fn tokens(text: &str) -> u64 {
    (text.len() as u64 / 4).max(1)
}

/// Writes an answer as a stream, piece by piece.
pub trait Encoder: Send {
    /// Events before the first piece.
    fn start(&mut self) -> Vec<Event>;
    /// Events for a piece of text.
    fn text(&mut self, piece: &str) -> Vec<Event>;
    /// Events for a tool call.
    fn call(&mut self, call: &Call) -> Vec<Event>;
    /// Events after the last piece.
    fn finish(&mut self, stop: Stop) -> Vec<Event>;
    /// Events for a failure after the stream has begun.
    fn error(&mut self, status: u16, message: &str) -> Vec<Event>;
}

/// A wire form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI chat completions.
    Chat,
    /// OpenAI responses.
    Responses,
    /// Anthropic messages.
    Messages,
    /// Gemini generateContent.
    Gemini,
}

impl Dialect {
    /// Its name in the record of requests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Gemini => "gemini",
        }
    }

    /// Reads a request body. Absent fields are empty: clients leave out what they do not use.
    pub fn read(self, body: &Value) -> Conversation {
        match self {
            Self::Chat => chat::read(body),
            Self::Responses => responses::read(body),
            Self::Messages => messages::read(body),
            Self::Gemini => gemini::read(body),
        }
    }

    /// A whole answer's body.
    pub fn whole(self, envelope: &Envelope, whole: &Whole, stop: Stop) -> Value {
        match self {
            Self::Chat => chat::whole(envelope, whole, stop),
            Self::Responses => responses::whole(envelope, whole, stop),
            Self::Messages => messages::whole(envelope, whole, stop),
            Self::Gemini => gemini::whole(envelope, whole, stop),
        }
    }

    /// A stream's writer.
    pub fn encoder(self, envelope: Envelope) -> Box<dyn Encoder> {
        match self {
            Self::Chat => Box::new(chat::Stream::new(envelope)),
            Self::Responses => Box::new(responses::Stream::new(envelope)),
            Self::Messages => Box::new(messages::Stream::new(envelope)),
            Self::Gemini => Box::new(gemini::Stream::new(envelope)),
        }
    }

    /// The body of a failed request.
    pub fn error(self, status: u16, message: &str) -> Value {
        match self {
            Self::Chat | Self::Responses => chat::error(status, message),
            Self::Messages => messages::error(status, message),
            Self::Gemini => gemini::error(status, message),
        }
    }
}

/// Tool arguments as the model sends them: a string that holds JSON.
fn arguments_text(call: &Call) -> String {
    match &call.arguments {
        Value::Null => "{}".to_owned(),
        other => other.to_string(),
    }
}

/// Tool arguments out of a string that holds JSON; kept as a string when it does not.
fn arguments_value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}
