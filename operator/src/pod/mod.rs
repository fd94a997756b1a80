//! Worker pods: what a template may say, the pod that is built from it, and what a pod's status proves.

pub mod build;
pub mod observe;
pub mod template;

pub use build::{Worker, build};
pub use observe::{Observed, Proof, StartProblem};
