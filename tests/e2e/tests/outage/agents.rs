//! Published agents whose operator goes away amid a turn.

use crate::OPERATOR;
use e2e_tests::{
    children::{activation, child_of, epochs, in_phase, session, tell, turn, turns},
    cluster::Upgraded,
    in_namespace,
    namespace::PATIENCE,
    published::{Model, Published, nonce, scripted},
};
use futures::future::join_all;
use kube::ResourceExt;
use serde_json::json;
use subagent_crds::SubagentPhase;
use tokio::sync::Barrier;

/// R14, c41: a turn ends while there is no operator. Its answer and its checkpoint are stored when there is one again, by
/// the same activation, and the next one remembers. All agents at once: the operator goes away once for all of them.
#[tokio::test]
async fn r14_c41_a_turn_that_ends_without_an_operator_is_not_lost() {
    let _alone = OPERATOR.lock().await;
    let agents = Published::all();
    let all = &Barrier::new(agents.len() + 1);
    let operator = async {
        all.wait().await;
        let none = Upgraded::to_none();
        all.wait().await;
        all.wait().await;
        drop(none);
    };
    tokio::join!(operator, join_all(agents.into_iter().map(|agent| unattended(agent, all))));
}

/// Meets all the others three times: when its turn runs, when there is no operator, and when its turn is over.
async fn unattended(agent: Published, all: &Barrier) {
    let _pods = agent.pods(1).await;
    in_namespace(&format!("{}-unattended", agent.provider), async |ns| {
        let model = Model::start(&ns, &agent).await;
        agent.continuable(&ns).await;
        let nonce = nonce(&ns);
        let script = scripted(&[json!({"hold": "unattended"}), json!({"text": "all by myself"})]);
        ns.create(&child_of(agent.provider, "keeper", &format!("nonce: {nonce}. {script}"))).await;
        model.holds(&ns, "unattended").await;
        let run = activation(&ns, "keeper", 1).await;
        all.wait().await;
        all.wait().await;
        model.open("unattended");
        // The worker's own word, in its log: nobody else is there to hear it.
        let log = ns
            .eventually("the turn is over", PATIENCE, async || {
                let log = ns.transcript(&run.name_any());
                if log.contains("turn 1: Completed") { Ok(log) } else { Err(log) }
            })
            .await;
        assert_eq!(log.matches("user> ").count(), 1, "one prompt: {log}");
        all.wait().await;
        let settled = in_phase(&ns, "keeper", SubagentPhase::Settled).await;
        assert_eq!(turns(&settled), [turn("m1", "Completed", "all by myself")]);
        assert_eq!(epochs(&settled), 1);
        tell(&ns, "keeper", &json!({"id": "m2", "text": "Which nonce was it?"}));
        let settled = in_phase(&ns, "keeper", SubagentPhase::Settled).await;
        assert_eq!(turns(&settled).pop(), Some(turn("m2", "Completed", &nonce)));
        assert_eq!(session(&ns, "keeper", 2).await.how, "Resumed");
    })
    .await;
}
