//! Continuable children whose operator goes away or is replaced.

use crate::{OPERATOR, TAKEOVER};
use e2e_tests::{
    ScriptedProvider,
    children::{activation, child, epochs, in_phase, message, session, tell, turn, turns},
    cluster::Upgraded,
    collector,
    collector::seen_event,
    in_namespace,
    namespace::PATIENCE,
    operator::leader,
    processes::{self, Paused},
};
use kube::ResourceExt;
use serde_json::json;
use std::time::Duration;
use subagent_crds::{
    SubagentPhase,
    message::Outcome::{Claimed, Rejected, Started},
};

/// How long the operator is away (R14): longer than its lease of 15 s.
const AWAY: Duration = Duration::from_secs(20);

/// C7: an upgrade that changes the operator's settings, so replaces it, under a child that is settled and one whose turn runs.
/// Both go on, in the same activation and in the next, and remember.
#[tokio::test]
async fn c7_children_go_on_and_remember_after_an_upgrade() {
    let _alone = OPERATOR.lock().await;
    in_namespace("children-upgraded", async |ns| {
        let collector = collector();
        ns.continuable(&ScriptedProvider::keeping_sessions().reporting_to(collector.address())).await;
        ns.create(&child("settled", "!say before")).await;
        ns.create(&child("running", "!gate upgraded\n!say through")).await;
        seen_event(&collector, PATIENCE, "gate", "upgraded").await;
        in_phase(&ns, "settled", SubagentPhase::Settled).await;
        let upgraded = Upgraded::to(&["logLevel=debug", "podAnnotations.release=newer"]);
        collector.open_gate("upgraded");
        let running = in_phase(&ns, "running", SubagentPhase::Settled).await;
        assert_eq!((turns(&running), epochs(&running)), (vec![turn("m1", "Completed", "through")], 1));
        for name in ["settled", "running"] {
            tell(&ns, name, &json!({"id": "m2", "text": "!history"}));
        }
        for name in ["settled", "running"] {
            let child = in_phase(&ns, name, SubagentPhase::Settled).await;
            assert_eq!(turns(&child).pop(), Some(turn("m2", "Completed", "turns before: 1")), "{name}");
            assert_eq!((epochs(&child), session(&ns, name, 2).await.how.as_str()), (2, "Resumed"), "{name}");
        }
        // And after the way back.
        drop(upgraded);
        tell(&ns, "settled", &json!({"id": "m3", "text": "!history"}));
        let child = in_phase(&ns, "settled", SubagentPhase::Settled).await;
        assert_eq!(turns(&child).pop(), Some(turn("m3", "Completed", "turns before: 2")));
        assert_eq!(collector.of_kind("prompt").len(), 5, "no prompt was sent twice");
    })
    .await;
}

/// R14, c38, c39: nothing answers for the operator for longer than its lease. A turn ends meanwhile, and messages come: to its
/// child, to one that is settled, and one that steers a turn that is over when it is read. Each has one outcome afterwards.
#[tokio::test]
async fn r14_messages_wait_for_an_operator_that_is_away_for_longer_than_its_lease() {
    let _alone = OPERATOR.lock().await;
    in_namespace("children-waiting", async |ns| {
        let collector = collector();
        ns.continuable(&ScriptedProvider::keeping_sessions().reporting_to(collector.address())).await;
        ns.create(&child("settled", "!say before")).await;
        ns.create(&child("running", "!gate away\n!say ended meanwhile")).await;
        seen_event(&collector, PATIENCE, "gate", "away").await;
        in_phase(&ns, "settled", SubagentPhase::Settled).await;
        in_phase(&ns, "running", SubagentPhase::Active).await;
        let leads = leader(&ns.client).await.expect("a leader");
        let operator = processes::operator(&leads.uid().unwrap_or_default()).expect("its process");
        let paused = Paused::process(operator, 120);
        tell(&ns, "running", &json!({"id": "m2", "text": "!history"}));
        tell(&ns, "settled", &json!({"id": "m2", "text": "!history"}));
        collector.open_gate("away");
        let run = activation(&ns, "running", 1).await.name_any();
        ns.eventually("the turn is over", PATIENCE, async || {
            let log = ns.transcript(&run);
            if log.contains("turn 1: Completed") { Ok(()) } else { Err(log) }
        })
        .await;
        tell(&ns, "running", &json!({"id": "s1", "delivery": "Steer", "text": "too late"}));
        // The time itself is what is tested here.
        tokio::time::sleep(AWAY).await;
        drop(paused);
        let other = async || match leader(&ns.client).await {
            Some(_) => Ok(()),
            None => Err("nobody leads".to_owned()),
        };
        ns.eventually("an operator leads", TAKEOVER, other).await;
        let settled = in_phase(&ns, "settled", SubagentPhase::Settled).await;
        let running = in_phase(&ns, "running", SubagentPhase::Settled).await;
        let expected = |first| vec![turn("m1", "Completed", first), turn("m2", "Completed", "turns before: 1")];
        assert_eq!((turns(&settled), epochs(&settled)), (expected("before"), 2));
        // Its pod was there all the time, with nothing to do.
        assert_eq!((turns(&running), epochs(&running)), (expected("ended meanwhile"), 1));
        assert_eq!((message(&settled, "m2").outcome, message(&running, "m2").outcome), (Started, Claimed));
        let late = message(&running, "s1");
        assert_eq!((late.outcome, late.code.map(|code| code.as_str())), (Rejected, Some("NotDelivered")));
        assert_eq!(collector.of_kind("prompt").len(), 4, "no prompt was sent twice");
        assert!(collector.of_kind("steer").is_empty());
    })
    .await;
}
