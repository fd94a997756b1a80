//! Claude Code through its ACP adapter: asks in the session mode of its provider.

use super::{Published, answers_with_a_digest, asks_and_heeds_the_answer, stops_with_the_tools_processes};
use serde_json::json;

fn claude() -> Published {
    Published {
        provider: "claude",
        has_key: true,
        name: "@agentclientprotocol/claude-agent-acp",
        // For writing the file; it reads without asking.
        asked: 1,
        asks: json!({}),
        shell: |command| json!({"shell": command}),
        refused: ("Completed", "Completed", "Completed"),
    }
}

#[tokio::test]
async fn it_writes_a_file_and_answers_with_a_digest() {
    answers_with_a_digest(&claude()).await;
}

#[tokio::test]
async fn c19_c55_it_asks_and_heeds_the_answer() {
    asks_and_heeds_the_answer(&claude()).await;
}

#[tokio::test]
async fn s2_s5_a_cancel_ends_what_its_tool_started() {
    stops_with_the_tools_processes(&claude()).await;
}
