//! After each turn of a child its session is kept, and only then does the turn count as done (c41, R10).

use crate::{
    activation::{activation, message, outcomes, queue, start, told, turns},
    gateway::Checkpointing,
    harness::{Attempt, Setup},
};
use nix::sys::signal::Signal;
use rstest::rstest;
use std::path::Path;
use subagent_link::{Delivery, GatewayMessage};
use tempfile::TempDir;

/// An activation whose agent keeps its sessions in a folder of the test.
pub fn keeping(state: &Path) -> Setup {
    let state = state.to_str().unwrap();
    let mut setup = activation().env("SCRIPTED_AGENT_STATE", state);
    let continuation = setup.assignment.continuation.get_or_insert_default();
    continuation.state_paths = vec![state.to_owned()];
    continuation.max_state_bytes = 1 << 20;
    setup
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// The names of the files in a checkpoint, and what they hold together.
pub fn unpacked(bytes: &[u8]) -> (Vec<String>, String) {
    let mut archive = tar::Archive::new(zstd::Decoder::new(bytes).unwrap());
    let (mut names, mut content) = (Vec::new(), String::new());
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        if entry.header().entry_type().is_file() {
            names.push(entry.path().unwrap().to_str().unwrap().to_owned());
            std::io::Read::read_to_string(&mut entry, &mut content).unwrap();
        }
    }
    (names, content)
}

async fn done(attempt: &Attempt, turn: usize) {
    attempt
        .gateway
        .report("the turn is done", |report| turns(report).get(turn - 1).is_some_and(|turn| !turn.1.is_empty()))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c41_the_session_is_kept_after_each_turn_and_reported_with_its_end() {
    let state = folder();
    let attempt = start(keeping(state.path())).await;
    attempt.gateway.say(queue(1, "one"));
    done(&attempt, 1).await;
    attempt.gateway.say(queue(2, "two\n!error -32603 out of luck"));
    done(&attempt, 2).await;
    attempt.gateway.say(GatewayMessage::Close);
    attempt.gateway.end().await;
    let (stored, reports) = (attempt.gateway.checkpoints(), attempt.gateway.reports());
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Completed", "Completed"), "{}", ended.transcript);
    assert_eq!(
        stored.iter().map(|stored| stored.turn).collect::<Vec<_>>(),
        [1, 2],
        "a failed turn leaves a session, too"
    );
    for stored in &stored {
        let index = usize::try_from(stored.turn).unwrap() - 1;
        let is_done =
            |report: &&crate::gateway::Report| turns(report).get(index).is_some_and(|turn| !turn.1.is_empty());
        assert!(!reports[..stored.reports_before].iter().any(|report| is_done(&report)), "stored first");
        let first = reports.iter().find(is_done).unwrap();
        let told = first.snapshot.checkpoint.as_ref().expect("in the same report");
        assert_eq!((&told.key, &told.digest, told.turn), (&stored.key, &stored.sha256, stored.turn));
        assert_eq!(told.size, stored.bytes.len() as i64);
    }
    let (names, content) = unpacked(&stored[1].bytes);
    assert_eq!(names.len(), 1);
    assert!(content.contains("one") && content.contains("echo: one") && content.contains("two"), "{content}");
    assert!(names[0].starts_with(state.path().to_str().unwrap().trim_start_matches('/')), "{names:?}");
    assert!(ended.transcript.contains("keeping the session: 1 files"), "{}", ended.transcript);
}

#[tokio::test(flavor = "multi_thread")]
async fn c41_no_turn_counts_as_done_and_no_other_begins_before_its_session_is_stored() {
    let state = folder();
    let attempt = start(keeping(state.path())).await;
    attempt.gateway.checkpointing(&[Checkpointing::Silence]);
    for said in [queue(1, "one"), queue(2, "two")] {
        attempt.gateway.say(said);
    }
    attempt.gateway.checkpoint_tries(1).await;
    // It is too late for this one, and its answer shows that time has passed.
    attempt.gateway.say(message(3, Delivery::Steer, "left"));
    let report = told(&attempt, "m3:Rejected/NotDelivered").await;
    assert_eq!((turns(&report), attempt.collector.of_kind("prompt").len()), (vec![("m1", "", "")], 1));
    // R16: an interruption finds a turn that is being kept. It parks, and is answered without waiting for that.
    attempt.gateway.say(message(4, Delivery::Interrupt, ""));
    let report = told(&attempt, "m4:Applied").await;
    assert_eq!(turns(&report), [("m1", "", "")]);
    attempt.gateway.cancel();
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Aborted", "Cancelled"), "{}", ended.transcript);
    assert_eq!(turns(&ended.report), [("m1", "Aborted", "echo: one")], "nothing says that it was done");
    assert!(ended.report.snapshot.checkpoint.is_none());
    assert!(outcomes(&ended.report).starts_with("m1:Claimed m2:Parked"), "{}", outcomes(&ended.report));
    assert!(ended.diagnostic().contains("in stage Checkpoint"), "{}", ended.diagnostic());
}

/// The pod is deleted meanwhile: its grace is not spent on the store.
#[tokio::test(flavor = "multi_thread")]
async fn s7_c49_sigterm_ends_a_session_that_is_being_stored_within_the_graces() {
    let state = folder();
    let attempt = start(keeping(state.path()).graces(1, 1, 1)).await;
    attempt.gateway.checkpointing(&[Checkpointing::Silence]);
    attempt.gateway.say(queue(1, "one"));
    attempt.gateway.checkpoint_tries(1).await;
    attempt.signal(Signal::SIGTERM);
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Error", "PodDeleted"), "{}", ended.transcript);
    assert!(ended.status.success() && ended.report.snapshot.checkpoint.is_none(), "{}", ended.transcript);
}

#[tokio::test(flavor = "multi_thread")]
async fn c41_a_cancel_leaves_a_session_that_is_being_stored_the_grace() {
    let state = folder();
    let attempt = start(keeping(state.path()).graces(30, 2, 2)).await;
    attempt.gateway.checkpointing(&[Checkpointing::Answer(503), Checkpointing::Answer(503)]);
    attempt.gateway.say(queue(1, "one"));
    attempt.gateway.checkpoint_tries(1).await;
    attempt.gateway.cancel();
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Aborted", "Cancelled"), "{}", ended.transcript);
    assert_eq!(turns(&ended.report), [("m1", "Completed", "echo: one")], "c27: it was answered before the cancel");
    assert_eq!(ended.report.snapshot.checkpoint.as_ref().map(|kept| kept.turn), Some(1));
}

/// c30, N4: what keeps a session from being stored is told while it does, and in the end.
#[tokio::test(flavor = "multi_thread")]
async fn c30_what_is_in_the_way_of_a_checkpoint_is_told_meanwhile_and_in_the_end() {
    let state = folder();
    let attempt = start(keeping(state.path()).graces(1, 1, 1)).await;
    attempt.gateway.checkpointing(&[Checkpointing::Answer(503), Checkpointing::Silence]);
    attempt.gateway.say(queue(1, "one"));
    attempt.gateway.checkpoint_tries(2).await;
    // Any report tells: this one is asked for.
    attempt.gateway.say(message(2, Delivery::Steer, "left"));
    let report = told(&attempt, "m2:Rejected/NotDelivered").await;
    let activity = report.snapshot.activity.unwrap().summary;
    assert!(activity.contains("503"), "{activity}");
    let storing = report.snapshot.storing.expect("what it waits for");
    assert_eq!(storing.what.as_deref(), Some("Session"));
    assert!(storing.trouble.is_some_and(|trouble| trouble.contains("503")));
    attempt.gateway.cancel();
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Aborted", "Cancelled"), "{}", ended.transcript);
    assert!(
        ended.diagnostic().contains("in the way was: ") && ended.diagnostic().contains("503"),
        "{}",
        ended.diagnostic()
    );
}

#[rstest]
#[case::broken(Checkpointing::Break)]
#[case::unavailable(Checkpointing::Answer(503))]
#[tokio::test(flavor = "multi_thread")]
async fn r10_a_checkpoint_is_sent_again_until_it_is_stored(#[case] trouble: Checkpointing) {
    let state = folder();
    let attempt = start(keeping(state.path())).await;
    attempt.gateway.checkpointing(&[trouble, trouble]);
    attempt.gateway.say(queue(1, "!fill 300000 some text "));
    done(&attempt, 1).await;
    attempt.gateway.say(GatewayMessage::Close);
    attempt.gateway.end().await;
    let stored = attempt.gateway.checkpoints();
    let ended = attempt.finish().await;
    assert_eq!((ended.words(), ended.prompts), (("Completed", "Completed"), 1), "{}", ended.transcript);
    assert_eq!(ended.report.snapshot.storing, None, "it went through");
    assert_eq!(stored.len(), 1);
    assert!(unpacked(&stored[0].bytes).1.len() > 300_000);
    assert!(ended.transcript.contains("the session is not stored: "), "{}", ended.transcript);
}

/// Above what two sockets hold, and nothing of it shrinks.
const NOISE: usize = 24 << 20;

/// An activation whose session has that much noise in it.
async fn noisy(state: &Path) -> Attempt {
    let mut word = 1_u64;
    let mut noise = Vec::with_capacity(NOISE);
    while noise.len() < NOISE {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        noise.extend_from_slice(&(word >> 16).to_be_bytes()[2..]);
    }
    std::fs::write(state.join("noise"), noise).unwrap();
    let mut setup = keeping(state);
    setup.assignment.continuation.as_mut().unwrap().max_state_bytes = 64 << 20;
    start(setup).await
}

/// What is refused before it has come is not sent to its end, and the answer counts.
#[rstest]
#[case::too_large(413)]
#[case::not_this_worker(409)]
#[tokio::test(flavor = "multi_thread")]
async fn r10_an_answer_before_the_end_of_an_upload_is_the_answer(#[case] status: u16) {
    let state = folder();
    let attempt = noisy(state.path()).await;
    attempt.gateway.checkpointing(&[Checkpointing::Early(status)]);
    attempt.gateway.say(queue(1, "one"));
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Error", "DurabilityFailed"), "{}", ended.transcript);
    assert!(ended.diagnostic().contains(&format!("HTTP status {status}")), "{}", ended.diagnostic());
}

#[tokio::test(flavor = "multi_thread")]
async fn r10_what_was_answered_early_is_not_sent_beside_the_next_try() {
    let state = folder();
    let attempt = noisy(state.path()).await;
    attempt.gateway.checkpointing(&[Checkpointing::Early(503)]);
    attempt.gateway.say(queue(1, "one"));
    done(&attempt, 1).await;
    assert_eq!(attempt.gateway.checkpoints().len(), 1);
    let came = attempt.gateway.came_late().await;
    assert!(came < NOISE, "{came}");
    attempt.gateway.say(GatewayMessage::Close);
    assert_eq!(attempt.finish().await.words(), ("Completed", "Completed"));
}

/// Also a link that is gone meanwhile changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn r10_a_gateway_that_is_away_is_waited_for() {
    let state = folder();
    let attempt = start(keeping(state.path())).await;
    attempt.gateway.say(queue(1, "!gate on"));
    attempt.event("prompt", "!gate on");
    attempt.gateway.go_down();
    attempt.collector.open_gate("on");
    attempt.transcript_with("the session is not stored: ").await;
    attempt.gateway.come_up();
    done(&attempt, 1).await;
    attempt.gateway.say(GatewayMessage::Close);
    attempt.gateway.end().await;
    assert_eq!(attempt.gateway.checkpoints().len(), 1);
    assert_eq!(attempt.finish().await.words(), ("Completed", "Completed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn r10_a_refused_checkpoint_ends_the_activation_and_the_older_one_is_kept() {
    let state = folder();
    let attempt = start(keeping(state.path())).await;
    attempt.gateway.say(queue(1, "one"));
    done(&attempt, 1).await;
    attempt.gateway.checkpointing(&[Checkpointing::Answer(507)]);
    for said in [queue(2, "two"), queue(3, "three")] {
        attempt.gateway.say(said);
    }
    let ended = attempt.finish().await;
    assert_eq!((ended.words(), ended.prompts), (("Error", "DurabilityFailed"), 2), "{}", ended.transcript);
    for fact in ["after turn 2", "HTTP status 507", "no session store is configured"] {
        assert!(ended.diagnostic().contains(fact), "{fact}: {}", ended.diagnostic());
    }
    assert_eq!(ended.report.snapshot.checkpoint.as_ref().map(|kept| kept.turn), Some(1));
    assert_eq!(turns(&ended.report)[1], ("m2", "Error", "echo: two"), "it does not count as done");
    assert_eq!(ended.text(), "echo: two", "c27: what it said is kept all the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn r10_a_session_over_the_bound_is_not_kept_in_part() {
    let state = folder();
    let attempt = start(keeping(state.path())).await;
    attempt.gateway.say(queue(1, "one"));
    done(&attempt, 1).await;
    attempt.gateway.say(queue(2, "!fill 2000000"));
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Error", "DurabilityFailed"), "{}", ended.transcript);
    assert!(ended.diagnostic().contains("more than maxBytes, 1048576 bytes"), "{}", ended.diagnostic());
    assert_eq!(ended.report.snapshot.checkpoint.as_ref().map(|kept| kept.turn), Some(1));
}

/// Sessions that the agent keeps elsewhere are missed after the first turn, not when they are needed.
#[rstest]
#[case::completed("one", true)]
#[case::failed("!error -32603 out of luck", false)]
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_leaves_no_session_where_it_is_looked_for(#[case] prompt: &str, #[case] is_fault: bool) {
    let (state, elsewhere) = (folder(), folder());
    let mut setup = keeping(state.path());
    setup.assignment.continuation.as_mut().unwrap().state_paths = vec![elsewhere.path().to_str().unwrap().to_owned()];
    let attempt = start(setup).await;
    attempt.gateway.say(queue(1, prompt));
    if !is_fault {
        done(&attempt, 1).await;
        attempt.gateway.say(GatewayMessage::Close);
    }
    let ended = attempt.finish().await;
    if is_fault {
        assert_eq!(ended.words(), ("Error", "DurabilityFailed"), "{}", ended.transcript);
        assert!(ended.diagnostic().contains("no file at any of sessionState.paths"), "{}", ended.diagnostic());
    } else {
        assert_eq!(ended.words(), ("Completed", "Completed"), "{}", ended.transcript);
        assert!(ended.transcript.contains("left no session"), "{}", ended.transcript);
    }
    assert!(ended.report.snapshot.checkpoint.is_none());
}

/// A state path that is not there is an empty one, as long as another is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_state_path_is_an_empty_one() {
    let state = folder();
    let mut setup = keeping(state.path());
    let paths = &mut setup.assignment.continuation.as_mut().unwrap().state_paths;
    paths.insert(0, "/no/such/folder".to_owned());
    let attempt = start(setup).await;
    attempt.gateway.say(queue(1, "one"));
    done(&attempt, 1).await;
    attempt.gateway.say(GatewayMessage::Close);
    assert_eq!(attempt.finish().await.words(), ("Completed", "Completed"));
}
