//! Watches: each kind on its own stream, with backoff, without what nobody reads. An object that does not decode is
//! reported and skipped; it does not stop the others (pitfall C1).

use crate::context::Context;
use futures::{Stream, StreamExt, TryStreamExt, future::ready};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Api, Resource,
    core::{DeserializeGuard, error_boundary::InvalidObject},
    runtime::{
        PredicateConfig, WatchStreamExt,
        events::{self, EventType, Recorder},
        reflector::{self, Store},
        watcher::{self, Event},
    },
};
use serde::de::DeserializeOwned;
use std::{fmt::Debug, hash::Hash};
use subagent_crds::conditions;

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
) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + Send + 'static {
    let api: Api<DeserializeGuard<K>> = match scope {
        Scope::Cluster => Api::all(context.client.clone()),
        Scope::Namespace(namespace) => Api::namespaced(context.client.clone(), namespace),
    };
    let recorder = context.recorder.clone();
    watcher::watcher(api, config).default_backoff().try_filter_map(move |event| ready(Ok(decoded(event, &recorder))))
}

fn decoded<K: Watched>(event: Event<DeserializeGuard<K>>, recorder: &Recorder) -> Option<Event<K>> {
    let decode = |guard: DeserializeGuard<K>| match guard.0 {
        Ok(object) => Some(object),
        Err(invalid) => {
            tracing::warn!(
                kind = %K::kind(&()),
                namespace = invalid.metadata.namespace.as_deref().unwrap_or_default(),
                name = invalid.metadata.name.as_deref().unwrap_or_default(),
                error = invalid.error,
                "an object does not decode and is left alone; correct or delete it"
            );
            tell::<K>(recorder.clone(), invalid);
            None
        }
    };
    Some(match event {
        Event::Apply(guard) => Event::Apply(decode(guard)?),
        Event::Delete(guard) => Event::Delete(decode(guard)?),
        Event::InitApply(guard) => Event::InitApply(decode(guard)?),
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
    })
}

/// Says it on the object itself, where its owner looks: its status cannot be written. Best effort, beside the stream.
fn tell<K: Watched>(recorder: Recorder, invalid: InvalidObject) {
    let object = ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        namespace: invalid.metadata.namespace,
        name: invalid.metadata.name,
        uid: invalid.metadata.uid,
        ..ObjectReference::default()
    };
    let note = format!("this object does not decode and is left alone; correct or delete it: {}", invalid.error);
    tokio::spawn(async move {
        let event = events::Event {
            type_: EventType::Warning,
            reason: "Undecodable".into(),
            note: Some(conditions::cut(&note, MAX_NOTE)),
            action: "Decode".into(),
            secondary: None,
        };
        if let Err(error) = recorder.publish(&event, &object).await {
            tracing::warn!(%error, "an Event was not published");
        }
    });
}

/// A stream of changed objects: one item per change of `facts`.
pub fn changes<K: Watched>(
    context: &Context,
    scope: &Scope,
    config: watcher::Config,
    facts: fn(&K) -> Option<u64>,
) -> impl Stream<Item = Result<K, watcher::Error>> + Send + 'static {
    watch::<K>(context, scope, config).touched_objects().predicate_filter(facts, PredicateConfig::default()).boxed()
}

/// The same with a cache of the objects, each without what `slim` takes away.
pub fn cached<K: Watched>(
    context: &Context,
    scope: &Scope,
    config: watcher::Config,
    slim: fn(&mut K),
    facts: fn(&K) -> Option<u64>,
) -> (Store<K>, impl Stream<Item = Result<K, watcher::Error>> + Send + 'static)
where
    K::DynamicType: Hash + Eq + Clone + Default,
{
    let (reader, writer) = reflector::store();
    let stream = watch::<K>(context, scope, config)
        .modify(slim)
        .reflect(writer)
        .touched_objects()
        .predicate_filter(facts, PredicateConfig::default())
        .boxed();
    (reader, stream)
}
