//! Continuable children whose node is drained or lost. The local cluster has one node, so nothing can start meanwhile: a child's
//! next activation waits for it to come back.

use crate::OPERATOR;
use e2e_tests::{
    RunView, ScriptedProvider, TestNamespace,
    children::{
        activation, child, child_until, epochs, in_phase, live_pods, message, session, tell, told, turn, turns,
    },
    cluster::Upgraded,
    collector,
    collector::seen_event,
    commands::{kubectl, output},
    in_namespace,
    namespace::PATIENCE,
    processes::{self, Paused},
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt, api::EvictParams};
use rstest::rstest;
use serde_json::{Value, json};
use std::path::Path;
use subagent_crds::{
    Subagent, SubagentPhase, SubagentRun, conditions,
    message::Outcome::{Claimed, Parked, Queued, Started},
    subagent_status::ActivationState,
};

/// Taint of a node that is known to be down for good.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// A change of the node that kubectl takes back when this is dropped.
struct Changed(Vec<String>);

impl Changed {
    fn by(change: &[&str], back: &[&str]) -> Self {
        let changed = Self(back.iter().map(|&word| word.to_owned()).collect());
        kubectl(change);
        changed
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        // Nobody else does it; a failure shows in whatever wants the node next.
        output("kubectl", &self.0.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

/// The name of the one node.
async fn node(ns: &TestNamespace) -> String {
    let nodes = Api::<Node>::all(ns.client.clone()).list(&Default::default()).await.expect("nodes").items;
    assert_eq!(nodes.len(), 1, "nodes");
    nodes[0].name_any()
}

/// Waits until the next activation of a child has a pod, for which there is no node.
async fn waits_for_a_node(ns: &TestNamespace, name: &str, epoch: i64) {
    child_until(ns, name, "Unschedulable", |child| {
        let reason = child.status.as_ref().and_then(|status| status.reason.as_deref());
        epochs(child) == epoch && reason == Some("Unschedulable")
    })
    .await;
}

/// N3, c39, c41: a drain takes the pod of a child amid its turn, and of one that is resident with nothing to do. The first
/// loses that turn, for a reason of its own, and parks what was queued; the second loses nothing. What both are told
/// meanwhile starts an activation that has a node when there is one again, and remembers.
#[tokio::test]
async fn n3_c41_a_drain_costs_the_turn_that_runs_and_nothing_else() {
    let _alone = OPERATOR.lock().await;
    in_namespace("drained", async |ns| {
        let collector = collector();
        ns.continuable(&ScriptedProvider::keeping_sessions().reporting_to(collector.address())).await;
        let mut resident = child("resident", "!say first");
        resident.spec.activation.residency_seconds = 600;
        ns.create(&resident).await;
        ns.create(&child("busy", "!say first")).await;
        tell(&ns, "busy", &json!({"id": "m2", "text": "!report amid\n!hang"}));
        seen_event(&collector, PATIENCE, "report", "amid").await;
        tell(&ns, "busy", &json!({"id": "m3", "text": "!say queued"}));
        told(&ns, "busy", &["m3"], Queued).await;
        child_until(&ns, "resident", "Idle", |child: &Subagent| {
            let activation = child.status.as_ref().and_then(|status| status.activation.as_ref());
            activation.is_some_and(|activation| activation.state == ActivationState::Idle)
        })
        .await;

        let node = node(&ns).await;
        let cordoned = Changed::by(&["cordon", &node], &["uncordon", &node]);
        for pod in live_pods(&ns).await {
            ns.api::<Pod>().evict(&pod, &EvictParams::default()).await.expect("an eviction");
        }
        let busy = in_phase(&ns, "busy", SubagentPhase::Parked).await;
        assert_eq!(turns(&busy), [turn("m1", "Completed", "first"), turn("m2", "Error", "")]);
        assert_eq!(busy.status.as_ref().and_then(|status| status.reason.as_deref()), Some("Evicted"));
        assert_eq!((message(&busy, "m2").outcome, message(&busy, "m3").outcome), (Claimed, Parked));
        let resident = in_phase(&ns, "resident", SubagentPhase::Settled).await;
        let status = resident.status.as_ref().expect("a status");
        assert_eq!(turns(&resident), [turn("m1", "Completed", "first")]);
        assert_eq!((status.parked_count, status.reason.as_deref()), (0, None), "{:?}", status.message);

        tell(&ns, "busy", &json!({"id": "m4", "text": "!history"}));
        tell(&ns, "resident", &json!({"id": "m2", "text": "!history"}));
        for name in ["busy", "resident"] {
            waits_for_a_node(&ns, name, 2).await;
        }
        drop(cordoned);
        let busy = in_phase(&ns, "busy", SubagentPhase::Settled).await;
        let after = [turn("m3", "Completed", "queued"), turn("m4", "Completed", "turns before: 2")];
        assert_eq!(turns(&busy)[2..], after, "the checkpoint of m1, then what was parked");
        let resident = child_until(&ns, "resident", "its second turn", |child| turns(child).len() == 2).await;
        assert_eq!(turns(&resident).pop(), Some(turn("m2", "Completed", "turns before: 1")));
        for name in ["busy", "resident"] {
            assert_eq!(session(&ns, name, 2).await.how, "Resumed", "{name}");
        }
        assert_eq!(message(&resident, "m2").outcome, Started);
        assert_eq!(collector.of_kind("report").len(), 1, "what was lost amid its turn was sent again");
    })
    .await;
}

/// How a node is said to be gone.
enum Loss {
    /// Somebody who knows that it has no power taints it.
    OutOfService,
    /// Its object is deleted, and is there again when it is back, as its kubelet would register it.
    Deleted,
}

impl Loss {
    /// Says so. `kept` is where the node's object is kept meanwhile.
    fn of(self, node: &str, kept: &Path) -> Changed {
        match self {
            Self::OutOfService => {
                let (taint, untaint) =
                    (format!("{OUT_OF_SERVICE}=nodeshutdown:NoExecute"), format!("{OUT_OF_SERVICE}-"));
                Changed::by(&["taint", "node", node, &taint], &["taint", "node", node, &untaint])
            }
            Self::Deleted => {
                let mut object: Value =
                    serde_json::from_str(&kubectl(&["get", "node", node, "-o", "json"])).expect("the node");
                let metadata = object["metadata"].as_object_mut().expect("its metadata");
                metadata.retain(|key, _| ["name", "labels", "annotations"].contains(&key.as_str()));
                std::fs::write(kept, object.to_string()).expect("a file");
                Changed::by(&["delete", "node", node], &["create", "-f", kept.to_str().expect("a path in UTF-8")])
            }
        }
    }
}

/// N3, c36, c50: the node of a child goes silent amid a turn. Its activation stays the only one, whatever comes, until the node
/// is known to be gone; then the turn is lost, and what was queued is parked. The next activation begins after that proof, and
/// runs and remembers when the node is back.
#[rstest]
#[case::out_of_service(Loss::OutOfService)]
#[case::deleted(Loss::Deleted)]
#[tokio::test]
async fn n3_c36_c50_the_next_activation_waits_for_the_proof_that_a_lost_node_is_gone(#[case] loss: Loss) {
    let _alone = OPERATOR.lock().await;
    in_namespace("node-lost", async |ns| {
        let collector = collector();
        ns.continuable(&ScriptedProvider::keeping_sessions().reporting_to(collector.address())).await;
        ns.create(&child("stray", "!say first")).await;
        tell(&ns, "stray", &json!({"id": "m2", "text": "!report amid\n!hang"}));
        seen_event(&collector, PATIENCE, "report", "amid").await;
        let lost = activation(&ns, "stray", 1).await;
        let node = node(&ns).await;
        // The operator stands for one on a node that is not lost.
        let _elsewhere = Upgraded::to(&["tolerations[0].operator=Exists"]);

        // Nothing on the node says anything any more: its kubelet is held, and what runs in the pod ends without a word.
        let silent = Paused::process(processes::kubelet(), 300);
        for process in processes::of_pod(&lost.seen().pod_uid.expect("a pod")) {
            processes::signal(process, "KILL");
        }
        ns.kubectl(&["delete", "pod", &lost.pod_name(), "--wait=false"]);
        tell(&ns, "stray", &json!({"id": "m3", "text": "!say queued"}));
        let waits = told(&ns, "stray", &["m3"], Queued).await;
        assert_eq!((epochs(&waits), waits.status.and_then(|status| status.phase)), (1, Some(SubagentPhase::Active)));
        assert_eq!(activation(&ns, "stray", 1).await.condition(conditions::STOPPED), None, "nobody knows");

        let folder = tempfile::tempdir().expect("a folder");
        let gone = loss.of(&node, &folder.path().join("node.json"));
        // Nobody tells the operator of a node. What touches the pods of one that is gone, 40 s after that, takes those of
        // the operator, too, which is on no other one here.
        let touched = ["annotate", "subagentrun", &lost.name_any(), "looked-at=now"];
        ns.kubectl(&touched);
        let parked = in_phase(&ns, "stray", SubagentPhase::Parked).await;
        assert_eq!(turns(&parked), [turn("m1", "Completed", "first"), turn("m2", "Interrupted", "")]);
        assert_eq!(parked.status.as_ref().and_then(|status| status.reason.as_deref()), Some("NodeLost"));
        assert_eq!(message(&parked, "m3").outcome, Parked);
        let stopped = activation(&ns, "stray", 1).await.condition(conditions::STOPPED).expect("Stopped");
        assert_eq!((stopped.status.as_str(), stopped.reason.as_str()), ("True", "NodeGone"));

        tell(&ns, "stray", &json!({"id": "m4", "text": "!history"}));
        waits_for_a_node(&ns, "stray", 2).await;
        // The node is back.
        drop(gone);
        drop(silent);
        let settled = in_phase(&ns, "stray", SubagentPhase::Settled).await;
        let after = [turn("m3", "Completed", "queued"), turn("m4", "Completed", "turns before: 2")];
        assert_eq!(turns(&settled)[2..], after);
        assert_eq!(session(&ns, "stray", 2).await.how, "Resumed");
        let next: SubagentRun = activation(&ns, "stray", 2).await;
        assert!(next.metadata.creation_timestamp >= Some(stopped.last_transition_time), "it began before the proof");
        assert_eq!(collector.of_kind("report").len(), 1, "what was lost was sent again");
    })
    .await;
}
