//! A namespace for each test.

use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, Pod, ServiceAccount},
    events::v1::Event,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, PostParams},
    core::NamespaceResourceScope,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use std::{
    fmt::Debug,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use subagent_crds::{SubagentProvider, SubagentRun};

/// How often a condition is looked at: each look is one or two reads of a local API server.
const POLL: Duration = Duration::from_millis(50);

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// A namespace of one test. It is left behind: the API server is thrown away, and a failed test can be looked at.
#[derive(Clone)]
pub struct TestNamespace {
    /// A client with all rights.
    pub client: Client,
    /// Its name, unique among all test processes.
    pub name: String,
}

impl TestNamespace {
    /// Makes a namespace; `hint` (a few lower-case words with dashes) is for the reader of a failure.
    pub async fn new(hint: &str) -> Self {
        Self::with_labels(hint, &[]).await
    }

    /// Makes a namespace with labels, such as the Pod Security level it enforces.
    pub async fn with_labels(hint: &str, labels: &[(&str, &str)]) -> Self {
        let client = crate::client().await;
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let second = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() % 100_000_000);
        let name = format!("it-{hint}-{second}-{}-{number}", std::process::id());
        let labels: serde_json::Map<_, _> =
            labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let namespace: Namespace =
            serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).expect("a namespace");
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await.expect("a new namespace");
        // Pods cannot be created before it exists, and the controller that makes it may be slow or absent.
        let account: ServiceAccount =
            serde_json::from_value(json!({"metadata": {"name": "default"}})).expect("a service account");
        match Api::namespaced(client.clone(), &name).create(&PostParams::default(), &account).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => panic!("service account of {name}: {error}"),
        }
        Self { client, name }
    }

    /// The objects of a kind in this namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// Creates an object.
    ///
    /// # Panics
    /// When the API server refuses it.
    pub async fn create<K>(&self, object: &K) -> K
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Serialize + Debug,
        K::DynamicType: Default,
    {
        let created = self.api().create(&PostParams::default(), object).await;
        created.unwrap_or_else(|error| panic!("create {}: {error}", object.name_any()))
    }

    /// Looks until `look` gives a value; its error is what is still missing.
    ///
    /// # Panics
    /// After `limit`, with what was missing last and everything in the namespace.
    pub async fn eventually<T>(&self, what: &str, limit: Duration, look: impl AsyncFn() -> Result<T, String>) -> T {
        let began = Instant::now();
        loop {
            match look().await {
                Ok(value) => return value,
                Err(missing) if began.elapsed() >= limit => {
                    panic!("{what}: not within {limit:?}: {missing}\n{}", self.dump().await)
                }
                Err(_) => tokio::time::sleep(POLL).await,
            }
        }
    }

    /// Waits until an object fits; its state is in the failure.
    pub async fn until<K>(&self, name: &str, what: &str, limit: Duration, fits: impl Fn(&K) -> bool) -> K
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Serialize + Debug,
        K::DynamicType: Default,
    {
        let api: Api<K> = self.api();
        let (api, fits) = (&api, &fits);
        self.eventually(&format!("{name}: {what}"), limit, async || match api.get_opt(name).await {
            Ok(Some(object)) if fits(&object) => Ok(object),
            Ok(Some(_)) => Err("it does not fit yet (see below)".into()),
            Ok(None) => Err("it does not exist".into()),
            Err(error) => Err(error.to_string()),
        })
        .await
    }

    /// Everything in the namespace that tells why a wait failed, as YAML.
    pub async fn dump(&self) -> String {
        let mut text = String::new();
        self.dump_kind::<SubagentProvider>("providers", &mut text).await;
        self.dump_kind::<SubagentRun>("runs", &mut text).await;
        self.dump_kind::<Pod>("pods", &mut text).await;
        self.dump_kind::<ConfigMap>("configmaps", &mut text).await;
        self.dump_kind::<Event>("events", &mut text).await;
        text
    }

    async fn dump_kind<K>(&self, kind: &str, text: &mut String)
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Serialize + Debug,
        K::DynamicType: Default,
    {
        match self.api::<K>().list(&ListParams::default()).await {
            Ok(list) => {
                for mut object in list.items {
                    object.managed_fields_mut().clear();
                    let yaml = serde_saphyr::to_string(&object).unwrap_or_else(|error| error.to_string());
                    text.push_str(&format!("--- {kind}\n{yaml}"));
                }
            }
            Err(error) => text.push_str(&format!("--- {kind}: {error}\n")),
        }
    }
}
