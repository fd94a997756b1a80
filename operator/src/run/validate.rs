//! Acceptance of a run (contract sections 2 and 3). Pure; the first failure in the contract's order wins.

pub use super::lineage::{Parent, lineage, may_begin, may_start};

use super::{
    activation::{self, Child, Recorded},
    prompt::PromptSource,
};
use crate::{
    provider::{capabilities, probe},
    schema_subset,
};
use k8s_openapi::jiff::Timestamp;
use std::collections::BTreeMap;
use subagent_crds::{
    Reason, SubagentProvider, SubagentRun, bounds, conditions,
    provider::Probe,
    run::InterruptionPolicy,
    run_status::{Descriptor, Effective, Lineage, MODE_ONE_SHOT},
};

/// Start deadline when neither run nor provider say one, in seconds: long enough to pull a large image.
pub const START_DEADLINE_SECONDS: i64 = 600;
/// How long a finished run is kept when nobody says: seven days.
pub const TTL_SECONDS: i64 = 7 * 24 * 3600;
/// Worker pods a run may use when nobody says.
pub const MAX_ATTEMPTS: i32 = 3;
/// The capability to compute depths and hold caps; the operator gives it to every agent.
pub const DEPTH_LIMIT: &str = "DepthLimit";

/// What was found of the provider a run names.
#[derive(Clone, Debug, Default)]
pub enum Provider {
    /// No object of that name.
    #[default]
    Missing,
    /// It is there and does not decode; how (pitfall C1).
    Undecodable(String),
    /// The provider, from a live GET.
    Found(Box<SubagentProvider>),
}

impl Provider {
    /// The provider, if it is there and decodes.
    pub fn found(&self) -> Option<&SubagentProvider> {
        match self {
            Self::Found(provider) => Some(provider),
            Self::Missing | Self::Undecodable(_) => None,
        }
    }
}

/// Everything acceptance looks at.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The run, from a live GET.
    pub run: &'a SubagentRun,
    /// Its provider.
    pub provider: &'a Provider,
    /// Its parent.
    pub parent: &'a Parent,
    /// The child it activates.
    pub child: &'a Child,
    /// What that child's last activation had, when its provider is gone.
    pub recorded: Option<&'a Recorded>,
    /// Its prompt, when that comes from a ConfigMap.
    pub prompt: &'a PromptSource,
}

/// The outcome of acceptance.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It is taken; what follows is written once.
    Accepted(Box<Acceptance>),
    /// It cannot be decided yet; at the start deadline it is refused with this reason.
    Waits(Refusal),
    /// It is refused for good.
    Refused(Refusal),
}

/// What acceptance writes once.
#[derive(Clone, Debug, PartialEq)]
pub struct Acceptance {
    /// Lineage, computed by the operator.
    pub lineage: Lineage,
    /// How the run was composed.
    pub descriptor: Descriptor,
    /// Deadlines and policies in force.
    pub effective: Effective,
}

/// Why a run is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reason of the taxonomy.
    pub reason: Reason,
    /// The object, the field and the remedy.
    pub message: String,
}

/// How a message begins that tells what a run waits for.
pub(super) const WAITING: &str = "waiting for ";

impl Refusal {
    /// What was waited for until the start deadline, in the words of one who waits no more.
    pub fn in_vain(&self, seconds: i64) -> Self {
        let waited_for = self.message.strip_prefix(WAITING).unwrap_or(&self.message);
        Self { message: format!("startDeadlineSeconds {seconds} is over: {waited_for}"), ..self.clone() }
    }
}

/// A refusal for good.
pub(crate) fn refuse(reason: Reason, message: String) -> Verdict {
    Verdict::Refused(Refusal { reason, message })
}

/// Decides whether a run is taken.
pub fn validate(request: &Request<'_>) -> Verdict {
    match check(request) {
        Ok(acceptance) => Verdict::Accepted(Box::new(acceptance)),
        Err(verdict) => verdict,
    }
}

fn check(request: &Request<'_>) -> Result<Acceptance, Verdict> {
    let spec = &request.run.spec;
    if let Some(activation) = &spec.activation {
        return activation::check(request, activation);
    }
    let provider = ready_provider(&spec.provider_ref.name, request.provider)?;
    asked_capabilities(request.run, provider)?;
    arguments(request.run)?;
    if let PromptSource::Unusable(why) = request.prompt {
        return Err(refuse(Reason::InvalidArgs, why.clone()));
    }
    if let Some(schema) = &spec.output_schema {
        schema_subset::check(schema).map_err(|violations| {
            let seen = format!("spec.outputSchema: {}", violations.join("; "));
            refuse(Reason::UnsupportedSchema, Reason::UnsupportedSchema.with_remedy(&seen))
        })?;
    }
    let uid = request.run.metadata.uid.as_deref().unwrap_or_default();
    let (lineage, cap) = lineage(uid, spec.parent_ref.as_ref(), spec.max_depth, request.parent)?;
    let defaults = &provider.spec.run_defaults;
    let revision = provider.status.as_ref().and_then(|status| status.revision.clone()).unwrap_or_default();
    Ok(Acceptance {
        lineage,
        descriptor: Descriptor {
            version: 1,
            mode: MODE_ONE_SHOT.into(),
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
        effective: Effective {
            start_deadline_seconds: start_deadline(request.run, Some(provider)),
            active_deadline_seconds: spec.active_deadline_seconds.or(defaults.active_deadline_seconds),
            idle_deadline_seconds: spec.idle_deadline_seconds.or(defaults.idle_deadline_seconds),
            ttl_seconds_after_finished: spec
                .ttl_seconds_after_finished
                .or(defaults.ttl_seconds_after_finished)
                .unwrap_or(TTL_SECONDS),
            interruption_policy: spec.interruption_policy.or(defaults.interruption_policy).unwrap_or_default(),
            max_attempts: spec.max_attempts.or(defaults.max_attempts).unwrap_or(MAX_ATTEMPTS),
        },
    })
}

/// The start deadline in force, also before acceptance, in seconds.
pub fn start_deadline(run: &SubagentRun, provider: Option<&SubagentProvider>) -> i64 {
    run.spec
        .start_deadline_seconds
        .or_else(|| provider.and_then(|provider| provider.spec.run_defaults.start_deadline_seconds))
        .unwrap_or(START_DEADLINE_SECONDS)
}

/// When the start deadline passes. Time spent Queued does not count.
pub fn start_deadline_at(run: &SubagentRun, seconds: i64) -> Timestamp {
    let created = run.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    let queued = run.status.as_ref().map_or(0, |status| status.queued_seconds);
    created + std::time::Duration::from_secs((seconds + queued).unsigned_abs())
}

/// The provider of that name, when it is ready.
///
/// # Errors
/// What is waited for.
pub(crate) fn ready_provider<'a>(name: &str, found: &'a Provider) -> Result<&'a SubagentProvider, Verdict> {
    let waits = |reason, message| Verdict::Waits(Refusal { reason, message });
    if let Provider::Undecodable(how) = found {
        return Err(waits(
            Reason::ProviderNotReady,
            format!("{WAITING}SubagentProvider {name}: it does not decode; correct or delete it: {how}"),
        ));
    }
    let Some(provider) = found.found().filter(|provider| provider.metadata.deletion_timestamp.is_none()) else {
        return Err(waits(
            Reason::NoProvider,
            format!(
                "{WAITING}SubagentProvider {name}: it does not exist in this namespace; create it, or delete this and create it again with another spec.providerRef.name"
            ),
        ));
    };
    let status = provider.status.clone().unwrap_or_default();
    let ready = conditions::get(&status.conditions, conditions::READY);
    let current = status.observed_generation == provider.metadata.generation;
    match ready {
        Some(ready) if ready.status == "True" && current && status.revision.is_some() => Ok(provider),
        Some(ready) if current => Err(waits(
            Reason::ProviderNotReady,
            format!("{WAITING}SubagentProvider {name}: {}: {}", ready.reason, ready.message),
        )),
        _ => Err(waits(
            Reason::ProviderNotReady,
            format!("{WAITING}SubagentProvider {name}: it has not been checked yet"),
        )),
    }
}

/// Contract c5: outputSchema, maxDepth, toolFilter, persona, then the other optional fields. Presence counts (c6).
pub(super) fn asked_capabilities(run: &SubagentRun, provider: &SubagentProvider) -> Result<(), Verdict> {
    let spec = &run.spec;
    let options = spec.agent_options.clone().unwrap_or_default();
    let prompt_has_image =
        spec.prompt.iter().flat_map(|prompt| prompt.content.iter().flatten()).any(|block| block.image.is_some());
    // Those of an activation are the operator's, and their agent's not taking them is their outcome.
    let is_steered = spec.activation.is_none() && !spec.messages.is_empty();
    // That of an activation is always Fail.
    let default = provider.spec.run_defaults.interruption_policy.filter(|_| spec.activation.is_none());
    let policy = spec.interruption_policy.or(default).unwrap_or_default();
    let asked = [
        (spec.output_schema.is_some(), "spec.outputSchema", "OutputSchema"),
        (spec.max_depth.is_some(), "spec.maxDepth", DEPTH_LIMIT),
        (spec.tool_filter.is_some(), "spec.toolFilter", "ToolFilter"),
        (spec.persona.is_some(), "spec.persona", "Persona"),
        (options.provider.is_some(), "spec.agentOptions.provider", "AgentProvider"),
        (options.model.is_some(), "spec.agentOptions.model", "AgentModel"),
        (options.max_tokens.is_some(), "spec.agentOptions.maxTokens", "AgentMaxTokens"),
        (policy == InterruptionPolicy::Resume, "spec.interruptionPolicy: Resume", "InterruptionResume"),
        (policy == InterruptionPolicy::Restart, "spec.interruptionPolicy: Restart", "InterruptionRestart"),
        (prompt_has_image, "spec.prompt.content[].image", "ImagePrompt"),
        (is_steered, "spec.messages", capabilities::STEERING),
    ];
    let has = provider.status.as_ref().map(|status| status.capabilities.as_slice()).unwrap_or_default();
    for (is_asked, field, capability) in asked {
        if is_asked && !has.iter().any(|known| known == capability) {
            return Err(missing(provider, field, capability));
        }
    }
    Ok(())
}

/// What the agent alone could have told is waited for while it may still tell: a manifest directory has no order. What
/// nobody will tell counts as absent.
pub(crate) fn missing(provider: &SubagentProvider, field: &str, capability: &str) -> Verdict {
    let name = provider.metadata.name.as_deref().unwrap_or_default();
    let is_the_agents = capabilities::ADVERTISED.contains(&capability);
    if is_the_agents && probe::is_open(provider) {
        let message = format!(
            "{WAITING}SubagentProvider {name}: its agent has not been probed yet, and only that tells whether it has \
             capability {capability}, which {field} asks for{}",
            said_by(provider)
        );
        return Verdict::Waits(Refusal { reason: Reason::ProviderNotReady, message });
    }
    if !is_the_agents && !capabilities::OF_EVERY_AGENT.contains(&capability) {
        return refuse(
            Reason::UnsupportedCapability,
            format!(
                "SubagentProvider {name} has no capability {capability}, which {field} asks for; no provider has it in this version: leave {field} out"
            ),
        );
    }
    let unknown = if is_the_agents && provider.spec.probe == Probe::Never {
        " (its spec.probe is Never, and what is not known counts as absent)"
    } else if is_the_agents && probe::is_untold(provider) {
        " (its probe failed, and what is not known counts as absent: see condition Ready of the provider)"
    } else {
        ""
    };
    refuse(
        Reason::UnsupportedCapability,
        format!(
            "SubagentProvider {name} has no capability {capability}{unknown}, which {field} asks for; leave {field} out, or choose a provider whose status.capabilities lists it"
        ),
    )
}

/// What the provider says of its probe, as a clause.
fn said_by(provider: &SubagentProvider) -> String {
    /// Leaves room for the rest in the message.
    const MAX: usize = 400;
    let status = provider.status.as_ref();
    let ready = status.and_then(|status| conditions::get(&status.conditions, conditions::READY));
    ready.map(|ready| format!("; the provider says: {}", conditions::cut(&ready.message, MAX))).unwrap_or_default()
}

pub(super) fn arguments(run: &SubagentRun) -> Result<(), Verdict> {
    let spec = &run.spec;
    if spec.max_depth.is_some_and(|depth| depth < 0) {
        return Err(refuse(Reason::InvalidArgs, "spec.maxDepth is negative; write 0 or more".into()));
    }
    if spec.prompt.as_ref().is_some_and(|prompt| prompt.is_too_large()) {
        return Err(refuse(
            Reason::InvalidArgs,
            format!(
                "spec.prompt is larger than {} bytes of text or {} bytes of content; put it into a ConfigMap and name it in spec.prompt.configMapKeyRef",
                bounds::PROMPT_TEXT,
                bounds::PROMPT_TOTAL
            ),
        ));
    }
    parameters(spec.parameters.as_ref())
}

/// Checks parameters.
///
/// # Errors
/// The refusal.
pub(crate) fn parameters(parameters: Option<&BTreeMap<String, String>>) -> Result<(), Verdict> {
    // No environment can hold it; the container's runtime would refuse the pod, and nothing would name the parameter.
    if let Some((key, _)) = parameters.into_iter().flatten().find(|(_, value)| value.contains('\0')) {
        return Err(refuse(
            Reason::InvalidArgs,
            format!("spec.parameters.{key} holds a NUL character, which no environment variable can; remove it"),
        ));
    }
    let size: usize = parameters.into_iter().flatten().map(|(key, value)| key.len() + value.len()).sum();
    if size > bounds::PARAMETERS_TOTAL {
        return Err(refuse(
            Reason::InvalidArgs,
            format!("spec.parameters hold {size} bytes, the limit is {}; shorten them", bounds::PARAMETERS_TOTAL),
        ));
    }
    Ok(())
}
