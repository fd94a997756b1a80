//! opencode: asks where its configuration says so.

use super::{Published, answers_with_a_digest, asks_and_heeds_the_answer, stops_with_the_tools_processes};
use serde_json::json;

fn opencode() -> Published {
    Published {
        provider: "opencode",
        has_key: false,
        name: "OpenCode",
        asked: 1,
        asks: json!({}),
        shell: |command| json!({"shell": command}),
        // It takes a refusal for the end of its turn.
        refused: ("Completed", "Completed", "Completed"),
    }
}

#[tokio::test]
async fn it_writes_a_file_and_answers_with_a_digest() {
    answers_with_a_digest(&opencode()).await;
}

#[tokio::test]
async fn c19_c55_it_asks_and_heeds_the_answer() {
    asks_and_heeds_the_answer(&opencode()).await;
}

#[tokio::test]
async fn s2_s5_a_cancel_ends_what_its_tool_started() {
    stops_with_the_tools_processes(&opencode()).await;
}
