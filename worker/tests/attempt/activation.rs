//! Activations of a continuable child: many turns, each of a message.

use crate::{
    gateway::Report,
    harness::{Attempt, Setup, run},
};
use subagent_link::{ContentBlock, Continuation, Delivery, GatewayMessage, InboxMessage};

/// An activation whose messages come over the link.
pub fn activation() -> Setup {
    let mut setup = run("");
    setup.assignment.prompt = None;
    setup.assignment.continuation = Some(Continuation { epoch: 1, ..Continuation::default() });
    setup
}

pub fn message(placement: i64, delivery: Delivery, text: &str) -> GatewayMessage {
    let content = if text.is_empty() { vec![] } else { vec![ContentBlock::Text { text: text.to_owned() }] };
    GatewayMessage::Deliver(Box::new(InboxMessage { id: format!("m{placement}"), placement, delivery, content }))
}

pub fn queue(placement: i64, text: &str) -> GatewayMessage {
    message(placement, Delivery::Queue, text)
}

/// Starts it and waits for the connection: what is said before goes nowhere.
pub async fn start(setup: Setup) -> Attempt {
    let attempt = setup.start().await;
    attempt.gateway.connection(1).await;
    attempt
}

pub fn outcomes(report: &Report) -> String {
    let told = &report.snapshot.messages;
    let words = told.iter().map(|told| match &told.code {
        Some(code) => format!("{}:{}/{code}", told.id, told.outcome),
        None => format!("{}:{}", told.id, told.outcome),
    });
    words.collect::<Vec<_>>().join(" ")
}

pub async fn told(attempt: &Attempt, wanted: &str) -> Report {
    attempt.gateway.report(wanted, |report| outcomes(report).contains(wanted)).await
}

pub fn turns(report: &Report) -> Vec<(&str, &str, &str)> {
    let turns = report.snapshot.turns.iter();
    turns
        .map(|turn| {
            (
                turn.message_id.as_deref().unwrap_or_default(),
                turn.stop_reason.as_deref().unwrap_or_default(),
                turn.preview.as_deref().unwrap_or_default(),
            )
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn c37_messages_have_turns_of_their_own_in_order_until_the_inbox_is_closed() {
    let attempt = start(activation()).await;
    for said in [queue(2, "two\n!history"), queue(1, "one"), queue(1, "one")] {
        attempt.gateway.say(said);
    }
    told(&attempt, "m1:Claimed m2:Claimed").await;
    let idle =
        attempt.gateway.report("it rests", |report| report.snapshot.idle && report.snapshot.turn_count == 2).await;
    assert!(idle.end().is_none(), "it ends when the inbox is closed, not before");
    attempt.gateway.say(queue(3, "three"));
    attempt
        .gateway
        .report("the third turn is over", |report| turns(report).get(2).is_some_and(|turn| !turn.1.is_empty()))
        .await;
    attempt.gateway.say(GatewayMessage::Close);
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Completed", "Completed"), "{}", ended.transcript);
    assert_eq!(
        turns(&ended.report),
        [("m1", "Completed", "echo: one"), ("m2", "Completed", "turns before: 1"), ("m3", "Completed", "echo: three")]
    );
    assert_eq!((ended.text(), ended.prompts), ("echo: three", 3), "one session, a prompt for each message");
    assert!(ended.status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn c41_every_prompt_waits_until_its_turn_is_stored() {
    let attempt = start(activation()).await;
    attempt.gateway.say(queue(1, "one"));
    attempt.gateway.report("the first turn is over", |report| report.snapshot.idle).await;
    attempt.gateway.hold_acks();
    attempt.gateway.say(queue(2, "two"));
    told(&attempt, "m2:Claimed").await;
    // A steering message gets an answer meanwhile: no turn runs yet. Its answer shows that time has passed.
    attempt.gateway.say(message(3, Delivery::Steer, "left"));
    told(&attempt, "m3:Rejected/NotDelivered").await;
    assert_eq!(attempt.collector.of_kind("prompt").len(), 1);
    attempt.gateway.release_acks();
    attempt.event("prompt", "two");
    attempt.gateway.say(GatewayMessage::Close);
    assert_eq!(attempt.finish().await.prompts, 2);
}

/// c41, c42: an interruption between the record of a turn and its prompt. The agent sees nothing of the message. Its claim is
/// stored, so it stands.
#[tokio::test(flavor = "multi_thread")]
async fn c41_c42_an_interruption_before_the_prompt_sends_none_and_the_claim_stands() {
    let attempt = start(activation()).await;
    attempt.gateway.hold_acks();
    attempt.gateway.say(queue(1, "one"));
    attempt.gateway.say(queue(2, "two"));
    told(&attempt, "m1:Claimed").await;
    attempt.gateway.say(message(3, Delivery::Interrupt, ""));
    // Its answer shows that the interruption was heard.
    attempt.gateway.say(message(4, Delivery::Steer, "left"));
    told(&attempt, "m4:Rejected/NotDelivered").await;
    attempt.gateway.release_acks();
    let applied = told(&attempt, "m1:Claimed m2:Parked m3:Applied").await;
    assert_eq!(turns(&applied), [("m1", "Aborted", "")]);
    attempt.gateway.say(GatewayMessage::Close);
    let ended = attempt.finish().await;
    assert_eq!(ended.prompts, 0, "{}", ended.transcript);
    assert!(ended.transcript.contains("the agent has not seen the message"), "{}", ended.transcript);
}

#[tokio::test(flavor = "multi_thread")]
async fn c38_a_steer_goes_into_the_running_turn_and_never_becomes_one() {
    let attempt = start(activation()).await;
    attempt.gateway.say(queue(1, "!await-steer"));
    attempt.event("prompt", "!await-steer");
    attempt.gateway.say(message(2, Delivery::Steer, "left"));
    let steered = told(&attempt, "m2:Steered").await;
    assert_eq!(steered.snapshot.messages[1].turn, Some(1));
    attempt.gateway.report("it rests", |report| report.snapshot.idle).await;
    attempt.gateway.say(message(3, Delivery::Steer, "right"));
    told(&attempt, "m3:Rejected/NotDelivered").await;
    attempt.gateway.say(GatewayMessage::Close);
    let ended = attempt.finish().await;
    assert_eq!((turns(&ended.report).len(), ended.prompts), (1, 1));
    assert!(ended.text().contains("steered: left"), "{}", ended.text());
}

/// c38: between the answer to the prompt and the turn's record, while an answer to another steer is waited for.
#[tokio::test(flavor = "multi_thread")]
async fn c38_a_steer_behind_the_turns_answer_reaches_no_agent() {
    let attempt = start(activation().env("SCRIPTED_AGENT_STEERING", "hang")).await;
    attempt.gateway.say(queue(1, "!gate on\n!update-after-response late"));
    attempt.event("gate", "on");
    attempt.gateway.say(message(2, Delivery::Steer, "left"));
    attempt.event("steer", "left");
    attempt.collector.open_gate("on");
    // What follows the answer shows that this was read.
    attempt.transcript_with("late").await;
    attempt.gateway.say(message(3, Delivery::Steer, "right"));
    told(&attempt, "m1:Claimed m2:Rejected/Unconfirmed m3:Rejected/NotDelivered").await;
    attempt.gateway.say(GatewayMessage::Close);
    assert_eq!(attempt.finish().await.words(), ("Completed", "Completed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn c38_an_agent_that_cannot_be_steered_or_will_not_is_told_apart_from_one_that_was() {
    for knob in [("SCRIPTED_AGENT_CAPABILITIES", r#"{"_meta": null}"#), ("SCRIPTED_AGENT_STEERING", "prompt-required")]
    {
        let attempt = start(activation().env(knob.0, knob.1)).await;
        attempt.gateway.say(queue(1, "!gate on"));
        attempt.event("prompt", "!gate on");
        attempt.gateway.say(message(2, Delivery::Steer, "left"));
        told(&attempt, "m2:Rejected/NotDelivered").await;
        attempt.collector.open_gate("on");
        attempt.gateway.say(GatewayMessage::Close);
        assert_eq!(attempt.finish().await.words(), ("Completed", "Completed"), "{knob:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c42_an_interruption_ends_the_turn_alone_and_parks_what_waits() {
    let attempt = start(activation()).await;
    attempt.gateway.say(queue(1, "!say partial\n!report here\n!hang"));
    attempt.gateway.say(queue(2, "two"));
    attempt.event("report", "here");
    attempt.gateway.say(message(3, Delivery::Interrupt, ""));
    let applied = told(&attempt, "m1:Claimed m2:Parked m3:Applied").await;
    assert!(applied.snapshot.idle, "nothing starts by itself");
    assert_eq!(turns(&applied), [("m1", "Aborted", "partial")]);
    // What was parked comes back under another number.
    attempt.gateway.say(queue(4, "two"));
    attempt
        .gateway
        .report("the second turn is over", |report| report.snapshot.turn_count == 2 && report.snapshot.idle)
        .await;
    attempt.gateway.say(GatewayMessage::Close);
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Completed", "Completed"), "{}", ended.transcript);
    assert_eq!(turns(&ended.report)[1], ("m4", "Completed", "echo: two"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_ignores_an_interruption_ends_the_activation() {
    let attempt = start(activation().graces(1, 1, 1)).await;
    attempt.gateway.say(queue(1, "!hang hard"));
    attempt.event("prompt", "!hang hard");
    attempt.gateway.say(message(2, Delivery::Interrupt, ""));
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Error", "AgentProtocolError"), "{}", ended.transcript);
    assert!(ended.diagnostic().contains("cancelGraceSeconds"), "{}", ended.diagnostic());
    assert_eq!(turns(&ended.report), [("m1", "Error", "")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn r5_a_turn_that_fails_leaves_the_others_their_turns() {
    let attempt = start(activation()).await;
    for said in [queue(1, "!error -32603 out of luck"), queue(2, "!stop refusal"), queue(3, "three")] {
        attempt.gateway.say(said);
    }
    attempt.gateway.report("it rests", |report| report.snapshot.idle && report.snapshot.turn_count == 3).await;
    attempt.gateway.say(GatewayMessage::Close);
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Completed", "Completed"), "{}", ended.transcript);
    let stops: Vec<_> = turns(&ended.report).iter().map(|turn| turn.1.to_owned()).collect();
    assert_eq!(stops, ["Error", "Refusal", "Completed"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn r5_messages_survive_a_dropped_link_and_are_claimed_once() {
    let attempt = start(activation()).await;
    attempt.gateway.say(queue(1, "!gate on"));
    attempt.event("prompt", "!gate on");
    attempt.gateway.drop_connection();
    attempt.gateway.connection(2).await;
    // The gateway tells everything again that has no outcome it knows of.
    for said in [queue(1, "!gate on"), queue(2, "two")] {
        attempt.gateway.say(said);
    }
    attempt.collector.open_gate("on");
    told(&attempt, "m1:Claimed m2:Claimed").await;
    attempt.gateway.say(GatewayMessage::Inbox { placements: vec![2] });
    attempt.gateway.say(GatewayMessage::Close);
    let ended = attempt.finish().await;
    assert_eq!(ended.prompts, 2, "{}", ended.transcript);
    assert_eq!(outcomes(&ended.report), "m2:Claimed", "what the inbox lists no more is not told for ever");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_ends_while_nothing_runs_ends_the_activation() {
    let attempt = start(activation()).await;
    attempt.gateway.say(queue(1, "!say fine\n!exit-after 1"));
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Error", "AgentCrashed"), "{}", ended.transcript);
    assert_eq!(turns(&ended.report), [("m1", "Completed", "fine")], "the turn's own end stands");
}

#[tokio::test(flavor = "multi_thread")]
async fn c30_a_cancel_between_two_turns_says_that_there_were_prompts() {
    for (prompt, fact) in
        [(None, "in stage Idle; no prompt was sent"), (Some("one"), "in stage Idle; after the prompt")]
    {
        let attempt = start(activation()).await;
        if let Some(prompt) = prompt {
            attempt.gateway.say(queue(1, prompt));
        }
        let turns = i64::from(prompt.is_some());
        attempt.gateway.report("it rests", |report| report.snapshot.idle && report.snapshot.turn_count == turns).await;
        attempt.gateway.cancel();
        let ended = attempt.finish().await;
        assert_eq!(ended.words(), ("Aborted", "Cancelled"), "{}", ended.transcript);
        assert!(ended.diagnostic().contains(fact), "{}", ended.diagnostic());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c27_a_cancel_ends_the_activation_whatever_waits() {
    let attempt = start(activation()).await;
    attempt.gateway.say(queue(1, "!hang"));
    attempt.gateway.say(queue(2, "two"));
    attempt.event("prompt", "!hang");
    attempt.gateway.cancel();
    let ended = attempt.finish().await;
    assert_eq!((ended.words(), ended.prompts), (("Aborted", "Cancelled"), 1), "{}", ended.transcript);
    assert_eq!(outcomes(&ended.report), "m1:Claimed", "what was not claimed has no outcome: the operator discards it");
}
