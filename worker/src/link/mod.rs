//! The worker's end of the link: one task that keeps a connection to the gateway, an outbox with the newest report, and
//! a queue of what the gateway says. Beside it, uploads of what fits no report.

mod backoff;
mod client;
mod connection;
mod tls;
mod upload;

pub use backoff::Backoff;
pub use client::{Link, LinkEvent};
pub use upload::{Content, Failure, put};
