//! The runs: each with a script of its own and the text it must end with.

use crate::dice::Dice;
use e2e_tests::{ScriptedProvider, run};
use scripted_agent::script::fill;
use serde_json::json;
use std::net::SocketAddr;
use subagent_crds::SubagentRun;

/// A run to create.
pub struct Scripted {
    /// The object.
    pub run: SubagentRun,
    /// Its result when it completes.
    pub text: String,
}

/// A provider whose agents report every prompt, and stamp as long as they live. They take a moment for each step before
/// the prompt, so that kills meet those steps, too.
pub fn provider(collector: SocketAddr) -> ScriptedProvider {
    let label = "metadata.labels['subagents.dev/run']";
    ScriptedProvider::default().agent(json!({"env": [
        {"name": "SCRIPTED_AGENT_COLLECTOR", "value": collector.to_string()},
        {"name": "SCRIPTED_AGENT_TAG", "valueFrom": {"fieldRef": {"fieldPath": label}}},
        {"name": "SCRIPTED_AGENT_STAMP", "value": "200"},
        {"name": "SCRIPTED_AGENT_INITIALIZE", "value": "delay:200"},
        {"name": "SCRIPTED_AGENT_NEW", "value": "delay:200"},
    ]}))
}

/// A run by the dice: a few seconds of talk, then a tool, then the message that is the result.
pub fn roll(dice: &mut Dice, name: &str) -> Scripted {
    let (chunks, pause) = (1 + dice.below(12), 50 + dice.below(300));
    let talk = format!("!think about {name}\n!stream {chunks} {pause} {name}...");
    let (last, text) = match dice.below(4) {
        0 => {
            let bytes = 8_000 + dice.below(8_000) as usize;
            (format!("!fill {bytes} {name}-"), fill(bytes, &format!("{name}-")))
        }
        1 => (format!("!chunks 40 {name} {}", "x".repeat(400)), format!("{name} {}", "x".repeat(400))),
        _ => (format!("!say {name} is done"), format!("{name} is done")),
    };
    let prompt = format!("{name}\n{talk}\n!tool look completed\n!sleep {}\n{last}", dice.below(1500));
    Scripted { run: run(name, &prompt), text }
}
