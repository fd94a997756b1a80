//! What is stored and when it is acknowledged.

use crate::{
    worker::{Worker, final_report, sha256},
    world::{LIMIT, Replica, World},
};
use integration_tests::client_as;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, Pod},
    events::v1::Event,
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;
use subagent_crds::names;
use subagent_link::{ContentBlock, Prompt, RefusalReason};
use subagent_operator::naming;

#[tokio::test]
async fn c31_one_apply_keeps_report_result_and_transcript_together() {
    let world = World::new("reports").await;
    let (run, pod, token) = world.started("whole").await;
    let (mut worker, assignment) = Worker::assigned(&world.replica, &token, &run).await;
    let prompt = Prompt::Inline { content: vec![ContentBlock::Text { text: "hello".into() }] };
    assert_eq!(assignment.prompt, Some(prompt));
    assert_eq!(assignment.stop.cancel_grace_seconds, 7, "from the provider's revision");
    assert_eq!(assignment.deadlines.active_seconds, Some(90));
    assert_eq!((assignment.max_result_bytes, assignment.uploads), (4 * 1024 * 1024, true));

    // c41: the session and the turn are in the status when the acknowledgement comes.
    let turn = json!({"turn": 1, "startedAt": "2026-01-01T00:00:00Z"});
    let session = json!({"id": "s-1", "how": "New"});
    worker
        .report(1, json!({"turnCount": 1, "idle": false, "turns": [turn], "session": session, "newer": {"a": 1}}))
        .await;
    let report = world.live("whole").await.status.unwrap().report.unwrap();
    assert_eq!((report.session.unwrap().id.as_str(), report.turns.len(), report.seq), ("s-1", 1, 1));
    assert_eq!((Some(report.pod_uid), report.attempt), (pod.uid(), 1));
    assert_eq!(report.other["newer"]["a"], 1, "fields of a newer worker are kept");

    let transcript = "user: hello\nagent: done\n";
    worker.say(&final_report(2, "done ✓", transcript)).await;
    assert_eq!(worker.acknowledged().await, 2);
    // One more report, without either.
    worker.report(3, json!({"turnCount": 1, "idle": true, "stage": "Stopped"})).await;
    let live = world.live("whole").await;
    let status = live.status.clone().unwrap();
    let result = status.result.expect("the result is still there");
    assert_eq!((result.text.as_deref(), result.size, result.other_blocks), (Some("done ✓"), 8, 1));
    assert_eq!(result.sha256, sha256("done ✓".as_bytes()));
    let archived = status.transcript.expect("the transcript is still there");
    assert_eq!((archived.size, archived.dropped_bytes), (transcript.len() as i64, 5));
    assert_eq!(status.report.unwrap().seq, 3);
    assert_eq!(status.attempt, Some(1), "what the controllers wrote is untouched");

    let name = archived.ref_.expect("an archive");
    assert_eq!(name, naming::derived("whole", &run.uid().unwrap(), "transcript-1"));
    let stored: ConfigMap = world.namespace.api().get(&name).await.unwrap();
    assert_eq!(stored.immutable, Some(true));
    assert_eq!(stored.labels()[names::RUN_UID_LABEL], run.uid().unwrap());
    assert_eq!(stored.owner_references()[0].uid, run.uid().unwrap());
    assert_eq!(stored.owner_references()[0].block_owner_deletion, None);
    let unpacked = zstd::decode_all(&stored.binary_data.unwrap()["transcript.zst"].0[..]).unwrap();
    assert_eq!((unpacked.as_slice(), sha256(&unpacked)), (transcript.as_bytes(), archived.sha256));

    let managers: Vec<_> =
        live.managed_fields().iter().filter(|entry| entry.manager.as_deref() == Some(names::GATEWAY_MANAGER)).collect();
    let [manager] = managers.as_slice() else { panic!("one entry of the gateway: {managers:?}") };
    assert_eq!(manager.operation.as_deref(), Some("Apply"));
}

#[tokio::test]
async fn c3_a_repeated_report_is_acknowledged_without_a_write() {
    let world = World::new("repeats").await;
    let (run, _, token) = world.started("repeat").await;
    let (mut worker, _) = Worker::assigned(&world.replica, &token, &run).await;
    worker.say(&final_report(4, "done", "t")).await;
    assert_eq!(worker.acknowledged().await, 4);
    let before = world.live("repeat").await.resource_version();
    worker.say(&final_report(4, "done", "t")).await;
    assert_eq!(worker.acknowledged().await, 4);
    // The acknowledgement was lost: the worker sends it again over a new connection.
    let mut again = Worker::hello(&world.replica, &token, &run, 1, 4).await;
    again.welcomed().await;
    again.say(&final_report(4, "done", "t")).await;
    assert_eq!(again.acknowledged().await, 4);
    assert_eq!(world.live("repeat").await.resource_version(), before);
    assert_eq!(world.replica.metrics.reports_stored.get(), 1);
}

#[tokio::test]
async fn r1_an_archive_that_was_stored_before_its_report_is_used_again() {
    let world = World::new("archives").await;
    let (run, _, token) = world.started("archive").await;
    // As after a gateway that died between ConfigMap and status: the ConfigMap is there when the report comes again.
    let (mut worker, _) = Worker::assigned(&world.replica, &token, &run).await;
    worker.say(&final_report(1, "done", "text")).await;
    assert_eq!(worker.acknowledged().await, 1);
    let name = world.live("archive").await.status.unwrap().transcript.unwrap().ref_.unwrap();
    let first: ConfigMap = world.namespace.api().get(&name).await.unwrap();
    worker.say(&final_report(2, "done", "text")).await;
    assert_eq!(worker.acknowledged().await, 2);
    let status = world.live("archive").await.status.unwrap();
    assert_eq!(status.transcript.unwrap().ref_, Some(name.clone()));
    let second: ConfigMap = world.namespace.api().get(&name).await.unwrap();
    assert_eq!(first.uid(), second.uid());
}

#[tokio::test]
async fn d2_a_foreign_configmap_is_never_adopted_or_overwritten() {
    let world = World::new("foreign").await;
    let (run, _, token) = world.started("foreign").await;
    let name = naming::derived("foreign", &run.uid().unwrap(), "transcript-1");
    // A tenant guesses the name and even the labels.
    let labels = json!({names::RUN_LABEL: "foreign", names::RUN_UID_LABEL: run.uid()});
    let planted = json!({"metadata": {"name": name, "labels": labels}, "data": {"mine": "yes"}});
    let planted = world.namespace.create(&serde_json::from_value::<ConfigMap>(planted).unwrap()).await;
    let (mut worker, _) = Worker::assigned(&world.replica, &token, &run).await;
    worker.say(&final_report(1, "done", "text")).await;
    assert_eq!(worker.acknowledged().await, 1);
    let status = world.live("foreign").await.status.unwrap();
    let transcript = status.transcript.unwrap();
    assert_eq!((transcript.ref_, transcript.size), (None, 4));
    assert_eq!(status.result.unwrap().text.as_deref(), Some("done"));
    let found: ConfigMap = world.namespace.api().get(&name).await.unwrap();
    assert_eq!((found.data, found.binary_data, found.metadata.uid), (planted.data, None, planted.metadata.uid));
    assert_eq!(world.replica.metrics.transcripts_unarchived.get(), 1);
    // Whoever reads the run is told which object is in the way.
    let events: Api<Event> = world.namespace.api();
    let (events, run_uid) = (&events, run.uid());
    let note = world
        .namespace
        .eventually("a Warning Event on the run", LIMIT, async || {
            let all = events.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            let mut about_run = all.items.into_iter().filter(|event| {
                event.reason.as_deref() == Some("TranscriptNotArchived")
                    && event.regarding.as_ref().and_then(|regarding| regarding.uid.clone()) == run_uid
            });
            about_run.next().and_then(|event| event.note).ok_or_else(|| "no such Event".to_owned())
        })
        .await;
    assert!(note.contains(&name) && note.contains("does not belong to this run"), "{note}");
}

#[tokio::test]
async fn s6_a_terminating_namespace_takes_the_inline_result_without_archive() {
    let world = World::new("terminating").await;
    let (run, pod, token) = world.started("ends").await;
    let (mut worker, _) = Worker::assigned(&world.replica, &token, &run).await;
    // As in life: pod and run are kept by their finalizers while the namespace goes.
    let keep = Patch::Merge(json!({"metadata": {"finalizers": [names::POD_FINALIZER]}}));
    let pods: Api<Pod> = world.namespace.api();
    pods.patch(&pod.name_any(), &PatchParams::default(), &keep).await.unwrap();
    world.runs().patch("ends", &PatchParams::default(), &keep).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(world.namespace.client.clone());
    namespaces.delete(&world.namespace.name, &DeleteParams::default()).await.unwrap();
    world
        .namespace
        .eventually("the namespace refuses new objects", LIMIT, async || {
            let phase = namespaces.get(&world.namespace.name).await.map_err(|error| error.to_string())?;
            let phase = phase.status.and_then(|status| status.phase);
            if phase.as_deref() == Some("Terminating") { Ok(()) } else { Err(format!("{phase:?}")) }
        })
        .await;
    worker.say(&final_report(1, "done", "text")).await;
    let acknowledged = loop {
        match worker.next().await {
            crate::worker::Heard::Message(subagent_link::GatewayMessage::Cancel { .. }) => {}
            crate::worker::Heard::Message(subagent_link::GatewayMessage::Ack { seq }) => break seq,
            other => panic!("an acknowledgement was expected, not {other:?}"),
        }
    };
    assert_eq!(acknowledged, 1);
    let status = world.live("ends").await.status.unwrap();
    assert_eq!(status.result.unwrap().text.as_deref(), Some("done"));
    assert_eq!(status.transcript.unwrap().ref_, None);
    // Let it go.
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let _ = pods.patch(&pod.name_any(), &PatchParams::default(), &release).await;
    let _ = world.runs().patch("ends", &PatchParams::default(), &release).await;
}

#[tokio::test]
async fn c31_nothing_is_acknowledged_that_is_not_stored() {
    let world = World::new("durable").await;
    let (run, _, token) = world.started("durable").await;
    // A gateway that may read everything and write no status: a failing API server, as far as it can tell.
    let user = format!("{}-reader", world.namespace.name);
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": user},
        "rules": [
            {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
            {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
        ],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    });
    let params = PatchParams::apply("integration-tests");
    let client = world.namespace.client.clone();
    Api::<ClusterRole>::all(client.clone()).patch(&user, &params, &Patch::Apply(&role)).await.unwrap();
    Api::<ClusterRoleBinding>::all(client).patch(&user, &params, &Patch::Apply(&binding)).await.unwrap();
    let weak = Replica::start(&world.namespace, client_as(&user, &[]).await).await;

    let (mut worker, _) = Worker::assigned(&weak, &token, &run).await;
    worker.say(&final_report(1, "done", "text")).await;
    assert_eq!(worker.refused().await, (RefusalReason::Unavailable, true));
    assert!(world.live("durable").await.status.unwrap().result.is_none());
    // The worker keeps what it has and finds another replica.
    let mut again = Worker::hello(&world.replica, &token, &run, 1, 1).await;
    again.welcomed().await;
    again.say(&final_report(1, "done", "text")).await;
    assert_eq!(again.acknowledged().await, 1);
    let status = world.live("durable").await.status.unwrap();
    assert_eq!(status.result.unwrap().text.as_deref(), Some("done"));
    assert!(status.transcript.unwrap().ref_.is_some());
}
