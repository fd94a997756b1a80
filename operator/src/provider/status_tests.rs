//! What a person reads of a provider.

use super::*;
use crate::provider::probe::tests::{REVISION, at, probed, provider};
use rstest::rstest;
use serde_json::{Value, json};
use subagent_crds::report::Agent;

fn ready(status: &SubagentProviderStatus) -> (String, String, String) {
    let ready = conditions::get(&status.conditions, conditions::READY).unwrap();
    (ready.status.clone(), ready.reason.clone(), ready.message.clone())
}

fn look(provider: &SubagentProvider) -> Look {
    Look { probed: probe::last(provider, REVISION).cloned(), ..Look::default() }
}

#[rstest]
#[case::never(json!({"probe": "Never"}), None, "True", "Valid", "the agent itself was not probed")]
#[case::under_way(json!({}), None, "True", "Valid", "the agent is being probed")]
#[case::fault(json!({}), Some(probed(3, Some("AgentAuthRequired"))), "False", "AgentAuthRequired", "seen. Remedy. The probe is repeated after 4 min.")]
#[case::lost(json!({}), Some(probed(1, Some("Unschedulable"))), "True", "Valid", "repeated after 1 min: Unschedulable: seen. Remedy.")]
#[case::untold(json!({"template": {"x": "$(SUBAGENT_PARAM_A)"}}), Some(probed(1, Some("InvalidTemplate"))), "True", "Valid", "could not be probed: InvalidTemplate")]
fn n1_ready_says_what_the_probe_came_to(
    #[case] spec: Value,
    #[case] probed: Option<Value>,
    #[case] expected: &str,
    #[case] reason: &str,
    #[case] says: &str,
) {
    let provider = provider(spec, probed);
    let status = accepted(&provider, REVISION, &look(&provider), at(2000));
    let (is_ready, word, message) = ready(&status);
    assert_eq!((is_ready.as_str(), word.as_str()), (expected, reason), "{message}");
    assert!(message.contains(says), "{message}");
    assert_eq!(status.capabilities, ["DepthLimit"], "what is unknown counts as absent");
    assert_eq!(status.agent, None);
}

#[test]
fn an_agent_that_answered_is_shown_and_forgotten_with_its_revision() {
    let mut provider = provider(json!({}), Some(probed(1, None)));
    let agent = Agent {
        name: "OpenCode".into(),
        version: "1.18".into(),
        protocol_version: 1,
        capabilities: vec!["ImagePrompt".into(), "Steering".into()],
    };
    let look = Look { agent: Some(agent.clone()), ..look(&provider) };
    let status = accepted(&provider, REVISION, &look, at(2000));
    let (is_ready, reason, message) = ready(&status);
    assert_eq!((is_ready.as_str(), reason.as_str()), ("True", "Probed"));
    assert!(message.ends_with("its agent answers: OpenCode 1.18, ACP version 1"), "{message}");
    assert_eq!(status.capabilities, ["DepthLimit", "ImagePrompt", "Steering"]);
    assert_eq!(status.agent, Some(agent));
    // The same look again is no news.
    provider.status = Some(status.clone());
    assert_eq!(accepted(&provider, REVISION, &look, at(3000)), status);
    let edited = accepted(&provider, "p-newer", &Look::default(), at(3000));
    assert_eq!((edited.agent, edited.probe, edited.capabilities), (None, None, vec!["DepthLimit".to_owned()]));
}

/// What keeps the attempt that is under way is said, also behind one that told nothing; never over what was learnt.
#[rstest]
#[case::first(None, true)]
#[case::again(Some("PodDeleted"), true)]
#[case::fault(Some("AgentAuthRequired"), false)]
fn n1_a_pod_that_stays_is_named(#[case] last: Option<&str>, #[case] expected: bool) {
    let provider = provider(json!({}), last.map(|reason| probed(1, Some(reason))));
    let trouble = Some(("PodDeleted", "pod x is kept by finalizer y".to_owned()));
    let status = accepted(&provider, REVISION, &Look { trouble, ..look(&provider) }, at(1));
    let (_, _, message) = ready(&status);
    assert_eq!(message.contains("its pod stays: PodDeleted: pod x is kept"), expected, "{message}");
}

/// C3: a kubelet alternates between two messages of one trouble, for as long as it lasts.
#[test]
fn c3_a_trouble_is_written_once() {
    let mut provider = provider(json!({}), None);
    let in_trouble = |word, seen: &str| Look { trouble: Some((word, seen.to_owned())), ..Look::default() };
    let first = accepted(&provider, REVISION, &in_trouble("ImagePullFailed", "failed to pull"), at(1));
    let (is_ready, reason, message) = ready(&first);
    assert_eq!((is_ready.as_str(), reason.as_str()), ("True", "Valid"));
    assert!(message.contains("ImagePullFailed: failed to pull"), "{message}");
    provider.status = Some(first.clone());
    assert_eq!(accepted(&provider, REVISION, &in_trouble("ImagePullFailed", "back-off 5s"), at(2)), first);
    let other = accepted(&provider, REVISION, &in_trouble("MissingReference", "secret x"), at(3));
    assert!(ready(&other).2.contains("secret x"));
}
