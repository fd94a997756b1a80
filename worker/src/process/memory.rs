//! Whether the kernel's out-of-memory killer was here (pitfall N2). It ends a process without a word; the container's
//! control group counts its kills.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Where a container sees its own control group.
const CGROUP: &str = "/sys/fs/cgroup";

/// What is no limit: version 1 of control groups writes a number near 2^63 then, version 2 the word `max`.
const NO_LIMIT: u64 = 1 << 60;

/// Counts kills from a point in time on.
#[derive(Debug)]
pub struct Memory {
    root: PathBuf,
    kills: u64,
}

impl Memory {
    /// Starts to count.
    pub fn watch() -> Self {
        Self::below(CGROUP.into())
    }

    fn below(root: PathBuf) -> Self {
        let kills = kills(&root).unwrap_or_default();
        Self { root, kills }
    }

    /// The limit in bytes that was exceeded since then; none when nothing was killed for it, or nobody can tell.
    pub fn exceeded(&self) -> Option<u64> {
        if kills(&self.root)? <= self.kills {
            return None;
        }
        let files = ["memory.max", "memory/memory.limit_in_bytes"];
        let limit = files.into_iter().find_map(|file| read(&self.root, file)?.trim().parse().ok());
        limit.filter(|limit| *limit < NO_LIMIT)
    }
}

/// Version 2 of control groups, then version 1; both have lines of a name and a number.
fn kills(root: &Path) -> Option<u64> {
    let text = ["memory.events", "memory/memory.oom_control"].into_iter().find_map(|file| read(root, file))?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

fn read(root: &Path, file: &str) -> Option<String> {
    fs::read_to_string(root.join(file)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::version_2("memory.events", "low 0\noom 3\noom_kill 1\noom_group_kill 0\n", "memory.max")]
    #[case::version_1(
        "memory/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
        "memory/memory.limit_in_bytes"
    )]
    fn n2_a_kill_since_the_start_tells_the_limit(#[case] events: &str, #[case] text: &str, #[case] limit: &str) {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Memory::below(root.path().into()).exceeded(), None, "nobody counts");
        fs::create_dir(root.path().join("memory")).unwrap();
        fs::write(root.path().join(events), text).unwrap();
        fs::write(root.path().join(limit), "67108864\n").unwrap();
        let memory = Memory::below(root.path().into());
        assert_eq!(memory.exceeded(), None, "a kill from before");
        fs::write(root.path().join(events), text.replace("oom_kill 1", "oom_kill 2")).unwrap();
        assert_eq!(memory.exceeded(), Some(67_108_864));
        fs::write(root.path().join(limit), "max\n").unwrap();
        assert_eq!(memory.exceeded(), None, "the node's memory, not the container's, was too small");
    }
}
