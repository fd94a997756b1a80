//! Calls to the API server: each with a limit in time, each error with what it means for a reconcile.

use crate::settings::CALL_TIMEOUT;
use kube::{
    Api,
    api::{ListParams, Patch},
    core::Status,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, value::RawValue};
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
    // A name goes into a URL. One that no object can have is absent, and never another path.
    if !is_name(name) {
        return Ok(None);
    }
    match tokio::time::timeout(CALL_TIMEOUT, api.get_opt(name)).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(source)) => Err(ReadError::Call { what: name.to_owned(), source: Box::new(source) }),
        Err(_) => Err(ReadError::Timeout(name.to_owned())),
    }
}

/// Lists objects live, page by page; keeps what `keep` makes of them.
///
/// # Errors
/// [`ReadError`] when a page does not come.
pub async fn list<K, T>(
    api: &Api<K>,
    params: ListParams,
    what: &str,
    mut keep: impl FnMut(K) -> Option<T>,
) -> Result<Vec<T>, ReadError>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut kept = vec![];
    let mut params = params;
    loop {
        let page = match tokio::time::timeout(CALL_TIMEOUT, api.list(&params)).await {
            Ok(Ok(page)) => page,
            Ok(Err(source)) => return Err(ReadError::Call { what: what.to_owned(), source: Box::new(source) }),
            Err(_) => return Err(ReadError::Timeout(what.to_owned())),
        };
        kept.extend(page.items.into_iter().filter_map(&mut keep));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(kept),
        }
    }
}

/// True for what the API server takes as a name.
fn is_name(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let is_edge = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.bytes().all(is_inner)
        && name.as_bytes().first().is_some_and(is_edge)
        && name.as_bytes().last().is_some_and(is_edge)
}

/// The body of a server-side apply. The API server reads it **as YAML**, where some characters that JSON leaves as they
/// are are refused (DEL and the C1 controls) or folded like line breaks (NEL, U+2028, U+2029): a result would be lost or
/// changed. Escaped, they are themselves again.
pub fn apply_body(body: &Value) -> Patch<Box<RawValue>> {
    let mut text = String::new();
    for character in body.to_string().chars() {
        match character {
            '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
                text.push_str(&format!("\\u{:04x}", u32::from(character)));
            }
            _ => text.push(character),
        }
    }
    // Text of a JSON value with characters replaced by their own escapes is JSON again.
    Patch::Apply(RawValue::from_string(text).unwrap_or_else(|_| RawValue::NULL.to_owned()))
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

/// True when a create was refused because its namespace is being deleted.
pub fn is_namespace_terminating(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
}

/// A quota that is full, or one so new that nobody has counted yet what it limits. The API server has no reason of its
/// own for either, only words.
pub fn is_quota(status: &Status) -> bool {
    status.code == 403
        && ["exceeded quota", "status unknown for quota"].iter().any(|words| status.message.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case("echo", true)]
    #[case("a.b-1", true)]
    #[case("", false)]
    #[case("../pods/x", false)]
    #[case("scripted?x=y", false)]
    #[case("no\u{7f}such", false)]
    #[case("-a", false)]
    #[case("A", false)]
    fn d1_a_name_that_no_object_can_have_is_never_a_path(#[case] name: &str, #[case] expected: bool) {
        assert_eq!(is_name(name), expected);
    }

    /// T3: the API server reads applies as YAML.
    #[test]
    fn c28_t3_every_character_survives_an_apply() {
        let text: String = (0..=0x2100_u32).chain(0xfdc0..=0x1_0010).filter_map(char::from_u32).collect();
        let body = json!({"status": {"result": {"text": text}}});
        let Patch::Apply(raw) = apply_body(&body) else { panic!("an apply") };
        let harmful =
            |c: char| matches!(c, '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}');
        assert!(!raw.get().chars().any(harmful));
        assert_eq!(serde_json::from_str::<Value>(raw.get()).unwrap(), body);
    }
}
