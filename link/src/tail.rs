//! The end of a transcript, kept for the archive (pitfall T9): by the worker of what it says, by the operator of the log
//! of a pod whose worker could not.

use crate::{MAX_TRANSCRIPT_BYTES, TranscriptPayload};
use base64::{Engine, engine::general_purpose::STANDARD};
use sha2::{Digest, Sha256};
use std::collections::VecDeque;

/// Bytes kept in memory. Prose compresses to about a quarter, so this is what usually fills the archive.
const KEPT_BYTES: usize = 8 * MAX_TRANSCRIPT_BYTES;
/// Compression level: the archive is small and made once.
const LEVEL: i32 = 9;

/// Whole lines, the newest of them.
#[derive(Debug, Default)]
pub struct Tail {
    lines: VecDeque<String>,
    kept: usize,
    total: u64,
}

impl Tail {
    /// An empty tail.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line with its end. The oldest lines go when it gets too much.
    pub fn push(&mut self, line: &str) {
        self.total += line.len() as u64;
        self.kept += line.len();
        self.lines.push_back(line.to_owned());
        while self.kept > KEPT_BYTES {
            let Some(oldest) = self.lines.pop_front() else { break };
            self.kept -= oldest.len();
        }
    }

    /// The largest end of the kept lines that compresses to the archive's bound, found by leaving out a fifth at a
    /// time. `None` when there is nothing.
    pub fn payload(&self) -> Option<TranscriptPayload> {
        let mut first = 0;
        loop {
            let text: String = self.lines.iter().skip(first).map(String::as_str).collect();
            if text.is_empty() {
                return None;
            }
            let compressed = zstd::encode_all(text.as_bytes(), LEVEL).ok()?;
            if compressed.len() <= MAX_TRANSCRIPT_BYTES {
                return Some(TranscriptPayload {
                    data: STANDARD.encode(compressed),
                    sha256: format!("{:x}", Sha256::digest(&text)),
                    size: i64::try_from(text.len()).ok()?,
                    dropped_bytes: i64::try_from(self.total - text.len() as u64).ok()?,
                });
            }
            first += (self.lines.len() - first).div_ceil(5);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unpack(payload: &TranscriptPayload) -> String {
        let packed = STANDARD.decode(&payload.data).unwrap();
        assert!(packed.len() <= MAX_TRANSCRIPT_BYTES, "{}", packed.len());
        let text = String::from_utf8(zstd::decode_all(packed.as_slice()).unwrap()).unwrap();
        assert_eq!(payload.sha256, format!("{:x}", Sha256::digest(&text)));
        assert_eq!(payload.size, text.len() as i64);
        text
    }

    #[test]
    fn t9_a_short_transcript_is_kept_whole() {
        let mut tail = Tail::new();
        tail.push("a\n");
        tail.push("b\n");
        let payload = tail.payload().unwrap();
        assert_eq!((unpack(&payload).as_str(), payload.dropped_bytes), ("a\nb\n", 0));
        assert!(Tail::new().payload().is_none());
    }

    #[test]
    fn t9_the_newest_lines_are_kept_and_the_rest_is_counted() {
        let mut tail = Tail::new();
        // Digests do not compress, so the bound bites.
        let line = |number: u32| format!("{number} {:x}\n", Sha256::digest(number.to_le_bytes()));
        let total: usize = (0..20_000)
            .map(|number| {
                tail.push(&line(number));
                line(number).len()
            })
            .sum();
        assert!(tail.kept <= KEPT_BYTES);
        let payload = tail.payload().unwrap();
        let text = unpack(&payload);
        assert!(text.ends_with(&line(19_999)));
        assert_eq!(payload.dropped_bytes as usize + text.len(), total);
        assert!(text.len() > MAX_TRANSCRIPT_BYTES, "{}", text.len());
    }
}
