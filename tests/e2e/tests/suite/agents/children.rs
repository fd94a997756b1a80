//! Published agents as continuable children: what was said before is in the next request to the model, whatever became of
//! their pods, and messages reach them in the turn that runs.

use super::{Model, Published, nonce, scripted};
use e2e_tests::{
    RunView, TestNamespace,
    children::{
        activation, child_of, child_until, epochs, in_phase, message, remove_pods, session, tell, told, turn, turns,
    },
    cluster::host_address,
    in_namespace,
    namespace::PATIENCE,
    processes,
};
use rstest::rstest;
use serde_json::{Value, json};
use subagent_crds::{
    Phase, SubagentPhase,
    message::Outcome::{Applied, Claimed, Parked, Queued, Rejected, Started, Steered},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// A message without a script of its own, which the model's own rules know (`tests/agents/fake-llm/README.md`).
fn remember(nonce: &str) -> String {
    format!("Please remember this. nonce: {nonce}")
}

/// The model answers it with what the conversation before it says, so with the nonce only to an agent that sends that.
const WHICH: &str = "Which nonce was it?";

/// c40, c44: three messages in two activations. The third finds neither pod nor session files of the first two but what the
/// store holds; its agent resumes the session, and what is answered is the newest turn's alone.
#[rstest]
#[case::claude(Published::claude())]
#[cfg_attr(feature = "every-agent", case::codex(Published::codex()))]
#[case::opencode(Published::opencode())]
#[tokio::test]
async fn c40_c44_it_remembers_after_its_pod_is_gone(#[case] agent: Published) {
    let _pods = agent.pods(1).await;
    in_namespace(&format!("{}-remembers", agent.provider), async |ns| {
        let model = Model::start(&ns, &agent).await;
        let provider = agent.continuable(&ns).await;
        let capabilities = provider.status.unwrap_or_default().capabilities;
        assert!(capabilities.iter().any(|known| known == "ResumeSession"), "{capabilities:?}");
        let nonce = nonce(&ns);
        ns.create(&child_of(agent.provider, "keeper", &remember(&nonce))).await;
        tell(&ns, "keeper", &json!({"id": "m2", "text": scripted(&[json!({"text": "good day"})])}));
        let settled = in_phase(&ns, "keeper", SubagentPhase::Settled).await;
        assert_eq!(turns(&settled), [turn("m1", "Completed", "Noted."), turn("m2", "Completed", "good day")]);
        assert_eq!((message(&settled, "m1").outcome, message(&settled, "m2").outcome), (Started, Claimed));
        assert_eq!(epochs(&settled), 1);
        let first = session(&ns, "keeper", 1).await;
        assert_eq!(first.how, "New");
        remove_pods(&ns).await;

        tell(&ns, "keeper", &json!({"id": "m3", "text": WHICH}));
        let settled = in_phase(&ns, "keeper", SubagentPhase::Settled).await;
        assert_eq!(turns(&settled).pop(), Some(turn("m3", "Completed", &nonce)));
        let status = settled.status.as_ref().expect("a status");
        assert_eq!((status.epochs, status.completed_turns, status.turns.len()), (2, 3, 3));
        let second = session(&ns, "keeper", 2).await;
        assert_eq!((second.id, second.how.as_str()), (first.id, "Resumed"));
        let run = activation(&ns, "keeper", 2).await;
        assert_eq!((run.text().trim(), run.phase()), (nonce.as_str(), Some(Phase::Completed)));
        assert_eq!(run.seen().report.map(|report| report.turns.len()), Some(1), "a turn of before was counted again");
        // The model was told the whole conversation once more, and once.
        let asked = model.asked(WHICH);
        assert_eq!(asked.len(), 1, "{asked:?}");
        for part in [nonce.as_str(), "Noted.", "good day"] {
            assert!(asked[0]["body"].to_string().contains(part), "{part:?} in {}", asked[0]["body"]);
        }
    })
    .await;
}

/// c37, c38, c42: in one activation a message that steers while a tool runs, and is in the next request of the same turn; then an
/// interruption that parks two messages; the next one runs those first, in order, in another activation.
#[rstest]
#[case::claude(Published::claude())]
#[cfg_attr(feature = "every-agent", case::codex(Published::codex()))]
#[case::opencode(Published::opencode())]
#[tokio::test]
async fn c37_c38_c42_it_is_steered_and_interrupted(#[case] agent: Published) {
    let _pods = agent.pods(1).await;
    in_namespace(&format!("{}-told", agent.provider), async |ns| {
        let model = Model::start(&ns, &agent).await;
        agent.continuable(&ns).await;
        let nonce = nonce(&ns);
        let tool = Tool::new().await;
        // An agent that lets a long command go on in the background asks the model again meanwhile.
        let script = [json!({"shell": tool.command()}), json!({"hold": "steered"}), json!({"text": "not steered"})];
        ns.create(&child_of(agent.provider, "busy", &scripted(&script))).await;
        let running = tool.runs().await;
        steers(&ns, &agent, &model, running).await;

        // The turn behind it is interrupted while the model speaks.
        model.holds(&ns, "never").await;
        tell(&ns, "busy", &json!({"id": "m3", "text": remember(&nonce)}));
        tell(&ns, "busy", &json!({"id": "m4", "text": scripted(&[json!({"text": "in between"})])}));
        told(&ns, "busy", &["m3", "m4"], Queued).await;
        tell(&ns, "busy", &json!({"id": "i1", "delivery": "Interrupt"}));
        let parked = in_phase(&ns, "busy", SubagentPhase::Parked).await;
        let outcomes = ["m2", "i1", "m3", "m4"].map(|id| message(&parked, id).outcome);
        assert_eq!(outcomes, [Claimed, Applied, Parked, Parked]);
        let ended: Vec<_> = turns(&parked).into_iter().map(|turn| (turn.0, turn.1)).collect();
        assert_eq!(ended, [("m1".into(), "Completed".into()), ("m2".to_owned(), "Aborted".to_owned())]);

        tell(&ns, "busy", &json!({"id": "m5", "text": WHICH}));
        let settled = in_phase(&ns, "busy", SubagentPhase::Settled).await;
        let expected =
            [turn("m3", "Completed", "Noted."), turn("m4", "Completed", "in between"), turn("m5", "Completed", &nonce)];
        assert_eq!(turns(&settled)[2..], expected);
        assert_eq!(epochs(&settled), 2);
        assert_eq!(session(&ns, "busy", 2).await.how, "Resumed");
    })
    .await;
}

/// Steers the turn whose tool is running, and lets it end with a turn of `m2` behind it, which the model holds.
async fn steers(ns: &TestNamespace, agent: &Published, model: &Model, running: RunningTool) {
    let heed = format!("Heed this. {}", scripted(&[json!({"text": "another way"})]));
    tell(ns, "busy", &json!({"id": "s1", "delivery": "Steer", "text": heed}));
    tell(ns, "busy", &json!({"id": "m2", "text": scripted(&[json!({"hold": "never"})])}));
    let outcome = if agent.steers { Steered } else { Rejected };
    let steered = told(ns, "busy", &["s1"], outcome).await;
    running.ends_with("result-42").await;
    model.open("steered");
    let code = message(&steered, "s1").code.map(|code| code.as_str());
    let said = child_until(ns, "busy", "its first turn is over", |child| !turns(child).is_empty()).await;
    if agent.steers {
        assert_eq!((message(&steered, "s1").turn, code), (Some(1), None));
        assert_eq!(turns(&said)[0], turn("m1", "Completed", "another way"));
        let asked = model.asked("Heed this.");
        let body = asked.last().map(|request| request["body"].to_string()).unwrap_or_default();
        assert!(body.contains("result-42"), "it is behind what the tool said: {asked:?}");
    } else {
        assert_eq!(code, Some("NotDelivered"));
        assert_eq!(turns(&said)[0], turn("m1", "Completed", "not steered"));
        assert_eq!(model.asked("Heed this."), Vec::<Value>::new());
    }
}

/// c41, R1: in each of two activations a pod ends amid a turn: deleted, with its grace, and without a word, its worker
/// killed. That turn is lost and not repeated, and the child goes on from the checkpoint before it.
#[rstest]
#[case::claude(Published::claude())]
#[cfg_attr(feature = "every-agent", case::codex(Published::codex()))]
#[case::opencode(Published::opencode())]
#[tokio::test]
async fn c41_r1_it_goes_on_from_its_last_checkpoint_whatever_ends_its_pod(#[case] agent: Published) {
    let _pods = agent.pods(1).await;
    in_namespace(&format!("{}-lost", agent.provider), async |ns| {
        let model = Model::start(&ns, &agent).await;
        agent.continuable(&ns).await;
        let nonce = nonce(&ns);
        let held = |gate: &str| scripted(&[json!({"hold": gate}), json!({"text": "never said"})]);
        ns.create(&child_of(agent.provider, "tough", &remember(&nonce))).await;
        tell(&ns, "tough", &json!({"id": "m2", "text": held("until-deleted")}));
        model.holds(&ns, "until-deleted").await;
        let run = activation(&ns, "tough", 1).await;
        ns.kubectl(&["delete", "pod", &run.pod_name(), "--wait=false"]);
        let settled = in_phase(&ns, "tough", SubagentPhase::Settled).await;
        let status = settled.status.as_ref().expect("a status");
        assert_eq!(turns(&settled), [turn("m1", "Completed", "Noted."), turn("m2", "Error", "")]);
        assert_eq!((status.reason.as_deref(), status.completed_turns), (Some("PodDeleted"), 1));

        tell(&ns, "tough", &json!({"id": "m3", "text": held("until-killed")}));
        model.holds(&ns, "until-killed").await;
        let run = activation(&ns, "tough", 2).await;
        let worker = processes::worker(&run.seen().pod_uid.expect("a pod")).expect("its worker");
        assert!(processes::signal(worker, "KILL"));
        let settled = in_phase(&ns, "tough", SubagentPhase::Settled).await;
        assert_eq!(turns(&settled).pop(), Some(turn("m3", "Interrupted", "")));
        assert_eq!(settled.status.as_ref().and_then(|status| status.reason.as_deref()), Some("WorkerLost"));

        tell(&ns, "tough", &json!({"id": "m4", "text": WHICH}));
        let settled = in_phase(&ns, "tough", SubagentPhase::Settled).await;
        assert_eq!(turns(&settled).pop(), Some(turn("m4", "Completed", &nonce)));
        assert_eq!((epochs(&settled), session(&ns, "tough", 3).await.how.as_str()), (3, "Resumed"));
        // What was lost is not in the session, and was not sent again by itself.
        for gate in ["until-deleted", "until-killed"] {
            let asked = model.asked(gate);
            assert_eq!(asked.len(), 1, "{gate}: {asked:?}");
        }
    })
    .await;
}

/// Where a command of an agent's tool waits until the test answers.
struct Tool(TcpListener);

/// A command that waits.
struct RunningTool(TcpStream);

impl Tool {
    async fn new() -> Self {
        let listener = TcpListener::bind((host_address(), 0)).await;
        Self(listener.expect("a port on this host's address in the cluster's network"))
    }

    fn command(&self) -> String {
        format!("wget -q -O - http://{}/", self.0.local_addr().expect("an address"))
    }

    async fn runs(&self) -> RunningTool {
        let accepted = tokio::time::timeout(super::TURN, self.0.accept()).await.expect("the command runs");
        RunningTool(accepted.expect("a connection").0)
    }
}

impl RunningTool {
    /// The command says this and ends.
    async fn ends_with(mut self, said: &str) {
        let answer = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n{said}", said.len());
        let mut asked = [0; 1024];
        let read = tokio::time::timeout(PATIENCE, self.0.read(&mut asked)).await.expect("a request");
        assert!(read.expect("a request") > 0, "the command is gone");
        self.0.write_all(answer.as_bytes()).await.expect("the command waits");
    }
}
