//! What the integration tests share: a connection to a real API server with the definitions installed, a namespace for
//! each test, builders of objects, and waiting.
//!
//! `tests/integration/run` starts the API server and says where it is: `KUBECONFIG` and `SUBAGENT_AUDIT_LOG`. Test
//! binaries run in parallel against the same one: everything cluster-wide is installed idempotently or under a name of
//! its own.

pub mod api_server;
pub mod chart;
pub mod commands;
pub mod namespace;
pub mod objects;
pub mod own_api_server;
pub mod refusal;
pub mod schema;
pub mod snapshot;

pub use api_server::{client, client_as, config, config_as};
pub use namespace::TestNamespace;
pub use objects::{claim_spec, make_provider, make_run, make_subagent};
