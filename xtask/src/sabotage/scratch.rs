//! The copy of the checkout in which wrong code is tried.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

/// Programs that tests look for in the checkout; the copy gets a link to them.
const TOOLS: &str = ".cluster/bin";

/// The copy, with its own target folder beside it.
#[derive(Debug)]
pub struct Scratch {
    /// The copy.
    pub tree: PathBuf,
    /// Cargo's target folder.
    pub target: PathBuf,
}

impl Scratch {
    /// Makes the copy in `folder`, or brings the one that is there up to date. Files that are the same keep their time,
    /// so that Cargo compiles only what differs, also from what a run that was broken off left.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub fn of(root: &Path, folder: &Path) -> anyhow::Result<Self> {
        let scratch = Self { tree: folder.join("tree"), target: folder.join("target") };
        let files = listed(root)?;
        for file in &files {
            copy_if_different(&root.join(file), &scratch.tree.join(file))?;
        }
        remove_others(&scratch.tree, &scratch.tree, &files)?;
        let (tools, link) = (root.join(TOOLS), scratch.tree.join(TOOLS));
        if std::fs::read_link(&link).ok().as_ref() != Some(&tools) {
            std::fs::create_dir_all(link.parent().context("it lies in a folder")?)?;
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(&tools, &link).with_context(|| link.display().to_string())?;
        }
        Ok(scratch)
    }

    /// Applies a patch until the returned value is dropped.
    ///
    /// # Errors
    /// When it does not apply.
    pub fn apply(&self, patch: &Path) -> anyhow::Result<Applied<'_>> {
        git_apply(&self.tree, &[], patch)?;
        Ok(Applied { scratch: self, patch: patch.to_owned(), reverted: false })
    }
}

/// A patch that is applied. It is taken back when this is dropped, whatever happens meanwhile.
#[derive(Debug)]
pub struct Applied<'a> {
    scratch: &'a Scratch,
    patch: PathBuf,
    reverted: bool,
}

impl Applied<'_> {
    /// Takes the patch back.
    ///
    /// # Errors
    /// When that does not work; the copy is wrong then.
    pub fn revert(mut self) -> anyhow::Result<()> {
        self.reverted = true;
        git_apply(&self.scratch.tree, &["--reverse"], &self.patch)
    }
}

impl Drop for Applied<'_> {
    fn drop(&mut self) {
        if !self.reverted {
            let _ = git_apply(&self.scratch.tree, &["--reverse"], &self.patch);
        }
    }
}

/// Whether a patch applies to a checkout, without touching it.
///
/// # Errors
/// When it does not.
pub fn applies(root: &Path, patch: &Path) -> anyhow::Result<()> {
    git_apply(root, &["--check"], patch)
}

fn git_apply(tree: &Path, arguments: &[&str], patch: &Path) -> anyhow::Result<()> {
    let mut git = Command::new("git");
    git.arg("apply").args(arguments).arg(patch).current_dir(tree);
    // The copy is no repository; one around it would make git look there.
    git.env("GIT_CEILING_DIRECTORIES", tree.parent().unwrap_or(tree));
    let output = git.output().context("git apply")?;
    ensure!(output.status.success(), "it does not apply: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// The files of a checkout: what git knows, and what it would take, as they are now.
fn listed(root: &Path) -> anyhow::Result<BTreeSet<PathBuf>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
    let output = git.output().context("git ls-files")?;
    ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    let text = String::from_utf8(output.stdout).context("a file name that is not UTF-8")?;
    let files = text.split('\0').filter(|file| !file.is_empty()).map(PathBuf::from);
    Ok(files.filter(|file| root.join(file).is_file()).collect())
}

fn copy_if_different(from: &Path, to: &Path) -> anyhow::Result<()> {
    let content = std::fs::read(from).with_context(|| from.display().to_string())?;
    if std::fs::read(to).is_ok_and(|there| there == content) {
        return Ok(());
    }
    std::fs::create_dir_all(to.parent().context("a file lies in a folder")?)?;
    // With its mode: some of them are scripts.
    std::fs::copy(from, to).with_context(|| to.display().to_string())?;
    Ok(())
}

/// Removes files that the checkout does not have any more. Links are ours.
fn remove_others(tree: &Path, folder: &Path, kept: &BTreeSet<PathBuf>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() {
            remove_others(tree, &path, kept)?;
        } else if kind.is_file() && !kept.contains(path.strip_prefix(tree)?) {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A checkout with two files, and a folder for its copy.
    fn checkout() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let (root, copy) = (folder.path().join("root"), folder.path().join("copy"));
        fs::create_dir_all(root.join("src")).unwrap();
        fs::write(root.join("src/a.rs"), "one\n").unwrap();
        fs::write(root.join("b"), "b\n").unwrap();
        fs::write(root.join(".gitignore"), "ignored\n").unwrap();
        fs::write(root.join("ignored"), "").unwrap();
        assert!(Command::new("git").args(["init", "--quiet"]).current_dir(&root).status().unwrap().success());
        (folder, root, copy)
    }

    fn patch(folder: &Path) -> PathBuf {
        let patch = folder.join("p.patch");
        let text =
            "# wrong\ndiff --git a/src/a.rs b/src/a.rs\n--- a/src/a.rs\n+++ b/src/a.rs\n@@ -1 +1 @@\n-one\n+two\n";
        fs::write(&patch, text).unwrap();
        patch
    }

    #[test]
    fn a_patch_changes_the_copy_and_never_the_checkout() {
        let (folder, root, copy) = checkout();
        let patch = patch(folder.path());
        let scratch = Scratch::of(&root, &copy).unwrap();
        assert!(!scratch.tree.join("ignored").exists());
        let read = |root: &Path| fs::read_to_string(root.join("src/a.rs")).unwrap();
        let applied = scratch.apply(&patch).unwrap();
        assert_eq!((read(&scratch.tree), read(&root)), ("two\n".into(), "one\n".into()));
        applied.revert().unwrap();
        assert_eq!(read(&scratch.tree), "one\n");
        drop(scratch.apply(&patch).unwrap());
        assert_eq!(read(&scratch.tree), "one\n");
    }

    #[test]
    fn what_a_run_that_was_broken_off_left_is_put_right_with_a_new_time() {
        let (_folder, root, copy) = checkout();
        let scratch = Scratch::of(&root, &copy).unwrap();
        let time = |file: &str| fs::metadata(scratch.tree.join(file)).unwrap().modified().unwrap();
        let before = (time("src/a.rs"), time("b"));
        fs::write(scratch.tree.join("src/a.rs"), "two\n").unwrap();
        fs::write(scratch.tree.join("left"), "").unwrap();
        Scratch::of(&root, &copy).unwrap();
        assert_eq!(fs::read_to_string(scratch.tree.join("src/a.rs")).unwrap(), "one\n");
        assert!(time("src/a.rs") > before.0 && time("b") == before.1);
        assert!(!scratch.tree.join("left").exists());
    }

    #[test]
    fn a_patch_that_does_not_apply_is_an_error() {
        let (folder, root, copy) = checkout();
        let patch = patch(folder.path());
        assert!(applies(&root, &patch).is_ok());
        fs::write(root.join("src/a.rs"), "three\n").unwrap();
        assert!(applies(&root, &patch).is_err());
        assert!(Scratch::of(&root, &copy).unwrap().apply(&patch).is_err());
    }
}
