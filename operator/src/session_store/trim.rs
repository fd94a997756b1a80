//! Removes what a newer checkpoint of the same child has replaced.

use super::{Key, Store, StoreError};
use futures::TryStreamExt;
use object_store::path::Path;
use std::fs;

/// Where to look for what was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Among {
    /// Among those of earlier turns of the same activation.
    Turns,
    /// Among those of earlier activations as well.
    Activations,
}

impl Store {
    /// Removes the checkpoints of a child that are older than its `newest` one and that nobody names, and returns how many there
    /// were. Whoever calls it has read that the child's status names `newest`; whatever is written at the same time is newer, and
    /// left alone. It can be repeated, and one that dies in between leaves the rest for the next one.
    ///
    /// # Errors
    /// [`StoreError`]; some of them may be gone then.
    pub async fn trim(&self, newest: &Key, among: Among, is_named: impl Fn(&Key) -> bool) -> Result<usize, StoreError> {
        self.is_ours().await?;
        let place = match among {
            Among::Turns => format!("{}/{}", newest.child_uid, newest.epoch),
            Among::Activations => newest.child_uid.clone(),
        };
        let place = Path::from(place);
        let found = self.list_below(Some(&place)).map_ok(|found| Key::parse(found.location.as_ref()));
        let found: Vec<Key> = found.try_filter_map(|key| std::future::ready(Ok(key))).try_collect().await?;
        let is_older = |key: &Key| (key.epoch, key.turn) < (newest.epoch, newest.turn);
        let replaced: Vec<_> = found.into_iter().filter(|key| is_older(key) && !is_named(key)).collect();
        for key in &replaced {
            self.remove(key).await?;
            self.leave(key, newest).await?;
        }
        Ok(replaced.len())
    }

    /// Takes away the folders of a checkpoint that is gone, if they are empty: no turn of them is still to come.
    async fn leave(&self, key: &Key, newest: &Key) -> Result<(), StoreError> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let epoch = folder.join(&key.child_uid).join(key.epoch.to_string());
        let (turn, is_past) = (epoch.join(key.turn.to_string()), key.epoch < newest.epoch);
        let doing = format!("removing {}", turn.display());
        let leave = move || {
            let _ = fs::remove_dir(turn);
            if is_past {
                let _ = fs::remove_dir(epoch);
            }
            Ok(())
        };
        self.blocking(doing, self.step, leave).await
    }
}
