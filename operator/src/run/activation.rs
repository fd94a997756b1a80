//! Acceptance of an activation: a run of a continuable child. Pure.
//!
//! The child was accepted before, and its status tells which run is its activation. That makes at most one of them: a run
//! that the child's live status does not name has no pod (contract c36).

use super::validate::{Acceptance, Refusal, Request, TTL_SECONDS, Verdict, WAITING, ready_provider, refuse};
use super::{validate, validate::Provider};
use crate::{
    provider::{capabilities::CONTINUATION, probe},
    subagent::workspace,
};
use subagent_crds::{
    Reason, Subagent, SubagentProvider, SubagentProviderSpec, SubagentRun, SubagentStatus, bounds,
    run::{Activation, InterruptionPolicy},
    run_status::{Descriptor, Effective, Lineage, MODE_CONTINUABLE},
};

/// What was found of the child that a run activates.
#[derive(Clone, Debug, Default)]
pub enum Child {
    /// The run activates none.
    #[default]
    NotAsked,
    /// No child of that name.
    Missing,
    /// It is there and does not decode; how (pitfall C1).
    Undecodable(String),
    /// The child, from a live GET.
    Found(Box<Subagent>),
}

impl Child {
    /// The child, where it was found.
    pub fn found(&self) -> Option<&Subagent> {
        match self {
            Self::Found(child) => Some(child),
            Self::NotAsked | Self::Missing | Self::Undecodable(_) => None,
        }
    }
}

/// The revision that the child's last activation had, for one whose provider is gone (contract c2).
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// Name of the ControllerRevision.
    pub revision: String,
    /// The provider's spec that it holds.
    pub spec: SubagentProviderSpec,
}

/// Name of the revision the child's newest activation had, or the one it was accepted with.
pub fn recorded_revision(child: &Subagent) -> Option<&str> {
    let status = child.status.as_ref()?;
    let accepted = status.descriptor.as_ref().map(|descriptor| descriptor.provider_revision.as_str());
    status.provider_revision.as_deref().or(accepted).filter(|name| !name.is_empty())
}

/// True when a provider gives nothing to a new activation any more.
pub fn is_gone(provider: &Provider) -> bool {
    match provider {
        Provider::Missing => true,
        Provider::Undecodable(_) => false,
        Provider::Found(provider) => provider.metadata.deletion_timestamp.is_some(),
    }
}

/// Decides about a run that activates a child.
///
/// # Errors
/// The refusal, or what is waited for.
pub fn check(request: &Request<'_>, activation: &Activation) -> Result<Acceptance, Verdict> {
    let run = request.run;
    let child = current(run, activation, request.child)?;
    let (spec, revision) = match request.recorded {
        Some(recorded) if is_gone(request.provider) => (&recorded.spec, recorded.revision.clone()),
        _ => {
            let provider = ready_provider(&run.spec.provider_ref.name, request.provider)?;
            validate::asked_capabilities(run, provider)?;
            continuation(provider)?;
            if child.spec.workspace.is_some() {
                workspace::capability(provider)?;
            }
            let status = provider.status.as_ref();
            (&provider.spec, status.and_then(|status| status.revision.clone()).unwrap_or_default())
        }
    };
    validate::arguments(run)?;
    let defaults = &spec.run_defaults;
    let own = &run.spec;
    let start = own.start_deadline_seconds.or(defaults.start_deadline_seconds);
    Ok(Acceptance {
        lineage: lineage(child)?,
        descriptor: Descriptor {
            version: 1,
            mode: MODE_CONTINUABLE.into(),
            provider: own.provider_ref.name.clone(),
            provider_revision: revision,
            context: format!("{:?}", spec.context),
            description: own.description.clone(),
            agent_provider: own.agent_options.as_ref().and_then(|options| options.provider.clone()),
            agent_model: own.agent_options.as_ref().and_then(|options| options.model.clone()),
            persona: own.persona.clone(),
            tool_filter: own.tool_filter.clone(),
            max_depth: child.status.as_ref().and_then(|status| status.descriptor.as_ref()?.max_depth),
        },
        effective: Effective {
            start_deadline_seconds: start.unwrap_or(validate::START_DEADLINE_SECONDS),
            active_deadline_seconds: own.active_deadline_seconds.or(defaults.active_deadline_seconds),
            idle_deadline_seconds: own.idle_deadline_seconds.or(defaults.idle_deadline_seconds),
            // Not looked at: the child's historyLimit says how long the run is kept.
            ttl_seconds_after_finished: TTL_SECONDS,
            // What was claimed is never sent again by itself (contract c41).
            interruption_policy: InterruptionPolicy::Fail,
            max_attempts: own.max_attempts.or(defaults.max_attempts).unwrap_or(validate::MAX_ATTEMPTS),
        },
    })
}

/// An activation is no level of its own: it is as deep as its child, which is its parent. What is below it is below the child.
fn lineage(child: &Subagent) -> Result<Lineage, Verdict> {
    let uid = child.metadata.uid.clone().unwrap_or_default();
    let Some(own) = child.status.as_ref().and_then(|status| status.lineage.clone()) else {
        return Err(waits(child, "it is not accepted yet"));
    };
    let mut ancestors = own.ancestors;
    ancestors.push(uid.clone());
    if ancestors.len() > bounds::ANCESTORS {
        let message =
            format!("the lineage would have more than {} ancestors; delegate from higher up", bounds::ANCESTORS);
        return Err(refuse(Reason::DepthExceeded, message));
    }
    Ok(Lineage { depth: own.depth, parent_uid: Some(uid), root_uid: own.root_uid, ancestors })
}

/// Whether the pod of an accepted activation may be created; asked right before that.
///
/// # Errors
/// The refusal, or what is waited for.
pub fn may_start(run: &SubagentRun, activation: &Activation, found: &Child) -> Result<(), Verdict> {
    current(run, activation, found).map(drop)
}

/// The child, when its status names this run as its activation and nothing is about to stop it.
fn current<'a>(run: &SubagentRun, activation: &Activation, found: &'a Child) -> Result<&'a Subagent, Verdict> {
    let named = format!("Subagent {}, named in spec.activation.subagentRef,", activation.subagent_ref.name);
    let child = match found {
        Child::Found(child) => child,
        Child::Undecodable(how) => {
            let message = format!("{WAITING}{named} which does not decode; correct or delete it: {how}");
            return Err(Verdict::Waits(Refusal { reason: Reason::ParentUnavailable, message }));
        }
        Child::NotAsked | Child::Missing => {
            let message = format!("{named} does not exist any more; delete this run");
            return Err(refuse(Reason::ParentUnavailable, message));
        }
    };
    let expected = &activation.subagent_ref.uid;
    if child.metadata.uid.as_ref() != Some(expected) {
        let message = format!("{named} has another UID than {expected}: it was replaced; delete this run");
        return Err(refuse(Reason::Unauthorized, message));
    }
    let none = SubagentStatus::default();
    let status = child.status.as_ref().unwrap_or(&none);
    let epoch = activation.epoch;
    let over = || refuse(Reason::ParentUnavailable, format!("{named} is past its activation {epoch}; delete this run"));
    match &status.activation {
        Some(now) if now.epoch == epoch => match &now.run_uid {
            Some(uid) if Some(uid) == run.metadata.uid.as_ref() => {}
            Some(uid) => {
                let message = format!(
                    "{named} has the run with UID {uid} as its activation {epoch}, not this one; delete this run"
                );
                return Err(refuse(Reason::Unauthorized, message));
            }
            None => return Err(waits(child, "its status does not name the UID of this run yet")),
        },
        Some(now) if now.epoch > epoch => return Err(over()),
        None if status.epochs >= epoch => return Err(over()),
        _ => return Err(waits(child, &format!("its status does not name activation {epoch} yet"))),
    }
    // Its controller creates the run after that; somebody else may have made this one.
    if child.spec.workspace.is_some() && status.workspace.is_none() {
        return Err(waits(child, "the claim of its workspace is not created yet"));
    }
    // Its controller cancels this run next, and does so once.
    if child.metadata.deletion_timestamp.is_some() {
        return Err(waits(child, "it is being deleted, and stops this run"));
    }
    if epoch <= status.cancelled_through_epoch.max(child.spec.cancel_through_epoch) {
        return Err(waits(child, "it is cancelled, and stops this run"));
    }
    Ok(child)
}

fn waits(child: &Subagent, what: &str) -> Verdict {
    let name = child.metadata.name.as_deref().unwrap_or_default();
    Verdict::Waits(Refusal {
        reason: Reason::ParentUnavailable,
        message: format!("{WAITING}Subagent {name}, which this run activates: {what}"),
    })
}

/// The provider may have been edited since the child was accepted.
fn continuation(provider: &SubagentProvider) -> Result<(), Verdict> {
    let status = provider.status.as_ref();
    if status.is_some_and(|status| status.capabilities.iter().any(|known| known == CONTINUATION)) {
        return Ok(());
    }
    let name = provider.metadata.name.as_deref().unwrap_or_default();
    if provider.spec.session_state.is_some() && probe::is_open(provider) {
        let message = format!(
            "{WAITING}SubagentProvider {name}: its agent has not been probed yet, and only that tells whether it can load \
             or resume a session"
        );
        return Err(Verdict::Waits(Refusal { reason: Reason::ProviderNotReady, message }));
    }
    let message = format!(
        "SubagentProvider {name} has no capability {CONTINUATION} any more, which every activation needs; give it back its \
         spec.sessionState and an agent that can load or resume sessions"
    );
    Err(refuse(Reason::UnsupportedCapability, message))
}

#[cfg(test)]
#[path = "activation_tests.rs"]
mod tests;
