//! One operator process: which parts run, in what order they start, and that none of them may end alone.

use crate::{
    announcements::{Announcements, Announcing},
    context::Context,
    gateway::{self, GatewaySettings},
    http::{self, Health},
    lease::LeaderElection,
    metrics::Metrics,
    pki::{Distribution, Keeper, Pki, PkiSettings},
    provider, run,
    session_store::{self, Installation, Store},
    settings::Settings,
    subagent::{self, session::LastTry},
    watching::Scope,
};
use anyhow::{Context as _, bail};
use futures::future::join_all;
use kube::{
    Client,
    runtime::events::{Recorder, Reporter},
};
use std::{sync::Arc, time::Duration};
use subagent_crds::names;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// How long running reconciles may take to end after the signal. Within the pod's grace of 30 s, with room for the
/// release of the lease.
const DRAIN: Duration = Duration::from_secs(10);
/// Pause before an API server that did not answer at the start is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Runs the operator until `shutdown`.
///
/// # Errors
/// When a part cannot start, when one ends by itself, or when leadership is lost: the process must end then, and its
/// successor reads everything from the API server.
pub async fn run(client: Client, settings: Settings, shutdown: CancellationToken) -> anyhow::Result<()> {
    let settings = Arc::new(settings);
    let store = open_store(&client, &settings)?;
    let metrics = Arc::new(Metrics::new());
    let health = Health::new();
    let mut parts: JoinSet<(&'static str, anyhow::Result<()>)> = JoinSet::new();

    // Before anything that needs the API server: the kubelet must see that this process lives and waits.
    let gateway_ready = health.register("gateway");
    let serving = http::serve(settings.http_address, health, metrics.clone(), shutdown.clone());
    spawn(&mut parts, "health", async { serving.await.map_err(Into::into) });

    let pki_settings = PkiSettings {
        namespace: settings.pod_namespace.clone(),
        secret_name: settings.root_secret.clone(),
        names: settings.gateway_names(),
        timing: settings.certificate_timing(),
    };
    let (pki, keeper) = tokio::select! {
        started = certificates(&client, &pki_settings) => started?,
        ended = parts.join_next() => return Err(early(ended)),
        () = shutdown.cancelled() => return Ok(()),
    };
    spawn(&mut parts, "certificates", ok(keeper.run(shutdown.clone())));
    let listener = TcpListener::bind(settings.link_address).await.context("gateway address")?;
    let gateway_settings = GatewaySettings {
        namespaces: settings.namespaces(),
        max_result_bytes: settings.max_result_bytes,
        store: store.clone(),
    };
    let (gateway_client, gateway_pki, gateway_metrics) = (client.clone(), pki.clone(), metrics.clone());
    let gateway_shutdown = shutdown.clone();
    spawn(&mut parts, "gateway", async move {
        let ready = gateway_ready;
        gateway::serve(
            listener,
            gateway_settings,
            gateway_client,
            &gateway_pki,
            gateway_metrics,
            ready,
            gateway_shutdown,
        )
        .await
        .map_err(Into::into)
    });
    let (announcements, announcing) = Announcements::start();
    let context = Context {
        client: client.clone(),
        settings: settings.clone(),
        recorder: Recorder::new(
            client,
            Reporter { controller: names::REPORTER.into(), instance: Some(settings.pod_name.clone()) },
        ),
        announcements,
        metrics,
        store,
        store_tried: LastTry::default(),
        trimming: Arc::default(),
        roots: pki.roots(),
    };
    let scopes = Scope::of(&context.settings.namespaces());
    let distribution = Distribution::new(context.client.clone(), pki_settings, scopes, pki.roots());
    spawn(&mut parts, "controllers", lead(context, announcing, distribution, shutdown.clone()));

    let Some(first) = parts.join_next().await else { return Ok(()) };
    let (part, result) = first.context("a part of the operator panicked")?;
    if shutdown.is_cancelled() {
        result.with_context(|| part)?;
        while let Some(ended) = parts.join_next().await {
            let (part, result) = ended.context("a part of the operator panicked")?;
            result.with_context(|| part)?;
        }
        return Ok(());
    }
    shutdown.cancel();
    result.with_context(|| part)?;
    bail!("{part} ended by itself");
}

/// The session store that the settings name. Whether it can be used is only told here: runs that need none start without it.
fn open_store(client: &Client, settings: &Settings) -> anyhow::Result<Option<Arc<Store>>> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let Settings { session_store, session_store_config_map, pod_namespace, .. } = settings;
    let installation = Installation::new(client.clone(), pod_namespace, session_store_config_map);
    let store = Store::open(session_store, std::env::vars_os().filter_map(text))?;
    let store = store.map(|store| Arc::new(store.of(installation)));
    if let Some(store) = store.clone() {
        tokio::spawn(async move {
            match store.check().await {
                Ok(()) => tracing::info!(url = store.url(), "the session store can be written and read"),
                Err(error) => tracing::error!(%error, "no continuable child can start or store a turn"),
            }
        });
    }
    Ok(store)
}

/// Certificates, as soon as the API server gives them. A process that ended without one would be started again later and
/// later by its kubelet, and be missing for minutes after an outage (pitfall C8).
///
/// # Errors
/// When the root is damaged: waiting does not help.
async fn certificates(client: &Client, settings: &PkiSettings) -> anyhow::Result<(Pki, Keeper)> {
    loop {
        match Pki::start(client.clone(), settings.clone()).await {
            Ok(started) => return Ok(started),
            Err(error) if error.may_pass() => {
                tracing::warn!(%error, "gateway certificates not read; the API server is asked again");
                tokio::time::sleep(ASK_AGAIN).await;
            }
            Err(error) => return Err(error).context("gateway certificates"),
        }
    }
}

/// A part that ended while others had not begun.
fn early(ended: Option<Result<(&'static str, anyhow::Result<()>), tokio::task::JoinError>>) -> anyhow::Error {
    match ended {
        Some(Ok((part, Err(error)))) => error.context(part),
        Some(Ok((part, Ok(())))) => anyhow::anyhow!("{part} ended by itself"),
        Some(Err(error)) => anyhow::Error::new(error).context("a part of the operator panicked"),
        None => anyhow::anyhow!("no part of the operator runs"),
    }
}

fn spawn(
    parts: &mut JoinSet<(&'static str, anyhow::Result<()>)>,
    name: &'static str,
    part: impl Future<Output = anyhow::Result<()>> + Send + 'static,
) {
    parts.spawn(async move { (name, part.await) });
}

async fn ok(part: impl Future<Output = ()>) -> anyhow::Result<()> {
    part.await;
    Ok(())
}

/// Competes for leadership and runs the controllers while it lasts.
async fn lead(
    context: Context,
    announcing: Announcing,
    distribution: Distribution,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let settings = &context.settings;
    let election =
        LeaderElection::new(context.client.clone(), &settings.pod_namespace, &settings.lease_name, &settings.pod_name);
    let Some(leadership) = election.acquire(&shutdown).await else { return Ok(()) };
    context.metrics.leader.set(1);
    let stop = shutdown.child_token();
    let controllers = Scope::of(&settings.namespaces()).into_iter().map(|scope| {
        let (context, stop) = (context.clone(), stop.clone());
        async move {
            tokio::join!(
                run::controller::run(context.clone(), scope.clone(), stop.clone()),
                subagent::controller::run(context.clone(), scope.clone(), stop.clone()),
                provider::controller::run(context.clone(), scope.clone(), stop.clone()),
                provider::orphans::run(context.clone(), scope.clone(), stop.clone()),
                provider::sweep::run(context, scope, stop.clone()),
            );
        }
    });
    let sweeping = session_store::sweep::run(context.clone(), Scope::of(&settings.namespaces()), stop.clone());
    let watching = session_store::installation::watch(context.store.clone(), stop.clone());
    let trimming = subagent::trimming::run(context.clone(), stop.clone());
    let controllers =
        async { tokio::join!(join_all(controllers), distribution.run(stop.clone()), sweeping, trimming, watching) };
    tokio::pin!(controllers);
    tokio::select! {
        () = leadership.lost() => bail!("leadership lost"),
        _ = &mut controllers => {
            if !shutdown.is_cancelled() {
                bail!("the controllers ended by themselves");
            }
        }
        () = shutdown.cancelled() => {
            if tokio::time::timeout(DRAIN, &mut controllers).await.is_err() {
                // Releasing now would let another leader start beside a reconcile that still runs.
                bail!("reconciles did not end in time; the lease is left to expire");
            }
        }
    }
    context.metrics.leader.set(0);
    // Before the release: a successor's Events come after these.
    announcing.finish().await;
    leadership.release().await;
    Ok(())
}
