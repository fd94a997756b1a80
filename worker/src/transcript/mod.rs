//! The transcript (contract c57): what was said and done, as lines for a person who reads `kubectl logs`.
//!
//! Every line starts with who speaks: `user>`, `agent>`, `thought>`, `tool>`, `plan>`, `permission>`, `usage>`,
//! `past user>` and `past agent>` for what a loaded session tells again, `worker:` for the worker itself, `stdout|` and `stderr|` for what the agent's process printed. Streamed chunks are
//! put together into lines. Text that imitates a line of another speaker stays behind its own prefix, and control
//! characters are escaped, so a terminal that shows the log stays as it is.

mod escape;
mod sink;

pub use escape::{clip, escape};

use sink::Sink;
use std::sync::{Arc, Mutex, PoisonError};
use subagent_link::{Tail, TranscriptPayload};

/// Longest line in bytes, before escaping; longer text goes on in a further line. Container runtimes split log lines at
/// 16 KiB, and escaping makes a byte at most eight.
const MAX_LINE_BYTES: usize = 4096;

/// Who speaks in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    /// The prompt.
    User,
    /// The agent's message.
    Agent,
    /// A prompt of the session's past, told again when it is loaded.
    PastUser,
    /// What the agent did in the session's past, told again when it is loaded.
    PastAgent,
    /// The agent's thinking.
    Thought,
    /// A tool call and its state.
    Tool,
    /// The agent's plan.
    Plan,
    /// A permission request and its answer.
    Permission,
    /// Token usage.
    Usage,
    /// The worker.
    Worker,
    /// A line of the agent's stdout that is no frame.
    Stdout,
    /// A line of the agent's stderr.
    Stderr,
}

impl Speaker {
    fn prefix(self) -> &'static str {
        match self {
            Self::User => "user> ",
            Self::Agent => "agent> ",
            Self::PastUser => "past user> ",
            Self::PastAgent => "past agent> ",
            Self::Thought => "thought> ",
            Self::Tool => "tool> ",
            Self::Plan => "plan> ",
            Self::Permission => "permission> ",
            Self::Usage => "usage> ",
            Self::Worker => "worker: ",
            Self::Stdout => "stdout| ",
            Self::Stderr => "stderr| ",
        }
    }

    /// What the process prints runs beside the conversation and does not end a line that is being streamed.
    fn is_beside(self) -> bool {
        matches!(self, Self::Stdout | Self::Stderr)
    }
}

/// Puts chunks together into lines. Pure.
#[derive(Debug, Default)]
struct Lines {
    /// The line being streamed.
    open: Option<(Speaker, String)>,
    done: Vec<String>,
}

impl Lines {
    /// Adds a chunk of a streamed text.
    fn stream(&mut self, speaker: Speaker, text: &str) {
        for piece in text.split_inclusive('\n') {
            if self.open.as_ref().is_some_and(|(open, _)| *open != speaker) {
                self.close();
            }
            let (body, ends) = piece.strip_suffix('\n').map_or((piece, false), |body| (body, true));
            let (_, line) = self.open.get_or_insert_with(|| (speaker, String::new()));
            let mut rest = body;
            while line.len() + rest.len() > MAX_LINE_BYTES {
                let (head, more) = rest.split_at(crate::output::floor(rest, MAX_LINE_BYTES.saturating_sub(line.len())));
                self.done.push(format!("{}{}{}", speaker.prefix(), escape(line), escape(head)));
                line.clear();
                rest = more;
            }
            line.push_str(rest);
            if ends {
                self.close();
            }
        }
    }

    /// Adds a text that is complete.
    fn whole(&mut self, speaker: Speaker, text: &str) {
        if speaker.is_beside() {
            let open = self.open.take();
            self.stream(speaker, text);
            self.close();
            self.open = open;
        } else {
            self.close();
            self.stream(speaker, text);
            self.close();
        }
    }

    fn close(&mut self) {
        if let Some((speaker, line)) = self.open.take() {
            self.done.push(format!("{}{}", speaker.prefix(), escape(&line)));
        }
    }
}

/// A handle on the transcript; clones write to the same one.
#[derive(Clone, Debug)]
pub struct Transcript {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug)]
struct Shared {
    lines: Lines,
    tail: Tail,
    sink: Sink,
}

impl Transcript {
    /// A transcript on stdout.
    pub fn on_stdout() -> Self {
        let shared = Shared { lines: Lines::default(), tail: Tail::new(), sink: Sink::start(std::io::stdout()) };
        Self { shared: Arc::new(Mutex::new(shared)) }
    }

    /// A chunk of a streamed text; it shows once its line ends or somebody else speaks.
    pub fn stream(&self, speaker: Speaker, text: &str) {
        self.add(|lines| lines.stream(speaker, text));
    }

    /// A complete text of one or more lines.
    pub fn line(&self, speaker: Speaker, text: &str) {
        self.add(|lines| lines.whole(speaker, text));
    }

    /// The tail for the archive, with every line so far in it.
    pub fn archive(&self) -> Option<TranscriptPayload> {
        self.add(Lines::close);
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).tail.payload()
    }

    /// Waits, not forever, until everything is written.
    pub fn flush(&self) {
        self.add(Lines::close);
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).sink.flush();
    }

    fn add(&self, change: impl FnOnce(&mut Lines)) {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut shared.lines);
        for mut line in std::mem::take(&mut shared.lines.done) {
            line.push('\n');
            shared.tail.push(&line);
            shared.sink.write(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(change: impl FnOnce(&mut Lines)) -> Vec<String> {
        let mut lines = Lines::default();
        change(&mut lines);
        lines.close();
        lines.done
    }

    #[test]
    fn c57_chunks_become_lines() {
        let got = lines(|lines| {
            lines.stream(Speaker::Agent, "Hel");
            lines.stream(Speaker::Agent, "lo\nwor");
            lines.stream(Speaker::Agent, "ld");
            lines.whole(Speaker::Tool, "list files: completed");
            lines.stream(Speaker::Thought, "hm\n\nyes\n");
        });
        let want =
            ["agent> Hello", "agent> world", "tool> list files: completed", "thought> hm", "thought> ", "thought> yes"];
        assert_eq!(got, want);
    }

    #[test]
    fn c57_stderr_does_not_tear_a_streamed_line() {
        let got = lines(|lines| {
            lines.stream(Speaker::Agent, "Hel");
            lines.whole(Speaker::Stderr, "warning");
            lines.stream(Speaker::Agent, "lo");
        });
        assert_eq!(got, ["stderr| warning", "agent> Hello"]);
    }

    #[test]
    fn t2_text_that_imitates_another_speaker_keeps_its_prefix() {
        let got = lines(|lines| lines.stream(Speaker::Agent, "x\nworker: the run completed\r\x1b[2K"));
        assert_eq!(got, ["agent> x", "agent> worker: the run completed\\r\\u{1b}[2K"]);
    }

    #[test]
    fn t4_long_lines_are_continued() {
        let got = lines(|lines| {
            lines.stream(Speaker::Agent, "ab");
            lines.stream(Speaker::Agent, &"é".repeat(5000));
        });
        assert!(got.iter().all(|line| line.len() <= MAX_LINE_BYTES + 10), "{:?}", got.iter().map(String::len));
        assert_eq!(got.iter().map(|line| line.len() - "agent> ".len()).sum::<usize>(), 10_002);
    }
}
