//! What a session is to be: persona and model (c6, c7, c17, c18).

use crate::harness::{Ended, Setup, run};
use rstest::rstest;
use serde_json::{Value, json};

fn opening(ended: &Ended) -> Value {
    serde_json::from_str(ended.text()).unwrap_or_else(|_| panic!("{}", ended.transcript))
}

#[rstest]
#[case("be {brief}")]
#[case("")]
#[tokio::test(flavor = "multi_thread")]
async fn c6_c17_a_persona_is_in_the_first_request(#[case] persona: &str) {
    let mut setup = run("!session");
    setup.assignment.persona = Some(persona.to_owned());
    let ended = setup.start().await.finish().await;
    let want = json!({"mode": "override", "content": [{"type": "text", "text": persona}]});
    assert_eq!(opening(&ended)["params"]["systemPrompt"], want);
    let none = run("!session").start().await.finish().await;
    assert!(opening(&none)["params"].get("systemPrompt").is_none(), "c6: an absent one is none");
}

/// One that is only added to the agent's own instructions would not replace them.
#[rstest]
#[case(r#"{"agentCapabilities": {"sessionCapabilities": {"systemPrompt": null}}}"#)]
#[case(r#"{"agentCapabilities": {"sessionCapabilities": {"systemPrompt": {"mode": null}}}}"#)]
#[tokio::test(flavor = "multi_thread")]
async fn c7_c17_a_persona_the_agent_does_not_take_is_not_left_out(#[case] capabilities: &str) {
    let mut setup = run("hi").env("SCRIPTED_AGENT_CAPABILITIES", capabilities);
    setup.assignment.persona = Some(String::new());
    let ended = setup.start().await.finish().await;
    assert_eq!((ended.words(), ended.prompts), (("Error", "AgentHandshakeFailed"), 0), "{}", ended.transcript);
    assert!(ended.diagnostic().contains("systemPrompt.mode.override"), "{}", ended.diagnostic());
}

fn with_model(model: &str, offered: &[(&str, &str)]) -> Setup {
    let mut setup = run("!session");
    setup.assignment.model = Some(model.to_owned());
    offered.iter().fold(setup, |setup, (name, value)| setup.env(name, value))
}

#[rstest]
#[case("models")]
#[case("options")]
#[tokio::test(flavor = "multi_thread")]
async fn c18_a_model_is_chosen_the_way_the_agent_offers(#[case] offered: &str) {
    let ended = with_model("large", &[("SCRIPTED_AGENT_MODELS", offered)]).start().await.finish().await;
    assert_eq!(opening(&ended)["model"], "large");
    let agent = ended.report.snapshot.agent.unwrap();
    assert!(agent.capabilities.iter().any(|known| known == "AgentModel"), "{agent:?}");
}

#[rstest]
#[case::unknown("huge", &[("SCRIPTED_AGENT_MODELS", "options")], "does not offer the model of agentOptions.model; it offers: small, large")]
#[case::older("huge", &[("SCRIPTED_AGENT_MODELS", "models")], "it offers: small, large")]
#[case::refused("large", &[("SCRIPTED_AGENT_MODELS", "models"), ("SCRIPTED_AGENT_SET_MODEL", "error")], "in stage SessionModel")]
#[case::none("large", &[], "offers no choice of models")]
#[tokio::test(flavor = "multi_thread")]
async fn c7_c18_a_model_that_cannot_be_chosen_is_not_left_out(
    #[case] model: &str,
    #[case] offered: &[(&str, &str)],
    #[case] fact: &str,
) {
    let ended = with_model(model, offered).start().await.finish().await;
    assert_eq!((ended.words(), ended.prompts), (("Error", "AgentHandshakeFailed"), 0), "{}", ended.transcript);
    assert!(ended.diagnostic().contains(fact), "{}", ended.diagnostic());
}
