//! Status of a provider. Pure.

use super::{
    capabilities,
    probe::{self, Meaning},
    probing::Look,
    validate::Problem,
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use subagent_crds::{
    Reason, SubagentProvider, SubagentProviderStatus,
    conditions::{self, Status},
    provider::{Probe, Probed},
};

/// What holds for every spec that was taken.
const ACCEPTED: &str = "the template is valid and accepted by a dry-run create";
/// Reason of a provider that is ready, with an agent of which nothing is known.
const VALID: &str = "Valid";
/// Reason of one whose agent answered.
const PROBED: &str = "Probed";

/// The spec is valid, the API server accepts its pod, and the revision is stored. Ready unless a probe found that its
/// agent cannot be run.
pub fn accepted(provider: &SubagentProvider, revision: &str, look: &Look, now: Timestamp) -> SubagentProviderStatus {
    let mut new = base(provider);
    new.revision = Some(revision.to_owned());
    new.agent.clone_from(&look.agent);
    new.capabilities = capabilities::of(&provider.spec, look.agent.as_ref());
    new.probe.clone_from(&look.probed);
    let (status, reason, message) = words(provider, look);
    set(provider, &mut new, status, &reason, &message, now);
    new
}

/// Not ready. The last accepted revision stays visible; no new run gets it.
pub fn not_ready(provider: &SubagentProvider, problem: &Problem, now: Timestamp) -> SubagentProviderStatus {
    let mut new = base(provider);
    set(provider, &mut new, Status::False, problem.reason.as_str(), &problem.message, now);
    new
}

fn words(provider: &SubagentProvider, look: &Look) -> (Status, String, String) {
    let valid = |message: String| (Status::True, VALID.to_owned(), message);
    if provider.spec.probe == Probe::Never {
        return valid(format!("{ACCEPTED}; the agent itself was not probed"));
    }
    // The trouble of an attempt that is under way is the newer word, where the last one told nothing of the agent.
    let is_lost = |probed: &Probed| probe::meaning(&provider.spec, probed) == Meaning::Lost;
    let told = look.probed.as_ref().filter(|probed| look.trouble.is_none() || !is_lost(probed));
    let Some(probed) = told else {
        return valid(match &look.trouble {
            None => format!("{ACCEPTED}; the agent is being probed"),
            Some((word, seen)) if *word == Reason::PodDeleted.as_str() => {
                format!("{ACCEPTED}; the agent is being probed, and its pod stays: {word}: {seen}")
            }
            Some((word, seen)) => {
                // A kubelet that tries again says the same in two ways; each is not worth a write.
                let begin = format!("{ACCEPTED}; the agent is being probed, and its pod has not started: {word}: ");
                let said = said_before(provider, &begin);
                said.unwrap_or_else(|| format!("{begin}{seen}"))
            }
        });
    };
    let why = || {
        let (reason, message) = (probed.reason.clone(), probed.message.clone());
        (reason.unwrap_or_default(), message.unwrap_or_default())
    };
    let minutes = probe::wait(probed.attempt).as_secs() / 60;
    match probe::meaning(&provider.spec, probed) {
        Meaning::Answers => {
            let agent = look.agent.clone().unwrap_or_default();
            let name = if agent.name.is_empty() { "an agent without a name".to_owned() } else { agent.name };
            let version = if agent.version.is_empty() { String::new() } else { format!(" {}", agent.version) };
            let acp = agent.protocol_version;
            (
                Status::True,
                PROBED.to_owned(),
                format!("{ACCEPTED}; its agent answers: {name}{version}, ACP version {acp}"),
            )
        }
        Meaning::Fault => {
            let (reason, message) = why();
            (Status::False, reason, format!("{message} The probe is repeated after {minutes} min."))
        }
        Meaning::Lost => {
            let (reason, message) = why();
            valid(format!(
                "{ACCEPTED}; the agent could not be probed, which is repeated after {minutes} min: {reason}: {message}"
            ))
        }
        Meaning::Untold => {
            let (reason, message) = why();
            valid(format!("{ACCEPTED}; the agent could not be probed: {reason}: {message}"))
        }
    }
}

/// The message of the current generation, if it begins like this.
fn said_before(provider: &SubagentProvider, begin: &str) -> Option<String> {
    let status = provider.status.as_ref()?;
    let ready = conditions::get(&status.conditions, conditions::READY)?;
    let is_current = ready.observed_generation == provider.metadata.generation;
    (is_current && ready.message.starts_with(begin)).then(|| ready.message.clone())
}

fn base(provider: &SubagentProvider) -> SubagentProviderStatus {
    let mut new = provider.status.clone().unwrap_or_default();
    new.observed_generation = provider.metadata.generation;
    new
}

fn set(
    provider: &SubagentProvider,
    new: &mut SubagentProviderStatus,
    status: Status,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    conditions::set(
        &mut new.conditions,
        conditions::READY,
        status,
        reason,
        message,
        provider.metadata.generation,
        &Time(now),
    );
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
