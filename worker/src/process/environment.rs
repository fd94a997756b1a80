//! What the agent sees as its environment (contract c56). Pure.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

/// The container's variables minus the worker's and the cluster's own, with a HOME the agent can write to.
///
/// A HOME that is unset or of no use is common: an arbitrary user id has no passwd entry, and many images set none.
pub fn agent_environment(
    container: impl IntoIterator<Item = (OsString, OsString)>,
    spare_home: &Path,
    is_writable: impl Fn(&Path) -> bool,
) -> Vec<(OsString, OsString)> {
    let mut environment: Vec<(OsString, OsString)> =
        container.into_iter().filter(|(name, _)| !is_private(name)).collect();
    let home = environment.iter().position(|(name, _)| name == "HOME");
    let usable = home.is_some_and(|index| {
        let path = PathBuf::from(&environment[index].1);
        path.is_absolute() && is_writable(&path)
    });
    if !usable && is_writable(spare_home) {
        if let Some(index) = home {
            environment.remove(index);
        }
        environment.push(("HOME".into(), spare_home.into()));
    }
    environment
}

fn is_private(name: &OsString) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b"SUBAGENT_WORKER_") || name.starts_with(b"KUBERNETES_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn names(container: &[(&str, &str)], writable: &[&str]) -> Vec<String> {
        let container = container.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        agent_environment(container, Path::new("/subagents/home"), |path| writable.iter().any(|w| Path::new(w) == path))
            .into_iter()
            .map(|(name, value)| format!("{}={}", name.display(), value.display()))
            .collect()
    }

    #[test]
    fn c56_private_variables_are_left_out() {
        let container = [
            ("PATH", "/bin"),
            ("SUBAGENT_WORKER_LINK_DIR", "/x"),
            ("KUBERNETES_SERVICE_HOST", "10.0.0.1"),
            ("SUBAGENT_PARAM_REPO", "r"),
            ("MY_KUBERNETES_THING", "kept"),
            ("HOME", "/home/a"),
        ];
        let want = ["PATH=/bin", "SUBAGENT_PARAM_REPO=r", "MY_KUBERNETES_THING=kept", "HOME=/home/a"];
        assert_eq!(names(&container, &["/home/a"]), want);
    }

    #[rstest]
    #[case::usable(&[("HOME", "/home/a")], &["/home/a", "/subagents/home"], "HOME=/home/a")]
    #[case::read_only(&[("HOME", "/")], &["/subagents/home"], "HOME=/subagents/home")]
    #[case::unset(&[], &["/subagents/home"], "HOME=/subagents/home")]
    #[case::relative(&[("HOME", "a")], &["a", "/subagents/home"], "HOME=/subagents/home")]
    #[case::no_better_one(&[("HOME", "/")], &[], "HOME=/")]
    fn n6_home_is_writable(#[case] container: &[(&str, &str)], #[case] writable: &[&str], #[case] home: &str) {
        assert_eq!(names(container, writable), [home]);
    }
}
