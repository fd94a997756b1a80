//! Where the worker finds what the operator put into its pod.

use anyhow::Context;
use std::{env, fs, path::PathBuf};
use subagent_link::{CONFIG_FILE, HOME_DIR, LINK_DIR, WorkerConfig};

/// Overrides the folder with the link's files, for workers outside a pod.
const LINK_DIR_VARIABLE: &str = "SUBAGENT_WORKER_LINK_DIR";
/// Overrides the spare home folder, for workers outside a pod.
const HOME_DIR_VARIABLE: &str = "SUBAGENT_WORKER_HOME_DIR";

/// Settings of one worker.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Who this worker is and where it connects to.
    pub worker: WorkerConfig,
    /// Folder with the link's files.
    pub link_dir: PathBuf,
    /// Folder that becomes HOME when the container has none.
    pub home_dir: PathBuf,
}

impl Settings {
    /// Reads the configuration.
    ///
    /// # Errors
    /// When the file is missing or not a [`WorkerConfig`]; the message names it.
    pub fn load() -> anyhow::Result<Self> {
        let folder = |variable, default: &str| env::var_os(variable).map_or_else(|| default.into(), PathBuf::from);
        let link_dir: PathBuf = folder(LINK_DIR_VARIABLE, LINK_DIR);
        let path = link_dir.join(CONFIG_FILE);
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let worker = serde_json::from_str(&text).with_context(|| format!("reading {}", path.display()))?;
        Ok(Self { worker, link_dir, home_dir: folder(HOME_DIR_VARIABLE, HOME_DIR) })
    }
}
