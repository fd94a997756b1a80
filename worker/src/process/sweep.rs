//! The end of contract c48: no process is left, whatever it did to get out of the agent's process group.

use super::Reaper;
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::{Pid, getpid},
};
use std::{collections::HashMap, fs, time::Duration};
use tokio::time::{Instant, sleep};

/// How long the sweep goes on. A killed process leaves within milliseconds unless it waits for a device; the end of the
/// container takes what is left.
const DEADLINE: Duration = Duration::from_secs(5);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Kills every other process until none is left: as process 1 all of its PID namespace, else every descendant (orphans
/// included, as this process is their subreaper). False when some were left at the deadline.
pub async fn sweep(reaper: &Reaper) -> bool {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let any_left = if getpid() == Pid::from_raw(1) { kill_namespace() } else { kill_descendants() };
        reaper.collect();
        if !any_left {
            return true;
        }
        if Instant::now() >= deadline {
            tracing::warn!("processes are left that SIGKILL did not end");
            return false;
        }
        sleep(PAUSE).await;
    }
}

/// Process 1 is spared by the kernel, and a signal to -1 reaches the namespace only.
fn kill_namespace() -> bool {
    kill(Pid::from_raw(-1), Signal::SIGKILL) != Err(Errno::ESRCH)
}

fn kill_descendants() -> bool {
    let found = descendants(getpid());
    for pid in &found {
        // One that is gone already is what is wanted.
        let _ = kill(*pid, Signal::SIGKILL);
    }
    !found.is_empty()
}

/// Every process below `root`, zombies included.
fn descendants(root: Pid) -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        if let Some(parent) = fs::read_to_string(entry.path().join("stat")).ok().as_deref().and_then(parent_of) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let (mut found, mut open) = (Vec::new(), vec![root.as_raw()]);
    while let Some(pid) = open.pop() {
        for child in children.remove(&pid).unwrap_or_default() {
            found.push(Pid::from_raw(child));
            open.push(child);
        }
    }
    found
}

/// The parent in a line of `/proc/PID/stat`: the second field after the command's name, which stands in parentheses and
/// may hold anything.
fn parent_of(stat: &str) -> Option<i32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("12 (sh) S 7 12 12 0", Some(7))]
    #[case("12 (a) b) (c) S 7 12", Some(7))]
    #[case("garbage", None)]
    fn parents_are_read(#[case] stat: &str, #[case] parent: Option<i32>) {
        assert_eq!(parent_of(stat), parent);
    }

    #[test]
    fn s2_descendants_are_found() {
        let mut child = std::process::Command::new("sh").args(["-c", "sleep 100 & wait"]).spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        let deadline = std::time::Instant::now() + Duration::from_secs(5);
        let grandchild = loop {
            if let Some(grandchild) = descendants(pid).first() {
                break *grandchild;
            }
            assert!(std::time::Instant::now() < deadline, "no grandchild");
        };
        assert!(descendants(getpid()).contains(&grandchild));
        let _ = kill(grandchild, Signal::SIGKILL);
        let _ = child.kill();
        // The reaper's own test may have collected it.
        let _ = child.wait();
    }
}
