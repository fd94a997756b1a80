//! Events of a child: once per transition, after the transition is stored, never in its way (contract c10 and c44).

use super::status::NOT_TOLD;
use crate::{
    context::Context,
    run::events::{Note, publish_event},
};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use subagent_crds::{
    Reason, Subagent, SubagentPhase, SubagentStatus, conditions,
    subagent_status::{ActivationState, ChildTurn},
};

/// What a status write says that was not said before. Pure.
pub fn notes(old: &SubagentStatus, new: &SubagentStatus) -> Vec<Note> {
    let mut notes = vec![];
    let mut note = |warning, reason, text: String, for_parent| notes.push(Note { warning, reason, text, for_parent });
    let message = new.message.clone().unwrap_or_default();
    let because = |status: &SubagentStatus| {
        let reason = status.reason.as_ref().map(|reason| format!("{reason}: ")).unwrap_or_default();
        format!("{reason}{}", status.message.as_deref().unwrap_or_default())
    };
    let accepted = |status| conditions::is_true(conditions_of(status), conditions::ACCEPTED);
    let waits = |status: &SubagentStatus| {
        let is_waiting = status.phase == Some(SubagentPhase::Pending);
        status.reason.clone().filter(|_| is_waiting)
    };
    if waits(new).is_some() && waits(new) != waits(old) {
        note(false, "Waiting", because(new), false);
    }
    if accepted(new) && !accepted(old) {
        let text = conditions::get(&new.conditions, conditions::ACCEPTED).map(|accepted| accepted.message.clone());
        note(false, "Accepted", text.unwrap_or_default(), false);
    }
    let became = |phase| new.phase == Some(phase) && old.phase != Some(phase);
    if became(SubagentPhase::Rejected) {
        note(true, "Rejected", because(new), false);
    }
    let skipped = |status| {
        let skipped = conditions::get(conditions_of(status), conditions::NUMBER_SKIPPED);
        skipped.filter(|one| one.status == "True").map(|one| &one.message)
    };
    let is_skipped = skipped(new).is_some() && skipped(new) != skipped(old);
    if let Some(text) = skipped(new).filter(|_| is_skipped) {
        note(true, "NumberSkipped", text.clone(), false);
    }
    let refused = |status: &SubagentStatus| {
        let activation = status.activation.as_ref().filter(|activation| activation.run_uid.is_none())?;
        Some((activation.epoch, Reason::parse(status.reason.as_deref()?)?))
    };
    if let Some((_, reason)) = refused(new).filter(|_| refused(new) != refused(old)) {
        note(true, reason.as_str(), because(new), false);
    }
    if let Some(ended) = ended(old, new).filter(|_| !is_skipped) {
        let is_cancelled = new.reason.as_deref() == Some(Reason::Cancelled.as_str());
        let failed = new.reason.is_some() && !is_cancelled;
        let last = new.last_result.as_ref().filter(|last| last.epoch == ended);
        match last {
            None if failed && !has_started(old, ended) => note(true, "StartFailed", because(new), true),
            // Somebody wanted that.
            None if is_cancelled && !has_started(old, ended) => note(false, "Cancelled", because(new), true),
            _ => note(failed, "Settled", settled(ended, last, &message), true),
        }
    }
    if let Some(begun) = begun(old, new).filter(|_| !is_skipped) {
        let is_new = new.checkpoint.is_none() || new.session_id.is_none();
        if begun > 1 && is_new {
            let text = format!(
                "activation {begun} begins a new session: no turn of the child has been completed and stored before"
            );
            note(true, "NewSession", text, false);
        }
    }
    if let Some(started) = current(new).filter(|epoch| has_started(new, *epoch) && !has_started(old, *epoch)) {
        note(false, "Started", format!("activation {started} is at work"), true);
    }
    if became(SubagentPhase::NotResumable) {
        note(true, "NotResumable", message.clone(), true);
    }
    if became(SubagentPhase::Terminating) {
        note(false, "Terminating", message.clone(), false);
    }
    for conflict in new.messages.iter().filter(|one| one.conflict) {
        if !old.messages.iter().any(|known| known.id == conflict.id && known.conflict) {
            let text = format!(
                "an entry with id {} has other content than the one that was accepted under it, and is not delivered; \
                 append it under a new id",
                conflict.id
            );
            note(true, "MessageConflict", text, false);
        }
    }
    let is_given_up = old.cancelling_descendants && !new.cancelling_descendants && message.contains(NOT_TOLD);
    if is_given_up {
        let text = format!("those that could not be told for five minutes are to be cancelled by hand; {message}");
        note(true, "DescendantsNotTold", text, false);
    }
    let lost = |status: &SubagentStatus| {
        let whole = conditions::get(&status.conditions, conditions::MEMORY_WHOLE);
        whole.filter(|whole| whole.status == "False").map(|whole| whole.message.clone())
    };
    if let Some(text) = lost(new).filter(|_| lost(old).is_none()) {
        note(true, "MemoryLost", text, false);
    }
    notes
}

fn conditions_of(status: &SubagentStatus) -> &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition] {
    &status.conditions
}

fn current(status: &SubagentStatus) -> Option<i64> {
    status.activation.as_ref().map(|activation| activation.epoch)
}

/// The activation that a write ended.
pub fn ended(old: &SubagentStatus, new: &SubagentStatus) -> Option<i64> {
    current(old).filter(|epoch| current(new) != Some(*epoch))
}

/// The activation that a write began.
fn begun(old: &SubagentStatus, new: &SubagentStatus) -> Option<i64> {
    current(new).filter(|epoch| current(old) != Some(*epoch))
}

/// Whether an activation's session is known to have existed.
fn has_started(status: &SubagentStatus, epoch: i64) -> bool {
    let activation = status.activation.as_ref().filter(|activation| activation.epoch == epoch);
    let is_at_work = activation.is_some_and(|activation| {
        matches!(activation.state, ActivationState::Running | ActivationState::Idle) || activation.folded_turns > 0
    });
    is_at_work || status.turns.iter().any(|turn| turn.epoch == epoch)
}

fn settled(epoch: i64, last: Option<&ChildTurn>, message: &str) -> String {
    match last {
        Some(turn) => {
            let (number, how) = (turn.turn, &turn.stop_reason);
            format!("activation {epoch} is over; its last turn, {number}, ended as {how}; {message}")
        }
        None => format!("activation {epoch} is over; {message}"),
    }
}

/// Publishes what is new. A failure is logged and forgotten.
pub async fn publish(context: &Context, old: &SubagentStatus, child: &Subagent) {
    let Some(status) = &child.status else { return };
    for note in notes(old, status) {
        tell(context, child, note).await;
    }
}

/// Publishes one Event, on the parent too when it is for it. A failure is logged and forgotten.
pub async fn tell(context: &Context, child: &Subagent, note: Note) {
    let name = child.metadata.name.as_deref().unwrap_or_default();
    publish_event(context, child.object_ref(&()), name, parent(child), note).await;
}

fn parent(child: &Subagent) -> Option<ObjectReference> {
    let lineage = child.status.as_ref()?.lineage.as_ref()?;
    Some(crate::run::events::parent(child.spec.parent_ref.as_ref()?, lineage, child.metadata.namespace.clone()))
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod tests;
