//! The worker's side of the link, message by message.

use crate::world::{LIMIT, Replica};
use base64::{Engine, prelude::BASE64_STANDARD};
use futures::{SinkExt, StreamExt};
use kube::ResourceExt;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use subagent_crds::SubagentRun;
use subagent_link::{
    Assignment, Decode, GatewayMessage, LINK_PATH, RefusalReason, ResultPayload, Snapshot, TranscriptPayload,
    WorkerMessage, decode,
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{self, Message, client::IntoClientRequest, http::HeaderValue},
};

/// What a connection gives.
#[derive(Debug)]
pub enum Heard {
    Message(GatewayMessage),
    /// A close frame with its code, or the plain end.
    Closed(Option<u16>),
}

pub struct Worker {
    socket: WebSocketStream<TlsStream<TcpStream>>,
}

/// A TLS client that trusts these roots.
pub fn client_config(bundle: &str) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.expect("a root")).expect("a usable root");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("TLS versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

/// Opens TLS with the replica's roots.
pub async fn tls(replica: &Replica) -> TlsStream<TcpStream> {
    let stream = TcpStream::connect(replica.address).await.expect("a connection");
    let name = ServerName::try_from("localhost").expect("a name");
    TlsConnector::from(client_config(&replica.roots)).connect(name, stream).await.expect("TLS")
}

impl Worker {
    /// Opens the WebSocket with a token, or without one.
    pub async fn open(replica: &Replica, token: Option<&str>) -> Result<Self, tungstenite::Error> {
        let mut request = format!("wss://localhost{LINK_PATH}").into_client_request()?;
        if let Some(token) = token {
            let bearer = HeaderValue::from_str(&format!("Bearer {token}")).expect("a header");
            request.headers_mut().insert("authorization", bearer);
        }
        let (socket, _) = client_async(request, tls(replica).await).await?;
        Ok(Self { socket })
    }

    /// Opens it and says hello.
    pub async fn hello(replica: &Replica, token: &str, run: &SubagentRun, attempt: i32, seq: i64) -> Self {
        let mut worker = Self::open(replica, Some(token)).await.expect("a WebSocket");
        let run_uid = run.uid().expect("a UID");
        worker.say(&WorkerMessage::Hello { versions: vec![1], run_uid, attempt, seq }).await;
        worker
    }

    /// Says hello without memory and takes the assignment.
    pub async fn assigned(replica: &Replica, token: &str, run: &SubagentRun) -> (Self, Box<Assignment>) {
        let mut worker = Self::hello(replica, token, run, 1, 0).await;
        worker.welcomed().await;
        match worker.next().await {
            Heard::Message(GatewayMessage::Assignment(assignment)) => (worker, assignment),
            other => panic!("an assignment was expected, not {other:?}"),
        }
    }

    pub async fn say(&mut self, message: &WorkerMessage) {
        self.say_text(serde_json::to_string(message).expect("JSON")).await;
    }

    pub async fn say_text(&mut self, text: String) {
        self.socket.send(Message::text(text)).await.expect("the gateway listens");
    }

    /// The next message of the gateway or the end.
    pub async fn next(&mut self) -> Heard {
        let next = async {
            loop {
                match self.socket.next().await {
                    Some(Ok(Message::Text(text))) => match decode::<GatewayMessage>(&text).expect("a message") {
                        Decode::Message(message) => return Heard::Message(message),
                        Decode::UnknownKind(kind) => panic!("the gateway sent {kind}"),
                    },
                    Some(Ok(Message::Close(frame))) => return Heard::Closed(frame.map(|frame| frame.code.into())),
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return Heard::Closed(None),
                }
            }
        };
        tokio::time::timeout(LIMIT, next).await.expect("the gateway says something in time")
    }

    pub async fn welcomed(&mut self) {
        match self.next().await {
            Heard::Message(GatewayMessage::Welcome { version: 1, turn_outputs: true }) => {}
            other => panic!("a welcome was expected, not {other:?}"),
        }
    }

    /// The reason of a refusal, and whether to try again.
    pub async fn refused(&mut self) -> (RefusalReason, bool) {
        let (reason, retry, _) = self.told_why().await;
        (reason, retry)
    }

    /// The same with what a person reads.
    pub async fn told_why(&mut self) -> (RefusalReason, bool, String) {
        match self.next().await {
            Heard::Message(GatewayMessage::Refused { reason, retry, message }) => (reason, retry, message),
            other => panic!("a refusal was expected, not {other:?}"),
        }
    }

    /// The reason of a refusal that stays. A gateway that could not ask the API server in time says "come again", and like
    /// any worker this one does: what it had to say is then judged by its hello.
    pub async fn refused_for_good(
        &mut self,
        replica: &Replica,
        token: &str,
        run: &SubagentRun,
        seq: i64,
    ) -> RefusalReason {
        const TRIES: usize = 5;
        for _ in 0..TRIES {
            match self.refused().await {
                (reason, false) => return reason,
                (RefusalReason::Unavailable, true) => *self = Self::hello(replica, token, run, 1, seq).await,
                (other, true) => panic!("a refusal for good was expected, not {other:?}"),
            }
        }
        panic!("the gateway could not ask the API server {TRIES} times")
    }

    pub async fn acknowledged(&mut self) -> i64 {
        match self.next().await {
            Heard::Message(GatewayMessage::Ack { seq }) => seq,
            other => panic!("an acknowledgement was expected, not {other:?}"),
        }
    }

    /// Reports and waits for the acknowledgement of exactly this report.
    pub async fn report(&mut self, seq: i64, snapshot: Value) {
        self.say(&report(seq, snapshot)).await;
        assert_eq!(self.acknowledged().await, seq);
    }
}

pub fn snapshot(value: Value) -> Box<Snapshot> {
    serde_json::from_value(value).expect("a snapshot")
}

pub fn report(seq: i64, value: Value) -> WorkerMessage {
    WorkerMessage::Report { seq, snapshot: snapshot(value), result: None, transcript: None }
}

/// A final report with this result.
pub fn result_report(seq: i64, result: ResultPayload) -> WorkerMessage {
    let end = json!({"stopReason": "Completed", "reason": "Completed", "at": "2026-01-01T00:00:00Z"});
    let snapshot = snapshot(json!({"turnCount": 1, "idle": true, "stage": "Stopping", "final": end}));
    WorkerMessage::Report { seq, snapshot, result: Some(result), transcript: None }
}

/// A final report with an inline result and a transcript.
pub fn final_report(seq: i64, text: &str, archived: &str) -> WorkerMessage {
    let (sha, size) = (sha256(text.as_bytes()), text.len() as i64);
    let result =
        ResultPayload { text: Some(text.into()), other_blocks: 1, blocks: None, sha256: sha, size, turn: None };
    let mut report = result_report(seq, result);
    if let WorkerMessage::Report { transcript, .. } = &mut report {
        *transcript = Some(TranscriptPayload {
            data: BASE64_STANDARD.encode(zstd::encode_all(archived.as_bytes(), 3).expect("zstd")),
            sha256: sha256(archived.as_bytes()),
            size: archived.len() as i64,
            dropped_bytes: 5,
        });
    }
    report
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
