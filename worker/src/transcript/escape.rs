//! Makes text of strangers safe to print.

use crate::output::floor;
use std::borrow::Cow;

/// Escapes control characters and those that change the direction of text; a tab stays.
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_unsafe(character) {
            safe.extend(character.escape_default());
        } else {
            safe.push(character);
        }
    }
    Cow::Owned(safe)
}

fn is_unsafe(character: char) -> bool {
    (character.is_control() && character != '\t')
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
}

/// One line of at most `bytes` bytes: control characters become blanks, a longer text ends with a mark.
pub fn clip(text: &str, bytes: usize) -> String {
    const MARK: &str = "...";
    let cut = text.len() > bytes;
    let kept = if cut { &text[..floor(text, bytes.saturating_sub(MARK.len()))] } else { text };
    // A blank is one byte, as the shortest control character is: the text does not grow.
    let mut line: String = kept.chars().map(|character| if is_unsafe(character) { ' ' } else { character }).collect();
    if cut {
        line.push_str(MARK);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("plain\ttext é", "plain\ttext é")]
    #[case("\x1b]0;t\x07", "\\u{1b}]0;t\\u{7}")]
    #[case("a\r\nb", "a\\r\\nb")]
    #[case("\u{202e}abc", "\\u{202e}abc")]
    #[case("\u{9b}31m", "\\u{9b}31m")]
    fn c57_control_characters_are_escaped(#[case] text: &str, #[case] safe: &str) {
        assert_eq!(escape(text), safe);
    }

    #[rstest]
    #[case("short", 10, "short")]
    #[case("a\nb", 10, "a b")]
    #[case("ééééé", 8, "éé...")]
    fn clipped_text_is_one_bounded_line(#[case] text: &str, #[case] bytes: usize, #[case] line: &str) {
        assert_eq!(clip(text, bytes), line);
    }
}
