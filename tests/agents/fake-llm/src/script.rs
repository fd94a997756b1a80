//! Scripts: what to answer, and to what.
//!
//! A script is a list of rules. A prompt may also carry its own actions between `<fake-llm>` and `</fake-llm>`; these
//! win over every rule.

use std::collections::BTreeMap;

use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::template::Values;

/// Opens a directive in a prompt.
pub const DIRECTIVE_OPEN: &str = "<fake-llm>";
/// Closes a directive in a prompt.
pub const DIRECTIVE_CLOSE: &str = "</fake-llm>";

/// One thing to do. An answer is everything up to and including the next tool call; what follows it is done when the
/// call's result has arrived.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Action {
    /// Says a text.
    Text(Text),
    /// Calls the tool of exactly this name.
    ToolCall {
        /// A name from the request's tools.
        name: String,
        /// Arguments; forms are expanded in every string in them.
        #[serde(default)]
        arguments: Value,
    },
    /// Writes a file with whatever tool the request offers for it: a file-writing tool, else a shell.
    WriteFile {
        /// Relative paths are under the agent's working directory.
        path: String,
        /// The file's whole content.
        content: String,
    },
    /// Runs a command line with whatever shell tool the request offers.
    Shell(String),
    /// Waits this many milliseconds.
    Delay(u64),
    /// Waits until the gate of this name is opened over HTTP. An opened gate stays open.
    Hold(String),
    /// Fails the request: with this HTTP status when nothing was said yet, else by an error inside the stream.
    Error {
        /// HTTP status, 400 to 599.
        status: u16,
        /// The message in the dialect's error body.
        #[serde(default)]
        message: String,
    },
    /// Ends the answer with another reason than "done".
    Stop(Stop),
}

/// A text to say: a string, or an object that also says how it is cut.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Text {
    /// Cut into chunks of the default length, no wait between them.
    Plain(String),
    /// The long form.
    Cut(CutText),
}

/// A text with its way of streaming.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CutText {
    /// The text.
    pub value: String,
    /// Said this many times over, default 1: long answers from short scripts.
    #[serde(default = "one")]
    pub repeat: usize,
    /// Characters in a chunk, default 16.
    #[serde(default = "default_chunk_chars")]
    pub chunk_chars: usize,
    /// Milliseconds between chunks, default 0.
    #[serde(default)]
    pub chunk_delay: u64,
}

/// Why an answer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stop {
    /// The answer is complete.
    Done,
    /// A tool call is asked for.
    ToolCall,
    /// The token limit was reached.
    MaxTokens,
    /// The model declined.
    Refusal,
}

fn one() -> usize {
    1
}

/// Short enough that an ordinary sentence arrives in several chunks.
fn default_chunk_chars() -> usize {
    16
}

impl Text {
    /// The long form of either form.
    pub fn cut(&self) -> CutText {
        match self {
            Text::Plain(value) => {
                CutText { value: value.clone(), repeat: 1, chunk_chars: default_chunk_chars(), chunk_delay: 0 }
            }
            Text::Cut(cut) => cut.clone(),
        }
    }
}

/// What a rule asks of a request. All members given must hold; a rule that asks nothing matches every prompt.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct When {
    /// Texts that all occur in the user text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub contains: Vec<String>,
    /// Regular expressions that all match the user text. Named and numbered groups become `{{NAME}}` and `{{1}}`; of
    /// equal names the later expression wins.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub regex: Vec<Pattern>,
    /// Regular expressions that all match what was said before the user text, in this request; their groups, too. So an
    /// answer can show that the agent sent the conversation so far.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Pattern>,
    /// A regular expression on the system text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<Pattern>,
    /// A regular expression on the model name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<Pattern>,
    /// Answer side calls too: those that offer no tools though they have a system text (see [`crate::decide`]).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub side_calls: bool,
}

/// A regular expression, compiled when the script is read so that a bad one is refused there.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern(Regex);

impl TryFrom<String> for Pattern {
    type Error = regex::Error;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Regex::new(&text).map(Self)
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.0.as_str().to_owned()
    }
}

impl Pattern {
    /// Whether it matches anywhere in `text`.
    pub fn matches(&self, text: &str) -> bool {
        self.0.is_match(text)
    }

    /// The groups of the first match, by number and by name; `None` without a match.
    fn groups(&self, text: &str) -> Option<Values> {
        let captures = self.0.captures(text)?;
        let mut values = BTreeMap::new();
        for (number, name) in self.0.capture_names().enumerate() {
            let Some(group) = captures.get(number) else {
                continue;
            };
            values.insert(number.to_string(), group.as_str().to_owned());
            if let Some(name) = name {
                values.insert(name.to_owned(), group.as_str().to_owned());
            }
        }
        Some(values)
    }
}

/// One rule of a script.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// What it answers to.
    #[serde(default)]
    pub when: When,
    /// What it answers.
    pub then: Vec<Action>,
}

impl Rule {
    /// The captured groups when the rule matches this user text, else `None`. `history` is what was said before it.
    pub fn matches(&self, user: &str, history: &str, system: &str, model: &str) -> Option<Values> {
        let when = &self.when;
        if !when.contains.iter().all(|part| user.contains(part.as_str())) {
            return None;
        }
        if when.system.as_ref().is_some_and(|p| !p.matches(system)) {
            return None;
        }
        if when.model.as_ref().is_some_and(|p| !p.matches(model)) {
            return None;
        }
        let mut values = Values::new();
        for pattern in &when.history {
            values.extend(pattern.groups(history)?);
        }
        for pattern in &when.regex {
            values.extend(pattern.groups(user)?);
        }
        Some(values)
    }
}

/// The rules in force: those set by a file or over HTTP first, the built-in ones after them.
#[derive(Debug, Clone)]
pub struct Script {
    /// Tried in order, the first match wins.
    pub rules: Vec<Rule>,
}

/// The rules every server has: a nonce and a file name in a prompt make it write the nonce's digest to that file, read
/// the file back by a shell command, and answer with the digest.
const BUILT_IN: &str = include_str!("built_in.json");

impl Script {
    /// `rules`, followed by the built-in ones.
    pub fn new(mut rules: Vec<Rule>) -> Self {
        let built_in: Vec<Rule> = serde_json::from_str(BUILT_IN).expect("the built-in rules are part of this program");
        rules.extend(built_in);
        Self { rules }
    }
}

impl Default for Script {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

/// The actions of the last directive in `text`; `None` when it has none.
///
/// # Errors
/// The directive is not a JSON list of actions, or is not closed.
pub fn directive(text: &str) -> Option<Result<Vec<Action>, String>> {
    let start = text.rfind(DIRECTIVE_OPEN)? + DIRECTIVE_OPEN.len();
    let body = &text[start..];
    let Some(end) = body.find(DIRECTIVE_CLOSE) else {
        return Some(Err(format!("{DIRECTIVE_OPEN} is not closed")));
    };
    Some(serde_json::from_str(body[..end].trim()).map_err(|error| format!("directive: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directive_is_read_out_of_the_text_around_it() {
        let text = r#"Hello <fake-llm>[{"text":"old"}]</fake-llm> and
            <fake-llm>[{"text":{"value":"new","chunkDelay":5}},{"delay":3},{"stop":"maxTokens"}]</fake-llm> bye"#;
        let actions = directive(text).unwrap().unwrap();
        assert_eq!(actions.len(), 3);
        let Action::Text(said) = &actions[0] else { panic!("{actions:?}") };
        assert_eq!((said.cut().value.as_str(), said.cut().chunk_delay), ("new", 5));
        assert_eq!(actions[1..], [Action::Delay(3), Action::Stop(Stop::MaxTokens)]);
    }

    #[test]
    fn a_directive_that_cannot_be_followed_is_an_error_not_ignored() {
        assert!(directive("<fake-llm>[{\"tetx\":1}]</fake-llm>").unwrap().is_err());
        assert!(directive("<fake-llm>[").unwrap().is_err());
        assert!(directive("no directive").is_none());
    }

    #[test]
    fn a_rule_needs_all_its_conditions() {
        let rule: Rule = serde_json::from_str(
            r#"{"when":{"contains":["a"],"regex":["b(?<n>\\d)"],"system":"coder","model":"^m"},"then":[]}"#,
        )
        .unwrap();
        let values = rule.matches("a b7", "", "a coder", "m1").unwrap();
        assert_eq!(values["n"], "7");
        assert_eq!(values["1"], "7");
        assert!(rule.matches("b7", "", "a coder", "m1").is_none());
        assert!(rule.matches("a b", "", "a coder", "m1").is_none());
        assert!(rule.matches("a b7", "", "", "m1").is_none());
        assert!(rule.matches("a b7", "", "a coder", "x").is_none());
    }

    #[test]
    fn a_bad_expression_is_refused_when_the_script_is_read() {
        let read: Result<Rule, _> = serde_json::from_str(r#"{"when":{"regex":["("]},"then":[]}"#);
        assert!(read.is_err());
    }
}
