//! A scripted ACP agent: a published agent's stand-in that does what its prompt says, also everything an agent must not.
//!
//! The README beside this crate lists all steps and knobs. Tests of other crates use [`collector`] to see what reached
//! the agent and [`binary`] to find the program.

pub mod agent;
pub mod binary;
pub mod collector;
pub mod processes;
pub mod reporter;
pub mod script;
pub mod sessions;
pub mod stages;
pub mod steps;
pub mod turn;
pub mod wire;
