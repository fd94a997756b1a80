//! Who is served and whose reports are stored.

use crate::{
    worker::{Heard, Worker, final_report, report},
    world::{LIMIT, World},
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use integration_tests::TestNamespace;
use k8s_openapi::{
    api::{apps::v1::ControllerRevision, core::v1::Pod},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
    core::ApiResource,
};
use serde_json::{Value, json};
use subagent_crds::SubagentRun;
use subagent_link::{AUDIENCE, GatewayMessage, RefusalReason, WorkerMessage};
use tokio_tungstenite::tungstenite;

#[tokio::test]
async fn d5_only_a_token_for_the_gateway_bound_to_the_pod_is_taken() {
    let world = World::new("tokens").await;
    let (run, pod, token) = world.started("tokens").await;
    let refused = async |token: &str| Worker::hello(&world.replica, token, &run, 1, 0).await.refused().await;

    let for_the_api_server = world.token(&pod, "https://kubernetes.default.svc.cluster.local").await;
    assert_eq!(refused(&for_the_api_server).await, (RefusalReason::Unauthenticated, true));
    let unbound = world.request_token(AUDIENCE, None).await;
    assert_eq!(refused(&unbound).await, (RefusalReason::Unauthenticated, true));
    assert_eq!(refused("nonsense").await, (RefusalReason::Unauthenticated, true));
    match Worker::open(&world.replica, None).await {
        Err(tungstenite::Error::Http(response)) => assert_eq!(response.status(), 401),
        other => panic!("401 was expected, not {:?}", other.map(|_| "a connection")),
    }
    // The same hello with the right token, so that the refusals above were the tokens'.
    Worker::assigned(&world.replica, &token, &run).await;

    world.namespace.api::<Pod>().delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await.unwrap();
    world
        .namespace
        .eventually("the token ends with its pod", LIMIT, async || match refused(&token).await {
            (RefusalReason::Unauthenticated | RefusalReason::NotYet, true) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
}

#[tokio::test]
async fn d5_a_worker_speaks_for_its_own_run_and_attempt_alone() {
    let world = World::new("claims").await;
    let (run, first, first_token) = world.started("claims").await;
    let (_, _, stranger) = world.started("other").await;
    let refused =
        async |token: &str, attempt: i32| Worker::hello(&world.replica, token, &run, attempt, 0).await.refused().await;
    assert_eq!(refused(&stranger, 1).await, (RefusalReason::NotCurrent, false), "another run's worker");
    assert_eq!(refused(&first_token, 2).await, (RefusalReason::NotYet, true), "an attempt that is not open");

    let second = world.pod("claims-2", &run).await;
    let second_token = world.token(&second, AUDIENCE).await;
    assert_eq!(refused(&second_token, 1).await, (RefusalReason::NotCurrent, false), "another pod is attempt 1's");
    world.begin(&run, 2, &second).await;
    assert_eq!(refused(&first_token, 1).await, (RefusalReason::NotCurrent, false), "an older attempt");
    assert_eq!(refused(&first_token, 2).await, (RefusalReason::NotCurrent, false), "an older pod as the new attempt");
    let mut worker = Worker::hello(&world.replica, &second_token, &run, 2, 0).await;
    worker.welcomed().await;
    assert_ne!(first.uid(), second.uid());
}

/// A token that says something else than its signature is for.
fn forged(token: &str, pod: &Pod) -> String {
    let parts: Vec<&str> = token.split('.').collect();
    let claims = BASE64_URL_SAFE_NO_PAD.decode(parts[1]).expect("claims");
    let mut claims: Value = serde_json::from_slice(&claims).expect("claims in JSON");
    claims["kubernetes.io"]["pod"] = json!({"name": pod.name_any(), "uid": pod.uid()});
    format!("{}.{}.{}", parts[0], BASE64_URL_SAFE_NO_PAD.encode(claims.to_string()), parts[2])
}

/// D5: whatever pod a token is from, whatever its claims say, the run of another pod stays as it is, down to its
/// resourceVersion.
#[tokio::test]
async fn d5_no_token_of_another_pod_changes_a_run() {
    let world = World::new("strangers").await;
    let (run, victim, own) = world.started("victim").await;
    let (_, _, neighbour) = world.started("neighbour").await;
    // One of the same names in another namespace, with its own run there.
    let elsewhere =
        World { namespace: TestNamespace::new("elsewhere").await, replica: world.replica, state: String::new() };
    let (_, _, abroad) = elsewhere.started("victim").await;
    let world = World { namespace: world.namespace, replica: elsewhere.replica, state: elsewhere.state };
    // A pod that is no worker, with a token as a worker has it.
    let plain = json!({"metadata": {"name": "plain"}, "spec": victim.spec.clone()});
    let plain = world.namespace.create(&serde_json::from_value::<Pod>(plain).expect("a pod")).await;
    let of_no_worker = world.token(&plain, AUDIENCE).await;
    // One that calls itself a worker of the run, as far as the admission policies are not there to refuse it.
    let pretender = world.pod("pretender", &run).await;
    let of_a_pretender = world.token(&pretender, AUDIENCE).await;
    let before = world.live("victim").await;

    for (whose, token, reason, retry) in [
        ("a neighbour's", &neighbour, RefusalReason::NotCurrent, false),
        ("one of another namespace", &abroad, RefusalReason::NotCurrent, false),
        ("a plain pod's", &of_no_worker, RefusalReason::NotCurrent, false),
        ("a pretender's", &of_a_pretender, RefusalReason::NotCurrent, false),
        ("a neighbour's that names the victim", &forged(&neighbour, &victim), RefusalReason::Unauthenticated, true),
        ("its own with other claims", &forged(&own, &plain), RefusalReason::Unauthenticated, true),
    ] {
        for attempt in [0, 1] {
            let mut worker = Worker::hello(&world.replica, token, &run, attempt, 0).await;
            assert_eq!(worker.refused().await, (reason, retry), "{whose} token, attempt {attempt}");
        }
        let mut worker = Worker::open(&world.replica, Some(token)).await.expect("a WebSocket");
        // Without a hello that was taken, no report is read.
        worker.say(&final_report(1, "forged", "t")).await;
        assert_eq!(worker.refused().await, (RefusalReason::Invalid, false), "{whose} token, without hello");
    }
    let after = world.live("victim").await;
    assert_eq!(after.resource_version(), before.resource_version(), "something was written: {}", written(&after));
    Worker::assigned(&world.replica, &own, &run).await;
}

/// C1, D2: the provider as it was at acceptance is gone, or another was put in its place. The worker is told that trying
/// again is no use, and what to do.
#[tokio::test]
async fn c1_d2_a_deleted_or_replaced_revision_is_a_last_refusal() {
    let world = World::new("revision").await;
    let (run, _, token) = world.started("run").await;
    let name = run.status.clone().and_then(|status| status.descriptor).expect("a descriptor").provider_revision;
    let revisions = world.namespace.api::<ControllerRevision>();
    let mut stored = revisions.get(&name).await.expect("the revision");
    revisions.delete(&name, &DeleteParams::default()).await.expect("a deletion");
    let refused = async || {
        let mut worker = Worker::hello(&world.replica, &token, &run, 1, 0).await;
        worker.told_why().await
    };
    let (reason, retry, message) = refused().await;
    assert_eq!((reason, retry), (RefusalReason::Invalid, false), "{message}");
    for words in [name.as_str(), "does not exist any more", "create a new run"] {
        assert!(message.contains(words), "{message}");
    }
    stored.data.0["spec"]["template"]["spec"]["containers"][0]["image"] = json!("localhost/mine:dev");
    stored.metadata = ObjectMeta { name: Some(name.clone()), labels: stored.metadata.labels, ..ObjectMeta::default() };
    world.namespace.create(&stored).await;
    let (reason, retry, message) = refused().await;
    assert_eq!((reason, retry), (RefusalReason::Invalid, false), "{message}");
    assert!(message.contains(&name) && message.contains("somebody replaced it"), "{message}");
}

/// C1: another version of the operator, in the middle of an update, may know how a run goes on that does not decode here.
/// Its worker is asked to come again; a cancel is heard all the same.
#[tokio::test]
async fn c1_the_worker_of_a_run_that_does_not_decode_is_not_refused_for_good() {
    let world = World::new("undecodable").await;
    let (run, _, token) = world.started("run").await;
    let (mut connected, _) = Worker::assigned(&world.replica, &token, &run).await;
    let untyped: Api<DynamicObject> = Api::namespaced_with(
        world.namespace.client.clone(),
        &world.namespace.name,
        &ApiResource::erase::<SubagentRun>(&()),
    );
    let params = PatchParams::default();
    // The API server takes it for a time.
    let unknown = json!({"status": {"startedAt": "2026-01-01T00:00:00+99:99"}});
    untyped.patch_status("run", &params, &Patch::Merge(&unknown)).await.expect("a status");
    assert!(matches!(world.runs().get("run").await, Err(kube::Error::SerdeError(_))), "it decodes");
    let mut again = Worker::hello(&world.replica, &token, &run, 1, 0).await;
    let (reason, retry, message) = again.told_why().await;
    assert_eq!((reason, retry), (RefusalReason::Unavailable, true), "{message}");
    assert!(message.contains("run run does not decode") && message.contains("status.startedAt"), "{message}");
    let cancel = json!({"spec": {"cancel": true}});
    untyped.patch("run", &params, &Patch::Merge(&cancel)).await.expect("a cancel");
    match connected.next().await {
        Heard::Message(GatewayMessage::Cancel { reason }) => assert_eq!(reason, "Cancelled"),
        other => panic!("a cancel was expected, not {other:?}"),
    }
}

#[tokio::test]
async fn c4_a_pod_the_status_does_not_name_yet_is_asked_to_come_again() {
    let world = World::new("not-yet").await;
    let run = world.run("early").await;
    let pod = world.pod("early-1", &run).await;
    let token = world.token(&pod, AUDIENCE).await;
    let mut early = Worker::hello(&world.replica, &token, &run, 1, 0).await;
    assert_eq!(early.refused().await, (RefusalReason::NotYet, true));
    world.begin(&run, 1, &pod).await;
    Worker::assigned(&world.replica, &token, &run).await;
}

#[tokio::test]
async fn n8_a_worker_that_lost_its_memory_gets_no_assignment() {
    let world = World::new("memory").await;
    let (run, _, token) = world.started("memory").await;
    let (mut worker, _) = Worker::assigned(&world.replica, &token, &run).await;
    worker.report(1, json!({"turnCount": 1, "idle": false, "stage": "Prompt"})).await;
    let mut restarted = Worker::hello(&world.replica, &token, &run, 1, 0).await;
    assert_eq!(restarted.refused().await, (RefusalReason::WorkerLost, false));
    // One that only lost its connection goes on, without a second assignment.
    let mut again = Worker::hello(&world.replica, &token, &run, 1, 1).await;
    again.welcomed().await;
    again.report(2, json!({"turnCount": 1, "idle": false, "stage": "Prompt"})).await;
}

/// The state of a run as far as the gateway writes it.
fn written(run: &SubagentRun) -> String {
    let status = run.status.clone().unwrap_or_default();
    json!([status.report, status.result, status.transcript]).to_string()
}

#[tokio::test]
async fn r17_a_final_report_after_a_terminal_phase_changes_nothing() {
    let world = World::new("terminal").await;
    let (run, _, token) = world.started("late").await;
    let (mut worker, _) = Worker::assigned(&world.replica, &token, &run).await;
    worker.report(1, json!({"turnCount": 1, "idle": false})).await;
    let before = written(&world.set_status("late", json!({"phase": "Failed", "reason": "DeadlineExceeded"})).await);
    worker.say(&final_report(2, "too late", "t")).await;
    assert_eq!(worker.refused_for_good(&world.replica, &token, &run, 2).await, RefusalReason::Terminal);
    assert_eq!(written(&world.live("late").await), before);
    let mut again = Worker::hello(&world.replica, &token, &run, 1, 2).await;
    assert_eq!(again.refused_for_good(&world.replica, &token, &run, 2).await, RefusalReason::Terminal);
}

#[tokio::test]
async fn r17_a_report_for_a_run_that_was_created_again_is_refused() {
    let world = World::new("again").await;
    let (run, pod, token) = world.started("same").await;
    let (mut worker, _) = Worker::assigned(&world.replica, &token, &run).await;
    world.runs().delete("same", &DeleteParams::default()).await.unwrap();
    let new = world.run("same").await;
    assert_ne!(new.uid(), run.uid());
    // Even one that names the same pod is another run.
    world.begin(&new, 1, &pod).await;
    let next = world.pod("same-new", &new).await;
    let before = written(&world.begin(&new, 2, &next).await);
    loop {
        // The deletion may have been forwarded as a cancel first.
        worker.say(&final_report(1, "old", "t")).await;
        match worker.next().await {
            crate::worker::Heard::Message(subagent_link::GatewayMessage::Cancel { .. }) => {}
            crate::worker::Heard::Message(subagent_link::GatewayMessage::Refused { reason, retry, .. }) => {
                assert_eq!((reason, retry), (RefusalReason::NotCurrent, false));
                break;
            }
            other => panic!("a refusal was expected, not {other:?}"),
        }
    }
    assert_eq!(written(&world.live("same").await), before);
}

#[tokio::test]
async fn r9_a_report_of_an_attempt_that_was_given_up_is_refused() {
    let world = World::new("attempts").await;
    let (run, _, token) = world.started("moved").await;
    let (mut worker, _) = Worker::assigned(&world.replica, &token, &run).await;
    worker.report(1, json!({"turnCount": 0, "idle": false, "stage": "Spawning"})).await;
    let second = world.pod("moved-2", &run).await;
    let before = written(&world.begin(&run, 2, &second).await);
    worker.say(&final_report(2, "old", "t")).await;
    assert_eq!(worker.refused_for_good(&world.replica, &token, &run, 2).await, RefusalReason::NotCurrent);
    assert_eq!(written(&world.live("moved").await), before);
}

#[tokio::test]
async fn t2_a_report_out_of_bounds_is_refused_and_not_stored() {
    let world = World::new("bounds").await;
    let (run, _, token) = world.started("bounds").await;
    for bad in [
        json!({"turnCount": -1, "idle": false}),
        json!({"turnCount": 0, "idle": false, "stage": "x".repeat(65)}),
        json!({"turnCount": 0, "idle": false, "newer": "x".repeat(70_000)}),
    ] {
        let (mut worker, _) = Worker::assigned(&world.replica, &token, &run).await;
        worker.say(&report(1, bad)).await;
        assert_eq!(worker.refused().await, (RefusalReason::Invalid, false));
    }
    for text in ["{".to_owned(), r#"{"kind":"report","seq":"x"}"#.to_owned(), "x".repeat(64)] {
        let (mut worker, _) = Worker::assigned(&world.replica, &token, &run).await;
        worker.say_text(text).await;
        assert_eq!(worker.refused().await, (RefusalReason::Invalid, false));
    }
    assert!(world.live("bounds").await.status.unwrap().report.is_none());
}

#[tokio::test]
async fn a_worker_of_no_common_version_and_one_that_does_not_say_hello_are_refused() {
    let world = World::new("versions").await;
    let (run, _, token) = world.started("versions").await;
    let mut newer = Worker::open(&world.replica, Some(&token)).await.unwrap();
    newer.say(&WorkerMessage::Hello { versions: vec![99], run_uid: run.uid().unwrap(), attempt: 1, seq: 0 }).await;
    assert_eq!(newer.refused().await, (RefusalReason::Version, false));
    let mut rude = Worker::open(&world.replica, Some(&token)).await.unwrap();
    rude.say(&report(1, json!({"turnCount": 0, "idle": false}))).await;
    assert_eq!(rude.refused().await, (RefusalReason::Invalid, false));
}
