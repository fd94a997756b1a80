//! The agent as a process, driven over its pipes as a client would.

mod collecting;
mod driver;
mod noise;
mod processes;
mod sessions;
mod stages;
mod turns;
