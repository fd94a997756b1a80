//! The operator: controllers (leader only) and gateway (every replica).
//!
//! `ARCHITECTURE.md` tells the life of a run; each module here is one part of it.

pub mod announcements;
pub mod api;
pub mod archive;
pub mod context;
pub mod decoding;
pub mod gateway;
pub mod http;
pub mod lease;
pub mod metrics;
pub mod naming;
pub mod pki;
pub mod pod;
pub mod process;
pub mod provider;
pub mod run;
pub mod schema_subset;
pub mod session_store;
pub mod settings;
pub mod subagent;
pub mod uninstall;
pub mod watching;
