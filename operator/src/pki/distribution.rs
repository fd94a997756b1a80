//! Brings the roots to the live worker pods, and lets a new root sign once all of them have it. Only the leader does.
//!
//! The kubelet projects a pod's annotation into the volume the worker reads. What is stored decides: the pods'
//! annotations, and in the Secret since when all of them hold the next root. A leader that dies between two calls leaves
//! nothing half done.

use super::{
    PkiSettings,
    root::{Carried, RootError, carries},
    secret::{RootSecret, SecretError},
};
use crate::{
    api::{self, WriteError},
    watching::Scope,
};
use k8s_openapi::{
    api::core::v1::Pod,
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
    core::PartialObjectMeta,
};
use serde_json::json;
use std::sync::Arc;
use subagent_crds::names;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Pods read at a time.
const PAGE: u32 = 500;
/// Pods that still need roots: their worker may have to connect again. One that is being deleted belongs to them.
const LIVE: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// The roots could not be brought to the pods.
#[derive(Debug, thiserror::Error)]
pub enum DistributionError {
    /// The Secret could not be read or updated.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A stored certificate cannot be read.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The pods could not be listed.
    #[error(transparent)]
    List(#[from] WriteError),
}

/// The leader's part of a rotation.
pub struct Distribution {
    client: Client,
    secret: RootSecret,
    settings: PkiSettings,
    scopes: Vec<Scope>,
    own: watch::Receiver<Arc<str>>,
}

impl Distribution {
    /// For the worker pods in these scopes. `own` is the bundle that pods made by this process get
    /// ([`Pki::roots`](super::Pki::roots)).
    pub fn new(client: Client, settings: PkiSettings, scopes: Vec<Scope>, own: watch::Receiver<Arc<str>>) -> Self {
        let secret = RootSecret::new(client.clone(), &settings.namespace, &settings.secret_name);
        Self { client, secret, settings, scopes, own }
    }

    /// Looks until the token is cancelled. Failures are logged and tried again: there is a year to do it.
    pub async fn run(self, shutdown: CancellationToken) {
        let pause = self.settings.timing.look_every;
        while shutdown.run_until_cancelled(tokio::time::sleep(pause)).await.is_some() {
            if let Err(error) = self.look(Timestamp::now()).await {
                tracing::warn!(%error, "gateway roots not brought to the worker pods");
            }
        }
    }

    /// One look: every live pod gets the roots it lacks, and what is known then is stored with the next root.
    ///
    /// # Errors
    /// [`DistributionError`]; nothing is lost by stopping half-way.
    pub async fn look(&self, now: Timestamp) -> Result<(), DistributionError> {
        let Some((secret, roots)) = self.secret.read().await? else { return Ok(()) };
        let bundle = roots.bundle(now)?;
        // Pods made here right now would lack a root: first this process itself takes it over.
        if !carries(&self.own.borrow(), &bundle) {
            return Ok(());
        }
        let mut carried = Carried::Everywhere;
        for scope in &self.scopes {
            match (self.bring(scope, &bundle).await?, carried) {
                (Carried::NotEverywhere, _) | (_, Carried::NotEverywhere) => carried = Carried::NotEverywhere,
                (Carried::JustGiven, _) => carried = Carried::JustGiven,
                (Carried::Everywhere, _) => {}
            }
        }
        let wait = SignedDuration::try_from(self.settings.timing.carried_for).unwrap_or(SignedDuration::MAX);
        if let Some(after) = roots.after_look(carried, now, wait)
            && self.secret.replace(secret, &after).await?
        {
            let since = after.carried_since.map(|since| since.to_string());
            tracing::info!(?carried, since, signs = after.next.is_none(), "next gateway root");
        }
        Ok(())
    }

    async fn bring(&self, scope: &Scope, bundle: &str) -> Result<Carried, DistributionError> {
        let pods: Api<Pod> = scope.api(&self.client);
        let mut params = ListParams::default().labels(names::RUN_UID_LABEL).fields(LIVE).limit(PAGE);
        let mut carried = Carried::Everywhere;
        loop {
            let page = api::write("listing worker pods", pods.list_metadata(&params)).await?;
            for pod in &page.items {
                // Without the annotation nobody reads it: that is no worker pod.
                let annotation = pod.annotations().get(names::GATEWAY_ROOTS_ANNOTATION);
                if annotation.is_none_or(|annotation| carries(annotation, bundle)) {
                    continue;
                }
                match self.give(pod, bundle).await {
                    Ok(()) if carried == Carried::Everywhere => carried = Carried::JustGiven,
                    Ok(()) => {}
                    Err(error) => {
                        tracing::warn!(%error, "a worker pod lacks a root of the gateway");
                        carried = Carried::NotEverywhere;
                    }
                }
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(carried),
            }
        }
    }

    /// Writes the bundle into that very pod's annotation.
    async fn give(&self, pod: &PartialObjectMeta<Pod>, bundle: &str) -> Result<(), WriteError> {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let body = json!({"metadata": {
            "uid": pod.uid(), "annotations": {names::GATEWAY_ROOTS_ANNOTATION: bundle},
        }});
        let params = PatchParams { field_manager: Some(names::CONTROLLER_MANAGER.into()), ..PatchParams::default() };
        let what = format!("gateway roots of pod {namespace}/{name}");
        match api::write(what, pods.patch_metadata(&name, &params, &Patch::Merge(&body))).await {
            // Another pod has the name now, or none: this one needs no roots any more.
            Ok(_) | Err(WriteError::Gone(_) | WriteError::Conflict(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
