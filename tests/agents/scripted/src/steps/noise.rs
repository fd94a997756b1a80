//! What no agent should send.

use std::fs::OpenOptions;
use std::io;

use serde_json::json;

use super::Run;
use crate::script::BigLine;
use crate::wire::Wire;

/// How many lines are written at once, so that a hundred thousand do not need as many system calls.
const BATCH: u32 = 1000;

/// Lines that are not JSON, each different.
pub fn garbage(wire: &Wire, lines: u32) {
    let mut batch = String::new();
    for line in 1..=lines {
        batch.push_str(&format!("garbage {line} of {lines} {{\"not\": json\n"));
        if line % BATCH == 0 || line == lines {
            wire.raw(batch.as_bytes());
            batch.clear();
        }
    }
}

/// One line of that size which a client may ignore.
pub fn big_notification(wire: &Wire, mib: usize) {
    wire.line(&sized(mib, r#"{"jsonrpc":"2.0","method":"_scripted/big","params":{"filler":""#, r#""}}"#));
}

/// Bytes without a line end.
pub fn flood(wire: &Wire, mib: usize) {
    let piece = "x".repeat(1 << 20);
    for _ in 0..mib {
        wire.raw(piece.as_bytes());
    }
}

/// Ends stdout for the client; this process keeps writing into the void.
///
/// # Errors
/// When there is no void.
pub fn close_stdout() -> io::Result<()> {
    let void = OpenOptions::new().write(true).open("/dev/null")?;
    Ok(nix::unistd::dup2_stdout(void)?)
}

/// A line of exactly so many MiB, its end not counted.
fn sized(mib: usize, start: &str, end: &str) -> String {
    let filler = (mib << 20).saturating_sub(start.len() + end.len());
    let mut line = String::with_capacity(mib << 20);
    line.push_str(start);
    line.extend(std::iter::repeat_n('x', filler));
    line.push_str(end);
    line
}

impl Run<'_> {
    pub(super) fn big_line(&mut self, mib: usize, kind: BigLine) {
        let kind = match kind {
            BigLine::Notification => return big_notification(&self.agent.wire, mib),
            BigLine::Garbage => return self.agent.wire.line(&sized(mib, "garbage ", " end")),
            BigLine::Message => "agent_message_chunk",
            BigLine::Thought => "agent_thought_chunk",
        };
        let session = json!(self.session);
        let start = format!(
            r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":{session},"update":{{"sessionUpdate":"{kind}","content":{{"type":"text","text":""#
        );
        self.agent.wire.line(&sized(mib, &start, r#""}}}}"#));
    }

    pub(super) fn invalid_utf8(&mut self, in_text: bool) {
        const BAD: &[u8] = b"before \xff\xfe\xc3 after";
        let mut line = Vec::new();
        if in_text {
            let session = json!(self.session);
            line.extend_from_slice(
                format!(
                    r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":{session},"update":{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":""#
                )
                .as_bytes(),
            );
            line.extend_from_slice(BAD);
            line.extend_from_slice(br#""}}}}"#);
        } else {
            line.extend_from_slice(BAD);
        }
        line.push(b'\n');
        self.agent.wire.raw(&line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_big_line_has_exactly_its_size() {
        let line = sized(1, "{\"a\":\"", "\"}");
        assert_eq!(line.len(), 1 << 20);
        assert!(line.starts_with("{\"a\":\"x") && line.ends_with("x\"}"));
    }
}
