//! A namespace for each test.

use crate::{ScriptedProvider, cluster, status::RunView};
use base64::{Engine, prelude::BASE64_STANDARD};
use futures::FutureExt;
use k8s_openapi::api::{
    core::v1::{Namespace, Pod},
    events::v1::Event,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
    runtime::wait::await_condition,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{
    fmt::Debug,
    panic::AssertUnwindSafe,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use subagent_crds::{SubagentProvider, SubagentRun, conditions};

/// Longest wait for what takes seconds when the machine is idle: two busy cores run several pods at once.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// Prefix of all namespaces of these tests.
pub const PREFIX: &str = "e2e-";
/// How often something is looked at that cannot be watched.
const POLL: Duration = Duration::from_millis(200);
/// Lines of each log in a failure.
const LOG_LINES: i64 = 60;

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// A namespace of one test; it enforces the Pod Security level `restricted`.
#[derive(Clone)]
pub struct TestNamespace {
    /// A client with all rights.
    pub client: Client,
    /// Its name, unique among all test processes.
    pub name: String,
}

/// Runs a test in a namespace of its own and removes the namespace afterwards, without waiting for it. When the test
/// fails, everything that tells why is printed first; with `E2E_KEEP` set the namespace then stays.
pub async fn in_namespace(hint: &str, test: impl AsyncFnOnce(TestNamespace)) {
    let namespace = TestNamespace::new(hint).await;
    let result = AssertUnwindSafe(test(namespace.clone())).catch_unwind().await;
    if result.is_err() {
        eprintln!("{}", namespace.dump().await);
    }
    if result.is_ok() || std::env::var_os("E2E_KEEP").is_none() {
        let namespaces: Api<Namespace> = Api::all(namespace.client.clone());
        let deleted = namespaces.delete(&namespace.name, &DeleteParams::background()).await;
        deleted.unwrap_or_else(|error| panic!("delete namespace {}: {error}", namespace.name));
    }
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

impl TestNamespace {
    async fn new(hint: &str) -> Self {
        let client = cluster::client().await;
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let millisecond =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() % 100_000_000);
        let name = format!("{PREFIX}{hint}-{millisecond}-{number}");
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {
            "name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
        }}))
        .expect("a namespace");
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await.expect("a new namespace");
        let namespace = Self { client, name };
        // Pods are refused until the namespace's default service account is there.
        namespace.until::<k8s_openapi::api::core::v1::ServiceAccount>("default", "exists", PATIENCE, |_| true).await;
        namespace
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

    /// Creates a provider and waits until runs can start.
    pub async fn provider(&self, provider: &ScriptedProvider) -> SubagentProvider {
        let created = self.create(&provider.build()).await;
        self.until(&created.name_any(), "Ready", PATIENCE, |provider: &SubagentProvider| {
            provider.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, conditions::READY))
        })
        .await
    }

    /// Creates a provider and waits until it is known that its agent's sessions can be continued.
    pub async fn continuable(&self, provider: &ScriptedProvider) -> SubagentProvider {
        let created = self.create(&provider.build()).await;
        self.continues(&created.name_any()).await
    }

    /// Waits until it is known that the sessions of a provider's agent can be continued.
    pub async fn continues(&self, provider: &str) -> SubagentProvider {
        self.until(provider, "Continuation", PATIENCE, |provider: &SubagentProvider| {
            provider.status.as_ref().is_some_and(|status| status.capabilities.iter().any(|name| name == "Continuation"))
        })
        .await
    }

    /// Reads a run.
    ///
    /// # Panics
    /// When it does not exist.
    pub async fn run(&self, name: &str) -> SubagentRun {
        self.api().get(name).await.unwrap_or_else(|error| panic!("run {name}: {error}"))
    }

    /// Creates a run and waits until it is over and proven stopped.
    pub async fn finish(&self, run: &SubagentRun) -> SubagentRun {
        self.create(run).await;
        self.stopped(&run.name_any()).await
    }

    /// Waits until a run is over and proven stopped.
    pub async fn stopped(&self, name: &str) -> SubagentRun {
        self.run_until(name, "Finished and Stopped", |run| run.is(conditions::FINISHED) && run.is(conditions::STOPPED))
            .await
    }

    /// Waits until a run fits.
    pub async fn run_until(
        &self,
        name: &str,
        what: &str,
        fits: impl Fn(&SubagentRun) -> bool + Send + Sync,
    ) -> SubagentRun {
        self.until(name, what, PATIENCE, fits).await
    }

    /// Merges a patch into an object.
    ///
    /// # Panics
    /// When the API server refuses it.
    pub async fn patch<K>(&self, name: &str, patch: Value) -> K
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
        K::DynamicType: Default,
    {
        let patched = self.api::<K>().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.unwrap_or_else(|error| panic!("patch {name}: {error}"))
    }

    /// Sets `spec.cancel`, as a person would.
    pub fn cancel(&self, run: &str) {
        self.kubectl(&["patch", "subagentrun", run, "--type=merge", "-p", r#"{"spec":{"cancel":true}}"#]);
    }

    /// What kubectl prints about this namespace.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        let mut all = vec!["--namespace", self.name.as_str()];
        all.extend(arguments);
        crate::commands::kubectl(&all)
    }

    /// Watches an object until it fits.
    ///
    /// # Panics
    /// After `limit`, with the object as it is then.
    pub async fn until<K>(&self, name: &str, what: &str, limit: Duration, fits: impl Fn(&K) -> bool + Send + Sync) -> K
    where
        K: Resource<Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Serialize
            + Debug
            + Send
            + Sync
            + 'static,
        K::DynamicType: Default,
    {
        let deadline = Instant::now() + limit;
        loop {
            let fits = |object: Option<&K>| object.is_some_and(&fits);
            let left = deadline.saturating_duration_since(Instant::now());
            match tokio::time::timeout(left, await_condition(self.api::<K>(), name, fits)).await {
                Ok(Ok(Some(object))) => return object,
                // A watch may end by itself, also while the API server is busy.
                Ok(Ok(None) | Err(_)) => tokio::time::sleep(POLL).await,
                Err(_) => {
                    let now = self.api::<K>().get_opt(name).await.map(|object| object.map(|object| yaml(&object)));
                    panic!(
                        "{name}: {what}: not within {limit:?}; it is now\n{}",
                        match now {
                            Ok(object) => object.unwrap_or_else(|| "absent".into()),
                            Err(error) => error.to_string(),
                        }
                    );
                }
            }
        }
    }

    /// Watches an object until it is gone, and says when that was seen, in milliseconds since 1970.
    ///
    /// # Panics
    /// When it is still there after `limit`.
    pub async fn gone<K>(&self, name: &str, uid: &str, limit: Duration) -> u64
    where
        K: Resource<Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Serialize
            + Debug
            + Send
            + Sync
            + 'static,
        K::DynamicType: Default,
    {
        let deadline = Instant::now() + limit;
        loop {
            let is_gone = |object: Option<&K>| object.is_none_or(|object| object.uid().as_deref() != Some(uid));
            let left = deadline.saturating_duration_since(Instant::now());
            match tokio::time::timeout(left, await_condition(self.api::<K>(), name, is_gone)).await {
                Ok(Ok(_)) => return scripted_agent::reporter::now_ms(),
                Ok(Err(_)) => tokio::time::sleep(POLL).await,
                Err(_) => panic!("{name} is still there after {limit:?}"),
            }
        }
    }

    /// Looks until `look` gives a value; its error is what is still missing.
    ///
    /// # Panics
    /// After `limit`, with what was missing last.
    pub async fn eventually<T>(&self, what: &str, limit: Duration, look: impl AsyncFn() -> Result<T, String>) -> T {
        let deadline = Instant::now() + limit;
        loop {
            match look().await {
                Ok(value) => return value,
                Err(missing) if Instant::now() >= deadline => panic!("{what}: not within {limit:?}: {missing}"),
                Err(_) => tokio::time::sleep(POLL).await,
            }
        }
    }

    /// Reasons of the Events about an object, each with how often it was reported, in the order of their first time.
    pub async fn events_of(&self, uid: &str) -> Vec<(String, i64, String)> {
        let events = self.api::<Event>().list(&ListParams::default()).await.expect("Events").items;
        let mut events: Vec<Event> = events
            .into_iter()
            .filter(|event| event.regarding.as_ref().and_then(|regarding| regarding.uid.as_deref()) == Some(uid))
            .collect();
        events.sort_by_key(|event| event.event_time.as_ref().map(|time| time.0));
        events
            .into_iter()
            .map(|event| {
                let count = event.series.map_or(1, |series| i64::from(series.count));
                (event.reason.unwrap_or_default(), count, event.note.unwrap_or_default())
            })
            .collect()
    }

    /// The log of a run's agent container, through the label as users do it.
    pub fn transcript(&self, run: &str) -> String {
        self.kubectl(&["logs", "-l", &cluster::of_run(run), "-c", "agent", "--tail=-1"])
    }

    /// The archived transcript of a run, as the README reads it.
    ///
    /// # Panics
    /// When there is none.
    pub fn archived_transcript(&self, run: &str) -> String {
        let name = self.kubectl(&["get", "subagentrun", run, "-o", "jsonpath={.status.transcript.ref}"]);
        let path = "jsonpath={.binaryData.transcript\\.zst}";
        let packed = BASE64_STANDARD.decode(self.kubectl(&["get", "configmap", &name, "-o", path])).expect("base64");
        String::from_utf8(zstd::decode_all(&packed[..]).expect("zstd")).expect("text")
    }

    /// Everything that tells why a test failed: objects, Events, logs of pods and of the operator.
    pub async fn dump(&self) -> String {
        let mut text = format!("===== namespace {}\n", self.name);
        self.dump_kind::<SubagentProvider>("provider", &mut text).await;
        self.dump_kind::<SubagentRun>("run", &mut text).await;
        self.dump_kind::<Pod>("pod", &mut text).await;
        let events = self.api::<Event>().list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
        text.push_str("--- Events\n");
        for event in events {
            let about = event.regarding.and_then(|regarding| regarding.name).unwrap_or_default();
            let (reason, note) = (event.reason.unwrap_or_default(), event.note.unwrap_or_default());
            text.push_str(&format!("{about}: {reason}: {note}\n"));
        }
        for pod in self.api::<Pod>().list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default() {
            let containers = pod.spec.iter().flat_map(|spec| &spec.containers).map(|container| container.name.clone());
            for container in containers {
                let params = LogParams {
                    container: Some(container.clone()),
                    tail_lines: Some(LOG_LINES),
                    limit_bytes: Some(16_384),
                    ..LogParams::default()
                };
                let log = self.api::<Pod>().logs(&pod.name_any(), &params).await;
                let log = log.unwrap_or_else(|error| error.to_string());
                text.push_str(&format!("--- log of {}/{container}\n{log}\n", pod.name_any()));
            }
        }
        text.push_str(&cluster::operator_log(&self.client, LOG_LINES).await);
        text
    }

    async fn dump_kind<K>(&self, kind: &str, text: &mut String)
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Serialize + Debug,
        K::DynamicType: Default,
    {
        match self.api::<K>().list(&ListParams::default()).await {
            Ok(list) => list.items.iter().for_each(|object| text.push_str(&format!("--- {kind}\n{}", yaml(object)))),
            Err(error) => text.push_str(&format!("--- {kind}: {error}\n")),
        }
    }
}

fn yaml<K: Resource + Clone + Serialize>(object: &K) -> String {
    let mut object = object.clone();
    object.managed_fields_mut().clear();
    serde_saphyr::to_string(&object).unwrap_or_else(|error| error.to_string())
}
