//! From a hello to a decision, by live reads: no cache stands between a worker and the fence.

use super::{
    Gateway, assignment,
    auth::{self, Identity},
    cancels,
    fence::{Claim, Refusal, judge, run_of},
    store::{Place, Stored},
};
use crate::{
    api::{self, ReadError},
    decoding::{Guarded, Undecodable},
    provider::revision,
};
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use std::time::Duration;
use subagent_crds::{SubagentProviderSpec, SubagentRun};
use subagent_link::{Assignment, RefusalReason};

/// Longest time for all reads of an admission together. Below the time after which a worker takes a silent gateway for
/// dead (30 s).
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(20);

/// A worker that is served.
#[derive(Debug)]
pub(super) struct Admitted {
    pub place: Place,
    pub stored: Stored,
    /// Why the run is to stop already, if it is.
    pub stop: Option<String>,
    /// For a worker without memory.
    pub assignment: Option<Box<Assignment>>,
    /// The child whose activation it is, which has an inbox and checkpoints.
    pub child: Option<Child>,
}

/// Which activation of which child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Child {
    /// UID of the Subagent.
    pub uid: String,
    pub epoch: i64,
}

impl Child {
    pub fn of(run: &SubagentRun) -> Option<Self> {
        let activation = run.spec.activation.as_ref()?;
        Some(Self { uid: activation.subagent_ref.uid.clone(), epoch: activation.epoch })
    }
}

impl Gateway {
    /// Decides over a hello.
    pub async fn admit(&self, token: String, run_uid: String, attempt: i32, seq: i64) -> Result<Admitted, Refusal> {
        let admission = async {
            let identity = auth::review(&self.client, token).await?;
            self.admit_pod(identity, run_uid, attempt, seq).await
        };
        tokio::time::timeout(ADMISSION_TIMEOUT, admission).await.unwrap_or_else(|_| {
            Err(Refusal::later(RefusalReason::Unavailable, "the API server did not answer in time"))
        })
    }

    async fn admit_pod(
        &self,
        identity: Identity,
        run_uid: String,
        attempt: i32,
        seq: i64,
    ) -> Result<Admitted, Refusal> {
        let (place, run) = self.place(identity, run_uid, attempt, seq).await?;
        let stop = cancels::stop_reason(&run);
        // A run that is to stop starts nothing (contract c9); a worker that remembers has its assignment.
        let assignment = if seq == 0 && stop.is_none() {
            Some(Box::new(self.assignment(&place.namespace, &run).await?))
        } else {
            None
        };
        let child = Child::of(&run);
        Ok(Admitted { place, stored: Stored::of(&run), stop, assignment, child })
    }

    /// Reads the run anew, for what its inbox holds.
    pub fn read_run(&self, place: &Place) -> BoxFuture<'static, Result<Option<SubagentRun>, Refusal>> {
        let runs: Api<SubagentRun> = Api::namespaced(self.client.clone(), &place.namespace);
        let name = place.run_name.clone();
        async move { api::get(&runs, &name).await.map_err(unavailable) }.boxed()
    }

    /// The same fence for a request beside the link. What is at stake is who speaks: a worker that lost its memory gets
    /// no assignment and has nothing to send.
    pub async fn fence(&self, token: String, run_uid: String, attempt: i32) -> Result<(Place, SubagentRun), Refusal> {
        let fence = async {
            let identity = auth::review(&self.client, token).await?;
            self.place(identity, run_uid, attempt, i64::MAX).await
        };
        tokio::time::timeout(ADMISSION_TIMEOUT, fence).await.unwrap_or_else(|_| {
            Err(Refusal::later(RefusalReason::Unavailable, "the API server did not answer in time"))
        })
    }

    /// The live run that the token's live pod works for, if the claim holds.
    async fn place(
        &self,
        identity: Identity,
        run_uid: String,
        attempt: i32,
        seq: i64,
    ) -> Result<(Place, SubagentRun), Refusal> {
        let namespace = identity.namespace.clone();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let pod = api::get(&pods, &identity.pod_name).await.map_err(unavailable)?;
        let run_name = run_of(pod.as_ref(), &identity)?;
        let runs: Api<Guarded<SubagentRun>> = Api::namespaced(self.client.clone(), &namespace);
        let run = match api::get(&runs, &run_name).await.map_err(unavailable)? {
            Some(run) => Some(run.0.map_err(|undecodable| unreadable(&namespace, &run_name, &undecodable))?),
            None => None,
        };
        let claim = Claim { pod_uid: identity.pod_uid, run_uid, attempt, seq };
        judge(&claim, run.as_ref())?;
        let Some(run) = run else { return Err(Refusal::later(RefusalReason::NotYet, "the run is not there")) };
        Ok((Place { namespace, run_name, claim }, run))
    }

    /// The assignment, from the run and its provider.
    async fn assignment(&self, namespace: &str, run: &SubagentRun) -> Result<Assignment, Refusal> {
        let provider = self.provider(namespace, run).await?;
        assignment::build(run, &provider, self.max_result_bytes)
            .map_err(|error| Refusal::last(RefusalReason::Invalid, error.to_string()))
    }

    /// The provider as it was when the run was accepted (contract c2).
    pub async fn provider(&self, namespace: &str, run: &SubagentRun) -> Result<SubagentProviderSpec, Refusal> {
        let descriptor = run.status.as_ref().and_then(|status| status.descriptor.as_ref());
        let Some(descriptor) = descriptor else {
            return Err(Refusal::later(RefusalReason::NotYet, "the run is not accepted yet"));
        };
        revision::read(&self.client, namespace, &descriptor.provider_revision).await.map_err(|error| {
            tracing::warn!(namespace, run = run.metadata.name, %error, "the provider's revision was not read");
            // What is gone or replaced stays so: the worker ends, and the controller says why the run did.
            if error.is_final() {
                Refusal::last(RefusalReason::Invalid, error.to_string())
            } else {
                Refusal::later(RefusalReason::Unavailable, "the provider's revision could not be read")
            }
        })
    }
}

/// Never for good: a run that another version of the operator has written, in the middle of an update, must not lose its
/// worker. It ends when the run is cancelled or deleted, with its pod.
fn unreadable(namespace: &str, run: &str, undecodable: &Undecodable) -> Refusal {
    let how = &undecodable.how;
    tracing::debug!(namespace, run, how, "hello not decided: the run does not decode");
    Refusal::later(RefusalReason::Unavailable, format!("run {run} does not decode; correct or delete it: {how}"))
}

fn unavailable(error: ReadError) -> Refusal {
    tracing::warn!(%error, "hello not decided");
    Refusal::later(RefusalReason::Unavailable, "the API server could not be asked")
}
