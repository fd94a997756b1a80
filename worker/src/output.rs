//! The output of a turn (contract c28): the agent's last message that is not blank, its text and its other content.
//!
//! Messages are told apart by `messageId`; without one, by a tool call or thought in between. Pure, and bounded: beyond
//! the limit only sizes and the text's digest go on.

use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use subagent_link::MAX_PREVIEW_BYTES;

/// One message of the agent.
#[derive(Debug, Default)]
struct Message {
    id: Option<String>,
    /// The text, at most the limit.
    text: String,
    text_size: u64,
    digest: Sha256,
    has_words: bool,
    /// Content blocks of other kinds, as JSON with commas between them, at most the limit.
    blocks: String,
    blocks_size: u64,
    block_count: i64,
}

impl Message {
    fn is_blank(&self) -> bool {
        !self.has_words && self.block_count == 0
    }

    /// Size of everything that would be kept.
    fn size(&self) -> u64 {
        // The brackets of the array.
        self.text_size + self.blocks_size + if self.blocks_size > 0 { 2 } else { 0 }
    }
}

/// Collects what the agent says.
#[derive(Debug)]
pub struct Output {
    limit: usize,
    /// Content of other kinds is kept, not only counted.
    keeps_blocks: bool,
    /// The last complete message that was not blank.
    last: Option<Message>,
    current: Option<Message>,
    /// A tool call or thought came after the newest chunk.
    interrupted: bool,
}

/// What the output came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Collected {
    /// Within the limit.
    Whole(Whole),
    /// Over the limit; nothing of it is kept (pitfall T3: never cut silently).
    TooLarge {
        /// Its size in bytes.
        size: u64,
        /// The limit in bytes.
        limit: usize,
    },
}

/// The whole output.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Whole {
    /// The text.
    pub text: String,
    /// Lower-case hex SHA-256 of the text.
    pub sha256: String,
    /// How many content blocks of other kinds there were.
    pub other_blocks: i64,
    /// They themselves as a JSON array, when there are any and they are kept.
    pub blocks: Option<String>,
}

impl Output {
    /// An empty output that holds messages of up to `limit` bytes.
    pub fn new(limit: usize, keeps_blocks: bool) -> Self {
        Self { limit, keeps_blocks, last: None, current: None, interrupted: false }
    }

    /// Forgets everything: another turn begins.
    pub fn reset(&mut self) {
        *self = Self::new(self.limit, self.keeps_blocks);
    }

    /// A chunk of text of the agent's message.
    pub fn text(&mut self, id: Option<&str>, text: &str) {
        let limit = self.limit;
        let message = self.message(id);
        message.text_size += text.len() as u64;
        message.digest.update(text.as_bytes());
        message.has_words |= !text.trim().is_empty();
        if message.size() <= limit as u64 {
            message.text.push_str(text);
        } else {
            // Only a preview is still of use.
            let keep = limit.min(MAX_PREVIEW_BYTES);
            let room = keep.saturating_sub(message.text.len());
            message.text.push_str(text.get(..floor(text, room)).unwrap_or_default());
        }
    }

    /// A content block of another kind, as JSON.
    pub fn block(&mut self, id: Option<&str>, block: &str) {
        let (limit, keeps_blocks) = (self.limit, self.keeps_blocks);
        let message = self.message(id);
        message.block_count += 1;
        if !keeps_blocks {
            return;
        }
        let comma = if message.block_count > 1 { "," } else { "" };
        message.blocks_size += (comma.len() + block.len()) as u64;
        if message.size() <= limit as u64 {
            message.blocks.push_str(comma);
            message.blocks.push_str(block);
        }
    }

    /// A tool call or a thought.
    pub fn interrupt(&mut self) {
        self.interrupted = true;
    }

    /// The first part of the text, for the turn's entry; `None` when there is none.
    pub fn preview(&self) -> Option<String> {
        let text = &self.newest()?.text;
        Some(text[..floor(text, MAX_PREVIEW_BYTES)].to_owned()).filter(|text| !text.is_empty())
    }

    /// The output so far. Without any message it is the empty text.
    pub fn collect(&self) -> Collected {
        let empty = Message::default();
        let message = self.newest().unwrap_or(&empty);
        if message.size() > self.limit as u64 {
            return Collected::TooLarge { size: message.size(), limit: self.limit };
        }
        Collected::Whole(Whole {
            text: message.text.clone(),
            sha256: hex(&message.digest.clone().finalize()),
            other_blocks: message.block_count,
            blocks: (message.blocks_size > 0).then(|| format!("[{}]", message.blocks)),
        })
    }

    fn newest(&self) -> Option<&Message> {
        self.current.as_ref().filter(|message| !message.is_blank()).or(self.last.as_ref())
    }

    /// The message that a chunk with this id belongs to.
    fn message(&mut self, id: Option<&str>) -> &mut Message {
        let continues = self.current.as_ref().is_some_and(|message| match (&message.id, id) {
            (Some(known), Some(id)) => known == id,
            (None, Some(_)) => false,
            (_, None) => !self.interrupted,
        });
        self.interrupted = false;
        if !continues && let Some(closed) = self.current.take().filter(|message| !message.is_blank()) {
            self.last = Some(closed);
        }
        self.current.get_or_insert_with(|| Message { id: id.map(str::to_owned), ..Message::default() })
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
        Block(&'static str),
    }
    use Step::{Block, Say, SayAs, Tool};

    fn collected(steps: &[Step]) -> Whole {
        let mut output = Output::new(1000, true);
        for step in steps {
            match step {
                Say(text) => output.text(None, text),
                SayAs(id, text) => output.text(Some(id), text),
                Tool => output.interrupt(),
                Block(block) => output.block(None, block),
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

    #[rstest]
    #[case::around_the_text(&[Block("{}"), Say("a"), Block("1")], "a", Some("[{},1]"))]
    #[case::of_an_older_message(&[Block("1"), Tool, Say("a")], "a", None)]
    #[case::alone(&[Say("a"), Tool, Block("1")], "", Some("[1]"))]
    #[case::before_a_blank_one(&[Say("a"), Block("1"), Tool, Say(" ")], "a", Some("[1]"))]
    fn c28_other_blocks_of_that_message_are_kept_and_counted(
        #[case] steps: &[Step],
        #[case] text: &str,
        #[case] blocks: Option<&str>,
    ) {
        let whole = collected(steps);
        assert_eq!((whole.text.as_str(), whole.blocks.as_deref()), (text, blocks));
        let kept: Vec<serde_json::Value> = serde_json::from_str(blocks.unwrap_or("[]")).unwrap();
        assert_eq!(whole.other_blocks, kept.len() as i64);
    }

    #[test]
    fn c28_blocks_that_cannot_be_stored_are_counted_still() {
        let mut output = Output::new(10, false);
        output.text(None, "a");
        output.block(None, &"x".repeat(100));
        let Collected::Whole(whole) = output.collect() else { panic!("small enough") };
        assert_eq!((whole.text.as_str(), whole.other_blocks, whole.blocks), ("a", 1, None));
    }

    #[test]
    fn the_digest_is_of_the_text() {
        let whole = collected(&[Say("h"), Say("é")]);
        assert_eq!((whole.text.as_str(), whole.sha256), ("hé", hex(&Sha256::digest("hé"))));
    }

    #[rstest]
    #[case(15, true)]
    #[case(16, true)]
    #[case(17, false)]
    fn t3_the_limit_is_exact_and_nothing_is_cut(#[case] size: usize, #[case] fits: bool) {
        let mut output = Output::new(16, true);
        for _ in 0..size {
            output.text(None, "x");
        }
        let mut beside = Output::new(16, true);
        beside.text(None, &"x".repeat(5));
        // Two brackets.
        beside.block(None, &"x".repeat(size - 7));
        assert_eq!(matches!(beside.collect(), Collected::Whole(_)), fits, "text and blocks count together");
        match output.collect() {
            Collected::Whole(result) => assert!(fits && result.text.len() == size),
            Collected::TooLarge { size: told, limit } => assert!(!fits && told == size as u64 && limit == 16),
        }
    }

    #[test]
    fn t4_memory_stays_bounded_above_the_limit() {
        let mut output = Output::new(16 * 1024, true);
        for _ in 0..100 {
            output.text(None, &"é".repeat(10_000));
            output.block(None, &"x".repeat(10_000));
        }
        assert!(output.current.as_ref().is_some_and(|message| message.text.len() + message.blocks.len() <= 16 * 1024));
        assert!(output.preview().is_some_and(|preview| preview.len() == 1024));
    }

    #[test]
    fn previews_end_on_a_character() {
        let mut output = Output::new(4096, false);
        output.text(None, "x");
        output.text(None, &"é".repeat(1000));
        assert_eq!(output.preview().map(|preview| preview.len()), Some(1023));
    }
}
