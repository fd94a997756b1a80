//! The provider as it was when a run was accepted: what happens when somebody takes that away.

use crate::world::{World, end, has, status};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::DeleteParams;
use subagent_crds::{Phase, conditions};

/// C1, c8: the revision is deleted by hand while the pod of a run starts. The worker is not kept waiting until the start
/// deadline: the run fails at once, naming the object and what to do, with its one attempt; others do not notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c1_a_revision_deleted_during_the_start_ends_its_run_by_name() {
    let world = World::new("revision-gone").await;
    let operator = world.operator().await;
    world.provider("mine", &[]).await;
    world.provider("other", &[]).await;
    let revision = world.ready("mine").await;
    world.ready("other").await;
    let run = world.run("run", "mine", "hello").await;
    let pod = world.pod(&run, 1).await;
    let revisions = world.namespace.api::<ControllerRevision>();
    revisions.delete(&revision, &DeleteParams::default()).await.expect("a deletion");
    world.node.start(&pod).await;
    let run = world.stopped("run").await;
    let message = status(&run).message.clone().unwrap_or_default();
    assert_eq!(end(&run), (Phase::Failed, "InvalidTemplate"), "{message}");
    for words in [revision.as_str(), "does not exist any more", "create a new run"] {
        assert!(message.contains(words), "{words:?} in {message:?}");
    }
    assert!(!has(status(&run), conditions::STARTED) && status(&run).attempt == Some(1), "{:?}", run.status);
    assert_eq!(world.prompts("run"), 0);
    let other = world.run("other", "other", "hello").await;
    world.node.start(&world.pod(&other, 1).await).await;
    assert_eq!(end(&world.stopped("other").await), (Phase::Completed, "Completed"));
    operator.stop().await;
    world.finish().await;
}
