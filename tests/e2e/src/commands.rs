//! Programs the tests run: kubectl and helm, as a person would.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// The repository's folder.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("tests/e2e is two folders down").to_owned()
}

/// The local cluster's state directory: `SUBAGENT_CLUSTER_DIR`, else `.cluster` in the repository.
pub fn cluster_dir() -> PathBuf {
    std::env::var_os("SUBAGENT_CLUSTER_DIR").map_or_else(|| repository().join(".cluster"), PathBuf::from)
}

/// The kubeconfig: `KUBECONFIG`, else the local cluster's.
pub fn kubeconfig() -> PathBuf {
    std::env::var_os("KUBECONFIG").map_or_else(|| cluster_dir().join("kubeconfig"), PathBuf::from)
}

/// Runs kubectl or helm, found in `SUBAGENT_BIN`, else where `make tools` puts them.
pub fn output(program: &str, arguments: &[&str]) -> Output {
    let folder = std::env::var_os("SUBAGENT_BIN").map_or_else(|| repository().join(".cluster/bin"), PathBuf::from);
    let path = folder.join(program);
    Command::new(&path)
        .args(arguments)
        .env("KUBECONFIG", kubeconfig())
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}; `make tools` brings it", path.display()))
}

/// What kubectl prints.
///
/// # Panics
/// When it fails, with what it said.
pub fn kubectl(arguments: &[&str]) -> String {
    succeed("kubectl", arguments)
}

/// What helm prints.
///
/// # Panics
/// When it fails, with what it said.
pub fn helm(arguments: &[&str]) -> String {
    succeed("helm", arguments)
}

fn succeed(program: &str, arguments: &[&str]) -> String {
    let output = output(program, arguments);
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {} failed: {said}{errors}", arguments.join(" "));
    said.into_owned()
}
