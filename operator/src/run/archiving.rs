//! The transcript of a run whose worker could not send one: the end of its pod's log, stored before the phase becomes
//! terminal (pitfall T9). What to do is decided purely; [`archive_log`] does it, and never holds the end up.

use super::{
    events::{self, Note},
    plan::{Step, World, current_report},
};
use crate::{
    archive::{ArchiveError, Owner, log, transcript},
    context::Context,
};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::time::Duration;
use subagent_crds::{
    SubagentRun, SubagentRunStatus, names,
    report::{Transcript, TranscriptSource},
};

/// Longest time for reading and storing together: the end of the run waits for it, and a transcript is worth less than
/// that. The log alone may take half of it.
const ARCHIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// The log of the current attempt's pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Log {
    /// Nobody has looked.
    #[default]
    Unread,
    /// It was looked for; what there is of it is stored.
    Read(Option<Transcript>),
}

/// Puts the log before the end: a step that would make the phase terminal waits until the log was read, and takes it
/// along. Pure.
pub fn before_end(world: &World, step: Step) -> Step {
    let Step::Status(mut new) = step else { return step };
    let old = world.run.status.clone().unwrap_or_default();
    let is_terminal = |status: &SubagentRunStatus| status.phase.is_some_and(|phase| phase.is_terminal());
    if !is_terminal(&new) || is_terminal(&old) || !lacks_transcript(world, &old) {
        return Step::Status(new);
    }
    match &world.log {
        Log::Unread => Step::ArchiveLog,
        Log::Read(transcript) => {
            new.transcript = transcript.clone().or(new.transcript);
            Step::Status(new)
        }
    }
}

/// True when the worker sent none and never will, there is a log, and somebody may still read it.
fn lacks_transcript(world: &World, status: &SubagentRunStatus) -> bool {
    let Some(pod) = &world.pod else { return false };
    let is_current = status.pod_uid.is_some() && status.pod_uid == pod.metadata.uid;
    let has_one = status.transcript.as_ref().map(|transcript| &transcript.pod_uid) == status.pod_uid.as_ref();
    let said_its_end = current_report(status).is_some_and(|report| report.final_.is_some());
    is_current && !has_one && !said_its_end && has_run(pod) && world.run.metadata.deletion_timestamp.is_none()
}

fn has_run(pod: &Pod) -> bool {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let agent = statuses.into_iter().find(|container| container.name == names::AGENT_CONTAINER);
    agent.and_then(|container| container.state.as_ref()).is_some_and(|state| {
        let ended = state.terminated.as_ref();
        state.running.is_some() || ended.is_some_and(|ended| ended.started_at.is_some())
    })
}

/// True for a transcript that the controller stored. The gateway stores one with the worker's last word alone, so without
/// that word it is ours, and every later write of ours must hold it: an apply that leaves out a field of its manager
/// gives it up.
pub fn is_ours(status: &SubagentRunStatus) -> bool {
    status.transcript.is_some() && current_report(status).is_none_or(|report| report.final_.is_none())
}

/// Reads the log and stores its end. A failure is told in an Event, and nothing else comes of it.
pub async fn archive_log(context: &Context, run: &SubagentRun, pod: &Pod) -> Option<Transcript> {
    let (archived, trouble) = match tokio::time::timeout(ARCHIVE_TIMEOUT, archive(context, run, pod)).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => (None, Some(error.to_string())),
        Err(_) => (None, Some("the log of the pod could not be stored in time".to_owned())),
    };
    if let Some(text) = trouble {
        context.metrics.transcripts_unarchived.inc();
        let text = format!("the transcript of pod {} is lost with it: {text}", pod.name_any());
        events::tell(context, run, Note { warning: true, reason: "TranscriptNotArchived", text, for_parent: false })
            .await;
    }
    archived
}

/// A log that was not archived.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Log(#[from] log::LogError),
    #[error(transparent)]
    Archive(#[from] ArchiveError),
}

/// The transcript, and what a person should know.
async fn archive(
    context: &Context,
    run: &SubagentRun,
    pod: &Pod,
) -> Result<(Option<Transcript>, Option<String>), Error> {
    let owner = Owner {
        namespace: run.namespace().unwrap_or_default(),
        run_name: run.name_any(),
        run_uid: run.uid().unwrap_or_default(),
        attempt: run.status.as_ref().and_then(|status| status.attempt).unwrap_or(1),
        pod_uid: pod.uid().unwrap_or_default(),
    };
    // From a predecessor of this process, or from a gateway that died before it wrote the status.
    if let Some(stored) = transcript::stored(&context.client, &owner).await.map_err(ArchiveError::from)? {
        return Ok((Some(stored), None));
    }
    let Some(tail) = log::tail(&context.client, &owner.namespace, &pod.name_any()).await? else {
        return Ok((None, None));
    };
    let (manager, source) = (names::CONTROLLER_MANAGER, TranscriptSource::Log);
    let archived = transcript::archive(&context.client, &owner, manager, &tail, source).await?;
    match archived.unarchived {
        None => {
            context.metrics.wrote("run", "configmap");
            Ok((Some(archived.transcript), None))
        }
        // In a namespace that goes away nobody reads it.
        Some(unstored) => Ok((None, unstored.fault().map(str::to_owned))),
    }
}
