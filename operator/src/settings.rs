//! The operator's settings, from flags and environment. The chart sets them.

use clap::Parser;
use std::{net::SocketAddr, time::Duration};

/// Settings of one operator process.
#[derive(Clone, Debug, Parser)]
#[command(name = "subagent-operator", version, about = "Kubernetes operator for distributed subagents")]
pub struct Settings {
    /// Name of this pod: the identity in the leader election.
    #[arg(long, env = "POD_NAME", default_value = "subagent-operator")]
    pub pod_name: String,
    /// Namespace the operator runs in: its Lease and the gateway's root live here.
    #[arg(long, env = "POD_NAMESPACE", default_value = "subagents-system")]
    pub pod_namespace: String,
    /// Name of the Service in front of the gateway.
    #[arg(long, env = "SUBAGENT_SERVICE_NAME", default_value = "subagent-operator")]
    pub service_name: String,
    /// URL workers connect to; derived from the Service when empty. For an operator outside the cluster.
    #[arg(long, env = "SUBAGENT_GATEWAY_URL", default_value = "")]
    pub gateway_url: String,
    /// Image that holds the worker's binary at /subagent-worker.
    #[arg(long, env = "SUBAGENT_WORKER_IMAGE", default_value = "localhost/subagent-worker:dev")]
    pub worker_image: String,
    /// Namespaces to watch, comma separated; all when empty.
    #[arg(long, env = "SUBAGENT_WATCH_NAMESPACES", value_delimiter = ',')]
    pub watch_namespaces: Vec<String>,
    /// How long a stopped pod is kept for `kubectl logs`, in seconds.
    #[arg(long, env = "SUBAGENT_POD_TTL_SECONDS", default_value_t = 300)]
    pub pod_ttl_seconds: i64,
    /// Largest result of a run in bytes, at most 8388608.
    #[arg(long, env = "SUBAGENT_MAX_RESULT_BYTES", default_value_t = subagent_crds::bounds::RESULT)]
    pub max_result_bytes: i64,
    /// Where checkpoints of continuable children lie: file:///FOLDER, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or
    /// az://CONTAINER/PREFIX. Empty: nowhere, and no continuable child starts. What a cloud needs besides is in the environment,
    /// in the variables that its own tools read (AWS_*, GOOGLE_*, AZURE_*). No two installations may share a place.
    #[arg(long, env = "SUBAGENT_SESSION_STORE", default_value = "")]
    pub session_store: String,
    /// How long a checkpoint is kept that nothing refers to and that was not removed when a later one of the same child replaced
    /// it, in seconds; at least an hour.
    #[arg(long, env = "SUBAGENT_SESSION_STORE_KEEP_SECONDS", default_value_t = 86400, value_parser = clap::value_parser!(u32).range(3600..))]
    pub session_store_keep_seconds: u32,
    /// Name of the ConfigMap in the operator's namespace that remembers which session store is this installation's. Deleted, the
    /// store that is there then is taken.
    #[arg(long, env = "SUBAGENT_SESSION_STORE_CONFIG_MAP", default_value = "subagent-operator-session-mark")]
    pub session_store_config_map: String,
    /// Name of the Lease of the leader election.
    #[arg(long, env = "SUBAGENT_LEASE_NAME", default_value = "subagent-operator")]
    pub lease_name: String,
    /// Name of the Secret with the gateway's root certificate.
    #[arg(long, env = "SUBAGENT_ROOT_SECRET", default_value = "subagent-operator-gateway-root")]
    pub root_secret: String,
    /// How often certificates are looked at, in seconds.
    #[arg(long, env = "SUBAGENT_CERTIFICATE_LOOK_SECONDS", default_value_t = crate::pki::LOOK_SECONDS)]
    pub certificate_look_seconds: u32,
    /// How long every live worker pod must have carried a new root certificate before it signs, in seconds.
    #[arg(long, env = "SUBAGENT_ROOT_CARRIED_SECONDS", default_value_t = crate::pki::CARRIED_SECONDS)]
    pub root_carried_seconds: u32,
    /// Log filter, as in `info,subagent_operator=debug`.
    #[arg(long, env = "SUBAGENT_LOG", default_value = "info")]
    pub log: String,
    /// Log format: text or json.
    #[arg(long, env = "SUBAGENT_LOG_FORMAT", default_value = "text")]
    pub log_format: String,
    /// Address of the gateway.
    #[arg(long, env = "SUBAGENT_LINK_ADDRESS", default_value = "0.0.0.0:8443")]
    pub link_address: SocketAddr,
    /// Address of health and metrics.
    #[arg(long, env = "SUBAGENT_HTTP_ADDRESS", default_value = "0.0.0.0:8080")]
    pub http_address: SocketAddr,
}

/// Longest time one call to the API server may take. The client retries a busy server by itself and has no limit of its
/// own, so a call could hang for minutes.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(15);

impl Settings {
    /// Namespaces to watch; none means all.
    pub fn namespaces(&self) -> Vec<String> {
        self.watch_namespaces.iter().filter(|name| !name.is_empty()).cloned().collect()
    }

    /// When the certificates' parts act.
    pub fn certificate_timing(&self) -> crate::pki::Timing {
        crate::pki::Timing {
            look_every: Duration::from_secs(self.certificate_look_seconds.max(1).into()),
            carried_for: Duration::from_secs(self.root_carried_seconds.into()),
        }
    }

    /// Names the gateway's certificate is for: those of the Service, and the host of an explicit URL.
    pub fn gateway_names(&self) -> Vec<String> {
        let mut names = crate::pki::service_names(&self.service_name, &self.pod_namespace);
        let host = self.gateway_url.strip_prefix("wss://").and_then(|rest| rest.split(['/', ':']).next());
        names.extend(host.filter(|host| !host.is_empty()).map(str::to_owned));
        names
    }

    /// Where workers connect.
    pub fn gateway_url(&self) -> String {
        if !self.gateway_url.is_empty() {
            return self.gateway_url.clone();
        }
        format!(
            "wss://{}.{}.svc:{}{}",
            self.service_name,
            self.pod_namespace,
            subagent_link::LINK_PORT,
            subagent_link::LINK_PATH
        )
    }
}
