//! What a stored status of a child adds to the metrics: each transition once, when it is stored (pitfall T8).

use super::{
    events,
    plan::{Run, World},
};
use crate::metrics::Metrics;
use subagent_crds::{Reason, Subagent, SubagentStatus, subagent_status::MessageStatus};

/// Counts what a write changed. `world` is what it was computed from.
pub fn count(metrics: &Metrics, world: &World, written: &Subagent) {
    let old = world.child.status.clone().unwrap_or_default();
    let Some(new) = &written.status else { return };
    for message in ended(world, &old, new) {
        let entry = world.child.spec.messages.iter().find(|entry| entry.id == message.id);
        metrics.message(entry.map(|entry| entry.delivery), message.outcome, message.code);
    }
    // Here and not when a report names it: two replicas of the gateway may store the same report.
    let taken =
        |status: &SubagentStatus| status.checkpoint.as_ref().map(|checkpoint| (checkpoint.epoch, checkpoint.turn));
    if let Some(checkpoint) = new.checkpoint.as_ref().filter(|_| taken(new) > taken(&old)) {
        metrics.checkpoints_stored.inc();
        metrics.checkpoint_bytes.inc_by(u64::try_from(checkpoint.size).unwrap_or(0));
    }
    // One whose number was skipped goes on under another.
    let is_skipped = matches!(world.run, Run::Foreign) && new.activation.is_some();
    if is_skipped {
        return;
    }
    metrics.activations_begun.inc_by(u64::try_from(new.epochs - old.epochs).unwrap_or(0));
    if events::ended(&old, new).is_some() {
        metrics.activation_ended(reason(world, &old, new));
    }
}

/// Messages that have their final outcome now and had none before. One whose id was remembered has had it for long.
fn ended<'a>(
    world: &'a World,
    old: &'a SubagentStatus,
    new: &'a SubagentStatus,
) -> impl Iterator<Item = &'a MessageStatus> {
    let known = |message: &MessageStatus| old.messages.iter().find(|known| known.id == message.id);
    let is_remembered =
        |message: &MessageStatus| world.memory.as_ref().is_some_and(|memory| memory.recall(&message.id).is_some());
    let is_news = move |message: &&MessageStatus| match known(message) {
        Some(known) => !known.outcome.is_terminal(),
        None => !is_remembered(message),
    };
    new.messages.iter().filter(|message| message.outcome.is_terminal()).filter(is_news)
}

/// Why an activation ended: by its run; by what its child says when it never had one. Then only a cancellation or the end of the
/// child is left, whatever else the child says by now.
fn reason(world: &World, old: &SubagentStatus, new: &SubagentStatus) -> Reason {
    let told = match world.run.ours() {
        Some(run) => run.status.as_ref().and_then(|status| status.reason.as_deref()),
        None => new.reason.as_deref(),
    };
    let was_born = old.activation.as_ref().is_some_and(|activation| activation.run_uid.is_some());
    told.and_then(Reason::parse).unwrap_or(if was_born { Reason::WorkerLost } else { Reason::Cancelled })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subagent::{
        memory::{Memory, Segment},
        plan_tests::child,
    };
    use rstest::rstest;
    use serde_json::{Value, json};

    fn counted(metrics: &Metrics) -> Vec<String> {
        let text = metrics.encode().unwrap();
        let ours = |line: &&str| {
            [
                "subagents_messages_total",
                "subagents_activations_",
                "subagents_checkpoints_",
                "subagents_checkpoint_bytes",
            ]
            .iter()
            .any(|name| line.starts_with(name))
        };
        text.lines().filter(ours).filter(|line| !line.ends_with(" 0")).map(str::to_owned).collect()
    }

    fn with(status: &Value) -> Subagent {
        let entries = json!([
            {"id": "m1", "text": "t"}, {"id": "m2", "text": "t", "delivery": "Steer"}, {"id": "m3", "text": "t"},
        ]);
        child(json!({"spec": {"messages": entries}, "status": status}))
    }

    /// T8: a transition is counted when it is stored, and a status that is written again for another reason counts nothing.
    #[rstest]
    #[case::claimed(
        json!({"messages": [{"id": "m1", "sequence": 1, "outcome": "Queued"}]}),
        json!({"messages": [{"id": "m1", "sequence": 1, "outcome": "Claimed"}]}),
        &[r#"subagents_messages_total{delivery="Queue",outcome="Claimed",code=""} 1"#],
    )]
    #[case::rejected_at_once(
        json!({"messages": []}),
        json!({"messages": [{"id": "m2", "sequence": 1, "outcome": "Rejected", "code": "NotDelivered"}]}),
        &[r#"subagents_messages_total{delivery="Steer",outcome="Rejected",code="NotDelivered"} 1"#],
    )]
    #[case::waiting(
        json!({"messages": []}),
        json!({"messages": [{"id": "m1", "sequence": 1, "outcome": "Queued"}, {"id": "m3", "sequence": 2, "outcome": "Parked"}]}),
        &[],
    )]
    #[case::told_before(
        json!({"messages": [{"id": "m1", "sequence": 1, "outcome": "Claimed"}]}),
        json!({"messages": [{"id": "m1", "sequence": 1, "outcome": "Claimed", "conflict": true}]}),
        &[],
    )]
    #[case::begun(
        json!({"epochs": 4}),
        json!({"epochs": 5, "activation": {"epoch": 5, "runName": "r"}}),
        &["subagents_activations_begun_total 1"],
    )]
    #[case::ended_and_begun(
        json!({"epochs": 5, "activation": {"epoch": 5, "runName": "r", "runUID": "u"}}),
        json!({"epochs": 6, "activation": {"epoch": 6, "runName": "s"}}),
        &["subagents_activations_begun_total 1", r#"subagents_activations_ended_total{reason="WorkerLost"} 1"#],
    )]
    #[case::never_born(
        json!({"epochs": 5, "activation": {"epoch": 5, "runName": "r"}}),
        json!({"epochs": 5, "reason": "QuotaExceeded"}),
        &[r#"subagents_activations_ended_total{reason="QuotaExceeded"} 1"#],
    )]
    #[case::never_born_and_the_child_goes(
        json!({"epochs": 5, "activation": {"epoch": 5, "runName": "r"}}),
        json!({"epochs": 5, "phase": "Terminating"}),
        &[r#"subagents_activations_ended_total{reason="Cancelled"} 1"#],
    )]
    #[case::cancelled_unborn_and_the_next_begun(
        json!({"epochs": 5, "activation": {"epoch": 5, "runName": "r"}}),
        json!({"epochs": 6, "activation": {"epoch": 6, "runName": "s"}}),
        &["subagents_activations_begun_total 1", r#"subagents_activations_ended_total{reason="Cancelled"} 1"#],
    )]
    #[case::checkpoint_taken(
        json!({"checkpoint": {"key": "k", "digest": "d", "size": 9, "epoch": 1, "turn": 2}}),
        json!({"checkpoint": {"key": "l", "digest": "e", "size": 5, "epoch": 2, "turn": 1}}),
        &["subagents_checkpoints_stored_total 1", "subagents_checkpoint_bytes_total 5"],
    )]
    fn t8_a_stored_transition_is_counted_once(#[case] old: Value, #[case] new: Value, #[case] expected: &[&str]) {
        let (metrics, before, after) = (Metrics::new(), with(&old), with(&new));
        count(&metrics, &World::new(before), &after);
        assert_eq!(counted(&metrics), expected);
        count(&metrics, &World::new(after.clone()), &after);
        assert_eq!(counted(&metrics), expected, "again");
    }

    #[test]
    fn t8_r12_an_id_that_is_remembered_is_not_counted_again() {
        let metrics = Metrics::new();
        let after = with(&json!({"messages": [{"id": "m1", "sequence": 70, "outcome": "Claimed"}]}));
        let mut world = World::new(with(&json!({"messages": []})));
        let seen = after.status.iter().flat_map(|status| &status.messages);
        world.memory = Some(Memory::of("part", Segment::of(seen)));
        count(&metrics, &world, &after);
        assert_eq!(counted(&metrics), Vec::<String>::new());
    }

    #[test]
    fn t8_a_number_that_is_skipped_is_no_activation() {
        let metrics = Metrics::new();
        let before = with(&json!({"epochs": 5, "activation": {"epoch": 5, "runName": "r"}}));
        let after = with(&json!({"epochs": 6, "activation": {"epoch": 6, "runName": "s"}}));
        count(&metrics, &World { run: Run::Foreign, ..World::new(before) }, &after);
        assert_eq!(counted(&metrics), Vec::<String>::new());
    }
}
