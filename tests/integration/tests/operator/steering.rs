//! Steering a one-shot run: a message goes into the turn that runs, once, or its status says why not.

use crate::world::{World, end, status, text};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use subagent_crds::{
    Phase, SubagentRun, SubagentRunStatus,
    conditions::{FINISHED, get},
    message::{Code, Outcome},
    run_status::RunMessage,
};

/// Appends a message as a person does: by a JSON patch.
async fn steer(world: &World, run: &str, id: &str, text: &str) {
    let api: Api<SubagentRun> = world.namespace.api();
    let message = json!({"id": id, "delivery": "Steer", "text": text});
    let add = json!([{"op": "add", "path": "/spec/messages/-", "value": message}]);
    let patch = Patch::<()>::Json(serde_json::from_value(add).expect("a patch"));
    api.patch(run, &PatchParams::default(), &patch).await.unwrap_or_else(|error| panic!("{id}: {error}"));
}

fn message<'a>(status: &'a SubagentRunStatus, id: &str) -> Option<&'a RunMessage> {
    status.messages.iter().find(|message| message.id == id && message.outcome.is_terminal())
}

async fn told(world: &World, run: &str, id: &str) -> (Outcome, Option<Code>, String) {
    let over = world.until(run, &format!("{id} has its outcome"), |status| message(status, id).is_some()).await;
    let told = message(status(&over), id).expect("an outcome");
    (told.outcome, told.code, told.message.clone())
}

/// c38: before its turn, in it, and after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c38_a_one_shot_run_is_steered_in_its_turn_and_at_no_other_time() {
    let world = World::new("steered").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[("SCRIPTED_AGENT_NEW", "gate:session")]).await;
    world.run("run", "provider", "!report begun\n!await-steer\n!gate end\n!say done").await;
    world.event("run", "gate", "session").await;
    steer(&world, "run", "early", "!report early").await;
    let (outcome, code, why) = told(&world, "run", "early").await;
    assert_eq!((outcome, code), (Outcome::Rejected, Some(Code::NotDelivered)));
    assert!(why.contains("only starting"), "{why}");
    world.node.collector().open_gate("session");
    world.event("run", "report", "begun").await;
    world.until("run", "Running", |status| status.phase == Some(Phase::Running)).await;
    steer(&world, "run", "left", "!report steered").await;
    assert_eq!(told(&world, "run", "left").await.0, Outcome::Steered);
    world.event("run", "report", "steered").await;
    world.node.collector().open_gate("end");
    let run = world.stopped("run").await;
    assert_eq!((end(&run), text(&run)), ((Phase::Completed, "Completed"), "done"));
    steer(&world, "run", "late", "!report late").await;
    let (outcome, code, why) = told(&world, "run", "late").await;
    assert_eq!((outcome, code), (Outcome::Rejected, Some(Code::NotDelivered)));
    assert!(why.contains("the run is over"), "{why}");
    let run: SubagentRun = world.namespace.api().get("run").await.expect("the run");
    let finished = get(&status(&run).conditions, FINISHED).expect("Finished");
    assert_eq!(finished.observed_generation, run.metadata.generation, "kubectl wait looks at it");
    let reports = world.node.collector().of_kind("report");
    assert_eq!(reports.iter().map(|report| report.text.as_str()).collect::<Vec<_>>(), ["begun", "steered"]);
    assert_eq!(world.prompts("run"), 1);
    operator.stop().await;
    world.finish().await;
}

/// c38: an agent that takes nothing into its turn is not asked, and the outcome names what its provider lacks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c38_a_steer_for_an_agent_that_takes_none_names_the_capability() {
    let world = World::new("unsteerable").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[("SCRIPTED_AGENT_CAPABILITIES", r#"{"_meta": null}"#)]).await;
    world.run("run", "provider", "!gate end\n!say done").await;
    world.event("run", "gate", "end").await;
    world.until("run", "Running", |status| status.phase == Some(Phase::Running)).await;
    steer(&world, "run", "left", "go left").await;
    let (outcome, code, why) = told(&world, "run", "left").await;
    assert_eq!((outcome, code), (Outcome::Rejected, Some(Code::NotDelivered)));
    assert!(why.contains("SubagentProvider provider has no capability Steering"), "{why}");
    world.node.collector().open_gate("end");
    assert_eq!(end(&world.stopped("run").await), (Phase::Completed, "Completed"));
    operator.stop().await;
    world.finish().await;
}
