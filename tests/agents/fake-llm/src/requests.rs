//! The record of requests, for tests to read.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde_json::Value;

/// Requests kept; a whole test suite makes fewer, and a leaking test cannot fill the memory.
const KEPT: usize = 1000;
/// Bytes of request bodies kept; agents send their whole history with every request.
const KEPT_BYTES: usize = 64 << 20;

/// One request, as `GET /__requests` shows it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Counts from 1, also across clearing.
    pub number: u64,
    /// Milliseconds since 1970 at its arrival.
    pub at: u64,
    /// `chat`, `responses`, `messages` or `gemini`.
    pub dialect: &'static str,
    /// The model asked for.
    pub model: String,
    /// Whether a stream was asked for.
    pub stream: bool,
    /// Where the answer came from: `directive`, `rule N`, `unscripted` or `sideCall`.
    pub source: String,
    /// How far the answer got.
    pub state: State,
    /// The request's body.
    pub body: Value,
    #[serde(skip)]
    bytes: usize,
}

/// How far an answer got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// Still being given.
    Open,
    /// Given to its end, scripted errors included.
    Done,
    /// The client went away first.
    Dropped,
}

/// The record, shared by all handlers.
#[derive(Debug, Clone, Default)]
pub struct Record(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    last: u64,
    bytes: usize,
    forgotten: u64,
    requests: VecDeque<Request>,
}

/// What `GET /__requests` answers.
#[derive(Debug, Clone, Serialize)]
pub struct Listing {
    /// Requests dropped to stay within bounds.
    pub forgotten: u64,
    /// The requests, oldest first.
    pub requests: Vec<Request>,
}

impl Record {
    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        // Every change is complete before the lock is let go, also in a panicking test.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request; the guard closes it.
    pub(crate) fn open(&self, mut request: Request, bytes: usize) -> Open {
        let mut kept = self.kept();
        kept.last += 1;
        request.number = kept.last;
        request.bytes = bytes;
        kept.bytes += bytes;
        kept.requests.push_back(request);
        while kept.requests.len() > KEPT || (kept.bytes > KEPT_BYTES && kept.requests.len() > 1) {
            if let Some(old) = kept.requests.pop_front() {
                kept.bytes -= old.bytes;
                kept.forgotten += 1;
            }
        }
        Open { record: self.clone(), number: kept.last, done: false }
    }

    /// The requests whose body contains `part`, oldest first.
    pub fn listing(&self, part: &str) -> Listing {
        let kept = self.kept();
        let requests = kept.requests.iter().filter(|r| part.is_empty() || r.body.to_string().contains(part));
        Listing { forgotten: kept.forgotten, requests: requests.cloned().collect() }
    }

    /// Forgets all requests.
    pub fn clear(&self) {
        let mut kept = self.kept();
        kept.requests.clear();
        kept.bytes = 0;
        kept.forgotten = 0;
    }
}

impl Request {
    pub(crate) fn new(dialect: &'static str, model: &str, stream: bool, source: String, body: Value) -> Self {
        Self {
            number: 0,
            at: crate::now_millis(),
            dialect,
            model: model.to_owned(),
            stream,
            source,
            state: State::Open,
            body,
            bytes: 0,
        }
    }
}

/// A request being answered. Dropped without [`Open::done`] it counts as dropped by the client.
#[derive(Debug)]
pub(crate) struct Open {
    record: Record,
    pub(crate) number: u64,
    done: bool,
}

impl Open {
    /// The answer was given to its end.
    pub(crate) fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let state = if self.done { State::Done } else { State::Dropped };
        let mut kept = self.record.kept();
        if let Some(request) = kept.requests.iter_mut().rev().find(|r| r.number == self.number) {
            request.state = state;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> Request {
        Request::new("chat", "m", false, "unscripted".into(), Value::String(text.into()))
    }

    #[test]
    fn the_record_is_bounded_by_count_and_by_bytes() {
        let record = Record::default();
        for _ in 0..KEPT + 5 {
            record.open(request("a"), 1).done();
        }
        let listing = record.listing("");
        assert_eq!((listing.requests.len(), listing.forgotten), (KEPT, 5));
        assert_eq!(listing.requests[0].number, 6);
        record.open(request("b"), KEPT_BYTES).done();
        assert_eq!(record.listing("").requests.len(), 1);
        assert_eq!(record.listing("c").requests.len(), 0);
        record.clear();
        record.open(request("c"), 1).done();
        assert_eq!(record.listing("").requests[0].number, KEPT as u64 + 7);
    }

    #[test]
    fn a_client_that_goes_away_is_seen() {
        let record = Record::default();
        let first = record.open(request("a"), 1);
        let second = record.open(request("b"), 1);
        assert_eq!(record.listing("a").requests[0].state, State::Open);
        drop(first);
        second.done();
        assert_eq!(record.listing("a").requests[0].state, State::Dropped);
        assert_eq!(record.listing("b").requests[0].state, State::Done);
    }
}
