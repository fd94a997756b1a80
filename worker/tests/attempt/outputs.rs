//! The outputs of an activation's turns: whole, each under its own turn, stored before the turn counts as done (c31, c41).

use crate::{
    activation::{activation, message, queue, start, told, turns},
    checkpoints::keeping,
    gateway::{Gateway, Report, Uploaded},
    harness::{Attempt, Ended, Setup},
};
use rstest::rstest;
use scripted_agent::script::fill;
use serde_json::Value;
use sha2::{Digest, Sha256};
use subagent_link::{Delivery, GatewayMessage, TurnOutput};

/// Starts it with uploads answered like this, the last for ever.
async fn start_with_answers(setup: Setup, statuses: &[u16]) -> Attempt {
    let attempt = setup.start_with_answers(statuses).await;
    attempt.gateway.connection(1).await;
    attempt
}

async fn start_with_an_older_gateway(setup: Setup) -> Attempt {
    let gateway = Gateway::start(setup.assignment.clone()).await;
    gateway.is_older();
    let attempt = setup.start_with(gateway).await;
    attempt.gateway.connection(1).await;
    attempt
}

fn output(report: &Report, turn: usize) -> Option<&TurnOutput> {
    report.snapshot.turns[turn - 1].output.as_ref()
}

fn sha256(text: &str) -> String {
    format!("{:x}", Sha256::digest(text))
}

fn stored(ended: &Ended) -> Vec<(Option<i64>, &str, usize)> {
    ended.uploads.iter().map(|Uploaded { turn, part, text, .. }| (*turn, part.as_str(), text.len())).collect()
}

/// Waits until nothing is done, after so many turns.
async fn at_rest(attempt: &Attempt, count: i64) -> Report {
    attempt
        .gateway
        .report("it rests", |report| {
            report.snapshot.idle && report.snapshot.turn_count == count && report.end().is_none()
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn c31_no_turn_counts_as_done_and_no_other_begins_before_its_output_is_stored() {
    let attempt = start_with_answers(activation(), &[503]).await;
    for said in [queue(1, "!fill 3000 one"), queue(2, "!fill 2000 two"), queue(3, "three")] {
        attempt.gateway.say(said);
    }
    attempt.gateway.upload_tries(1).await;
    // It is too late for this one, and its answer shows that time has passed.
    attempt.gateway.say(message(4, Delivery::Steer, "left"));
    let report = told(&attempt, "m4:Rejected/NotDelivered").await;
    assert_eq!((turns(&report), attempt.collector.of_kind("prompt").len()), (vec![("m1", "", "")], 1));
    attempt.gateway.answer_uploads(&[]);
    at_rest(&attempt, 3).await;
    let reports = attempt.gateway.reports();
    attempt.gateway.say(GatewayMessage::Close);
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Completed", "Completed"), "{}", ended.transcript);
    // Each under its own turn, and whole.
    let texts = [fill(3000, "one"), fill(2000, "two")];
    assert_eq!(stored(&ended), [(Some(1), "text", 3000), (Some(2), "text", 2000)]);
    for (turn, text) in (1..).zip(&texts) {
        assert_eq!(&ended.uploads[turn - 1].text, text);
        let is_done = |report: &&Report| turns(report).get(turn - 1).is_some_and(|turn| !turn.1.is_empty());
        let first = reports.iter().find(is_done).expect("it is done");
        assert!(first.uploads_before >= turn, "stored first");
        let told = output(first, turn).expect("in the same report");
        assert_eq!((&told.sha256, told.size, told.blocks.as_ref()), (&sha256(text), text.len() as i64, None));
        assert_eq!(first.snapshot.turns[turn - 1].preview.as_deref(), Some(&text[..1024]), "the preview stays");
    }
    assert_eq!((output(&ended.report, 3), ended.text()), (None, "echo: three"), "the preview holds all of it");
    assert!(ended.transcript.contains("storing 3000 bytes of the output of turn 1"), "{}", ended.transcript);
}

/// The result of an activation is the output of its last turn, and is stored once.
#[rstest]
#[case(16 * 1024, None)]
#[case(16 * 1024 + 1, Some(1))]
#[tokio::test(flavor = "multi_thread")]
async fn c31_the_output_of_the_last_turn_is_stored_once(#[case] size: usize, #[case] turn: Option<i64>) {
    let attempt = start(activation()).await;
    attempt.gateway.say(queue(1, &format!("!fill {size}")));
    attempt.gateway.say(GatewayMessage::Close);
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Completed", "Completed"), "{}", ended.transcript);
    assert_eq!(stored(&ended), [(Some(1), "text", size)]);
    let result = ended.report.result.as_ref().expect("a result");
    assert_eq!((result.turn, result.size, &result.sha256), (turn, size as i64, &sha256(&fill(size, "x"))));
    assert_eq!(result.text.is_some(), turn.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn c28_other_content_of_a_turn_is_stored_with_it() {
    let attempt = start(activation()).await;
    attempt.gateway.say(queue(1, "!say see\n!image 3000\n!link file:///a"));
    attempt.gateway.say(queue(2, "two"));
    at_rest(&attempt, 2).await;
    attempt.gateway.say(GatewayMessage::Close);
    let ended = attempt.finish().await;
    let told = output(&ended.report, 1).expect("an output");
    assert_eq!((told.size, told.other_blocks, told.sha256.as_str()), (3, 2, sha256("see").as_str()));
    let [upload] = ended.uploads.as_slice() else { panic!("{:?}", stored(&ended)) };
    assert_eq!((upload.turn, upload.part.as_str()), (Some(1), "blocks"));
    assert_eq!(told.blocks.as_ref().map(|blocks| &blocks.sha256), Some(&sha256(&upload.text)));
    let kept: Vec<Value> = serde_json::from_str(&upload.text).expect("a JSON array");
    assert_eq!(kept.len(), 2);
    assert!(ended.report.result.as_ref().is_some_and(|result| result.turn.is_none() && result.other_blocks == 0));
}

/// T3: what is too large is not cut. The turn did not complete, and the next one goes on; as the last one it is the end.
#[tokio::test(flavor = "multi_thread")]
async fn t3_a_turn_over_the_limit_fails_and_the_next_goes_on() {
    let mut setup = activation();
    setup.assignment.max_result_bytes = 3000;
    let attempt = start(setup).await;
    attempt.gateway.say(queue(1, "!fill 3001"));
    attempt.gateway.say(queue(2, "!fill 3000"));
    let report = at_rest(&attempt, 2).await;
    assert_eq!((turns(&report)[0].1, output(&report, 1)), ("Error", None));
    assert_eq!((turns(&report)[1].1, output(&report, 2).map(|output| output.size)), ("Completed", Some(3000)));
    attempt.gateway.say(queue(3, "!fill 3001"));
    at_rest(&attempt, 3).await;
    attempt.gateway.say(GatewayMessage::Close);
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Error", "ResultTooLarge"), "{}", ended.transcript);
    assert_eq!(stored(&ended), [(Some(2), "text", 3000)], "nothing cut");
    assert!(ended.transcript.contains("turn 1: ResultTooLarge"), "{}", ended.transcript);
}

/// c31: failure to store is DurabilityFailed, never Completed, and is not tried twice.
#[tokio::test(flavor = "multi_thread")]
async fn c31_an_output_that_cannot_be_stored_ends_the_activation() {
    let attempt = start_with_answers(activation(), &[507]).await;
    attempt.gateway.say(queue(1, "!fill 20000"));
    attempt.gateway.say(queue(2, "two"));
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Error", "DurabilityFailed"), "{}", ended.transcript);
    assert_eq!((turns(&ended.report).len(), turns(&ended.report)[0].1, ended.prompts), (1, "Error", 1));
    assert_eq!((ended.report.result.as_ref(), output(&ended.report, 1)), (None, None));
    assert!(ended.diagnostic().contains("20000 bytes"), "{}", ended.diagnostic());
    assert_eq!(ended.transcript.matches("storing 20000 bytes").count(), 1, "{}", ended.transcript);
}

/// c31: an answer that fits `status.result` needs no ConfigMap, as long as it is the last.
#[tokio::test(flavor = "multi_thread")]
async fn c31_a_last_answer_that_cannot_be_stored_is_in_the_report_of_the_end() {
    let state = tempfile::tempdir().unwrap();
    let attempt = start_with_answers(keeping(state.path()), &[507]).await;
    attempt.gateway.say(queue(1, "!fill 5000"));
    let report = at_rest(&attempt, 1).await;
    assert_eq!((turns(&report)[0].1, output(&report, 1)), ("Completed", None));
    attempt.gateway.say(GatewayMessage::Close);
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Completed", "Completed"), "{}", ended.transcript);
    assert_eq!((ended.text(), stored(&ended)), (fill(5000, "x").as_str(), vec![]));
    assert_eq!(ended.report.snapshot.checkpoint.as_ref().map(|checkpoint| checkpoint.turn), Some(1));
}

/// c31, c40: what another turn waits behind is stored or failed. The session of that turn is kept, and its text if it fits.
#[tokio::test(flavor = "multi_thread")]
async fn c31_a_failed_store_costs_neither_the_session_nor_a_text_that_fits() {
    let state = tempfile::tempdir().unwrap();
    let attempt = start_with_answers(keeping(state.path()), &[503]).await;
    attempt.gateway.say(queue(1, "!fill 5000"));
    attempt.gateway.upload_tries(1).await;
    attempt.gateway.say(queue(2, "two"));
    attempt.gateway.say(message(3, Delivery::Steer, "left"));
    told(&attempt, "m3:Rejected/NotDelivered").await;
    attempt.gateway.answer_uploads(&[507]);
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Error", "DurabilityFailed"), "{}", ended.transcript);
    assert_eq!((turns(&ended.report)[0].1, ended.prompts, ended.text().len()), ("Error", 1, 5000));
    assert_eq!(ended.report.snapshot.checkpoint.as_ref().map(|checkpoint| checkpoint.turn), Some(1));
}

/// C7: the gateway is rolled back while an output is being stored. The older one has no place for it, and is not asked for hours.
#[tokio::test(flavor = "multi_thread")]
async fn c7_a_rollback_amid_an_output_leaves_the_preview() {
    let attempt = start_with_answers(activation(), &[503]).await;
    attempt.gateway.say(queue(1, "!fill 20000"));
    attempt.gateway.say(queue(2, "two"));
    attempt.gateway.upload_tries(1).await;
    attempt.gateway.is_older();
    attempt.gateway.drop_connection();
    let report = at_rest(&attempt, 2).await;
    assert_eq!((turns(&report)[0].1, turns(&report)[1].1, output(&report, 1)), ("Completed", "Completed", None));
    attempt.gateway.say(GatewayMessage::Close);
    let ended = attempt.finish().await;
    assert_eq!((ended.words(), stored(&ended)), (("Completed", "Completed"), vec![]), "{}", ended.transcript);
}

/// c49: a cancel leaves it the grace, and what it was about stays the partial output.
#[tokio::test(flavor = "multi_thread")]
async fn c49_a_cancel_ends_an_output_that_is_being_stored_after_the_grace() {
    let attempt = start_with_answers(activation().graces(1, 1, 1), &[503]).await;
    attempt.gateway.say(queue(1, "!fill 3000"));
    attempt.gateway.upload_tries(1).await;
    attempt.gateway.cancel();
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Aborted", "Cancelled"), "{}", ended.transcript);
    assert!(ended.diagnostic().contains("in stage StoringResult"), "{}", ended.diagnostic());
    assert_eq!((turns(&ended.report)[0].1, ended.text().len()), ("Aborted", 3000), "c27: partial output");
}

/// C7: an older gateway is asked for nothing that it does not have.
#[tokio::test(flavor = "multi_thread")]
async fn c7_an_older_gateway_gets_previews_and_the_result() {
    let attempt = start_with_an_older_gateway(activation()).await;
    attempt.gateway.say(queue(1, "!fill 3000"));
    attempt.gateway.say(queue(2, "!fill 20000"));
    at_rest(&attempt, 2).await;
    attempt.gateway.say(GatewayMessage::Close);
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Completed", "Completed"), "{}", ended.transcript);
    assert_eq!(stored(&ended), [(None, "text", 20_000)]);
    assert!(ended.report.snapshot.turns.iter().all(|turn| turn.output.is_none() && turn.preview.is_some()));
    assert_eq!(ended.report.result.as_ref().and_then(|result| result.turn), None);
}
