//! A session store that is not the one that the installation knows, as after another volume was mounted or another bucket named.

use crate::{
    buckets::Server,
    checkpoints::{CHILD, activated, announced, content, get, put, session, stored, told},
    worker::sha256,
    world::{Replica, World},
};
use futures::future::join_all;
use integration_tests::TestNamespace;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::DeleteParams};
use std::{fs, path::Path, process::Command, sync::Arc};
use subagent_operator::session_store::{GetError, Installation, Key, Store, StoreError};
use tempfile::TempDir;

/// Name of the ConfigMap here.
const REMEMBERED: &str = "mark";

fn installation(namespace: &TestNamespace) -> Installation {
    Installation::new(namespace.client.clone(), &namespace.name, REMEMBERED)
}

/// A folder as an operator of that namespace opens it.
fn folder(namespace: &TestNamespace, path: &Path) -> Arc<Store> {
    let store = Store::open(&format!("file://{}", path.display()), []).expect("a setting").expect("a store");
    Arc::new(store.of(installation(namespace)))
}

async fn remembered(namespace: &TestNamespace) -> Option<String> {
    let found = namespace.api::<ConfigMap>().get_opt(REMEMBERED).await.expect("a look");
    found.map(|found| found.data.expect("data")["id"].clone())
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().expect("cp").success());
}

fn is_foreign<T>(done: Result<T, StoreError>) -> bool {
    matches!(done, Err(StoreError::Foreign { .. }))
}

/// c40, R10: what is not in another store is not lost, and nothing is stored there.
#[tokio::test]
async fn r10_c40_another_store_is_no_word_about_a_checkpoint_and_takes_none() {
    let dir = TempDir::new().expect("a folder");
    let (own, other) = (dir.path().join("own"), dir.path().join("other"));
    let elsewhere = World::new("store-of-another").await;
    // Another installation's, with something in it.
    let theirs = folder(&elsewhere.namespace, &other);
    theirs.take_as_ours().await.expect("it is theirs");
    let (run, token) = activated(&elsewhere, "child-1", 1, None).await;
    let replica = Replica::start_with(&elsewhere.namespace, elsewhere.namespace.client.clone(), Some(theirs)).await;
    stored(&replica, &token, &announced(&run, 1, b"theirs"), b"theirs").await;
    replica.stop().await;

    let world = World::new("store").await;
    let (namespace, client) = (&world.namespace, world.namespace.client.clone());
    let ours = folder(namespace, &own);
    ours.take_as_ours().await.expect("it is ours");
    let good = Replica::start_with(namespace, client.clone(), Some(ours)).await;
    let (first, token) = activated(&world, "child-1", 1, None).await;
    let content = content(5000);
    let key = stored(&good, &token, &announced(&first, 1, &content), &content).await;
    good.stop().await;

    let (second, token) = activated(&world, "child-2", 2, session(key.clone(), &content)).await;
    let kept = remembered(namespace).await;
    let unmarked = dir.path().join("unmarked");
    copy(&other, &unmarked);
    fs::remove_file(unmarked.join("installation_of_the_operator")).expect("the mark");
    for wrong in [&other, &unmarked] {
        let store = folder(namespace, wrong);
        assert!(is_foreign(store.check().await) && is_foreign(store.take_as_ours().await));
        assert!(is_foreign(store.delete_prefix(CHILD).await), "c47: what is not there is not removed");
        assert!(is_foreign(store.tidy(std::time::Duration::ZERO).await));
        let bad = Replica::start_with(namespace, client.clone(), Some(store)).await;
        assert_eq!(get(&bad, &token, &second).await.0, 503, "it may come back");
        assert_eq!(put(&bad, &token, &announced(&second, 1, &content), &content).await, 503);
        bad.stop().await;
        assert!(!wrong.join(CHILD).join("2").exists());
    }
    told(&world, "CheckpointNotRead", "kubectl -n").await;
    told(&world, "CheckpointNotStored", "kubectl -n").await;
    assert_eq!(remembered(namespace).await, kept, "it is never overwritten");

    // Moved with all that is in it.
    let moved = dir.path().join("moved");
    copy(&own, &moved);
    let store = folder(namespace, &moved);
    let good = Replica::start_with(namespace, client.clone(), Some(store)).await;
    let (status, body) = get(&good, &token, &second).await;
    assert!(status == 200 && body == content, "{status}");
    good.stop().await;
    // Somebody means the other one: its word counts from then on.
    namespace.api::<ConfigMap>().delete(REMEMBERED, &DeleteParams::default()).await.expect("a deletion");
    let store = folder(namespace, &other);
    store.take_as_ours().await.expect("it is taken");
    assert_eq!(remembered(namespace).await, remembered(&elsewhere.namespace).await);
    let accepted = Replica::start_with(namespace, client, Some(store)).await;
    assert_eq!(get(&accepted, &token, &second).await.0, 410, "it is not there");
    accepted.stop().await;
}

/// It was the right one a moment ago.
#[tokio::test]
async fn r10_a_store_that_is_replaced_while_it_is_used_is_noticed_before_anything_is_said_to_be_lost() {
    let namespace = TestNamespace::new("store-replaced").await;
    let dir = TempDir::new().expect("a folder");
    let (place, other) = (dir.path().join("sessions"), dir.path().join("other"));
    let store = folder(&namespace, &place);
    store.take_as_ours().await.expect("it is ours");
    let key = |content: &[u8]| Key::parse(&format!("{CHILD}/1/1/{}", sha256(content))).expect("a key");
    let frames = |content: &'static [u8]| {
        futures::stream::iter([Ok::<_, std::io::Error>(tokio_util::bytes::Bytes::from_static(content))])
    };
    store.put(&key(b"one"), 3, frames(b"one")).await.expect("it is stored");
    fs::create_dir_all(other.join("of-another-child/1/1")).expect("a folder");
    fs::write(other.join("of-another-child/1/1").join(sha256(b"x")), b"x").expect("a file");
    fs::rename(&place, dir.path().join("away")).expect("a move");
    fs::rename(&other, &place).expect("a move");
    let got = store.get(&key(b"one"), 3).await.map(drop);
    assert!(matches!(got, Err(GetError::Store(StoreError::Foreign { .. }))), "{got:?}");
}

/// Several processes that begin with the same store agree, and so do those that begin again after one died half-way.
#[tokio::test]
async fn r9_many_that_begin_at_once_agree_on_one_mark() {
    let server = Server::start();
    let dir = TempDir::new().expect("a folder");
    for hint in ["store-race-file", "store-race-s3"] {
        let namespace = TestNamespace::new(hint).await;
        let open = || match hint {
            "store-race-file" => folder(&namespace, dir.path()),
            _ => {
                let store = Arc::into_inner(server.sessions("raced")).expect("nobody else has it");
                Arc::new(store.of(installation(&namespace)))
            }
        };
        // Nothing is known yet: any store will do, as before.
        open().check().await.expect("it can be used");
        assert_eq!(remembered(&namespace).await, None, "only the leader decides");
        let all: Vec<_> = (0..6).map(|_| open()).collect();
        if hint == "store-race-s3" {
            // A place that cannot write what is not there yet; there is one leader.
            all[0].take_as_ours().await.expect("it is ours");
        }
        assert_eq!(join_all(all.iter().map(|store| store.take_as_ours())).await, vec![Ok(()); 6]);
        let id = remembered(&namespace).await.expect("it is remembered");
        // Who died after the mark was written left no more than that.
        let config_maps: Api<ConfigMap> = namespace.api();
        config_maps.delete(REMEMBERED, &DeleteParams::default()).await.expect("a deletion");
        open().take_as_ours().await.expect("it is ours");
        assert_eq!(remembered(&namespace).await, Some(id));
    }
}
