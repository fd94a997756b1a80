//! A later activation continues the session in a new pod, or says why it cannot (c17, c18, c40, R6-R8, R10).

use crate::{
    activation::{queue, start, turns},
    checkpoints::keeping,
    gateway::{Checkpointing, Gateway},
    harness::{Attempt, Ended, Setup},
};
use rstest::rstest;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::{fs, path::Path};
use subagent_link::{ContentDigest, ContinuedSession, GatewayMessage, SessionOrigin};
use tempfile::TempDir;

/// Resume alone, load alone, neither; both is what the agent does by itself.
const RESUME_ONLY: &str = r#"{"agentCapabilities": {"loadSession": false}}"#;
const LOAD_ONLY: &str = r#"{"agentCapabilities": {"sessionCapabilities": {"resume": null}}}"#;
const NEITHER: &str = r#"{"agentCapabilities": {"loadSession": false, "sessionCapabilities": {"resume": null}}}"#;
const BOTH: &str = "{}";

/// A child after its first activation: its pod is gone, and so are its files.
struct Child {
    state: TempDir,
    session: ContinuedSession,
    checkpoint: Vec<u8>,
}

impl Child {
    /// One turn of one message.
    async fn after(prompt: &str) -> Self {
        let state = tempfile::tempdir().unwrap();
        let attempt = start(keeping(state.path())).await;
        attempt.gateway.say(queue(1, prompt));
        let idle = attempt.gateway.report("it rests", |report| report.snapshot.idle).await;
        attempt.gateway.say(GatewayMessage::Close);
        attempt.gateway.end().await;
        let checkpoint = attempt.gateway.checkpoints().pop().unwrap().bytes;
        attempt.finish().await;
        for entry in fs::read_dir(state.path()).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        let id = idle.snapshot.session.unwrap().id;
        let session = ContinuedSession { id, checkpoint: digest(&checkpoint), completed_turns: 1 };
        Self { state, session, checkpoint }
    }

    fn next(&self) -> Setup {
        let mut setup = keeping(self.state.path());
        let continuation = setup.assignment.continuation.get_or_insert_default();
        (continuation.epoch, continuation.session) = (2, Some(self.session.clone()));
        setup
    }

    /// The next activation, with its checkpoint at the gateway.
    async fn start(&self, setup: Setup) -> Attempt {
        let gateway = Gateway::start(setup.assignment.clone()).await;
        gateway.give_checkpoint(&self.checkpoint);
        self.start_with(setup, gateway).await
    }

    async fn start_with(&self, setup: Setup, gateway: Gateway) -> Attempt {
        let attempt = setup.start_with(gateway).await;
        attempt.gateway.connection(1).await;
        attempt
    }

    /// An activation that fails before any prompt.
    async fn fails(&self, setup: Setup) -> Ended {
        let attempt = self.start(setup).await;
        attempt.gateway.say(queue(1, "hi"));
        let ended = attempt.finish().await;
        assert_eq!(ended.prompts, 0, "{}", ended.transcript);
        assert!(turns(&ended.report).is_empty(), "nothing was claimed: {}", ended.transcript);
        ended
    }
}

fn digest(bytes: &[u8]) -> ContentDigest {
    ContentDigest { sha256: format!("{:x}", Sha256::digest(bytes)), size: bytes.len() as i64 }
}

fn opened(attempt: &Attempt) -> Vec<String> {
    let requests = attempt.collector.of_kind("request").into_iter().map(|request| request.text);
    requests.filter(|method| method != "initialize").collect()
}

#[rstest]
#[case::both(BOTH, "session/resume", SessionOrigin::Resumed)]
#[case::resume(RESUME_ONLY, "session/resume", SessionOrigin::Resumed)]
#[case::load(LOAD_ONLY, "session/load", SessionOrigin::Loaded)]
#[tokio::test(flavor = "multi_thread")]
async fn c40_r6_r7_a_session_goes_on_in_a_new_pod(
    #[case] capabilities: &str,
    #[case] method: &str,
    #[case] how: SessionOrigin,
) {
    let child = Child::after("the first\n!say old answer").await;
    let mut setup = child.next().env("SCRIPTED_AGENT_CAPABILITIES", capabilities);
    setup.assignment.transport.session_mode = "plan".into();
    let cwd = tempfile::tempdir().unwrap();
    setup.cwd = Some(cwd.path().to_path_buf());
    let attempt = child.start(setup).await;
    let first = attempt.gateway.report("it rests", |report| report.snapshot.session.is_some()).await;
    let session = first.snapshot.session.clone().unwrap();
    assert_eq!((&session.id, session.how), (&child.session.id, how));
    assert!(first.snapshot.activity.is_none(), "R7: what was done before is no activity: {:?}", first.snapshot);
    attempt.event("request", "session/set_mode");
    assert_eq!(opened(&attempt), [method, "session/set_mode"], "c40: and the mode again");
    attempt.gateway.say(queue(1, "!no-message"));
    attempt.gateway.say(queue(2, "!session"));
    attempt.gateway.say(queue(3, "!history"));
    attempt.gateway.report("three turns", |report| report.snapshot.turn_count == 3 && report.snapshot.idle).await;
    attempt.gateway.say(GatewayMessage::Close);
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Completed", "Completed"), "{}", ended.transcript);
    let turns = turns(&ended.report);
    assert_eq!(turns[0], ("m1", "Completed", ""), "c28: nothing replayed is output");
    let opening: Value = serde_json::from_str(turns[1].2).unwrap();
    let params = json!({"sessionId": session.id, "cwd": cwd.path(), "mcpServers": []});
    assert_eq!(opening, json!({"method": method, "mode": "plan", "params": params}), "c18");
    assert_eq!(turns[2].2, "turns before: 3", "the one of the first activation counts");
    let is_loaded = how == SessionOrigin::Loaded;
    for line in ["past user> the first", "past agent> old answer"] {
        assert_eq!(ended.transcript.lines().any(|said| said == line), is_loaded, "{line}: {}", ended.transcript);
    }
    assert!(!ended.transcript.lines().any(|said| said == "agent> old answer"), "{}", ended.transcript);
}

#[tokio::test(flavor = "multi_thread")]
async fn r7_what_is_there_beside_the_checkpoint_goes() {
    let child = Child::after("one").await;
    fs::write(child.state.path().join("left-over"), "of a turn that was not done").unwrap();
    let attempt = child.start(child.next()).await;
    attempt.gateway.report("it rests", |report| report.snapshot.idle).await;
    assert!(!child.state.path().join("left-over").exists());
    attempt.gateway.say(GatewayMessage::Close);
    attempt.finish().await;
}

#[rstest]
#[case::neither(("CAPABILITIES", NEITHER), "neither session/load nor session/resume")]
#[case::unknown(("RESUME", "error:-32002:secret"), "in stage SessionResume, the agent did not open the session: it answered with JSON-RPC error -32002")]
#[case::another_error(("RESUME", "error"), "JSON-RPC error -32603")]
#[tokio::test(flavor = "multi_thread")]
async fn r6_r8_a_session_that_is_not_opened_is_not_replaced(#[case] knob: (&str, &str), #[case] fact: &str) {
    let child = Child::after("one").await;
    let ended = child.fails(child.next().env(&format!("SCRIPTED_AGENT_{}", knob.0), knob.1)).await;
    assert_eq!(ended.words(), ("Error", "NotResumable"), "{}", ended.transcript);
    assert!(ended.diagnostic().contains(fact) && !ended.diagnostic().contains("secret"), "{}", ended.diagnostic());
    assert!(ended.report.snapshot.session.is_none(), "c8: not started");
}

/// The agent has the files and knows another session in them.
#[tokio::test(flavor = "multi_thread")]
async fn r8_a_session_the_agent_does_not_know_is_not_replaced() {
    let mut child = Child::after("one").await;
    child.session.id = "never-seen".into();
    let ended = child.fails(child.next()).await;
    assert_eq!(ended.words(), ("Error", "NotResumable"), "{}", ended.transcript);
    assert!(ended.diagnostic().contains("-32002"), "{}", ended.diagnostic());
}

#[rstest]
#[case::nothing("replay-nothing", 1, Some("without anything of its past, although 1 turns were completed"))]
#[case::nothing_and_null("replay-nothing,null-result", 1, Some("without anything of its past"))]
#[case::updates_that_tell_nothing("replay-nothing,updates-before", 1, Some("without anything of its past"))]
#[case::nothing_of_nothing("replay-nothing", 0, None)]
#[case::another_session("other-session-id", 1, Some("speaks of another session"))]
#[tokio::test(flavor = "multi_thread")]
async fn r8_a_load_shows_the_past_or_is_none(#[case] fault: &str, #[case] turns: i64, #[case] fact: Option<&str>) {
    let mut child = Child::after("one").await;
    child.session.completed_turns = turns;
    let setup = child.next().env("SCRIPTED_AGENT_CAPABILITIES", LOAD_ONLY).env("SCRIPTED_AGENT_LOAD", fault);
    let Some(fact) = fact else {
        let attempt = child.start(setup).await;
        attempt.gateway.report("it rests", |report| report.snapshot.idle).await;
        attempt.gateway.say(GatewayMessage::Close);
        attempt.finish().await;
        return;
    };
    let ended = child.fails(setup).await;
    assert_eq!(ended.words(), ("Error", "NotResumable"), "{}", ended.transcript);
    assert!(ended.diagnostic().contains(fact), "{}", ended.diagnostic());
}

#[tokio::test(flavor = "multi_thread")]
async fn r8_a_resumed_session_that_speaks_as_another_is_not_the_childs() {
    let child = Child::after("one").await;
    let attempt = child.start(child.next().env("SCRIPTED_AGENT_RESUME", "other-session-id")).await;
    attempt.gateway.say(queue(1, "two"));
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Error", "NotResumable"), "{}", ended.transcript);
    assert_eq!((turns(&ended.report), ended.text()), (vec![("m1", "Error", "")], ""), "nothing of it counts");
    assert!(ended.report.snapshot.checkpoint.is_none(), "and nothing of it is kept");
}

/// Also when it does so right behind its response.
#[tokio::test(flavor = "multi_thread")]
async fn r8_a_session_that_becomes_another_is_not_kept() {
    let child = Child::after("one").await;
    let attempt = child.start(child.next()).await;
    attempt.gateway.say(queue(1, "!say mine\n!update-after-response late\n!other-session-id other"));
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Error", "NotResumable"), "{}", ended.transcript);
    assert!(ended.report.snapshot.checkpoint.is_none(), "{}", ended.transcript);
    assert_eq!(turns(&ended.report)[0].1, "Error");
}

#[tokio::test(flavor = "multi_thread")]
async fn r10_a_checkpoint_that_is_gone_or_another_is_not_resumable() {
    let child = Child::after("one").await;
    for (bytes, fact) in [
        (None, "does not have the child's checkpoint"),
        (Some(&child.checkpoint[1..]), "not the checkpoint that was stored"),
        (Some(&[0; 10_000][..]), "not the checkpoint that was stored"),
    ] {
        let setup = child.next();
        let gateway = Gateway::start(setup.assignment.clone()).await;
        if let Some(bytes) = bytes {
            gateway.give_checkpoint(bytes);
        }
        let ended = child.start_with(setup, gateway).await.finish().await;
        assert_eq!(ended.words(), ("Error", "NotResumable"), "{}", ended.transcript);
        assert!(ended.diagnostic().contains(fact), "{}", ended.diagnostic());
        assert!(ended.report.snapshot.agent.is_none(), "the agent was not started");
    }
}

/// Stored as it is, and no checkpoint; or one of other state paths, where the child can go on once its provider has these again.
#[rstest]
#[case::damaged(None, "NotResumable", "it is damaged")]
#[case::elsewhere(Some("etc/passwd"), "AgentStartFailed", "outside of sessionState.paths")]
#[tokio::test(flavor = "multi_thread")]
async fn r10_what_is_no_checkpoint_is_not_put_back(
    #[case] name: Option<&str>,
    #[case] reason: &str,
    #[case] fact: &str,
) {
    let mut child = Child::after("one").await;
    child.checkpoint = match name {
        None => b"no archive".to_vec(),
        Some(name) => archive(name),
    };
    child.session.checkpoint = digest(&child.checkpoint);
    let ended = child.fails(child.next()).await;
    assert_eq!(ended.words(), ("Error", reason), "{}", ended.transcript);
    assert!(ended.diagnostic().contains(fact), "{}", ended.diagnostic());
}

fn archive(name: &str) -> Vec<u8> {
    let mut archive = tar::Builder::new(zstd::Encoder::new(Vec::new(), 0).unwrap());
    let mut header = tar::Header::new_gnu();
    header.set_size(4);
    header.set_mode(0o600);
    archive.append_data(&mut header, name, &b"evil"[..]).unwrap();
    archive.into_inner().unwrap().finish().unwrap()
}

/// The provider keeps sessions no more.
#[tokio::test(flavor = "multi_thread")]
async fn c2_a_provider_without_session_state_is_no_verdict_on_the_session() {
    let child = Child::after("one").await;
    let mut setup = child.next();
    setup.assignment.continuation.as_mut().unwrap().state_paths.clear();
    let ended = child.fails(setup).await;
    assert_eq!(ended.words(), ("Error", "AgentStartFailed"), "{}", ended.transcript);
    assert!(ended.diagnostic().contains("sessionState.paths, as its provider has these now"), "{}", ended.diagnostic());
}

/// The agent could not ask its model's API; whether it knows the session is open.
#[rstest]
#[case::resume(BOTH, "RESUME", "SessionResume")]
#[case::load(LOAD_ONLY, "LOAD", "SessionLoad")]
#[tokio::test(flavor = "multi_thread")]
async fn r8_an_error_of_the_models_api_is_no_verdict_on_the_session(
    #[case] capabilities: &str,
    #[case] knob: &str,
    #[case] stage: &str,
) {
    let child = Child::after("one").await;
    let setup = child.next().env("SCRIPTED_AGENT_CAPABILITIES", capabilities);
    let ended = child.fails(setup.env(&format!("SCRIPTED_AGENT_{knob}"), "http-error:503")).await;
    assert_eq!(ended.words(), ("Error", "AgentHandshakeFailed"), "{}", ended.transcript);
    let fact = format!("in stage {stage}, the agent answered with JSON-RPC error -32603 (HTTP status 503)");
    assert!(ended.diagnostic().contains(&fact), "{}", ended.diagnostic());
}

/// Nothing is wrong with the checkpoint: another pod, or another setting, can go on from it.
#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_that_does_not_fit_the_pod_is_resumable_still() {
    let child = Child::after("one").await;
    let mut setup = child.next();
    setup.assignment.continuation.as_mut().unwrap().max_state_bytes = 1024;
    let ended = child.fails(setup).await;
    assert_eq!(ended.words(), ("Error", "AgentStartFailed"), "{}", ended.transcript);
    assert!(ended.diagnostic().contains("more than maxBytes, 1024 bytes"), "{}", ended.diagnostic());
}

#[tokio::test(flavor = "multi_thread")]
async fn r10_a_store_that_is_missing_is_no_verdict_on_the_session() {
    let child = Child::after("one").await;
    let setup = child.next();
    let gateway = Gateway::start(setup.assignment.clone()).await;
    gateway.checkpointing(&[Checkpointing::Answer(507)]);
    let ended = child.start_with(setup, gateway).await.finish().await;
    assert_eq!(ended.words(), ("Error", "DurabilityFailed"), "{}", ended.transcript);
    assert!(ended.diagnostic().contains("no session store is configured"), "{}", ended.diagnostic());
}

#[tokio::test(flavor = "multi_thread")]
async fn c40_a_checkpoint_is_asked_for_until_it_comes() {
    let child = Child::after("one").await;
    let setup = child.next();
    let gateway = Gateway::start(setup.assignment.clone()).await;
    gateway.give_checkpoint(&child.checkpoint);
    gateway.checkpointing(&[Checkpointing::Answer(503), Checkpointing::Break, Checkpointing::Answer(404)]);
    let attempt = child.start_with(setup, gateway).await;
    attempt.gateway.report("it rests", |report| report.snapshot.idle).await;
    attempt.gateway.checkpoint_tries(4).await;
    attempt.gateway.say(GatewayMessage::Close);
    // An activation may have had nothing to do: what it was made for was taken back.
    let ended = attempt.finish().await;
    assert_eq!((ended.words(), ended.prompts), (("Completed", "Completed"), 0), "{}", ended.transcript);
}

#[tokio::test(flavor = "multi_thread")]
async fn s7_a_cancel_while_the_session_is_fetched_waits_for_nothing_and_tells_what_was_in_the_way() {
    let child = Child::after("one").await;
    let setup = child.next().graces(60, 60, 60);
    let gateway = Gateway::start(setup.assignment.clone()).await;
    gateway.checkpointing(&[Checkpointing::Answer(503), Checkpointing::Silence]);
    let attempt = child.start_with(setup, gateway).await;
    attempt.gateway.checkpoint_tries(2).await;
    attempt.gateway.cancel();
    let ended = attempt.finish().await;
    assert_eq!((ended.words(), ended.prompts), (("Aborted", "Cancelled"), 0), "{}", ended.transcript);
    assert!(ended.diagnostic().contains("in stage Restoring"), "{}", ended.diagnostic());
    assert!(
        ended.diagnostic().contains("in the way was: ") && ended.diagnostic().contains("503"),
        "c30: {}",
        ended.diagnostic()
    );
}

/// R6: an agent that could never go on is told at the start of its first activation.
#[tokio::test(flavor = "multi_thread")]
async fn r6_an_agent_that_can_neither_load_nor_resume_starts_no_child() {
    let state = tempfile::tempdir().unwrap();
    let attempt = start(keeping(state.path()).env("SCRIPTED_AGENT_CAPABILITIES", NEITHER)).await;
    attempt.gateway.say(queue(1, "one"));
    let ended = attempt.finish().await;
    assert_eq!((ended.words(), ended.prompts), (("Error", "AgentHandshakeFailed"), 0), "{}", ended.transcript);
    assert!(ended.diagnostic().contains("neither session/load nor session/resume"), "{}", ended.diagnostic());
    assert!(is_empty(state.path()), "no session was opened");
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

/// c17: literally, also when it is empty, and again whenever the session is opened.
#[rstest]
#[case::both(BOTH)]
#[case::load(LOAD_ONLY)]
#[tokio::test(flavor = "multi_thread")]
async fn c6_c17_a_persona_is_sent_with_every_opening(#[case] capabilities: &str) {
    let child = Child::after("one").await;
    for persona in ["be {brief}", ""] {
        let mut setup = child.next().env("SCRIPTED_AGENT_CAPABILITIES", capabilities);
        setup.assignment.persona = Some(persona.to_owned());
        let attempt = child.start(setup).await;
        attempt.gateway.say(queue(1, "!session"));
        attempt.gateway.report("a turn", |report| report.snapshot.turn_count == 1 && report.snapshot.idle).await;
        attempt.gateway.say(GatewayMessage::Close);
        let ended = attempt.finish().await;
        let opening: Value = serde_json::from_str(ended.text()).unwrap();
        let want = json!({"mode": "override", "content": [{"type": "text", "text": persona}]});
        assert_eq!(opening["params"]["systemPrompt"], want, "{}", ended.transcript);
    }
}
