//! The gateway against a real API server: real tokens, real TokenReviews, real admission of every status write. The
//! worker's side of the link is played here, message by message, so that it can also be late, wrong or hostile.

mod buckets;
mod certificates;
mod checkpoints;
mod continued;
mod election;
mod fencing;
mod inbox;
mod installation;
#[path = "../operator/programs.rs"]
mod programs;
mod replicas;
mod reports;
mod results;
mod stopping;
mod turns;
mod worker;
mod world;
