//! What is left behind: nothing (c48, S2).

use crate::harness::{PATIENCE, run};
use rstest::rstest;
use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

#[rstest]
#[case::setsid("!setsid forever")]
#[case::setsid_holds_the_pipes("!setsid forever pipe ignore-term")]
#[case::same_group("!setsid forever same-session ignore-term")]
#[case::many("!repeat 20 !setsid forever ignore-term")]
#[tokio::test(flavor = "multi_thread")]
async fn s2_no_process_outlives_a_completed_run(#[case] script: &str) {
    let attempt = run(&format!("{script}\n!say done")).start().await;
    attempt.first("stray");
    let strays: Vec<i64> = {
        let end = attempt.gateway.end().await;
        assert_eq!(end.end().unwrap().stop_reason, "Completed");
        attempt.collector.of_kind("stray").iter().map(|event| event.pid).collect()
    };
    let ended = attempt.finish().await;
    assert!(ended.status.success(), "{}", ended.transcript);
    for pid in strays {
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{pid} is left");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s2_orphans_are_reaped_while_the_agent_runs() {
    // A stray that ends by itself becomes the worker's child and must not stay a zombie.
    let attempt = run("!repeat 5 !setsid 0\n!gate end").start().await;
    let strays: Vec<i64> = attempt
        .collector
        .wait_for(PATIENCE, |events| {
            let pids: Vec<_> = events.iter().filter(|event| event.kind == "stray").map(|event| event.pid).collect();
            (pids.len() == 5).then_some(pids)
        })
        .unwrap_or_else(|error| panic!("{error}\n{}", attempt.said()));
    let deadline = Instant::now() + PATIENCE;
    while strays.iter().any(|pid| Path::new(&format!("/proc/{pid}")).exists()) {
        assert!(Instant::now() < deadline, "some of {strays:?} are left\n{}", attempt.said());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    attempt.collector.open_gate("end");
    assert_eq!(attempt.finish().await.words().0, "Completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn s2_process_1_sweeps_its_namespace_before_it_ends() {
    let mut setup = run("!setsid forever ignore-term pipe stamp\n!gate end\n!say done");
    setup.as_process_1 = true;
    let attempt = setup.start().await;
    let stray = attempt.first("stray").pid;
    assert!(stray < 100, "a pid of the namespace: {stray}");
    // The end of process 1 would take the stray as well: its end is held up by the missing acknowledgement.
    attempt.gateway.hold_acks();
    attempt.collector.open_gate("end");
    attempt.gateway.end().await;
    attempt
        .collector
        .wait_for(PATIENCE, |events| {
            events.iter().any(|event| event.kind == "disconnected" && event.pid == stray).then_some(())
        })
        .unwrap_or_else(|error| panic!("{error}\n{}", attempt.said()));
    attempt.gateway.release_acks();
    let ended = attempt.finish().await;
    assert_eq!((ended.words().0, ended.text()), ("Completed", "done"), "{}", ended.transcript);
    assert!(ended.status.success());
}

#[test]
fn install_makes_what_any_user_can_run() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let installed = folder.path().join("bin/subagent-worker");
    for _ in 0..2 {
        let status =
            Command::new(env!("CARGO_BIN_EXE_subagent-worker")).arg("install").arg(folder.path()).status().unwrap();
        assert!(status.success(), "also a second time");
    }
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&installed), 0o755);
    assert_eq!(mode(&folder.path().join("home")), 0o1777);
    assert_eq!(fs::read_dir(folder.path().join("bin")).unwrap().count(), 1, "no partial copy is left");
    let version = Command::new(installed).arg("--version").output().unwrap();
    assert!(version.status.success());
}
