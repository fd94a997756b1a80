//! The inbox of an activation on its way to the worker.

use crate::{
    worker::{Heard, Worker},
    world::World,
};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use subagent_crds::{SubagentRun, run::Activation};
use subagent_link::{AUDIENCE, Delivery, GatewayMessage};

/// A run that activates a child, with a worker pod, and the pod's token.
pub async fn activated(world: &World, name: &str, messages: &Value) -> (SubagentRun, String) {
    let run = world
        .run_with(name, |run| {
            run.spec.prompt = None;
            run.spec.activation = Some(Activation { epoch: 1, ..Activation::default() });
            let child = &mut run.spec.activation.get_or_insert_default().subagent_ref;
            (child.name, child.uid) = ("child".into(), "child-uid".into());
            run.spec.messages = serde_json::from_value(messages.clone()).expect("messages");
        })
        .await;
    let pod = world.pod(&format!("{name}-1"), &run).await;
    let run = world.begin(&run, 1, &pod).await;
    (run, world.token(&pod, AUDIENCE).await)
}

async fn change(world: &World, name: &str, spec: Value) {
    let patch = Patch::Merge(json!({"spec": spec}));
    world.runs().patch(name, &PatchParams::default(), &patch).await.expect("a change");
}

/// The next so many messages in a word each.
pub async fn heard(worker: &mut Worker, count: usize) -> String {
    let mut words = vec![];
    for _ in 0..count {
        words.push(match worker.next().await {
            Heard::Message(GatewayMessage::Inbox { placements }) => format!("list{placements:?}"),
            Heard::Message(GatewayMessage::Deliver(message)) => {
                let how = if message.delivery == Delivery::Queue { "" } else { "!" };
                format!("{}@{}{how}", message.id, message.placement)
            }
            Heard::Message(GatewayMessage::Close) => "close".to_owned(),
            other => panic!("news of the inbox were expected, not {other:?}; before: {words:?}"),
        });
    }
    words.join(" ")
}

pub fn message(id: &str, placement: i64) -> Value {
    json!({"id": id, "placement": placement, "text": "t"})
}

#[tokio::test]
async fn c37_the_inbox_reaches_the_worker_in_order_and_every_change_at_once() {
    let world = World::new("inbox").await;
    let (run, token) = activated(&world, "child-1", &json!([message("b", 2), message("a", 1)])).await;
    let (mut worker, assignment) = Worker::assigned(&world.replica, &token, &run).await;
    assert_eq!((assignment.prompt, assignment.continuation.expect("an activation").epoch), (None, 1));
    assert_eq!(heard(&mut worker, 3).await, "list[1, 2] a@1 b@2");

    let told = json!([{"id": "a", "placement": 1, "outcome": "Claimed", "turn": 1, "at": "t"}]);
    worker.report(1, json!({"turnCount": 1, "idle": false, "messages": told})).await;
    let steer = json!({"id": "s", "placement": 3, "delivery": "Steer", "text": "left"});
    change(&world, "child-1", json!({"messages": [message("b", 2), steer]})).await;
    assert_eq!(heard(&mut worker, 2).await, "list[2, 3] s@3!");

    // Another connection hears again what has no stored outcome, and nothing else.
    change(&world, "child-1", json!({"messages": [message("a", 1), message("b", 2)]})).await;
    let mut again = Worker::hello(&world.replica, &token, &run, 1, 1).await;
    again.welcomed().await;
    assert_eq!(heard(&mut again, 2).await, "list[1, 2] b@2");
    change(&world, "child-1", json!({"activation": {"inbox": "Closed"}, "messages": [message("b", 2)]})).await;
    assert_eq!(heard(&mut again, 2).await, "list[2] close");
}

#[tokio::test]
async fn c39_a_closed_inbox_stays_closed_and_takes_no_new_entry() {
    let world = World::new("closed").await;
    activated(&world, "child-1", &json!([message("a", 1)])).await;
    change(&world, "child-1", json!({"activation": {"inbox": "Closed"}})).await;
    for (spec, why) in [
        (json!({"messages": [message("a", 1), message("b", 2)]}), "a closed inbox takes no new message"),
        (json!({"messages": [message("a", 2)]}), "a closed inbox takes no new message"),
        (json!({"activation": {"inbox": "Open"}}), "activation.inbox goes from Open to Closed once"),
        (json!({"activation": {"epoch": 2}}), "activation is immutable but for its inbox"),
    ] {
        let patch = Patch::Merge(json!({"spec": spec}));
        let refused = world.runs().patch("child-1", &PatchParams::default(), &patch).await.expect_err(why);
        assert!(refused.to_string().contains(why), "{refused}");
    }
    change(&world, "child-1", json!({"messages": []})).await;
}
