//! Processes of the local cluster. The node is this host: the processes of its pods are in `/proc` here.

use std::{path::Path, process::Command};

/// The port of the chart's Service that workers connect to.
const LINK_PORT: u16 = 8443;

/// The processes of this host, those of pods included, that fit.
///
/// # Panics
/// When `/proc` cannot be read.
pub fn processes(fits: impl Fn(&Path) -> bool) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    let all = all.filter_map(|entry| Some((entry.file_name().to_string_lossy().parse().ok()?, entry.path())));
    all.filter(|(_, path)| fits(path)).map(|(pid, _)| pid).collect()
}

fn read(process: &Path, file: &str) -> String {
    std::fs::read(process.join(file)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Whether a process belongs to a pod: the kubelet puts all of them below one group.
fn is_of_pod(process: &Path, uid: &str) -> bool {
    !uid.is_empty() && read(process, "cgroup").contains(&format!("/pod{uid}/"))
}

/// Every process of a pod but the one that only holds its network.
pub fn of_pod(uid: &str) -> Vec<i32> {
    processes(|process| is_of_pod(process, uid) && !read(process, "cmdline").starts_with("/pause"))
}

/// Their command lines, for who looks for one and shows all.
pub fn commands_of_pod(uid: &str) -> Vec<String> {
    let lines = of_pod(uid).into_iter().map(|pid| read(Path::new(&format!("/proc/{pid}")), "cmdline"));
    lines.map(|line| line.replace('\0', " ").trim().to_owned()).filter(|line| !line.is_empty()).collect()
}

/// Process 1 of a worker pod's agent container.
pub fn worker(uid: &str) -> Option<i32> {
    let is_worker = |arguments: &str| arguments.starts_with("/subagents/") && arguments.contains("run\0--\0");
    in_pod(uid, is_worker)
}

/// The agent's own process in a worker pod.
pub fn agent(uid: &str) -> Option<i32> {
    in_pod(uid, |arguments| arguments.starts_with("/usr/bin/scripted-agent"))
}

/// The operator's process in one of its pods.
pub fn operator(uid: &str) -> Option<i32> {
    in_pod(uid, |arguments| arguments.split('\0').next().is_some_and(|program| program.ends_with("subagent-operator")))
}

fn in_pod(uid: &str, fits: impl Fn(&str) -> bool) -> Option<i32> {
    let found = processes(|process| is_of_pod(process, uid) && fits(&read(process, "cmdline")));
    found.into_iter().min()
}

/// The local cluster's API server.
///
/// # Panics
/// When there is not exactly one.
pub fn api_server() -> i32 {
    of_cluster("--audit-log-path=", "audit.log")
}

/// The kubelet of the local cluster's node.
///
/// # Panics
/// When there is not exactly one.
pub fn kubelet() -> i32 {
    of_cluster("--root-dir=", "kubelet")
}

/// The program of the local cluster that is given this file of its state.
fn of_cluster(flag: &str, file: &str) -> i32 {
    let path = crate::commands::cluster_dir().canonicalize().expect("the cluster's state").join(file);
    let argument = format!("{flag}{}", path.display());
    let found = processes(|process| read(process, "cmdline").split('\0').any(|one| one == argument));
    assert_eq!(found.len(), 1, "processes with {argument}");
    found[0]
}

/// Sends a signal; false when the process is gone.
///
/// # Panics
/// When there is no program `kill`.
pub fn signal(process: i32, name: &str) -> bool {
    let mut kill = Command::new("kill");
    let output = kill.args([&format!("-{name}"), &process.to_string()]).output().expect("kill");
    output.status.success()
}

/// Cuts every connection from a process's network to the gateway's port; the number that was cut.
///
/// # Panics
/// When `ss` cannot do that here.
pub fn cut_links(process: i32) -> usize {
    let (process, port) = (process.to_string(), LINK_PORT.to_string());
    let mut cut = Command::new("nsenter");
    let output = cut.args(["-t", &process, "-n", "ss", "-K", "-H", "-tn", "state", "established", "dport", "=", &port]);
    let output = output.output().expect("nsenter");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.lines().filter(|line| line.contains(&format!(":{port}"))).count()
}

/// A process that is held until this is dropped; should these tests be killed, until a time limit at most.
pub struct Paused {
    process: i32,
    releasing: std::process::Child,
}

impl Paused {
    /// Holds a process: its connections stay open and nothing answers. `seconds` is the limit.
    ///
    /// # Panics
    /// When there is no such process.
    pub fn process(process: i32, seconds: u64) -> Self {
        let release = format!("sleep {seconds}; kill -CONT {process}");
        let releasing = Command::new("sh").args(["-c", &release]).spawn().expect("sh");
        assert!(signal(process, "STOP"), "process {process} cannot be held");
        Self { process, releasing }
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        signal(self.process, "CONT");
        // Its sleep ends by itself.
        let _ = self.releasing.kill();
        let _ = self.releasing.wait();
    }
}
