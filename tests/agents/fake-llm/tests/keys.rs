//! A model that asks for a key.

#![allow(clippy::unwrap_used)]

use fake_llm::{FakeLlm, Shared};
use rstest::rstest;
use serde_json::json;

#[rstest]
#[case::none(None, 401)]
#[case::wrong(Some(("authorization", "Bearer other")), 401)]
#[case::no_scheme(Some(("authorization", "secret")), 401)]
#[case::bearer(Some(("authorization", "Bearer secret")), 200)]
#[case::anthropic(Some(("x-api-key", "secret")), 200)]
#[case::gemini(Some(("x-goog-api-key", "secret")), 200)]
#[tokio::test]
async fn only_who_shows_the_key_is_answered(#[case] header: Option<(&str, &str)>, #[case] status: u16) {
    let llm = FakeLlm::start_with("127.0.0.1:0", Shared::asking_for(Some("secret"))).await.unwrap();
    let client = reqwest::Client::new();
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
    let mut request = client.post(format!("{}/v1/chat/completions", llm.url())).body(body.to_string());
    if let Some((name, value)) = header {
        request = request.header(name, value);
    }
    assert_eq!(request.send().await.unwrap().status(), status);
    // What tests steer it by needs none.
    assert_eq!(client.get(format!("{}/healthz", llm.url())).send().await.unwrap().status(), 200);
}
