//! Where the worker finds what the operator put into its pod.

use anyhow::Context;
use serde::de::DeserializeOwned;
use std::{env, fs, path::PathBuf};
use subagent_link::{AcpTransport, CONFIG_FILE, HOME_DIR, LINK_DIR, ProbeConfig, WorkerConfig};

/// Overrides the folder with the link's files, for workers outside a pod.
const LINK_DIR_VARIABLE: &str = "SUBAGENT_WORKER_LINK_DIR";
/// Overrides the spare home folder, for workers outside a pod.
const HOME_DIR_VARIABLE: &str = "SUBAGENT_WORKER_HOME_DIR";
/// Overrides the file of the termination message, for workers outside a pod.
const MESSAGE_VARIABLE: &str = "SUBAGENT_WORKER_MESSAGE_FILE";
/// Where the kubelet looks for a container's termination message, unless the template says otherwise.
const MESSAGE_FILE: &str = "/dev/termination-log";

/// Settings of one worker.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Who this worker is and where it connects to.
    pub worker: WorkerConfig,
    /// Folder with the link's files.
    pub link_dir: PathBuf,
    /// Folder that becomes HOME when the container has none.
    pub home_dir: PathBuf,
    /// File of the container's termination message.
    pub message_file: PathBuf,
}

impl Settings {
    /// Reads the configuration.
    ///
    /// # Errors
    /// When the file is missing or not a [`WorkerConfig`]; the message names it.
    pub fn load() -> anyhow::Result<Self> {
        Ok(Self::of(read()?))
    }

    /// Reads the configuration of a probe: a worker without a run and without a gateway.
    ///
    /// # Errors
    /// When the file is missing or not a [`ProbeConfig`]; the message names it.
    pub fn load_probe() -> anyhow::Result<(Self, AcpTransport)> {
        let probe: ProbeConfig = read()?;
        let worker = WorkerConfig {
            gateway: String::new(),
            namespace: probe.namespace,
            run: probe.provider,
            run_uid: String::new(),
            attempt: probe.attempt,
            cwd: probe.cwd,
            stop: probe.stop,
        };
        Ok((Self::of(worker), probe.transport))
    }

    fn of(worker: WorkerConfig) -> Self {
        Self {
            worker,
            link_dir: link_dir(),
            home_dir: path(HOME_DIR_VARIABLE, HOME_DIR),
            message_file: path(MESSAGE_VARIABLE, MESSAGE_FILE),
        }
    }
}

fn read<T: DeserializeOwned>() -> anyhow::Result<T> {
    let path = link_dir().join(CONFIG_FILE);
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("reading {}", path.display()))
}

fn link_dir() -> PathBuf {
    path(LINK_DIR_VARIABLE, LINK_DIR)
}

fn path(variable: &str, default: &str) -> PathBuf {
    env::var_os(variable).map_or_else(|| default.into(), PathBuf::from)
}
