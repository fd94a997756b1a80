//! The worker's binary.

use scripted_agent::binary;
use std::{
    env,
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// The worker, built if it is not up to date. `SUBAGENT_WORKER_BINARY` names another one.
///
/// # Panics
/// When it cannot be built.
pub fn worker() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| match env::var_os("SUBAGENT_WORKER_BINARY") {
        Some(program) => program.into(),
        None => binary::build("subagent-worker"),
    })
}
