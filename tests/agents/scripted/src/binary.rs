//! Where tests of other crates find the programs of this one.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The scripted agent, built if it is not up to date. `SCRIPTED_AGENT_BINARY` names another one.
///
/// # Panics
/// When it cannot be built; a test can do nothing without it.
#[must_use]
pub fn scripted_agent() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| match env::var_os("SCRIPTED_AGENT_BINARY") {
        Some(program) => program.into(),
        None => build("scripted-agent"),
    })
}

/// Builds a binary of the workspace with the profile of the running test, which lies in `<profile>/deps/`.
///
/// # Panics
/// When it cannot be built.
#[must_use]
pub fn build(name: &str) -> PathBuf {
    let test = env::current_exe().expect("a test has a path");
    let profile = test.ancestors().nth(2).expect("a test lies in <profile>/deps");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // With the features of the whole workspace: what it stands on is compiled already.
    cargo.args(["build", "--quiet", "--workspace", "--bin", name]);
    cargo.args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
    cargo.arg("--target-dir").arg(profile.parent().expect("a profile lies in the target folder"));
    if profile.file_name().is_some_and(|profile| profile == "release") {
        cargo.arg("--release");
    }
    // What Cargo tells a test of its package. Build scripts of dependencies look at the same variables and would run again,
    // and all that stands on them be compiled again, here and the next time without them.
    for (variable, _) in env::vars_os() {
        let name = variable.to_string_lossy();
        if name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_") {
            cargo.env_remove(&variable);
        }
    }
    let status = cargo.status().expect("cargo can be started");
    assert!(status.success(), "{name} cannot be built: {status}");
    profile.join(name)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_agent_is_found_and_runs() {
        let refused = std::process::Command::new(super::scripted_agent())
            .env("SCRIPTED_AGENT_NO_SUCH_KNOB", "1")
            .output()
            .expect("it runs");
        assert_eq!(refused.status.code(), Some(64));
    }
}
