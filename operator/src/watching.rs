//! Watches: each kind on its own stream, with backoff, without what nobody reads. An object that does not decode is
//! reported and skipped; it does not stop the others (pitfall C1).

use crate::context::Context;
use futures::{Stream, StreamExt, TryStreamExt, future::ready};
use kube::{
    Api, Resource,
    core::DeserializeGuard,
    runtime::{
        PredicateConfig, WatchStreamExt,
        reflector::{self, Store},
        watcher::{self, Event},
    },
};
use serde::de::DeserializeOwned;
use std::{fmt::Debug, hash::Hash};

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

fn events<K: Watched>(
    context: &Context,
    scope: &Scope,
    config: watcher::Config,
) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + Send + 'static {
    let api: Api<DeserializeGuard<K>> = match scope {
        Scope::Cluster => Api::all(context.client.clone()),
        Scope::Namespace(namespace) => Api::namespaced(context.client.clone(), namespace),
    };
    watcher::watcher(api, config).default_backoff().try_filter_map(|event| ready(Ok(decoded(event))))
}

fn decoded<K: Watched>(event: Event<DeserializeGuard<K>>) -> Option<Event<K>> {
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

/// A stream of changed objects: one item per change of `facts`.
pub fn changes<K: Watched>(
    context: &Context,
    scope: &Scope,
    config: watcher::Config,
    facts: fn(&K) -> Option<u64>,
) -> impl Stream<Item = Result<K, watcher::Error>> + Send + 'static {
    events::<K>(context, scope, config).touched_objects().predicate_filter(facts, PredicateConfig::default()).boxed()
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
    let stream = events::<K>(context, scope, config)
        .modify(slim)
        .reflect(writer)
        .touched_objects()
        .predicate_filter(facts, PredicateConfig::default())
        .boxed();
    (reader, stream)
}
