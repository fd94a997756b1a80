//! Continuable children: what one was told survives its pod, and messages reach it wherever it stands.

use e2e_tests::{
    RunView, ScriptedProvider,
    children::{
        activation, child, child_until, epochs, in_phase, live_pods, message, remove_pods, session, tell, turn, turns,
    },
    collector,
    collector::seen_event,
    gate, in_namespace,
    namespace::PATIENCE,
    objects::{PROVIDER, merge},
};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};
use subagent_crds::{
    Subagent, SubagentPhase, SubagentProvider, SubagentRun, conditions,
    message::Outcome::{Applied, Claimed, Parked, Started, Steered},
};

/// c40, c44: a settled child has no pod; a follow-up starts the next activation, whose agent has the session again.
#[tokio::test]
async fn c40_a_child_remembers_after_its_pod_is_gone() {
    in_namespace("child", async |ns| {
        ns.continuable(&ScriptedProvider::keeping_sessions()).await;
        ns.create(&child("keeper", "The word is heron.\n!say noted")).await;
        let settled = in_phase(&ns, "keeper", SubagentPhase::Settled).await;
        assert_eq!(turns(&settled), [turn("m1", "Completed", "noted")]);
        assert_eq!(message(&settled, "m1").outcome, Started);
        ns.kubectl(&[
            "wait",
            "--for=condition=Settled",
            "--for=condition=Resumable",
            "subagent/keeper",
            "--timeout=10s",
        ]);
        remove_pods(&ns).await;

        tell(&ns, "keeper", &json!({"id": "m2", "text": "Which word?\n!history\n!session"}));
        let settled = in_phase(&ns, "keeper", SubagentPhase::Settled).await;
        let (id, stop_reason, said) = turns(&settled).pop().expect("a turn");
        assert_eq!((id.as_str(), stop_reason.as_str()), ("m2", "Completed"));
        assert!(said.contains("turns before: 1") && said.contains("session/resume"), "{said}");
        let status = settled.status.as_ref().expect("a status");
        assert_eq!((status.epochs, status.completed_turns), (2, 2));
        assert_eq!(message(&settled, "m2").epoch, Some(2));
        assert_eq!(live_pods(&ns).await, Vec::<String>::new());
    })
    .await;
}

/// c40: with a workspace the files of one activation are there in the next, whose pod is another; they go with the child.
#[tokio::test]
async fn c40_a_childs_files_outlive_its_pods_and_go_with_it() {
    in_namespace("workspace", async |ns| {
        // What the kubelet makes of it: the volume is root's, and its group the agent's.
        let provider = ScriptedProvider::keeping_sessions().pod(json!({"securityContext": {"fsGroup": 1000}}));
        ns.continuable(&provider).await;
        let asking = |name: &str, class: Value| {
            let mut template = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}});
            merge(&mut template, class);
            let mut child = child(name, "!write note.txt heron\n!say noted");
            child.spec.workspace = serde_json::from_value(json!({"claimTemplate": template})).expect("a workspace");
            child
        };
        ns.create(&asking("tidy", json!({}))).await;
        let settled = in_phase(&ns, "tidy", SubagentPhase::Settled).await;
        assert_eq!(turns(&settled), [turn("m1", "Completed", "noted")]);
        remove_pods(&ns).await;
        tell(&ns, "tidy", &json!({"id": "m2", "text": "!cwd\n!read note.txt"}));
        let settled = in_phase(&ns, "tidy", SubagentPhase::Settled).await;
        let (id, stop_reason, said) = turns(&settled).pop().expect("a turn");
        assert_eq!((id.as_str(), stop_reason.as_str()), ("m2", "Completed"), "{:?}", settled.status);
        assert!(said.contains("/workspace") && said.contains("heron"), "{said}");

        // What the cluster has no volume for is said by the run, and by the child.
        ns.create(&asking("stuck", json!({"storageClassName": "none"}))).await;
        let stuck = child_until(&ns, "stuck", "Unschedulable", |child| {
            child.status.as_ref().is_some_and(|status| status.reason.as_deref() == Some("Unschedulable"))
        })
        .await;
        let message = stuck.status.and_then(|status| status.message).unwrap_or_default();
        assert!(message.contains("PersistentVolumeClaim"), "{message}");

        ns.kubectl(&["delete", "subagent", "tidy", "stuck", "--timeout=90s"]);
        let claims = ns.api::<PersistentVolumeClaim>();
        ns.eventually("no claim", PATIENCE, async || {
            let left = claims.list(&ListParams::default()).await.expect("claims").items;
            if left.is_empty() { Ok(()) } else { Err(format!("{} claims", left.len())) }
        })
        .await;
    })
    .await;
}

/// c37, c38: a message that queues has its turn after those before it; one that steers goes into the turn that runs.
#[tokio::test]
async fn c37_c38_a_running_child_is_steered_and_queued_for() {
    in_namespace("steer", async |ns| {
        let collector = collector();
        ns.continuable(&ScriptedProvider::keeping_sessions().reporting_to(collector.address())).await;
        ns.create(&child("busy", "!report begun\n!await-steer\n!say done")).await;
        seen_event(&collector, PATIENCE, "report", "begun").await;
        tell(&ns, "busy", &json!({"id": "m2", "text": "!say second"}));
        tell(&ns, "busy", &json!({"id": "s1", "delivery": "Steer", "text": "!say steered"}));
        let settled = in_phase(&ns, "busy", SubagentPhase::Settled).await;
        let all = turns(&settled);
        assert_eq!(all.iter().map(|turn| turn.0.as_str()).collect::<Vec<_>>(), ["m1", "m2"]);
        assert!(all[0].2.contains("done"), "{all:?}");
        assert_eq!(message(&settled, "s1").outcome, Steered, "{:?}", message(&settled, "s1"));
        assert_eq!(message(&settled, "s1").turn, Some(1));
        assert_eq!(message(&settled, "m2").outcome, Claimed);
        assert_eq!(settled.status.as_ref().map(|status| status.epochs), Some(1), "one activation for all");
        // Nothing runs now: it is not kept for later, and wakes nobody.
        tell(&ns, "busy", &json!({"id": "s2", "delivery": "Steer", "text": "too late"}));
        let settled = in_phase(&ns, "busy", SubagentPhase::Settled).await;
        let late = message(&settled, "s2");
        assert_eq!(late.code.map(|code| code.as_str()), Some("NotDelivered"));
        assert_eq!(settled.status.as_ref().map(|status| status.epochs), Some(1));
    })
    .await;
}

/// c42: an interruption ends the turn alone and parks what waits; the next waking message runs that first.
#[tokio::test]
async fn c42_an_interruption_parks_what_waits() {
    in_namespace("interrupt", async |ns| {
        let collector = collector();
        ns.continuable(&ScriptedProvider::keeping_sessions().reporting_to(collector.address())).await;
        ns.create(&child("patient", "!report begun\n!hang")).await;
        seen_event(&collector, PATIENCE, "report", "begun").await;
        tell(&ns, "patient", &json!({"id": "m2", "text": "!say second"}));
        child_until(&ns, "patient", "m2 is queued", |child| {
            child.status.iter().flat_map(|status| &status.messages).any(|message| message.id == "m2")
        })
        .await;
        tell(&ns, "patient", &json!({"id": "i1", "delivery": "Interrupt"}));
        let parked = in_phase(&ns, "patient", SubagentPhase::Parked).await;
        assert_eq!(turns(&parked).iter().map(|turn| turn.1.as_str()).collect::<Vec<_>>(), ["Aborted"]);
        assert_eq!((message(&parked, "i1").outcome, message(&parked, "m2").outcome), (Applied, Parked));
        tell(&ns, "patient", &json!({"id": "m3", "text": "!say third"}));
        let settled = in_phase(&ns, "patient", SubagentPhase::Settled).await;
        let order: Vec<String> = turns(&settled).into_iter().map(|turn| turn.0).collect();
        assert_eq!(order, ["m1", "m2", "m3"]);
    })
    .await;
}

/// c41, R1: a worker that is killed in a turn: the message stays claimed and is never sent again by itself, and the child goes
/// on from the turn before.
#[tokio::test]
async fn c41_a_killed_worker_costs_its_turn_and_nothing_else() {
    in_namespace("killed", async |ns| {
        let collector = collector();
        ns.continuable(&ScriptedProvider::keeping_sessions().reporting_to(collector.address())).await;
        ns.create(&child("tough", "!say first")).await;
        in_phase(&ns, "tough", SubagentPhase::Settled).await;
        tell(&ns, "tough", &json!({"id": "m2", "text": "!report deep\n!hang"}));
        seen_event(&collector, PATIENCE, "report", "deep").await;
        in_phase(&ns, "tough", SubagentPhase::Active).await;
        for pod in live_pods(&ns).await {
            ns.kubectl(&["delete", "pod", &pod, "--force", "--grace-period=0", "--wait=false"]);
        }
        let settled = in_phase(&ns, "tough", SubagentPhase::Settled).await;
        assert_eq!(message(&settled, "m2").outcome, Started);
        assert_ne!(turns(&settled)[1].1, "Completed", "{:?}", turns(&settled));
        tell(&ns, "tough", &json!({"id": "m3", "text": "!history"}));
        let settled = in_phase(&ns, "tough", SubagentPhase::Settled).await;
        let last = turns(&settled).pop().expect("a turn");
        assert!(last.2.contains("turns before: 1"), "the checkpoint of the first turn: {last:?}");
        assert_eq!(collector.of_kind("report").len(), 1, "the message was given to an agent twice");
    })
    .await;
}

/// c47, c50: a deleted child stops what runs, and is gone when that is.
#[tokio::test]
async fn c47_a_deleted_child_leaves_nothing_running() {
    in_namespace("forget", async |ns| {
        let collector = collector();
        ns.continuable(&ScriptedProvider::keeping_sessions().reporting_to(collector.address())).await;
        ns.create(&child("brief", &format!("!report begun\n!gate {}", gate()))).await;
        seen_event(&collector, PATIENCE, "report", "begun").await;
        in_phase(&ns, "brief", SubagentPhase::Active).await;
        assert_eq!(live_pods(&ns).await.len(), 1);
        ns.kubectl(&["delete", "subagent", "brief", "--timeout=90s"]);
        assert_eq!(live_pods(&ns).await, Vec::<String>::new());
        let runs = ns.api::<SubagentRun>().list(&ListParams::default()).await.expect("runs").items;
        assert!(runs.iter().all(|run| run.is(conditions::STOPPED)), "a run that is not proven stopped");
    })
    .await;
}

/// c2, c40: each activation is given what its provider is then, and the newest that was recorded while there is none; its agent
/// has the session again in each.
#[tokio::test]
async fn c2_an_activation_has_the_provider_of_its_time_or_the_last_that_was_recorded() {
    in_namespace("edited", async |ns| {
        let provider = |word: &str| ScriptedProvider::keeping_sessions().env("FLAVOUR", word);
        ns.continuable(&provider("first")).await;
        ns.create(&child("keeper", "!env FLAVOUR")).await;
        let mut revisions = vec![revision(&in_phase(&ns, "keeper", SubagentPhase::Settled).await)];
        let mut ask = async |number: i64, flavour: &str| {
            let id = format!("m{number}");
            tell(&ns, "keeper", &json!({"id": id, "text": "!env FLAVOUR\n!history"}));
            let settled = in_phase(&ns, "keeper", SubagentPhase::Settled).await;
            let said = turns(&settled).pop().expect("a turn");
            assert_eq!((said.0, said.1.as_str(), epochs(&settled)), (id, "Completed", number), "{settled:?}");
            assert!(
                said.2.contains(flavour) && said.2.contains(&format!("turns before: {}", number - 1)),
                "{}",
                said.2
            );
            assert_eq!(session(&ns, "keeper", number).await.how, "Resumed");
            let run = activation(&ns, "keeper", number).await.seen();
            assert_eq!(run.descriptor.map(|descriptor| descriptor.provider_revision), revision(&settled));
            revisions.push(revision(&settled));
        };

        // Told right behind the edit, before that has been looked at.
        let edited = provider("second").build().spec;
        ns.patch::<SubagentProvider>(PROVIDER, json!({"spec": edited})).await;
        ask(2, "second").await;

        let api = ns.api::<SubagentProvider>();
        let uid = api.get(PROVIDER).await.expect("the provider").uid().unwrap_or_default();
        api.delete(PROVIDER, &DeleteParams::default()).await.expect("a deletion");
        ns.gone::<SubagentProvider>(PROVIDER, &uid, PATIENCE).await;
        ask(3, "second").await;

        ns.create(&provider("third").build()).await;
        ask(4, "third").await;
        assert_eq!(revisions[1], revisions[2], "the last one that was recorded");
        assert!(revisions[0] != revisions[1] && revisions[2] != revisions[3], "{revisions:?}");
    })
    .await;
}

fn revision(child: &Subagent) -> Option<String> {
    child.status.as_ref().and_then(|status| status.provider_revision.clone())
}
