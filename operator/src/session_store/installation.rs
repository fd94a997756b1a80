//! Whether the store that is there is this installation's. A wrong one looks like a good one in which everything is lost:
//! another volume under the same path, another bucket after a change of the setting. Whoever believed it would give up every
//! session, and store new ones where they are missed later.
//!
//! So the store carries a mark, an object with a random id, and a ConfigMap in the operator's namespace holds the same id. Both
//! are made when the leader finds neither, the mark first: a process that dies in between leaves a mark, and the next one takes
//! that. Neither is ever overwritten. While the ConfigMap is not there, nothing is known, and any store will do.
//!
//! Who moves sessions moves the mark along with them. Who means another store, deletes the ConfigMap: the store that is there
//! then is taken as it is.

use super::{Store, StoreError};
use crate::api::{self, ReadError, WriteError};
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client, api::PostParams};
use object_store::{ObjectStoreExt, PutMode, PutOptions, path::Path};
use std::{
    collections::BTreeMap,
    error::Error as StdError,
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use subagent_crds::names;
use tokio_util::sync::CancellationToken;

/// Name of the mark in the store; no UID of a child looks like it.
const MARK: &str = "installation_of_the_operator";
/// Key of the id in the ConfigMap.
const ID: &str = "id";
/// How long a store that was ours counts as ours without another look.
const HOLDS: Duration = Duration::from_secs(10);
/// Longest mark that is read as one, in bytes: what is longer was written by somebody else.
const LONGEST: usize = 64;
/// Time between two looks of a leader whose store is its own.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Where this installation remembers which store is its own.
pub struct Installation {
    config_maps: Api<ConfigMap>,
    /// Namespace and name of the ConfigMap.
    namespace: String,
    name: String,
    /// When the store was ours last, and by which id.
    seen: Mutex<Option<(Instant, String)>>,
    /// Held by whoever takes a store: of two in one process the second goes on from what the first has stored.
    taking: tokio::sync::Mutex<()>,
}

impl fmt::Debug for Installation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Installation").field("namespace", &self.namespace).field("name", &self.name).finish()
    }
}

impl Installation {
    /// The one that remembers it in this ConfigMap.
    pub fn new(client: Client, namespace: &str, name: &str) -> Self {
        let config_maps = Api::namespaced(client, namespace);
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Self { config_maps, namespace, name, seen: Mutex::default(), taking: tokio::sync::Mutex::default() }
    }

    /// The id of its store; none while it knows of no store. It never changes, so an API server that is away keeps nobody from
    /// what was known before.
    async fn known(&self) -> Result<Option<String>, ReadError> {
        match api::get(&self.config_maps, &self.name).await {
            // One without an id knows a store nobody has, so that somebody looks.
            Ok(found) => Ok(found.map(|found| found.data.unwrap_or_default().remove(ID).unwrap_or_default())),
            Err(error) => self.seen().clone().map(|(_, id)| Some(id)).ok_or(error),
        }
    }

    /// Remembers it, unless another one is remembered meanwhile.
    async fn remember(&self, id: &str, url: &str) -> Result<(), WriteError> {
        let metadata = ObjectMeta {
            name: Some(self.name.clone()),
            namespace: Some(self.namespace.clone()),
            ..ObjectMeta::default()
        };
        let data = BTreeMap::from([(ID.to_owned(), id.to_owned()), ("url".to_owned(), url.to_owned())]);
        let config_map = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
        let params = PostParams { field_manager: Some(names::CONTROLLER_MANAGER.into()), ..PostParams::default() };
        let what = format!("ConfigMap {}", self.name);
        match api::write(what, self.config_maps.create(&params, &config_map)).await {
            Err(WriteError::Refused { status, .. }) if status.reason == "AlreadyExists" => Ok(()),
            other => other.map(drop),
        }
    }

    fn seen(&self) -> MutexGuard<'_, Option<(Instant, String)>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn was_seen(&self) -> bool {
        self.seen().as_ref().is_some_and(|(when, _)| when.elapsed() < HOLDS)
    }

    fn see(&self, id: String) {
        *self.seen() = Some((Instant::now(), id));
    }

    fn unknown(&self, store: &str, why: &dyn fmt::Display) -> StoreError {
        let why = format!("ConfigMap {}/{}: {why}", self.namespace, self.name);
        StoreError::Unknown { store: store.to_owned(), why }
    }
}

impl Store {
    /// The store, used by an installation that knows its own.
    pub fn of(self, installation: Installation) -> Self {
        Self { installation: Some(installation), ..self }
    }

    /// Makes sure that the store is this installation's, or was a moment ago. One that knows of none takes any.
    ///
    /// # Errors
    /// [`StoreError::Foreign`], or what keeps it from being known.
    pub(super) async fn is_ours(&self) -> Result<(), StoreError> {
        if self.installation.as_ref().is_some_and(Installation::was_seen) {
            Ok(())
        } else {
            self.is_ours_now().await.map(drop)
        }
    }

    /// The same, looked at now. False when nothing is known.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(super) async fn is_ours_now(&self) -> Result<bool, StoreError> {
        let Some(installation) = &self.installation else { return Ok(false) };
        let known = installation.known().await.map_err(|error| installation.unknown(&self.url, &error))?;
        let Some(known) = known else { return Ok(false) };
        self.compare(installation, &known, self.mark().await?.as_deref())?;
        installation.see(known);
        Ok(true)
    }

    /// Makes this store the installation's own if it knows of none yet. For the leader: others look, and wait for it.
    ///
    /// # Errors
    /// [`StoreError`]; the next try goes on from what is stored.
    pub async fn take_as_ours(&self) -> Result<(), StoreError> {
        let Some(installation) = &self.installation else { return Ok(()) };
        let unknown = |error: &dyn fmt::Display| installation.unknown(&self.url, error);
        let _alone = installation.taking.lock().await;
        if installation.known().await.map_err(|error| unknown(&error))?.is_none() {
            let mark = match self.mark().await? {
                Some(mark) => mark,
                None => self.put_mark().await?,
            };
            installation.remember(&mark, &self.url).await.map_err(|error| unknown(&error))?;
            tracing::info!(url = self.url, config_map = installation.name, "the session store is this installation's");
        }
        self.is_ours_now().await.map(drop)
    }

    fn compare(&self, installation: &Installation, known: &str, mark: Option<&str>) -> Result<(), StoreError> {
        let why = match mark {
            Some(mark) if mark == known => return Ok(()),
            Some(_) => "it is marked as another one",
            None => "it has no mark",
        };
        let (namespace, name) = (&installation.namespace, &installation.name);
        Err(StoreError::Foreign {
            store: self.url.clone(),
            why: format!("{why}, ConfigMap {namespace}/{name} names mark {known}"),
            remedy: format!(
                "mount the volume or name the bucket with this installation's sessions (sessionStore); if this store is meant, \
                 run kubectl -n {namespace} delete configmap {name}"
            ),
        })
    }

    /// The id in the store.
    async fn mark(&self) -> Result<Option<String>, StoreError> {
        use object_store::Error::NotFound;
        let objects = self.objects.clone();
        let read = self.step(async move {
            match objects.get(&Path::from(MARK)).await {
                Ok(found) => Ok(Some(found.bytes().await?)),
                Err(NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        });
        let read = read.await?;
        Ok(read.map(|read| String::from_utf8_lossy(&read[..read.len().min(LONGEST)]).trim().to_owned()))
    }

    /// Marks the store, unless somebody has done so meanwhile; the id that is there then.
    async fn put_mark(&self) -> Result<String, StoreError> {
        use object_store::Error::{AlreadyExists, Precondition};
        let id = format!("{:032x}", rand::random::<u128>());
        let (objects, written) = (self.objects.clone(), id.clone());
        let create = self.step(async move {
            let create = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            match objects.put_opts(&Path::from(MARK), written.into(), create).await {
                Ok(_) | Err(AlreadyExists { .. } | Precondition { .. }) => Ok(true),
                Err(error) if cannot_create(&error) => Ok(false),
                Err(error) => Err(error),
            }
        });
        // There is one leader, and it has just looked. A step of its own: a call that hangs is not followed by another one when
        // it is over, long after somebody else has marked the store.
        if !create.await? && self.mark().await?.is_none() {
            let (objects, written) = (self.objects.clone(), id.clone());
            self.step(async move { objects.put(&Path::from(MARK), written.into()).await }).await?;
        }
        Ok(self.mark().await?.unwrap_or(id))
    }
}

/// Whether the place has no way to write only what is not there yet: a file system without hard links, or a server of a bucket that
/// does not know such a condition. What merely failed may have happened, or may still happen.
fn cannot_create(error: &object_store::Error) -> bool {
    use object_store::Error::{NotImplemented, NotSupported};
    // A server's answer has no type that can be asked. Each speaks of the status or, as S3 does, of its code.
    let said = error.to_string();
    let is_answer = said.contains("501 Not Implemented") || said.contains("<Code>NotImplemented</Code>");
    is_answer || matches!(error, NotImplemented { .. } | NotSupported { .. }) || has_no_links(error)
}

fn has_no_links(error: &object_store::Error) -> bool {
    use io::ErrorKind::{PermissionDenied, TooManyLinks, Unsupported};
    /// What Linux says of an NFS server that cannot; it has no name outside the kernel.
    const ENOTSUPP: i32 = 524;
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = cause {
        // No permission: that is the answer of many. Where it is really missing, nothing else can be written either.
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return matches!(error.kind(), PermissionDenied | TooManyLinks | Unsupported)
                || error.raw_os_error() == Some(ENOTSUPP);
        }
        cause = error.source();
    }
    false
}

/// Looks again and again whether the store is this installation's, for whoever leads. It becomes so the first time; later it is
/// said when that changes.
pub async fn watch(store: Option<Arc<Store>>, shutdown: CancellationToken) {
    let Some(store) = store else { return shutdown.cancelled().await };
    let mut last = None;
    while let Some(looked) = shutdown.run_until_cancelled(store.take_as_ours()).await {
        let news = looked.err();
        if last.as_ref() != Some(&news) {
            match &news {
                None => tracing::info!(url = store.url(), "the session store is the one that this installation knows"),
                Some(error) => tracing::error!(%error, "sessions are neither stored nor given out"),
            }
        }
        let pause = if news.is_none() { LOOK_AGAIN } else { HOLDS };
        last = Some(news);
        if shutdown.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return;
        }
    }
}

#[cfg(test)]
#[path = "installation_tests.rs"]
mod tests;
