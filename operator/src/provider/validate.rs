//! Whether a provider can be used. Pure.

use crate::pod::template;
use subagent_crds::{Reason, SubagentProviderSpec, provider::Context, run::InterruptionPolicy};

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
        (
            spec.session_state.is_some(),
            "spec.sessionState",
            "leave it out: continuable children are not available in this version",
        ),
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
    template::check(&spec.template)
        .map_err(|error| Problem { reason: Reason::InvalidTemplate, message: error.to_string() })
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
    #[case(json!({"sessionState": {"paths": ["/x"]}}), "spec.sessionState")]
    #[case(json!({"maxConcurrentRuns": 1}), "spec.maxConcurrentRuns")]
    #[case(json!({"runDefaults": {"interruptionPolicy": "Restart"}}), "spec.runDefaults.interruptionPolicy")]
    fn c7_what_is_not_available_is_refused_never_ignored(#[case] extra: Value, #[case] field: &str) {
        let problem = validate(&spec(extra)).unwrap_err();
        assert_eq!(problem.reason, Reason::UnsupportedCapability);
        assert!(problem.message.starts_with(field), "{}", problem.message);
    }

    #[test]
    fn a_plain_provider_is_fine_and_a_bad_template_is_named() {
        validate(&spec(json!({}))).unwrap();
        let problem = validate(&spec(json!({"template": {"spec": {"hostPID": true}}}))).unwrap_err();
        assert_eq!(problem.reason, Reason::InvalidTemplate);
        assert!(problem.message.contains("hostPID"), "{}", problem.message);
    }
}
