//! Codex through its ACP adapter: asks in another session mode than that of its example.

use super::{Published, answers_with_a_digest, asks_and_heeds_the_answer, stops_with_the_tools_processes};
use serde_json::json;

fn codex() -> Published {
    Published {
        provider: "codex",
        has_key: true,
        name: "@agentclientprotocol/codex-acp",
        asked: 0,
        asks: json!({"transport": {"acp": {"sessionMode": "read-only"}}}),
        // As a model asks that has found that its sandbox does not work.
        shell: |command| {
            json!({"toolCall": {"name": "exec_command", "arguments": {
                "cmd": command, "sandbox_permissions": "require_escalated", "justification": "The sandbox cannot run it.",
            }}})
        },
        // It takes a refusal for a cancelled turn.
        refused: ("Cancelled", "Aborted", "Cancelled"),
    }
}

#[tokio::test]
async fn it_writes_a_file_and_answers_with_a_digest() {
    answers_with_a_digest(&codex()).await;
}

#[tokio::test]
async fn c19_c55_it_asks_and_heeds_the_answer() {
    asks_and_heeds_the_answer(&codex()).await;
}

#[tokio::test]
async fn s2_s5_a_cancel_ends_what_its_tool_started() {
    stops_with_the_tools_processes(&codex()).await;
}
