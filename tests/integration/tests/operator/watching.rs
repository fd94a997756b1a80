//! Every version of the objects of a kind, as a watch shows them: for questions about order.

use futures::StreamExt;
use integration_tests::TestNamespace;
use kube::{Resource, ResourceExt, api::WatchEvent, api::WatchParams, core::NamespaceResourceScope};
use serde::de::DeserializeOwned;
use std::{
    fmt::Debug,
    sync::{Arc, Mutex},
};

/// One version of an object.
#[derive(Clone, Debug)]
pub struct Version<K> {
    /// Its place among all writes to the API server.
    pub at: u64,
    /// The object.
    pub object: K,
    /// Whether this is the last one: the object is gone.
    pub is_gone: bool,
}

/// What a watch has seen so far.
#[derive(Clone)]
pub struct History<K> {
    namespace: TestNamespace,
    versions: Arc<Mutex<Vec<Version<K>>>>,
}

impl<K> History<K>
where
    K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Default,
{
    /// Begins to watch a namespace.
    pub async fn of(namespace: &TestNamespace) -> Self {
        let api = namespace.api::<K>();
        let params = WatchParams::default();
        let mut events = api.watch(&params, "0").await.expect("a watch").boxed();
        let history = Self { namespace: namespace.clone(), versions: Arc::default() };
        let seen = history.versions.clone();
        tokio::spawn(async move {
            while let Some(Ok(event)) = events.next().await {
                let (object, is_gone) = match event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                    WatchEvent::Deleted(object) => (object, true),
                    WatchEvent::Bookmark(_) | WatchEvent::Error(_) => continue,
                };
                let at = object.resource_version().and_then(|at| at.parse().ok()).expect("a resourceVersion");
                seen.lock().expect("the history").push(Version { at, object, is_gone });
            }
        });
        history
    }

    /// Waits for the first version that fits, and tells where it is.
    pub async fn at(&self, what: &str, fits: impl Fn(&Version<K>) -> bool) -> u64 {
        let look = async || self.first(&fits).ok_or_else(|| "not seen yet".to_owned());
        self.namespace.eventually(what, crate::world::LIMIT, look).await
    }

    /// Where the first version is that fits.
    pub fn first(&self, fits: impl Fn(&Version<K>) -> bool) -> Option<u64> {
        self.versions.lock().expect("the history").iter().find(|version| fits(version)).map(|version| version.at)
    }

    /// The newest version that fits.
    pub fn last(&self, fits: impl Fn(&Version<K>) -> bool) -> Option<Version<K>> {
        self.versions.lock().expect("the history").iter().rev().find(|version| fits(version)).cloned()
    }
}
