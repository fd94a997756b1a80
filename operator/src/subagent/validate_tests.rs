//! What a child may ask for, in the contract's order.

use super::*;
use crate::{
    run::plan_tests::merged,
    subagent::plan_tests::{child, provider},
};
use rstest::rstest;
use serde_json::{Value, json};

fn verdict(asked: Value, offered: Value, store: &Store) -> Result<Acceptance, (bool, Reason, String)> {
    let (child, provider) = (child(json!({"spec": asked})), provider(offered));
    decision(&Request { child: &child, provider: &provider, parent: &Parent::NotAsked, store, refused_claim: None })
}

fn decision(request: &Request<'_>) -> Result<Acceptance, (bool, Reason, String)> {
    match validate(request) {
        Verdict::Accepted(acceptance) => Ok(*acceptance),
        Verdict::Waits(refusal) => Err((true, refusal.reason, refusal.message)),
        Verdict::Refused(refusal) => Err((false, refusal.reason, refusal.message)),
    }
}

fn unready() -> Value {
    json!({"status": {"capabilities": ["DepthLimit"]}})
}

/// c5, c6, c34: the first failure wins, presence counts, and the message names field and remedy.
#[rstest]
#[case::depth(json!({"maxDepth": 1}), json!({"status": {"capabilities": []}}), "UnsupportedCapability", "spec.maxDepth")]
#[case::filter(json!({"toolFilter": {"allow": []}, "persona": ""}), json!({}), "UnsupportedCapability", "spec.toolFilter")]
#[case::persona(json!({"persona": "", "agentOptions": {"model": "m"}}), json!({}), "UnsupportedCapability", "spec.persona")]
#[case::model(json!({"agentOptions": {"model": "m"}}), json!({}), "UnsupportedCapability", "spec.agentOptions.model")]
#[case::workspace(json!({"workspace": {"claimTemplate": {}}}), json!({}), "UnsupportedCapability", "spec.workspace")]
#[case::capability_before_depth(json!({"maxDepth": 0}), unready(), "UnsupportedCapability", "Continuation")]
#[case::no_state(json!({}), merged(unready(), json!({"spec": {"sessionState": null}})), "UnsupportedCapability", "spec.sessionState")]
#[case::too_deep(json!({"maxDepth": 0}), json!({}), "DepthExceeded", "maxDepth")]
#[case::parameter(json!({"parameters": {"A": "\u{0}"}}), json!({}), "InvalidArgs", "spec.parameters.A")]
fn c5_c34_what_a_child_asks_for_is_checked_in_order(
    #[case] asked: Value,
    #[case] offered: Value,
    #[case] reason: &str,
    #[case] words: &str,
) {
    // Everything after it fails, too.
    let (waits, why, message) = verdict(asked, offered, &Store::None).unwrap_err();
    assert_eq!((waits, why.as_str()), (false, reason), "{message}");
    assert!(message.contains(words), "{message}");
}

/// c5: the store is last, and tried for no child that something else turns away or lets wait.
#[rstest]
#[case::nothing_in_the_way(json!({}), json!({}), true)]
#[case::the_first_message_comes_later(json!({"messages": []}), json!({}), true)]
#[case::waits(json!({}), json!({"status": {"observedGeneration": 0}}), false)]
#[case::lacks(json!({"persona": ""}), json!({}), false)]
#[case::too_deep(json!({"maxDepth": 0}), json!({}), false)]
fn c5_the_store_is_tried_when_nothing_else_is_in_the_way(
    #[case] asked: Value,
    #[case] offered: Value,
    #[case] expected: bool,
) {
    let (child, provider) = (child(json!({"spec": asked})), provider(offered));
    let (parent, store) = (&Parent::NotAsked, &Store::None);
    let request = Request { child: &child, provider: &provider, parent, store, refused_claim: None };
    assert_eq!(wants_store(&request), expected);
}

#[rstest]
#[case::none(Store::None, "no session store is configured")]
#[case::unusable(Store::Unusable("the disk is full".into()), "the disk is full")]
fn c34_without_a_store_no_child_is_taken(#[case] store: Store, #[case] words: &str) {
    let steer = json!({"messages": [{"id": "m1", "delivery": "Steer", "text": "t"}]});
    let (waits, why, message) = verdict(steer, json!({}), &store).unwrap_err();
    assert_eq!((waits, why), (false, Reason::PersistenceUnavailable), "before the message");
    assert!(message.contains(words) && message.contains("Configure the session store"), "{message}");
}

#[rstest]
#[case::steer(json!([{"id": "m1", "delivery": "Steer", "text": "t"}]), "message m1 of spec.messages cannot start")]
#[case::bare_interrupt(json!([{"id": "m1", "delivery": "Interrupt"}]), "message m1 of spec.messages cannot start")]
#[case::large(json!([{"id": "m1", "text": "ä".repeat(9000)}]), "has 18000 bytes, the limit is 16384")]
#[case::none(json!([]), "spec.messages is empty")]
fn c35_the_first_message_must_be_one(#[case] messages: Value, #[case] words: &str) {
    let (waits, why, message) = verdict(json!({"messages": messages}), json!({}), &Store::Usable).unwrap_err();
    assert_eq!((waits, why), (false, Reason::InvalidArgs));
    assert!(message.contains(words), "{message}");
}

/// c7: an invalid claim is refused in the API server's own words, with the field; after everything else.
#[rstest]
#[case::invalid(json!({}), Reason::InvalidArgs, "claim of spec.workspace: spec.accessModes: Unsupported value; correct what it names, which is below spec.workspace.claimTemplate")]
#[case::after_the_first_message(json!({"messages": []}), Reason::InvalidArgs, "spec.messages is empty")]
fn c7_a_claim_that_the_api_server_refuses_is_none(#[case] extra: Value, #[case] reason: Reason, #[case] words: &str) {
    let child = child(json!({"spec": merged(json!({"workspace": {"claimTemplate": {}}}), extra)}));
    let provider = provider(json!({"status": {"capabilities": ["DepthLimit", "Continuation", "Workspace"]}}));
    let (parent, store) = (&Parent::NotAsked, &Store::Usable);
    let said = Some("spec.accessModes: Unsupported value");
    let request = Request { child: &child, provider: &provider, parent, store, refused_claim: said };
    let (waits, why, message) = decision(&request).unwrap_err();
    assert_eq!((waits, why), (false, reason));
    assert!(message.contains(words), "{message}");
}

/// What only a probe tells is waited for.
#[test]
fn c5_continuation_is_waited_for_while_the_agent_is_not_probed() {
    let unprobed = merged(unready(), json!({"spec": {"probe": "OnChange"}}));
    let (waits, why, message) = verdict(json!({}), unprobed, &Store::Usable).unwrap_err();
    assert_eq!((waits, why), (true, Reason::ProviderNotReady));
    assert!(message.contains("has not been probed"), "{message}");
    let (waits, why, _) = verdict(json!({}), unready(), &Store::Usable).unwrap_err();
    assert_eq!((waits, why), (false, Reason::UnsupportedCapability), "with probe Never nobody will tell");
}

#[test]
fn c32_the_descriptor_holds_resolved_values_and_omits_what_is_absent() {
    let acceptance = verdict(json!({"maxDepth": 4}), json!({}), &Store::Usable).unwrap();
    let descriptor = serde_json::to_value(&acceptance.descriptor).unwrap();
    let expected = json!({"version": 1, "mode": "Continuable", "provider": "p", "providerRevision": "rev-1",
        "context": "Fresh", "description": "d", "maxDepth": 4});
    assert_eq!(descriptor, expected);
    let asked = json!({"agentOptions": {"model": "m", "provider": "n", "maxTokens": 5}});
    let able = json!({"status": {"capabilities": ["DepthLimit", "Continuation", "AgentModel", "AgentProvider", "AgentMaxTokens"]}});
    let descriptor = serde_json::to_value(verdict(asked, able, &Store::Usable).unwrap().descriptor).unwrap();
    assert_eq!((&descriptor["agentModel"], &descriptor["agentProvider"]), (&json!("m"), &json!("n")));
    assert_eq!(descriptor.get("maxTokens"), None, "token limits belong to an activation");
}
