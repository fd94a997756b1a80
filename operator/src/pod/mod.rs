//! Worker pods: what a template may say, the pod that is built from it, what a pod's status proves, and what it
//! tells of a worker that is not heard of.

pub mod build;
pub mod observe;
pub mod standing;
pub mod template;

pub use build::{Probe, Worker, build, build_probe};
pub use observe::{Observed, Proof, StartProblem};
