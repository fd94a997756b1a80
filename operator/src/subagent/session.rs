//! The session store, as far as a child needs it: whether it can be used, and that a deleted child's session is removed.

use super::validate::Store;
use crate::{context::Context, session_store::StoreError};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Mutex;

/// How long what a try of the store came to holds for other children: many that are created at once ask once.
const HOLDS: Duration = Duration::from_secs(10);

/// What a try came to.
type Tried = Result<Store, StoreError>;

/// What the last try of the store came to, and when it was over. Whoever asks while it is tried waits for that.
pub type LastTry = Arc<Mutex<Option<(Instant, Tried)>>>;

/// Whether the store can be used right now: it is this installation's, and is written, read and removed from.
///
/// # Errors
/// [`StoreError::Unknown`]: the API server does not say whose the store is. That is no word about the store.
pub async fn state(context: &Context) -> Tried {
    let Some(store) = &context.store else { return Ok(Store::None) };
    let try_it = async || {
        store.take_as_ours().await?;
        store.check().await
    };
    tried(&context.store_tried, Instant::now, async || meaning(try_it().await)).await
}

/// What an answer says about the store. A child is turned away for ever by what the store does, not by the API server's mood.
fn meaning(answer: Result<(), StoreError>) -> Tried {
    match answer {
        Ok(()) => Ok(Store::Usable),
        Err(error @ StoreError::Unknown { .. }) => Err(error),
        Err(error) => {
            tracing::warn!(%error, "the session store cannot be used");
            Ok(Store::Unusable(error.told()))
        }
    }
}

async fn tried(last: &LastTry, clock: impl Fn() -> Instant, try_it: impl AsyncFnOnce() -> Tried) -> Tried {
    let mut last = last.lock().await;
    if let Some((_, state)) = last.as_ref().filter(|(when, _)| clock() < *when + HOLDS) {
        return state.clone();
    }
    let state = try_it().await;
    *last = Some((clock(), state.clone()));
    state
}

/// Removes everything that is stored of the child with this UID.
///
/// # Errors
/// What is in the way, for a person.
pub async fn forget(context: &Context, uid: &str) -> Result<(), String> {
    match &context.store {
        Some(store) => store.delete_prefix(uid).await.map_err(|error| {
            tracing::warn!(%error, uid, "a child's session was not removed");
            error.told()
        }),
        // Whoever took the store away took the session along.
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn c34_children_that_are_created_at_once_try_the_store_once() {
        let (last, tries, start) = (LastTry::default(), AtomicUsize::new(0), Instant::now());
        let ask = |second: u64| {
            let clock = move || start + Duration::from_secs(second);
            tried(&last, clock, async || {
                tokio::task::yield_now().await;
                match tries.fetch_add(1, Ordering::Relaxed) {
                    0 => Ok(Store::Unusable("silent".into())),
                    _ => Ok(Store::Usable),
                }
            })
        };
        let silent = Ok(Store::Unusable("silent".into()));
        assert_eq!(tokio::join!(ask(1), ask(1)), (silent.clone(), silent.clone()));
        assert_eq!((ask(10).await, tries.load(Ordering::Relaxed)), (silent, 1));
        assert_eq!((ask(11).await, tries.load(Ordering::Relaxed)), (Ok(Store::Usable), 2));
    }

    /// c34: what the API server does not say is asked again; what the store does decides.
    #[test]
    fn c34_an_api_server_that_does_not_answer_says_nothing_of_the_store() {
        let (store, why) = ("s".to_owned(), "away".to_owned());
        let unknown = StoreError::Unknown { store: store.clone(), why: why.clone() };
        assert_eq!(meaning(Err(unknown.clone())), Err(unknown));
        let foreign = StoreError::Foreign { store: store.clone(), why: why.clone(), remedy: why.clone() };
        for error in [StoreError::Unavailable { store, why }, foreign] {
            assert!(matches!(meaning(Err(error)), Ok(Store::Unusable(_))));
        }
    }
}
