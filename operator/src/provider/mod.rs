//! Providers: checked, tried against the API server, and kept as revisions.

pub mod controller;
pub mod revision;
pub mod status;
pub mod sweep;
pub mod validate;
