//! An API server of one test alone, for what would disturb the others: installing and removing the whole chart.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// A real API server and etcd, which end with this value, or with the process.
pub struct OwnApiServer {
    process: Child,
    folder: PathBuf,
}

impl OwnApiServer {
    /// Starts one and waits until it answers.
    ///
    /// # Panics
    /// When it does not start, or `SUBAGENT_LOCALCLUSTER` (the local cluster's program) is not set.
    pub fn start() -> Self {
        let program = std::env::var_os("SUBAGENT_LOCALCLUSTER")
            .expect("SUBAGENT_LOCALCLUSTER is not set; start these tests with tests/integration/run");
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("subagent-own-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        // It ends when its standard input does, however this process ends.
        let mut process = Command::new(program)
            .arg("--dir")
            .arg(folder.join("cluster"))
            .args([
                "up",
                "--apiserver-only",
                "--foreground",
                "--controllers",
                "namespace-controller,serviceaccount-controller",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the local cluster's program");
        let output = process.stdout.take().expect("a pipe");
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        // It gives up by itself when it does not come up in time.
        assert!(lines.any(|line| line.starts_with("ready;")), "the API server did not start");
        // Whatever it prints later must not block it.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, folder }
    }

    /// Its kubeconfig, of an administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("cluster/kubeconfig")
    }
}

impl Drop for OwnApiServer {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
