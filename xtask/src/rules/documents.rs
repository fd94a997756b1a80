//! Reading the documents: which rules exist, and which of them must be covered by now.

use std::collections::BTreeSet;

use anyhow::{Context, bail};

use super::names::{self, Rule};

/// The rules of a document, in its order: list items that start with the rule's name in bold.
///
/// # Errors
/// When there is none, or one twice.
pub fn rules(document: &str) -> anyhow::Result<Vec<Rule>> {
    let mut rules = Vec::new();
    for line in document.lines() {
        let name = line.strip_prefix("- **").and_then(|line| line.split_once("**")).map(|(name, _)| name);
        let Some(rule) = name.and_then(|name| name.parse().ok()) else { continue };
        if rules.contains(&rule) {
            bail!("{rule} is there twice");
        }
        rules.push(rule);
    }
    if rules.is_empty() {
        bail!("no list item starts with the name of a rule");
    }
    Ok(rules)
}

/// The rules in scope: names and ranges (`c20 to c23`); what follows a `#` is a comment.
///
/// # Errors
/// When a word is no rule of the documents.
pub fn scope(list: &str, rules: &[Rule]) -> anyhow::Result<BTreeSet<Rule>> {
    let mut scope = BTreeSet::new();
    for (index, line) in list.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        for word in line.split_whitespace().filter(|word| *word != "to") {
            word.parse::<Rule>()
                .ok()
                .filter(|rule| rules.contains(rule))
                .with_context(|| format!("line {}: `{word}` is no rule", index + 1))?;
        }
        scope.extend(names::in_text(line));
    }
    Ok(scope)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "# Rules\n\nAbout **c9**.\n\n- **c1** First.\n  Goes on about c7.\n- **c2** *(not yet)* Second.\n- **S1** Third.\n- **bold** word\n";

    fn shown<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> String {
        rules.into_iter().map(Rule::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn rules_are_items_with_a_bold_name() {
        assert_eq!(shown(&rules(DOCUMENT).expect("rules")), "c1 c2 S1");
    }

    #[test]
    fn a_rule_that_is_there_twice_is_an_error() {
        assert!(rules("- **c1** a\n- **c1** b\n").is_err());
        assert!(rules("no rules").is_err());
    }

    #[test]
    fn the_scope_has_names_ranges_and_comments() {
        let rules = rules(DOCUMENT).expect("rules");
        let scope = scope("# c2 is later\nc1 to c2 # both\n\nS1\n", &rules).expect("a scope");
        assert_eq!(scope.len(), 3);
    }

    #[test]
    fn a_rule_nobody_wrote_cannot_be_in_scope() {
        let rules = rules(DOCUMENT).expect("rules");
        let error = scope("c1\nc3\n", &rules).expect_err("unknown");
        assert_eq!(error.to_string(), "line 2: `c3` is no rule");
        assert!(scope("c1, c2", &rules).is_err());
    }
}
