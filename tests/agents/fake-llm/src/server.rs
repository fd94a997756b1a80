//! The HTTP server: the dialects' endpoints, and those under `/__` by which tests steer and read it.

use std::convert::Infallible;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post, put};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::conversation::Conversation;
use crate::decide::{Answer, Source, Step, decide};
use crate::dialect::{Dialect, Envelope, Event, Whole, tokens};
use crate::gates::Gates;
use crate::requests::{Open, Record, Request};
use crate::script::{CutText, Rule, Script};

/// Agents accept prompts of several MiB and send the whole history with each request.
const BODY_LIMIT: usize = 64 << 20;
/// Events between writer and socket; small, so that a slow reader slows the writer as a real service would.
const EVENTS_AHEAD: usize = 16;

/// Everything the handlers share.
#[derive(Clone, Default)]
pub struct Shared {
    script: Arc<RwLock<Script>>,
    /// The record of requests.
    pub record: Record,
    /// The gates answers wait for.
    pub gates: Gates,
    key: Option<Arc<str>>,
}

impl Shared {
    /// Nothing scripted yet; with a key, whoever asks the model must show it.
    pub fn asking_for(key: Option<&str>) -> Self {
        Self { key: key.filter(|key| !key.is_empty()).map(Arc::from), ..Self::default() }
    }

    /// Replaces the rules; the built-in ones stay behind them.
    pub fn set_rules(&self, rules: Vec<Rule>) {
        *self.script.write().unwrap_or_else(PoisonError::into_inner) = Script::new(rules);
    }

    fn script(&self) -> Script {
        self.script.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// All routes.
pub fn router(shared: Shared) -> Router {
    let model = Router::new()
        .route("/v1/models", get(models))
        .route("/v1/chat/completions", post(|s, b| complete(s, b, Dialect::Chat)))
        .route("/v1/responses", post(|s, b| complete(s, b, Dialect::Responses)))
        .route("/v1/messages", post(|s, b| complete(s, b, Dialect::Messages)))
        .route("/v1/messages/count_tokens", post(count_tokens))
        .route("/v1beta/models", get(models))
        .route("/v1beta/models/{call}", post(gemini))
        .route_layer(from_fn_with_state(shared.clone(), check_key));
    model
        .route("/healthz", get(|| async { "ok" }))
        .route("/__script", put(put_script).get(get_script).delete(delete_script))
        .route("/__requests", get(get_requests).delete(delete_requests))
        .route("/__gates", get(get_gates))
        .route("/__gates/{name}", post(open_gate))
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(shared)
}

/// Each service has a header of its own for the key.
async fn check_key(State(shared): State<Shared>, request: axum::extract::Request, next: Next) -> Response {
    if shared.key.as_deref().is_some_and(|key| !shows(request.headers(), key)) {
        let error = json!({"error": {"type": "authentication_error", "message": "no key, or a wrong one"}});
        return (StatusCode::UNAUTHORIZED, Json(error)).into_response();
    }
    next.run(request).await
}

fn shows(headers: &HeaderMap, key: &str) -> bool {
    let shown = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = shown("authorization").and_then(|value| value.strip_prefix("Bearer "));
    [bearer, shown("x-api-key"), shown("x-goog-api-key")].contains(&Some(key))
}

/// One model, for clients that look before they ask; any other name is accepted as well.
async fn models() -> Json<Value> {
    Json(json!({
        "object": "list",
        "data": [{"id": "scripted", "object": "model", "created": 0, "owned_by": "fake-llm", "type": "model", "display_name": "Scripted"}],
        "models": [{"name": "models/scripted", "displayName": "Scripted", "supportedGenerationMethods": ["generateContent"]}],
        "has_more": false,
    }))
}

async fn count_tokens(body: Bytes) -> Json<Value> {
    Json(json!({"input_tokens": body.len() / 4 + 1}))
}

async fn put_script(State(shared): State<Shared>, body: Bytes) -> Response {
    match serde_json::from_slice::<Vec<Rule>>(&body) {
        Ok(rules) => {
            shared.set_rules(rules);
            StatusCode::NO_CONTENT.into_response()
        }
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    }
}

async fn get_script(State(shared): State<Shared>) -> Json<Vec<Rule>> {
    Json(shared.script().rules)
}

async fn delete_script(State(shared): State<Shared>) -> StatusCode {
    shared.set_rules(Vec::new());
    StatusCode::NO_CONTENT
}

#[derive(Deserialize)]
struct Filter {
    #[serde(default)]
    contains: String,
}

async fn get_requests(State(shared): State<Shared>, Query(filter): Query<Filter>) -> Response {
    Json(shared.record.listing(&filter.contains)).into_response()
}

async fn delete_requests(State(shared): State<Shared>) -> StatusCode {
    shared.record.clear();
    StatusCode::NO_CONTENT
}

async fn get_gates(State(shared): State<Shared>) -> Response {
    Json(shared.gates.listing()).into_response()
}

/// Reads whatever body it is sent: an unread one would end the connection, which a proxy in between takes for a failure.
async fn open_gate(State(shared): State<Shared>, Path(name): Path<String>, _body: Bytes) -> StatusCode {
    shared.gates.open(&name);
    StatusCode::NO_CONTENT
}

async fn complete(State(shared): State<Shared>, body: Bytes, dialect: Dialect) -> Response {
    let body: Value = match parse(&body) {
        Ok(body) => body,
        Err(error) => return refuse(dialect, 400, &error),
    };
    let framing = if body["stream"] == true { Framing::Events } else { Framing::Whole };
    let conversation = dialect.read(&body);
    reply(shared, dialect, conversation, body, framing).await
}

#[derive(Deserialize)]
struct GeminiQuery {
    alt: Option<String>,
}

async fn gemini(
    State(shared): State<Shared>,
    Path(call): Path<String>,
    Query(query): Query<GeminiQuery>,
    body: Bytes,
) -> Response {
    let dialect = Dialect::Gemini;
    let body: Value = match parse(&body) {
        Ok(body) => body,
        Err(error) => return refuse(dialect, 400, &error),
    };
    let (model, method) = call.rsplit_once(':').unwrap_or((call.as_str(), ""));
    let framing = match method {
        "generateContent" => Framing::Whole,
        "streamGenerateContent" if query.alt.as_deref() == Some("sse") => Framing::Events,
        "streamGenerateContent" => Framing::Array,
        "countTokens" => return Json(json!({"totalTokens": tokens(&body.to_string())})).into_response(),
        _ => return refuse(dialect, 404, &format!("no method {method:?}")),
    };
    let conversation = Conversation { model: model.to_owned(), ..dialect.read(&body) };
    reply(shared, dialect, conversation, body, framing).await
}

fn parse(body: &Bytes) -> Result<Value, String> {
    serde_json::from_slice(body).map_err(|error| format!("not JSON: {error}"))
}

fn refuse(dialect: Dialect, status: u16, message: &str) -> Response {
    let code = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (code, Json(dialect.error(status, message))).into_response()
}

/// How an answer is put on the wire.
#[derive(Clone, Copy, PartialEq)]
enum Framing {
    /// One JSON body.
    Whole,
    /// Server-sent events.
    Events,
    /// A JSON array of what would be the events (Gemini without `alt=sse`).
    Array,
}

/// Decides, records and answers.
async fn reply(
    shared: Shared,
    dialect: Dialect,
    conversation: Conversation,
    body: Value,
    framing: Framing,
) -> Response {
    let answer = decide(&conversation, &shared.script());
    let source = match answer.source {
        Source::Directive => "directive".to_owned(),
        Source::Rule(number) => format!("rule {number}"),
        Source::Unscripted => "unscripted".to_owned(),
        Source::SideCall => "sideCall".to_owned(),
    };
    let text = body.to_string();
    let stream_usage = body["stream_options"]["include_usage"] == true;
    let request = Request::new(dialect.name(), &conversation.model, framing != Framing::Whole, source, body);
    let open = shared.record.open(request, text.len());
    let envelope = Envelope {
        number: open.number,
        model: conversation.model,
        input_tokens: tokens(&text),
        created: crate::now_millis() / 1000,
        stream_usage,
    };
    let gates = shared.gates.clone();
    // An error scripted before the first word is an HTTP status, as a real service answers it.
    let first = answer.steps.iter().find(|step| !matches!(step, Step::Delay(_) | Step::Hold(_)));
    if framing == Framing::Whole || matches!(first, Some(Step::Error(..))) {
        whole(dialect, &envelope, answer, &gates, open).await
    } else {
        stream(dialect, envelope, answer, gates, open, framing)
    }
}

async fn whole(dialect: Dialect, envelope: &Envelope, answer: Answer, gates: &Gates, open: Open) -> Response {
    let mut said = Whole::default();
    for step in answer.steps {
        match step {
            Step::Text(cut) => said.text.push_str(&cut.value.repeat(cut.repeat)),
            Step::Call(call) => said.calls.push(call),
            Step::Delay(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
            Step::Hold(gate) => {
                if let Err(closed) = gates.pass(&gate).await {
                    open.done();
                    return refuse(dialect, 504, &closed);
                }
            }
            Step::Error(status, message) => {
                open.done();
                return refuse(dialect, status, &message);
            }
        }
    }
    open.done();
    Json(dialect.whole(envelope, &said, answer.stop)).into_response()
}

fn stream(
    dialect: Dialect,
    envelope: Envelope,
    answer: Answer,
    gates: Gates,
    open: Open,
    framing: Framing,
) -> Response {
    let (sender, mut receiver) = mpsc::channel(EVENTS_AHEAD);
    tokio::spawn(async move {
        let closed = sender.clone();
        tokio::select! {
            // Dropping the writer drops `open`, which records that the client went away.
            () = closed.closed() => {}
            () = write(dialect, envelope, answer, gates, open, sender) => {}
        }
    });
    let mut first = true;
    let mut ended = false;
    let frames = futures::stream::poll_fn(move |context| {
        receiver.poll_recv(context).map(|event| match event {
            Some(event) => {
                let before = if first { "[" } else { "," };
                first = false;
                Some(Ok::<_, Infallible>(match framing {
                    Framing::Array => format!("{before}{}", event.data),
                    _ => frame(&event),
                }))
            }
            None if framing == Framing::Array && !ended => {
                ended = true;
                Some(Ok("]".to_owned()))
            }
            None => None,
        })
    });
    let kind = if framing == Framing::Array { "application/json" } else { "text/event-stream" };
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")], Body::from_stream(frames)).into_response()
}

fn frame(event: &Event) -> String {
    match event.name {
        Some(name) => format!("event: {name}\ndata: {}\n\n", event.data),
        None => format!("data: {}\n\n", event.data),
    }
}

/// Writes all steps into the channel.
async fn write(
    dialect: Dialect,
    envelope: Envelope,
    answer: Answer,
    gates: Gates,
    open: Open,
    sender: mpsc::Sender<Event>,
) {
    let mut encoder = dialect.encoder(envelope);
    let send = async |events: Vec<Event>| {
        for event in events {
            // The reader is gone: the select above ends this task.
            let _ = sender.send(event).await;
        }
    };
    send(encoder.start()).await;
    for step in answer.steps {
        match step {
            Step::Text(cut) => {
                for piece in pieces(&cut) {
                    send(encoder.text(&piece)).await;
                    if cut.chunk_delay > 0 {
                        tokio::time::sleep(Duration::from_millis(cut.chunk_delay)).await;
                    }
                }
            }
            Step::Call(call) => send(encoder.call(&call)).await,
            Step::Delay(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
            Step::Hold(gate) => {
                if let Err(closed) = gates.pass(&gate).await {
                    send(encoder.error(504, &closed)).await;
                    return open.done();
                }
            }
            Step::Error(status, message) => {
                send(encoder.error(status, &message)).await;
                return open.done();
            }
        }
    }
    send(encoder.finish(answer.stop)).await;
    open.done();
}

/// A text in chunks of characters, each text of a repetition cut anew.
fn pieces(cut: &CutText) -> impl Iterator<Item = String> {
    let length = cut.chunk_chars.max(1);
    let chars: Vec<char> = cut.value.chars().collect();
    let once: Vec<String> = chars.chunks(length).map(|chunk| chunk.iter().collect()).collect();
    let repeat = cut.repeat;
    (0..repeat).flat_map(move |_| once.clone())
}
