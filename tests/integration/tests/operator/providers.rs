//! Contract section 1: providers, and the runs that name them.

use crate::{
    node::agent,
    world::{World, end, status, text},
};
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use subagent_crds::{Phase, SubagentProvider, SubagentRun, conditions};

/// Two providers in one namespace; a run gets the one it names. Three runs at once of which one is cancelled: neither
/// its siblings nor the other provider's run notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c1_c3_runs_get_the_provider_they_name_and_are_independent() {
    let world = World::new("independent").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("red", &[("COLOUR", "red")]).await;
    world.provider("blue", &[("COLOUR", "blue")]).await;
    world.ready("red").await;
    world.ready("blue").await;
    world.run("goes-on", "red", "!gate open\n!env COLOUR").await;
    world.run("is-cancelled", "red", "!gate never\n!env COLOUR").await;
    world.run("other", "blue", "!gate open\n!env COLOUR").await;
    for run in ["goes-on", "is-cancelled", "other"] {
        world.event(run, "prompt", "").await;
    }
    world.cancel("is-cancelled").await;
    assert_eq!(end(&world.stopped("is-cancelled").await), (Phase::Cancelled, "Cancelled"));
    for run in ["goes-on", "other"] {
        let run = world.until(run, "still running", |status| status.phase == Some(Phase::Running)).await;
        assert!(status(&run).stopping.is_none());
    }
    world.node.collector().open_gate("open");
    for (run, colour) in [("goes-on", "red"), ("other", "blue")] {
        let run = world.stopped(run).await;
        assert_eq!(end(&run), (Phase::Completed, "Completed"));
        assert!(text(&run).contains(colour), "{:?}", text(&run));
        assert_eq!(world.prompts(&run.name_any()), 1);
    }
    operator.stop().await;
    world.finish().await;
}

/// A run keeps the revision it was accepted with, through every attempt and after its provider is gone; a provider that
/// comes back is picked up without anyone touching the run that waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c2_an_edited_or_removed_provider_touches_new_starts_only() {
    let world = World::new("revisions").await;
    let operator = world.operator().await;
    let mut provider = world.provider("provider", &[("COLOUR", "old")]).await;
    let old = world.ready("provider").await;
    let run = world.run("early", "provider", "!env COLOUR").await;
    let first = world.pod(&run, 1).await;
    let running = world.run("running", "provider", "!gate open\n!env COLOUR").await;
    world.node.start(&world.pod(&running, 1).await).await;
    world.event("running", "prompt", "").await;

    provider.spec = world.make_provider("provider", &[("COLOUR", "new")]).spec;
    world.edit_provider(&provider).await;
    assert_ne!(world.ready("provider").await, old);
    // A pod without a node is proven stopped as soon as it is deleted, and nothing was sent yet.
    let pods = world.namespace.api::<k8s_openapi::api::core::v1::Pod>();
    pods.delete(&first.name_any(), &DeleteParams::default()).await.expect("a deletion");
    let second = world.pod(&run, 2).await;
    world.namespace.api::<SubagentProvider>().delete("provider", &DeleteParams::default()).await.expect("a deletion");
    pods.delete(&second.name_any(), &DeleteParams::default()).await.expect("a deletion");
    let third = world.pod(&run, 3).await;
    for pod in [&first, &second, &third] {
        let env = agent(pod).env.unwrap_or_default();
        assert!(env.iter().any(|env| env.value.as_deref() == Some("old")), "{env:?}");
    }
    let late = world.run("late", "provider", "!env COLOUR").await;
    world.until("late", "waits for its provider", |status| status.reason.as_deref() == Some("NoProvider")).await;

    world.node.serve();
    world.node.collector().open_gate("open");
    for name in ["early", "running"] {
        let run = world.stopped(name).await;
        assert_eq!(end(&run), (Phase::Completed, "Completed"));
        assert!(text(&run).contains("old"), "{:?}", text(&run));
        assert_eq!(status(&run).descriptor.as_ref().map(|known| &known.provider_revision), Some(&old));
        assert_eq!(world.prompts(name), 1);
    }
    world.provider("provider", &[("COLOUR", "new")]).await;
    let picked_up = world.stopped("late").await;
    assert!(text(&picked_up).contains("new"), "{:?}", text(&picked_up));
    assert_eq!((picked_up.uid(), picked_up.metadata.generation), (late.uid(), late.metadata.generation));
    operator.stop().await;
    world.finish().await;
}

/// A provider that is not ready holds its runs back, saying why, and no longer than it is so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c2_a_run_waits_for_a_provider_that_is_not_ready() {
    let world = World::new("not-ready").await;
    let operator = world.operator().await;
    world.node.serve();
    let mut provider = world.make_provider("provider", &[]);
    let good = provider.spec.template.clone();
    provider.spec.template["spec"]["containers"][0].as_object_mut().expect("a container").remove("command");
    world.namespace.create(&provider).await;
    world.run("run", "provider", "hello").await;
    let run = world
        .until("run", "waits", |status| {
            status.message.as_deref().is_some_and(|message| message.contains("InvalidTemplate"))
        })
        .await;
    assert_eq!(end(&run), (Phase::Pending, "ProviderNotReady"));
    assert!(!conditions::is_true(&status(&run).conditions, conditions::ACCEPTED));
    assert!(world.pods().await.is_empty());
    let patch = json!({"spec": {"template": good}});
    let providers = world.namespace.api::<SubagentProvider>();
    providers.patch("provider", &PatchParams::default(), &Patch::Merge(&patch)).await.expect("an edit");
    assert_eq!(end(&world.stopped("run").await), (Phase::Completed, "Completed"));
    let run: SubagentRun = world.namespace.api().get("run").await.expect("the run");
    assert_eq!(run.metadata.generation, Some(1), "nobody touched it");
    operator.stop().await;
    world.finish().await;
}
