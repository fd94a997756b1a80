//! The script language: what a prompt can ask the agent to do.
//!
//! A script is the lines of a text that start with `!`; every other line is prose and ignored. [`parse`] turns it into
//! [`Step`]s. A step that does not exist or misses an argument is an error that names it, because a test whose knob is
//! misspelt would otherwise pass for the wrong reason.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use nix::sys::signal::Signal;

/// One thing to do in a turn. The names and arguments are described in the README beside this crate.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// `!say TEXT`: one message chunk with exactly this text, also when it is empty.
    Say(String),
    /// `!echo`: what an agent without a script says, `echo: ` and the prompt's text.
    Echo,
    /// `!chunks N TEXT`: one message in at most N chunks of about the same length.
    Chunks(usize, String),
    /// `!stream N MS TEXT`: one message of N chunks, each TEXT, a pause of MS between them.
    Stream(usize, Duration, String),
    /// `!fill BYTES [UNIT]`: one message of exactly BYTES bytes, see [`fill`].
    Fill(usize, String),
    /// `!think TEXT`: one thought chunk.
    Think(String),
    /// `!message-ids on|off`: whether the messages from here on carry a `messageId`.
    MessageIds(bool),
    /// `!no-message`: nothing; says in the script that this turn ends without a message on purpose.
    NoMessage,
    /// `!image [BYTES]`: a message chunk with an image block of that many decoded bytes.
    Image(usize),
    /// `!audio [BYTES]`: the same with an audio block.
    Audio(usize),
    /// `!resource URI TEXT`: a message chunk with an embedded text resource.
    Resource(String, String),
    /// `!link URI`: a message chunk with a resource link.
    Link(String),
    /// `!plan ENTRY[:STATUS],...`: a plan update.
    Plan(Vec<(String, String)>),
    /// `!tool NAME [STATUS]`: a tool call that goes through its states up to STATUS (`completed`).
    Tool(String, ToolStatus),
    /// `!usage JSON`: a usage update with these members, sent as written, valid JSON or not.
    Usage(String),
    /// `!mode ID`: says that the current mode is now ID.
    Mode(String),
    /// `!title TEXT`: a session title update.
    Title(String),
    /// `!commands`: an available commands update.
    Commands,
    /// `!other-session-id [ID]`: the updates from here on carry this session id instead of the real one.
    OtherSessionId(String),

    /// `!stop REASON [JSON]`: ends the turn with this stop reason, known or not; the members of JSON go into the
    /// response as written.
    Stop(String, String),
    /// `!error CODE TEXT`: ends the turn with a JSON-RPC error.
    Error(i64, String),
    /// `!crash CODE`: the process exits at once, the prompt is never answered.
    Crash(i32),
    /// `!kill SIGNAL`: the process ends itself with this signal.
    Kill(Signal),
    /// `!exit-after CODE`: the process exits with CODE right after the prompt was answered.
    ExitAfter(i32),
    /// `!hang`: waits until cancelled; in a script with `!hang hard` the turn notices no cancel at all.
    Hang(bool),
    /// `!update-after-response [TEXT]`: updates (usage, title, commands, and a message when TEXT is given) that follow
    /// the answer of the prompt.
    UpdateAfterResponse(String),

    /// `!sleep MS`: waits that long, or until cancelled.
    Sleep(Duration),
    /// `!gate NAME`: waits until the collector opens the gate of that name, or until cancelled.
    Gate(String),
    /// `!await-steer`: waits until a steered text has arrived, or until cancelled.
    AwaitSteer,

    /// `!permission TITLE KIND:ID,... [no-input] [no-kind] [xN]`: asks for permission and says what came back.
    Permission(Permission),
    /// `!unknown-method [METHOD] [JSON]`: a request to the client; says what came back.
    UnknownMethod(String, String),

    /// `!garbage N`: N lines that are not JSON.
    Garbage(u32),
    /// `!bigline MIB [KIND]`: one line of that size.
    BigLine(usize, BigLine),
    /// `!flood MIB`: that many bytes without a line end.
    Flood(usize),
    /// `!invalid-utf8 line|text`: bytes that are not UTF-8, as a line of their own or inside a message's text.
    InvalidUtf8(bool),
    /// `!unknown-update`: an update of a kind no client knows.
    UnknownUpdate,
    /// `!unknown-content`: a message chunk with a content type no client knows.
    UnknownContent,
    /// `!unknown-notification`: a notification no client knows.
    UnknownNotification,
    /// `!raw TEXT`: this line on stdout as it is; `{session}` becomes the session id.
    Raw(String),
    /// `!stderr TEXT`: this line on stderr.
    Stderr(String),
    /// `!stderr-fill BYTES`: one line of that size on stderr.
    StderrFill(usize),
    /// `!close-stdout`: stdout ends, the process goes on.
    CloseStdout,

    /// `!cwd`: says the process's working directory.
    Cwd,
    /// `!env [NAME]`: says one variable, or all of them.
    Env(Option<String>),
    /// `!argv`: says the arguments as JSON.
    Argv,
    /// `!ids`: says user, group and process ids as JSON.
    Ids,
    /// `!read PATH`: says the content of a file, or the error.
    Read(String),
    /// `!write PATH TEXT`: writes a file; the turn fails when that fails.
    Write(String, String),
    /// `!write-noise PATH MIB`: writes a file of that size that no compression makes smaller; the turn fails when that fails.
    WriteNoise(String, usize),
    /// `!session`: says what the client sent to open this session, as JSON.
    Session,
    /// `!client`: says what the client sent with `initialize`, as JSON.
    Client,
    /// `!history`: says how many turns this session remembers from before this one.
    History,

    /// `!setsid SECONDS|forever [stamp[:MS]] [pipe] [ignore-term] [same-session]`: leaves a process behind.
    Stray(Stray),
    /// `!stamp MS [ADDR]`: sends a stamp to the collector this often until the process is gone.
    Stamp(Duration, Option<String>),
    /// `!memory MIB`: takes that much memory and touches it.
    Memory(usize),
    /// `!report TEXT`: sends a line of the kind `report` to the collector.
    Report(String),
    /// `!repeat N STEP`: the step N times.
    Repeat(u32, Box<Step>),
}

/// Where a tool call ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolStatus {
    /// Announced only.
    Pending,
    /// Started and left so, as by an agent whose tool hangs.
    InProgress,
    /// Started and done.
    Completed,
    /// Started and failed.
    Failed,
}

/// What a big line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BigLine {
    /// An extension notification that a client ignores.
    Notification,
    /// A message chunk, so that the text counts as output.
    Message,
    /// A thought chunk.
    Thought,
    /// Not JSON.
    Garbage,
}

/// What `!permission` asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permission {
    /// The title of the tool call.
    pub title: String,
    /// Kind and id of each option, in the order they are offered.
    pub options: Vec<(String, String)>,
    /// Whether the tool call says what it would run (`rawInput`); some agents leave it out.
    pub input: bool,
    /// Whether the tool call names its kind; some agents leave it out.
    pub kind: bool,
    /// How many requests are open at once.
    pub count: usize,
}

/// What `!setsid` leaves behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stray {
    /// How long the process lives; `None` is [`FOREVER`](crate::processes::FOREVER).
    pub lifetime: Option<Duration>,
    /// How often it sends a stamp to the collector; `None` is never.
    pub stamp: Option<Duration>,
    /// Whether it keeps the agent's stdout and stderr open.
    pub pipe: bool,
    /// Whether it outlives SIGTERM.
    pub ignore_term: bool,
    /// Whether it stays in the agent's session and process group.
    pub same_session: bool,
}

/// Why a text is no script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptError {
    /// The line as written.
    pub line: String,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for ScriptError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "`{}`: {}", self.line, self.reason)
    }
}

impl std::error::Error for ScriptError {}

/// Name and arguments of every step, one usable example each. The README is checked against it.
pub const EXAMPLES: &[&str] = &[
    "say TEXT",
    "echo",
    "chunks 3 TEXT",
    "stream 10 100 TEXT",
    "fill 1024 UNIT",
    "think TEXT",
    "message-ids on",
    "no-message",
    "image 16",
    "audio 16",
    "resource file:///notes.txt TEXT",
    "link file:///notes.txt",
    "plan look:completed,fix:in_progress,test",
    "tool NAME completed",
    "usage {\"used\": 1, \"size\": 2}",
    "mode plan",
    "title TEXT",
    "commands",
    "other-session-id ID",
    "stop end_turn",
    "error -32603 TEXT",
    "crash 3",
    "kill KILL",
    "exit-after 1",
    "hang hard",
    "update-after-response TEXT",
    "sleep 100",
    "gate NAME",
    "await-steer",
    "permission TITLE allow_once:yes,reject_once:no",
    "unknown-method fs/read_text_file {\"path\": \"/x\"}",
    "garbage 10",
    "bigline 12 message",
    "flood 30",
    "invalid-utf8 text",
    "unknown-update",
    "unknown-content",
    "unknown-notification",
    "raw TEXT",
    "stderr TEXT",
    "stderr-fill 8192",
    "close-stdout",
    "cwd",
    "env HOME",
    "argv",
    "ids",
    "read /etc/hostname",
    "write /workspace/x TEXT",
    "session",
    "client",
    "history",
    "setsid forever stamp:100 pipe ignore-term",
    "stamp 100 127.0.0.1:9",
    "memory 64",
    "report TEXT",
    "repeat 3 !say TEXT",
];

/// The steps of a text, or `None` when no line of it starts with `!`.
///
/// # Errors
/// The first line that is no step.
pub fn parse(text: &str) -> Result<Option<Vec<Step>>, ScriptError> {
    let mut steps = None;
    for line in text.lines().map(str::trim) {
        if let Some(step) = line.strip_prefix('!') {
            let step =
                parse_step(step).map_err(|reason| ScriptError { line: line.chars().take(200).collect(), reason })?;
            steps.get_or_insert_with(Vec::new).push(step);
        }
    }
    Ok(steps)
}

/// A text of exactly `bytes` bytes: `unit` repeated, cut on a character boundary and completed with `.`.
///
/// Public so that a test can compute the same text and its digest.
#[must_use]
pub fn fill(bytes: usize, unit: &str) -> String {
    let unit = if unit.is_empty() { "x" } else { unit };
    let mut text = String::with_capacity(bytes);
    'full: loop {
        for character in unit.chars() {
            if text.len() + character.len_utf8() > bytes {
                break 'full;
            }
            text.push(character);
        }
    }
    while text.len() < bytes {
        text.push('.');
    }
    text
}

fn parse_step(line: &str) -> Result<Step, String> {
    let mut words = Words(line);
    let name = words.word("a step")?;
    let step = match name.as_str() {
        "say" => Step::Say(words.text()?),
        "echo" => Step::Echo,
        "chunks" => Step::Chunks(words.parsed("a number of chunks")?, words.text()?),
        "stream" => Step::Stream(words.parsed("a number of chunks")?, words.millis()?, words.text()?),
        "fill" => Step::Fill(words.parsed("a number of bytes")?, words.text()?),
        "think" => Step::Think(words.text()?),
        "message-ids" => Step::MessageIds(words.choice("on or off", &[("on", true), ("off", false)])?),
        "no-message" => Step::NoMessage,
        "image" => Step::Image(words.parsed_or(16)?),
        "audio" => Step::Audio(words.parsed_or(16)?),
        "resource" => Step::Resource(words.word("a URI")?, words.text()?),
        "link" => Step::Link(words.word("a URI")?),
        "plan" => Step::Plan(plan(&words.text()?)?),
        "tool" => Step::Tool(words.word("a tool's name")?, words.optional(ToolStatus::Completed, tool_status)?),
        "usage" => Step::Usage(words.members()?),
        "mode" => Step::Mode(words.word("a mode")?),
        "title" => Step::Title(words.text()?),
        "commands" => Step::Commands,
        "other-session-id" => Step::OtherSessionId(words.optional_word()?.unwrap_or_else(|| "someone-elses".into())),

        "stop" => Step::Stop(words.word("a stop reason")?, words.members()?),
        "error" => Step::Error(words.parsed("an error code")?, words.text()?),
        "crash" => Step::Crash(words.parsed("an exit code")?),
        "kill" => Step::Kill(signal(&words.word("a signal")?)?),
        "exit-after" => Step::ExitAfter(words.parsed("an exit code")?),
        "hang" => Step::Hang(words.optional(false, |word| match word {
            "hard" => Ok(true),
            _ => Err(format!("`{word}` is not `hard`")),
        })?),
        "update-after-response" => Step::UpdateAfterResponse(words.text()?),

        "sleep" => Step::Sleep(words.millis()?),
        "gate" => Step::Gate(words.word("a gate's name")?),
        "await-steer" => Step::AwaitSteer,

        "permission" => Step::Permission(permission(&mut words)?),
        "unknown-method" => Step::UnknownMethod(
            words.optional_word()?.unwrap_or_else(|| "scripted/unknown".into()),
            words.take_rest().to_string(),
        ),

        "garbage" => Step::Garbage(words.parsed("a number of lines")?),
        "bigline" => Step::BigLine(words.parsed("a number of MiB")?, words.optional(BigLine::Notification, big_line)?),
        "flood" => Step::Flood(words.parsed("a number of MiB")?),
        "invalid-utf8" => Step::InvalidUtf8(words.optional(false, |word| match word {
            "line" => Ok(false),
            "text" => Ok(true),
            _ => Err(format!("`{word}` is neither `line` nor `text`")),
        })?),
        "unknown-update" => Step::UnknownUpdate,
        "unknown-content" => Step::UnknownContent,
        "unknown-notification" => Step::UnknownNotification,
        "raw" => Step::Raw(words.take_rest().to_string()),
        "stderr" => Step::Stderr(words.text()?),
        "stderr-fill" => Step::StderrFill(words.parsed("a number of bytes")?),
        "close-stdout" => Step::CloseStdout,

        "cwd" => Step::Cwd,
        "env" => Step::Env(words.optional_word()?),
        "argv" => Step::Argv,
        "ids" => Step::Ids,
        "read" => Step::Read(words.word("a path")?),
        "write" => Step::Write(words.word("a path")?, words.text()?),
        "write-noise" => Step::WriteNoise(words.word("a path")?, words.parsed("a number of MiB")?),
        "session" => Step::Session,
        "client" => Step::Client,
        "history" => Step::History,

        "setsid" => Step::Stray(stray(&mut words)?),
        "stamp" => Step::Stamp(words.millis()?, words.optional_word()?),
        "memory" => Step::Memory(words.parsed("a number of MiB")?),
        "report" => Step::Report(words.text()?),
        "repeat" => {
            let times = words.parsed("a number of times")?;
            let step = words.take_rest();
            let step = step.strip_prefix('!').unwrap_or(step);
            Step::Repeat(times, Box::new(parse_step(step)?))
        }
        _ => {
            let known: Vec<_> = EXAMPLES.iter().filter_map(|example| example.split(' ').next()).collect();
            return Err(format!("no such step; known are {}", known.join(" ")));
        }
    };
    words.end()?;
    Ok(step)
}

/// The rest of a line, taken word by word.
struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    fn optional_word(&mut self) -> Result<Option<String>, String> {
        let line = self.0.trim_start();
        if line.is_empty() {
            self.0 = line;
            return Ok(None);
        }
        if let Some(quoted) = line.strip_prefix('"') {
            let (word, rest) = quoted.split_once('"').ok_or("a quote is not closed")?;
            self.0 = rest;
            return Ok(Some(word.to_string()));
        }
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        self.0 = rest;
        Ok(Some(word.to_string()))
    }

    fn word(&mut self, what: &str) -> Result<String, String> {
        self.optional_word()?.ok_or_else(|| format!("{what} is missing"))
    }

    fn parsed<T: FromStr>(&mut self, what: &str) -> Result<T, String> {
        let word = self.word(what)?;
        word.parse().map_err(|_| format!("`{word}` is not {what}"))
    }

    fn parsed_or(&mut self, default: usize) -> Result<usize, String> {
        self.optional(default, |word| word.parse().map_err(|_| format!("`{word}` is not a number")))
    }

    fn millis(&mut self) -> Result<Duration, String> {
        self.parsed("a number of milliseconds").map(Duration::from_millis)
    }

    fn optional<T>(&mut self, default: T, read: impl Fn(&str) -> Result<T, String>) -> Result<T, String> {
        self.optional_word()?.map_or(Ok(default), |word| read(&word))
    }

    fn choice<T: Copy>(&mut self, what: &str, known: &[(&str, T)]) -> Result<T, String> {
        let word = self.word(what)?;
        known
            .iter()
            .find(|(name, _)| *name == word)
            .map(|(_, value)| *value)
            .ok_or_else(|| format!("`{word}` is not {what}"))
    }

    fn take_rest(&mut self) -> &'a str {
        std::mem::take(&mut self.0).trim_start()
    }

    /// The rest of the line, escapes replaced.
    fn text(&mut self) -> Result<String, String> {
        unescape(self.take_rest())
    }

    /// The rest of the line as the inside of a JSON object, which may be anything; empty when the line ends here.
    fn members(&mut self) -> Result<String, String> {
        let rest = self.take_rest();
        if rest.is_empty() {
            return Ok(String::new());
        }
        rest.strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'))
            .map(|members| members.trim().to_string())
            .ok_or_else(|| "a JSON object in braces is expected".into())
    }

    fn end(&mut self) -> Result<(), String> {
        match self.take_rest() {
            "" => Ok(()),
            rest => Err(format!("`{rest}` is too much")),
        }
    }
}

fn unescape(text: &str) -> Result<String, String> {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        if character != '\\' {
            plain.push(character);
            continue;
        }
        match rest.next() {
            Some('n') => plain.push('\n'),
            Some('r') => plain.push('\r'),
            Some('t') => plain.push('\t'),
            Some('0') => plain.push('\0'),
            Some('\\') => plain.push('\\'),
            Some('u') => {
                let code: String = rest.by_ref().skip(1).take_while(|character| *character != '}').collect();
                plain.push(
                    u32::from_str_radix(&code, 16)
                        .ok()
                        .and_then(char::from_u32)
                        .ok_or_else(|| format!("`\\u{{{code}}}` is no character"))?,
                );
            }
            other => return Err(format!("`\\{}` is no escape", other.map(String::from).unwrap_or_default())),
        }
    }
    Ok(plain)
}

/// A signal by its name, with or without `SIG`.
///
/// # Errors
/// When there is no such signal.
pub fn signal(name: &str) -> Result<Signal, String> {
    let full = if name.starts_with("SIG") { name.to_string() } else { format!("SIG{name}") };
    Signal::from_str(&full).map_err(|_| format!("`{name}` is no signal"))
}

fn plan(text: &str) -> Result<Vec<(String, String)>, String> {
    text.split(',')
        .map(|entry| {
            let (content, status) = entry.trim().split_once(':').unwrap_or((entry.trim(), "pending"));
            match (content, status) {
                ("", _) => Err("an entry of the plan is empty".to_string()),
                (_, "pending" | "in_progress" | "completed") => Ok((content.to_string(), status.to_string())),
                _ => Err(format!("`{status}` is no status of a plan's entry")),
            }
        })
        .collect()
}

fn tool_status(word: &str) -> Result<ToolStatus, String> {
    match word {
        "pending" => Ok(ToolStatus::Pending),
        "in_progress" => Ok(ToolStatus::InProgress),
        "completed" => Ok(ToolStatus::Completed),
        "failed" => Ok(ToolStatus::Failed),
        _ => Err(format!("`{word}` is no status of a tool call")),
    }
}

fn big_line(word: &str) -> Result<BigLine, String> {
    match word {
        "notification" => Ok(BigLine::Notification),
        "message" => Ok(BigLine::Message),
        "thought" => Ok(BigLine::Thought),
        "garbage" => Ok(BigLine::Garbage),
        _ => Err(format!("`{word}` is no kind of line")),
    }
}

fn permission(words: &mut Words<'_>) -> Result<Permission, String> {
    let mut permission = Permission {
        title: words.word("a title")?,
        options: words
            .word("options as kind:id,kind:id")?
            .split(',')
            .map(|option| {
                option
                    .split_once(':')
                    .map(|(kind, id)| (kind.to_string(), id.to_string()))
                    .ok_or_else(|| format!("`{option}` is not kind:id"))
            })
            .collect::<Result<_, _>>()?,
        input: true,
        kind: true,
        count: 1,
    };
    while let Some(word) = words.optional_word()? {
        match word.as_str() {
            "no-input" => permission.input = false,
            "no-kind" => permission.kind = false,
            _ => {
                permission.count = word
                    .strip_prefix('x')
                    .and_then(|count| count.parse().ok())
                    .filter(|count| *count > 0)
                    .ok_or_else(|| format!("`{word}` is neither no-input, no-kind nor xN"))?;
            }
        }
    }
    Ok(permission)
}

/// How often a process stamps when it is not said: often enough that a test sees the end of it within a second.
const STAMP_EVERY: Duration = Duration::from_millis(100);

fn stray(words: &mut Words<'_>) -> Result<Stray, String> {
    let lifetime = match words.word("a number of seconds or `forever`")?.as_str() {
        "forever" => None,
        seconds => Some(Duration::from_secs(
            seconds.parse().map_err(|_| format!("`{seconds}` is neither a number of seconds nor `forever`"))?,
        )),
    };
    let mut stray = Stray { lifetime, stamp: None, pipe: false, ignore_term: false, same_session: false };
    while let Some(word) = words.optional_word()? {
        match word.as_str() {
            "stamp" => stray.stamp = Some(STAMP_EVERY),
            "pipe" => stray.pipe = true,
            "ignore-term" => stray.ignore_term = true,
            "same-session" => stray.same_session = true,
            _ => {
                let every = word.strip_prefix("stamp:").and_then(|every| every.parse().ok());
                stray.stamp = Some(Duration::from_millis(every.ok_or_else(|| format!("`{word}` is no option"))?));
            }
        }
    }
    Ok(stray)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn one(line: &str) -> Step {
        parse(line).expect("a script").expect("a step").remove(0)
    }

    #[rstest]
    #[case("!say hello there", Step::Say("hello there".into()))]
    #[case("!say", Step::Say(String::new()))]
    #[case(r"!say a\nb\u{1b}[31m\\", Step::Say("a\nb\u{1b}[31m\\".into()))]
    #[case("  !sleep 20  ", Step::Sleep(Duration::from_millis(20)))]
    #[case("!chunks 3 a b", Step::Chunks(3, "a b".into()))]
    #[case("!fill 4", Step::Fill(4, String::new()))]
    #[case("!hang", Step::Hang(false))]
    #[case("!hang hard", Step::Hang(true))]
    #[case("!stop end_turn", Step::Stop("end_turn".into(), String::new()))]
    #[case("!stop tired {\"usage\": NaN}", Step::Stop("tired".into(), "\"usage\": NaN".into()))]
    #[case("!usage {\"used\": -1, \"size\": 1e400}", Step::Usage("\"used\": -1, \"size\": 1e400".into()))]
    #[case("!error -32000 no luck", Step::Error(-32000, "no luck".into()))]
    #[case("!kill SEGV", Step::Kill(Signal::SIGSEGV))]
    #[case("!kill SIGTERM", Step::Kill(Signal::SIGTERM))]
    #[case("!tool grep", Step::Tool("grep".into(), ToolStatus::Completed))]
    #[case("!tool grep in_progress", Step::Tool("grep".into(), ToolStatus::InProgress))]
    #[case("!plan a:completed,b", Step::Plan(vec![("a".into(), "completed".into()), ("b".into(), "pending".into())]))]
    #[case("!bigline 12", Step::BigLine(12, BigLine::Notification))]
    #[case("!env", Step::Env(None))]
    #[case("!env HOME", Step::Env(Some("HOME".into())))]
    #[case("!invalid-utf8", Step::InvalidUtf8(false))]
    #[case("!invalid-utf8 text", Step::InvalidUtf8(true))]
    #[case("!raw {\"id\":\\n}", Step::Raw("{\"id\":\\n}".into()))]
    #[case("!repeat 2 !say x", Step::Repeat(2, Box::new(Step::Say("x".into()))))]
    #[case("!stamp 100 1.2.3.4:5", Step::Stamp(Duration::from_millis(100), Some("1.2.3.4:5".into())))]
    fn a_line_is_one_step(#[case] line: &str, #[case] step: Step) {
        assert_eq!(one(line), step);
    }

    #[test]
    fn permission_keeps_the_order_of_its_options() {
        let Step::Permission(permission) = one("!permission \"rm -rf /\" allow_always:a,reject_once:b no-input x2")
        else {
            panic!("a permission step")
        };
        assert_eq!(permission.title, "rm -rf /");
        assert_eq!(permission.options, [("allow_always".into(), "a".into()), ("reject_once".into(), "b".into())]);
        assert!(!permission.input && permission.kind);
        assert_eq!(permission.count, 2);
    }

    #[test]
    fn stray_takes_its_options_in_any_order() {
        let Step::Stray(stray) = one("!setsid 3 ignore-term stamp:50") else { panic!("a stray step") };
        let expected = Stray {
            lifetime: Some(Duration::from_secs(3)),
            stamp: Some(Duration::from_millis(50)),
            pipe: false,
            ignore_term: true,
            same_session: false,
        };
        assert_eq!(stray, expected);
    }

    #[rstest]
    #[case("!sya hello", "no such step")]
    #[case("!sleep", "milliseconds is missing")]
    #[case("!sleep soon", "`soon` is not")]
    #[case("!hang soft", "`soft`")]
    #[case("!echo twice", "`twice` is too much")]
    #[case("!kill NOTHING", "is no signal")]
    #[case("!permission title allow_once", "is not kind:id")]
    #[case("!usage 12", "braces")]
    #[case(r"!say \q", "is no escape")]
    #[case("!say \\u{zz}", "is no character")]
    #[case("!permission \"open", "quote")]
    #[case("!repeat 3 !nope", "no such step")]
    #[case("!", "a step is missing")]
    fn a_mistake_is_named(#[case] line: &str, #[case] part: &str) {
        let error = parse(&format!("prose\n{line}")).expect_err("no script");
        assert!(error.to_string().contains(part), "{error}");
        assert_eq!(error.line, line);
    }

    #[test]
    fn prose_is_no_script_and_is_skipped_in_one() {
        assert_eq!(parse("do this!\nand that ! please"), Ok(None));
        assert_eq!(parse(""), Ok(None));
        let steps = parse("Please:\n!say a\nthen\n!say b\n").expect("a script").expect("steps");
        assert_eq!(steps, [Step::Say("a".into()), Step::Say("b".into())]);
    }

    #[test]
    fn every_example_is_a_step_and_in_the_readme() {
        let readme = include_str!("../README.md");
        for example in EXAMPLES {
            one(&format!("!{example}"));
            let name = example.split(' ').next().unwrap_or_default();
            let documented = readme.contains(&format!("`!{name}`")) || readme.contains(&format!("`!{name} "));
            assert!(documented, "!{name} is not in the README");
        }
    }

    #[rstest]
    #[case(0, "x", "")]
    #[case(3, "", "xxx")]
    #[case(5, "ab", "ababa")]
    #[case(5, "é", "éé.")]
    fn fill_is_exact_and_never_splits_a_character(#[case] bytes: usize, #[case] unit: &str, #[case] text: &str) {
        assert_eq!(fill(bytes, unit), text);
    }
}
