//! Watches: each kind on its own stream, with backoff, without what nobody reads. An object that does not decode is
//! reported and skipped; it does not stop the others (pitfall C1).

use crate::{context::Context, decoding::Guarded};
use futures::{FutureExt, Stream, StreamExt, TryStreamExt, future::ready};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Api, Resource, ResourceExt,
    api::ObjectMeta,
    runtime::{
        PredicateConfig, WatchStreamExt,
        events::{self, EventType, Recorder},
        reflector::{self, Store},
        watcher::{self, Event},
    },
};
use serde::de::DeserializeOwned;
use std::{collections::HashMap, fmt::Debug, hash::Hash};
use subagent_crds::conditions;
use tokio_util::sync::CancellationToken;

/// Longest note of an Event that is still sent whole: the API server takes 1024 bytes.
const MAX_NOTE: usize = 1000;

/// Where a watch looks: everywhere or in one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every namespace.
    Cluster,
    /// One namespace.
    Namespace(String),
}

impl Scope {
    /// The scopes of a list of namespaces; none means everywhere.
    pub fn of(namespaces: &[String]) -> Vec<Self> {
        if namespaces.is_empty() {
            return vec![Self::Cluster];
        }
        namespaces.iter().cloned().map(Self::Namespace).collect()
    }

    /// The API of a kind in this scope.
    pub fn api<K>(&self, client: &kube::Client) -> Api<K>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        match self {
            Self::Cluster => Api::all(client.clone()),
            Self::Namespace(namespace) => Api::namespaced(client.clone(), namespace),
        }
    }
}

/// A kind that can be watched.
pub trait Watched:
    Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
    + Clone
    + DeserializeOwned
    + Debug
    + Send
    + Sync
    + 'static
{
}

impl<K> Watched for K where
    K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + DeserializeOwned
        + Debug
        + Send
        + Sync
        + 'static
{
}

fn watch<K: Watched>(
    context: &Context,
    scope: &Scope,
    config: watcher::Config,
    undecodable: Option<impl Fn(&ObjectMeta) + Send + 'static>,
) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + Send + 'static {
    let api: Api<Guarded<K>> = match scope {
        Scope::Cluster => Api::all(context.client.clone()),
        Scope::Namespace(namespace) => Api::namespaced(context.client.clone(), namespace),
    };
    let mut guard = Guard { context: context.clone(), known: HashMap::new(), undecodable };
    watcher::watcher(api, config).default_backoff().try_filter_map(move |event| ready(Ok(guard.decoded(event))))
}

/// Takes the resourceVersion off an object that is gone, so that this can count as a change of it.
fn mark_gone<K: Watched>(event: Event<K>) -> Event<K> {
    match event {
        Event::Delete(mut object) => {
            object.meta_mut().resource_version = None;
            Event::Delete(object)
        }
        event => event,
    }
}

/// What a watch knows of objects that do not decode.
struct Guard<F> {
    context: Context,
    /// How each does not decode, by UID: it is reported when that changes, not with each of its events.
    known: HashMap<String, String>,
    /// Hears of each event of one; none when another watch reports the kind.
    undecodable: Option<F>,
}

impl<F: Fn(&ObjectMeta)> Guard<F> {
    fn decoded<K: Watched>(&mut self, event: Event<Guarded<K>>) -> Option<Event<K>> {
        Some(match event {
            Event::Apply(object) => Event::Apply(self.check(object)?),
            Event::InitApply(object) => Event::InitApply(self.check(object)?),
            Event::Delete(object) => {
                self.known.remove(&object.uid().unwrap_or_default());
                if let (Err(undecodable), Some(hears)) = (&object.0, &self.undecodable) {
                    hears(&undecodable.metadata);
                }
                Event::Delete(object.0.ok()?)
            }
            Event::Init => Event::Init,
            Event::InitDone => Event::InitDone,
        })
    }

    fn check<K: Watched>(&mut self, object: Guarded<K>) -> Option<K> {
        let uid = object.uid().unwrap_or_default();
        let undecodable = match object.0 {
            Ok(object) => {
                self.known.remove(&uid);
                return Some(object);
            }
            Err(undecodable) => undecodable,
        };
        let hears = self.undecodable.as_ref()?;
        hears(&undecodable.metadata);
        if self.known.insert(uid, undecodable.how.clone()).as_ref() != Some(&undecodable.how) {
            tracing::warn!(
                kind = %K::kind(&()),
                namespace = undecodable.metadata.namespace.as_deref().unwrap_or_default(),
                name = undecodable.metadata.name.as_deref().unwrap_or_default(),
                error = undecodable.how,
                "an object does not decode and is left alone; correct or delete it"
            );
            self.context.metrics.undecodable(&K::kind(&()));
            let note =
                format!("this object does not decode and is left alone; correct or delete it: {}", undecodable.how);
            warn::<K>(&self.context.recorder, &undecodable.metadata, "Undecodable", &note);
        }
        None
    }
}

/// A Warning on an object that does not decode, where its owner looks: its status cannot be written. Best effort, beside
/// the caller.
pub fn warn<K: Watched>(recorder: &Recorder, metadata: &ObjectMeta, reason: &str, note: &str) {
    let object = ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone(),
        uid: metadata.uid.clone(),
        ..ObjectReference::default()
    };
    let event = events::Event {
        type_: EventType::Warning,
        reason: reason.into(),
        note: Some(conditions::cut(note, MAX_NOTE)),
        action: "Decode".into(),
        secondary: None,
    };
    let recorder = recorder.clone();
    tokio::spawn(async move {
        if let Err(error) = recorder.publish(&event, &object).await {
            tracing::warn!(%error, "an Event was not published");
        }
    });
}

/// Runs a controller until it ends. One that is told to stop before its cache was filled would wait for that for ever, since
/// nobody fills it any more; it has begun nothing, so it is dropped.
pub async fn until_stopped<K: Watched>(
    controller: impl Future<Output = ()>,
    cache: Store<K>,
    shutdown: &CancellationToken,
) where
    K::DynamicType: Hash + Eq + Clone + Default,
{
    let stopped_early = async {
        shutdown.cancelled().await;
        if cache.wait_until_ready().now_or_never().is_some() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = controller => {}
        () = stopped_early => {}
    }
}

/// A stream of changed objects: one item per change of `facts`. One that is gone comes without resourceVersion. One that does
/// not decode is skipped; what reports it is the cache of its own controller.
pub fn changes<K: Watched>(
    context: &Context,
    scope: &Scope,
    config: watcher::Config,
    facts: fn(&K) -> Option<u64>,
) -> impl Stream<Item = Result<K, watcher::Error>> + Send + 'static {
    watch::<K>(context, scope, config, None::<fn(&ObjectMeta)>)
        .map_ok(mark_gone)
        .touched_objects()
        .predicate_filter(facts, PredicateConfig::default())
        .boxed()
}

/// The same with a cache of the objects, each without what `slim` takes away. `undecodable` hears of each event of one that
/// does not decode; such an object is never in the stream.
pub fn cached<K: Watched>(
    context: &Context,
    scope: &Scope,
    config: watcher::Config,
    slim: fn(&mut K),
    facts: fn(&K) -> Option<u64>,
    undecodable: impl Fn(&ObjectMeta) + Send + 'static,
) -> (Store<K>, impl Stream<Item = Result<K, watcher::Error>> + Send + 'static)
where
    K::DynamicType: Hash + Eq + Clone + Default,
{
    let (reader, writer) = reflector::store();
    let stream = watch::<K>(context, scope, config, Some(undecodable))
        .modify(slim)
        .reflect(writer)
        .touched_objects()
        .predicate_filter(facts, PredicateConfig::default())
        .boxed();
    (reader, stream)
}
