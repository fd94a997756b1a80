//! Several replicas, several connections.

use crate::{
    worker::{Heard, Worker, final_report, report, tls},
    world::{LIMIT, Replica, World},
};
use serde_json::json;
use subagent_link::RefusalReason;
use tokio::io::AsyncReadExt;

fn progress() -> serde_json::Value {
    json!({"turnCount": 1, "idle": false, "stage": "Prompt"})
}

#[tokio::test]
async fn r9_the_newest_connection_wins_on_one_replica() {
    let world = World::new("newest").await;
    let (run, _, token) = world.started("newest").await;
    let (mut old, _) = Worker::assigned(&world.replica, &token, &run).await;
    old.report(1, progress()).await;
    let mut new = Worker::hello(&world.replica, &token, &run, 1, 1).await;
    new.welcomed().await;
    match old.next().await {
        Heard::Closed(Some(1008)) => {}
        other => panic!("the older connection must be closed, not {other:?}"),
    }
    new.report(2, progress()).await;
    assert_eq!(world.replica.metrics.link_connections.get(), 1);
}

#[tokio::test]
async fn r9_a_late_report_by_an_older_replica_changes_nothing() {
    let world = World::new("late-replica").await;
    let other = Replica::start(&world.namespace, world.namespace.client.clone()).await;
    let (run, _, token) = world.started("late").await;
    let (mut old, _) = Worker::assigned(&world.replica, &token, &run).await;
    old.report(1, progress()).await;
    let mut new = Worker::hello(&other, &token, &run, 1, 2).await;
    new.welcomed().await;
    new.say(&final_report(3, "newest", "t")).await;
    assert_eq!(new.acknowledged().await, 3);
    // The old replica was paused with this in its hands. The newer snapshot holds it, so it is acknowledged.
    old.say(&report(2, json!({"turnCount": 1, "idle": false, "stage": "Initialize"}))).await;
    assert_eq!(old.acknowledged().await, 3);
    let status = world.live("late").await.status.unwrap();
    assert_eq!(status.report.as_ref().map(|report| (report.seq, report.stage.as_str())), Some((3, "Stopping")));
    assert_eq!(status.result.unwrap().text.as_deref(), Some("newest"));
    other.stop().await;
}

#[tokio::test]
async fn c5_a_replica_that_ends_says_goodbye_and_another_goes_on() {
    let world = World::new("goodbye").await;
    let ending = Replica::start(&world.namespace, world.namespace.client.clone()).await;
    let (run, _, token) = world.started("goodbye").await;
    let (mut worker, _) = Worker::assigned(&ending, &token, &run).await;
    worker.report(1, progress()).await;
    let began = std::time::Instant::now();
    let (heard, ()) = tokio::join!(worker.next(), ending.stop());
    assert!(matches!(heard, Heard::Closed(Some(1001))), "{heard:?}");
    // Two seconds and some slack for a busy machine.
    assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
    let mut again = Worker::hello(&world.replica, &token, &run, 1, 1).await;
    again.welcomed().await;
    again.report(2, progress()).await;
}

#[tokio::test]
async fn t4_a_frame_over_the_limit_ends_that_connection_alone() {
    let world = World::new("frames").await;
    let (run, _, token) = world.started("large").await;
    let (other_run, _, other_token) = world.started("other").await;
    let (mut other, _) = Worker::assigned(&world.replica, &other_token, &other_run).await;
    let (mut large, _) = Worker::assigned(&world.replica, &token, &run).await;
    large.say_text("x".repeat(2 * 1024 * 1024)).await;
    match large.next().await {
        Heard::Closed(_) => {}
        Heard::Message(subagent_link::GatewayMessage::Refused {
            reason: RefusalReason::Invalid, retry: false, ..
        }) => {}
        other => panic!("the end was expected, not {other:?}"),
    }
    other.report(1, progress()).await;
}

#[tokio::test]
async fn a_connection_that_says_nothing_is_closed() {
    let world = World::new("silent").await;
    let (_, _, token) = world.started("silent").await;
    let mut no_request = tls(&world.replica).await;
    let mut no_hello = Worker::open(&world.replica, Some(&token)).await.unwrap();
    let mut rest = vec![];
    let end = tokio::time::timeout(LIMIT, no_request.read_to_end(&mut rest));
    let (read, heard) = tokio::join!(end, no_hello.next());
    assert!(read.is_ok(), "a connection without a request stays open");
    assert!(matches!(heard, Heard::Closed(_)), "{heard:?}");
}
