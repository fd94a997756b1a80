//! Programs the tests run: kubectl and helm.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// The repository's folder.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("tests/integration is two folders down").to_owned()
}

/// The chart's folder.
pub fn chart() -> PathBuf {
    repository().join("charts/subagent-operator")
}

/// Output of kubectl.
///
/// # Panics
/// When it fails, with what it said.
pub fn kubectl(arguments: &[&str]) -> String {
    stdout(&run("kubectl", None, arguments), "kubectl", arguments)
}

/// Output of helm.
///
/// # Panics
/// When it fails, with what it said.
pub fn helm(arguments: &[&str]) -> String {
    stdout(&run("helm", None, arguments), "helm", arguments)
}

/// Output of kubectl or helm against another API server than the tests' own.
///
/// # Panics
/// When it fails, with what it said.
pub fn on(kubeconfig: &Path, program: &str, arguments: &[&str]) -> String {
    stdout(&run(program, Some(kubeconfig), arguments), program, arguments)
}

/// What helm says when it fails.
///
/// # Panics
/// When it succeeds.
pub fn helm_refusal(arguments: &[&str]) -> String {
    stderr(&run("helm", None, arguments), "helm", arguments)
}

/// What kubectl says when it fails.
///
/// # Panics
/// When it succeeds.
pub fn kubectl_refusal(arguments: &[&str]) -> String {
    stderr(&run("kubectl", None, arguments), "kubectl", arguments)
}

fn run(program: &str, kubeconfig: Option<&Path>, arguments: &[&str]) -> Output {
    let path = repository().join(".cluster/bin").join(program);
    let mut command = Command::new(&path);
    command.args(arguments);
    if let Some(kubeconfig) = kubeconfig {
        command.env("KUBECONFIG", kubeconfig);
    }
    command.output().unwrap_or_else(|e| panic!("{}: {e}; `make tools` brings it", path.display()))
}

fn stderr(output: &Output, program: &str, arguments: &[&str]) -> String {
    assert!(!output.status.success(), "{program} {arguments:?} succeeded");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output, program: &str, arguments: &[&str]) -> String {
    assert!(
        output.status.success(),
        "{program} {arguments:?} failed: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}
