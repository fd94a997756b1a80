//! The worker's end of the link: one task that keeps a connection to the gateway, an outbox with the newest report, and
//! a queue of what the gateway says. Beside it, what fits no report: uploads of results, and checkpoints both ways.

mod backoff;
mod checkpoint;
mod client;
mod connection;
mod request;
mod tls;
mod upload;

pub use backoff::Backoff;
pub use checkpoint::{Absent, fetch, store};
pub use client::{Link, LinkEvent};
pub use upload::{Content, Failure, put};
