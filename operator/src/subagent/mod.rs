//! Continuable children: their inbox, and the runs that activate them.
//!
//! One reconcile is: dereference (all reads) -> plan (pure, with validate, inbox and status inside) -> apply (writes), in a
//! loop until there is nothing to do. What becomes of messages is decided in `inbox` alone, stored in one guarded write, and
//! `placing` reads off that what is to be done to the run. What turns have left in ConfigMaps goes when they leave the list
//! (`outputs`).

pub mod apply;
pub mod controller;
pub mod counting;
pub mod dereference;
pub mod events;
pub mod inbox;
pub mod memory;
pub mod orphans;
pub mod outputs;
pub mod placing;
pub mod plan;
pub mod pruning;
pub mod session;
pub mod status;
pub mod trimming;
pub mod validate;
pub mod workspace;

#[cfg(test)]
pub(crate) mod plan_tests;
