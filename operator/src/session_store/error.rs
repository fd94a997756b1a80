//! What a failure means: does it pass by itself, or must somebody change something.

use std::{error::Error as StdError, io, time::Duration};

/// A setting that names no store.
#[derive(Debug, thiserror::Error)]
#[error(
    "session store {url:?} (SUBAGENT_SESSION_STORE, the chart's sessionStore.url): {why}; use file:///FOLDER, \
     s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX, or leave it empty for none"
)]
pub struct SettingError {
    pub(super) url: String,
    pub(super) why: String,
}

/// The store did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It cannot: full, read-only, not there, no rights. Trying again does not help until somebody has changed that.
    #[error("the session store {store} cannot be used: {why}; {remedy}")]
    Unusable {
        /// Its URL.
        store: String,
        /// What it said.
        why: String,
        /// What to do.
        remedy: &'static str,
    },
    /// It is not the one that holds this installation's sessions. They are not lost, and whoever waits may get what is asked.
    #[error("the session store {store} is not this installation's: {why}; {remedy}")]
    Foreign {
        /// Its URL.
        store: String,
        /// How that is known.
        why: String,
        /// What to do.
        remedy: String,
    },
    /// Whether it is this installation's is not known: the API server does not say. Nothing is known of the store by that.
    #[error("whether the session store {store} is this installation's is not known: {why}")]
    Unknown {
        /// Its URL.
        store: String,
        /// What was asked for, and what came.
        why: String,
    },
    /// It may, the next time.
    #[error("the session store {store} did not do it: {why}")]
    Unavailable {
        /// Its URL.
        store: String,
        /// What it said, or that it said nothing.
        why: String,
    },
}

/// Longest text of a store that is passed on, in bytes: some answer with whole pages.
const WHY: usize = 512;

impl StoreError {
    pub(super) fn of(store: &str, error: &object_store::Error) -> Self {
        let (store, why) = (store.to_owned(), subagent_crds::conditions::cut(&error.to_string(), WHY));
        match remedy(error) {
            Some(remedy) => Self::Unusable { store, why, remedy },
            None => Self::Unavailable { store, why },
        }
    }

    pub(super) fn of_io(store: &str, doing: &str, error: &io::Error) -> Self {
        let (store, why) = (store.to_owned(), format!("{doing}: {error}"));
        match io_remedy(error) {
            Some(remedy) => Self::Unusable { store, why, remedy },
            None => Self::Unavailable { store, why },
        }
    }

    pub(super) fn silent(store: &str, after: Duration) -> Self {
        Self::Unavailable { store: store.to_owned(), why: format!("no answer within {} s", after.as_secs()) }
    }

    /// What a tenant reads: what to do, and nothing of what a store or a cloud says of itself, its accounts and paths. That is in
    /// the operator's log.
    pub fn told(&self) -> String {
        match self {
            Self::Unusable { remedy, .. } => {
                format!("the session store cannot be used; whoever runs the operator: {remedy}")
            }
            Self::Foreign { remedy, .. } => {
                format!(
                    "the session store is not the one with this installation's sessions; whoever runs the operator: {remedy}"
                )
            }
            Self::Unknown { .. } => {
                "whether the session store is this installation's is not known; the operator's log says why".to_owned()
            }
            Self::Unavailable { .. } => "the session store did not do it; the operator's log says why".to_owned(),
        }
    }

    /// True when the same may succeed later: without anybody doing anything, or because it is worth waiting for somebody who does.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Unknown { .. } | Self::Foreign { .. })
    }
}

fn remedy(error: &object_store::Error) -> Option<&'static str> {
    use object_store::Error;
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(remedy) = error.downcast_ref::<io::Error>().and_then(io_remedy) {
            return Some(remedy);
        }
        cause = error.source();
    }
    match error {
        Error::NotFound { .. } => Some("create the bucket, or correct sessionStore.url"),
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => Some(
            "give the operator credentials that may read, write, list and delete there (sessionStore.env, envFrom)",
        ),
        Error::NotSupported { .. } | Error::NotImplemented { .. } | Error::UnknownConfigurationKey { .. } => {
            Some("use a store that can do this")
        }
        _ => None,
    }
}

fn io_remedy(error: &io::Error) -> Option<&'static str> {
    use io::ErrorKind;
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            Some("make room there or give the volume a larger size (sessionStore.persistence.size)")
        }
        ErrorKind::ReadOnlyFilesystem => Some("mount a volume there that can be written"),
        ErrorKind::PermissionDenied => Some("let the operator's user (65532) write there, or its group (fsGroup)"),
        ErrorKind::NotADirectory => Some("name a folder in sessionStore.url"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn of_folder(code: i32) -> object_store::Error {
        object_store::Error::Generic { store: "LocalFileSystem", source: Box::new(io::Error::from_raw_os_error(code)) }
    }

    /// R10: what a person must change is told from what passes.
    #[rstest]
    #[case::full(of_folder(28), false)]
    #[case::over_quota(of_folder(122), false)]
    #[case::read_only(of_folder(30), false)]
    #[case::no_rights(of_folder(13), false)]
    #[case::a_device_that_fails(of_folder(5), true)]
    #[case::too_many_open_files(of_folder(24), true)]
    #[case::no_bucket(object_store::Error::NotFound { path: "b".into(), source: "404".into() }, false)]
    #[case::no_rights_in_a_cloud(object_store::Error::PermissionDenied { path: "b".into(), source: "403".into() }, false)]
    #[case::overloaded(object_store::Error::Generic { store: "S3", source: "503 SlowDown".into() }, true)]
    fn r10_what_stays_is_told_from_what_passes(#[case] error: object_store::Error, #[case] passes: bool) {
        let error = StoreError::of("file:///x", &error);
        assert_eq!(error.may_pass(), passes, "{error}");
        assert!(error.to_string().contains("file:///x"), "{error}");
        assert!(!error.told().contains("file:///x") && !error.told().contains("40"), "{}", error.told());
    }
}
