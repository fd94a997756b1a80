//! The worker's binary.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
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
        None => build(),
    })
}

/// The profile of the running test, which lies in `<target>/<profile>/deps/`.
fn build() -> PathBuf {
    let test = env::current_exe().expect("a test has a path");
    let profile = test.ancestors().nth(2).expect("a test lies in <profile>/deps");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // With the features of the whole workspace: what it stands on is compiled already.
    cargo.args(["build", "--quiet", "--workspace", "--bin", "subagent-worker"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.arg("--target-dir").arg(profile.parent().expect("a profile lies in the target folder"));
    if profile.file_name().is_some_and(|profile| profile == "release") {
        cargo.arg("--release");
    }
    let status = cargo.status().expect("cargo can be started");
    assert!(status.success(), "the worker cannot be built: {status}");
    profile.join("subagent-worker")
}
