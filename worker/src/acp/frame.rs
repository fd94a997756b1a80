//! JSON-RPC frames of the agent. Pure.
//!
//! A frame is cut into raw parts and its content stays text until somebody wants it, so that a frame of 12 MiB costs its
//! size and not a tree of values many times that.

use crate::outcome::RpcFault;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use std::borrow::Cow;

/// Longest request id that is echoed, in bytes; ids are numbers or short strings.
const MAX_ID_BYTES: usize = 256;
/// Largest error object that is looked into, in bytes.
const MAX_ERROR_BYTES: usize = 64 * 1024;

/// What the agent sent.
#[derive(Debug)]
pub enum Frame {
    /// An answer to a request of ours.
    Response {
        /// Our request's number.
        id: u64,
        /// The result, or the error's numbers.
        outcome: Result<Box<RawValue>, RpcFault>,
    },
    /// A request to us.
    Request {
        /// The id to answer with, as JSON.
        id: Box<RawValue>,
        /// Method.
        method: String,
        /// Parameters; `null` when there are none.
        params: Box<RawValue>,
    },
    /// A notification.
    Notification {
        /// Method.
        method: String,
        /// Parameters; `null` when there are none.
        params: Box<RawValue>,
    },
}

#[derive(Deserialize)]
struct Parts<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

/// Reads a line; `None` when it is not a frame (a banner, a log line, an answer to nothing).
pub fn parse(line: &str) -> Option<Frame> {
    let parts: Parts<'_> = serde_json::from_str(line).ok()?;
    let id = parts.id.filter(|id| id.get().len() <= MAX_ID_BYTES);
    if parts.id.is_some() != id.is_some() {
        return None;
    }
    let own = |raw: Option<&RawValue>| raw.map_or_else(null, ToOwned::to_owned);
    match (parts.method, id) {
        (Some(method), Some(id)) => {
            Some(Frame::Request { id: id.to_owned(), method: method.into_owned(), params: own(parts.params) })
        }
        (Some(method), None) => Some(Frame::Notification { method: method.into_owned(), params: own(parts.params) }),
        (None, Some(id)) => {
            // Our ids are numbers; an agent that answers with the number as a string is understood.
            let id = id.get().trim_matches('"').parse().ok()?;
            let outcome = parts.error.map_or_else(|| Ok(own(parts.result)), |error| Err(fault(error)));
            Some(Frame::Response { id, outcome })
        }
        (None, None) => None,
    }
}

fn null() -> Box<RawValue> {
    RawValue::NULL.to_owned()
}

/// The numbers of an error object: its code, and an HTTP status where adapters of model APIs put one.
fn fault(error: &RawValue) -> RpcFault {
    let error: Value = if error.get().len() <= MAX_ERROR_BYTES {
        serde_json::from_str(error.get()).unwrap_or_default()
    } else {
        Value::Null
    };
    let http_status = ["/data/status", "/data/statusCode", "/data/httpStatus", "/data/error/status"]
        .iter()
        .filter_map(|path| error.pointer(path)?.as_u64())
        .find(|status| (100..600).contains(status))
        .and_then(|status| u16::try_from(status).ok());
    // -32603, "internal error", for an error without a code.
    RpcFault { code: error.get("code").and_then(Value::as_i64).unwrap_or(-32603), http_status }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// A short form for tables.
    fn short(line: &str) -> String {
        match parse(line) {
            None => "garbage".into(),
            Some(Frame::Request { id, method, params }) => format!("request {id} {method} {params}"),
            Some(Frame::Notification { method, params }) => format!("notification {method} {params}"),
            Some(Frame::Response { id, outcome: Ok(result) }) => format!("result {id} {result}"),
            Some(Frame::Response { id, outcome: Err(fault) }) => format!("error {id} {fault}"),
        }
    }

    #[rstest]
    #[case(r#"{"jsonrpc":"2.0","id":1,"result":{"a":[1]}}"#, r#"result 1 {"a":[1]}"#)]
    #[case(r#"{"jsonrpc":"2.0","id":1,"result":null}"#, "result 1 null")]
    #[case(r#"{"id":"7","result":{}}"#, "result 7 {}")]
    #[case(r#"{"id":1,"error":{"code":-32000,"message":"secret"}}"#, "error 1 JSON-RPC error -32000")]
    #[case(r#"{"id":1,"error":{"code":1,"data":{"status":429}}}"#, "error 1 JSON-RPC error 1 (HTTP status 429)")]
    #[case(r#"{"id":1,"error":"oops"}"#, "error 1 JSON-RPC error -32603")]
    #[case(r#"{"id":"x","method":"m","params":{"b":1}}"#, r#"request "x" m {"b":1}"#)]
    #[case(r#"{"method":"_x/y"}"#, "notification _x/y null")]
    #[case(r#"{"id":null,"error":{"code":-32700}}"#, "garbage")]
    #[case(r#"{"id":"mine","result":{}}"#, "garbage")]
    #[case("Listening on stdio...", "garbage")]
    #[case("", "garbage")]
    #[case("[1,2]", "garbage")]
    #[case("42", "garbage")]
    #[case(r#"{"level":"info","msg":"a log line"}"#, "garbage")]
    fn c54_frames_and_garbage(#[case] line: &str, #[case] want: &str) {
        assert_eq!(short(line), want);
    }

    #[test]
    fn c54_endless_nesting_is_garbage_and_no_crash() {
        assert_eq!(short(&"[".repeat(1_000_000)), "garbage");
        let deep = format!(r#"{{"id":1,"result":{}}}"#, "{\"a\":".repeat(100_000));
        assert_eq!(short(&deep), "garbage");
    }

    #[test]
    fn c54_an_endless_id_is_garbage() {
        assert_eq!(short(&format!(r#"{{"id":"{}","method":"m"}}"#, "x".repeat(300))), "garbage");
    }
}
