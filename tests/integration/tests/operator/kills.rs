//! R1: who is killed when. Each victim at each point of a run; the prompt arrives once at most, no stored result is lost,
//! and the reason is right.

use crate::{
    link::Way,
    replica::{Plan, Replica},
    world::{World, end, has, pod_name, status, text},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rstest::rstest;
use subagent_crds::{Phase, SubagentRun, conditions};

/// Where the run is when it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Point {
    /// The agent is opening its session: no turn is stored, no prompt sent.
    BeforeThePrompt,
    /// The prompt has just arrived.
    AfterThePrompt,
    /// Half of the answer was said.
    MidStream,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Worker,
    Agent,
    Operator,
    Link,
}

/// What becomes of the run: phase, reason, attempts, prompts, and whether `Interrupted` is said.
type Expected = (Phase, &'static str, i32, usize, bool);

const UNDISTURBED: Expected = (Phase::Completed, "Completed", 1, 1, false);

/// R1, and R2 with the policy Fail: the run that lost its worker in a turn ends, and says that it was interrupted.
#[rstest]
#[case::worker(Victim::Worker, Point::BeforeThePrompt, (Phase::Completed, "Completed", 2, 1, false))]
#[case::worker(Victim::Worker, Point::AfterThePrompt, (Phase::Failed, "WorkerLost", 1, 1, true))]
#[case::worker(Victim::Worker, Point::MidStream, (Phase::Failed, "WorkerLost", 1, 1, true))]
#[case::agent(Victim::Agent, Point::BeforeThePrompt, (Phase::Failed, "AgentHandshakeFailed", 1, 0, false))]
#[case::agent(Victim::Agent, Point::AfterThePrompt, (Phase::Failed, "AgentCrashed", 1, 1, false))]
#[case::agent(Victim::Agent, Point::MidStream, (Phase::Failed, "AgentCrashed", 1, 1, false))]
#[case::operator(Victim::Operator, Point::BeforeThePrompt, UNDISTURBED)]
#[case::operator(Victim::Operator, Point::AfterThePrompt, UNDISTURBED)]
#[case::operator(Victim::Operator, Point::MidStream, UNDISTURBED)]
#[case::link(Victim::Link, Point::BeforeThePrompt, UNDISTURBED)]
#[case::link(Victim::Link, Point::AfterThePrompt, UNDISTURBED)]
#[case::link(Victim::Link, Point::MidStream, UNDISTURBED)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r1_whoever_is_killed_whenever_no_prompt_is_sent_twice(
    #[case] victim: Victim,
    #[case] point: Point,
    #[case] expected: Expected,
) {
    let world = World::new("killed").await;
    let plan = world.plan("first");
    let way = Way::to(plan.link_port).await;
    let plan = Plan { told_port: way.port, ..plan };
    let operator = Replica::start(plan.clone());
    world.until_leader("first").await;
    world.node.serve();
    world.provider("provider", &[("SCRIPTED_AGENT_NEW", "gate:session")]).await;
    let run = world.run("run", "provider", "!gate prompted\n!say half\n!gate said\n!say , whole").await;
    let gates = ["session", "prompted", "said"];
    let reached = gates[point as usize];
    for gate in gates {
        world.event("run", "gate", gate).await;
        if gate == reached {
            break;
        }
        world.node.collector().open_gate(gate);
    }
    let operator = match victim {
        Victim::Worker => {
            world.node.worker(&pod_name(&run, 1)).await.signal(Signal::SIGKILL);
            operator
        }
        Victim::Agent => {
            let agent = world.event("run", "start", "").await.pid;
            kill(Pid::from_raw(agent as i32), Signal::SIGKILL).expect("the agent runs");
            operator
        }
        Victim::Operator => {
            operator.kill().await;
            let operator = Replica::start(plan);
            world.until_leader("first").await;
            operator
        }
        Victim::Link => {
            way.cut();
            operator
        }
    };
    for gate in gates {
        world.node.collector().open_gate(gate);
    }
    let run = world.stopped("run").await;
    let (phase, reason) = end(&run);
    let interrupted = has(status(&run), conditions::INTERRUPTED);
    let seen = (phase, reason, status(&run).attempt.unwrap_or_default(), world.prompts("run"), interrupted);
    assert_eq!(seen, expected, "{:?}", status(&run).message);
    if phase == Phase::Completed {
        assert_eq!(text(&run), "half, whole");
    }
    operator.stop().await;
    world.finish().await;
}

/// R1: after the agent's last word, before it is stored. Nobody was there to store it, and the worker dies: what it held is
/// lost, the run says that side effects are possible, and nobody is asked again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r1_r14_a_worker_killed_with_its_end_unstored_is_lost_and_says_so() {
    let world = World::new("unstored").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    let run = world.run("run", "provider", "!gate end\n!say never stored").await;
    world.event("run", "gate", "end").await;
    operator.kill().await;
    world.node.collector().open_gate("end");
    // The agent's process ends only after its worker has taken the answer.
    world.event("run", "eof", "").await;
    let worker = world.node.worker(&pod_name(&run, 1)).await;
    worker.signal(Signal::SIGKILL);
    worker.exit().await;
    let operator = world.operator().await;
    let run = world.stopped("run").await;
    assert_eq!(end(&run), (Phase::Failed, "WorkerLost"));
    assert!(has(status(&run), conditions::INTERRUPTED));
    assert_eq!((status(&run).attempt, world.prompts("run")), (Some(1), 1));
    operator.stop().await;
    world.finish().await;
}

/// R17: a run is deleted and created again under its name while the first one's worker still reports; T8: the terminal
/// phase stays what it was. The second run gets its own answer and nothing of the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r17_t8_a_run_created_again_under_its_name_gets_nothing_of_the_first() {
    let world = World::new("again").await;
    let operator = world.operator().await;
    world.node.serve();
    world.provider("provider", &[]).await;
    let first = world.run("run", "provider", "!gate first\n!say first").await;
    world.event("run", "gate", "first").await;
    world.until("run", "running", |status| status.phase == Some(Phase::Running)).await;
    let worker = world.node.worker(&pod_name(&first, 1)).await;
    world.delete_run("run").await;
    world.node.collector().open_gate("first");
    world.gone("run").await;
    let second: SubagentRun = world.run("run", "provider", "!say second").await;
    let ended = world.stopped("run").await;
    assert_ne!(first.metadata.uid, second.metadata.uid);
    assert_eq!(
        (ended.metadata.uid.clone(), end(&ended), text(&ended)),
        (second.metadata.uid, (Phase::Completed, "Completed"), "second")
    );
    // Nobody is left who could report for the first.
    worker.exit().await;
    let later: SubagentRun = world.namespace.api().get("run").await.expect("the run");
    assert_eq!(later.status, ended.status);
    operator.stop().await;
    world.finish().await;
}
