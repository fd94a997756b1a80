//! The API of subagent-operator: resource types, conditions, reasons, labels. The one source of everything that crosses
//! a boundary by name.
//!
//! [`definitions`] gives the CustomResourceDefinitions as they are installed.

pub mod bounds;
pub mod conditions;
pub mod content;
mod definitions;
pub mod message;
pub mod names;
pub mod provider;
pub mod reasons;
pub mod report;
pub mod run;
pub mod run_status;
pub mod schemas;
pub mod subagent;
pub mod subagent_status;

pub use definitions::definitions;
pub use provider::{SubagentProvider, SubagentProviderSpec, SubagentProviderStatus};
pub use reasons::{Reason, StopReason};
pub use run::{SubagentRun, SubagentRunSpec};
pub use run_status::{Phase, SubagentRunStatus};
pub use subagent::{Subagent, SubagentSpec};
pub use subagent_status::{SubagentPhase, SubagentStatus};

/// API group of all resources.
pub const GROUP: &str = "subagents.dev";
/// Served and stored version.
pub const VERSION: &str = "v1alpha1";
