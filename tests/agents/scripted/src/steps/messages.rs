//! What an agent shows while it works: messages, thoughts, tool calls, plans, usage.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Ending, Run};
use crate::script::{self, ToolStatus};

/// How much text goes into one chunk of a long message; far below any limit of a line.
const CHUNK: usize = 64 << 10;

/// An update about the commands of the agent.
#[must_use]
pub fn commands() -> Value {
    json!({
        "sessionUpdate": "available_commands_update",
        "availableCommands": [{"name": "script", "description": "Run the lines that start with !"}],
    })
}

impl Run<'_> {
    /// One chunk of a message; without an id of its own it continues the last one.
    fn chunk(&mut self, content: Value, id: Option<&str>) {
        let mut update = json!({"sessionUpdate": "agent_message_chunk", "content": content});
        if let Some(id) = id {
            update["messageId"] = json!(id);
        }
        self.update(update);
    }

    /// The id of a message that starts now, if messages carry one.
    fn next_message(&mut self) -> Option<String> {
        if !self.message_ids {
            return None;
        }
        self.messages += 1;
        self.in_message = false;
        Some(format!("message-{}-{}", self.past + 1, self.messages))
    }

    /// A message of one content block.
    pub(super) fn message(&mut self, content: Value) {
        let id = self.next_message();
        self.chunk(content, id.as_deref());
    }

    fn text(&mut self, text: &str, id: Option<&str>) {
        self.said.push_str(text);
        self.in_message |= !text.is_empty();
        self.chunk(json!({"type": "text", "text": text}), id);
    }

    /// A message of one text chunk, exactly that text.
    pub(super) fn say(&mut self, text: &str) {
        let id = self.next_message();
        self.text(text, id.as_deref());
    }

    /// Says something the agent found out, on a line of its own.
    pub(super) fn fact(&mut self, text: &str) {
        let id = self.next_message();
        let line = if self.in_message { format!("\n{text}") } else { text.to_string() };
        self.text(&line, id.as_deref());
    }

    pub(super) fn chunks(&mut self, count: usize, text: &str) {
        let id = self.next_message();
        let characters: Vec<char> = text.chars().collect();
        let length = characters.len().div_ceil(count.max(1)).max(1);
        for chunk in characters.chunks(length) {
            self.text(&chunk.iter().collect::<String>(), id.as_deref());
        }
    }

    pub(super) fn stream(&mut self, count: usize, pause: Duration, text: &str) -> Result<(), Ending> {
        let id = self.next_message();
        for index in 0..count {
            if index > 0 {
                self.wait(Some(pause), || false)?;
            }
            self.text(text, id.as_deref());
        }
        Ok(())
    }

    pub(super) fn fill(&mut self, bytes: usize, unit: &str) {
        let id = self.next_message();
        let text = script::fill(bytes, unit);
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let mut end = rest.len().min(CHUNK);
            while !rest.is_char_boundary(end) {
                end -= 1;
            }
            let (chunk, more) = rest.split_at(end);
            self.text(chunk, id.as_deref());
            rest = more;
        }
    }

    pub(super) fn think(&mut self, text: &str) {
        self.in_message = false;
        self.update(json!({"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": text}}));
    }

    pub(super) fn media(&mut self, kind: &str, mime: &str, bytes: usize) {
        self.message(json!({"type": kind, "mimeType": mime, "data": base64_zeros(bytes)}));
    }

    pub(super) fn resource(&mut self, uri: &str, text: &str) {
        let resource = json!({"uri": uri, "mimeType": "text/plain", "text": text});
        self.message(json!({"type": "resource", "resource": resource}));
    }

    pub(super) fn link(&mut self, uri: &str) {
        let name = uri.rsplit('/').next().unwrap_or(uri);
        self.message(json!({"type": "resource_link", "uri": uri, "name": name}));
    }

    pub(super) fn plan(&mut self, entries: &[(String, String)]) {
        let entries: Vec<_> = entries
            .iter()
            .map(|(content, status)| json!({"content": content, "priority": "medium", "status": status}))
            .collect();
        self.update(json!({"sessionUpdate": "plan", "entries": entries}));
    }

    pub(super) fn tool(&mut self, name: &str, status: ToolStatus) {
        let call = self.next_tool();
        self.update(json!({
            "sessionUpdate": "tool_call", "toolCallId": call, "title": name, "kind": "execute",
            "status": "pending", "rawInput": {"command": name},
        }));
        let path: &[&str] = match status {
            ToolStatus::Pending => &[],
            ToolStatus::InProgress => &["in_progress"],
            ToolStatus::Completed => &["in_progress", "completed"],
            ToolStatus::Failed => &["in_progress", "failed"],
        };
        for status in path {
            self.tool_status(&call, status);
        }
    }

    /// The id of a tool call that starts now; it ends the message before it.
    pub(super) fn next_tool(&mut self) -> String {
        self.tools += 1;
        self.in_message = false;
        format!("call-{}-{}", self.past + 1, self.tools)
    }

    pub(super) fn tool_status(&self, call: &str, status: &str) {
        self.update(json!({"sessionUpdate": "tool_call_update", "toolCallId": call, "status": status}));
    }

    pub(super) fn usage(&self, members: &str) {
        let more = if members.is_empty() { String::new() } else { format!(",{members}") };
        self.raw_update(&format!(r#"{{"sessionUpdate":"usage_update"{more}}}"#));
    }

    /// An update given as text, which need not be JSON.
    pub(super) fn raw_update(&self, update: &str) {
        let session = json!(self.session);
        self.agent.wire.line(&format!(
            r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":{session},"update":{update}}}}}"#
        ));
    }

    pub(super) fn mode(&self, mode: &str) {
        self.agent.sessions.change(self.session, |session| session.mode = mode.into());
        self.update(json!({"sessionUpdate": "current_mode_update", "currentModeId": mode}));
    }
}

/// So many zero bytes in base64.
fn base64_zeros(bytes: usize) -> String {
    let mut text = "A".repeat(bytes / 3 * 4);
    text.push_str(["", "AA==", "AAA="][bytes % 3]);
    text
}

#[cfg(test)]
mod tests {
    use super::base64_zeros;
    use rstest::rstest;

    #[rstest]
    #[case(0, "")]
    #[case(1, "AA==")]
    #[case(2, "AAA=")]
    #[case(3, "AAAA")]
    #[case(4, "AAAAAA==")]
    fn zeros_in_base64(#[case] bytes: usize, #[case] text: &str) {
        assert_eq!(base64_zeros(bytes), text);
    }
}
