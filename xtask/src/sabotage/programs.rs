//! Building test programs, and finding tests in them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use super::scratch::Scratch;

/// Lines of a compiler's words that are shown.
const SHOWN: usize = 12;

/// Arguments that build just this program: `--lib`, `--bin x`, `--test y`.
type Selection = Vec<String>;

/// A program with tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// What Cargo builds it by.
    pub selection: Selection,
    /// The executable.
    pub path: PathBuf,
    /// Folder of its package, where Cargo would run it.
    pub folder: PathBuf,
    /// Paths of its tests.
    pub tests: Vec<String>,
}

/// A test that patches name, with all its cases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// As patches name it.
    pub test: String,
    /// Paths of its cases, or its own.
    pub paths: Vec<String>,
    /// Where it is.
    pub program: Program,
}

/// Builds the test programs of a package, only those of `selected` when there are any.
///
/// # Errors
/// When it does not compile, with what the compiler said first.
pub fn build(scratch: &Scratch, package: &str, selected: &[&Program]) -> anyhow::Result<Vec<Program>> {
    let mut cargo = cargo();
    cargo.args(["test", "--no-run", "--locked", "--message-format=json-render-diagnostics", "--package", package]);
    for selection in selected.iter().map(|program| &program.selection).collect::<BTreeSet<_>>() {
        cargo.args(selection);
    }
    let output = cargo.current_dir(&scratch.tree).env("CARGO_TARGET_DIR", &scratch.target).output().context("cargo")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("{package} does not compile:\n{}", first_error(&said));
    }
    let mut programs = executables(&String::from_utf8_lossy(&output.stdout));
    for program in &mut programs {
        program.tests = list(program)?;
    }
    Ok(programs)
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn first_error(said: &str) -> String {
    let lines = said.lines().skip_while(|line| !line.starts_with("error"));
    lines.take(SHOWN).collect::<Vec<_>>().join("\n")
}

/// What Cargo tells about a compiled target.
#[derive(Deserialize)]
struct Artifact {
    reason: String,
    #[serde(default)]
    manifest_path: PathBuf,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// The test programs among Cargo's messages.
fn executables(messages: &str) -> Vec<Program> {
    let artifacts = messages.lines().filter_map(|line| serde_json::from_str::<Artifact>(line).ok());
    let program = |artifact: Artifact| {
        let (target, path) = (artifact.target?, artifact.executable?);
        if artifact.reason != "compiler-artifact" || !artifact.profile?.test {
            return None;
        }
        let selection = match target.kind.first()?.as_str() {
            kind @ ("bin" | "test") => vec![format!("--{kind}"), target.name],
            _ => vec!["--lib".to_owned()],
        };
        Some(Program { selection, path, folder: artifact.manifest_path.parent()?.to_owned(), tests: Vec::new() })
    };
    artifacts.filter_map(program).collect()
}

fn list(program: &Program) -> anyhow::Result<Vec<String>> {
    let output = Command::new(&program.path).args(["--list", "--format=terse"]).current_dir(&program.folder).output();
    let output = output.with_context(|| program.path.display().to_string())?;
    ensure!(output.status.success(), "{} --list failed", program.path.display());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

/// Finds the one test function of that name.
///
/// # Errors
/// When there is none, or more than one.
pub fn find(programs: &[Program], test: &str) -> anyhow::Result<Found> {
    let mut functions: BTreeMap<(&Path, &str), Vec<String>> = BTreeMap::new();
    for program in programs {
        for path in &program.tests {
            if let Some(function) = function(path, test) {
                functions.entry((&program.path, function)).or_default().push(path.clone());
            }
        }
    }
    ensure!(functions.len() < 2, "{test} names {} tests; name more of its path", functions.len());
    let Some(((path, _), paths)) = functions.pop_first() else { bail!("there is no test {test}") };
    let program = programs.iter().find(|program| program.path == path).context("the program it was found in")?;
    Ok(Found { test: test.to_owned(), paths, program: program.clone() })
}

/// The part of a test's path that a patch names: all of it, its end, or what cases lie below.
fn function<'a>(path: &'a str, named: &str) -> Option<&'a str> {
    let ends = path.match_indices(named).map(|(at, _)| (at, at + named.len()));
    let whole = |(start, end): &(usize, usize)| {
        (*start == 0 || path[..*start].ends_with("::")) && (*end == path.len() || path[*end..].starts_with("::"))
    };
    ends.filter(whole).map(|(_, end)| &path[..end]).next()
}

/// The folder of every package of the workspace.
///
/// # Errors
/// When Cargo cannot tell.
pub fn folders(root: &Path) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
        manifest_path: PathBuf,
    }
    let mut cargo = cargo();
    cargo.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(root);
    let output = cargo.output().context("cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let folder = |package: Package| Some((package.name, package.manifest_path.parent()?.to_owned()));
    Ok(metadata.packages.into_iter().filter_map(folder).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("a::b::works", "works", Some("a::b::works"))]
    #[case("a::b::works", "b::works", Some("a::b::works"))]
    #[case("a::b::works", "a::b::works", Some("a::b::works"))]
    #[case("a::works::case_1_x", "works", Some("a::works"))]
    #[case("a::works::case_1_x", "works::case_1_x", Some("a::works::case_1_x"))]
    #[case("a::it_works", "works", None)]
    #[case("a::works_well", "works", None)]
    #[case("a::it_works::works", "works", Some("a::it_works::works"))]
    fn a_test_is_named_by_whole_segments(#[case] path: &str, #[case] named: &str, #[case] expected: Option<&str>) {
        assert_eq!(function(path, named), expected);
    }

    fn program(path: &str, tests: &[&str]) -> Program {
        let tests = tests.iter().map(|&test| test.to_owned()).collect();
        Program { selection: Vec::new(), path: path.into(), folder: PathBuf::new(), tests }
    }

    #[test]
    fn a_name_means_one_function_with_all_its_cases() {
        let programs = [program("x", &["a::t::case_1", "a::t::case_2", "b::u"]), program("y", &["b::u", "c::u"])];
        let found = find(&programs, "t").unwrap();
        assert_eq!((found.paths.len(), found.program.path), (2, PathBuf::from("x")));
        assert_eq!(find(&programs, "c::u").unwrap().paths, ["c::u"]);
        assert_eq!(find(&programs, "u").unwrap_err().to_string(), "u names 3 tests; name more of its path");
        assert_eq!(find(&programs, "v").unwrap_err().to_string(), "there is no test v");
    }

    #[test]
    fn test_programs_are_told_by_cargo() {
        let line = |kind: &str, name: &str, test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"p","manifest_path":"/r/p/Cargo.toml","target":{{"kind":["{kind}"],"name":"{name}"}},"profile":{{"test":{test}}},"executable":{executable},"fresh":true}}"#
            )
        };
        let messages = [
            line("lib", "a", false, "null"),
            line("lib", "a", true, "\"/t/a-1\""),
            line("bin", "w", false, "\"/t/w\""),
            line("bin", "w", true, "\"/t/w-2\""),
            line("test", "it", true, "\"/t/it-3\""),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let programs = executables(&messages.join("\n"));
        let selections: Vec<_> = programs.iter().map(|program| program.selection.join(" ")).collect();
        assert_eq!(selections, ["--lib", "--bin w", "--test it"]);
        assert_eq!(
            (programs[2].path.as_path(), programs[2].folder.as_path()),
            (Path::new("/t/it-3"), Path::new("/r/p"))
        );
    }

    #[test]
    fn the_compilers_first_error_is_shown() {
        assert_eq!(first_error("warning: x\nerror[E1]: a\n --> b\n"), "error[E1]: a\n --> b");
    }
}
