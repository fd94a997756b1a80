//! Whether a provider can be used. Pure.

use crate::pod::template;
use std::path::{Component, Path};
use subagent_crds::{Reason, SubagentProviderSpec, provider::Context, run::InterruptionPolicy};
use subagent_link::{HOME_DIR, POD_DIR};

/// Why a provider is not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Reason of the taxonomy.
    pub reason: Reason,
    /// The field and the remedy.
    pub message: String,
}

impl Problem {
    /// The API server takes no pod of the template, and says this.
    pub fn refused(reason: Reason, said: &str) -> Self {
        let seen = format!("the API server refuses the pod of spec.template: {said}");
        let message = match reason {
            Reason::InvalidTemplate => format!("{seen}; correct the named field, which is below spec.template"),
            _ => reason.with_remedy(&seen),
        };
        Self { reason, message }
    }
}

/// Checks a spec.
///
/// # Errors
/// The first problem, in the order of the fields.
pub fn validate(spec: &SubagentProviderSpec) -> Result<(), Problem> {
    let later = [
        (spec.context == Context::Fork, "spec.context: Fork", "leave it out or write Fresh"),
        (spec.max_concurrent_runs.is_some(), "spec.maxConcurrentRuns", "leave it out"),
        (
            spec.run_defaults.interruption_policy.is_some_and(|policy| policy != InterruptionPolicy::Fail),
            "spec.runDefaults.interruptionPolicy",
            "leave it out or write Fail",
        ),
    ];
    for (is_set, field, remedy) in later {
        if is_set {
            return Err(Problem {
                reason: Reason::UnsupportedCapability,
                message: format!("{field} is not available in this version; {remedy}"),
            });
        }
    }
    session_state(spec)?;
    template::check(&spec.template)
        .map_err(|error| Problem { reason: Reason::InvalidTemplate, message: error.to_string() })
}

/// A checkpoint is a copy of folders of the agent's, each once: restoring one must not undo another, nor touch what the
/// operator brings into the pod.
fn session_state(spec: &SubagentProviderSpec) -> Result<(), Problem> {
    let paths = spec.session_state.iter().flat_map(|state| &state.paths).map(Path::new).enumerate();
    for (at, path) in paths.clone() {
        let problem = if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
            Some("is not an absolute path without `..`".to_owned())
        } else if path.parent().is_none() {
            Some("is the root of the filesystem; name the folder in which the agent keeps its sessions".to_owned())
        } else if path.starts_with(POD_DIR) && !path.starts_with(HOME_DIR) {
            Some(format!("is below {POD_DIR}, which is the operator's; of that only {HOME_DIR} is the agent's"))
        } else {
            let holds = |(other_at, other): &(usize, &Path)| *other_at != at && path.starts_with(other);
            paths
                .clone()
                .find(holds)
                .map(|(other_at, _)| format!("lies in paths[{other_at}]; name the outer one alone"))
        };
        if let Some(problem) = problem {
            let message = format!("spec.sessionState.paths[{at}] {problem}");
            return Err(Problem { reason: Reason::InvalidTemplate, message });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn spec(extra: Value) -> SubagentProviderSpec {
        let mut spec = json!({"transport": {"acp": {}}, "template": {"spec": {"containers": [{"name": "agent", "command": ["a"]}]}}});
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::from_value(spec).unwrap()
    }

    #[rstest]
    #[case(json!({"context": "Fork"}), "spec.context")]
    #[case(json!({"maxConcurrentRuns": 1}), "spec.maxConcurrentRuns")]
    #[case(json!({"runDefaults": {"interruptionPolicy": "Restart"}}), "spec.runDefaults.interruptionPolicy")]
    fn c7_what_is_not_available_is_refused_never_ignored(#[case] extra: Value, #[case] field: &str) {
        let problem = validate(&spec(extra)).unwrap_err();
        assert_eq!(problem.reason, Reason::UnsupportedCapability);
        assert!(problem.message.starts_with(field), "{}", problem.message);
    }

    #[rstest]
    #[case::fine(&["/home/agent/.claude/projects", "/home/agent/.claude/other", "/subagents/home/.x"], None)]
    #[case::relative(&["state"], Some("paths[0] is not an absolute"))]
    #[case::upwards(&["/a", "/b/../../etc"], Some("paths[1] is not an absolute"))]
    #[case::root(&["/"], Some("paths[0] is the root"))]
    #[case::ours(&["/subagents/link"], Some("paths[0] is below /subagents"))]
    #[case::all_of_ours(&["/subagents"], Some("paths[0] is below /subagents"))]
    #[case::nested(&["/a/b", "/a"], Some("paths[0] lies in paths[1]"))]
    #[case::twice(&["/a", "/a"], Some("paths[0] lies in paths[1]"))]
    fn a_checkpoint_is_of_folders_that_are_the_agents_own(#[case] paths: &[&str], #[case] expected: Option<&str>) {
        let problem = validate(&spec(json!({"sessionState": {"paths": paths}}))).err();
        match expected {
            None => assert_eq!(problem, None),
            Some(words) => assert!(problem.as_ref().is_some_and(|it| it.message.contains(words)), "{problem:?}"),
        }
    }

    #[test]
    fn a_plain_provider_is_fine_and_a_bad_template_is_named() {
        validate(&spec(json!({}))).unwrap();
        let problem = validate(&spec(json!({"template": {"spec": {"hostPID": true}}}))).unwrap_err();
        assert_eq!(problem.reason, Reason::InvalidTemplate);
        assert!(problem.message.contains("hostPID"), "{}", problem.message);
    }
}
