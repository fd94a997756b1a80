//! Output of kubectl that is committed and compared: whoever changes it sees in the diff what a user would see.

use crate::commands::repository;
use regex::Regex;

/// Compares `actual` with `tests/e2e/snapshots/NAME.txt`, or writes it with `UPDATE_SNAPSHOTS=1`.
///
/// # Panics
/// When they differ.
pub fn assert_snapshot(name: &str, actual: &str) {
    let path = repository().join("tests/e2e/snapshots").join(format!("{name}.txt"));
    let actual = format!("{}\n", actual.trim_end());
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, actual).expect("a snapshot");
        return;
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == actual,
        "{} differs; look at it, and if it is meant: UPDATE_SNAPSHOTS=1 tests/e2e/run\n--- committed\n{committed}--- now\n{actual}",
        path.display()
    );
}

/// Text without what differs from one run to the next: UIDs, digests, times, ages, versions, and the given words.
pub fn normalise(text: &str, words: &[(&str, &str)]) -> String {
    let mut text = text.to_owned();
    for (from, to) in words {
        text = text.replace(from, to);
    }
    for (pattern, to) in [
        (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<uid>"),
        (r"\b[0-9a-f]{64}\b", "<sha256>"),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "<time>"),
        (r"(Resource Version: +)\d+", "$1<version>"),
        // The first word of a line about an Event is its type; the age stands behind the reason.
        (r"(?m)^(  (?:Normal|Warning) +\w+ +)\S+(?: \(x\d+ over \S+\))?( +)subagents", "$1<age>  subagents"),
        // How many reports it took is a matter of time; the transcript names the namespace.
        (r"(Seq: +)\d+", "$1<seq>"),
        (r"-[0-9a-f]{8}-transcript-", "-<hash>-transcript-"),
        (r"(?s)(-transcript-\d+\s+sha256: +<sha256>\s+Size: +)\d+", "$1<size>"),
    ] {
        text = Regex::new(pattern).expect("a pattern").replace_all(&text, to).into_owned();
    }
    text
}

/// A table of kubectl without ages, its columns as wide as their content.
///
/// # Panics
/// When it is empty.
pub fn normalise_table(text: &str, words: &[(&str, &str)]) -> String {
    let heading = text.lines().next().expect("a heading");
    // Columns are at least three blanks apart and every cell starts below its heading.
    let starts: Vec<usize> =
        Regex::new(r"(?:^|   )\S").expect("a pattern").find_iter(heading).map(|found| found.end() - 1).collect();
    let mut rows: Vec<Vec<String>> = vec![];
    for line in text.lines() {
        let line: Vec<char> = line.chars().collect();
        let ends = starts.iter().skip(1).copied().chain([line.len()]);
        let cells = starts.iter().zip(ends).map(|(&start, end)| {
            let (start, end) = (start.min(line.len()), end.min(line.len()));
            line[start..end].iter().collect::<String>().trim().to_owned()
        });
        rows.push(cells.map(|cell| normalise(&cell, words)).collect());
    }
    if let Some(age) = rows[0].iter().position(|cell| cell == "AGE") {
        rows.iter_mut().skip(1).for_each(|row| row[age] = "<age>".into());
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let lines = rows.iter().map(|row| {
        let cells = row.iter().enumerate().map(|(column, cell)| format!("{cell:<0$}", width(column)));
        cells.collect::<Vec<_>>().join("   ").trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_keeps_everything_but_ages_and_names() {
        let one = "NAME   PHASE     DESCRIPTION   AGE   POD\na      Running   say it now    2s    p-12\nbb               x             2s    \n";
        let two = "NAME   PHASE     DESCRIPTION   AGE    POD\na      Running   say it now    112s   p-345\nbb               x             112s   \n";
        let expected = "NAME   PHASE     DESCRIPTION   AGE     POD\na      Running   say it now    <age>   p\nbb               x             <age>";
        assert_eq!(normalise_table(one, &[("p-12", "p")]), expected);
        assert_eq!(normalise_table(two, &[("p-345", "p")]), expected);
    }
}
