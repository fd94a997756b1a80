//! A patch and what stands before its diff. The format is described in `tests/sabotage/README.md`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};

/// Packages whose tests are no measure here: they need a whole cluster.
const TOO_SLOW: &str = "e2e-tests";

/// One patch.
#[derive(Debug, PartialEq, Eq)]
pub struct Patch {
    /// Name of the file without its extension.
    pub name: String,
    /// The file.
    pub file: PathBuf,
    /// What is wrong under it.
    pub wrong: String,
    /// Tests that must turn red, at least one.
    pub red: Vec<Red>,
    /// The files it changes, from the root of the repository.
    pub changed: BTreeSet<String>,
}

/// A test that must turn red.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Red {
    /// Cargo's name of its package.
    pub package: String,
    /// Its path, or an end of it.
    pub test: String,
}

impl Patch {
    /// Reads a patch.
    ///
    /// # Errors
    /// When it does not say what is wrong or which test turns red, or when it changes a test.
    pub fn parse(file: PathBuf, text: &str) -> anyhow::Result<Self> {
        let name = file.file_stem().and_then(|stem| stem.to_str()).context("a name in UTF-8")?.to_owned();
        let mut wrong = None;
        let mut red = Vec::new();
        for line in text.lines().take_while(|line| !line.starts_with("diff --git ")) {
            let said =
                line.strip_prefix('#').with_context(|| format!("a line before the diff without #: {line}"))?.trim();
            match said.strip_prefix("red:") {
                Some(test) => red.push(Red::parse(test)?),
                None if wrong.is_none() && !said.is_empty() => wrong = Some(said.to_owned()),
                None => {}
            }
        }
        let changed: BTreeSet<_> =
            text.lines().filter_map(|line| line.strip_prefix("+++ b/")).map(|path| path.trim().to_owned()).collect();
        ensure!(!changed.is_empty(), "no file is changed; write it with `git diff`");
        let test = changed.iter().find(|path| path.starts_with("tests/") || path.contains("/tests/"));
        if let Some(test) = test {
            bail!("it changes a test, {test}; the code is to be wrong");
        }
        ensure!(!red.is_empty(), "no line `# red: PACKAGE TEST`");
        Ok(Self { name, file, wrong: wrong.context("no first line that says what is wrong")?, red, changed })
    }

    /// The packages of the tests that must turn red.
    pub fn red_packages(&self) -> BTreeSet<String> {
        self.red.iter().map(|red| red.package.clone()).collect()
    }

    /// The folders it changes: what is compiled for it.
    pub fn packages(&self) -> BTreeSet<String> {
        self.changed.iter().filter_map(|path| path.split('/').next()).map(str::to_owned).collect()
    }
}

impl Red {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let words: Vec<_> = text.split_whitespace().collect();
        let [package, test] = words[..] else { bail!("not `# red: PACKAGE TEST`: {text}") };
        ensure!(package != TOO_SLOW, "tests of {TOO_SLOW} cannot be named: {test}");
        Ok(Self { package: package.to_owned(), test: test.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const DIFF: &str = "diff --git a/worker/src/a.rs b/worker/src/a.rs\n--- a/worker/src/a.rs\n+++ b/worker/src/a.rs\n@@ -1 +1 @@\n-a\n+# red: b c\n";

    fn parse(head: &str, diff: &str) -> anyhow::Result<Patch> {
        Patch::parse("x/worker-no-a.patch".into(), &format!("{head}{diff}"))
    }

    #[test]
    fn a_patch_says_what_is_wrong_and_which_tests_turn_red() {
        let patch =
            parse("# c41: no a\n# more of it\n# red: subagent-worker a::b\n#red:  integration-tests c \n", DIFF)
                .unwrap();
        let red = |package: &str, test: &str| Red { package: package.into(), test: test.into() };
        assert_eq!((patch.name.as_str(), patch.wrong.as_str()), ("worker-no-a", "c41: no a"));
        assert_eq!(patch.red, [red("subagent-worker", "a::b"), red("integration-tests", "c")]);
        assert_eq!(patch.changed.into_iter().collect::<Vec<_>>(), ["worker/src/a.rs"]);
    }

    #[rstest]
    #[case::nothing_said("", DIFF, "no line `# red")]
    #[case::no_reason("# red: p t\n", DIFF, "says what is wrong")]
    #[case::no_test("# wrong\n", DIFF, "no line `# red")]
    #[case::no_package("# wrong\n# red: t\n", DIFF, "not `# red")]
    #[case::too_much("# wrong\n# red: p t because\n", DIFF, "not `# red")]
    #[case::whole_cluster("# wrong\n# red: e2e-tests t\n", DIFF, "cannot be named")]
    #[case::loose_text("wrong\n# red: p t\n", DIFF, "without #")]
    #[case::no_diff("# wrong\n# red: p t\n", "", "no file is changed")]
    #[case::a_test_is_changed(
        "# wrong\n# red: p t\n",
        "diff --git a b\n+++ b/worker/tests/a.rs\n",
        "it changes a test"
    )]
    fn anything_else_is_refused(#[case] head: &str, #[case] diff: &str, #[case] why: &str) {
        let error = parse(head, diff).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
