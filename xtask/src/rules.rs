//! Which rules of `docs/contract.md` and cases of `docs/pitfalls.md` are named by a test.
//!
//! A rule is covered when a test names it: at the start of its name (`c25_c26_the_protocol_decides`), in its doc
//! comment, in the name of one of its cases, or in a comment or text inside it (an assertion's message). A test that is
//! ignored covers nothing. What must be covered by now stands in `docs/rules-in-scope.txt`; a gap there is an error.

mod documents;
mod names;
pub mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, bail};

use names::Rule;
use sources::Test;

/// Where the rules are written.
const DOCUMENTS: &[&str] = &["docs/contract.md", "docs/pitfalls.md"];
/// Which of them must be covered by now.
const SCOPE: &str = "docs/rules-in-scope.txt";

/// Prints the table and fails on a gap in scope.
///
/// # Errors
/// When a rule in scope has no test, a test's name starts with a rule that does not exist, or a file cannot be read.
pub fn run() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the repository")?;
    let mut rules = Vec::new();
    for document in DOCUMENTS {
        rules.extend(documents::rules(&read(root, document)?).with_context(|| (*document).to_string())?);
    }
    let scope = documents::scope(&read(root, SCOPE)?, &rules).context(SCOPE)?;
    let tests = sources::tests(root)?;
    let coverage = Coverage::of(rules, scope, tests);
    print!("{}", coverage.report());
    coverage.verdict()
}

fn read(root: &Path, file: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {file}"))
}

/// What is named where.
struct Coverage {
    rules: Vec<Rule>,
    scope: BTreeSet<Rule>,
    named: BTreeMap<Rule, Vec<String>>,
    /// Tests whose name starts with a rule that is in no document.
    strangers: Vec<String>,
}

impl Coverage {
    fn of(rules: Vec<Rule>, scope: BTreeSet<Rule>, tests: Vec<Test>) -> Self {
        let known: BTreeSet<_> = rules.iter().copied().collect();
        let mut named: BTreeMap<Rule, Vec<String>> = BTreeMap::new();
        let mut strangers = Vec::new();
        for test in tests {
            for rule in test.in_name.difference(&known) {
                strangers.push(format!("{} names {rule}", test.place()));
            }
            for rule in test.in_name.union(&test.in_text) {
                named.entry(*rule).or_default().push(test.place());
            }
        }
        named.retain(|rule, _| known.contains(rule));
        Self { rules, scope, named, strangers }
    }

    fn gaps(&self) -> Vec<Rule> {
        let gap = |rule: &&Rule| self.scope.contains(rule) && !self.named.contains_key(rule);
        self.rules.iter().filter(gap).copied().collect()
    }

    fn report(&self) -> String {
        let mut text = String::new();
        for rule in &self.rules {
            let places = self.named.get(rule).map_or(&[][..], Vec::as_slice);
            let label = rule.to_string();
            for (index, place) in places.iter().enumerate() {
                let _ = writeln!(text, "{:<5} {place}", if index == 0 { label.as_str() } else { "" });
            }
            if places.is_empty() {
                let state = if self.scope.contains(rule) { "NO TEST" } else { "not in scope yet" };
                let _ = writeln!(text, "{label:<5} {state}");
            }
        }
        let covered = |in_scope: bool| self.named.keys().filter(|rule| self.scope.contains(rule) == in_scope).count();
        let later = self.rules.len() - self.scope.len();
        let _ = writeln!(
            text,
            "\n{} of {} rules in scope are named by a test; {} of {later} others already are.",
            covered(true),
            self.scope.len(),
            covered(false),
        );
        text
    }

    fn verdict(&self) -> anyhow::Result<()> {
        if !self.strangers.is_empty() {
            bail!("rules that are in no document:\n  {}", self.strangers.join("\n  "));
        }
        let gaps: Vec<_> = self.gaps().iter().map(Rule::to_string).collect();
        if !gaps.is_empty() {
            bail!("in scope ({SCOPE}) and named by no test: {}", gaps.join(" "));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Rule {
        text.parse().expect("a rule")
    }

    fn coverage(scope: &[&str], names: &[&str]) -> Coverage {
        let rules = ["c2", "c25", "C2", "S1"].map(rule).to_vec();
        let test = Test {
            file: "a/tests/b.rs".into(),
            name: "it".into(),
            in_name: names.iter().copied().map(rule).collect(),
            in_text: BTreeSet::new(),
        };
        Coverage::of(rules, scope.iter().copied().map(rule).collect(), vec![test])
    }

    #[test]
    fn a_gap_in_scope_fails_and_one_outside_does_not() {
        assert!(coverage(&["c25"], &["c25"]).verdict().is_ok());
        let error = coverage(&["c25", "c2", "S1"], &["c25"]).verdict().expect_err("gaps");
        assert!(error.to_string().ends_with("named by no test: c2 S1"), "{error}");
    }

    #[test]
    fn a_rule_is_not_covered_by_one_that_looks_like_it() {
        for named in ["c25", "C2"] {
            assert_eq!(coverage(&["c2"], &[named]).gaps(), [rule("c2")]);
        }
    }

    #[test]
    fn a_rule_that_does_not_exist_fails() {
        let error = coverage(&[], &["c61"]).verdict().expect_err("a stranger");
        assert!(error.to_string().contains("a/tests/b.rs it names c61"), "{error}");
    }

    #[test]
    fn the_table_shows_every_rule_once() {
        let report = coverage(&["c25", "S1"], &["c25", "C2"]).report();
        let lines: Vec<_> = report.lines().collect();
        assert_eq!(
            lines,
            [
                "c2    not in scope yet",
                "c25   a/tests/b.rs it",
                "C2    a/tests/b.rs it",
                "S1    NO TEST",
                "",
                "1 of 2 rules in scope are named by a test; 1 of 2 others already are.",
            ]
        );
    }

    #[test]
    fn the_documents_of_this_repository_can_be_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a repository");
        let of = |document: &str| documents::rules(&read(root, document).expect("readable")).expect("rules");
        let contract = of(DOCUMENTS[0]);
        assert_eq!(contract, (1..=60).map(|number| rule(&format!("c{number}"))).collect::<Vec<_>>());
        let pitfalls = of(DOCUMENTS[1]);
        assert_eq!(pitfalls.len(), 58);
        let all: Vec<_> = contract.into_iter().chain(pitfalls).collect();
        documents::scope(&read(root, SCOPE).expect("readable"), &all).expect("known rules");
    }
}
