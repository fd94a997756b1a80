//! What the end-to-end tests share: the installed chart, a namespace for each test, builders of objects, waiting, a
//! collector that agents in pods report to, and the audit log.
//!
//! `tests/e2e/run` starts the local cluster, loads the images and runs the tests; `cargo test -p e2e-tests` runs them
//! against whatever cluster `KUBECONFIG` and `SUBAGENT_CLUSTER_DIR` name. They can be run again and again against one
//! cluster: everything they make is in namespaces of their own, which they remove.

pub mod audit;
pub mod budget;
pub mod children;
pub mod cluster;
pub mod collector;
pub mod commands;
pub mod namespace;
pub mod objects;
pub mod operator;
pub mod processes;
pub mod published;
pub mod snapshot;
pub mod status;

pub use collector::{collector, gate};
pub use namespace::{TestNamespace, in_namespace};
pub use objects::{ScriptedProvider, run, run_with};
pub use status::RunView;
