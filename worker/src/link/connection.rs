//! One connection to the gateway, from dialling to its end.

use super::{client::Outbox, tls};
use crate::config::Settings;
use anyhow::{Context, bail};
use futures::{SinkExt, StreamExt};
use rustls::pki_types::ServerName;
use std::time::Duration;
use subagent_link::{
    DEAD_AFTER, Decode, GatewayMessage, MAX_MESSAGE_BYTES, PING_INTERVAL, ROOTS_FILE, SUPPORTED_VERSIONS, TOKEN_FILE,
    WorkerMessage, decode, encode,
};
use tokio::{
    net::TcpStream,
    sync::{mpsc, watch},
    time::{Instant, interval_at, sleep_until, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{
        Bytes, Message,
        client::IntoClientRequest,
        http::{HeaderValue, Uri, header::AUTHORIZATION},
        protocol::WebSocketConfig,
    },
};

/// Longest time for name lookup, TCP, TLS and upgrade together: a gateway that takes longer is not usable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for a polite end of a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// An open connection.
type Socket = WebSocketStream<TlsStream<TcpStream>>;

/// Dials the gateway. Roots and token are read anew each time: both are rotated while the pod lives.
///
/// # Errors
/// Whatever keeps it from being reached; the message says which step.
pub async fn dial(settings: &Settings) -> anyhow::Result<Socket> {
    timeout(CONNECT_TIMEOUT, connect(settings)).await.context("connecting took too long")?
}

async fn connect(settings: &Settings) -> anyhow::Result<Socket> {
    let mut request = settings.worker.gateway.as_str().into_client_request().context("the gateway's address")?;
    request.headers_mut().insert(AUTHORIZATION, bearer(settings)?);
    let stream = open(settings, request.uri()).await?;
    let bounds =
        WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE_BYTES)).max_frame_size(Some(MAX_MESSAGE_BYTES));
    let (socket, _) =
        client_async_with_config(request, stream, Some(bounds)).await.context("opening the link's WebSocket")?;
    Ok(socket)
}

/// The token of this pod, as it is now.
///
/// # Errors
/// When it cannot be read.
pub fn bearer(settings: &Settings) -> anyhow::Result<HeaderValue> {
    let token = std::fs::read_to_string(settings.link_dir.join(TOKEN_FILE)).context("reading the link token")?;
    let mut bearer = HeaderValue::from_str(&format!("Bearer {}", token.trim())).context("the link token")?;
    bearer.set_sensitive(true);
    Ok(bearer)
}

/// Opens TLS to the gateway at this `wss://` address, with its roots as they are now.
///
/// # Errors
/// Whatever keeps it from being reached; the message says which step.
pub async fn open(settings: &Settings, gateway: &Uri) -> anyhow::Result<TlsStream<TcpStream>> {
    if gateway.scheme_str() != Some("wss") {
        bail!("the gateway's address is not wss://");
    }
    let host = gateway.host().context("the gateway's address has no host")?;
    let port = gateway.port_u16().unwrap_or(443);
    let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).context("the gateway's host name")?;
    let tls = tls::client(&settings.link_dir.join(ROOTS_FILE))?;
    let tcp = TcpStream::connect((host, port)).await.context("connecting to the gateway")?;
    tcp.set_nodelay(true).context("setting up the connection")?;
    TlsConnector::from(tls).connect(name, tcp).await.context("TLS with the gateway")
}

/// What a connection told on its way.
pub enum Heard {
    /// The gateway took the hello.
    Welcome {
        /// It takes the outputs of turns.
        turn_outputs: bool,
    },
    /// Something else than a welcome.
    Message(GatewayMessage),
}

/// Why a connection ended in good order.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// The worker is done with the link.
    Done,
    /// The gateway refused; the message was handed on.
    Refused,
}

/// Says hello and then serves the connection until it ends: newest unacknowledged report out, everything else in.
///
/// # Errors
/// When the connection breaks, is silent for [`DEAD_AFTER`], or the peer does not speak the protocol.
pub async fn serve(
    mut socket: Socket,
    settings: &Settings,
    outbox: &mut watch::Receiver<Outbox>,
    heard: &mpsc::Sender<Heard>,
) -> anyhow::Result<Ended> {
    let seq = outbox.borrow().seq;
    let hello = WorkerMessage::Hello {
        versions: SUPPORTED_VERSIONS.to_vec(),
        run_uid: settings.worker.run_uid.clone(),
        attempt: settings.worker.attempt,
        seq,
    };
    send(&mut socket, Message::text(encode(&hello)?)).await?;
    let mut welcome = false;
    // Number of the newest report sent on this connection; a new connection starts over with what is unacknowledged.
    let mut sent = 0;
    let mut pings = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
    let mut dead_at = Instant::now() + DEAD_AFTER;
    loop {
        if welcome {
            let current = outbox.borrow_and_update().clone();
            if let Some((seq, frame)) = current.report.filter(|(seq, _)| *seq > sent) {
                send(&mut socket, Message::text(frame.as_ref())).await?;
                sent = seq;
            }
        }
        tokio::select! {
            frame = socket.next() => {
                dead_at = Instant::now() + DEAD_AFTER;
                let text = match frame.context("the gateway closed the connection")?.context("reading from the gateway")? {
                    Message::Text(text) => text,
                    Message::Close(_) => bail!("the gateway closed the connection"),
                    _ => continue,
                };
                let message = match decode::<GatewayMessage>(&text).context("a message of the gateway")? {
                    Decode::Message(message) => message,
                    Decode::UnknownKind(kind) => {
                        tracing::debug!(kind, "ignoring a message kind of a newer gateway");
                        continue;
                    }
                };
                match message {
                    GatewayMessage::Welcome { version, turn_outputs } if SUPPORTED_VERSIONS.contains(&version) => {
                        welcome = true;
                        heard.send(Heard::Welcome { turn_outputs }).await.context("the worker ended")?;
                    }
                    GatewayMessage::Welcome { version, .. } => bail!("the gateway chose link version {version}"),
                    refused @ GatewayMessage::Refused { .. } => {
                        heard.send(Heard::Message(refused)).await.context("the worker ended")?;
                        return Ok(Ended::Refused);
                    }
                    _ if !welcome => bail!("the gateway spoke before its welcome"),
                    other => heard.send(Heard::Message(other)).await.context("the worker ended")?,
                }
            }
            changed = outbox.changed() => if changed.is_err() {
                let _ = timeout(CLOSE_TIMEOUT, socket.close(None)).await;
                return Ok(Ended::Done);
            },
            _ = pings.tick() => send(&mut socket, Message::Ping(Bytes::new())).await?,
            () = sleep_until(dead_at) => bail!("the gateway was silent for {} s", DEAD_AFTER.as_secs()),
        }
    }
}

/// Sends, or finds the connection dead: a peer that takes nothing for so long is as good as silent.
async fn send(socket: &mut Socket, message: Message) -> anyhow::Result<()> {
    timeout(DEAD_AFTER, socket.send(message))
        .await
        .context("the gateway takes nothing")?
        .context("writing to the gateway")
}
