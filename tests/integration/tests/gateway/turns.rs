//! The outputs of an activation's turns: each stored under its own turn, behind the fence, proven before a report names it.

use crate::{
    inbox::{activated, heard, message},
    results::{announced, payload, put, text},
    worker::{Worker, report, result_report, sha256},
    world::{LIMIT, Replica, World},
};
use integration_tests::commands::kubectl;
use k8s_openapi::api::{core::v1::ConfigMap, events::v1::Event};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};
use subagent_crds::{
    SubagentRun, names,
    report::{RunResult, Turn},
};
use subagent_link::{AUDIENCE, ContentDigest, ResultPart, ResultPayload, ResultUpload, WorkerMessage};
use subagent_operator::naming;

/// An activation with a connected worker.
async fn at_work(world: &World, name: &str) -> (SubagentRun, String, Worker) {
    let (run, token) = activated(world, name, &json!([message("a", 1)])).await;
    let (mut worker, _) = Worker::assigned(&world.replica, &token, &run).await;
    heard(&mut worker, 2).await;
    (run, token, worker)
}

fn of_turn(run: &SubagentRun, turn: i64, part: ResultPart, text: &str) -> ResultUpload {
    ResultUpload { turn: Some(turn), ..announced(run, part, text) }
}

async fn put_turn(replica: &Replica, token: &str, run: &SubagentRun, turn: i64, text: &str) -> u16 {
    put(replica, token, &of_turn(run, turn, ResultPart::Text, text), text).await
}

fn output(text: &str) -> Value {
    json!({"sha256": sha256(text.as_bytes()), "size": text.len()})
}

/// A turn that is over, with the output it says it has.
fn done(turn: i64, output: &Value) -> Value {
    json!({"turn": turn, "startedAt": "t", "finishedAt": "t", "stopReason": "Completed", "preview": "p", "output": output})
}

fn begun(turn: i64) -> Value {
    json!({"turn": turn, "startedAt": "t"})
}

fn snapshot(turns: &[Value]) -> Value {
    json!({"session": {"id": "s", "how": "New"}, "turnCount": turns.len(), "turns": turns, "idle": false})
}

async fn turns(world: &World, run: &SubagentRun) -> Vec<Turn> {
    let status = world.live(&run.name_any()).await.status.expect("a status");
    status.report.expect("a report").turns
}

async fn result(world: &World, run: &SubagentRun) -> Option<RunResult> {
    world.live(&run.name_any()).await.status.expect("a status").result
}

fn reference(run: &SubagentRun, suffix: &str) -> String {
    naming::derived(&run.name_any(), &run.uid().expect("a UID"), suffix)
}

/// The last report of an activation, with the result that its last turn left.
fn ended(seq: i64, told: &[Value], result: ResultPayload) -> WorkerMessage {
    let mut last = result_report(seq, result);
    let WorkerMessage::Report { snapshot: all, .. } = report(seq, snapshot(told)) else { panic!("a report") };
    if let WorkerMessage::Report { snapshot, .. } = &mut last {
        (snapshot.turns, snapshot.turn_count, snapshot.session) = (all.turns, all.turn_count, all.session);
    }
    last
}

#[tokio::test]
async fn c31_the_output_of_each_turn_is_whole_and_read_with_kubectl() {
    let world = World::new("turns").await;
    let (run, token, mut worker) = at_work(&world, "child-1").await;
    let (first, second) = (text(600_000), text(20_000));
    let blocks = json!([{"type": "image", "data": "QQ==", "mimeType": "image/png"}]).to_string();
    worker.report(1, snapshot(&[begun(1)])).await;
    assert_eq!(put_turn(&world.replica, &token, &run, 1, &first).await, 204);
    let images = of_turn(&run, 1, ResultPart::Blocks, &blocks);
    assert_eq!(put(&world.replica, &token, &images, &blocks).await, 204);
    assert_eq!(turns(&world, &run).await[0].output, None, "nothing of it is in the status before the report");
    let mut told = output(&first);
    told["otherBlocks"] = 1.into();
    told["blocks"] = json!(ContentDigest { sha256: sha256(blocks.as_bytes()), size: blocks.len() as i64 });
    worker.report(2, snapshot(&[done(1, &told), begun(2)])).await;
    assert_eq!(put_turn(&world.replica, &token, &run, 2, &second).await, 204);

    // Another replica gets the end. The result of the activation is the output of its last turn, stored once.
    let other = Replica::start(&world.namespace, world.namespace.client.clone()).await;
    let mut worker = Worker::hello(&other, &token, &run, 1, 2).await;
    worker.welcomed().await;
    heard(&mut worker, 2).await;
    let last = ResultPayload { turn: Some(2), ..payload(&second) };
    worker.say(&ended(3, &[done(1, &told), done(2, &output(&second))], last)).await;
    assert_eq!(worker.acknowledged().await, 3);
    let turns = turns(&world, &run).await;
    let [one, two] = [0, 1].map(|at: usize| turns[at].output.clone().expect("an output"));
    assert_eq!((one.ref_.clone(), one.chunks), (Some(reference(&run, "turn-1-1")), Some(2)));
    assert_eq!((two.ref_.clone(), two.chunks), (Some(reference(&run, "turn-1-2")), Some(1)));
    assert_eq!((one.size, &one.sha256, one.other_blocks), (600_000, &sha256(first.as_bytes()), 1));
    assert_eq!((two.size, &two.sha256, two.blocks), (20_000, &sha256(second.as_bytes()), None));
    assert_eq!(one.blocks.map(|blocks| (blocks.ref_, blocks.chunks)), Some((reference(&run, "turn-blocks-1-1"), 1)));
    let result = result(&world, &run).await.expect("a result");
    assert_eq!((result.ref_, result.chunks, result.sha256), (two.ref_, Some(1), sha256(second.as_bytes())));

    // As the README says.
    let read = |turn: i64, content: &str, key: &str| {
        let labels = format!("subagents.dev/subagent=child,subagents.dev/epoch=1,subagents.dev/turn={turn},{content}");
        let path = format!("jsonpath={{range .items[*]}}{{.data.{key}}}{{end}}");
        kubectl(&["get", "configmap", "-n", &world.namespace.name, "-l", &labels, "-o", &path])
    };
    assert!(read(1, "subagents.dev/content=turn", "text") == first, "the first, whole");
    assert!(read(2, "subagents.dev/content=turn", "text") == second, "the second, whole");
    assert_eq!(read(1, "subagents.dev/content=turn-blocks", "blocks"), blocks);
    for name in ["turn-1-1", "turn-1-2", "turn-blocks-1-1"] {
        let stored: ConfigMap =
            world.namespace.api().get(&format!("{}-001", reference(&run, name))).await.expect("it is there");
        let owner = &stored.owner_references()[0];
        assert_eq!(
            (stored.immutable, Some(&owner.uid), owner.controller),
            (Some(true), run.uid().as_ref(), Some(true))
        );
    }
    other.stop().await;
}

/// Only the worker of the live attempt, and only for the turn that it has recorded and not ended.
#[tokio::test]
async fn d5_c41_only_the_turn_that_runs_is_stored() {
    let world = World::new("turn-fence").await;
    let (run, token, mut worker) = at_work(&world, "child-1").await;
    let (_, _, stranger) = world.started("other").await;
    let text = text(20_000);
    let try_turn = async |token: &str, turn| put_turn(&world.replica, token, &run, turn, &text).await;
    assert_eq!(try_turn(&token, 1).await, 422, "no turn is recorded");
    worker.report(1, snapshot(&[begun(1)])).await;
    assert_eq!(try_turn("nonsense", 1).await, 401);
    assert_eq!(try_turn(&stranger, 1).await, 409, "another run's worker");
    assert_eq!(try_turn(&token, 2).await, 422, "not recorded yet");
    assert_eq!(try_turn(&token, 0).await, 422);
    let small = "x".repeat(1024);
    assert_eq!(put_turn(&world.replica, &token, &run, 1, &small).await, 422, "the preview holds it");
    let large = crate::results::text(4 * 1024 * 1024 + 1);
    assert_eq!(put_turn(&world.replica, &token, &run, 1, &large).await, 422, "one byte over the limit");
    worker.report(2, snapshot(&[done(1, &Value::Null), begun(2)])).await;
    assert_eq!(try_turn(&token, 1).await, 409, "it is over");
    worker.report(3, snapshot(&[done(1, &Value::Null), done(2, &Value::Null)])).await;
    assert_eq!(try_turn(&token, 2).await, 409, "it is over");
    let (plain, _, own) = world.started("plain").await;
    let mut plain_worker = Worker::hello(&world.replica, &own, &plain, 1, 1).await;
    plain_worker.welcomed().await;
    plain_worker.report(1, snapshot(&[begun(1)])).await;
    assert_eq!(put_turn(&world.replica, &own, &plain, 1, &text).await, 422, "a one-shot run has a result");
    let second = world.pod("child-1-2", &run).await;
    world.begin(&run, 2, &second).await;
    assert_eq!(try_turn(&token, 2).await, 409, "an older attempt");
    let token = world.token(&second, AUDIENCE).await;
    let again = ResultUpload { attempt: 2, ..of_turn(&run, 2, ResultPart::Text, &text) };
    assert_eq!(put(&world.replica, &token, &again, &text).await, 422, "the turns of another attempt");
    let labels = ListParams::default().labels(names::RUN_LABEL);
    let stored = world.namespace.api::<ConfigMap>().list(&labels).await.expect("ConfigMaps");
    assert!(stored.items.is_empty(), "{:?}", stored.items);
}

/// The report is stored, and the turn did not complete.
#[tokio::test]
async fn c31_a_turn_whose_output_is_not_there_whole_did_not_complete() {
    let world = World::new("turn-vanished").await;
    for (name, harm) in [("never", 0), ("removed", 1), ("other", 2), ("of-another-turn", 3)] {
        let (run, token, mut worker) = at_work(&world, name).await;
        let text = text(600_000);
        worker.report(1, snapshot(&[begun(1)])).await;
        if harm > 0 {
            assert_eq!(put_turn(&world.replica, &token, &run, 1, &text).await, 204);
        }
        let mut told = vec![done(1, &output(&text))];
        match harm {
            1 => {
                let second = format!("{}-002", reference(&run, "turn-1-1"));
                let maps: Api<ConfigMap> = world.namespace.api();
                maps.delete(&second, &DeleteParams::default()).await.expect("a deletion");
            }
            2 => told[0]["output"]["sha256"] = sha256(b"other").into(),
            3 => told = vec![done(1, &Value::Null), done(2, &output(&text))],
            _ => {}
        }
        worker.report(2, snapshot(&told)).await;
        let last = turns(&world, &run).await.pop().expect("a turn");
        assert_eq!((last.stop_reason.as_deref(), last.output), (Some("Error"), None), "{name}");
        // Neither is it a result.
        let result_of = ResultPayload { turn: Some(last.turn), ..payload(&text) };
        worker.say(&ended(3, &told, ResultPayload { sha256: output_digest(&told), ..result_of })).await;
        assert_eq!(worker.acknowledged().await, 3);
        assert_eq!(result(&world, &run).await, None, "{name}");
    }
}

fn output_digest(told: &[Value]) -> String {
    let last = told.last().expect("a turn");
    last["output"]["sha256"].as_str().expect("a digest").to_owned()
}

#[tokio::test]
async fn d2_a_foreign_configmap_in_the_place_of_a_turns_output_is_never_adopted() {
    let world = World::new("foreign-turn").await;
    let (run, token, mut worker) = at_work(&world, "child-1").await;
    let text = text(20_000);
    let name = format!("{}-001", reference(&run, "turn-1-1"));
    // It looks as much like ours as a tenant can make it, and holds the very text.
    let planted = json!({
        "metadata": {"name": name, "labels": {names::RUN_UID_LABEL: run.uid()}, "annotations": {
            names::POD_UID_ANNOTATION: run.status.as_ref().expect("a status").pod_uid, names::CHUNKS_ANNOTATION: "1",
            names::SHA256_ANNOTATION: sha256(text.as_bytes()),
        }},
        "data": {"text": text},
    });
    let planted = world.namespace.create(&serde_json::from_value::<ConfigMap>(planted).expect("a ConfigMap")).await;
    worker.report(1, snapshot(&[begun(1)])).await;
    assert_eq!(put_turn(&world.replica, &token, &run, 1, &text).await, 507);
    assert_eq!(world.namespace.api::<ConfigMap>().get(&name).await.expect("it is there"), planted);
    let events: Api<Event> = world.namespace.api();
    let (events, name) = (&events, &name);
    world
        .namespace
        .eventually("a Warning Event that names it", LIMIT, async || {
            let all = events.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
            let is_it = |event: &Event| {
                event.reason.as_deref() == Some("ResultNotStored")
                    && event.note.as_ref().is_some_and(|note| note.contains(name))
            };
            if all.iter().any(is_it) { Ok(()) } else { Err(format!("{all:?}")) }
        })
        .await;
    // A worker that says it had uploaded is not believed either.
    worker.report(2, snapshot(&[done(1, &output(&text))])).await;
    assert_eq!(turns(&world, &run).await[0].output, None);
}

/// R1: the link drops, answers are lost, everything is said again, also by way of another replica.
#[tokio::test]
async fn r1_an_output_that_is_stored_and_told_again_is_the_same() {
    let world = World::new("turn-repeated").await;
    let (run, token, mut worker) = at_work(&world, "child-1").await;
    let text = text(600_000);
    let maps: Api<ConfigMap> = world.namespace.api();
    let labels = ListParams::default().labels(names::TURN_LABEL);
    let versions = async || {
        let list = maps.list(&labels).await.expect("ConfigMaps").items;
        list.iter().map(|map| (map.name_any(), map.uid(), map.resource_version())).collect::<Vec<_>>()
    };
    worker.report(1, snapshot(&[begun(1)])).await;
    assert_eq!(put_turn(&world.replica, &token, &run, 1, &text).await, 204);
    let first = versions().await;
    // As after a gateway that died half-way.
    maps.delete(&first[1].0, &DeleteParams::default()).await.expect("a deletion");
    drop(worker);
    let other = Replica::start(&world.namespace, world.namespace.client.clone()).await;
    assert_eq!(put_turn(&other, &token, &run, 1, &text).await, 204);
    let second = versions().await;
    assert_eq!((first.len(), second.len(), &first[0]), (2, 2, &second[0]));
    assert_eq!(put_turn(&other, &token, &run, 1, &"y".repeat(600_000)).await, 507, "another text does not replace it");
    assert_eq!(versions().await, second);
    for (seq, replica) in [(2, &world.replica), (3, &other)] {
        let mut worker = Worker::hello(replica, &token, &run, 1, seq).await;
        worker.welcomed().await;
        heard(&mut worker, 2).await;
        worker.report(seq, snapshot(&[done(1, &output(&text))])).await;
        let told = turns(&world, &run).await.remove(0).output.expect("an output");
        assert_eq!((told.ref_, told.chunks), (Some(reference(&run, "turn-1-1")), Some(2)));
    }
    other.stop().await;
}

/// C7: an older worker stores the result of its last turn, and nothing else.
#[tokio::test]
async fn c7_the_result_of_an_older_workers_activation_is_stored_as_before() {
    let world = World::new("older").await;
    let (run, token, mut worker) = at_work(&world, "child-1").await;
    let text = text(20_000);
    worker.report(1, snapshot(&[begun(1)])).await;
    assert_eq!(put(&world.replica, &token, &announced(&run, ResultPart::Text, &text), &text).await, 204);
    worker.say(&ended(2, &[done(1, &Value::Null)], payload(&text))).await;
    assert_eq!(worker.acknowledged().await, 2);
    let last = turns(&world, &run).await.pop().expect("a turn");
    assert_eq!((last.stop_reason.as_deref(), last.output), (Some("Completed"), None));
    let result = result(&world, &run).await.expect("a result");
    assert_eq!((result.ref_, result.size), (Some(reference(&run, "result-1")), 20_000));
}
