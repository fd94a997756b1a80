//! Reads and writes of a probe: its pods, found by their labels and matched by UID.

use super::{
    probe::{self, Due, Meaning, Outcome, Seen},
    validate::Problem,
};
use crate::{
    api::{self, ReadError, WriteError},
    context::Context,
    pod::{self, observe},
    run::apply::{Refused, create, refused},
};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Preconditions},
};
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};
use subagent_crds::{Reason, SubagentProvider, names, provider::Probed, report::Agent};

/// A look without an event while a probe is under way: a pod that went while no watch was there tells nobody.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// How soon a pod that found no room, or whose name is taken, is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(10);
/// A pod that is gone is made again, but not sooner than this after the last time: whoever takes it away may do so each
/// time.
const PAUSE: Duration = Duration::from_secs(5);

/// What is known of a provider's probe, and what comes next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Look {
    /// The last finished attempt of the current revision.
    pub probed: Option<Probed>,
    /// What its agent said of itself.
    pub agent: Option<Agent>,
    /// Why the attempt that is under way has not begun: a stable word, and what was seen.
    pub trouble: Option<(&'static str, String)>,
    /// The pod that stays.
    pub pod: Option<String>,
    /// When to look again without an event.
    pub again: Option<Timestamp>,
}

/// When this process made which pod last. Nothing depends on it but how often one is made again.
#[derive(Debug, Default)]
pub struct Recent(Mutex<HashMap<(String, String), Instant>>);

impl Recent {
    /// True when the pod may be made now.
    fn allows(&self, namespace: &str, pod: &str) -> bool {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        made.retain(|_, at| at.elapsed() < PAUSE);
        !made.contains_key(&(namespace.to_owned(), pod.to_owned()))
    }

    fn made(&self, namespace: &str, pod: &str) {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        made.insert((namespace.to_owned(), pod.to_owned()), Instant::now());
    }
}

/// All pods of a provider's probes, live.
///
/// # Errors
/// When the list does not come.
pub async fn pods(context: &Context, provider: &SubagentProvider) -> Result<Vec<Pod>, ReadError> {
    let (namespace, uid) = (provider.namespace().unwrap_or_default(), provider.uid().unwrap_or_default());
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    let labels = format!("{},{}={uid}", names::PROBE_LABEL, names::PROVIDER_UID_LABEL);
    api::list(&pods, ListParams::default().labels(&labels), "probes", |pod| is_ours(&pod, &uid).then_some(pod)).await
}

/// Ownership is matched by UID: labels alone could be anybody's.
fn is_ours(pod: &Pod, provider_uid: &str) -> bool {
    pod.labels().contains_key(names::PROBE_LABEL)
        && pod.owner_references().iter().any(|owner| owner.uid == provider_uid && owner.controller == Some(true))
}

/// Looks at the probe of a revision that was accepted, and begins the attempt that is due.
///
/// # Errors
/// When a call fails. The inner [`Problem`] is that the API server refuses the pod after all.
pub async fn look(
    context: &Context,
    recent: &Recent,
    provider: &SubagentProvider,
    revision: &str,
    pods: &[Pod],
    now: Timestamp,
) -> Result<Result<Look, Problem>, WriteError> {
    let spec = &provider.spec;
    let mut look = known(provider, revision);
    let Some(Due { attempt, at }) = probe::due(spec, look.probed.as_ref()) else {
        look.pod = kept(provider, pods, look.probed.as_ref());
        return Ok(Ok(look));
    };
    if now < at {
        look.pod = kept(provider, pods, look.probed.as_ref());
        look.again = Some(at);
        return Ok(Ok(look));
    }
    let name = name_of(provider, revision, attempt);
    let Some(pod) = pods.iter().find(|pod| pod.name_any() == name) else {
        return begin(context, recent, provider, revision, attempt, look, now).await;
    };
    match probe::read(pod, spec, now) {
        Seen::UnderWay { problem, until } => {
            look.trouble = problem.map(|problem| (problem.reason.as_str(), problem.message));
            look.again = Some(until.min(now + LOOK_AGAIN));
            look.pod = Some(name);
        }
        Seen::Going { kept, until } => {
            look.trouble = kept.map(|kept| (Reason::PodDeleted.as_str(), kept));
            look.again = Some(until.min(now + LOOK_AGAIN));
            look.pod = Some(name);
        }
        Seen::Over(outcome) => {
            let probed = probe::record(spec, revision, attempt, &outcome, now);
            look.again = probe::due(spec, Some(&probed)).map(|due| due.at);
            look.pod = kept(provider, pods, Some(&probed));
            look.probed = Some(probed);
            look.agent = match outcome {
                Outcome::Agent(agent) => Some(agent),
                Outcome::Failed { .. } => None,
            };
        }
    }
    Ok(Ok(look))
}

/// What is stored about this revision.
fn known(provider: &SubagentProvider, revision: &str) -> Look {
    let probed = probe::last(provider, revision).cloned();
    let answers = probed.as_ref().is_some_and(|probed| probe::meaning(&provider.spec, probed) == Meaning::Answers);
    let agent = provider.status.as_ref().and_then(|status| status.agent.clone()).filter(|_| answers);
    Look { probed, agent, ..Look::default() }
}

fn name_of(provider: &SubagentProvider, revision: &str, attempt: i32) -> String {
    probe::pod_name(&provider.name_any(), &provider.uid().unwrap_or_default(), revision, attempt)
}

/// The pod of a failed attempt stays for `kubectl logs` until the next one, when nothing of it runs.
fn kept(provider: &SubagentProvider, pods: &[Pod], probed: Option<&Probed>) -> Option<String> {
    let failed = probed.filter(|probed| probed.reason.is_some())?;
    let name = name_of(provider, &failed.revision, failed.attempt);
    let has_stopped = |pod: &Pod| observe::observe(pod, observe::Node::Present, false).proof.is_some();
    pods.iter().any(|pod| pod.name_any() == name && has_stopped(pod)).then_some(name)
}

async fn begin(
    context: &Context,
    recent: &Recent,
    provider: &SubagentProvider,
    revision: &str,
    attempt: i32,
    mut look: Look,
    now: Timestamp,
) -> Result<Result<Look, Problem>, WriteError> {
    let namespace = provider.namespace().unwrap_or_default();
    let (owner, uid) = (provider.name_any(), provider.uid().unwrap_or_default());
    let name = name_of(provider, revision, attempt);
    look.pod = Some(name.clone());
    if !recent.allows(&namespace, &name) {
        look.again = Some(now + PAUSE);
        return Ok(Ok(look));
    }
    let body = pod::build_probe(
        &provider.spec,
        &pod::Probe {
            namespace: &namespace,
            provider: &owner,
            provider_uid: &uid,
            pod: &name,
            attempt,
            deadline_seconds: probe::deadline_seconds(&provider.spec),
            worker_image: &context.settings.worker_image,
        },
    );
    recent.made(&namespace, &name);
    look.again = Some(now + TRY_AGAIN);
    match create(context, &namespace, body).await {
        Ok(_) => {
            context.metrics.wrote("provider", "pod");
            look.again = Some(now + LOOK_AGAIN);
        }
        // It was not in the list: it came just now, or it is somebody else's.
        Err(WriteError::Refused { status, .. }) if status.reason == "AlreadyExists" => {
            let seen = format!("pod {name} exists and is not the operator's; delete it");
            look.trouble = Some((Reason::PodRejected.as_str(), seen));
        }
        Err(WriteError::Refused { status, .. }) => match refused(&status) {
            Refused::Quota => look.trouble = Some((Reason::QuotaExceeded.as_str(), status.message)),
            Refused::Terminating => look.again = None,
            Refused::Final(reason) => return Ok(Err(Problem::refused(reason, &status.message))),
        },
        Err(error) => return Err(error),
    }
    Ok(Ok(look))
}

/// Deletes every pod but the one that stays: of older revisions and attempts, and those that were read.
///
/// # Errors
/// When a call fails.
pub async fn remove(
    context: &Context,
    provider: &SubagentProvider,
    pods: &[Pod],
    stays: Option<&str>,
) -> Result<(), WriteError> {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &provider.namespace().unwrap_or_default());
    let leave = pods.iter().filter(|pod| stays != Some(pod.name_any().as_str()));
    for pod in leave.filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
        let name = pod.name_any();
        let preconditions = Preconditions { uid: pod.uid(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match api::write(format!("deleting probe {name}"), api.delete(&name, &params)).await {
            Ok(_) | Err(WriteError::Gone(_) | WriteError::Conflict(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
