//! What a run leaves behind beside its status: immutable ConfigMaps that it owns, so that they go with it.
//!
//! Names are deterministic and contents never change, so a write that is repeated, by whatever replica, meets its own
//! object. What has the name and is not this run's is never adopted (pitfall D2). Each object says in annotations what
//! the whole content is, so that a reader, also a later process, can prove that it has all of it.
//!
//! - `config_map`: builds and stores one.
//! - `result`: a text in chunks, of a result or of the output of a turn, and the proof that all of them are there.
//! - `transcript`: the compressed tail of a transcript.
//! - `log`: that tail, taken from a pod's log.

mod config_map;
pub mod log;
pub mod result;
pub mod transcript;

pub use config_map::{ArchiveError, Owner, Unstored, is_of};
