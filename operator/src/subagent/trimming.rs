//! What one child keeps in the session store stays bounded, however many turns it has: once its status names a newer
//! checkpoint, those that this one replaces go at once.
//!
//! The order makes it safe, whoever does it and however late. A child's status never goes back to an older checkpoint. An
//! activation's run is created after what the one before it came to is stored, and continues from what the status names then:
//! so no run ever continues from an earlier turn of an activation whose later turn is stored. The last checkpoints of earlier
//! activations may be named by their runs, so these are read when an activation has stored its first one.
//!
//! It is done beside the reconciles: a store that hangs holds up no message. What is to be done is only in memory. Who dies
//! leaves it to the child's next turn, which looks for everything that is older of its activation, and in the end to the sweep.

use crate::{
    api::{self, ReadError},
    context::Context,
    decoding::Guarded,
    session_store::{Among, Key, Store, StoreError, sweep::References},
};
use futures::{StreamExt, stream};
use kube::{Api, ResourceExt, api::ListParams};
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};
use subagent_crds::{Subagent, SubagentRun, names};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Children at a time: a store that is slow for one is so for others.
const AT_A_TIME: usize = 4;
/// Runs per page: each may carry a hundred kilobytes of messages.
const PAGE: u32 = 50;

/// Children whose newest checkpoint was just recorded. At most one note for each.
#[derive(Debug, Default)]
pub struct Trimming {
    noted: Mutex<HashMap<String, Recorded>>,
    news: Notify,
}

/// What a child's status names since a short while.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Recorded {
    namespace: String,
    newest: Key,
    among: Among,
}

/// Room that was not made. Nothing is lost by that.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl Recorded {
    /// What a write of a child's status has recorded, if that is a checkpoint of it.
    fn between(before: &Subagent, stored: &Subagent) -> Option<Self> {
        let checkpoint = |child: &Subagent| child.status.as_ref().and_then(|status| status.checkpoint.clone());
        let (before, newest) = (checkpoint(before), checkpoint(stored)?);
        let key = Key::parse(&newest.key).filter(|key| Some(&key.child_uid) == stored.metadata.uid.as_ref())?;
        if before.as_ref().is_some_and(|before| before.key == newest.key) {
            return None;
        }
        let is_first = before.is_none_or(|before| before.epoch != newest.epoch);
        let among = if is_first { Among::Activations } else { Among::Turns };
        Some(Self { namespace: stored.namespace().unwrap_or_default(), newest: key, among })
    }
}

impl Trimming {
    /// Notes what the API server has stored of a child, which was `before` until then.
    pub fn note(&self, before: &Subagent, stored: &Subagent) {
        let Some(mut recorded) = Recorded::between(before, stored) else { return };
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let uid = recorded.newest.child_uid.clone();
        if noted.get(&uid).is_some_and(|waits| waits.among == Among::Activations) {
            recorded.among = Among::Activations;
        }
        noted.insert(uid, recorded);
        drop(noted);
        self.news.notify_one();
    }

    fn take(&self) -> Vec<Recorded> {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        noted.drain().map(|(_, recorded)| recorded).collect()
    }

    /// Notes again what failed, for when the next checkpoint of any child is recorded. A newer note stays, and does that too.
    fn put_back(&self, failed: Recorded) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let among = failed.among;
        let waits = noted.entry(failed.newest.child_uid.clone()).or_insert(failed);
        if among == Among::Activations {
            waits.among = among;
        }
    }
}

/// Makes room until the token is cancelled. Without a store there is nothing to do but wait for that.
pub async fn run(context: Context, shutdown: CancellationToken) {
    let Some(store) = context.store.clone() else { return shutdown.cancelled().await };
    while shutdown.run_until_cancelled(context.trimming.news.notified()).await.is_some() {
        let trimming = context.trimming.take().into_iter().map(|recorded| make_room(&context, &store, recorded));
        let trimming = stream::iter(trimming.collect::<Vec<_>>()).buffer_unordered(AT_A_TIME).collect::<()>();
        if shutdown.run_until_cancelled(trimming).await.is_none() {
            return;
        }
    }
}

async fn make_room(context: &Context, store: &Store, recorded: Recorded) {
    let (namespace, newest) = (&recorded.namespace, &recorded.newest);
    match trim(context, store, &recorded).await {
        Ok(0) => {}
        Ok(removed) => tracing::debug!(namespace, %newest, removed, "replaced checkpoints were removed"),
        Err(error) => {
            tracing::warn!(namespace, %newest, %error, "replaced checkpoints were not removed; the next turn tries again");
            context.trimming.put_back(recorded);
        }
    }
}

async fn trim(context: &Context, store: &Store, recorded: &Recorded) -> Result<usize, Error> {
    let Recorded { namespace, newest, among } = recorded;
    let named = match among {
        Among::Turns => References::default(),
        Among::Activations => named_by_runs(context, namespace, &newest.child_uid).await?,
    };
    Ok(store.trim(newest, *among, |key| named.may_name(key)).await?)
}

/// What the runs of a child's activations name, read live.
async fn named_by_runs(context: &Context, namespace: &str, uid: &str) -> Result<References, ReadError> {
    let runs: Api<Guarded<SubagentRun>> = Api::namespaced(context.client.clone(), namespace);
    let params = ListParams::default().labels(&format!("{}={uid}", names::SUBAGENT_UID_LABEL)).limit(PAGE);
    let mut found = References::default();
    let note = |run| {
        found.of_run(run);
        None::<()>
    };
    api::list(&runs, params, "activations", note).await?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn child(checkpoint: Value) -> Subagent {
        let mut child = json!({
            "apiVersion": "subagents.dev/v1alpha1", "kind": "Subagent",
            "metadata": {"name": "c", "namespace": "n", "uid": "child"},
            "spec": {"providerRef": {"name": "p"}, "description": "d", "messages": [{"id": "m", "text": "t"}]},
            "status": {},
        });
        if !checkpoint.is_null() {
            child["status"]["checkpoint"] = checkpoint;
        }
        serde_json::from_value(child).unwrap()
    }

    fn stored(epoch: i64, turn: i64) -> Subagent {
        let digest = "0a".repeat(32);
        let key = crate::session_store::key("child", epoch, turn, &digest);
        child(json!({"key": key, "digest": digest, "size": 1, "epoch": epoch, "turn": turn}))
    }

    fn noted(trimming: &Trimming) -> Vec<(i64, i64, Among)> {
        trimming.take().into_iter().map(|one| (one.newest.epoch, one.newest.turn, one.among)).collect()
    }

    #[test]
    fn r10_only_a_checkpoint_that_was_recorded_replaces_others() {
        let trimming = Trimming::default();
        trimming.note(&stored(2, 3), &stored(2, 3));
        trimming.note(&child(Value::Null), &child(Value::Null));
        assert_eq!(noted(&trimming), []);
        trimming.note(&stored(2, 3), &stored(2, 4));
        assert_eq!(noted(&trimming), [(2, 4, Among::Turns)]);
        assert_eq!(noted(&trimming), [], "once");
    }

    #[test]
    fn the_first_of_an_activation_replaces_those_before_it() {
        let trimming = Trimming::default();
        trimming.note(&stored(1, 9), &stored(2, 1));
        // Before anybody had time for the first one.
        trimming.note(&stored(2, 1), &stored(2, 2));
        assert_eq!(noted(&trimming), [(2, 2, Among::Activations)], "one note for each child");
        trimming.note(&child(Value::Null), &stored(1, 1));
        assert_eq!(noted(&trimming), [(1, 1, Among::Activations)]);
    }

    /// Above all the first of an activation: no later turn of it looks at those before it.
    #[test]
    fn r10_what_was_not_removed_is_tried_again_with_the_next_one() {
        let trimming = Trimming::default();
        let failed = |before, after| {
            trimming.note(&before, &after);
            trimming.take().remove(0)
        };
        trimming.put_back(failed(stored(1, 9), stored(2, 1)));
        assert_eq!(noted(&trimming), [(2, 1, Among::Activations)]);
        let first = failed(stored(1, 9), stored(2, 1));
        trimming.note(&stored(2, 1), &stored(2, 2));
        trimming.put_back(first);
        assert_eq!(noted(&trimming), [(2, 2, Among::Activations)], "the newer one, as far as both");
        let turn = failed(stored(2, 1), stored(2, 2));
        trimming.note(&stored(2, 2), &stored(3, 1));
        trimming.put_back(turn);
        assert_eq!(noted(&trimming), [(3, 1, Among::Activations)]);
    }

    #[test]
    fn a_key_of_another_child_replaces_nothing() {
        let trimming = Trimming::default();
        let mut other = stored(1, 2);
        other.metadata.uid = Some("another".into());
        trimming.note(&stored(1, 1), &other);
        assert_eq!(noted(&trimming), []);
    }
}
