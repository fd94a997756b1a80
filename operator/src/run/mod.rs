//! Runs: from acceptance to the proof that they stopped.
//!
//! One reconcile is: dereference (all reads) -> plan (pure, with validate inside) -> build (pure) -> apply (writes), in
//! a loop until there is nothing to do. The status of each step is computed purely and written with the resourceVersion
//! it was computed from.

pub mod activation;
pub mod after_end;
pub mod apply;
pub mod archiving;
pub mod controller;
pub mod dereference;
pub mod descendants;
pub mod events;
pub mod lineage;
pub mod orphans;
pub mod outcome;
pub mod plan;
pub mod prompt;
pub mod status;
pub mod steers;
pub mod validate;

#[cfg(test)]
mod archiving_tests;
#[cfg(test)]
mod lineage_tests;
#[cfg(test)]
pub(crate) mod plan_tests;
