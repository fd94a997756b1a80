//! What the agent remembers of its conversations, in memory or as files that outlive the process.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

/// Who said something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaker {
    /// The client, with a prompt.
    User,
    /// The agent, with all messages of one turn.
    Agent,
}

/// One thing that was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// By whom.
    pub speaker: Speaker,
    /// What.
    pub text: String,
}

/// One conversation.
#[derive(Debug, Clone, Default)]
pub struct Session {
    /// What was said before now.
    pub history: Vec<Said>,
    /// The parameters of the request that opened it here, and which request that was.
    pub opened: Value,
    /// The current mode.
    pub mode: String,
    /// The model that was chosen.
    pub model: Option<String>,
    /// The id its updates carry instead of its own.
    pub updates_as: Option<String>,
}

/// The mode a session starts in.
pub const DEFAULT_MODE: &str = "default";
/// The modes a session can be in.
pub const MODES: &[&str] = &[DEFAULT_MODE, "plan", "bypass"];

/// The models a session can use, the first one unless another is chosen.
pub const MODELS: &[&str] = &["small", "large"];

/// All conversations this process has open, and with a folder those of earlier processes.
#[derive(Debug, Default)]
pub struct Sessions {
    folder: Option<PathBuf>,
    open: Mutex<HashMap<String, Session>>,
}

impl Sessions {
    /// Sessions kept in that folder, or in memory alone.
    #[must_use]
    pub fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, open: Mutex::default() }
    }

    /// Opens a new session under that id.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn create(&self, id: &str, opened: Value) -> io::Result<()> {
        if let Some(file) = self.file(id) {
            if let Some(folder) = file.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::write(file, "")?;
        }
        self.insert(id, Vec::new(), opened);
        Ok(())
    }

    /// Opens a session of the past; `None` when there is no such session.
    ///
    /// # Errors
    /// When its file cannot be read or is damaged.
    pub fn open(&self, id: &str, opened: Value) -> io::Result<Option<Vec<Said>>> {
        let history = match self.file(id) {
            Some(file) => match fs::read_to_string(file) {
                Ok(text) => read_history(&text)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            },
            None => match self.lock().get(id) {
                Some(session) => session.history.clone(),
                None => return Ok(None),
            },
        };
        self.insert(id, history.clone(), opened);
        Ok(Some(history))
    }

    /// Remembers what was said; does nothing in a session that is not open.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn remember(&self, id: &str, speaker: Speaker, text: &str) -> io::Result<()> {
        if let Some(session) = self.lock().get_mut(id) {
            session.history.push(Said { speaker, text: text.into() });
        }
        let Some(file) = self.file(id) else { return Ok(()) };
        let role = match speaker {
            Speaker::User => "user",
            Speaker::Agent => "agent",
        };
        let mut file = OpenOptions::new().append(true).create(true).open(file)?;
        // One write, so that a kill leaves the line whole or absent.
        file.write_all(format!("{}\n", json!({"role": role, "text": text})).as_bytes())?;
        file.sync_data()
    }

    /// The session as it is now, if it is open.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<Session> {
        self.lock().get(id).cloned()
    }

    /// Changes an open session.
    pub fn change(&self, id: &str, change: impl FnOnce(&mut Session)) {
        if let Some(session) = self.lock().get_mut(id) {
            change(session);
        }
    }

    /// Closes a session; its file stays.
    pub fn close(&self, id: &str) -> bool {
        self.lock().remove(id).is_some()
    }

    fn insert(&self, id: &str, history: Vec<Said>, opened: Value) {
        let session = Session { history, opened, mode: DEFAULT_MODE.into(), model: None, updates_as: None };
        self.lock().insert(id.to_string(), session);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Session>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file of a session. The id comes from the client, so everything that could leave the folder is replaced.
    fn file(&self, id: &str) -> Option<PathBuf> {
        let name: String = id.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
        self.folder.as_ref().map(|folder| folder.join(format!("{name}.jsonl")))
    }
}

fn read_history(text: &str) -> io::Result<Vec<Said>> {
    text.lines()
        .map(|line| {
            let said: Value = serde_json::from_str(line)?;
            let speaker = match said["role"].as_str() {
                Some("user") => Speaker::User,
                Some("agent") => Speaker::Agent,
                _ => return Err(io::Error::other(format!("no role in `{line}`"))),
            };
            Ok(Said { speaker, text: said["text"].as_str().unwrap_or_default().into() })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(speaker: Speaker, text: &str) -> Said {
        Said { speaker, text: text.into() }
    }

    #[test]
    fn a_session_with_a_folder_outlives_its_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = Sessions::new(Some(folder.path().join("deep")));
        first.create("s-1", Value::Null).expect("created");
        first.remember("s-1", Speaker::User, "hi\nthere").expect("written");
        first.remember("s-1", Speaker::Agent, "ho").expect("written");

        let second = Sessions::new(Some(folder.path().join("deep")));
        let history = second.open("s-1", Value::Null).expect("readable").expect("known");
        assert_eq!(history, [said(Speaker::User, "hi\nthere"), said(Speaker::Agent, "ho")]);
        assert_eq!(second.open("s-2", Value::Null).expect("readable"), None);
    }

    #[test]
    fn a_session_in_memory_is_known_until_it_is_closed() {
        let sessions = Sessions::default();
        sessions.create("s", Value::Null).expect("created");
        sessions.remember("s", Speaker::User, "hi").expect("kept");
        assert_eq!(sessions.open("s", Value::Null).expect("fine"), Some(vec![said(Speaker::User, "hi")]));
        assert!(sessions.close("s") && !sessions.close("s"));
        assert_eq!(sessions.open("s", Value::Null).expect("fine"), None);
    }

    #[test]
    fn a_damaged_file_is_an_error_and_no_empty_session() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("s.jsonl"), "{\"role\":\"us").expect("written");
        let sessions = Sessions::new(Some(folder.path().into()));
        assert!(sessions.open("s", Value::Null).is_err());
    }

    #[test]
    fn an_id_cannot_leave_the_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let sessions = Sessions::new(Some(folder.path().join("inside")));
        sessions.create("../outside", Value::Null).expect("created");
        assert!(folder.path().join("inside/___outside.jsonl").exists());
    }
}
