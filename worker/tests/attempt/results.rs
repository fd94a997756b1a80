//! Results: inline, stored beside the report, or too large (c28, c31, T3).

use crate::harness::{Ended, run};
use nix::sys::signal::Signal;
use rstest::rstest;
use scripted_agent::script::fill;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::time::Duration;

const MIB: usize = 1024 * 1024;

/// The text of a result, wherever it is; its digest and size are right.
fn whole(ended: &Ended) -> String {
    let result = ended.report.result.as_ref().expect("a result");
    let text = match &result.text {
        Some(text) => text.clone(),
        None => {
            let upload = ended.uploads.iter().find(|upload| upload.part == "text").expect("an upload");
            assert_eq!(upload.sha256, result.sha256);
            upload.text.clone()
        }
    };
    assert_eq!((result.sha256.clone(), result.size), (format!("{:x}", Sha256::digest(&text)), text.len() as i64));
    text
}

#[rstest]
#[case(10, false)]
#[case(16 * 1024 - 1, false)]
#[case(16 * 1024, false)]
#[case(16 * 1024 + 1, true)]
#[case(256 * 1024, true)]
#[case(4 * MIB - 1, true)]
#[case(4 * MIB, true)]
#[tokio::test(flavor = "multi_thread")]
async fn t3_a_result_within_the_limit_is_whole(#[case] size: usize, #[case] is_uploaded: bool) {
    let ended = run(&format!("!fill {size} aä€")).start().await.finish().await;
    assert_eq!(ended.words().0, "Completed", "{}", ended.transcript);
    assert_eq!(whole(&ended), fill(size, "aä€"));
    assert_eq!(ended.uploads.len(), usize::from(is_uploaded));
    // c31: stored before the report that names it.
    assert_eq!(ended.report.uploads_before, ended.uploads.len());
    assert!(ended.status.success() && ended.report.snapshot.idle);
}

#[rstest]
#[case(4 * MIB + 1, 4 << 20, true)]
#[case(101, 100, true)]
// A gateway that takes no uploads, as an older one.
#[case(16 * 1024 + 1, 16 << 10, false)]
#[case(16 * 1024 + 1, 4 << 20, false)]
#[tokio::test(flavor = "multi_thread")]
async fn t3_a_result_over_the_limit_is_never_cut(#[case] size: usize, #[case] limit: i64, #[case] uploads: bool) {
    let mut setup = run(&format!("!fill {size}"));
    setup.assignment.max_result_bytes = limit;
    setup.assignment.uploads = uploads;
    let ended = setup.start().await.finish().await;
    assert_eq!(ended.words(), ("Error", "ResultTooLarge"));
    assert_eq!((ended.report.result.as_ref(), ended.uploads.len()), (None, 0), "nothing cut");
    assert!(ended.diagnostic().contains(&size.to_string()), "{}", ended.diagnostic());
}

#[tokio::test(flavor = "multi_thread")]
async fn t3_invalid_utf8_in_a_large_result_is_replaced_and_the_digest_is_of_what_is_stored() {
    let ended = run("!fill 20000\n!invalid-utf8 text\n!say end").start().await.finish().await;
    let text = whole(&ended);
    assert!(text.contains('\u{fffd}') && text.ends_with("end") && text.len() > 20_000, "{}", text.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn c28_other_content_is_stored_beside_the_text() {
    let ended = run("!say see\n!image 30000\n!link file:///a").start().await.finish().await;
    let result = ended.report.result.as_ref().expect("a result");
    assert_eq!((result.text.as_deref(), result.other_blocks), (Some("see"), 2));
    let [upload] = ended.uploads.as_slice() else { panic!("{:?}", ended.uploads.len()) };
    let blocks = result.blocks.as_ref().expect("their digest");
    assert_eq!((upload.part.as_str(), &upload.sha256), ("blocks", &blocks.sha256));
    assert_eq!(
        (blocks.sha256.clone(), blocks.size),
        (format!("{:x}", Sha256::digest(&upload.text)), upload.text.len() as i64)
    );
    let kept: Vec<Value> = serde_json::from_str(&upload.text).expect("a JSON array");
    let types: Vec<_> = kept.iter().map(|block| block["type"].as_str().unwrap_or_default()).collect();
    assert_eq!(types, ["image", "resource_link"]);
    assert!(kept[0]["data"].as_str().is_some_and(|data| data.len() >= 30_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn c28_without_uploads_other_content_is_counted_only() {
    let mut setup = run("!say see\n!image 30000");
    setup.assignment.uploads = false;
    let ended = setup.start().await.finish().await;
    let result = ended.report.result.as_ref().expect("a result");
    assert_eq!((ended.words().0, result.other_blocks, result.blocks.as_ref()), ("Completed", 1, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn c31_an_upload_is_tried_again_and_nothing_is_reported_before_it_is_stored() {
    let attempt = run("!fill 20000").start_with_answers(&[503, 404, 401, 204]).await;
    let ended = attempt.finish().await;
    assert_eq!(ended.words().0, "Completed", "{}", ended.transcript);
    assert_eq!((ended.uploads.len(), ended.report.uploads_before), (1, 1));
    assert_eq!(whole(&ended), fill(20_000, "x"));
    assert!(ended.transcript.contains("the result is not stored"), "{}", ended.transcript);
}

#[rstest]
#[case("!fill 20000", "Error", "DurabilityFailed")]
#[case("!fill 20000\n!stop refusal", "Refusal", "AgentRefused")]
#[tokio::test(flavor = "multi_thread")]
async fn c31_a_result_that_cannot_be_stored_is_never_completed(
    #[case] script: &str,
    #[case] stop_reason: &str,
    #[case] reason: &str,
) {
    let ended = run(script).start_with_answers(&[507]).await.finish().await;
    assert_eq!(ended.words(), (stop_reason, reason), "{}", ended.transcript);
    assert_eq!(ended.report.result, None);
    assert!(ended.diagnostic().contains("20000 bytes"), "{}", ended.diagnostic());
}

/// c31: a result that finds no room is told while it waits, in seconds; one that is stored at once costs no report.
#[tokio::test(flavor = "multi_thread")]
async fn c31_a_result_that_waits_for_room_is_told() {
    let attempt = run("!fill 20000").start_with_answers(&[503]).await;
    let told = attempt.gateway.report("what it waits for", |report| report.snapshot.storing.is_some()).await;
    let storing = told.snapshot.storing.as_ref().expect("a result on its way");
    assert_eq!((storing.size, told.snapshot.stage.as_str()), (20_000, "StoringResult"));
    assert!(storing.trouble.as_ref().is_some_and(|trouble| trouble.contains("503")), "{storing:?}");
    assert!(told.snapshot.idle && told.snapshot.final_.is_none() && told.result.is_none());
    attempt.gateway.answer_uploads(&[]);
    let ended = attempt.finish().await;
    assert_eq!((ended.words().0, &ended.report.snapshot.storing), ("Completed", &None), "{}", ended.transcript);
    assert_eq!(whole(&ended).len(), 20_000);
}

/// SIGTERM while no gateway takes the result: the end is still told within the pod's grace.
#[tokio::test(flavor = "multi_thread")]
async fn c31_c49_a_result_without_a_place_does_not_outlast_the_pods_grace() {
    let attempt = run("!fill 20000").graces(1, 1, 1).start_with_answers(&[503]).await;
    attempt.gateway.upload_tries(2).await;
    attempt.signal(Signal::SIGTERM);
    let begun = std::time::Instant::now();
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Error", "DurabilityFailed"), "{}", ended.transcript);
    for fact in ["20000 bytes", "pod is being deleted", "HTTP status 503", "as far as that was archived"] {
        assert!(ended.diagnostic().contains(fact), "{fact}: {}", ended.diagnostic());
    }
    // The ladder and 15 s (design section 8).
    assert!(begun.elapsed() < Duration::from_secs(18), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn c27_a_cancel_after_the_response_does_not_take_the_result_that_is_being_stored() {
    let attempt = run("!fill 20000").start_with_answers(&[503]).await;
    attempt.gateway.upload_tries(1).await;
    attempt.gateway.cancel();
    attempt.transcript_with("cancelled").await;
    attempt.gateway.answer_uploads(&[]);
    let ended = attempt.finish().await;
    assert_eq!((ended.words().0, whole(&ended).len()), ("Completed", 20_000), "{}", ended.transcript);
}
