//! Status of a provider. Pure.

use super::validate::{CAPABILITIES, Problem};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use subagent_crds::{
    SubagentProvider, SubagentProviderStatus,
    conditions::{self, Status},
};

/// Ready: the spec is valid, the API server accepts its pod, and the revision is stored.
pub fn ready(provider: &SubagentProvider, revision: &str, now: Timestamp) -> SubagentProviderStatus {
    let mut new = base(provider);
    new.revision = Some(revision.to_owned());
    new.capabilities = CAPABILITIES.iter().map(|&name| name.to_owned()).collect();
    let message = "the template is valid and accepted by a dry-run create; the agent itself was not probed";
    set(provider, &mut new, Status::True, "Valid", message, now);
    new
}

/// Not ready. The last accepted revision stays visible; no new run gets it.
pub fn not_ready(provider: &SubagentProvider, problem: &Problem, now: Timestamp) -> SubagentProviderStatus {
    let mut new = base(provider);
    set(provider, &mut new, Status::False, problem.reason.as_str(), &problem.message, now);
    new
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
