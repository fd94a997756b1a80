//! The worker's end of the link: one task that keeps a connection to the gateway, an outbox with the newest report, and
//! a queue of what the gateway says.

mod backoff;
mod client;
mod connection;
mod tls;

pub use client::{Link, LinkEvent};
