//! Runs the patches of `tests/sabotage`: each is a small wrong change that must turn the tests red that it names.
//!
//! Everything happens in a copy of the checkout with a target folder of its own, which stay for the next time. First the
//! named tests must be green there; then each patch is applied by itself and taken back.

mod patch;
mod programs;
mod scratch;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail, ensure};

use crate::rules::sources;
use patch::{Patch, Red};
use programs::{Found, Program};
use scratch::Scratch;
use verdict::Verdict;

/// Where the patches are.
const FOLDER: &str = "tests/sabotage";

/// Checks without compiling: every patch is well-formed, applies, and names tests that exist.
///
/// # Errors
/// The patches that are not so, each with why.
pub fn check() -> anyhow::Result<()> {
    let root = root()?;
    let folders = programs::folders(&root)?;
    let tests = sources::tests(&root)?;
    let exists = |red: &Red| -> anyhow::Result<()> {
        let folder = folders.get(&red.package).with_context(|| format!("there is no package {}", red.package))?;
        let mut own = tests.iter().filter(|test| root.join(&test.file).starts_with(folder));
        let found = own.any(|test| red.test.split("::").any(|segment| segment == test.name));
        ensure!(found, "there is no test {} in {}", red.test, red.package);
        Ok(())
    };
    let mut bad = Vec::new();
    for patch in patches(&root, &[])? {
        let all = std::iter::once(scratch::applies(&root, &patch.file)).chain(patch.red.iter().map(exists));
        bad.extend(all.filter_map(|result| result.err().map(|error| format!("{}: {error:#}", patch.name))));
    }
    ensure!(bad.is_empty(), "patches in {FOLDER}:\n  {}", bad.join("\n  "));
    Ok(())
}

/// Runs the named patches, all when none is named, and prints a line for every test.
///
/// # Errors
/// When a named test is not green without its patch, stays green under it, or a patch does not compile.
pub fn run(names: &[String]) -> anyhow::Result<()> {
    let root = root()?;
    let patches = patches(&root, names)?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").context("CARGO_TARGET_DIR is not set; `make sabotage` sets it")?;
    let scratch = Scratch::of(&root, &PathBuf::from(target).join("sabotage"))?;
    let began = Instant::now();
    let named = without_patches(&scratch, &patches)?;
    let mut bad = Vec::new();
    let mut tests = 0;
    for patch in &patches {
        let lines = with_patch(&scratch, patch, &named)?;
        println!("{}: {}", patch.name, patch.wrong);
        for line in lines {
            println!("  {line}");
            tests += 1;
            if !line.is_red() {
                bad.push(format!("{} {}", patch.name, line.test));
            }
        }
    }
    // What made everything red may have been something else, such as an API server that is gone.
    println!("without a patch again:");
    for (package, found) in first_of_each(&named) {
        let programs = programs::build(&scratch, package, &[&found.program])?;
        let found = programs::find(&programs, &found.test)?;
        ensure!(
            found.run(&scratch) == Verdict::Green,
            "{package} {} is not green any more without a patch",
            found.test
        );
    }
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    println!(
        "{} patches, {tests} tests, {} that should be red and are not, {minutes:.1} min",
        patches.len(),
        bad.len()
    );
    if !bad.is_empty() {
        bail!("not red:\n  {}", bad.join("\n  "));
    }
    Ok(())
}

fn root() -> anyhow::Result<PathBuf> {
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the repository")?.to_owned())
}

/// The patches of these names, all when there is none, in an order that compiles little: by the files they change.
fn patches(root: &Path, names: &[String]) -> anyhow::Result<Vec<Patch>> {
    let folder = root.join(FOLDER);
    let mut patches = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "patch") {
            let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            patches.push(Patch::parse(path.clone(), &text).with_context(|| path.display().to_string())?);
        }
    }
    for name in names {
        ensure!(patches.iter().any(|patch| patch.name == *name), "there is no {FOLDER}/{name}.patch");
    }
    patches.retain(|patch| names.is_empty() || names.contains(&patch.name));
    ensure!(!patches.is_empty(), "{FOLDER} holds no patch");
    patches.sort_by_cached_key(|patch| (patch.packages(), patch.changed.clone(), patch.name.clone()));
    Ok(patches)
}

/// Where each named test is, or why it says nothing; by package and the name that patches use.
type Named = BTreeMap<Red, Result<Found, String>>;

/// Builds the test programs of all packages that patches name, and runs the named tests: only those that are green say
/// anything under a patch.
fn without_patches(scratch: &Scratch, patches: &[Patch]) -> anyhow::Result<Named> {
    let wanted: BTreeSet<&Red> = patches.iter().flat_map(|patch| &patch.red).collect();
    let packages: BTreeSet<&str> = wanted.iter().map(|red| red.package.as_str()).collect();
    let mut named = Named::new();
    for package in packages {
        eprintln!(":: building the tests of {package}");
        let programs = programs::build(scratch, package, &[])?;
        for red in wanted.iter().filter(|red| red.package == package) {
            named.insert((*red).clone(), programs::find(&programs, &red.test).map_err(|error| format!("{error:#}")));
        }
    }
    let found: Vec<Found> = named.values().flatten().cloned().collect();
    eprintln!(":: running {} tests without a patch", found.len());
    let mut verdicts = verdict::together(scratch, &found.iter().collect::<Vec<_>>()).into_iter();
    for test in named.values_mut().filter(|test| test.is_ok()) {
        match verdicts.next() {
            Some(Verdict::Green) => {}
            Some(verdict) => *test = Err(format!("not green without a patch: {verdict}")),
            None => *test = Err("it did not run".to_owned()),
        }
    }
    Ok(named)
}

/// What a test said under a patch.
struct Line {
    test: String,
    verdict: Verdict,
    seconds: f64,
}

impl Line {
    fn is_red(&self) -> bool {
        matches!(self.verdict, Verdict::Red(_))
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mark = if self.is_red() { "red  " } else { "NOT RED" };
        write!(f, "{mark} {} ({:.0} s): {}", self.test, self.seconds, self.verdict)
    }
}

fn with_patch(scratch: &Scratch, patch: &Patch, named: &Named) -> anyhow::Result<Vec<Line>> {
    let applied = match scratch.apply(&patch.file) {
        Ok(applied) => applied,
        Err(error) => return Ok(patch.red.iter().map(|red| broken(red, &format!("{error:#}"))).collect()),
    };
    let mut found = Vec::new();
    let mut lines = Vec::new();
    for package in patch.red_packages() {
        let mut green = Vec::new();
        for red in patch.red.iter().filter(|red| red.package == package) {
            match &named[red] {
                Ok(test) => green.push((red, test)),
                Err(why) => lines.push(broken(red, why)),
            }
        }
        if green.is_empty() {
            continue;
        }
        let programs: Vec<&Program> = green.iter().map(|(_, test)| &test.program).collect();
        let built = programs::build(scratch, &package, &programs);
        for (red, _) in green {
            match built.as_ref().map(|programs| programs::find(programs, &red.test)) {
                Ok(Ok(test)) => found.push(test),
                Ok(Err(error)) => lines.push(broken(red, &format!("{error:#}"))),
                Err(error) => lines.push(broken(red, &format!("{error:#}"))),
            }
        }
    }
    let began = Instant::now();
    let verdicts = verdict::together(scratch, &found.iter().collect::<Vec<_>>());
    let seconds = began.elapsed().as_secs_f64();
    for (found, verdict) in found.into_iter().zip(verdicts) {
        lines.push(Line { test: found.test, verdict, seconds });
    }
    applied.revert()?;
    Ok(lines)
}

fn broken(red: &Red, why: &str) -> Line {
    Line { test: red.test.clone(), verdict: Verdict::Broken(why.to_owned()), seconds: 0.0 }
}

/// One test of each package.
fn first_of_each(named: &Named) -> BTreeMap<&str, &Found> {
    let mut first = BTreeMap::new();
    for (red, found) in named {
        if let Ok(found) = found {
            first.entry(red.package.as_str()).or_insert(found);
        }
    }
    first
}
