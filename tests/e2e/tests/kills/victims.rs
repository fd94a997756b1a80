//! Who is killed, and how.

use crate::dice::Dice;
use e2e_tests::{
    RunView, cluster,
    operator::{delete_by_force, leader},
    processes::{self, Paused, signal},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt};
use std::time::Duration;
use subagent_crds::SubagentRun;

/// A way to do harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kill {
    /// SIGKILL to process 1 of a worker pod.
    Worker,
    /// SIGTERM to it.
    WorkerTerm,
    /// SIGKILL to the agent.
    Agent,
    /// The worker's connection is cut.
    Link,
    /// SIGKILL to the operator that leads.
    Leader,
    /// The pod of the operator that leads is deleted by force.
    LeaderPod,
    /// The operator that leads is held: a few seconds, or longer than its lease.
    LeaderPaused,
    /// SIGKILL to another replica: a gateway only.
    Gateway,
    /// Its pod is deleted by force.
    GatewayPod,
    /// It is held for some seconds.
    GatewayPaused,
}

/// All of them; what is cheap and has many moments to meet comes more often.
const ALL: &[Kill] = &[
    Kill::Worker,
    Kill::Worker,
    Kill::Worker,
    Kill::WorkerTerm,
    Kill::WorkerTerm,
    Kill::Agent,
    Kill::Agent,
    Kill::Link,
    Kill::Link,
    Kill::Link,
    Kill::Link,
    Kill::Leader,
    Kill::LeaderPod,
    Kill::LeaderPaused,
    Kill::Gateway,
    Kill::GatewayPod,
    Kill::GatewayPaused,
];

impl Kill {
    /// One of them by the dice.
    pub fn roll(dice: &mut Dice) -> Self {
        *dice.one_of(ALL).unwrap_or(&Self::Worker)
    }

    /// Whether it hits one run's own processes, which may then fail.
    pub fn hits_a_run(self) -> bool {
        matches!(self, Self::Worker | Self::WorkerTerm | Self::Agent)
    }

    /// Does it to that run's pod; false when there was nothing to hit.
    pub fn hit_run(self, run: &SubagentRun) -> bool {
        let uid = run.seen().pod_uid.unwrap_or_default();
        match self {
            Self::Worker => processes::worker(&uid).is_some_and(|process| signal(process, "KILL")),
            Self::WorkerTerm => processes::worker(&uid).is_some_and(|process| signal(process, "TERM")),
            Self::Agent => processes::agent(&uid).is_some_and(|process| signal(process, "KILL")),
            Self::Link => processes::worker(&uid).is_some_and(|process| processes::cut_links(process) > 0),
            _ => false,
        }
    }

    /// Does it to a replica of the operator; false when there was nothing to hit. Paused ones go on in the background.
    pub async fn hit_operator(self, client: &Client, dice: &mut Dice) -> bool {
        let leads = leader(client).await;
        let pods = cluster::operator_pods(client).await;
        let is_leader = |pod: &&Pod| leads.as_ref().is_some_and(|leads| leads.uid() == pod.uid());
        let wants_leader = matches!(self, Self::Leader | Self::LeaderPod | Self::LeaderPaused);
        let Some(pod) = pods.iter().find(|pod| is_leader(pod) == wants_leader) else { return false };
        let process = processes::operator(&pod.uid().unwrap_or_default());
        match self {
            Self::LeaderPod | Self::GatewayPod => delete_by_force(&pod.name_any()),
            // The kubelet waits longer and longer before it starts a container again: the second time the pod goes.
            Self::Leader | Self::Gateway if restarts(pod) > 0 => delete_by_force(&pod.name_any()),
            Self::Leader | Self::Gateway => return process.is_some_and(|process| signal(process, "KILL")),
            _ => {
                let Some(process) = process else { return false };
                // One pause in three is longer than the lease of 15 s.
                let seconds = if dice.below(3) == 0 { 18 } else { 2 + dice.below(4) };
                let paused = Paused::process(process, 60);
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    drop(paused);
                });
            }
        }
        true
    }
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.into_iter().flatten().map(|status| status.restart_count).sum()
}
