//! Results that fit no report: stored before the report that names them, proven before they go into the status.

use crate::{
    worker::{Worker, result_report, sha256, tls},
    world::{LIMIT, Replica, World},
};
use integration_tests::commands::kubectl;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, Pod},
    events::v1::Event,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use rstest::rstest;
use serde_json::json;
use subagent_crds::{SubagentRun, names, report::RunResult};
use subagent_link::{AUDIENCE, ContentDigest, ResultPart, ResultPayload, ResultUpload, UPLOAD_TIMEOUT};
use subagent_operator::naming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const MIB: usize = 1024 * 1024;

pub fn announced(run: &SubagentRun, part: ResultPart, text: &str) -> ResultUpload {
    let (sha256, size) = (sha256(text.as_bytes()), text.len() as i64);
    ResultUpload { run_uid: run.uid().expect("a UID"), attempt: 1, turn: None, part, sha256, size }
}

/// Uploads as announced; the HTTP status.
pub async fn put(replica: &Replica, token: &str, announced: &ResultUpload, text: &str) -> u16 {
    try_put(replica, token, announced, text).await.expect("an answer")
}

/// An error when the gateway answered before it took everything, and the answer went under.
async fn try_put(replica: &Replica, token: &str, announced: &ResultUpload, text: &str) -> std::io::Result<u16> {
    let head = format!(
        "PUT {} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        announced.path(),
        text.len()
    );
    let mut stream = tls(replica).await;
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(text.as_bytes()).await?;
    let mut answer = Vec::new();
    tokio::time::timeout(UPLOAD_TIMEOUT, stream.read_to_end(&mut answer)).await??;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).and_then(|status| status.parse().ok());
    Ok(status.unwrap_or_else(|| panic!("an HTTP answer, not {answer:?}")))
}

async fn put_text(replica: &Replica, token: &str, run: &SubagentRun, text: &str) -> u16 {
    put(replica, token, &announced(run, ResultPart::Text, text), text).await
}

pub fn payload(text: &str) -> ResultPayload {
    let (sha256, size) = (sha256(text.as_bytes()), text.len() as i64);
    ResultPayload { text: None, other_blocks: 0, blocks: None, sha256, size, turn: None }
}

/// Reports the end with a result, and the result that is stored then.
async fn ended(
    replica: &Replica,
    token: &str,
    run: &SubagentRun,
    result: ResultPayload,
    world: &World,
) -> Option<RunResult> {
    let mut worker = Worker::hello(replica, token, run, 1, 1).await;
    worker.welcomed().await;
    worker.say(&result_report(1, result)).await;
    assert_eq!(worker.acknowledged().await, 1);
    world.live(&run.name_any()).await.status.expect("a status").result
}

/// Characters of every length, and some that JSON and YAML treat in ways of their own.
pub fn text(bytes: usize) -> String {
    let unit = "aä€\u{1f389}\"\\\n\u{1}\u{7f}\u{85}\u{2028}\u{feff}: -\t";
    let mut text = unit.repeat(bytes / unit.len());
    text.push_str(&"x".repeat(bytes - text.len()));
    text
}

#[rstest]
#[case(16 * 1024 + 1, 1)]
#[case(256 * 1024, 1)]
#[case(4 * MIB - 1, 9)]
#[case(4 * MIB, 9)]
#[tokio::test]
async fn t3_c31_a_large_result_is_whole_and_read_with_kubectl(#[case] size: usize, #[case] chunks: i32) {
    let world = World::new("large").await;
    let (run, pod, token) = world.started("large").await;
    let text = text(size);
    assert_eq!(put_text(&world.replica, &token, &run, &text).await, 204);
    // Nothing of it is in the status before the report.
    assert_eq!(world.live("large").await.status.unwrap().result, None);
    // Another replica gets the report.
    let other = Replica::start(&world.namespace, world.namespace.client.clone()).await;
    let result = ended(&other, &token, &run, payload(&text), &world).await.expect("a result");
    assert_eq!((result.text, result.size, &result.sha256), (None, size as i64, &sha256(text.as_bytes())));
    assert_eq!(Some(result.pod_uid), pod.uid());
    let reference = result.ref_.expect("a reference");
    assert_eq!(reference, naming::derived("large", &run.uid().unwrap(), "result-1"));
    assert_eq!(result.chunks, Some(chunks), "at most 512 KiB each, ending on a character");
    for number in 1..=chunks {
        let stored: ConfigMap = world.namespace.api().get(&format!("{reference}-{number:03}")).await.unwrap();
        assert_eq!(stored.immutable, Some(true));
        assert_eq!((&stored.owner_references()[0].uid, stored.owner_references().len()), (&run.uid().unwrap(), 1));
        assert!(stored.data.unwrap()["text"].len() <= 512 * 1024);
    }
    // As the README says.
    let read = kubectl(&[
        "get",
        "configmap",
        "-n",
        &world.namespace.name,
        "-l",
        "subagents.dev/run=large,subagents.dev/content=result",
        "-o",
        "jsonpath={range .items[*]}{.data.text}{end}",
    ]);
    assert_eq!((read.len(), sha256(read.as_bytes())), (size, result.sha256));
    other.stop().await;
}

#[tokio::test]
async fn t3_what_is_not_as_announced_or_too_large_is_not_stored() {
    let world = World::new("spoiled").await;
    let (run, _, token) = world.started("spoiled").await;
    let good = text(20_000);
    let honest = announced(&run, ResultPart::Text, &good);
    let spoiled = ResultUpload { sha256: sha256(b"other"), ..honest.clone() };
    assert_eq!(put(&world.replica, &token, &spoiled, &good).await, 422, "another digest");
    assert_eq!(put(&world.replica, &token, &ResultUpload { size: 30_000, ..honest }, &good).await, 422, "shorter");
    let large = text(4 * MIB + 1);
    assert_eq!(put_text(&world.replica, &token, &run, &large).await, 422, "one byte over the limit");
    assert_eq!(put_text(&world.replica, &token, &run, &text(16 * 1024)).await, 422, "it fits the status");
    let stored =
        world.namespace.api::<ConfigMap>().list(&ListParams::default().labels(names::RUN_LABEL)).await.unwrap();
    assert!(stored.items.is_empty(), "{:?}", stored.items);
}

#[tokio::test]
async fn c28_other_content_is_kept_beside_an_inline_text() {
    let world = World::new("blocks").await;
    let (run, _, token) = world.started("blocks").await;
    let blocks = json!([{"type": "image", "data": "QQ==", "mimeType": "image/png"}]).to_string();
    assert_eq!(put(&world.replica, &token, &announced(&run, ResultPart::Blocks, &blocks), &blocks).await, 204);
    let digest = ContentDigest { sha256: sha256(blocks.as_bytes()), size: blocks.len() as i64 };
    let told = ResultPayload { text: Some("see".into()), other_blocks: 1, blocks: Some(digest), ..payload("see") };
    let result = ended(&world.replica, &token, &run, told, &world).await.expect("a result");
    assert_eq!((result.text.as_deref(), result.other_blocks, result.ref_), (Some("see"), 1, None));
    let kept = result.blocks.expect("their place");
    let stored: ConfigMap = world.namespace.api().get(&format!("{}-001", kept.ref_)).await.unwrap();
    assert_eq!((stored.data.unwrap()["blocks"].as_str(), kept.chunks), (blocks.as_str(), 1));
}

#[tokio::test]
async fn r1_an_upload_whose_answer_was_lost_is_repeated_without_harm() {
    let world = World::new("repeated").await;
    let (run, _, token) = world.started("repeated").await;
    let text = text(600_000);
    let maps: Api<ConfigMap> = world.namespace.api();
    let labels = ListParams::default().labels(names::CONTENT_LABEL);
    let versions = async || {
        let list = maps.list(&labels).await.unwrap().items;
        list.iter().map(|map| (map.name_any(), map.uid(), map.resource_version())).collect::<Vec<_>>()
    };
    assert_eq!(put_text(&world.replica, &token, &run, &text).await, 204);
    let first = versions().await;
    // As after a gateway that died half-way.
    maps.delete(&first[1].0, &DeleteParams::default()).await.unwrap();
    assert_eq!(put_text(&world.replica, &token, &run, &text).await, 204);
    let second = versions().await;
    assert_eq!((first.len(), second.len(), &first[0]), (2, 2, &second[0]));
    assert!(ended(&world.replica, &token, &run, payload(&text), &world).await.is_some());
    // Another text of the same attempt does not replace it.
    assert_eq!(put_text(&world.replica, &token, &run, &"y".repeat(600_000)).await, 507);
    assert_eq!(versions().await, second);
}

#[tokio::test]
async fn d2_a_foreign_configmap_in_the_place_of_a_result_is_never_adopted() {
    let world = World::new("foreign-result").await;
    let (run, _, token) = world.started("foreign").await;
    let text = text(20_000);
    let name = format!("{}-001", naming::derived("foreign", &run.uid().unwrap(), "result-1"));
    // It looks as much like ours as a tenant can make it, and holds the very text.
    let planted = json!({
        "metadata": {"name": name, "labels": {names::RUN_UID_LABEL: run.uid()}, "annotations": {
            names::POD_UID_ANNOTATION: run.status.as_ref().unwrap().pod_uid, names::CHUNKS_ANNOTATION: "1",
            names::SHA256_ANNOTATION: sha256(text.as_bytes()),
        }},
        "data": {"text": text},
    });
    let planted = world.namespace.create(&serde_json::from_value::<ConfigMap>(planted).unwrap()).await;
    assert_eq!(put_text(&world.replica, &token, &run, &text).await, 507);
    assert_eq!(world.namespace.api::<ConfigMap>().get(&name).await.unwrap(), planted);
    let events: Api<Event> = world.namespace.api();
    let (events, run_uid, name) = (&events, run.uid(), &name);
    world
        .namespace
        .eventually("a Warning Event that names it", LIMIT, async || {
            let all = events.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
            let told = all.iter().any(|event| {
                event.reason.as_deref() == Some("ResultNotStored")
                    && event.regarding.as_ref().and_then(|regarding| regarding.uid.clone()) == run_uid
                    && event.note.as_ref().is_some_and(|note| note.contains(name))
            });
            if told { Ok(()) } else { Err(format!("{all:?}")) }
        })
        .await;
    // A worker that says it had uploaded is not believed either.
    assert_eq!(ended(&world.replica, &token, &run, payload(&text), &world).await, None);
}

/// The report is acknowledged, without a result: the controller then ends the run as DurabilityFailed.
#[tokio::test]
async fn c31_a_result_that_is_not_there_whole_is_none() {
    let world = World::new("vanished").await;
    for (name, harm) in [("never", 0), ("removed", 1), ("other", 2)] {
        let (run, _, token) = world.started(name).await;
        let (mut told, text) = (payload(&text(600_000)), text(600_000));
        if harm > 0 {
            assert_eq!(put_text(&world.replica, &token, &run, &text).await, 204);
        }
        if harm == 1 {
            let second = format!("{}-002", naming::derived(name, &run.uid().unwrap(), "result-1"));
            world.namespace.api::<ConfigMap>().delete(&second, &DeleteParams::default()).await.unwrap();
        } else if harm == 2 {
            told.sha256 = sha256(b"other");
        }
        assert_eq!(ended(&world.replica, &token, &run, told, &world).await, None, "{name}");
    }
}

#[tokio::test]
async fn d5_r17_only_the_worker_of_the_live_attempt_uploads() {
    let world = World::new("upload-fence").await;
    let (run, pod, token) = world.started("fenced").await;
    let (_, _, stranger) = world.started("other").await;
    let text = text(20_000);
    assert_eq!(put_text(&world.replica, "nonsense", &run, &text).await, 401);
    let for_the_api_server = world.token(&pod, "https://kubernetes.default.svc.cluster.local").await;
    assert_eq!(put_text(&world.replica, &for_the_api_server, &run, &text).await, 401, "another audience");
    assert_eq!(put_text(&world.replica, &stranger, &run, &text).await, 409, "another run's worker");
    let second = world.pod("fenced-2", &run).await;
    world.begin(&run, 2, &second).await;
    assert_eq!(put_text(&world.replica, &token, &run, &text).await, 409, "an older attempt");
    let second_token = world.token(&second, AUDIENCE).await;
    let announced = ResultUpload { attempt: 2, ..announced(&run, ResultPart::Text, &text) };
    world.set_status("fenced", json!({"phase": "Failed"})).await;
    assert_eq!(put(&world.replica, &second_token, &announced, &text).await, 409, "after the end");
    let stored =
        world.namespace.api::<ConfigMap>().list(&ListParams::default().labels(names::RUN_LABEL)).await.unwrap();
    assert!(stored.items.is_empty(), "{:?}", stored.items);
}

/// c31: a large result of a run whose namespace goes away has no place; an inline one does (see `reports`).
#[tokio::test]
async fn s6_c31_a_terminating_namespace_takes_no_large_result() {
    let world = World::new("terminating-large").await;
    let (run, pod, token) = world.started("ends").await;
    let keep = Patch::Merge(json!({"metadata": {"finalizers": [names::POD_FINALIZER]}}));
    let pods: Api<Pod> = world.namespace.api();
    pods.patch(&pod.name_any(), &PatchParams::default(), &keep).await.unwrap();
    world.runs().patch("ends", &PatchParams::default(), &keep).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(world.namespace.client.clone());
    namespaces.delete(&world.namespace.name, &DeleteParams::default()).await.unwrap();
    let text = text(20_000);
    let (replica, token, run, text) = (&world.replica, &token, &run, &text);
    world
        .namespace
        .eventually("the namespace takes nothing more", LIMIT, async || {
            match put_text(replica, token, run, text).await {
                507 => Ok(()),
                status => Err(format!("HTTP status {status}")),
            }
        })
        .await;
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let _ = pods.patch(&pod.name_any(), &PatchParams::default(), &release).await;
    let _ = world.runs().patch("ends", &PatchParams::default(), &release).await;
}

/// More at once than there is room for: some wait, some are asked to come again, all are taken in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_large_results_at_once_are_all_taken() {
    let world = World::new("crowd").await;
    let mut runs = Vec::new();
    for number in 0..9 {
        runs.push(world.started(&format!("crowd-{number}")).await);
    }
    let text = text(4 * MIB);
    let uploads = runs.iter().map(async |(run, _, token)| {
        let announced = announced(run, ResultPart::Text, &text);
        for _ in 0..10 {
            match try_put(&world.replica, token, &announced, &text).await {
                Ok(204) => return true,
                Ok(503) | Err(_) => {}
                Ok(status) => panic!("HTTP status {status}"),
            }
        }
        false
    });
    assert_eq!(futures::future::join_all(uploads).await, [true; 9]);
}
