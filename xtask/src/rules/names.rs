//! Names of rules, and finding them in names and texts.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// A rule of the contract (`c25`) or a case of the pitfalls (`S1`). Case matters: `c1` and `C1` are different.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    letter: char,
    number: u32,
}

/// Letters of the pitfalls. In a function's name they stand in lower case, except `C`, which would read as the contract.
const PITFALLS: &[char] = &['T', 'S', 'R', 'N', 'D', 'C'];

impl FromStr for Rule {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let letter = text.chars().next().filter(|letter| *letter == 'c' || PITFALLS.contains(letter)).ok_or(())?;
        let digits = &text[1..];
        let plain = (1..=3).contains(&digits.len())
            && digits.bytes().all(|byte| byte.is_ascii_digit())
            && !digits.starts_with('0');
        if plain { Ok(Self { letter, number: digits.parse().map_err(|_| ())? }) } else { Err(()) }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Padded as a whole, so that a table can align it.
        out.pad(&format!("{}{}", self.letter, self.number))
    }
}

impl Rule {
    /// A word of a function's name, where everything is lower case.
    fn from_word(word: &str) -> Option<Self> {
        if word.starts_with('c') {
            return word.parse().ok();
        }
        let mut letters = word.chars();
        let upper: String = letters.next()?.to_uppercase().chain(letters).collect();
        upper.parse().ok().filter(|rule: &Self| rule.letter != 'C')
    }

    fn up_to(self, last: Self) -> impl Iterator<Item = Self> {
        let letter = self.letter;
        (self.number..=last.number).map(move |number| Self { letter, number })
    }
}

/// The rules a name starts with: `c5_c6_a_start_is_refused`, `c20_to_c23_the_subset`. Further on a name is prose, where
/// `s3` may be a store.
pub fn in_name(name: &str) -> BTreeSet<Rule> {
    in_words(name.trim_start_matches("test_").split('_'), Rule::from_word, true)
}

/// The rules in prose: `R1, c41: at most one prompt`, `c20 to c23`.
pub fn in_text(text: &str) -> BTreeSet<Rule> {
    let words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').filter(|word| !word.is_empty());
    in_words(words, |word| word.parse().ok(), false)
}

fn in_words<'a>(
    words: impl Iterator<Item = &'a str>,
    read: impl Fn(&str) -> Option<Rule>,
    only_leading: bool,
) -> BTreeSet<Rule> {
    let mut found = BTreeSet::new();
    let mut last: Option<Rule> = None;
    let mut range = false;
    for word in words {
        match (read(word), last) {
            (Some(rule), Some(first)) if range && rule.letter == first.letter => found.extend(first.up_to(rule)),
            (Some(rule), _) => {
                found.insert(rule);
            }
            (None, Some(_)) if word == "to" && !range => {
                range = true;
                continue;
            }
            (None, _) if only_leading => break,
            (None, _) => {}
        }
        range = false;
        last = read(word);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn shown(rules: BTreeSet<Rule>) -> String {
        rules.iter().map(Rule::to_string).collect::<Vec<_>>().join(" ")
    }

    #[rstest]
    #[case("c25_the_protocol_decides", "c25")]
    #[case("c5_c6_c7_a_capability", "c5 c6 c7")]
    #[case("c20_to_c23_the_subset", "c20 c21 c22 c23")]
    #[case("s1_no_stamp_after_deletion", "S1")]
    #[case("n7_n8_a_template", "N7 N8")]
    #[case("test_c5_in_go_style", "c5")]
    #[case("a_result_in_s3", "")]
    #[case("c2x_is_none", "")]
    #[case("c025_is_none", "")]
    #[case("ends_with_c2", "")]
    #[case("c25", "c25")]
    fn a_name_starts_with_its_rules(#[case] name: &str, #[case] rules: &str) {
        assert_eq!(shown(in_name(name)), rules);
    }

    #[rstest]
    #[case("R1, c41: whatever the order", "R1 c41")]
    #[case("Contract c11 to c13, and (c30).", "c11 c12 c13 c30")]
    #[case("pitfall T4/T10; C5", "C5 T10 T4")]
    #[case("c2 is not c25 and C2 is neither", "C2 c2 c25")]
    #[case("abc25 c25x sc2 T4a X9 c", "")]
    #[case("from c2 to be", "c2")]
    #[case("s1 in prose is a variable", "")]
    fn a_text_names_rules_as_whole_words(#[case] text: &str, #[case] rules: &str) {
        let mut expected: Vec<_> = rules.split(' ').filter(|rule| !rule.is_empty()).collect();
        let found = shown(in_text(text));
        let mut found: Vec<_> = found.split(' ').filter(|rule| !rule.is_empty()).collect();
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected);
    }
}
