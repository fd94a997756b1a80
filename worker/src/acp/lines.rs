//! Lines of the agent's stdout, bounded and forgiving.

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

/// Longest line in bytes (contract c54). Images and file contents travel in frames, so it is generous; what is above it
/// is an agent gone wrong (pitfall T4).
pub const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;
/// Capacity kept between lines. Ordinary frames fit; a huge one gives its memory back.
const KEPT_CAPACITY: usize = 64 * 1024;

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// A line without its end. Bytes that are no UTF-8 are replaced.
    Text(String),
    /// A line over the limit. Nothing of what follows is read any more.
    TooLong,
    /// The other side closed.
    End,
}

/// Reads lines.
#[derive(Debug)]
pub struct LineReader<R> {
    source: BufReader<R>,
    line: Vec<u8>,
    limit: usize,
    over: Over,
    /// The limit was crossed: what follows is thrown away.
    discarding: bool,
}

/// What a line over the limit means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    /// The end of all lines.
    Fails,
    /// The rest of that line is left out.
    IsCut,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    /// Reads from `source` with lines of up to `limit` bytes.
    pub fn new(source: R, limit: usize) -> Self {
        Self::with(source, limit, Over::Fails)
    }

    /// Reads from `source` and leaves out what is beyond `limit` bytes of a line.
    pub fn cutting(source: R, limit: usize) -> Self {
        Self::with(source, limit, Over::IsCut)
    }

    fn with(source: R, limit: usize, over: Over) -> Self {
        Self { source: BufReader::with_capacity(64 * 1024, source), line: Vec::new(), limit, over, discarding: false }
    }

    /// The next line. Safe to cancel: a part of a line that was read stays. After [`Line::TooLong`] it reads on and
    /// throws away, so that the agent can still write what it has and end, until [`Line::End`].
    pub async fn next(&mut self) -> Line {
        loop {
            let available = match self.source.fill_buf().await {
                Ok(available) => available,
                // A broken pipe is an end like any other.
                Err(_) => &[],
            };
            if available.is_empty() {
                if self.line.is_empty() || self.discarding {
                    return Line::End;
                }
                return Line::Text(self.take());
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let body = &available[..end.unwrap_or(available.len())];
            let consumed = end.map_or(available.len(), |at| at + 1);
            if self.discarding {
                // A line that is cut ends the throwing away with its own end.
                self.discarding = end.is_none() || self.over == Over::Fails;
                self.source.consume(consumed);
                continue;
            }
            if self.line.len() + body.len() > self.limit {
                let line = match self.over {
                    Over::Fails => {
                        self.line = Vec::new();
                        Line::TooLong
                    }
                    Over::IsCut => {
                        let room = self.limit - self.line.len();
                        self.line.extend_from_slice(&body[..room]);
                        Line::Text(self.take())
                    }
                };
                self.discarding = end.is_none() || self.over == Over::Fails;
                self.source.consume(consumed);
                return line;
            }
            self.line.extend_from_slice(body);
            self.source.consume(consumed);
            if end.is_some() {
                return Line::Text(self.take());
            }
        }
    }

    fn take(&mut self) -> String {
        let text = match String::from_utf8_lossy(&self.line) {
            std::borrow::Cow::Borrowed(text) => text.to_owned(),
            std::borrow::Cow::Owned(text) => text,
        };
        self.line.clear();
        self.line.shrink_to(KEPT_CAPACITY);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    async fn all(bytes: &[u8]) -> Vec<Line> {
        let mut reader = LineReader::new(bytes, 10);
        let mut lines = Vec::new();
        loop {
            lines.push(reader.next().await);
            if lines.last() == Some(&Line::End) {
                return lines;
            }
        }
    }

    fn text(text: &str) -> Line {
        Line::Text(text.to_owned())
    }

    #[rstest]
    #[case::lines(b"a\nb\n", vec![text("a"), text("b"), Line::End])]
    #[case::no_last_end(b"a\nb", vec![text("a"), text("b"), Line::End])]
    #[case::empty(b"\n\n", vec![text(""), text(""), Line::End])]
    #[case::at_the_limit(b"0123456789\n", vec![text("0123456789"), Line::End])]
    #[case::over_the_limit(b"01234567890\nb\n", vec![Line::TooLong, Line::End])]
    #[case::not_utf8(b"a\xffb\n", vec![text("a\u{fffd}b"), Line::End])]
    #[tokio::test]
    async fn t4_lines_are_bounded_and_lossy(#[case] bytes: &[u8], #[case] want: Vec<Line>) {
        assert_eq!(all(bytes).await, want);
    }

    #[tokio::test]
    async fn a_cancelled_read_loses_nothing() {
        use tokio::io::AsyncWriteExt;
        let (mut ours, theirs) = tokio::io::duplex(64);
        let mut reader = LineReader::new(theirs, 100);
        ours.write_all(b"first ").await.unwrap();
        let cancelled = tokio::time::timeout(std::time::Duration::from_millis(20), reader.next()).await;
        assert!(cancelled.is_err());
        ours.write_all(b"second\n").await.unwrap();
        assert_eq!(reader.next().await, text("first second"));
    }
}
