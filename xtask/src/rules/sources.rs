//! Finding tests in Rust and Go sources, and the rules they name.
//!
//! Sources are read line by line: both languages are kept by a formatter here, so a function ends at the first closing
//! brace on the column it started on.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::names::{self, Rule};

/// Folders without tests of the product: what is built, what belongs to the machine, and the tests of test tools, which
/// show nothing about the product. Names of whole paths from the root of the repository.
const SKIPPED: &[&str] = &["target", ".git", ".cluster", ".images", "tests/agents", "xtask"];

/// One test function.
#[derive(Debug, PartialEq, Eq)]
pub struct Test {
    /// Where, from the root of the repository.
    pub file: PathBuf,
    /// The function.
    pub name: String,
    /// Rules its name starts with.
    pub in_name: BTreeSet<Rule>,
    /// Rules its comments, cases and texts name.
    pub in_text: BTreeSet<Rule>,
}

impl Test {
    /// File and function.
    pub fn place(&self) -> String {
        format!("{} {}", self.file.display(), self.name)
    }
}

/// All tests of the repository.
///
/// # Errors
/// When a folder or file cannot be read.
pub fn tests(root: &Path) -> anyhow::Result<Vec<Test>> {
    let mut tests = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(root.join(&folder)).with_context(|| folder.display().to_string())?;
        for entry in entries {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                if !SKIPPED.iter().any(|skipped| path == Path::new(skipped)) {
                    folders.push(path);
                }
                continue;
            }
            let read = match path.extension().and_then(|extension| extension.to_str()) {
                Some("rs") => in_rust,
                Some("go") if path.to_string_lossy().ends_with("_test.go") => in_go,
                _ => continue,
            };
            let source = std::fs::read_to_string(root.join(&path)).with_context(|| path.display().to_string())?;
            tests.extend(read(&path, &source));
        }
    }
    tests.sort_by_cached_key(Test::place);
    Ok(tests)
}

/// Attributes that make a function a test, as they start.
const TEST_ATTRIBUTES: &[&str] = &["#[test]", "#[tokio::test", "#[rstest]", "#[rstest("];

fn in_rust(file: &Path, source: &str) -> Vec<Test> {
    let mut tests = Vec::new();
    let mut head: Vec<&str> = Vec::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let text = line.trim_start();
        let is_test = head.iter().any(|line| TEST_ATTRIBUTES.iter().any(|attribute| line.starts_with(attribute)));
        if let Some(name) = rust_function(text) {
            let body = body(line, &mut lines);
            let ignored = head.iter().any(|line| line.starts_with("#[ignore") || line.starts_with("#[cfg(any())"));
            if is_test && !ignored {
                tests.push(test(file, name, &head, &body, rust_case));
            }
            head.clear();
        } else if is_test || text.starts_with("///") || text.starts_with("#[") {
            // Once the attribute is there, everything up to the function belongs to it, as cases over several lines do.
            head.push(text);
        } else {
            head.clear();
        }
    }
    tests
}

fn rust_function(line: &str) -> Option<&str> {
    let mut rest = line;
    for word in ["pub(crate) ", "pub ", "async ", "unsafe "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    let name = rest.strip_prefix("fn ")?;
    let end = name.find(|letter: char| !letter.is_alphanumeric() && letter != '_')?;
    Some(&name[..end])
}

/// The name of a case: `#[case::c25_end_turn(...)]`.
fn rust_case(line: &str) -> Option<&str> {
    let name = line.strip_prefix("#[case::")?;
    let end = name.find(|letter: char| !letter.is_alphanumeric() && letter != '_')?;
    Some(&name[..end])
}

fn in_go(file: &Path, source: &str) -> Vec<Test> {
    let mut tests = Vec::new();
    let mut head: Vec<&str> = Vec::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("func Test").and_then(|rest| rest.split('(').next()) {
            let body = body(line, &mut lines);
            tests.push(test(file, name.trim_start_matches('_'), &head, &body, |_| None));
            head.clear();
        } else if line.starts_with("//") {
            head.push(line);
        } else {
            head.clear();
        }
    }
    tests
}

/// The lines of a function after its first one.
fn body<'a>(first: &str, lines: &mut impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let indent = &first[..first.len() - first.trim_start().len()];
    let end = format!("{indent}}}");
    if first.ends_with('}') {
        return Vec::new();
    }
    lines.take_while(|line| *line != end).collect()
}

fn test(file: &Path, name: &str, head: &[&str], body: &[&str], case: impl Fn(&str) -> Option<&str>) -> Test {
    let mut in_text = BTreeSet::new();
    for line in head {
        if let Some(case) = case(line) {
            in_text.extend(names::in_name(case));
        }
        in_text.extend(names::in_text(&prose(line)));
    }
    for line in body {
        in_text.extend(names::in_text(&prose(line)));
    }
    Test { file: file.into(), name: name.into(), in_name: names::in_name(name), in_text }
}

/// What of a line is written for people: its comment and its texts in quotes. The rest is code, where `c1` may be a
/// variable.
fn prose(line: &str) -> String {
    let mut prose = String::new();
    let mut quoted = false;
    let mut letters = line.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => {
                quoted = !quoted;
                prose.push(' ');
            }
            '\\' if quoted => {
                letters.next();
                prose.push(' ');
            }
            '/' if !quoted && line[at..].starts_with("//") => {
                prose.push(' ');
                prose.push_str(&line[at..]);
                break;
            }
            _ if quoted => prose.push(letter),
            _ => {}
        }
    }
    prose
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(tests: Vec<Test>) -> Vec<String> {
        let shown = |test: &Test| {
            let rules: Vec<_> = test.in_name.union(&test.in_text).map(Rule::to_string).collect();
            format!("{}: {}", test.name, rules.join(" "))
        };
        tests.iter().map(shown).collect()
    }

    fn rust(source: &str) -> Vec<String> {
        found(in_rust(Path::new("a.rs"), source))
    }

    #[test]
    fn a_test_is_named_by_its_name_comment_cases_and_messages() {
        let source = r#"
//! Module about c1.

/// Says c2 about a function that is no test.
fn helper() {
    let text = "c3";
}

#[cfg(test)]
mod tests {
    /// R1, c41: at most one.
    /// And S1.
    #[rstest]
    #[case::c25_end_turn("end_turn", "c26")]
    #[case(
        "c27",
        c28
    )]
    #[tokio::test]
    async fn c5_c6_it(#[case] c29: &str) {
        let c30 = r1;
        assert!(c30, "c31: {}", c32); // T4 too
    }

    #[test]
    fn plain() {}

    fn after() {
        "c40";
    }
}
"#;
        assert_eq!(rust(source), ["c5_c6_it: R1 S1 T4 c5 c6 c25 c26 c27 c31 c41", "plain: "]);
    }

    #[test]
    fn an_ignored_test_is_none() {
        assert_eq!(rust("#[test]\n#[ignore = \"slow\"]\nfn c1_it() {\n}\n"), [""; 0]);
    }

    #[test]
    fn a_comment_belongs_to_the_function_below_it_alone() {
        let source = "/// c1\nfn helper() {\n}\n#[test]\nfn it() {\n}\n/// c2\n\n#[test]\nfn other() {\n}\n";
        assert_eq!(rust(source), ["it: ", "other: "]);
    }

    #[test]
    fn tests_inside_a_macro_are_found() {
        let source = "proptest! {\n    /// c41\n    #[test]\n    fn it(steps in any()) {\n    }\n}\n";
        assert_eq!(rust(source), ["it: c41"]);
    }

    #[test]
    fn go_tests_are_functions_that_start_with_test() {
        let source = "// S6: it drains.\nfunc TestDrain(t *testing.T) {\n\tc1 := 2\n\tt.Run(\"c9 nothing starts\", f)\n}\n\n// c3\nfunc helper() {\n}\n";
        assert_eq!(found(in_go(Path::new("a_test.go"), source)), ["Drain: S6 c9"]);
    }

    #[test]
    fn prose_is_what_stands_in_quotes_and_comments() {
        assert_eq!(
            prose(r#"f(c1, "c2 \" c3", c4); // c5 "c6"#).split_whitespace().collect::<Vec<_>>(),
            ["c2", "c3", "//", "c5", "\"c6"]
        );
        assert_eq!(prose("let c1 = 2;").trim(), "");
    }
}
