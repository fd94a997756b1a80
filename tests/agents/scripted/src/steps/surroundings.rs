//! What an agent finds where it runs: directory, environment, files, the session it was given.

use nix::unistd::{getegid, geteuid, getpgrp, getpid, getppid, getsid};
use serde_json::{Value, json};
use std::{
    fs::File,
    io::{self, BufWriter, Write},
};

use super::Run;

/// Who this process is, in its own namespaces.
#[must_use]
pub fn ids() -> Value {
    json!({
        "uid": geteuid().as_raw(),
        "gid": getegid().as_raw(),
        "pid": getpid().as_raw(),
        "ppid": getppid().as_raw(),
        "pgid": getpgrp().as_raw(),
        "sid": getsid(None).map(nix::unistd::Pid::as_raw).unwrap_or_default(),
    })
}

/// Writes a file of random bytes (SplitMix64), the same for the same size.
pub fn write_noise(path: &str, mebibytes: usize) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut state = 0_u64;
    for _ in 0..mebibytes << 17 {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        file.write_all(&(mixed ^ (mixed >> 31)).to_le_bytes())?;
    }
    file.flush()
}

impl Run<'_> {
    pub(super) fn cwd(&mut self) {
        let text = match std::env::current_dir() {
            Ok(folder) => folder.display().to_string(),
            Err(error) => format!("error: {error}"),
        };
        self.fact(&text);
    }

    pub(super) fn env(&mut self, name: Option<&str>) {
        let shown = |name: &str, value: &std::ffi::OsStr| format!("{name}={}", value.to_string_lossy());
        let text = match name {
            Some(name) => {
                std::env::var_os(name).map_or_else(|| format!("{name} is not set"), |value| shown(name, &value))
            }
            None => {
                let mut all: Vec<_> =
                    std::env::vars_os().map(|(name, value)| shown(&name.to_string_lossy(), &value)).collect();
                all.sort();
                all.join("\n")
            }
        };
        self.fact(&text);
    }

    pub(super) fn read(&mut self, path: &str) {
        let text = match std::fs::read(path) {
            Ok(content) => String::from_utf8_lossy(&content).into_owned(),
            Err(error) => format!("error: {error}"),
        };
        self.fact(&text);
    }

    pub(super) fn opened(&mut self) {
        let session = self.agent.sessions.get(self.session).unwrap_or_default();
        let mut opened = session.opened;
        opened["mode"] = json!(session.mode);
        if let Some(model) = session.model {
            opened["model"] = json!(model);
        }
        self.fact(&opened.to_string());
    }
}
