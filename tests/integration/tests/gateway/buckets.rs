//! The session store in a bucket, on a server that speaks S3.

use crate::{
    checkpoints::{CHILD, LARGE, activated, announced, content, get, session, stored},
    worker::sha256,
    world::{Replica, World},
};
use futures::{TryStreamExt, stream};
use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::Arc,
};
use subagent_operator::session_store::{GetError, Key, PutError, Store};
use tokio_util::bytes::Bytes;

/// Above two parts of an upload, and no multiple of one.
const SEVERAL_PARTS: usize = 17 * 1024 * 1024 + 11;

/// A server of a test's own, with the bucket `sessions`.
pub struct Server {
    url: String,
    process: Child,
}

impl Server {
    pub fn start() -> Self {
        let program = std::env::var_os("SUBAGENT_S3").expect("SUBAGENT_S3: start the tests with tests/integration/run");
        // It ends with its standard input, and so with this process.
        let mut process = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the S3 server");
        let mut url = String::new();
        BufReader::new(process.stdout.take().expect("its output")).read_line(&mut url).expect("its address");
        Self { url: url.trim().to_owned(), process }
    }

    fn store(&self, url: &str, key: &str) -> Arc<Store> {
        let environment = [
            ("AWS_ENDPOINT_URL", self.url.as_str()),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", key),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Arc::new(Store::open(url, environment).expect("a setting").expect("a store"))
    }

    pub fn sessions(&self, prefix: &str) -> Arc<Store> {
        self.store(&format!("s3://sessions/{prefix}"), "the-key-of-the-tests")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn key(child: &str, turn: i64, content: &[u8]) -> Key {
    Key::parse(&subagent_operator::session_store::key(child, 1, turn, &sha256(content))).expect("a key")
}

async fn put(store: &Store, key: &Key, announced: usize, content: &[u8]) -> Result<(), PutError> {
    let frames = content.chunks(100_000).map(|frame| Ok::<_, std::io::Error>(Bytes::copy_from_slice(frame)));
    store.put(key, announced as u64, stream::iter(frames.collect::<Vec<_>>())).await
}

async fn read(store: &Arc<Store>, key: &Key, size: usize) -> Result<Vec<u8>, GetError> {
    let parts: Vec<Bytes> = store.get(key, size as u64).await?.try_collect().await?;
    Ok(parts.concat())
}

async fn listed(store: &Store) -> Vec<Key> {
    let mut keys: Vec<Key> = store.list().map_ok(|entry| entry.key).try_collect().await.expect("a list");
    keys.sort();
    keys
}

#[tokio::test]
async fn r10_c47_a_bucket_keeps_gives_and_loses_checkpoints_as_a_folder_does() {
    let server = Server::start();
    let (store, neighbour) = (server.sessions("one/prefix"), server.sessions("another"));
    assert_eq!((store.check().await, neighbour.check().await), (Ok(()), Ok(())), "c34");
    let mut keys = vec![];
    for (turn, size) in [(1, 5), (2, SEVERAL_PARTS)] {
        let content = content(size);
        let key = key(CHILD, turn, &content);
        put(&store, &key, size, &content).await.expect("it is stored");
        put(&store, &key, size, &content).await.expect("R1: it is stored already");
        assert!(read(&store, &key, size).await.expect("it is there") == content);
        // Nothing at all is there, so it may be the wrong place.
        assert!(matches!(read(&neighbour, &key, size).await, Err(GetError::Store(_))));
        keys.push(key);
    }
    // Not as announced, in one piece and in parts: never visible.
    for size in [5, SEVERAL_PARTS] {
        let good = content(size);
        let key = key(CHILD, 3, &good);
        let mut spoiled = good.clone();
        spoiled[size - 1] ^= 1;
        for arrives in [&spoiled, &good[..size - 1]] {
            let stored = put(&store, &key, size, arrives).await;
            assert!(matches!(stored, Err(PutError::Content(_))), "{stored:?}");
            assert_eq!(read(&store, &key, size).await, Err(GetError::Missing(key.clone())));
        }
    }
    let theirs = key("of-another-child", 1, b"x");
    put(&store, &theirs, 1, b"x").await.expect("it is stored");
    assert_eq!(listed(&store).await, [keys[0].clone(), keys[1].clone(), theirs.clone()]);
    store.remove(&keys[0]).await.expect("it is removed");
    store.remove(&keys[0]).await.expect("it is gone already");
    assert_eq!(listed(&store).await, [keys[1].clone(), theirs.clone()]);
    store.delete_prefix(CHILD).await.expect("the child's are removed");
    store.delete_prefix(CHILD).await.expect("they are gone already");
    assert_eq!((listed(&store).await, listed(&neighbour).await), (vec![theirs], vec![]));
}

/// R9: what one replica stored, another one gives out.
#[tokio::test]
async fn c40_c41_a_checkpoint_in_a_bucket_is_there_for_every_replica() {
    let server = Server::start();
    let world = World::with_store("bucket", Some(server.sessions(""))).await;
    let client = world.namespace.client.clone();
    let other = Replica::start_with(&world.namespace, client, Some(server.sessions(""))).await;
    let (first, token) = activated(&world, "child-1", 1, None).await;
    let content = content(LARGE);
    let key = stored(&world.replica, &token, &announced(&first, 1, &content), &content).await;
    let (second, token) = activated(&world, "child-2", 2, session(key, &content)).await;
    let (status, body) = get(&other, &token, &second).await;
    assert!(status == 200 && body == content, "{status}, {} bytes", body.len());
    other.stop().await;
}

#[tokio::test]
async fn r10_c34_what_keeps_a_bucket_from_being_used_is_told_with_what_to_do() {
    let server = Server::start();
    let content = content(5);
    let key = key(CHILD, 1, &content);
    let failure = async |store: &Arc<Store>| {
        let Err(PutError::Store(error)) = put(store, &key, 5, &content).await else { panic!("it is stored") };
        assert_eq!(store.check().await.expect_err("it cannot be used").may_pass(), error.may_pass(), "{error}");
        (error.may_pass(), error.to_string())
    };
    let (passes, why) = failure(&server.store("s3://sessions", "a-key-of-nobody")).await;
    assert!(!passes && why.contains("credentials") && !why.contains("secret"), "{why}");
    let older = self::key(CHILD, 2, b"older");
    put(&server.sessions(""), &older, 5, b"older").await.expect("it is stored");
    let reading = server.store("s3://sessions", "the-key-that-only-reads");
    let (passes, why) = failure(&reading).await;
    assert!(!passes && why.contains("may read, write, list and delete"), "{why}");
    assert_eq!(read(&reading, &older, 5).await.expect("it is kept, and given out"), b"older");
    let (passes, why) = failure(&server.store("s3://no-such-bucket/x", "the-key-of-the-tests")).await;
    assert!(!passes && why.contains("create the bucket"), "{why}");
    let store = server.sessions("");
    drop(server);
    let (passes, why) = failure(&store).await;
    assert!(passes && why.contains("s3://sessions"), "{why}");
}
