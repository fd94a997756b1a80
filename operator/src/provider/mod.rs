//! Providers: checked, tried against the API server, kept as revisions, and their agents probed.

pub mod capabilities;
pub mod controller;
pub mod for_worker;
pub mod orphans;
pub mod probe;
mod probing;
pub mod revision;
pub mod status;
pub mod sweep;
pub mod validate;
