//! The gateway's certificates: a long-lived root in a Secret, short leaves in memory.
//!
//! Every replica signs its own leaf with the shared root and swaps it while it serves. Workers trust the *bundle* of
//! roots that their pod carries as an annotation, and read it anew each time they dial. A new root is made a year before
//! the old one ends; the leader brings it to every live pod ([`Distribution`]), and only when all of them have carried it
//! for a day does it sign. So a rotation never cuts a live worker off (design section 7).

mod distribution;
mod leaf;
mod root;
mod secret;

pub use distribution::{Distribution, DistributionError};
pub use leaf::{LEAF_VALIDITY, service_names};
pub use root::{ROOT_VALIDITY, RootError};
pub use secret::SecretError;

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use leaf::{Leaf, LeafResolver};
use root::Roots;
use rustls::ServerConfig;
use secret::RootSecret;
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How often a replica looks at the Secret and at its leaf's age, and the leader at the live pods, in seconds: far below
/// the wait before a new root signs and below half a leaf's life. One small read each time.
pub const LOOK_SECONDS: u32 = 300;
/// How long every live pod must have carried a new root before it signs, in seconds. A kubelet brings a changed annotation
/// into the pod's volume within two minutes; a day also covers a node that is out of reach for hours. Nothing is gained
/// by haste: the old root stays trusted to its end.
pub const CARRIED_SECONDS: u32 = 24 * 3600;

/// When the certificates' parts act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// See [`LOOK_SECONDS`].
    pub look_every: Duration,
    /// See [`CARRIED_SECONDS`].
    pub carried_for: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            look_every: Duration::from_secs(LOOK_SECONDS.into()),
            carried_for: Duration::from_secs(CARRIED_SECONDS.into()),
        }
    }
}

/// Where the root lives and which names a leaf carries.
#[derive(Clone, Debug)]
pub struct PkiSettings {
    /// Namespace of the Secret: the operator's own.
    pub namespace: String,
    /// Name of the Secret, `<release>-gateway-root`.
    pub secret_name: String,
    /// DNS names or addresses of the leaf; see [`service_names`].
    pub names: Vec<String>,
    /// When it acts.
    pub timing: Timing,
}

/// Certificates of one replica.
#[derive(Clone, Debug)]
pub struct Pki {
    roots: watch::Receiver<Arc<str>>,
    resolver: Arc<LeafResolver>,
}

/// Keeps the certificates of [`Pki`] fresh.
#[derive(Debug)]
pub struct Keeper {
    secret: RootSecret,
    names: Vec<String>,
    look_every: Duration,
    roots: Roots,
    leaf: Leaf,
    bundle: watch::Sender<Arc<str>>,
    resolver: Arc<LeafResolver>,
}

/// No certificates.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// The Secret could not be read, created or updated.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A certificate could not be made or read.
    #[error(transparent)]
    Root(#[from] RootError),
}

impl PkiError {
    /// Whether the same may succeed later: anything but a root that cannot be used.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Secret(SecretError::Damaged(..)) | Self::Root(_) => false,
            Self::Secret(_) => true,
        }
    }
}

impl Pki {
    /// Reads the root, creates it when there is none (replicas that race agree on one), and makes a leaf.
    /// [`Keeper::run`] must run as long as the gateway.
    ///
    /// # Errors
    /// When the API server refuses or does not answer, or the Secret is damaged.
    pub async fn start(client: Client, settings: PkiSettings) -> Result<(Self, Keeper), PkiError> {
        let secret = RootSecret::new(client, &settings.namespace, &settings.secret_name);
        let now = Timestamp::now();
        let roots = secret.ensure(now).await?;
        let leaf = Leaf::issue(roots.signer(), &settings.names, now)?;
        let resolver = Arc::new(LeafResolver::new(leaf.key.clone()));
        let (bundle, receiver) = watch::channel(Arc::from(roots.bundle(now)?));
        let (names, look_every) = (settings.names, settings.timing.look_every);
        let keeper = Keeper { secret, names, look_every, roots, leaf, bundle, resolver: resolver.clone() };
        Ok((Self { roots: receiver, resolver }, keeper))
    }

    /// The PEM bundle for [`GATEWAY_ROOTS_ANNOTATION`](subagent_crds::names::GATEWAY_ROOTS_ANNOTATION); it changes when
    /// a root is added, and live pods must get the new one.
    pub fn roots(&self) -> watch::Receiver<Arc<str>> {
        self.roots.clone()
    }

    /// TLS settings of the gateway: TLS 1.2 and 1.3, no client certificates (workers show tokens).
    ///
    /// # Errors
    /// Never in practice: ring supports both versions.
    pub fn server_config(&self) -> Result<Arc<ServerConfig>, rustls::Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(self.resolver.clone());
        // WebSocket upgrades need HTTP/1.1.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

impl Keeper {
    /// Rotates root and leaf in time until `shutdown`. Failures are logged and tried again: there are months to do it.
    pub async fn run(mut self, shutdown: CancellationToken) {
        while shutdown.run_until_cancelled(tokio::time::sleep(self.look_every)).await.is_some() {
            if let Err(error) = self.refresh(Timestamp::now()).await {
                tracing::warn!(%error, "gateway certificates not refreshed");
            }
        }
    }

    /// What [`run`](Self::run) does at each look: one step of the root's rotation when it is due, the bundle, and a new
    /// leaf when half of its life is over or another root signs now.
    ///
    /// # Errors
    /// When a certificate cannot be made. An unreadable Secret is logged only: the leaf is renewed all the same.
    pub async fn refresh(&mut self, now: Timestamp) -> Result<(), PkiError> {
        let fresh = self.secret.ensure(now).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "gateway root not read");
            self.roots.clone()
        });
        if fresh != self.roots {
            tracing::info!("gateway roots changed");
            self.roots = fresh;
        }
        let bundle = self.roots.bundle(now)?;
        self.bundle.send_if_modified(|current| {
            let changed = **current != *bundle;
            if changed {
                *current = Arc::from(bundle);
            }
            changed
        });
        if self.leaf.is_due(self.roots.signer(), now) {
            self.leaf = Leaf::issue(self.roots.signer(), &self.names, now)?;
            self.resolver.swap(self.leaf.key.clone());
            tracing::info!("gateway certificate renewed");
        }
        Ok(())
    }
}
