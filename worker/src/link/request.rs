//! One request beside the link, on a connection of its own, with the same token and roots.

use super::connection::{bearer, open};
use crate::config::Settings;
use anyhow::Context;
use http_body_util::{BodyExt, Limited};
use hyper::{
    Method, Request, Response, Uri,
    body::{Body, Incoming},
    client::conn::http1::{self, SendRequest},
    header::{AUTHORIZATION, CONTENT_LENGTH, HOST},
};
use hyper_util::rt::TokioIo;
use tokio::task::JoinHandle;

/// Longest answer in words that is read, in bytes: a sentence.
const MAX_WORDS: usize = 16 * 1024;

/// An answer. The connection goes with it: what is not sent by then of a request that is answered early stays unsent.
pub struct Answer<B> {
    /// It, its body unread.
    pub response: Response<Incoming>,
    _sender: SendRequest<B>,
    _connection: Connection,
}

/// The task of a connection, which ends with its owner.
struct Connection(JoinHandle<Result<(), hyper::Error>>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<B> Answer<B> {
    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// The body as words; nothing of one that is too long or breaks off.
    pub async fn words(self) -> String {
        let said = Limited::new(self.response.into_body(), MAX_WORDS).collect().await;
        said.map(|said| String::from_utf8_lossy(&said.to_bytes()).into_owned()).unwrap_or_default()
    }
}

/// Sends a request and waits for the head of its answer. The body has `size` bytes.
///
/// # Errors
/// Whatever keeps the gateway from answering; the message says which step.
pub async fn send<B>(settings: &Settings, method: Method, path: String, body: B, size: u64) -> anyhow::Result<Answer<B>>
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    let gateway: Uri = settings.worker.gateway.parse().context("the gateway's address")?;
    let authority = gateway.authority().context("the gateway's address has no host")?.as_str();
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, authority)
        .header(AUTHORIZATION, bearer(settings)?)
        .header(CONTENT_LENGTH, size)
        .body(body)
        .context("composing the request")?;
    let stream = open(settings, &gateway).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.context("opening HTTP")?;
    let connection = Connection(tokio::spawn(connection));
    let response = sender.send_request(request).await.context("sending")?;
    Ok(Answer { response, _sender: sender, _connection: connection })
}
