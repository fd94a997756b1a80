//! The real worker binary as a host process, between a small gateway that speaks the real link over TLS and the scripted
//! agent. Each file is a chapter; [`harness`] and [`gateway`] are what they stand on.

#![allow(clippy::unwrap_used, reason = "a test fails where something is missing")]

mod gateway;
mod harness;

mod activation;
mod cancel;
mod checkpoints;
mod continuation;
mod failures;
mod link;
mod noise;
mod outputs;
mod permissions;
mod probe;
mod processes;
mod results;
mod sessions;
mod turns;
