//! One try of an upload: a request of its own beside the link, with the same token, roots and fence.

use super::request::send;
use crate::config::Settings;
use anyhow::Context;
use http_body_util::Full;
use hyper::{Method, body::Bytes};
use subagent_link::{ResultUpload, UPLOAD_TIMEOUT, refused_for_good};
use tokio::time::timeout;

/// What is to be uploaded. A clone shares the bytes.
#[derive(Clone, Debug)]
pub struct Content {
    /// What the request says of it.
    pub announced: ResultUpload,
    /// The bytes.
    pub bytes: Bytes,
}

/// A request that did not lead to what was asked.
#[derive(Debug)]
pub enum Failure {
    /// It never will: the gateway's HTTP status, and what it said.
    Refused(u16, String),
    /// Another try may help: the gateway's HTTP status, if it answered, and what was in the way.
    Trouble(Option<u16>, String),
}

impl Failure {
    /// An answer that is none of the good ones.
    pub fn answered(status: u16, said: String) -> Self {
        if refused_for_good(status) {
            Self::Refused(status, said)
        } else {
            Self::Trouble(Some(status), format!("{said} (HTTP status {status} of the gateway)"))
        }
    }
}

impl From<anyhow::Error> for Failure {
    /// No answer at all.
    fn from(error: anyhow::Error) -> Self {
        Self::Trouble(None, format!("{error:#}"))
    }
}

/// Uploads, and returns once it is stored.
///
/// # Errors
/// [`Failure`].
pub async fn put(settings: &Settings, content: &Content) -> Result<(), Failure> {
    let request = timeout(UPLOAD_TIMEOUT, request(settings, content)).await;
    let (status, said) = request.context("it took too long").and_then(std::convert::identity)?;
    if (200..300).contains(&status) { Ok(()) } else { Err(Failure::answered(status, said)) }
}

async fn request(settings: &Settings, content: &Content) -> anyhow::Result<(u16, String)> {
    let (path, bytes) = (content.announced.path(), content.bytes.clone());
    let size = bytes.len() as u64;
    let answer = send(settings, Method::PUT, path, Full::new(bytes), size).await?;
    Ok((answer.status(), answer.words().await))
}
