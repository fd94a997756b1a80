//! Events of a run: once per transition, after the transition is stored, never in its way (contract c10).

use crate::{context::Context, naming};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Resource,
    runtime::events::{Event, EventType},
};
use sha2::{Digest, Sha256};
use subagent_crds::{Phase, SubagentRun, SubagentRunStatus, conditions, run::ParentRef, run_status::Lineage};

/// An Event to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// True for a Warning.
    pub warning: bool,
    /// Reason, a stable word.
    pub reason: &'static str,
    /// For a person.
    pub text: String,
    /// True when the parent is told too.
    pub for_parent: bool,
}

/// What a status write says that was not said before. Pure.
pub fn notes(old: Option<&SubagentRunStatus>, new: &SubagentRunStatus) -> Vec<Note> {
    let none = SubagentRunStatus::default();
    let old = old.unwrap_or(&none);
    let became = |type_| conditions::is_true(&new.conditions, type_) && !conditions::is_true(&old.conditions, type_);
    let message = new.message.clone().unwrap_or_default();
    let mut notes = vec![];
    let mut note = |warning, reason, text: String, for_parent| notes.push(Note { warning, reason, text, for_parent });
    let waits = |status: &SubagentRunStatus| {
        let accepted = conditions::get(&status.conditions, conditions::ACCEPTED);
        accepted.filter(|_| status.phase == Some(Phase::Pending)).map(|accepted| accepted.reason.clone())
    };
    if let Some(reason) = waits(new).filter(|_| waits(new) != waits(old)) {
        note(false, "Waiting", format!("{reason}: {message}"), false);
    }
    if became(conditions::ACCEPTED) {
        note(false, "Accepted", message.clone(), false);
    }
    if became(conditions::STARTED) {
        let started = conditions::get(&new.conditions, conditions::STARTED);
        note(false, "Started", started.map(|condition| condition.message.clone()).unwrap_or_default(), true);
    }
    if new.stopping.is_some() && old.stopping.is_none() {
        note(false, "Stopping", message.clone(), false);
    }
    if became(conditions::INTERRUPTED) {
        note(
            true,
            "Interrupted",
            "the attempt was lost after its turn had begun: side effects are possible".into(),
            false,
        );
    }
    if became(conditions::FINISHED) {
        let reason = new.reason.clone().unwrap_or_default();
        let failed = new.phase != Some(Phase::Completed) && new.phase != Some(Phase::Cancelled);
        let started = conditions::is_true(&new.conditions, conditions::STARTED);
        let rejected = new.phase == Some(Phase::Rejected);
        match (rejected, started) {
            // A refused run has neither start nor end.
            (true, _) => note(true, "Rejected", format!("{reason}: {message}"), false),
            (false, false) if failed => note(true, "StartFailed", format!("{reason}: {message}"), true),
            (false, _) => note(failed, "Settled", format!("{reason}: {message}"), true),
        }
        let refused = new.permissions.map_or(0, |permissions| permissions.rejected);
        // Agents end a turn in their own ways after a refusal, some as completed and some as cancelled: this may be why.
        if refused > 0 {
            let text = format!(
                "permission requests of the agent that were rejected: {refused}; set spec.transport.acp.permission.mode: Allow on the SubagentProvider to allow them"
            );
            note(true, "PermissionsRejected", text, false);
        }
    }
    // Of a refused run there was nothing to stop.
    let ran = new.phase.is_some_and(|phase| phase.is_terminal() && phase != Phase::Rejected);
    if ran && became(conditions::STOPPED) {
        let stopped = conditions::get(&new.conditions, conditions::STOPPED);
        note(false, "Stopped", stopped.map(|condition| condition.message.clone()).unwrap_or_default(), false);
    }
    notes
}

/// Publishes what is new. A failure is logged and forgotten.
pub async fn publish(context: &Context, old: Option<&SubagentRunStatus>, run: &SubagentRun) {
    let Some(status) = &run.status else { return };
    for note in notes(old, status) {
        tell(context, run, note).await;
    }
}

/// Publishes one Event, on the parent too when it is for it. A failure is logged and forgotten.
pub async fn tell(context: &Context, run: &SubagentRun, note: Note) {
    let lineage = run.status.as_ref().and_then(|status| status.lineage.as_ref());
    let named = run.spec.parent_ref.as_ref().zip(lineage);
    let parent = named.map(|(reference, lineage)| parent(reference, lineage, run.metadata.namespace.clone()));
    publish_event(context, run.object_ref(&()), run.metadata.name.as_deref().unwrap_or_default(), parent, note).await;
}

/// Publishes one Event on an object, and on its parent when it is for that. A failure is logged and forgotten.
pub(crate) async fn publish_event(
    context: &Context,
    object: ObjectReference,
    name: &str,
    parent: Option<ObjectReference>,
    note: Note,
) {
    let mut told = vec![(object.clone(), event(&note, note.reason.into(), &note.text, None))];
    if let Some(parent) = parent.filter(|_| note.for_parent) {
        let text = format!("{name}: {}", note.text);
        told.push((parent, event(&note, format!("Child{}", note.reason), &text, Some(object))));
    }
    for (object, event) in told {
        match tokio::time::timeout(crate::settings::CALL_TIMEOUT, context.recorder.publish(&event, &object)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, reason = note.reason, "an Event was not published"),
            Err(_) => tracing::warn!(reason = note.reason, "an Event was not published in time"),
        }
    }
}

fn event(note: &Note, reason: String, text: &str, secondary: Option<ObjectReference>) -> Event {
    Event {
        type_: if note.warning { EventType::Warning } else { EventType::Normal },
        reason,
        note: Some(conditions::cut(text, 1000)),
        action: action(text),
        secondary,
    }
}

/// Events that differ in their text alone would be counted as one, with the text of the first: what happens again is another
/// fact. So the text is part of what tells them apart.
fn action(text: &str) -> String {
    format!("Reconcile-{}", &naming::hex(&Sha256::digest(text))[..8])
}

/// The parent that is named and bound by its recorded UID.
pub(crate) fn parent(reference: &ParentRef, lineage: &Lineage, namespace: Option<String>) -> ObjectReference {
    ObjectReference {
        api_version: Some(format!("{}/{}", subagent_crds::GROUP, subagent_crds::VERSION)),
        kind: Some(format!("{:?}", reference.kind)),
        namespace,
        name: Some(reference.name.clone()),
        uid: lineage.parent_uid.clone(),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn status(value: Value) -> SubagentRunStatus {
        serde_json::from_value(value).expect("a status")
    }

    fn accepted(phase: &str, status_: &str, reason: &str) -> SubagentRunStatus {
        let condition = json!({
            "type": "Accepted", "status": status_, "reason": reason, "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        status(json!({"phase": phase, "message": "provider p is not ready", "conditions": [condition]}))
    }

    #[test]
    fn c10_what_happens_again_is_an_event_of_its_own_and_the_same_fact_is_not() {
        let note = Note { warning: false, reason: "Settled", text: String::new(), for_parent: false };
        let action = |text| event(&note, note.reason.into(), text, None).action;
        assert_ne!(action("activation 1 is over"), action("activation 2 is over"));
        assert_eq!(action("activation 1 is over"), action("activation 1 is over"));
    }

    /// c19: the setting is named, also for an agent that takes a refusal for a cancelled turn.
    #[rstest]
    #[case(json!({"phase": "Completed", "permissions": {"allowed": 1, "rejected": 2}}), true)]
    #[case(json!({"phase": "Cancelled", "permissions": {"allowed": 0, "rejected": 1}}), true)]
    #[case(json!({"phase": "Completed", "permissions": {"allowed": 2, "rejected": 0}}), false)]
    #[case(json!({"phase": "Cancelled", "permissions": {"allowed": 0, "rejected": 1}, "stopping": {"reason": "Cancelled", "at": "2026-01-01T00:00:00Z"}}), true)]
    #[case(json!({"phase": "Failed", "permissions": {"allowed": 0, "rejected": 1}, "stopping": {"reason": "DeadlineExceeded", "at": "2026-01-01T00:00:00Z"}}), true)]
    fn c19_rejections_are_said_with_the_setting(#[case] mut end: Value, #[case] said: bool) {
        end["conditions"] = json!([{"type": "Finished", "status": "True", "reason": "R", "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let notes = notes(None, &status(end));
        let found = notes.iter().find(|note| note.reason == "PermissionsRejected");
        assert_eq!(found.is_some_and(|note| note.warning && note.text.contains("transport.acp.permission.mode")), said);
    }

    /// c10: at most one Event for each transition, also while a run waits for its provider.
    #[test]
    fn c10_what_a_run_waits_for_is_said_once_for_each_reason() {
        let reasons = |old: Option<&SubagentRunStatus>, new: &SubagentRunStatus| -> Vec<&str> {
            notes(old, new).into_iter().map(|note| note.reason).collect()
        };
        let missing = accepted("Pending", "False", "NoProvider");
        let not_ready = accepted("Pending", "False", "ProviderNotReady");
        assert_eq!(reasons(None, &missing), ["Waiting"]);
        assert_eq!(reasons(Some(&missing), &missing), Vec::<&str>::new());
        assert_eq!(reasons(Some(&missing), &not_ready), ["Waiting"]);
        assert_eq!(reasons(Some(&not_ready), &accepted("Starting", "True", "Accepted")), ["Accepted"]);
        let rejected = accepted("Rejected", "False", "NoProvider");
        assert!(!reasons(Some(&missing), &rejected).contains(&"Waiting"));
        assert!(notes(None, &missing)[0].text.contains("provider p is not ready"));
    }
}
