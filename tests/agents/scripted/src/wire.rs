//! JSON-RPC 2.0 over lines: reading what the client says, writing what it should and should not hear.

use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

/// Error code of a request nobody serves (JSON-RPC 2.0).
pub const METHOD_NOT_FOUND: i64 = -32601;
/// Error code of a request whose parameters make no sense (JSON-RPC 2.0).
pub const INVALID_PARAMS: i64 = -32602;
/// Error code of a request that is not allowed now (JSON-RPC 2.0).
pub const INVALID_REQUEST: i64 = -32600;
/// Error code of a failure inside the agent (JSON-RPC 2.0).
pub const INTERNAL_ERROR: i64 = -32603;
/// Error code of a client that must authenticate first (ACP).
pub const AUTH_REQUIRED: i64 = -32000;
/// Error code of a session the agent does not know (ACP: resource not found).
pub const NOT_FOUND: i64 = -32002;
/// Error code of a line that is not JSON (JSON-RPC 2.0).
const PARSE_ERROR: i64 = -32700;

/// A JSON-RPC error.
#[derive(Debug, Clone, PartialEq)]
pub struct RpcError {
    /// The number that programs read.
    pub code: i64,
    /// The sentence that people read.
    pub message: String,
    /// The HTTP status of a model's API behind it, which adapters put into `data.status`.
    pub http_status: Option<u16>,
}

impl RpcError {
    /// An error with this code and text.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), http_status: None }
    }

    /// An error of a model's API.
    pub fn of_http(status: u16) -> Self {
        Self { http_status: Some(status), ..Self::new(INTERNAL_ERROR, "the model's API answered with an error") }
    }
}

/// What a request ends with.
pub type Outcome = Result<Value, RpcError>;

/// One line from the client.
#[derive(Debug, Clone, PartialEq)]
pub enum Incoming {
    /// A request; it wants exactly one answer.
    Request {
        /// What the answer must carry.
        id: Value,
        /// What is asked.
        method: String,
        /// With what; `null` when absent.
        params: Value,
    },
    /// A notification; it must not be answered.
    Notification {
        /// What happened.
        method: String,
        /// With what; `null` when absent.
        params: Value,
    },
    /// The answer to a request of ours.
    Response {
        /// The number of our request.
        id: i64,
        /// What came back.
        outcome: Outcome,
    },
    /// Not a JSON-RPC message.
    Invalid,
}

/// Reads one line.
#[must_use]
pub fn read(line: &[u8]) -> Incoming {
    let Ok(Value::Object(mut message)) = serde_json::from_slice(line) else {
        return Incoming::Invalid;
    };
    let params = message.remove("params").unwrap_or(Value::Null);
    match (message.remove("method"), message.remove("id")) {
        (Some(Value::String(method)), Some(id)) => Incoming::Request { id, method, params },
        (Some(Value::String(method)), None) => Incoming::Notification { method, params },
        (None, Some(id)) => match (id.as_i64(), message.remove("result"), message.remove("error")) {
            (Some(id), Some(result), None) => Incoming::Response { id, outcome: Ok(result) },
            (Some(id), None, Some(error)) => Incoming::Response {
                id,
                outcome: Err(RpcError::new(
                    error["code"].as_i64().unwrap_or_default(),
                    error["message"].as_str().unwrap_or_default(),
                )),
            },
            _ => Incoming::Invalid,
        },
        _ => Incoming::Invalid,
    }
}

/// The way to the client. Every write is one whole line under one lock, so that threads never mix.
pub struct Wire {
    out: Mutex<Box<dyn Write + Send>>,
    next: AtomicI64,
    waiting: Mutex<HashMap<i64, Sender<Outcome>>>,
}

impl Wire {
    /// A wire that writes there.
    pub fn new(out: impl Write + Send + 'static) -> Self {
        Self { out: Mutex::new(Box::new(out)), next: AtomicI64::new(1), waiting: Mutex::default() }
    }

    /// Writes bytes as they are. A client that is gone is no error here: the agent goes on until its stdin ends.
    pub fn raw(&self, bytes: &[u8]) {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = out.write_all(bytes).and_then(|()| out.flush());
    }

    /// Writes one line of text.
    pub fn line(&self, text: &str) {
        let mut line = String::with_capacity(text.len() + 1);
        line.push_str(text);
        line.push('\n');
        self.raw(line.as_bytes());
    }

    /// Sends a notification.
    pub fn notify(&self, method: &str, params: Value) {
        self.line(&json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string());
    }

    /// Sends a request; the answer arrives in the channel, which closes without one when the client never answers.
    pub fn request(&self, method: &str, params: Value) -> Receiver<Outcome> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id, sender);
        self.line(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string());
        receiver
    }

    /// Hands an answer of the client to whoever waits for it.
    pub fn settle(&self, id: i64, outcome: Outcome) {
        if let Some(waiting) = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&id) {
            let _ = waiting.send(outcome);
        }
    }

    /// Answers a request.
    pub fn respond(&self, id: &Value, outcome: &Outcome) {
        let answer = match outcome {
            Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
            Err(RpcError { code, message, http_status }) => {
                let mut error = json!({"code": code, "message": message});
                if let Some(status) = http_status {
                    error["data"] = json!({"status": status});
                }
                json!({"jsonrpc": "2.0", "id": id, "error": error})
            }
        };
        self.line(&answer.to_string());
    }

    /// Answers a request with an object given as text, which need not be JSON.
    pub fn respond_raw(&self, id: &Value, result: &str) {
        self.line(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#));
    }

    /// Tells the client that a line of its was no message.
    pub fn refuse_line(&self) {
        self.respond(&Value::Null, &Err(RpcError::new(PARSE_ERROR, "not a JSON-RPC message")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(
        r#"{"jsonrpc":"2.0","id":"a","method":"m","params":{"x":1}}"#,
        Incoming::Request { id: json!("a"), method: "m".into(), params: json!({"x": 1}) }
    )]
    #[case(r#"{"method":"m"}"#, Incoming::Notification { method: "m".into(), params: Value::Null })]
    #[case(r#"{"id":7,"result":null}"#, Incoming::Response { id: 7, outcome: Ok(Value::Null) })]
    #[case(
        r#"{"id":7,"error":{"code":-32601,"message":"no"}}"#,
        Incoming::Response { id: 7, outcome: Err(RpcError::new(-32601, "no")) }
    )]
    #[case(r#"{"id":7}"#, Incoming::Invalid)]
    #[case("[]", Incoming::Invalid)]
    #[case("hello", Incoming::Invalid)]
    fn a_line_is_read(#[case] line: &str, #[case] message: Incoming) {
        assert_eq!(read(line.as_bytes()), message);
    }
}
