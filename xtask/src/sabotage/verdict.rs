//! Running one test and reading its end.

use std::fmt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::programs::Found;
use super::scratch::Scratch;

/// Longest time of a test in seconds. The longest deadline inside tests is 120 s; wrong code may have none.
const LIMIT_SECONDS: u32 = 180;
/// Tests at a time: they wait most of theirs.
const AT_A_TIME: usize = 4;
/// Folder of the tests that share an API server.
const INTEGRATION: &str = "tests/integration";
/// Exit code of a test program with a failed test.
const FAILED: i32 = 101;
/// Exit codes of `timeout`: the limit was reached, and then SIGKILL was needed.
const TOO_LATE: [i32; 2] = [124, 137];
/// Variable that marks the processes of a test, so that what wrong code leaves behind can be found.
const MARK: &str = "SABOTAGE_RUN";

/// What became of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passed.
    Green,
    /// It failed, like this.
    Red(String),
    /// It says nothing, because of this.
    Broken(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Green => f.write_str("green"),
            Self::Red(why) | Self::Broken(why) => f.write_str(why),
        }
    }
}

/// Runs tests side by side; the verdicts are in their order. What they leave running is ended. Tests of one API server go one
/// at a time: some change definitions that hold for all of it, which the programs themselves do before anything else.
pub fn together(scratch: &Scratch, tests: &[&Found]) -> Vec<Verdict> {
    let next = AtomicUsize::new(0);
    let api_server = Mutex::new(());
    let verdicts = Mutex::new(vec![Verdict::Broken("it did not run".to_owned()); tests.len()]);
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME.min(tests.len()) {
            scope.spawn(|| {
                while let Some((index, test)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|index| Some((index, tests.get(index)?)))
                {
                    let shares = test.program.folder.ends_with(INTEGRATION);
                    let alone = shares.then(|| api_server.lock().unwrap_or_else(PoisonError::into_inner));
                    let verdict = test.run(scratch);
                    drop(alone);
                    if let Ok(mut verdicts) = verdicts.lock() {
                        verdicts[index] = verdict;
                    }
                }
            });
        }
    });
    end_leftovers();
    verdicts.into_inner().unwrap_or_default()
}

impl Found {
    /// Runs this test, in a process of its own. Of several cases one that fails makes it red.
    pub fn run(&self, scratch: &Scratch) -> Verdict {
        // A file and not a pipe: what the test leaves running may hold it open for ever.
        let name: String =
            self.test.chars().map(|letter| if letter.is_alphanumeric() { letter } else { '_' }).collect();
        let log = scratch.target.join(format!("sabotage-{name}.log"));
        match self.run_into(scratch, &log) {
            Ok(status) => read(status, &std::fs::read_to_string(&log).unwrap_or_default()),
            Err(error) => Verdict::Broken(format!("it cannot be run: {error}")),
        }
    }

    fn run_into(&self, scratch: &Scratch, log: &Path) -> std::io::Result<ExitStatus> {
        let out = std::fs::File::create(log)?;
        Command::new("timeout")
            .args(["--kill-after=5", &LIMIT_SECONDS.to_string()])
            .arg(&self.program.path)
            .arg("--exact")
            .args(&self.paths)
            .current_dir(&self.program.folder)
            .env("CARGO_TARGET_DIR", &scratch.target)
            .env("CARGO_MANIFEST_DIR", &self.program.folder)
            .env("INSTA_UPDATE", "no")
            .env(MARK, std::process::id().to_string())
            .stdin(Stdio::null())
            .stderr(out.try_clone()?)
            .stdout(out)
            .status()
    }
}

fn read(status: ExitStatus, said: &str) -> Verdict {
    match status.code() {
        Some(0) if passed(said) == 0 => Verdict::Broken("no test ran".to_owned()),
        Some(0) => Verdict::Green,
        Some(FAILED) => Verdict::Red(panic(said)),
        Some(code) if TOO_LATE.contains(&code) => Verdict::Red(format!("no end within {LIMIT_SECONDS} s")),
        _ => Verdict::Red(format!("the test program died: {status}")),
    }
}

/// How many tests passed.
fn passed(said: &str) -> u32 {
    let results =
        said.lines().filter_map(|line| line.strip_prefix("test result: ok. ")?.split(' ').next()?.parse::<u32>().ok());
    results.sum()
}

/// Where it panicked, and the first line of what it said.
fn panic(said: &str) -> String {
    let mut lines = said.lines().skip_while(|line| !line.contains("panicked at "));
    let Some((_, place)) = lines.next().and_then(|line| line.split_once("panicked at ")) else {
        return "failed without a panic".to_owned();
    };
    let message: String = lines.next().unwrap_or_default().trim().chars().take(120).collect();
    format!("{} {message}", place.trim_end_matches(':'))
}

/// Ends the processes that tests of this run left behind: under wrong code there may be some that nothing else ends.
fn end_leftovers() {
    let mark = format!("{MARK}={}", std::process::id());
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let marked = std::fs::read(process.path().join("environ"))
            .is_ok_and(|all| all.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes()));
        if marked {
            let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).stderr(Stdio::null()).status();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::os::unix::process::ExitStatusExt;

    const PASSED: &str = "running 1 test\ntest a ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored\n";
    const NONE: &str = "running 0 tests\n\ntest result: ok. 0 passed; 0 failed; 1 ignored\n";
    const PANIC: &str = "test a ... FAILED\n---- a stdout ----\n\nthread 'a' (7) panicked at worker/tests/x.rs:3:5:\nassertion `left == right` failed\n  left: 1\n";

    #[rstest]
    #[case::passed(0, PASSED, Verdict::Green)]
    #[case::nothing_ran(0, NONE, Verdict::Broken("no test ran".into()))]
    #[case::failed(101, PANIC, Verdict::Red("worker/tests/x.rs:3:5 assertion `left == right` failed".into()))]
    #[case::hung(124, "", Verdict::Red("no end within 180 s".into()))]
    #[case::aborted(134, "", Verdict::Red("the test program died: exit status: 134".into()))]
    fn the_end_of_a_program_is_read(#[case] code: i32, #[case] said: &str, #[case] expected: Verdict) {
        assert_eq!(read(ExitStatus::from_raw(code << 8), said), expected);
    }
}
