//! The output of a turn (contract c28): the agent's last message that is not blank.
//!
//! Messages are told apart by `messageId`; without one, by a tool call or thought in between. Pure, and bounded: beyond
//! the limit only the size and digest go on.

use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use subagent_link::ResultPayload;

/// How much of the output a turn's entry shows, in bytes.
const PREVIEW_BYTES: usize = 1024;

/// One message of the agent.
#[derive(Debug, Default)]
struct Message {
    id: Option<String>,
    /// The text, at most the limit.
    text: String,
    size: u64,
    digest: Sha256,
    blank: bool,
}

/// Collects what the agent says.
#[derive(Debug)]
pub struct Output {
    limit: usize,
    /// The last complete message that was not blank.
    last: Option<Message>,
    current: Option<Message>,
    /// A tool call or thought came after the newest chunk.
    interrupted: bool,
    other_blocks: i64,
}

/// What the output came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Collected {
    /// Within the limit.
    Whole(ResultPayload),
    /// Over the limit; nothing of it is kept (pitfall T3: never cut silently).
    TooLarge {
        /// Its size in bytes.
        size: u64,
        /// The limit in bytes.
        limit: usize,
    },
}

impl Output {
    /// An empty output that holds messages of up to `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, last: None, current: None, interrupted: false, other_blocks: 0 }
    }

    /// A chunk of text of the agent's message.
    pub fn text(&mut self, id: Option<&str>, text: &str) {
        let continues = self.current.as_ref().is_some_and(|message| match (&message.id, id) {
            (Some(known), Some(id)) => known == id,
            (None, Some(_)) => false,
            (_, None) => !self.interrupted,
        });
        if !continues {
            self.close_message();
            self.current = Some(Message { id: id.map(str::to_owned), blank: true, ..Message::default() });
        }
        self.interrupted = false;
        let Some(message) = &mut self.current else { return };
        message.size += text.len() as u64;
        message.digest.update(text.as_bytes());
        message.blank &= text.trim().is_empty();
        if message.size <= self.limit as u64 {
            message.text.push_str(text);
        } else {
            // Only a preview is still of use.
            let keep = self.limit.min(PREVIEW_BYTES);
            let room = keep.saturating_sub(message.text.len());
            message.text.push_str(text.get(..floor(text, room)).unwrap_or_default());
        }
    }

    /// A content block of another kind.
    pub fn other_block(&mut self) {
        self.other_blocks += 1;
    }

    /// A tool call or a thought.
    pub fn interrupt(&mut self) {
        self.interrupted = true;
    }

    /// The first part of the output, for the turn's entry; `None` when there is none.
    pub fn preview(&self) -> Option<String> {
        let text = &self.newest()?.text;
        Some(text[..floor(text, PREVIEW_BYTES)].to_owned())
    }

    /// The output so far. Without any message it is the empty text.
    pub fn collect(&self) -> Collected {
        let empty = Message::default();
        let message = self.newest().unwrap_or(&empty);
        if message.size > self.limit as u64 {
            return Collected::TooLarge { size: message.size, limit: self.limit };
        }
        Collected::Whole(ResultPayload {
            text: message.text.clone(),
            other_blocks: self.other_blocks,
            sha256: hex(&message.digest.clone().finalize()),
            size: i64::try_from(message.size).unwrap_or(i64::MAX),
        })
    }

    fn newest(&self) -> Option<&Message> {
        self.current.as_ref().filter(|message| !message.blank).or(self.last.as_ref())
    }

    fn close_message(&mut self) {
        if let Some(message) = self.current.take().filter(|message| !message.blank) {
            self.last = Some(message);
        }
    }
}

/// The largest character boundary of `text` that is not above `at`.
pub fn floor(text: &str, at: usize) -> usize {
    if at >= text.len() {
        return text.len();
    }
    (0..=at).rev().find(|&index| text.is_char_boundary(index)).unwrap_or(0)
}

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// One step of a script: a chunk with or without id, an interruption, another block.
    enum Step {
        Say(&'static str),
        SayAs(&'static str, &'static str),
        Tool,
        Block,
    }
    use Step::{Block, Say, SayAs, Tool};

    fn collected(steps: &[Step]) -> ResultPayload {
        let mut output = Output::new(1000);
        for step in steps {
            match step {
                Say(text) => output.text(None, text),
                SayAs(id, text) => output.text(Some(id), text),
                Tool => output.interrupt(),
                Block => output.other_block(),
            }
        }
        match output.collect() {
            Collected::Whole(result) => result,
            Collected::TooLarge { .. } => panic!("small enough"),
        }
    }

    #[rstest]
    #[case::nothing(&[], "")]
    #[case::chunks_join(&[Say("a"), Say("b")], "ab")]
    #[case::tool_call_separates(&[Say("a"), Tool, Say("b"), Say("c")], "bc")]
    #[case::id_separates(&[SayAs("1", "a"), SayAs("2", "b"), SayAs("2", "c")], "bc")]
    #[case::id_joins_across_a_tool_call(&[SayAs("1", "a"), Tool, SayAs("1", "b")], "ab")]
    #[case::no_id_goes_on(&[SayAs("1", "a"), Say("b")], "ab")]
    #[case::no_id_after_a_tool_call(&[SayAs("1", "a"), Tool, Say("b")], "b")]
    #[case::new_id_after_none(&[Say("a"), SayAs("1", "b")], "b")]
    #[case::blank_last_message(&[Say("a"), Tool, Say(" \n")], "a")]
    #[case::blank_start_is_kept(&[Say("\n"), Say("a")], "\na")]
    #[case::only_blank(&[Say("\n")], "")]
    #[case::trailing_tool(&[Say("a"), Tool], "a")]
    fn c28_the_last_message_that_is_not_blank(#[case] steps: &[Step], #[case] text: &str) {
        assert_eq!(collected(steps).text, text);
    }

    #[test]
    fn c28_other_blocks_are_counted() {
        assert_eq!(collected(&[Block, Say("a"), Block]).other_blocks, 2);
    }

    #[test]
    fn digest_and_size_are_of_the_text() {
        let result = collected(&[Say("h"), Say("é")]);
        assert_eq!((result.text.as_str(), result.size), ("hé", 3));
        assert_eq!(result.sha256, hex(&Sha256::digest("hé")));
    }

    #[rstest]
    #[case(15, true)]
    #[case(16, true)]
    #[case(17, false)]
    fn t3_the_limit_is_exact_and_nothing_is_cut(#[case] size: usize, #[case] fits: bool) {
        let mut output = Output::new(16);
        for _ in 0..size {
            output.text(None, "x");
        }
        match output.collect() {
            Collected::Whole(result) => assert!(fits && result.text.len() == size),
            Collected::TooLarge { size: told, limit } => assert!(!fits && told == size as u64 && limit == 16),
        }
    }

    #[test]
    fn t4_memory_stays_bounded_above_the_limit() {
        let mut output = Output::new(16 * 1024);
        for _ in 0..100 {
            output.text(None, &"é".repeat(10_000));
        }
        assert!(output.current.as_ref().is_some_and(|message| message.text.len() <= 16 * 1024));
        assert!(output.preview().is_some_and(|preview| preview.len() == 1024));
    }

    #[test]
    fn previews_end_on_a_character() {
        let mut output = Output::new(4096);
        output.text(None, "x");
        output.text(None, &"é".repeat(1000));
        assert_eq!(output.preview().map(|preview| preview.len()), Some(1023));
    }
}
