//! The session store, as far as a child needs it: whether it can be used, and that a deleted child's session is removed.

use super::validate::Store;
use crate::context::Context;

/// Whether the store can be used right now: it is written, read and removed from.
pub async fn state(context: &Context) -> Store {
    let Some(store) = &context.store else { return Store::None };
    match store.check().await {
        Ok(()) => Store::Usable,
        Err(error) => Store::Unusable(error.to_string()),
    }
}

/// Removes everything that is stored of the child with this UID.
///
/// # Errors
/// What is in the way, for a person.
pub async fn forget(context: &Context, uid: &str) -> Result<(), String> {
    match &context.store {
        Some(store) => store.delete_prefix(uid).await.map_err(|error| error.to_string()),
        // Whoever took the store away took the session along.
        None => Ok(()),
    }
}
