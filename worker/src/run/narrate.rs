//! What the agent tells: into the output, the snapshot and the transcript.

use super::attempt::{Attempt, timestamp};
use crate::{
    acp::{
        self, ToolCall, Update,
        permission::{Decision, PermissionRequest},
    },
    transcript::{Speaker, clip},
    usage,
};
use serde_json::value::RawValue;
use subagent_link::{Activity, ContentBlock, Deadlines};

/// Lines of garbage that are shown; the rest is counted (pitfall T4).
const SHOWN_GARBAGE: u64 = 20;
/// Longest line of garbage that is shown, in bytes.
const GARBAGE_BYTES: usize = 400;
/// Longest summary of an activity in bytes (see `subagent_link::Activity`).
const SUMMARY_BYTES: usize = 256;
/// Tool calls that are remembered, to put a title on updates that carry only the id.
const REMEMBERED_TOOLS: usize = 256;

/// What was last told about a tool call.
#[derive(Debug, Default)]
pub struct Told {
    title: String,
    line: String,
}

impl Attempt {
    /// The prompt, for the transcript.
    pub(super) fn show_prompt(&self, blocks: &[ContentBlock]) {
        for block in blocks {
            match block {
                ContentBlock::Text { text } => self.transcript.line(Speaker::User, text),
                ContentBlock::ResourceLink { uri, name } => {
                    self.transcript.line(Speaker::User, &format!("[link {name}: {uri}]"));
                }
                ContentBlock::Image { data, mime_type } => {
                    self.transcript
                        .line(Speaker::User, &format!("[image {mime_type}, {} bytes of base64]", data.len()));
                }
            }
        }
    }

    /// The deadlines the controller counts, for the transcript.
    pub(super) fn show_deadlines(&self, deadlines: &Deadlines) {
        for (name, seconds) in [("active", deadlines.active_seconds), ("idle", deadlines.idle_seconds)] {
            if let Some(seconds) = seconds {
                self.say(&format!("{name} deadline: {seconds} s"));
            }
        }
    }

    /// Takes in a `session/update`. Those for another session change nothing and are counted (c54).
    pub(super) fn take_update(&mut self, params: &RawValue) {
        let Some(told) = acp::parse_update(params) else { return };
        if self.session_id.as_ref().is_some_and(|known| *known != told.session_id) {
            self.circumstances.foreign_updates += 1;
            self.has_strayed |= self.is_continued;
            return;
        }
        if self.replayed.is_some() {
            return self.take_replayed(told.update);
        }
        // Text before the prompt or behind its response belongs to no turn: it is shown and is no output (c28).
        let in_turn = self.open_prompt.is_some();
        match told.update {
            Update::AgentText { id, text } => {
                if in_turn {
                    self.output.text(id.as_deref(), &text);
                }
                self.transcript.stream(Speaker::Agent, &text);
                self.note_activity("writing");
            }
            Update::AgentBlock { id, kind, json } => {
                if in_turn {
                    self.output.block(id.as_deref(), &json);
                }
                self.transcript.line(Speaker::Agent, &format!("[{kind}]"));
                self.note_activity("writing");
            }
            Update::Thought(text) => {
                self.output.interrupt();
                self.transcript.stream(Speaker::Thought, &text);
                self.note_activity("thinking");
            }
            Update::UserText(text) => self.transcript.stream(Speaker::User, &text),
            Update::Tool(call) => self.tell_tool(call),
            Update::Plan(entries) => {
                for (status, content) in entries {
                    self.transcript.line(Speaker::Plan, &format!("[{status}] {content}"));
                }
                self.note_activity("planning");
            }
            Update::Usage(told) => {
                self.ledger.note(|snapshot| usage::apply(snapshot, usage::fold_update, &told));
                self.tell_usage();
            }
            Update::Mode(mode) => self.say(&format!("the session's mode is now {mode}")),
            Update::Ignored => {}
        }
    }

    /// Takes in an update of the session's past. It is shown as such, and is neither output nor activity nor usage of this run
    /// (contract c28, c40, pitfall R7).
    fn take_replayed(&mut self, update: Update) {
        match update {
            Update::UserText(text) => self.transcript.stream(Speaker::PastUser, &text),
            Update::AgentText { text, .. } => self.transcript.stream(Speaker::PastAgent, &text),
            Update::AgentBlock { kind, .. } => self.transcript.line(Speaker::PastAgent, &format!("[{kind}]")),
            Update::Tool(call) if call.announced => {
                self.transcript.line(Speaker::PastAgent, &format!("[tool {}]", self.title(&call)));
            }
            Update::Tool(_) | Update::Thought(_) | Update::Plan(_) => {}
            // Neither is something that was said or done.
            Update::Usage(_) | Update::Mode(_) | Update::Ignored => return,
        }
        if let Some(count) = &mut self.replayed {
            *count += 1;
        }
    }

    /// A line that is no frame.
    pub(super) fn skip_line(&mut self, line: &str) {
        self.circumstances.skipped_lines += 1;
        let count = self.circumstances.skipped_lines;
        if count <= SHOWN_GARBAGE {
            self.transcript.line(Speaker::Stdout, &clip(line, GARBAGE_BYTES));
        } else if count == SHOWN_GARBAGE + 1 {
            self.say("further lines on the agent's stdout that are no frames are only counted");
        }
    }

    /// Counts and shows a permission decision (c19).
    pub(super) fn count_permission(&mut self, request: &PermissionRequest, decision: &Decision) {
        let title = self.title(&request.call);
        let mut line = format!("{title}: {}", decision.words());
        if let Some(input) = &request.call.input {
            line.push_str(&format!(" {input}"));
        }
        self.transcript.line(Speaker::Permission, &line);
        self.ledger.note(|snapshot| {
            let counts = snapshot.permissions.get_or_insert_default();
            match decision {
                Decision::Allowed(_) => counts.allowed += 1,
                Decision::Rejected(_) | Decision::Cancelled => counts.rejected += 1,
            }
        });
    }

    fn tell_tool(&mut self, call: ToolCall) {
        // A new call separates messages. An update separates only when its call was never announced: those of a call
        // that runs in the background may come in the middle of a message.
        if call.announced || !self.tools.contains_key(&call.id) {
            self.output.interrupt();
        }
        let title = self.title(&call);
        if self.tools.len() >= REMEMBERED_TOOLS && !self.tools.contains_key(&call.id) {
            self.tools.clear();
        }
        let told = self.tools.entry(call.id).or_default();
        told.title.clone_from(&title);
        let mut line = title.clone();
        if let Some(kind) = call.kind.filter(|kind| *kind != "other") {
            line.push_str(&format!(" ({kind})"));
        }
        if let Some(status) = call.status.or(call.announced.then_some("pending")) {
            line.push_str(&format!(": {status}"));
        }
        if let Some(input) = call.input.filter(|input| input != "{}") {
            line.push_str(&format!(" {input}"));
        }
        // Agents repeat themselves while a tool runs.
        if told.line != line {
            self.transcript.line(Speaker::Tool, &line);
            told.line = line;
        }
        if matches!(call.status, Some("completed" | "failed")) {
            for line in call.output {
                self.transcript.line(Speaker::Tool, &format!("| {line}"));
            }
        }
        self.note_activity(&title);
    }

    fn title(&self, call: &ToolCall) -> String {
        let known = || self.tools.get(&call.id).map(|told| told.title.clone());
        call.title.clone().or_else(known).unwrap_or_else(|| "a tool without a title".to_owned())
    }

    fn tell_usage(&self) {
        let Some(usage) = &self.ledger.snapshot().usage else { return };
        let mut parts = Vec::new();
        if let (Some(used), Some(size)) = (usage.context_used, usage.context_size) {
            parts.push(format!("context {used} of {size} tokens"));
        }
        if let Some(cost) = &usage.cost {
            parts.push(format!("cost {} {}", cost.amount, cost.currency));
        }
        if !parts.is_empty() {
            self.transcript.line(Speaker::Usage, &parts.join(", "));
        }
    }

    pub(super) fn note_activity(&mut self, summary: &str) {
        let activity = Activity { at: timestamp(), summary: clip(summary, SUMMARY_BYTES) };
        self.ledger.note(|snapshot| snapshot.activity = Some(activity));
    }
}
