//! Calls to the API server: each with a limit in time, each error with what it means for a reconcile.

use crate::settings::CALL_TIMEOUT;
use kube::{Api, core::Status};
use serde::de::DeserializeOwned;
use std::{fmt::Debug, future::Future};

/// A read that failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The API server answered with an error, or not at all.
    #[error("reading {what}: {source}")]
    Call {
        /// What was read.
        what: String,
        /// The client's error.
        source: Box<kube::Error>,
    },
    /// No answer in time.
    #[error("reading {0}: no answer from the API server in time")]
    Timeout(String),
}

impl ReadError {
    /// True when the object is there and does not decode: reading again gives the same (pitfall C1).
    pub fn is_undecodable(&self) -> bool {
        matches!(self, Self::Call { source, .. } if matches!(**source, kube::Error::SerdeError(_)))
    }
}

/// A write that failed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Somebody wrote before us: read again.
    #[error("{0}: changed meanwhile")]
    Conflict(String),
    /// The object is gone.
    #[error("{0}: gone")]
    Gone(String),
    /// The API server refused what was written. Trying the same again does not help.
    #[error("{what}: {}", .status.message)]
    Refused {
        /// What was written.
        what: String,
        /// The API server's answer.
        status: Box<Status>,
    },
    /// Anything that may pass.
    #[error("{what}: {source}")]
    Call {
        /// What was written.
        what: String,
        /// The client's error.
        source: Box<kube::Error>,
    },
    /// No answer in time; it may have happened.
    #[error("{0}: no answer from the API server in time")]
    Timeout(String),
}

/// Reads one object live; absence is not an error.
///
/// # Errors
/// [`ReadError`] for anything but absence.
pub async fn get<K>(api: &Api<K>, name: &str) -> Result<Option<K>, ReadError>
where
    K: Clone + DeserializeOwned + Debug,
{
    match tokio::time::timeout(CALL_TIMEOUT, api.get_opt(name)).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(source)) => Err(ReadError::Call { what: name.to_owned(), source: Box::new(source) }),
        Err(_) => Err(ReadError::Timeout(name.to_owned())),
    }
}

/// Runs a write.
///
/// # Errors
/// [`WriteError`], sorted by what a reconcile does about it.
pub async fn write<T>(
    what: impl Into<String>,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, WriteError> {
    let what = what.into();
    match tokio::time::timeout(CALL_TIMEOUT, call).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(kube::Error::Api(status))) => Err(sort(what, status)),
        Ok(Err(source)) => Err(WriteError::Call { what, source: Box::new(source) }),
        Err(_) => Err(WriteError::Timeout(what)),
    }
}

fn sort(what: String, status: Box<Status>) -> WriteError {
    match status.code {
        404 | 410 => WriteError::Gone(what),
        409 if status.reason != "AlreadyExists" => WriteError::Conflict(what),
        400 | 403 | 409 | 413 | 422 => WriteError::Refused { what, status },
        _ => WriteError::Call { what, source: Box::new(kube::Error::Api(status)) },
    }
}
