//! Leader election on a `coordination.k8s.io` Lease.
//!
//! Every write is a `replace` guarded by resourceVersion, so two candidates never both win. A lease of another holder is
//! expired by *locally observed* time since its record last changed: clocks of two nodes are never compared. A leader
//! that could not renew in time, or sees another holder, has lost; the caller then ends the process, because work in
//! flight cannot be called back. What a paused ex-leader still writes is stopped by resourceVersion and the CEL rules.

mod decision;

use decision::{Action, Observation, Record, decide};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long a lease holds without a renewal. Followers wait at least this long after the last change they saw.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// How long a leader tries to renew before it gives up. Shorter than the lease, so that it stops before a follower starts.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// How often a leader renews.
pub const RENEW_EVERY: Duration = Duration::from_secs(2);
/// How often a follower looks: a released lease is taken within a second, so that a rolling update has no longer gap
/// (pitfall C5).
pub const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest single call: the client itself has no read timeout, and two calls must fit into the renew deadline.
const CALL_TIMEOUT: Duration = Duration::from_secs(4);

/// A candidate for leadership.
#[derive(Clone, Debug)]
pub struct LeaderElection {
    api: LeaseApi,
}

impl LeaderElection {
    /// `identity` must be unique among all processes that ever compete: the pod's name.
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str) -> Self {
        Self {
            api: LeaseApi {
                leases: Api::namespaced(client, namespace),
                name: name.to_owned(),
                identity: identity.to_owned(),
            },
        }
    }

    /// Waits until this process leads; `None` when `shutdown` came first. Failing calls are logged and tried again:
    /// without an API server there is nothing to lead.
    pub async fn acquire(self, shutdown: &CancellationToken) -> Option<Leadership> {
        shutdown.run_until_cancelled(self.compete()).await
    }

    async fn compete(self) -> Leadership {
        let mut observation: Option<Observation> = None;
        let mut announced_holder = None;
        loop {
            match self.api.get().await {
                Ok(lease) => {
                    let record = lease.as_ref().map(Record::of);
                    observation = Observation::update(observation, record, Instant::now());
                    let holder = observation.as_ref().map(|seen| seen.record.holder.clone());
                    if announced_holder != holder {
                        tracing::info!(lease = self.api.name, holder = holder.as_deref(), "lease seen");
                        announced_holder = holder;
                    }
                    match decide(Instant::now(), &self.api.identity, observation.as_ref()) {
                        Action::Wait => {}
                        action => {
                            let started = Instant::now();
                            match self.api.take(lease, action).await {
                                Ok(lease) => return Leadership::start(self.api, lease, started),
                                Err(error) => tracing::info!(%error, "lease not taken"),
                            }
                        }
                    }
                }
                Err(error) => tracing::warn!(%error, "lease cannot be read"),
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// Held leadership. A task renews it.
#[derive(Debug)]
pub struct Leadership {
    lost: CancellationToken,
    stop: CancellationToken,
    renewing: tokio::task::JoinHandle<Option<Lease>>,
    api: LeaseApi,
}

impl Leadership {
    fn start(api: LeaseApi, lease: Lease, renewed: Instant) -> Self {
        tracing::info!(lease = api.name, identity = api.identity, "leading");
        let (lost, stop) = (CancellationToken::new(), CancellationToken::new());
        // A panic in the task counts as lost, too.
        let guard = lost.clone().drop_guard();
        let renewing = tokio::spawn(renew(api.clone(), lease, renewed, stop.clone(), guard));
        Self { lost, stop, renewing, api }
    }

    /// Ends when leadership is lost. The process must end then: another replica leads.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }

    /// The same as a token, to stop what only a leader may do.
    pub fn lost_token(&self) -> CancellationToken {
        self.lost.clone()
    }

    /// Gives the lease back, so that the next leader need not wait for its expiry. Call it after everything that only a
    /// leader does has ended. A failure is logged: the lease expires by itself.
    pub async fn release(self) {
        self.stop.cancel();
        match self.renewing.await {
            Ok(Some(lease)) => match self.api.release(lease).await {
                Ok(()) => tracing::info!(lease = self.api.name, "lease released"),
                Err(error) => tracing::warn!(%error, "lease not released; it expires"),
            },
            Ok(None) => tracing::info!("nothing to release: leadership was lost"),
            Err(error) => tracing::error!(%error, "lease renewal ended"),
        }
    }
}

/// Renews until stopped (returns the lease as last stored) or lost (returns none). `lost` fires when it is dropped
/// undisarmed.
async fn renew(
    api: LeaseApi,
    mut lease: Lease,
    mut renewed: Instant,
    stop: CancellationToken,
    lost: tokio_util::sync::DropGuard,
) -> Option<Lease> {
    // After a call with an unknown end the stored lease may be newer than ours: it is read again first.
    let mut stale = false;
    loop {
        if stop.run_until_cancelled(tokio::time::sleep(RENEW_EVERY)).await.is_none() {
            lost.disarm();
            return Some(lease);
        }
        let started = Instant::now();
        let step = tokio::time::timeout_at(renewed + RENEW_DEADLINE, api.renew(&lease, stale));
        match step.await {
            Ok(Ok(stored)) => {
                lease = stored;
                renewed = started;
                stale = false;
            }
            Ok(Err(LeaseError::Lost(holder))) => {
                tracing::error!(holder, "leadership lost: the lease has another holder");
                return None;
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "lease not renewed");
                stale = true;
            }
            Err(_) => {
                tracing::error!(seconds = RENEW_DEADLINE.as_secs(), "leadership lost: no renewal within the deadline");
                return None;
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum LeaseError {
    #[error("the API server did not answer within {} s", CALL_TIMEOUT.as_secs())]
    Timeout,
    #[error("the lease is held by {0:?}")]
    Lost(String),
    #[error(transparent)]
    Kube(#[from] kube::Error),
}

#[derive(Clone, Debug)]
struct LeaseApi {
    leases: Api<Lease>,
    name: String,
    identity: String,
}

impl LeaseApi {
    async fn get(&self) -> Result<Option<Lease>, LeaseError> {
        timely(self.leases.get_opt(&self.name)).await
    }

    async fn take(&self, seen: Option<Lease>, action: Action) -> Result<Lease, LeaseError> {
        let now = MicroTime(Timestamp::now());
        let mut lease = seen.unwrap_or_default();
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        let transitions = spec.lease_transitions.unwrap_or(0);
        spec.lease_transitions =
            Some(if action == Action::TakeOver { transitions.saturating_add(1) } else { transitions });
        spec.holder_identity = Some(self.identity.clone());
        spec.lease_duration_seconds = Some(LEASE_DURATION.as_secs() as i32);
        spec.acquire_time = Some(now.clone());
        spec.renew_time = Some(now);
        let params = PostParams::default();
        if action == Action::Create {
            lease.metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            timely(self.leases.create(&params, &lease)).await
        } else {
            timely(self.leases.replace(&self.name, &params, &lease)).await
        }
    }

    async fn renew(&self, lease: &Lease, stale: bool) -> Result<Lease, LeaseError> {
        let known = if stale { self.still_ours().await? } else { lease.clone() };
        match self.replace_renewed(known).await {
            // Somebody wrote since: lost, unless it was a label or our own write whose answer did not arrive.
            Err(LeaseError::Kube(kube::Error::Api(status))) if status.is_conflict() => {
                let live = self.still_ours().await?;
                self.replace_renewed(live).await
            }
            other => other,
        }
    }

    async fn replace_renewed(&self, mut lease: Lease) -> Result<Lease, LeaseError> {
        if let Some(spec) = lease.spec.as_mut() {
            spec.renew_time = Some(MicroTime(Timestamp::now()));
        }
        timely(self.leases.replace(&self.name, &PostParams::default(), &lease)).await
    }

    async fn still_ours(&self) -> Result<Lease, LeaseError> {
        let lease = self.get().await?.ok_or_else(|| LeaseError::Lost(String::new()))?;
        let holder = Record::of(&lease).holder;
        if holder == self.identity { Ok(lease) } else { Err(LeaseError::Lost(holder)) }
    }

    async fn release(&self, mut lease: Lease) -> Result<(), LeaseError> {
        if let Some(spec) = lease.spec.as_mut() {
            spec.holder_identity = None;
            spec.lease_duration_seconds = Some(1);
        }
        timely(self.leases.replace(&self.name, &PostParams::default(), &lease)).await.map(|_| ())
    }
}

async fn timely<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, LeaseError> {
    match tokio::time::timeout(CALL_TIMEOUT, call).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(LeaseError::Timeout),
    }
}
