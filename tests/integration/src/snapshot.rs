//! Output that is committed and compared: whoever changes it sees in the diff what a user would see.

use crate::commands::repository;
use regex::Regex;

/// Compares `actual` with `tests/integration/snapshots/NAME.txt`, or writes it with `UPDATE_SNAPSHOTS=1`.
///
/// # Panics
/// When they differ.
pub fn assert_snapshot(name: &str, actual: &str) {
    let path = repository().join("tests/integration/snapshots").join(format!("{name}.txt"));
    let actual = format!("{}\n", actual.trim_end());
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, actual).expect("a snapshot");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        expected == actual,
        "{} differs; look at it, and if it is meant: UPDATE_SNAPSHOTS=1 tests/integration/run\n--- committed\n{expected}--- now\n{actual}",
        path.display()
    );
}

/// Text without what differs from one call to the next: UIDs, times, ages, resource versions and the given names.
pub fn normalise(text: &str, names: &[(&str, &str)]) -> String {
    let mut text = text.to_owned();
    for (from, to) in names {
        text = text.replace(from, to);
    }
    for (pattern, to) in [
        (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<uid>"),
        (r"(Creation Timestamp: +)\S+", "$1<time>"),
        (r"(Resource Version: +)\d+", "$1<version>"),
        (r"(?m)^(  \w+ +\w+ +)\d+[smh]\S*( +subagents.dev)", "$1<age>$2"),
    ] {
        text = Regex::new(pattern).expect("a pattern").replace_all(&text, to).into_owned();
    }
    text
}

/// A table of kubectl without the ages, its columns as wide as their content.
pub fn normalise_table(text: &str) -> String {
    let lines: Vec<Vec<char>> = text.lines().map(|line| line.chars().collect()).collect();
    let Some(header) = lines.first() else { return String::new() };
    // kubectl separates columns by at least three spaces and aligns every cell with its heading.
    let heading: String = header.iter().collect();
    let starts: Vec<usize> =
        Regex::new(r"(?:^|   )\S").expect("a pattern").find_iter(&heading).map(|m| m.end() - 1).collect();
    let mut rows: Vec<Vec<String>> = lines
        .iter()
        .map(|line| {
            let cell = |(i, &start): (usize, &usize)| {
                let end = starts.get(i + 1).copied().unwrap_or(line.len()).min(line.len());
                line[start.min(end)..end].iter().collect::<String>().trim().to_owned()
            };
            starts.iter().enumerate().map(cell).collect()
        })
        .collect();
    if let Some(age) = rows[0].iter().position(|heading| heading == "AGE") {
        rows.iter_mut().skip(1).for_each(|row| row[age] = "<age>".into());
    }
    let widths: Vec<usize> =
        (0..starts.len()).map(|i| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("   ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_keeps_everything_but_ages() {
        let one = "NAME   PHASE     DESCRIPTION   AGE   POD\na      Running   say it now    2s    p\nbb               x             2s    \n";
        let two = "NAME   PHASE     DESCRIPTION   AGE    POD\na      Running   say it now    112s   p\nbb               x             112s   \n";
        let expected = "NAME   PHASE     DESCRIPTION   AGE     POD\na      Running   say it now    <age>   p\nbb               x             <age>";
        assert_eq!(normalise_table(one), expected);
        assert_eq!(normalise_table(two), expected);
    }
}
