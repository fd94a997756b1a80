//! The scripted agent as a program: ACP on stdin and stdout.

use std::process::ExitCode;
use std::sync::Arc;

use scripted_agent::agent::Agent;
use scripted_agent::processes::{self, ORPHAN_MAKER_ARGUMENT, STRAY_ARGUMENT};
use scripted_agent::stages::Settings;

/// Exit code of a knob that makes no sense (EX_USAGE).
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some(STRAY_ARGUMENT) => {
            processes::live_as_stray(&arguments[1..]);
            return ExitCode::SUCCESS;
        }
        Some(ORPHAN_MAKER_ARGUMENT) => {
            let made = processes::make_orphan(&arguments[1..]);
            return if made.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        _ => {}
    }
    // Before the first thread, because threads inherit what is held here.
    processes::hold_signals();
    // Variables that are not UTF-8 are nobody's knob.
    let variables =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    match Settings::read(variables) {
        Ok(settings) => Arc::new(Agent::new(settings)).run(),
        Err(reason) => {
            eprintln!("scripted-agent: {reason}");
            ExitCode::from(USAGE)
        }
    }
}
