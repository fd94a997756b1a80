//! Acceptance of a child (contract c5 and c34). Pure; the first failure in the contract's order wins.

use super::workspace;
use crate::{
    provider::{capabilities::CONTINUATION, probe},
    run::validate::{
        self as run, Acceptance, DEPTH_LIMIT, Parent, Provider, Refusal, START_DEADLINE_SECONDS, Verdict, missing,
        ready_provider, refuse,
    },
};
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;
use subagent_crds::{
    Reason, Subagent, SubagentProvider, bounds,
    message::{Delivery, InboxMessage},
    run_status::{Descriptor, Effective, Lineage},
};

/// What is known of the session store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Store {
    /// None is configured.
    #[default]
    None,
    /// It cannot be used; why.
    Unusable(String),
    /// It was just tried.
    Usable,
}

/// Everything acceptance looks at.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The child, from a live GET.
    pub child: &'a Subagent,
    /// Its provider.
    pub provider: &'a Provider,
    /// Its parent.
    pub parent: &'a Parent,
    /// The session store.
    pub store: &'a Store,
    /// What the API server says against the claim of its workspace.
    pub refused_claim: Option<&'a str>,
}

/// Decides whether a child is taken. The deadlines of an activation are fixed with its run.
pub fn validate(request: &Request<'_>) -> Verdict {
    match check(request) {
        Ok(acceptance) => Verdict::Accepted(Box::new(acceptance)),
        Err(verdict) => verdict,
    }
}

/// Whether only the session store, and what comes after it, can still turn the child away. It is tried for no other, and no claim
/// either: that takes its time (contract c5: it comes last).
pub fn wants_store(request: &Request<'_>) -> bool {
    before_store(request).is_ok()
}

fn check(request: &Request<'_>) -> Result<Acceptance, Verdict> {
    let (provider, lineage, cap) = before_store(request)?;
    let spec = &request.child.spec;
    store(request.store)?;
    first_message(spec.messages.first())?;
    claim(request.refused_claim)?;
    let revision = provider.status.as_ref().and_then(|status| status.revision.clone()).unwrap_or_default();
    Ok(Acceptance {
        lineage,
        descriptor: Descriptor {
            version: 1,
            mode: "Continuable".into(),
            provider: spec.provider_ref.name.clone(),
            provider_revision: revision,
            context: format!("{:?}", provider.spec.context),
            description: spec.description.clone(),
            agent_provider: spec.agent_options.as_ref().and_then(|options| options.provider.clone()),
            agent_model: spec.agent_options.as_ref().and_then(|options| options.model.clone()),
            persona: spec.persona.clone(),
            tool_filter: spec.tool_filter.clone(),
            max_depth: cap,
        },
        effective: Effective::default(),
    })
}

fn before_store<'a>(request: &Request<'a>) -> Result<(&'a SubagentProvider, Lineage, Option<i32>), Verdict> {
    let spec = &request.child.spec;
    let provider = ready_provider(&spec.provider_ref.name, request.provider)?;
    asked_capabilities(request.child, provider)?;
    if spec.max_depth.is_some_and(|depth| depth < 0) {
        return Err(refuse(Reason::InvalidArgs, "spec.maxDepth is negative; write 0 or more".into()));
    }
    run::parameters(spec.parameters.as_ref())?;
    let uid = request.child.metadata.uid.as_deref().unwrap_or_default();
    let (lineage, cap) = run::lineage(uid, spec.parent_ref.as_ref(), spec.max_depth, request.parent)?;
    Ok((provider, lineage, cap))
}

/// Contract c5: maxDepth, toolFilter, persona, then the other optional fields; that the session can be continued, and what only
/// such a child can have.
fn asked_capabilities(child: &Subagent, provider: &SubagentProvider) -> Result<(), Verdict> {
    let spec = &child.spec;
    let options = spec.agent_options.clone().unwrap_or_default();
    let asked = [
        (spec.max_depth.is_some(), "spec.maxDepth", DEPTH_LIMIT),
        (spec.tool_filter.is_some(), "spec.toolFilter", "ToolFilter"),
        (spec.persona.is_some(), "spec.persona", "Persona"),
        (options.provider.is_some(), "spec.agentOptions.provider", "AgentProvider"),
        (options.model.is_some(), "spec.agentOptions.model", "AgentModel"),
        (options.max_tokens.is_some(), "spec.agentOptions.maxTokens", "AgentMaxTokens"),
    ];
    let has = provider.status.as_ref().map(|status| status.capabilities.as_slice()).unwrap_or_default();
    for (is_asked, field, capability) in asked {
        if is_asked && !has.iter().any(|known| known == capability) {
            return Err(missing(provider, field, capability));
        }
    }
    if !has.iter().any(|known| known == CONTINUATION) {
        return Err(not_continuable(provider));
    }
    if spec.workspace.is_some() { workspace::capability(provider) } else { Ok(()) }
}

/// Why a provider cannot continue a session, and what to do.
fn not_continuable(provider: &SubagentProvider) -> Verdict {
    let name = provider.metadata.name.as_deref().unwrap_or_default();
    let lacks = format!("SubagentProvider {name} has no capability {CONTINUATION}, which every Subagent needs");
    if provider.spec.session_state.is_none() {
        let remedy = "say in its spec.sessionState where the agent keeps its session, or choose another provider";
        return refuse(Reason::UnsupportedCapability, format!("{lacks}; {remedy}"));
    }
    if probe::is_open(provider) {
        let message = format!(
            "waiting for SubagentProvider {name}: its agent has not been probed yet, and only that tells whether it can \
             load or resume a session"
        );
        return Verdict::Waits(Refusal { reason: Reason::ProviderNotReady, message });
    }
    let why = "its agent is not known to load or resume sessions (see status.agent and spec.probe of the provider)";
    refuse(Reason::UnsupportedCapability, format!("{lacks}: {why}; choose another provider"))
}

fn store(store: &Store) -> Result<(), Verdict> {
    let seen = match store {
        Store::Usable => return Ok(()),
        Store::None => "no session store is configured",
        Store::Unusable(why) => why,
    };
    Err(refuse(Reason::PersistenceUnavailable, Reason::PersistenceUnavailable.with_remedy(seen)))
}

/// The API server's own words: it knows what a claim may say.
fn claim(refused: Option<&str>) -> Result<(), Verdict> {
    let Some(said) = refused else { return Ok(()) };
    let message = format!(
        "the API server refuses the claim of spec.workspace: {said}; correct what it names, which is below \
         spec.workspace.claimTemplate, in a new Subagent"
    );
    Err(refuse(Reason::InvalidArgs, message))
}

/// The first message is the start (contract c35).
fn first_message(first: Option<&InboxMessage>) -> Result<(), Verdict> {
    let refused = |message: String| Err(refuse(Reason::InvalidArgs, message));
    let Some(first) = first else {
        return refused("spec.messages is empty; create a new Subagent with one message".into());
    };
    let named = format!("message {} of spec.messages", first.id);
    if first.delivery == Delivery::Steer || !first.has_content() {
        return refused(format!(
            "{named} cannot start the child: nothing runs that it could steer or interrupt; create a new Subagent whose \
             first message has text or content and delivery Queue"
        ));
    }
    if first.bytes() > bounds::MESSAGE_CONTENT {
        return refused(format!(
            "{named} has {} bytes, the limit is {}; put what is long into a file and name that",
            first.bytes(),
            bounds::MESSAGE_CONTENT
        ));
    }
    Ok(())
}

/// The start deadline in force before acceptance, in seconds.
pub fn start_deadline(child: &Subagent, provider: Option<&SubagentProvider>) -> i64 {
    let defaults = provider.and_then(|provider| provider.spec.run_defaults.start_deadline_seconds);
    child.spec.activation.start_deadline_seconds.or(defaults).unwrap_or(START_DEADLINE_SECONDS)
}

/// When a child that is not accepted is refused for what it waits for.
pub fn start_deadline_at(child: &Subagent, seconds: i64) -> Timestamp {
    let created = child.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    created + Duration::from_secs(seconds.unsigned_abs())
}

#[cfg(test)]
#[path = "validate_tests.rs"]
mod tests;
