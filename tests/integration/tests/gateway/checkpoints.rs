//! Checkpoints on their way into the session store and out of it, behind the fence.

use crate::{
    worker::{Worker, sha256, tls},
    world::{LIMIT, MAX_STATE_BYTES, Replica, World},
};
use k8s_openapi::api::events::v1::Event;
use kube::{Api, ResourceExt, api::ListParams};
use rstest::rstest;
use serde_json::json;
use std::{fs, path::Path, sync::Arc};
use subagent_crds::{
    SubagentRun,
    run::{Activation, CheckpointRef, ContinuedSession},
};
use subagent_link::{AUDIENCE, CheckpointDownload, CheckpointUpload, RefusalReason, StoredCheckpoint, most_compressed};
use subagent_operator::session_store::{Store, key};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// UID of the child here.
pub const CHILD: &str = "3c1ab0e4-6c1f-4c0e-9d1e-0d0c4c8e4a11";
/// Above one part of the store.
pub const LARGE: usize = 9 * 1024 * 1024;

fn store_in(folder: &Path) -> Arc<Store> {
    Arc::new(Store::open(&format!("file://{}", folder.display()), []).expect("a setting").expect("a store"))
}

/// A world with a store, and the store's folder.
pub async fn world(hint: &str) -> (World, TempDir) {
    let dir = TempDir::new().expect("a folder");
    let world = World::with_store(hint, Some(store_in(dir.path()))).await;
    (world, dir)
}

/// An activation of the child with a worker pod, and the pod's token.
pub async fn activated(
    world: &World,
    name: &str,
    epoch: i64,
    session: Option<ContinuedSession>,
) -> (SubagentRun, String) {
    let run = world
        .run_with(name, |run| {
            run.spec.prompt = None;
            let activation = run.spec.activation.insert(Activation { epoch, session, ..Activation::default() });
            (activation.subagent_ref.name, activation.subagent_ref.uid) = ("child".into(), CHILD.into());
        })
        .await;
    let pod = world.pod(&format!("{name}-1"), &run).await;
    let run = world.begin(&run, 1, &pod).await;
    (run, world.token(&pod, AUDIENCE).await)
}

pub fn content(size: usize) -> Vec<u8> {
    (0..size).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

pub fn announced(run: &SubagentRun, turn: i64, content: &[u8]) -> CheckpointUpload {
    let run_uid = run.uid().expect("a UID");
    CheckpointUpload { run_uid, attempt: 1, turn, sha256: sha256(content), size: content.len() as i64 }
}

pub fn session(key: String, content: &[u8]) -> Option<ContinuedSession> {
    let checkpoint = CheckpointRef { key, digest: sha256(content), size: content.len() as i64 };
    Some(ContinuedSession { id: "s".into(), checkpoint, completed_turns: 1 })
}

/// Status and body of an answer; an error when the connection broke first.
async fn ask(replica: &Replica, method: &str, path: &str, token: &str, body: &[u8]) -> std::io::Result<(u16, Vec<u8>)> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    let mut stream = tls(replica).await;
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body).await?;
    let mut answer = Vec::new();
    tokio::time::timeout(LIMIT, stream.read_to_end(&mut answer)).await??;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("the end of a head");
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).and_then(|status| status.parse().ok());
    Ok((status.unwrap_or_else(|| panic!("an HTTP answer, not {head:?}")), answer[end + 4..].to_vec()))
}

pub async fn put(replica: &Replica, token: &str, announced: &CheckpointUpload, content: &[u8]) -> u16 {
    ask(replica, "PUT", &announced.path(), token, content).await.expect("an answer").0
}

/// Stores it and gives the key.
pub async fn stored(replica: &Replica, token: &str, announced: &CheckpointUpload, content: &[u8]) -> String {
    let (status, body) = ask(replica, "PUT", &announced.path(), token, content).await.expect("an answer");
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
    serde_json::from_slice::<StoredCheckpoint>(&body).expect("the key").key
}

pub async fn get(replica: &Replica, token: &str, run: &SubagentRun) -> (u16, Vec<u8>) {
    let path = CheckpointDownload { run_uid: run.uid().expect("a UID"), attempt: 1 }.path();
    ask(replica, "GET", &path, token, b"").await.expect("an answer")
}

fn files(dir: &TempDir) -> usize {
    fn count(folder: &Path) -> usize {
        let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
        entries.map(|path| if path.is_dir() { count(&path) } else { 1 }).sum()
    }
    count(dir.path())
}

pub async fn told(world: &World, reason: &'static str, named: &'static str) {
    let events: Api<Event> = world.namespace.api();
    let events = &events;
    let told = async || {
        let all = events.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
        let told = all.iter().any(|event| {
            event.reason.as_deref() == Some(reason) && event.note.as_ref().is_some_and(|note| note.contains(named))
        });
        if told { Ok(()) } else { Err(format!("{all:?}")) }
    };
    world.namespace.eventually("a Warning Event that says why", LIMIT, told).await;
}

#[rstest]
#[case::small(700)]
#[case::large(LARGE)]
#[tokio::test]
async fn c40_c41_a_stored_checkpoint_comes_back_in_the_next_activation(#[case] size: usize) {
    let (world, dir) = world("checkpoint").await;
    let (first, token) = activated(&world, "child-1", 1, None).await;
    let content = content(size);
    let announced = announced(&first, 2, &content);
    let key = stored(&world.replica, &token, &announced, &content).await;
    assert_eq!(key, subagent_operator::session_store::key(CHILD, 1, 2, &sha256(&content)));
    assert!(fs::read(dir.path().join(&key)).expect("the file") == content);
    // R1: the answer got lost, and another replica gets the repeat.
    let other = Replica::start_with(&world.namespace, world.namespace.client.clone(), Some(store_in(dir.path()))).await;
    assert_eq!(stored(&other, &token, &announced, &content).await, key);
    assert_eq!(files(&dir), 1);
    let (second, token) = activated(&world, "child-2", 2, session(key, &content)).await;
    let (status, body) = get(&other, &token, &second).await;
    assert!(status == 200 && body == content, "{status}, {} bytes", body.len());
    other.stop().await;
}

#[tokio::test]
async fn r10_what_is_not_as_announced_or_too_large_is_not_stored() {
    let (world, dir) = world("spoiled").await;
    let (run, token) = activated(&world, "child-1", 1, None).await;
    let good = content(5000);
    let honest = announced(&run, 1, &good);
    let replica = &world.replica;
    let changed = |change: fn(&mut CheckpointUpload)| {
        let mut announced = honest.clone();
        change(&mut announced);
        announced
    };
    let sent = async |announced: &CheckpointUpload| put(replica, &token, announced, &good).await;
    assert_eq!(sent(&changed(|told| told.sha256 = sha256(b"other"))).await, 422, "another digest");
    assert_eq!(sent(&changed(|told| told.sha256 = "../x".into())).await, 422, "no digest");
    assert_eq!(sent(&changed(|told| told.size = 6000)).await, 422, "shorter");
    assert_eq!(sent(&changed(|told| told.size = 4000)).await, 422, "longer");
    assert_eq!(sent(&changed(|told| told.size = 0)).await, 422, "nothing");
    assert_eq!(sent(&changed(|told| told.turn = 0)).await, 422, "no turn");
    assert_eq!(sent(&changed(|told| told.size = most_compressed(MAX_STATE_BYTES) + 1)).await, 413, "too large");
    assert_eq!(files(&dir), 0);
    // A worker that dies half-way; the next try is whole.
    let head = format!(
        "PUT {} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\ncontent-length: 5000\r\n\r\n",
        honest.path()
    );
    let mut stream = tls(replica).await;
    stream.write_all(head.as_bytes()).await.expect("a connection");
    stream.write_all(&good[..3000]).await.expect("a connection");
    drop(stream);
    assert_eq!(sent(&honest).await, 200);
}

#[tokio::test]
async fn d5_r17_only_the_worker_of_a_live_activation_stores_and_reads() {
    let (world, dir) = world("checkpoint-fence").await;
    let content = content(100);
    let key = key(CHILD, 1, 1, &sha256(&content));
    let (run, token) = activated(&world, "child-1", 1, session(key, &content)).await;
    let (one_shot, _, stranger) = world.started("one-shot").await;
    let announced_for = |run: &SubagentRun| announced(run, 1, &content);
    let both = async |token: &str, run: &SubagentRun| {
        let put = put(&world.replica, token, &announced_for(run), &content).await;
        (put, get(&world.replica, token, run).await.0)
    };
    assert_eq!(both("nonsense", &run).await, (401, 401));
    assert_eq!(both(&stranger, &run).await, (409, 409), "another run's worker");
    assert_eq!(both(&stranger, &one_shot).await, (422, 422), "a run that nothing is kept of");
    let second = world.pod("child-1-2", &run).await;
    world.begin(&run, 2, &second).await;
    assert_eq!(both(&token, &run).await, (409, 409), "an older attempt");
    world.set_status("one-shot", json!({"phase": "Failed"})).await;
    assert_eq!(both(&stranger, &one_shot).await, (409, 409), "after the end");
    assert_eq!(files(&dir), 0);
}

#[tokio::test]
async fn r10_c40_a_checkpoint_that_is_gone_or_damaged_is_said_to_be() {
    let (world, dir) = world("lost").await;
    let (first, token) = activated(&world, "child-1", 1, None).await;
    assert_eq!(get(&world.replica, &token, &first).await.0, 422, "a new session restores nothing");
    let content = content(5000);
    let key = stored(&world.replica, &token, &announced(&first, 1, &content), &content).await;
    let (second, token) = activated(&world, "child-2", 2, session(key.clone(), &content)).await;
    let mut spoiled = content.clone();
    spoiled[4999] ^= 1;
    fs::write(dir.path().join(&key), &spoiled).expect("a file");
    assert_eq!(get(&world.replica, &token, &second).await.0, 410, "damaged");
    fs::remove_file(dir.path().join(&key)).expect("a file");
    assert_eq!(get(&world.replica, &token, &second).await.0, 507, "an empty store may be the wrong one");
    let (other, other_token) = activated(&world, "child-1b", 1, None).await;
    stored(&world.replica, &other_token, &announced(&other, 1, b"x"), b"x").await;
    assert_eq!(get(&world.replica, &token, &second).await.0, 410, "gone");
    // Of two of one run the recorder keeps the first word.
    told(&world, "CheckpointLost", "is damaged").await;
    // Of another child, under a key that its status shows to many.
    let foreign = format!("another-child/1/1/{}", sha256(b"theirs"));
    fs::create_dir_all(dir.path().join("another-child/1/1")).expect("a folder");
    fs::write(dir.path().join(&foreign), b"theirs").expect("a file");
    let (third, token) = activated(&world, "child-3", 3, session(foreign, b"theirs")).await;
    assert_eq!(get(&world.replica, &token, &third).await.0, 410, "another child's");
}

#[tokio::test]
async fn c34_r10_without_a_store_that_can_be_written_the_remedy_is_told() {
    let content = content(100);
    let world = World::new("no-store").await;
    let (run, token) = activated(&world, "child-1", 1, None).await;
    assert_eq!(put(&world.replica, &token, &announced(&run, 1, &content), &content).await, 507);
    told(&world, "CheckpointNotStored", "sessionStore.url").await;
    // What was stored before stays, and can be read.
    let dir = TempDir::new().expect("a folder");
    let good = Replica::start_with(&world.namespace, world.namespace.client.clone(), Some(store_in(dir.path()))).await;
    let older = stored(&good, &token, &announced(&run, 1, &content), &content).await;
    // Nothing can be created where a file is, by whomever.
    let broken = dir.path().join(&older).join("sessions");
    let broken = Replica::start_with(&world.namespace, world.namespace.client.clone(), Some(store_in(&broken))).await;
    assert_eq!(put(&broken, &token, &announced(&run, 2, &content), &content).await, 507);
    told(&world, "CheckpointNotStored", "name a folder in sessionStore.url").await;
    let (second, token) = activated(&world, "child-2", 2, session(older, &content)).await;
    assert_eq!(get(&good, &token, &second).await, (200, content));
    good.stop().await;
    broken.stop().await;
}

#[tokio::test]
async fn c40_a_report_names_a_checkpoint_of_its_own_activation_or_is_refused() {
    let (world, _dir) = world("named").await;
    let content = content(100);
    let (run, token) = activated(&world, "child-1", 1, None).await;
    let key = stored(&world.replica, &token, &announced(&run, 1, &content), &content).await;
    let told = |key: &str| json!({"key": key, "digest": sha256(&content), "size": content.len(), "turn": 1});
    let (mut worker, _) = Worker::assigned(&world.replica, &token, &run).await;
    worker.report(1, json!({"turnCount": 1, "idle": true, "checkpoint": told(&key)})).await;
    let report = world.live("child-1").await.status.expect("a status").report.expect("a report");
    assert_eq!(serde_json::to_value(&report.checkpoint).expect("JSON"), told(&key));
    // R9: another activation of the same child, and another child.
    for foreign in [key.replacen("/1/", "/2/", 1), key.replacen(CHILD, "another-child", 1)] {
        let mut worker = Worker::hello(&world.replica, &token, &run, 1, 1).await;
        worker.welcomed().await;
        worker
            .say(&crate::worker::report(2, json!({"turnCount": 1, "idle": true, "checkpoint": told(&foreign)})))
            .await;
        let reason = loop {
            match worker.next().await {
                crate::worker::Heard::Message(subagent_link::GatewayMessage::Refused {
                    reason, retry: false, ..
                }) => {
                    break reason;
                }
                crate::worker::Heard::Message(subagent_link::GatewayMessage::Inbox { .. }) => {}
                other => panic!("a refusal for good was expected, not {other:?}"),
            }
        };
        assert_eq!(reason, RefusalReason::Invalid);
    }
    let report = world.live("child-1").await.status.expect("a status").report.expect("a report");
    assert_eq!((report.seq, serde_json::to_value(&report.checkpoint).expect("JSON")), (1, told(&key)));
}

/// What is refused is answered while it comes, and its connection ends in good order: the answer is not lost with it.
#[tokio::test]
async fn d5_r10_a_refused_upload_is_answered_before_all_of_it_has_come() {
    let (world, _dir) = world("early").await;
    let (run, token) = activated(&world, "child-1", 1, None).await;
    let (_, _, stranger) = world.started("one-shot").await;
    let large = |size: i64| CheckpointUpload { size, ..announced(&run, 1, b"x") }.path();
    let result = subagent_link::ResultUpload {
        run_uid: run.uid().expect("a UID"),
        attempt: 1,
        turn: None,
        part: subagent_link::ResultPart::Text,
        sha256: sha256(b"x"),
        size: 1 << 20,
    };
    let piece = vec![7; 1 << 20];
    let cases = [
        ("nonsense", large(MAX_STATE_BYTES), 401),
        (&stranger, large(MAX_STATE_BYTES), 409),
        (&token, large(2 * MAX_STATE_BYTES), 413),
        ("nonsense", result.path(), 401),
    ];
    let refused = cases.iter().map(async |(token, path, expected)| {
        let head = format!(
            "PUT {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\ncontent-length: {}\r\n\r\n",
            1 << 30
        );
        let mut stream = tls(&world.replica).await;
        stream.write_all(head.as_bytes()).await.expect("a connection");
        stream.write_all(&piece).await.expect("a connection");
        let mut answer = [0; 12];
        tokio::time::timeout(LIMIT / 4, stream.read_exact(&mut answer)).await.expect("an answer").expect("an answer");
        assert_eq!(answer, *format!("HTTP/1.1 {expected}").as_bytes());
        // What is on its way by then breaks nothing.
        for _ in 0..8 {
            stream.write_all(&piece).await.expect("a connection");
        }
        let mut rest = String::new();
        let end = tokio::time::timeout(LIMIT, stream.read_to_string(&mut rest)).await.expect("an end");
        end.expect("an end in good order");
        assert!(rest.to_ascii_lowercase().contains("connection: close"), "{rest}");
    });
    futures::future::join_all(refused).await;
}

/// One worker cannot take the room of all others, however much it begins and leaves open.
#[tokio::test]
async fn a_newer_transfer_of_a_run_ends_the_older_ones() {
    let (world, _dir) = world("newest").await;
    let (run, token) = activated(&world, "child-1", 1, None).await;
    let (other, other_token) = activated(&world, "child-2", 2, None).await;
    let content = content(LARGE);
    let announced = announced(&run, 1, &content);
    let mut open = vec![];
    for _ in 0..10 {
        let head = format!(
            "PUT {} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\ncontent-length: {LARGE}\r\n\r\n",
            announced.path()
        );
        let mut stream = tls(&world.replica).await;
        stream.write_all(head.as_bytes()).await.expect("a connection");
        stream.write_all(&content[..1000]).await.expect("a connection");
        open.push(stream);
    }
    let of_other = CheckpointUpload { run_uid: other.uid().expect("a UID"), ..announced.clone() };
    stored(&world.replica, &other_token, &of_other, &content).await;
    stored(&world.replica, &token, &announced, &content).await;
    for mut stream in open {
        // An answer or the end of the connection, long before anything counts as standing still.
        let mut answer = [0; 12];
        let read = tokio::time::timeout(LIMIT / 2, stream.read(&mut answer)).await.expect("it is over");
        assert!(read.is_err() || read.is_ok_and(|read| read == 0 || answer == *b"HTTP/1.1 503"), "{answer:?}");
    }
}

/// Nobody's memory is held by a worker that asks again and again and reads nothing.
#[tokio::test]
async fn unread_downloads_hold_no_place_and_nothing_of_the_content() {
    let (world, _dir) = world("unread").await;
    let content = content(LARGE);
    let (first, token) = activated(&world, "child-1", 1, None).await;
    let key = stored(&world.replica, &token, &announced(&first, 1, &content), &content).await;
    let (greedy, greedy_token) = activated(&world, "child-2", 2, session(key.clone(), &content)).await;
    let path = CheckpointDownload { run_uid: greedy.uid().expect("a UID"), attempt: 1 }.path();
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {greedy_token}\r\n\r\n");
    let mut open = vec![];
    for _ in 0..12 {
        let mut stream = tls(&world.replica).await;
        stream.write_all(head.as_bytes()).await.expect("a connection");
        // It is being served; the rest stays unread.
        let mut begin = [0; 12];
        stream.read_exact(&mut begin).await.expect("the begin of an answer");
        assert_eq!(&begin, b"HTTP/1.1 200");
        open.push(stream);
    }
    let (second, token) = activated(&world, "child-3", 3, session(key, &content)).await;
    let (status, body) = get(&world.replica, &token, &second).await;
    assert!(status == 200 && body == content, "{status}, {} bytes", body.len());
}

/// More at once than there is room for: all are taken in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_large_checkpoints_at_once_are_all_taken() {
    let (world, dir) = world("crowd").await;
    let mut children = vec![];
    for number in 0..10 {
        children.push(activated(&world, &format!("child-{number}"), number + 1, None).await);
    }
    let content = content(LARGE);
    let uploads = children.iter().map(async |(run, token)| {
        let announced = announced(run, 1, &content);
        for _ in 0..10 {
            match ask(&world.replica, "PUT", &announced.path(), token, &content).await {
                Ok((200, _)) => return true,
                Ok((503, _)) | Err(_) => {}
                Ok((status, _)) => panic!("HTTP status {status}"),
            }
        }
        false
    });
    assert_eq!(futures::future::join_all(uploads).await, [true; 10]);
    assert_eq!(files(&dir), 10);
}
