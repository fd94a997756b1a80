//! What runs of a provider may ask for. Pure.

use crate::pod::template;
use subagent_crds::{SubagentProviderSpec, conditions, report::Agent};

/// The capability to continue a session in another pod: the provider names the agent's session files, and the agent loads or
/// resumes sessions.
pub const CONTINUATION: &str = "Continuation";

/// The capability to keep a child's files in a volume: its sessions can be continued, and its template leaves the agent's
/// working directory free for that.
pub const WORKSPACE: &str = "Workspace";

/// What every agent can do here, whatever it advertises: depths are the operator's.
pub const OF_EVERY_AGENT: &[&str] = &["DepthLimit"];

/// The capability to take a message into the turn that is running.
pub const STEERING: &str = "Steering";

/// What only a handshake tells of an agent; `AgentModel` only the session of one that can close it again. Whatever else it
/// advertises stays out: what is asked for and then ignored is worse than refused (contract c7).
pub const ADVERTISED: &[&str] = &[
    "LoadSession",
    "ResumeSession",
    "ForkSession",
    "CloseSession",
    STEERING,
    "Persona",
    "AgentModel",
    "ImagePrompt",
    "AudioPrompt",
    "EmbeddedContext",
];

/// Longest part of a provider's name in a text about a message, in bytes, so that what follows it is never cut.
const PROVIDER_NAME: usize = 100;

/// Why an agent takes no message into its turn, if it is known to take none.
pub fn without_steering(agent: &Agent, provider: &str) -> Option<String> {
    let lacks = !agent.capabilities.iter().any(|known| known == STEERING);
    let name = conditions::cut(provider, PROVIDER_NAME);
    lacks.then(|| {
        format!("SubagentProvider {name} has no capability {STEERING}: its agent takes nothing into a running turn")
    })
}

/// The capabilities of a provider whose agent, where it is known, is this one.
pub fn of(spec: &SubagentProviderSpec, agent: Option<&Agent>) -> Vec<String> {
    let advertised = || agent.iter().flat_map(|agent| &agent.capabilities).map(String::as_str);
    let known = advertised().filter(|name| ADVERTISED.contains(name));
    let continues = advertised().any(|name| ["LoadSession", "ResumeSession"].contains(&name));
    let continues = (continues && spec.session_state.is_some()).then_some(CONTINUATION);
    let keeps_files = continues.filter(|_| template::refuses_workspace(&spec.template).is_none()).map(|_| WORKSPACE);
    let own = OF_EVERY_AGENT.iter().copied().chain(continues).chain(keeps_files);
    own.chain(known).map(ToOwned::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn spec(extra: Value) -> SubagentProviderSpec {
        let mut spec = json!({"transport": {"acp": {}}, "template": {}});
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::from_value(spec).unwrap()
    }

    fn agent(capabilities: &[&str]) -> Agent {
        Agent { capabilities: capabilities.iter().map(|&name| name.into()).collect(), ..Agent::default() }
    }

    #[test]
    fn c7_what_no_worker_serves_is_no_capability_whoever_advertises_it() {
        let agent =
            agent(&["ImagePrompt", "Persona", "Steering", "DepthLimit", "OutputSchema", "LoadSession", CONTINUATION]);
        assert_eq!(
            of(&spec(json!({})), Some(&agent)),
            ["DepthLimit", "ImagePrompt", "Persona", STEERING, "LoadSession"]
        );
        assert_eq!(of(&spec(json!({})), None), ["DepthLimit"]);
    }

    /// Contract c34, pitfall R6.
    #[rstest]
    #[case::load(json!({"sessionState": {"paths": ["/s"]}}), &["LoadSession"], true)]
    #[case::resume(json!({"sessionState": {"paths": ["/s"]}}), &["ResumeSession"], true)]
    #[case::neither(json!({"sessionState": {"paths": ["/s"]}}), &["ForkSession"], false)]
    #[case::without_files(json!({}), &["LoadSession", "ResumeSession"], false)]
    fn r6_continuation_needs_the_agents_word_and_its_files(
        #[case] extra: Value,
        #[case] advertised: &[&str],
        #[case] continues: bool,
    ) {
        let has = of(&spec(extra), Some(&agent(advertised)));
        assert_eq!(has.iter().any(|name| name == CONTINUATION), continues, "{has:?}");
    }

    /// A template that brings the working directory itself leaves no place for a volume of a child's.
    #[rstest]
    #[case::free(json!([]), &["DepthLimit", "Continuation", "Workspace", "LoadSession"])]
    #[case::taken(json!([{"name": "v", "mountPath": "/workspace"}]), &["DepthLimit", "Continuation", "LoadSession"])]
    fn a_workspace_needs_continuation_and_a_free_working_directory(#[case] mounts: Value, #[case] expected: &[&str]) {
        let template = json!({"spec": {"containers": [{"name": "agent", "volumeMounts": mounts}]}});
        let asked = json!({"sessionState": {"paths": ["/s"]}, "template": template});
        assert_eq!(of(&spec(asked), Some(&agent(&["LoadSession"]))), expected);
        assert_eq!(
            of(&spec(json!({"template": template})), Some(&agent(&["LoadSession"]))),
            ["DepthLimit", "LoadSession"]
        );
    }

    #[test]
    fn an_agent_that_was_not_probed_continues_nothing() {
        assert_eq!(of(&spec(json!({"sessionState": {"paths": ["/s"]}})), None), ["DepthLimit"]);
    }
}
