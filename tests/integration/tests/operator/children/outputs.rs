//! What the turns of a child left: whole, each under its own turn, when the pod is long gone, and no more than is listed.

use super::{Children, queue};
use crate::world::LIMIT;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use scripted_agent::script::fill;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use subagent_crds::{bounds, names, report::TurnOutput};

/// The text of an output, whose digest and size are right.
async fn text(children: &Children, output: &TurnOutput) -> String {
    let mut text = String::new();
    for number in 1..=output.chunks.expect("their number") {
        let name = format!("{}-{number:03}", output.ref_.as_deref().expect("a reference"));
        let chunk: ConfigMap = children.world.namespace.api().get(&name).await.expect("a chunk");
        text.push_str(&chunk.data.expect("data")["text"]);
    }
    assert_eq!((output.sha256.clone(), output.size), (format!("{:x}", Sha256::digest(&text)), text.len() as i64));
    text
}

/// c31, c41: both turns of an activation, the first of them large.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c31_the_output_of_every_turn_outlives_its_pod() {
    let (children, operator) = Children::new("outputs").await;
    children.told("child", "!gate open\n!fill 600000 one").await;
    let run = children.until("child", "at work", super::is_at_work).await;
    let run = run.activation.expect("an activation").run_name;
    children.world.event(&run, "prompt", "").await;
    children.append("child", &[queue("m2", "!fill 20000 two")]).await;
    children.until("child", "m2 is placed", |status| status.queued_count == 1).await;
    children.world.node.collector().open_gate("open");
    children.settled("child").await;
    children.let_go("child", 1).await;
    let pods = children.world.namespace.api::<Pod>();
    pods.delete_collection(&DeleteParams::default(), &ListParams::default()).await.expect("a deletion");
    let pods = &pods;
    children
        .world
        .namespace
        .eventually("no pod", LIMIT, async || match pods.list(&ListParams::default()).await {
            Ok(list) if list.items.is_empty() => Ok(()),
            other => Err(format!("{:?}", other.map(|list| list.items.len()))),
        })
        .await;
    let status = children.settled("child").await;
    assert_eq!(status.epochs, 1, "one activation");
    let outputs: Vec<_> = status.turns.iter().map(|turn| turn.output.clone().expect("an output")).collect();
    let [first, second] = outputs.as_slice() else { panic!("{outputs:?}") };
    assert!(text(&children, first).await == fill(600_000, "one"), "the first, whole");
    assert!(text(&children, second).await == fill(20_000, "two"), "the second, whole");
    assert_eq!(first.chunks, Some(2));
    assert_eq!(status.last_result.and_then(|last| last.output).as_ref(), Some(second));
    let result = children.run("child", 1).await.status.and_then(|status| status.result).expect("a result");
    assert_eq!((&result.ref_, &result.sha256), (&second.ref_, &second.sha256), "stored once");
    children.finish(operator).await;
}

/// T5: an activation of many turns keeps the outputs of the newest alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t5_what_leaves_the_list_of_turns_leaves_the_namespace() {
    const SURPLUS: usize = 2;
    let (children, operator) = Children::new("many-outputs").await;
    children.told("child", "!gate open\n!fill 1100").await;
    children.until("child", "at work", super::is_at_work).await;
    let more: Vec<Value> =
        (2..=bounds::TURNS + SURPLUS).map(|number| queue(&format!("m{number}"), "!fill 1100")).collect();
    children.append("child", &more).await;
    children.until("child", "all are there", |status| status.messages.len() == bounds::TURNS + SURPLUS).await;
    children.world.node.collector().open_gate("open");
    let status = children.settled("child").await;
    assert_eq!((status.epochs, status.turns.len()), (1, bounds::TURNS));
    let listed: BTreeSet<_> = status
        .turns
        .iter()
        .map(|turn| {
            format!("{}-001", turn.output.as_ref().and_then(|output| output.ref_.as_deref()).expect("an output"))
        })
        .collect();
    let maps = children.world.namespace.api::<ConfigMap>();
    let found = maps.list(&ListParams::default().labels(names::TURN_LABEL)).await.expect("ConfigMaps");
    let found: BTreeSet<_> = found.items.iter().map(ResourceExt::name_any).collect();
    assert_eq!(found, listed);
    children.finish(operator).await;
}
