//! The decision: from a conversation to an answer. Pure, so the same request always gets the same answer, in whatever
//! order an agent makes its calls.
//!
//! 1. The *turn* is what came after the last answer that asked for no tool.
//! 2. In the turn, the newest user text that carries a directive or matches a rule decides. Of several user texts in a
//!    row only the last counts, unless it is all reminders in tags: what stood before it was never answered (a cancelled
//!    prompt) or describes the environment.
//! 3. The script is cut after each tool call. As many pieces as tool-calling answers follow that text are done; the next
//!    piece is the answer.
//! 4. A *side call* (system text, but no tools offered: titles, summaries, classifiers) gets a short fixed text, though
//!    the prompt it quotes may hold a directive.

use serde_json::Value;

use crate::conversation::{Call, Conversation, Message, Role};
use crate::script::{Action, CutText, Script, Stop, directive};
use crate::template::{self, Values};
use crate::tools;

/// The answer to side calls.
pub const SIDE_CALL_TEXT: &str = "Scripted conversation";
/// The answer to prompts no script knows.
pub const UNSCRIPTED_TEXT: &str = "This prompt is not scripted.";

/// One step of an answer, with all forms expanded and tools resolved.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Say this.
    Text(CutText),
    /// Ask for this tool call.
    Call(Call),
    /// Wait this many milliseconds.
    Delay(u64),
    /// Wait for this gate.
    Hold(String),
    /// Fail with this HTTP status and message.
    Error(u16, String),
}

/// What to answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Done in order.
    pub steps: Vec<Step>,
    /// Why the answer ends.
    pub stop: Stop,
    /// Where the answer comes from, for the record of requests.
    pub source: Source,
}

/// Where an answer comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A directive in the prompt.
    Directive,
    /// The rule of this number.
    Rule(usize),
    /// Nothing scripted: the fixed text for prompts.
    Unscripted,
    /// Nothing scripted: the fixed text for side calls.
    SideCall,
}

impl Answer {
    fn fixed(text: &str, source: Source) -> Self {
        Self { steps: vec![Step::Text(crate::script::Text::Plain(text.to_owned()).cut())], stop: Stop::Done, source }
    }

    fn failed(status: u16, message: String, source: Source) -> Self {
        Self { steps: vec![Step::Error(status, message)], stop: Stop::Done, source }
    }
}

/// Decides the answer to `conversation` under `script`.
pub fn decide(conversation: &Conversation, script: &Script) -> Answer {
    let side_call = conversation.tools.is_empty() && !conversation.system.is_empty();
    for (at, text) in candidates(&conversation.messages) {
        let (actions, mut values, source) = match directive(text) {
            Some(_) if side_call => break,
            // A directive with a mistake in it must not pass for an unscripted prompt.
            Some(Err(error)) => return Answer::failed(400, format!("fake-llm: {error}"), Source::Directive),
            Some(Ok(actions)) => (actions, Values::new(), Source::Directive),
            None => {
                let matched = script.rules.iter().enumerate().find_map(|(number, rule)| {
                    if side_call && !rule.when.side_calls {
                        return None;
                    }
                    let values =
                        rule.matches(text, &said_before(conversation, at), &conversation.system, &conversation.model)?;
                    Some((rule.then.clone(), values, Source::Rule(number)))
                });
                match matched {
                    Some(found) => found,
                    None => continue,
                }
            }
        };
        values.insert("prompt".into(), text.to_owned());
        values.insert("toolResult".into(), conversation.last_tool_result().to_owned());
        if let Some(cwd) = working_directory(conversation) {
            values.insert("cwd".into(), cwd);
        }
        let done = conversation.messages[at..].iter().filter(|m| !m.calls.is_empty()).count();
        return answer(&actions, done, &values, conversation, source)
            .unwrap_or_else(|error| Answer::failed(400, format!("fake-llm: {error}"), source));
    }
    if side_call {
        Answer::fixed(SIDE_CALL_TEXT, Source::SideCall)
    } else {
        Answer::fixed(UNSCRIPTED_TEXT, Source::Unscripted)
    }
}

/// What was said before a message, by whomever.
fn said_before(conversation: &Conversation, at: usize) -> String {
    conversation.messages[..at].iter().map(|message| message.text.as_str()).collect::<Vec<_>>().join("\n")
}

/// The user texts of the current turn that may hold a script, newest first, with their places.
fn candidates(messages: &[Message]) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut superseded = false;
    for (at, message) in messages.iter().enumerate().rev() {
        match message.role {
            Role::Assistant if message.calls.is_empty() => break,
            Role::Assistant | Role::Tool => superseded = false,
            Role::User if superseded => {}
            Role::User => {
                found.push((at, message.text.as_str()));
                superseded = !only_reminders(&message.text);
            }
        }
    }
    found
}

/// Whether a user text holds nothing but elements such as `<system-reminder>...</system-reminder>`.
fn only_reminders(text: &str) -> bool {
    let text = text.trim();
    text.is_empty() || (text.starts_with('<') && text.ends_with('>') && directive(text).is_none())
}

/// The piece of `actions` that follows `done` tool calls.
fn answer(
    actions: &[Action],
    done: usize,
    values: &Values,
    conversation: &Conversation,
    source: Source,
) -> Result<Answer, String> {
    let mut pieces = actions.split_inclusive(|action| {
        matches!(action, Action::ToolCall { .. } | Action::WriteFile { .. } | Action::Shell(_))
    });
    let mut steps = Vec::new();
    let mut stop = Stop::Done;
    for action in pieces.nth(done).unwrap_or_default() {
        let step = match action {
            Action::Text(text) => {
                let cut = text.cut();
                Step::Text(CutText { value: template::expand(&cut.value, values)?, ..cut })
            }
            Action::ToolCall { name, arguments } => {
                Step::Call(Call { name: name.clone(), arguments: expand_all(arguments, values)? })
            }
            Action::WriteFile { path, content } => {
                let path = template::expand(path, values)?;
                // Some agents refuse relative paths; none refuses absolute ones under its working directory.
                let path = match values.get("cwd") {
                    Some(cwd) if !path.starts_with('/') => format!("{}/{path}", cwd.trim_end_matches('/')),
                    _ => path,
                };
                let content = template::expand(content, values)?;
                Step::Call(tools::write_file(&conversation.tools, &path, &content)?)
            }
            Action::Shell(command) => {
                Step::Call(tools::shell(&conversation.tools, &template::expand(command, values)?)?)
            }
            Action::Delay(millis) => Step::Delay(*millis),
            Action::Hold(gate) => Step::Hold(template::expand(gate, values)?),
            Action::Error { status, message } => Step::Error(*status, template::expand(message, values)?),
            Action::Stop(reason) => {
                stop = *reason;
                continue;
            }
        };
        if matches!(step, Step::Call(_)) {
            stop = Stop::ToolCall;
        }
        steps.push(step);
    }
    Ok(Answer { steps, stop, source })
}

/// Expands forms in every string inside `value`.
fn expand_all(value: &Value, values: &Values) -> Result<Value, String> {
    Ok(match value {
        Value::String(text) => Value::String(template::expand(text, values)?),
        Value::Array(items) => {
            Value::Array(items.iter().map(|item| expand_all(item, values)).collect::<Result<_, _>>()?)
        }
        Value::Object(members) => Value::Object(
            members
                .iter()
                .map(|(key, item)| Ok((key.clone(), expand_all(item, values)?)))
                .collect::<Result<_, String>>()?,
        ),
        other => other.clone(),
    })
}

/// The working directory as the agent states it, in its system text or in an environment description.
fn working_directory(conversation: &Conversation) -> Option<String> {
    let users = conversation.messages.iter().filter(|m| m.role == Role::User).map(|m| m.text.as_str());
    std::iter::once(conversation.system.as_str()).chain(users).find_map(|text| {
        let lower = text.to_ascii_lowercase();
        ["working directory:", "working in the directory:", "<cwd>"].iter().find_map(|label| {
            let start = lower.find(label)? + label.len();
            let path: String =
                text[start..].trim_start().chars().take_while(|c| !c.is_whitespace() && *c != '<').collect();
            path.starts_with('/').then_some(path)
        })
    })
}

#[cfg(test)]
mod tests;
