//! One try of an upload: a request of its own beside the link, with the same token, roots and fence.

use super::connection::{bearer, open};
use crate::config::Settings;
use anyhow::Context;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Request, Uri,
    body::Bytes,
    client::conn::http1,
    header::{AUTHORIZATION, HOST},
};
use hyper_util::rt::TokioIo;
use subagent_link::{ResultUpload, UPLOAD_TIMEOUT, refused_for_good};
use tokio::time::timeout;

/// Longest answer that is read, in bytes: a sentence.
const MAX_ANSWER: usize = 16 * 1024;

/// What is to be uploaded. A clone shares the bytes.
#[derive(Clone, Debug)]
pub struct Content {
    /// What the request says of it.
    pub announced: ResultUpload,
    /// The bytes.
    pub bytes: Bytes,
}

/// An upload that was not stored.
#[derive(Debug)]
pub enum Failure {
    /// It never will be: the gateway's HTTP status, and what it said.
    Refused(u16, String),
    /// Another try may help: the gateway's HTTP status, if it answered, and what was in the way.
    Trouble(Option<u16>, String),
}

/// Uploads, and returns once it is stored.
///
/// # Errors
/// [`Failure`].
pub async fn put(settings: &Settings, content: &Content) -> Result<(), Failure> {
    let trouble = |error: anyhow::Error| Failure::Trouble(None, format!("{error:#}"));
    let request = timeout(UPLOAD_TIMEOUT, request(settings, content)).await;
    let (status, said) = request.context("it took too long").and_then(std::convert::identity).map_err(trouble)?;
    match status {
        200..300 => Ok(()),
        status if refused_for_good(status) => Err(Failure::Refused(status, said)),
        status => Err(Failure::Trouble(Some(status), format!("{said} (HTTP status {status} of the gateway)"))),
    }
}

async fn request(settings: &Settings, content: &Content) -> anyhow::Result<(u16, String)> {
    let gateway: Uri = settings.worker.gateway.parse().context("the gateway's address")?;
    let authority = gateway.authority().context("the gateway's address has no host")?.as_str();
    let request = Request::put(content.announced.path())
        .header(HOST, authority)
        .header(AUTHORIZATION, bearer(settings)?)
        .body(Full::new(content.bytes.clone()))
        .context("composing the request")?;
    let stream = open(settings, &gateway).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.context("opening HTTP")?;
    // It ends with the sender.
    tokio::spawn(connection);
    let answer = sender.send_request(request).await.context("sending")?;
    let status = answer.status().as_u16();
    let said = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
    let said = said.map(|said| String::from_utf8_lossy(&said.to_bytes()).into_owned()).unwrap_or_default();
    Ok((status, said))
}
