//! What is left to do when the phase is terminal: the stop is proven, pod and run are released, and go in their time. Pure.

use super::{
    plan::{Step, World, owned_by, pod_is_deleting, released, soonest},
    status::{self, Stopped},
    validate,
};
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;
use subagent_crds::{SubagentRun, SubagentRunStatus, conditions, names};

/// How long a terminal run's worker may take to exit by itself before its pod is deleted.
const EXIT_MARGIN: Duration = Duration::from_secs(60);
/// How often a proof that is overdue is looked for: nothing tells that a node has gone, or how a pod ended whose labels
/// somebody removed.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// The phase is terminal: prove the stop, release, clean up.
pub fn after_end(world: &World, old: &SubagentRunStatus, now: Timestamp) -> Step {
    let run = &world.run;
    let deleting = run.metadata.deletion_timestamp.is_some();
    let ours = world.pod.as_ref().filter(|pod| owned_by(pod, run));
    let finished = old.finished_at.as_ref().map_or(now, |time| time.0);
    if !conditions::is_true(&old.conditions, conditions::STOPPED) {
        let observed = ours.map(|pod| crate::pod::observe::observe(pod, world.node, released(run, pod)));
        let proof = match &observed {
            None if old.pod_uid.is_none() => Some(Stopped::without_pod(old)),
            None => Some(Stopped::ObjectGone),
            Some(observed) => observed.proof.map(Stopped::Proof),
        };
        if let Some(proof) = proof {
            return Step::Status(Box::new(status::stopped(run, old.clone(), proof, now)));
        }
        let sidecar_lives = observed.as_ref().is_some_and(|observed| observed.sidecar_lives);
        let overdue = finished + world.graces + EXIT_MARGIN;
        if !pod_is_deleting(world) && (deleting || sidecar_lives || now >= overdue) {
            return Step::DeletePod;
        }
        return soonest([Some(overdue).filter(|at| *at > now).or(Some(now + LOOK_AGAIN))], now);
    }
    if let Some(pod) = ours {
        // A pod that a paused predecessor of this process created too late: its worker is refused, it proves nothing yet.
        let is_late = pod.metadata.uid != old.pod_uid;
        if is_late && pod.metadata.deletion_timestamp.is_none() {
            return Step::DeletePod;
        }
        let ended = crate::pod::observe::observe(pod, world.node, released(run, pod)).proof.is_some();
        if is_late && !ended {
            return Step::Wait(None);
        }
        if pod.metadata.finalizers.iter().flatten().any(|name| name == names::POD_FINALIZER) {
            return Step::ReleasePod;
        }
        let kept_until = finished + world.pod_ttl;
        if pod.metadata.deletion_timestamp.is_none() && (deleting || now >= kept_until) {
            return Step::DeletePod;
        }
        if !deleting && !is_outlived(run, now) {
            return soonest([Some(kept_until).filter(|at| *at > now), ttl(run)], now);
        }
    }
    if deleting {
        return Step::ReleaseRun;
    }
    match ttl(run) {
        Some(at) if now >= at => Step::DeleteRun,
        at => soonest([at], now),
    }
}

/// Whether the run is over and its time to live as well.
pub fn is_outlived(run: &SubagentRun, now: Timestamp) -> bool {
    ttl(run).is_some_and(|at| now >= at)
}

/// When the run's time to live is over. An activation has none: its child prunes them.
fn ttl(run: &SubagentRun) -> Option<Timestamp> {
    let status = run.status.as_ref().filter(|_| run.spec.activation.is_none())?;
    let seconds =
        status.effective.as_ref().map_or(validate::TTL_SECONDS, |effective| effective.ttl_seconds_after_finished);
    let finished = status.finished_at.as_ref()?.0;
    Some(finished + Duration::from_secs(seconds.unsigned_abs()))
}
