//! What the stored status of a child asks of the run of its activation. Pure, and level-triggered: it is computed again from
//! what is stored after every write, so a crash between the status and the run changes nothing.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use std::collections::BTreeMap;
use subagent_crds::{
    Subagent, SubagentRun, SubagentRunSpec,
    message::{Delivery, Outcome, PlacedMessage},
    names,
    run::{Activation, CheckpointRef, ContinuedSession, Inbox, SubagentRef},
    subagent_status::{ActivationState, CurrentActivation},
};

/// What the run's spec is to become.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Its messages: those without an outcome.
    pub messages: Vec<PlacedMessage>,
    /// Its inbox.
    pub inbox: Inbox,
    /// Whether it is cancelled.
    pub cancel: bool,
}

/// The change that brings a run to what the status asks, if it is not there yet. Messages whose outcome is noted leave along
/// with the next change, not by one of their own.
pub fn change(child: &Subagent, run: &SubagentRun) -> Option<Change> {
    let activation = child.status.as_ref()?.activation.as_ref()?;
    let was = run.spec.activation.as_ref()?;
    let is_closing = activation.state == ActivationState::Closing;
    let wanted = Change {
        messages: placed(child, activation.epoch),
        inbox: if is_closing { Inbox::Closed } else { was.inbox },
        cancel: run.spec.cancel || is_cancelled(child, activation),
    };
    let lacks = wanted.messages.iter().any(|message| !run.spec.messages.contains(message));
    let differs = lacks || wanted.inbox != was.inbox || wanted.cancel != run.spec.cancel;
    // A closed inbox takes no new entry; one that is over takes nothing in.
    (differs && was.inbox == Inbox::Open || wanted.cancel != run.spec.cancel).then_some(wanted)
}

/// A deletion of the child cancels, and so does `cancelThroughEpoch`.
fn is_cancelled(child: &Subagent, activation: &CurrentActivation) -> bool {
    let through = child.status.as_ref().map_or(0, |status| status.cancelled_through_epoch);
    activation.epoch <= through || child.metadata.deletion_timestamp.is_some()
}

/// Messages that the worker of an activation has or gets, in the order of their placement.
fn placed(child: &Subagent, epoch: i64) -> Vec<PlacedMessage> {
    let status = child.status.iter().flat_map(|status| &status.messages);
    let with_worker = status.filter(|message| message.outcome == Outcome::Queued && message.epoch == Some(epoch));
    let mut placed: Vec<_> = with_worker
        .filter_map(|message| {
            let entry = child.spec.messages.iter().find(|entry| entry.id == message.id)?;
            let id = message.id.clone();
            let placement = message.placement?;
            Some(match entry.delivery {
                // What it says besides comes when its turn is.
                Delivery::Interrupt if !message.interrupted => {
                    PlacedMessage { id, placement, delivery: Delivery::Interrupt, text: None, content: None }
                }
                delivery => PlacedMessage {
                    id,
                    placement,
                    delivery: if delivery == Delivery::Steer { Delivery::Steer } else { Delivery::Queue },
                    text: entry.text.clone(),
                    content: entry.content.clone(),
                },
            })
        })
        .collect();
    placed.sort_by_key(|message| message.placement);
    placed
}

/// The run of the activation that the status has claimed.
pub fn run(child: &Subagent) -> Option<SubagentRun> {
    let status = child.status.as_ref()?;
    let activation = status.activation.as_ref()?;
    let (name, uid) = (child.metadata.name.clone()?, child.metadata.uid.clone()?);
    let session = status.checkpoint.as_ref().zip(status.session_id.clone()).map(|(stored, id)| ContinuedSession {
        id,
        checkpoint: CheckpointRef { key: stored.key.clone(), digest: stored.digest.clone(), size: stored.size },
        completed_turns: status.completed_turns,
    });
    let spec = &child.spec;
    let settings = &spec.activation;
    let mut run = SubagentRun::new(
        &activation.run_name,
        SubagentRunSpec {
            provider_ref: spec.provider_ref.clone(),
            description: spec.description.clone(),
            activation: Some(Activation {
                subagent_ref: SubagentRef { name: name.clone(), uid: uid.clone() },
                epoch: activation.epoch,
                session,
                inbox: if activation.state == ActivationState::Closing { Inbox::Closed } else { Inbox::Open },
            }),
            parameters: spec.parameters.clone(),
            agent_options: spec.agent_options.clone(),
            persona: spec.persona.clone(),
            tool_filter: spec.tool_filter.clone(),
            max_depth: spec.max_depth,
            start_deadline_seconds: settings.start_deadline_seconds,
            active_deadline_seconds: settings.active_deadline_seconds,
            idle_deadline_seconds: settings.idle_deadline_seconds,
            messages: placed(child, activation.epoch),
            cancel: is_cancelled(child, activation),
            ..SubagentRunSpec::default()
        },
    );
    run.metadata = owned(child, &activation.run_name);
    run.metadata.finalizers = Some(vec![names::RUN_FINALIZER.to_owned(), names::FOLD_FINALIZER.to_owned()]);
    Some(run)
}

/// Metadata of what is made for a child and goes with it: found by its labels, matched by its owner's UID.
pub(super) fn owned(child: &Subagent, object: &str) -> ObjectMeta {
    let name = child.metadata.name.clone().unwrap_or_default();
    let uid = child.metadata.uid.clone().unwrap_or_default();
    ObjectMeta {
        name: Some(object.to_owned()),
        namespace: child.metadata.namespace.clone(),
        labels: Some(BTreeMap::from([
            (names::SUBAGENT_LABEL.to_owned(), name.clone()),
            (names::SUBAGENT_UID_LABEL.to_owned(), uid.clone()),
        ])),
        owner_references: Some(vec![OwnerReference {
            api_version: Subagent::api_version(&()).into_owned(),
            kind: Subagent::kind(&()).into_owned(),
            name,
            uid,
            controller: Some(true),
            block_owner_deletion: None,
        }]),
        ..ObjectMeta::default()
    }
}
