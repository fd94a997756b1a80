//! The probe of a provider's agent: what its pod tells, what that means, and when it is tried again. Pure.
//!
//! Two facts decide, whoever reads them: the pod of an attempt, found by its name, and `status.probe`, what the last
//! finished attempt came to. So a process that takes over, or one that is behind, repeats at most what was done.

use crate::{
    naming,
    pod::{
        StartProblem,
        observe::{self, Node, observe},
        standing,
        template::refers_to_parameters,
    },
    run::validate::START_DEADLINE_SECONDS,
};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use std::time::Duration;
use subagent_crds::{
    Phase, Reason, SubagentProvider, SubagentProviderSpec, bounds, conditions,
    provider::{Probe, Probed},
    report::Agent,
};
use subagent_link::Finding;

/// Wait after a first failed probe; it doubles with each further one, up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_secs(60);
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// The kubelet ends a probe that takes too long, counted from its start on the node, and the worker then says where it
/// was. One that runs gets this much longer here, so that its word comes first.
const PATIENCE: Duration = Duration::from_secs(120);
/// A pod that is being deleted gets this much longer than its grace before it counts as one that is kept.
const LEAVING: Duration = Duration::from_secs(30);

/// What a finished probe means for its provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The agent answered.
    Answers,
    /// A run would fail in the same way: the provider is not ready.
    Fault,
    /// It failed for something that passes and is nothing of the template's: nothing is known yet.
    Lost,
    /// It failed, and the template refers to parameters, which only runs have: nothing will be known.
    Untold,
}

/// What a finished probe means.
pub fn meaning(spec: &SubagentProviderSpec, probed: &Probed) -> Meaning {
    use Reason as R;
    let Some(reason) = &probed.reason else { return Meaning::Answers };
    match Reason::parse(reason) {
        Some(R::ImagePullFailed | R::ImageUserRefused | R::MissingReference) => Meaning::Fault,
        Some(
            R::InvalidTemplate
            | R::AgentStartFailed
            | R::AgentHandshakeFailed
            | R::AgentAuthRequired
            | R::AgentProtocolError
            | R::OOMKilled
            | R::StartDeadlineExceeded,
        ) => {
            if refers_to_parameters(&spec.template) {
                Meaning::Untold
            } else {
                Meaning::Fault
            }
        }
        // No room, a node that went away, a pod that somebody removed.
        _ => Meaning::Lost,
    }
}

/// The last finished probe of this revision.
pub fn last<'a>(provider: &'a SubagentProvider, revision: &str) -> Option<&'a Probed> {
    let probed = provider.status.as_ref()?.probe.as_ref()?;
    (provider.spec.probe == Probe::OnChange && probed.revision == revision).then_some(probed)
}

/// True while it may still turn out what the agent of the current revision advertises.
pub fn is_open(provider: &SubagentProvider) -> bool {
    provider.spec.probe == Probe::OnChange && learnt(provider).is_none_or(|meaning| meaning == Meaning::Lost)
}

/// True when nobody will tell what the agent of the current revision advertises, although it was probed.
pub fn is_untold(provider: &SubagentProvider) -> bool {
    learnt(provider).is_some_and(|meaning| meaning == Meaning::Untold)
}

/// What the last finished probe of the current revision means.
fn learnt(provider: &SubagentProvider) -> Option<Meaning> {
    let revision = provider.status.as_ref()?.revision.as_deref().unwrap_or_default();
    last(provider, revision).map(|last| meaning(&provider.spec, last))
}

/// An attempt that is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// Its number.
    pub attempt: i32,
    /// Not before.
    pub at: Timestamp,
}

/// The next attempt for a spec whose last finished one came to this; none when there is nothing more to be learnt.
pub fn due(spec: &SubagentProviderSpec, last: Option<&Probed>) -> Option<Due> {
    if spec.probe == Probe::Never {
        return None;
    }
    let Some(last) = last else { return Some(Due { attempt: 1, at: Timestamp::MIN }) };
    match meaning(spec, last) {
        Meaning::Answers | Meaning::Untold => None,
        Meaning::Fault | Meaning::Lost => {
            let at = last.finished_at.0.checked_add(wait(last.attempt)).unwrap_or(Timestamp::MAX);
            Some(Due { attempt: last.attempt.saturating_add(1), at })
        }
    }
}

/// How long after that failed attempt the next one is made.
pub fn wait(attempt: i32) -> Duration {
    let doubled = u32::try_from(attempt - 1).unwrap_or_default().min(16);
    (FIRST_WAIT * 2_u32.pow(doubled)).min(LONGEST_WAIT)
}

/// Name of the pod of an attempt.
pub fn pod_name(provider: &str, uid: &str, revision: &str, attempt: i32) -> String {
    naming::derived(provider, &format!("{uid}/{revision}"), &format!("probe-{attempt}"))
}

/// How long a probe may take, in seconds: as long as a run may take to start.
pub fn deadline_seconds(spec: &SubagentProviderSpec) -> i64 {
    spec.run_defaults.start_deadline_seconds.unwrap_or(START_DEADLINE_SECONDS)
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The agent answered, and said this of itself.
    Agent(Agent),
    /// It did not.
    Failed {
        /// As a run's.
        reason: Reason,
        /// What was seen, for a person.
        seen: String,
    },
}

/// Where an attempt's pod stands.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// It goes on, at most until then.
    UnderWay {
        /// What keeps it from starting.
        problem: Option<StartProblem>,
        /// Looked at again then, if nothing is heard of it.
        until: Timestamp,
    },
    /// Somebody took it away before anything was learnt. When it is gone, there will be another.
    Going {
        /// What keeps it, once it should have gone.
        kept: Option<String>,
        /// Looked at again then, if nothing is heard of it.
        until: Timestamp,
    },
    /// It came to this.
    Over(Outcome),
}

/// Reads the pod of an attempt.
pub fn read(pod: &Pod, spec: &SubagentProviderSpec, now: Timestamp) -> Seen {
    let observed = observe(pod, Node::Present, false);
    let finding = standing::last_words(pod).and_then(Finding::decode);
    if let Some(Finding::Agent(agent)) = finding {
        return Seen::Over(Outcome::Agent(Agent {
            name: agent.name,
            version: agent.version,
            protocol_version: agent.protocol_version,
            capabilities: agent.capabilities,
        }));
    }
    if observed.deleting {
        return leaving(pod, observed.proof.is_some(), until(pod, spec), now);
    }
    if let Some(ended) = observed.ended {
        let (reason, seen) = why(pod, spec, ended, finding);
        return Seen::Over(Outcome::Failed { reason, seen });
    }
    let failed = |problem: StartProblem| Seen::Over(Outcome::Failed { reason: problem.reason, seen: problem.message });
    if let Some(problem) = observed.problem.clone().filter(|problem| problem.is_final) {
        return failed(problem);
    }
    let until = until(pod, spec);
    match observed.problem {
        problem if now < until => Seen::UnderWay { problem, until },
        Some(problem) => failed(problem),
        None => Seen::Over(Outcome::Failed { reason: Reason::StartDeadlineExceeded, seen: too_late(pod, spec) }),
    }
}

/// A pod that was taken away and may stay for ever: somebody's finalizer holds it, or its node does not say that it
/// stopped. The attempt ends without it once nothing of it runs, or its time is over.
fn leaving(pod: &Pod, has_stopped: bool, until: Timestamp, now: Timestamp) -> Seen {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let finalizers = pod.metadata.finalizers.as_deref().unwrap_or_default();
    let kept = || match (finalizers, pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref())) {
        ([], node) => format!(
            "pod {name} was deleted, and node {} has not said that it stopped; bring the node back, or, once the node is \
             known to be dead, delete it: kubectl delete node {0}",
            node.unwrap_or_default()
        ),
        (held, _) => format!(
            "pod {name} was deleted and is kept by finalizer {}; let its owner take that off, or remove it with kubectl \
             edit pod {name}",
            held.join(", ")
        ),
    };
    let is_held = has_stopped && !finalizers.is_empty();
    if is_held || now >= until {
        return Seen::Over(Outcome::Failed { reason: Reason::PodDeleted, seen: kept() });
    }
    // The API server adds the grace to it.
    let gone = pod.metadata.deletion_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0);
    let overdue = gone.checked_add(LEAVING).unwrap_or(Timestamp::MAX);
    if now < overdue {
        return Seen::Going { kept: None, until: overdue.min(until) };
    }
    Seen::Going { kept: Some(kept()), until }
}

/// Why a pod that ended without an agent's answer did so.
fn why(pod: &Pod, spec: &SubagentProviderSpec, ended: observe::Ended, finding: Option<Finding>) -> (Reason, String) {
    let is_late = pod.status.as_ref().and_then(|status| status.reason.as_deref()) == Some("DeadlineExceeded");
    match finding {
        Some(Finding::Failure { reason, diagnostic }) => {
            let said = Reason::parse(&reason).filter(|reason| reason.facts().phase == Phase::Failed);
            match said {
                // The worker got SIGTERM and knows no more than where it was.
                Some(Reason::PodDeleted) if is_late => (
                    Reason::StartDeadlineExceeded,
                    format!("the agent did not answer within {} s: {diagnostic}", deadline_seconds(spec)),
                ),
                Some(Reason::PodDeleted) if ended.reason == Reason::Evicted => (ended.reason, ended.message),
                Some(reason) => (reason, diagnostic),
                None => (Reason::AgentProtocolError, "the probe's finding has a reason that no run could have".into()),
            }
        }
        _ if is_late => match observe::problem(pod) {
            Some(problem) => (problem.reason, problem.message),
            None => (Reason::StartDeadlineExceeded, too_late(pod, spec)),
        },
        _ => (ended.reason, ended.message),
    }
}

fn too_late(pod: &Pod, spec: &SubagentProviderSpec) -> String {
    let standing = if is_running(pod) { "its agent has not answered".into() } else { standing::standing(pod) };
    format!("the probe was not done within {} s: {standing}", deadline_seconds(spec))
}

fn is_running(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
}

fn until(pod: &Pod, spec: &SubagentProviderSpec) -> Timestamp {
    let created = pod.metadata.creation_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0);
    let deadline = Duration::from_secs(deadline_seconds(spec).unsigned_abs());
    let patience = if is_running(pod) { PATIENCE } else { Duration::ZERO };
    created.checked_add(deadline + patience).unwrap_or(Timestamp::MAX)
}

/// What is stored of a finished attempt.
pub fn record(spec: &SubagentProviderSpec, revision: &str, attempt: i32, outcome: &Outcome, now: Timestamp) -> Probed {
    let (reason, message) = match outcome {
        Outcome::Agent(_) => (None, None),
        Outcome::Failed { reason, seen } => {
            let hint = if refers_to_parameters(&spec.template) {
                " A probe has none of a run's parameters, which spec.template refers to."
            } else {
                ""
            };
            let message = format!("{}{hint}", sentence(*reason, seen));
            (Some(reason.as_str().to_owned()), Some(conditions::cut(&message, bounds::MESSAGE)))
        }
    };
    Probed { revision: revision.to_owned(), attempt, finished_at: Time(now), reason, message }
}

/// What was seen and what to do, where the words for a run speak of what a probe has not.
fn sentence(reason: Reason, seen: &str) -> String {
    let seen = seen.trim_end().trim_end_matches('.');
    match reason {
        // It holds its remedy.
        Reason::PodDeleted => format!("{seen}."),
        // No prompt.
        Reason::AgentStartFailed => format!(
            "{seen}. Correct what the message names: command, args or workingDir of container agent in spec.template."
        ),
        _ => reason.with_remedy(seen),
    }
}

#[cfg(test)]
#[path = "probe_tests.rs"]
pub(in crate::provider) mod tests;
