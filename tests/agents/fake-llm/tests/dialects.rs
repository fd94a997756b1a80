//! Every dialect over HTTP: the same script asked whole and as a stream, read back the way a client reads it.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use fake_llm::FakeLlm;
use rstest::rstest;
use serde_json::{Value, json};

/// What a client understands of an answer.
#[derive(Debug, Default, PartialEq)]
struct Understood {
    text: String,
    calls: Vec<(String, Value)>,
    finish: String,
    /// Pieces of text, to see that streams come in several.
    pieces: usize,
}

/// The request of one dialect: a system text, a prompt, a `bash` tool, and optionally the call and its result.
fn request(dialect: &str, prompt: &str, stream: bool, result: Option<&str>) -> (String, Value) {
    let schema = json!({"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]});
    match dialect {
        "chat" => {
            let mut messages = vec![
                json!({"role": "system", "content": "sys"}),
                json!({"role": "user", "content": [{"type": "text", "text": prompt}]}),
            ];
            if let Some(result) = result {
                messages.push(json!({"role": "assistant", "content": "working", "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "bash", "arguments": "{\"command\":\"ls\"}"}}]}));
                messages.push(json!({"role": "tool", "tool_call_id": "1", "content": result}));
            }
            let tools = json!([{"type": "function", "function": {"name": "bash", "parameters": schema}}]);
            (
                "/v1/chat/completions".into(),
                json!({"model": "m1", "stream": stream, "stream_options": {"include_usage": true}, "messages": messages, "tools": tools}),
            )
        }
        "responses" => {
            let mut input =
                vec![json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": prompt}]})];
            if let Some(result) = result {
                input.push(json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "working"}]}));
                input.push(json!({"type": "function_call", "call_id": "1", "name": "bash", "arguments": "{}"}));
                input.push(json!({"type": "function_call_output", "call_id": "1", "output": result}));
            }
            let tools = json!([{"type": "function", "name": "bash", "parameters": schema}]);
            (
                "/v1/responses".into(),
                json!({"model": "m1", "stream": stream, "instructions": "sys", "input": input, "tools": tools}),
            )
        }
        "messages" => {
            let mut messages = vec![
                json!({"role": "user", "content": prompt}),
                json!({"role": "system", "content": [{"type": "text", "text": "more system"}]}),
            ];
            if let Some(result) = result {
                messages.push(json!({"role": "assistant", "content": [
                    {"type": "text", "text": "working"}, {"type": "tool_use", "id": "1", "name": "bash", "input": {}}]}));
                messages.push(json!({"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": result}]},
                    {"type": "text", "text": "<system-reminder>calm</system-reminder>"}]}));
            }
            let tools = json!([{"name": "bash", "input_schema": schema}]);
            (
                "/v1/messages".into(),
                json!({"model": "m1", "max_tokens": 100, "stream": stream, "system": [{"type": "text", "text": "sys"}],
                    "messages": messages, "tools": tools}),
            )
        }
        _ => {
            let mut contents = vec![json!({"role": "user", "parts": [{"text": prompt}]})];
            if let Some(result) = result {
                contents.push(json!({"role": "model", "parts": [{"text": "working"}, {"functionCall": {"name": "bash", "args": {}}}]}));
                contents.push(json!({"role": "user", "parts": [{"functionResponse": {"name": "bash", "response": {"output": result}}}]}));
            }
            let method = match (dialect, stream) {
                ("gemini", true) => "streamGenerateContent?alt=sse",
                (_, true) => "streamGenerateContent",
                (_, false) => "generateContent",
            };
            (
                format!("/v1beta/models/m1:{method}"),
                json!({"contents": contents, "systemInstruction": {"parts": [{"text": "sys"}]},
                    "tools": [{"functionDeclarations": [{"name": "bash", "parametersJsonSchema": schema}]}]}),
            )
        }
    }
}

/// The `data:` lines of an event stream, each checked against its `event:` line.
fn events(body: &str) -> Vec<Value> {
    let mut found = Vec::new();
    for block in body.split("\n\n").filter(|block| !block.is_empty()) {
        let data = block.lines().find_map(|line| line.strip_prefix("data: ")).expect("every event has data");
        if data == "[DONE]" {
            found.push(json!("[DONE]"));
            continue;
        }
        let value: Value = serde_json::from_str(data).unwrap();
        if let Some(name) = block.lines().find_map(|line| line.strip_prefix("event: ")) {
            assert_eq!(value["type"], name, "{block}");
        }
        found.push(value);
    }
    found
}

fn parsed(text: &Value) -> Value {
    serde_json::from_str(text.as_str().unwrap_or_default()).unwrap()
}

fn string(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Reads a whole answer.
fn read_whole(dialect: &str, body: &Value) -> Understood {
    let mut understood = Understood::default();
    match dialect {
        "chat" => {
            let choice = &body["choices"][0];
            understood.text = string(&choice["message"]["content"]);
            for call in choice["message"]["tool_calls"].as_array().into_iter().flatten() {
                understood.calls.push((string(&call["function"]["name"]), parsed(&call["function"]["arguments"])));
            }
            understood.finish = string(&choice["finish_reason"]);
            assert!(body["usage"]["total_tokens"].as_u64() > Some(0));
        }
        "responses" => {
            for item in body["output"].as_array().unwrap() {
                match item["type"].as_str() {
                    Some("message") => understood.text.push_str(item["content"][0]["text"].as_str().unwrap()),
                    _ => understood.calls.push((string(&item["name"]), parsed(&item["arguments"]))),
                }
            }
            understood.finish = match string(&body["status"]).as_str() {
                "incomplete" => string(&body["incomplete_details"]["reason"]),
                other => other.to_owned(),
            };
            assert!(body["usage"]["total_tokens"].as_u64() > Some(0));
        }
        "messages" => {
            for block in body["content"].as_array().unwrap() {
                match block["type"].as_str() {
                    Some("text") => understood.text.push_str(block["text"].as_str().unwrap()),
                    _ => understood.calls.push((string(&block["name"]), block["input"].clone())),
                }
            }
            understood.finish = string(&body["stop_reason"]);
            assert!(body["usage"]["output_tokens"].as_u64() > Some(0));
        }
        _ => read_gemini(body, &mut understood),
    }
    understood
}

fn read_gemini(body: &Value, understood: &mut Understood) {
    let candidate = &body["candidates"][0];
    for part in candidate["content"]["parts"].as_array().unwrap() {
        if let Some(call) = part.get("functionCall") {
            understood.calls.push((string(&call["name"]), call["args"].clone()));
        } else if part["text"] != "" {
            understood.text.push_str(part["text"].as_str().unwrap());
            understood.pieces += 1;
        }
    }
    if let Some(finish) = candidate["finishReason"].as_str() {
        understood.finish = finish.to_owned();
    }
    assert!(body["usageMetadata"]["totalTokenCount"].as_u64() > Some(0));
}

/// Reads a stream, strictly in order.
fn read_stream(dialect: &str, body: &str) -> Understood {
    let mut understood = Understood::default();
    if dialect == "gemini-array" {
        for response in serde_json::from_str::<Vec<Value>>(body).unwrap() {
            read_gemini(&response, &mut understood);
        }
        return understood;
    }
    let events = events(body);
    match dialect {
        "chat" => {
            assert_eq!(events.last(), Some(&json!("[DONE]")));
            let mut arguments = Vec::<String>::new();
            for event in &events[..events.len() - 1] {
                let Some(choice) = event["choices"].get(0) else {
                    assert!(event["usage"]["total_tokens"].as_u64() > Some(0));
                    continue;
                };
                if let Some(text) = choice["delta"]["content"].as_str().filter(|text| !text.is_empty()) {
                    understood.text.push_str(text);
                    understood.pieces += 1;
                }
                for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
                    if call["id"].is_string() {
                        understood.calls.push((string(&call["function"]["name"]), Value::Null));
                        arguments.push(String::new());
                    }
                    arguments[call["index"].as_u64().unwrap() as usize]
                        .push_str(call["function"]["arguments"].as_str().unwrap());
                }
                if let Some(finish) = choice["finish_reason"].as_str() {
                    understood.finish = finish.into();
                }
            }
            for (call, text) in understood.calls.iter_mut().zip(arguments) {
                call.1 = serde_json::from_str(&text).unwrap();
            }
        }
        "responses" => {
            for (number, event) in events.iter().enumerate() {
                assert_eq!(event["sequence_number"], number);
                match event["type"].as_str().unwrap() {
                    "response.output_text.delta" => {
                        understood.text.push_str(event["delta"].as_str().unwrap());
                        understood.pieces += 1;
                    }
                    "response.output_item.done" if event["item"]["type"] == "function_call" => {
                        understood.calls.push((string(&event["item"]["name"]), parsed(&event["item"]["arguments"])));
                    }
                    _ => {}
                }
            }
            // The closing event repeats everything: both ways of reading must agree.
            let last = &events.last().unwrap()["response"];
            let whole = read_whole("responses", last);
            assert_eq!((&whole.text, &whole.calls), (&understood.text, &understood.calls));
            understood.finish = whole.finish;
        }
        "messages" => {
            let mut open = None;
            let mut input = String::new();
            assert_eq!(events[0]["type"], "message_start");
            assert_eq!(events.last().unwrap()["type"], "message_stop");
            for event in &events {
                match event["type"].as_str().unwrap() {
                    "content_block_start" => {
                        assert_eq!(open, None, "blocks do not nest");
                        open = event["index"].as_u64();
                        input.clear();
                        if event["content_block"]["type"] == "tool_use" {
                            understood.calls.push((string(&event["content_block"]["name"]), Value::Null));
                        }
                    }
                    "content_block_delta" => {
                        assert_eq!(open, event["index"].as_u64());
                        if let Some(text) = event["delta"]["text"].as_str() {
                            understood.text.push_str(text);
                            understood.pieces += 1;
                        }
                        input.push_str(event["delta"]["partial_json"].as_str().unwrap_or_default());
                    }
                    "content_block_stop" => {
                        assert_eq!(open.take(), event["index"].as_u64());
                        if !input.is_empty() {
                            understood.calls.last_mut().unwrap().1 = serde_json::from_str(&input).unwrap();
                        }
                    }
                    "message_delta" => understood.finish = string(&event["delta"]["stop_reason"]),
                    _ => {}
                }
            }
        }
        _ => events.iter().for_each(|event| read_gemini(event, &mut understood)),
    }
    understood
}

async fn ask(server: &FakeLlm, dialect: &str, prompt: &str, stream: bool, result: Option<&str>) -> (u16, String) {
    let (path, body) = request(dialect, prompt, stream, result);
    let sent = reqwest::Client::new().post(server.url() + &path).body(body.to_string()).send();
    let response = tokio::time::timeout(Duration::from_secs(10), sent).await.unwrap().unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

async fn understand(server: &FakeLlm, dialect: &str, prompt: &str, stream: bool, result: Option<&str>) -> Understood {
    let (status, body) = ask(server, dialect, prompt, stream, result).await;
    assert_eq!(status, 200, "{body}");
    let understood =
        if stream { read_stream(dialect, &body) } else { read_whole(dialect, &serde_json::from_str(&body).unwrap()) };
    Understood { pieces: if stream { understood.pieces } else { 0 }, ..understood }
}

const SCRIPT: &str = r#"<fake-llm>[{"text":"I will list the files here."},{"shell":"ls"},
    {"text":{"value":"äöü {{toolResult}};","repeat":2,"chunkChars":3}}]</fake-llm>"#;

#[rstest]
#[case::chat("chat", "tool_calls", "stop", "length")]
#[case::responses("responses", "completed", "completed", "max_output_tokens")]
#[case::messages("messages", "tool_use", "end_turn", "max_tokens")]
#[case::gemini("gemini", "STOP", "STOP", "MAX_TOKENS")]
#[case::gemini_without_sse("gemini-array", "STOP", "STOP", "MAX_TOKENS")]
#[tokio::test]
async fn a_script_runs_whole_and_streaming(
    #[case] dialect: &str,
    #[case] on_call: &str,
    #[case] on_end: &str,
    #[case] on_limit: &str,
    #[values(false, true)] stream: bool,
) {
    let server = FakeLlm::start("127.0.0.1:0").await.unwrap();
    let first = understand(&server, dialect, SCRIPT, stream, None).await;
    assert_eq!(first.text, "I will list the files here.");
    assert_eq!(first.calls, [("bash".to_owned(), json!({"command": "ls"}))]);
    assert_eq!(first.finish, on_call);
    assert!(!stream || first.pieces > 1, "{first:?}");

    let second = understand(&server, dialect, SCRIPT, stream, Some("a b\n")).await;
    assert_eq!(second.text, "äöü a b;äöü a b;");
    assert_eq!(second.calls, []);
    assert_eq!(second.finish, on_end);
    assert!(!stream || second.pieces == 6, "{second:?}");

    let limit = r#"<fake-llm>[{"text":"cut"},{"stop":"maxTokens"}]</fake-llm>"#;
    assert_eq!(understand(&server, dialect, limit, stream, None).await.finish, on_limit);

    let listing = server.shared.record.listing("list the files");
    assert_eq!(listing.requests.len(), 2);
    assert_eq!((listing.requests[0].model.as_str(), listing.requests[0].stream), ("m1", stream));
    assert!(dialect.starts_with(listing.requests[0].dialect));
}

#[rstest]
#[tokio::test]
async fn an_error_is_a_status_before_the_first_word_and_an_event_after_it(
    #[values("chat", "responses", "messages", "gemini")] dialect: &str,
) {
    let server = FakeLlm::start("127.0.0.1:0").await.unwrap();
    let at_once = r#"<fake-llm>[{"delay":1},{"error":{"status":429,"message":"slow down"}}]</fake-llm>"#;
    for stream in [false, true] {
        let (status, body) = ask(&server, dialect, at_once, stream, None).await;
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, &body["error"]["message"]), (429, &json!("slow down")));
    }
    let later = r#"<fake-llm>[{"text":"so far"},{"error":{"status":500,"message":"broke"}}]</fake-llm>"#;
    let (status, body) = ask(&server, dialect, later, true, None).await;
    assert_eq!(status, 200);
    assert!(body.contains("so far"), "{body}");
    let last = events(&body).pop().unwrap();
    let error = if dialect == "responses" { &last["response"]["error"] } else { &last["error"] };
    assert_eq!(error["message"], "broke", "{body}");
    let states: Vec<_> = server.shared.record.listing("").requests.iter().map(|r| r.state).collect();
    assert_eq!(states, [fake_llm::State::Done; 3]);
}

#[tokio::test]
async fn a_held_answer_waits_in_the_middle_of_its_stream_for_its_gate() {
    let server = FakeLlm::start("127.0.0.1:0").await.unwrap();
    let client = reqwest::Client::new();
    let prompt = r#"<fake-llm>[{"text":"before"},{"hold":"g1"},{"text":"after"}]</fake-llm>"#;
    let (path, body) = request("chat", prompt, true, None);
    let mut response = client.post(server.url() + &path).body(body.to_string()).send().await.unwrap();
    let mut seen = String::new();
    while !seen.contains("before") {
        seen.push_str(std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap());
    }
    let gates: Value = get(&server, "/__gates").await;
    assert_eq!(gates["g1"], json!({"open": false, "waiting": 1}));
    assert!(!seen.contains("after"));
    let opened = client.post(server.url() + "/__gates/g1").body("{}").send().await.unwrap();
    assert_eq!(opened.status(), 204);
    seen.push_str(&response.text().await.unwrap());
    assert!(seen.contains("after"));
}

#[tokio::test]
async fn a_client_that_leaves_a_held_stream_is_recorded_as_dropped() {
    let server = FakeLlm::start("127.0.0.1:0").await.unwrap();
    let prompt = r#"<fake-llm>[{"text":"before"},{"hold":"never"}]</fake-llm>"#;
    let (path, body) = request("messages", prompt, true, None);
    let response = reqwest::Client::new().post(server.url() + &path).body(body.to_string()).send().await.unwrap();
    assert_eq!(get(&server, "/__requests").await["requests"][0]["state"], "open");
    drop(response);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while get(&server, "/__requests").await["requests"][0]["state"] != "dropped" {
        assert!(tokio::time::Instant::now() < deadline, "{}", get(&server, "/__requests").await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(get(&server, "/__gates").await["never"]["waiting"], 0);
}

async fn get(server: &FakeLlm, path: &str) -> Value {
    let body = reqwest::get(server.url() + path).await.unwrap().error_for_status().unwrap().text().await.unwrap();
    serde_json::from_str(&body).unwrap()
}

#[tokio::test]
async fn a_script_is_put_read_and_taken_away_over_http() {
    let server = FakeLlm::start("127.0.0.1:0").await.unwrap();
    let client = reqwest::Client::new();
    let script = server.url() + "/__script";
    let put = async |body: &str| client.put(&script).body(body.to_owned()).send().await.unwrap().status();
    assert_eq!(put(r#"[{"when":{"contains":["hi"]},"then":[{"text":"ruled"}]}]"#).await, 204);
    assert_eq!(put(r#"[{"when":{"contain":["hi"]},"then":[]}]"#).await, 400);
    assert_eq!(understand(&server, "chat", "hi", false, None).await.text, "ruled");
    assert_eq!(get(&server, "/__requests?contains=hi").await["requests"][0]["source"], "rule 0");
    assert_eq!(get(&server, "/__script").await[0]["when"], json!({"contains": ["hi"]}));
    assert_eq!(client.delete(&script).send().await.unwrap().status(), 204);
    assert_eq!(understand(&server, "chat", "hi", false, None).await.text, "This prompt is not scripted.");
    client.delete(server.url() + "/__requests").send().await.unwrap();
    assert_eq!(get(&server, "/__requests").await, json!({"forgotten": 0, "requests": []}));
}

#[tokio::test]
async fn the_small_endpoints_answer() {
    let server = FakeLlm::start("127.0.0.1:0").await.unwrap();
    let client = reqwest::Client::new();
    assert_eq!(reqwest::get(server.url() + "/healthz").await.unwrap().status(), 200);
    assert_eq!(get(&server, "/v1/models").await["data"][0]["id"], "scripted");
    let count = async |path: &str| -> Value {
        let body =
            client.post(server.url() + path).body("{\"messages\":[]}").send().await.unwrap().text().await.unwrap();
        serde_json::from_str(&body).unwrap()
    };
    assert!(count("/v1/messages/count_tokens").await["input_tokens"].as_u64() > Some(0));
    assert!(count("/v1beta/models/any:countTokens").await["totalTokens"].as_u64() > Some(0));
    assert_eq!(count("/v1beta/models/any:noSuchMethod").await["error"]["code"], 404);
    let (path, _) = request("chat", "", false, None);
    let broken = client.post(server.url() + &path).body("{").send().await.unwrap();
    assert_eq!(broken.status(), 400);
}
