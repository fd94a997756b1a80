//! What a run costs the API server.

use crate::{
    audit::{Mark, Request, lines},
    world::{World, end, text},
};
use std::time::Duration;
use subagent_crds::{Phase, Reason};

/// Design section 9: successful creates, updates, patches and deletes from creation to Stopped.
const WRITES: usize = 12;
/// Design section 9.
const RECONCILES: u64 = 12;
/// How long nothing is to happen without an event.
const QUIET: Duration = Duration::from_secs(10);

/// The real worker answers one prompt; afterwards, and around a run that waits, nothing happens by itself (C3, S9).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c3_s9_an_echo_stays_within_its_budget_and_leaves_quiet_behind() {
    let world = World::new("budget").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    world.ready("provider").await;
    world.run("waits", "absent", "hello").await;
    world.until("waits", "waits for its provider", |status| status.reason.as_deref() == Some("NoProvider")).await;

    let (mark, before) = (Mark::now(), operator.reconciles().await);
    world.run("echo", "provider", "hello").await;
    let run = world.stopped("echo").await;
    let (written, reconciles) = (writes(&world, mark), operator.reconciles().await - before);
    assert_eq!(end(&run), (Phase::Completed, Reason::Completed.as_str()));
    assert_eq!(text(&run), "echo: hello");
    assert_eq!(world.prompts("echo"), 1);
    println!("writes: {}, reconciles: {reconciles}\n{}", written.len(), lines(&written));
    assert!(written.len() <= WRITES, "{} writes:\n{}", written.len(), lines(&written));
    assert!(reconciles <= RECONCILES, "{reconciles} reconciles");

    // The pod's finalizer leaves after Stopped; then the window begins.
    let pod = crate::world::pod_name(&run, 1);
    world
        .namespace
        .until::<k8s_openapi::api::core::v1::Pod>(&pod, "released", crate::world::LIMIT, |pod| {
            pod.metadata.finalizers.iter().flatten().next().is_none()
        })
        .await;
    let settled = settled(&operator).await;
    let mark = Mark::now();
    tokio::time::sleep(QUIET).await;
    let written = writes(&world, mark);
    assert!(written.is_empty(), "writes without a cause:\n{}", lines(&written));
    assert_eq!(operator.reconciles().await, settled, "reconciles without an event");
    operator.stop().await;
    world.finish().await;
}

fn writes(world: &World, since: Mark) -> Vec<Request> {
    let asked = since.requests_of(&world.rights.user);
    asked.into_iter().filter(Request::is_counted_write).collect()
}

/// Reconciles once the events so far are worked off: the count is the same twice, half a second apart.
async fn settled(operator: &crate::replica::Replica) -> u64 {
    let mut last = operator.reconciles().await;
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = operator.reconciles().await;
        if now == last {
            return now;
        }
        last = now;
    }
}
