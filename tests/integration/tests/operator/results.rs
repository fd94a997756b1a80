//! What a run leaves behind, with the real worker: results that fit no report, and transcripts without a worker.

use crate::{
    audit::{Mark, Request, lines},
    world::{LIMIT, World, end, has, pod_name, status},
};
use integration_tests::commands::kubectl;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Node, ResourceQuota},
    events::v1::Event,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use nix::sys::signal::Signal;
use scripted_agent::script::fill;
use serde_json::json;
use std::time::{Duration, Instant};
use subagent_crds::{Phase, SubagentRun, SubagentRunStatus, conditions, names};
use tokio::net::{TcpListener, UdpSocket};

/// Design section 9: one more than for an inline result.
const WRITES: usize = 13;

/// T3, c31: from the agent to kubectl. The phase is never Completed without the whole result.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t3_c31_a_large_result_comes_back_whole_within_its_budget() {
    let world = World::new("large").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    world.ready("provider").await;
    let mark = Mark::now();
    world.run("large", "provider", "!fill 65536 aä€\n!image 1000").await;
    let run = world.stopped("large").await;
    assert_eq!(end(&run), (Phase::Completed, "Completed"));
    let asked = mark.requests_of(&world.rights.user);
    let written: Vec<_> = asked.into_iter().filter(Request::is_counted_write).collect();
    println!("writes: {}\n{}", written.len(), lines(&written));
    // One for the image.
    assert!(written.len() <= WRITES + 1, "{} writes:\n{}", written.len(), lines(&written));
    let result = status(&run).result.as_ref().expect("a result");
    assert_eq!((result.text.as_deref(), result.size, result.chunks, result.other_blocks), (None, 65_536, Some(1), 1));
    let read = |content: &str, key: &str| {
        let labels = format!("{}=large,{}={content}", names::RUN_LABEL, names::CONTENT_LABEL);
        let path = format!("jsonpath={{range .items[*]}}{{.data.{key}}}{{end}}");
        kubectl(&["get", "configmap", "-n", &world.namespace.name, "-l", &labels, "-o", &path])
    };
    assert_eq!(read("result", "text"), fill(65_536, "aä€"));
    let blocks: serde_json::Value = serde_json::from_str(&read("result-blocks", "blocks")).expect("JSON");
    assert_eq!(blocks[0]["type"], "image");
    operator.stop().await;
    world.finish().await;
}

/// R1: the operator is killed while the result is on its way. It is neither lost nor stored twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r1_c31_a_large_result_survives_an_operator_that_is_killed() {
    let world = World::new("large-killed").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    let size = 3 * 1024 * 1024;
    world.run("large", "provider", &format!("!gate end\n!fill {size} aä€")).await;
    world.event("large", "gate", "end").await;
    operator.kill().await;
    world.node.collector().open_gate("end");
    world.event("large", "eof", "").await;
    let operator = world.operator().await;
    // Killed again as soon as the first part is stored.
    let maps: Api<ConfigMap> = world.namespace.api();
    let (maps, labels) = (&maps, ListParams::default().labels(names::CONTENT_LABEL));
    world
        .namespace
        .eventually("a part of the result", LIMIT, async || match maps.list(&labels).await {
            Ok(list) if !list.items.is_empty() => Ok(()),
            other => Err(format!("{:?}", other.map(|list| list.items.len()))),
        })
        .await;
    operator.kill().await;
    let operator = world.operator().await;
    let run = world.stopped("large").await;
    assert_eq!(end(&run), (Phase::Completed, "Completed"));
    let result = status(&run).result.clone().expect("a result");
    let mut read = String::new();
    for number in 1..=result.chunks.expect("their number") {
        let name = format!("{}-{number:03}", result.ref_.as_deref().expect("a reference"));
        let chunk = maps.get(&name).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        read.push_str(&chunk.data.expect("data")["text"]);
    }
    assert_eq!((read == fill(size, "aä€"), world.prompts("large")), (true, 1));
    operator.stop().await;
    world.finish().await;
}

/// c31: no room for the result. The status says that the agent is done, what the run waits for and what to do; with room the
/// run ends well, without a second prompt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c31_a_result_without_room_says_so_in_the_status_and_waits() {
    let world = World::new("no-room").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    world.run("run", "provider", "!gate end\n!fill 20000").await;
    world.event("run", "gate", "end").await;
    let none = json!({"metadata": {"name": "none"}, "spec": {"hard": {"configmaps": "0"}}});
    let quota = world.namespace.create(&serde_json::from_value::<ResourceQuota>(none).expect("a quota")).await;
    let quotas = world.namespace.api::<ResourceQuota>();
    // As the quota controller would.
    let counted = json!({"status": {"hard": {"configmaps": "0"}, "used": {"configmaps": "0"}}});
    quotas.patch_status("none", &PatchParams::default(), &Patch::Merge(&counted)).await.expect("a quota");
    let (maps, dry) = (world.namespace.api::<ConfigMap>(), PostParams { dry_run: true, ..PostParams::default() });
    let any: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "any"}})).expect("a ConfigMap");
    let (maps, dry, any) = (&maps, &dry, &any);
    world
        .namespace
        .eventually("the quota is in force", LIMIT, async || match maps.create(dry, any).await {
            Err(error) if error.to_string().contains("exceeded quota") => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    world.node.collector().open_gate("end");
    let says = |status: &SubagentRunStatus| {
        status.message.as_ref().is_some_and(|message| message.contains("exceeded quota: none"))
    };
    let waits = world.until("run", "says what it waits for", says).await;
    let message = status(&waits).message.clone().unwrap_or_default();
    assert!(message.contains("its result of 20000 bytes is not stored"), "{message}");
    assert!(message.contains("raise the quota, or delete ConfigMaps"), "{message}");
    assert_eq!(status(&waits).phase, Some(Phase::Running));
    let finished = conditions::get(&status(&waits).conditions, conditions::FINISHED).expect("the condition");
    assert_eq!((finished.status.as_str(), finished.reason.as_str()), ("False", "StoringResult"));
    assert_eq!(finished.message, message);
    assert!(warnings(&world, &waits, "ResultNotStored").await.contains("exceeded quota"));
    quotas.delete(&quota.name_any(), &DeleteParams::default()).await.expect("a deletion");
    let run = world.stopped("run").await;
    assert_eq!(end(&run), (Phase::Completed, "Completed"), "{:?}", status(&run).message);
    assert!(has(status(&run), conditions::FINISHED));
    assert_eq!(status(&run).result.as_ref().map(|result| (result.size, result.chunks)), Some((20_000, Some(1))));
    assert_eq!(world.prompts("run"), 1);
    operator.stop().await;
    world.finish().await;
}

/// T9: a kubelet that takes connections and never answers holds the end up for seconds at most, and the loss is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t9_c10_a_dead_kubelet_does_not_hold_the_end_up() {
    let world = World::new("dead-kubelet").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    let run = world.run("run", "provider", "!hang").await;
    world.event("run", "prompt", "").await;
    let silent = TcpListener::bind("0.0.0.0:0").await.expect("a port");
    let port = silent.local_addr().expect("an address").port();
    let nodes: Api<Node> = Api::all(world.namespace.client.clone());
    let node = world.pod(&run, 1).await.spec.and_then(|spec| spec.node_name).expect("a node");
    let kubelet = json!({"status": {
        "addresses": [{"type": "InternalIP", "address": own_address().await}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }});
    nodes.patch_status(&node, &PatchParams::default(), &Patch::Merge(&kubelet)).await.expect("a node's status");
    world.node.worker(&pod_name(&run, 1)).await.signal(Signal::SIGKILL);
    let begun = Instant::now();
    let asked = tokio::time::timeout(LIMIT, silent.accept());
    let (_connection, _) = asked.await.expect("the kubelet is asked in time").expect("a connection");
    let run = world.stopped("run").await;
    println!("ended after {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!((end(&run), &status(&run).transcript), ((Phase::Failed, "WorkerLost"), &None));
    let told = warnings(&world, &run, "TranscriptNotArchived").await;
    assert!(told.contains("node does not answer"), "{told}");
    operator.stop().await;
    world.finish().await;
}

/// The address of this machine as the API server sees it.
async fn own_address() -> String {
    let server = integration_tests::config().await.cluster_url;
    let socket = UdpSocket::bind("0.0.0.0:0").await.expect("a socket");
    let host = server.host().expect("a host").to_owned();
    socket.connect((host, server.port_u16().unwrap_or(443))).await.expect("a route");
    socket.local_addr().expect("an address").ip().to_string()
}

/// The note of the run's Event with this reason.
async fn warnings(world: &World, run: &SubagentRun, reason: &str) -> String {
    let events: Api<Event> = world.namespace.api();
    let (events, uid) = (&events, run.uid());
    world
        .namespace
        .eventually(&format!("a Warning Event {reason}"), LIMIT, async || {
            let all = events.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
            let mut found = all.into_iter().filter(|event| {
                event.reason.as_deref() == Some(reason)
                    && event.regarding.as_ref().and_then(|regarding| regarding.uid.clone()) == uid
            });
            found.next().and_then(|event| event.note).ok_or_else(|| "no such Event".to_owned())
        })
        .await
}
