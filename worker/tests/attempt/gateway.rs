//! A gateway for tests: the real link over real TLS, storing in memory, with everything that can go wrong at will.

use futures::{SinkExt, StreamExt};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use std::{
    collections::HashMap,
    fmt::Write as _,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use subagent_link::{
    Assignment, Decode, Final, GatewayMessage, RefusalReason, ResultPayload, Snapshot, StoredCheckpoint,
    TranscriptPayload, WorkerMessage, choose_version, decode, encode,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::{Notify, mpsc},
    time::{Instant, timeout_at},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_tungstenite::{
    accept_hdr_async,
    tungstenite::{
        Message,
        handshake::server::{Request, Response},
    },
};

/// A report as it arrived.
#[derive(Clone, Debug)]
pub struct Report {
    /// Which connection brought it, from 1.
    pub connection: usize,
    pub seq: i64,
    pub snapshot: Snapshot,
    pub result: Option<ResultPayload>,
    pub transcript: Option<TranscriptPayload>,
    /// How many uploads were stored when it arrived.
    pub uploads_before: usize,
}

/// What was uploaded and taken.
#[derive(Clone, Debug)]
pub struct Uploaded {
    /// The turn whose output it is; `None` for the result of the run.
    pub turn: Option<i64>,
    pub part: String,
    pub sha256: String,
    pub text: String,
}

/// A checkpoint that was stored.
#[derive(Clone, Debug)]
pub struct StoredAt {
    pub turn: i64,
    pub sha256: String,
    pub key: String,
    pub bytes: Vec<u8>,
    /// How many reports had arrived when it was stored.
    pub reports_before: usize,
}

/// What becomes of a try to store or fetch a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checkpointing {
    /// It is answered with this status, and not taken.
    Answer(u16),
    /// It is answered with this status before any of it is read, and read only when a later one is stored.
    Early(u16),
    /// The connection breaks in the middle of it.
    Break,
    /// It is read, and nothing is said any more.
    Silence,
}

impl Report {
    pub fn end(&self) -> Option<&Final> {
        self.snapshot.final_.as_ref()
    }
}

/// What the gateway does to a connection.
enum Order {
    Say(GatewayMessage),
    Drop,
}

#[derive(Default)]
struct State {
    assignment: Option<Assignment>,
    /// It takes the outputs of turns.
    takes_outputs: bool,
    /// Reports are stored, but no acknowledgement leaves.
    holds_acks: bool,
    /// Connections are dropped before TLS.
    down: bool,
    cancelled: bool,
    /// Answer to the next hellos, that many times.
    refusals: Vec<(RefusalReason, bool)>,
    connections: usize,
    hellos: Vec<(usize, i64)>,
    bearers: Vec<String>,
    reports: Vec<Report>,
    acknowledged: i64,
    uploads: Vec<Uploaded>,
    /// Statuses the next uploads are answered with; the last one stays, without any they are taken.
    upload_answers: Vec<u16>,
    upload_tries: usize,
    checkpoints: Vec<StoredAt>,
    /// What becomes of the next tries with checkpoints, in reverse order; after them they are taken and given.
    checkpointing: Vec<Checkpointing>,
    checkpoint_tries: usize,
    /// How much of the last one came that was answered early.
    came_late: Option<usize>,
    /// What a download gives; without it there is none.
    download: Option<Vec<u8>>,
    /// The connection that counts: the newest.
    orders: Option<mpsc::UnboundedSender<Order>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

/// A running gateway.
pub struct Gateway {
    pub url: String,
    pub roots: String,
    shared: Arc<Shared>,
}

impl Gateway {
    /// Listens on a free port, with a certificate of its own root.
    pub async fn start(assignment: Assignment) -> Self {
        let (acceptor, roots) = certificates();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("wss://localhost:{}/v1/link", listener.local_addr().unwrap().port());
        let state = State { assignment: Some(assignment), takes_outputs: true, ..State::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Notify::new() });
        let accepting = shared.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(accepting.clone(), acceptor.clone(), stream));
            }
        });
        Self { url, roots, shared }
    }

    /// It is an older one, which takes no outputs of turns.
    pub fn is_older(&self) {
        self.shared.lock().takes_outputs = false;
    }

    /// From now on reports are stored without a word.
    pub fn hold_acks(&self) {
        self.shared.lock().holds_acks = true;
    }

    /// Acknowledges what was held, and again at once from now on.
    pub fn release_acks(&self) {
        let mut state = self.shared.lock();
        state.holds_acks = false;
        if let Some(seq) = state.reports.last().map(|report| report.seq) {
            state.acknowledged = seq;
            state.say(GatewayMessage::Ack { seq });
        }
    }

    /// Cancels the run.
    pub fn cancel(&self) {
        let mut state = self.shared.lock();
        state.cancelled = true;
        state.say(GatewayMessage::Cancel { reason: String::new() });
    }

    /// Drops the connection without a word.
    pub fn drop_connection(&self) {
        if let Some(orders) = &self.shared.lock().orders {
            let _ = orders.send(Order::Drop);
        }
    }

    /// Drops the connection and takes no new one.
    pub fn go_down(&self) {
        self.shared.lock().down = true;
        self.drop_connection();
    }

    /// Takes connections again.
    pub fn come_up(&self) {
        self.shared.lock().down = false;
    }

    /// Answers the next hellos with these refusals, in this order, and then serves.
    pub fn refuse(&self, refusals: &[(RefusalReason, bool)]) {
        self.shared.lock().refusals = refusals.iter().rev().copied().collect();
    }

    /// Answers the next uploads with these statuses, the last one for ever.
    pub fn answer_uploads(&self, statuses: &[u16]) {
        self.shared.lock().upload_answers = statuses.iter().rev().copied().collect();
    }

    /// What becomes of the next tries to store or fetch a checkpoint, in this order; all later ones succeed.
    pub fn checkpointing(&self, next: &[Checkpointing]) {
        self.shared.lock().checkpointing = next.iter().rev().copied().collect();
    }

    /// What the run's checkpoint is.
    pub fn give_checkpoint(&self, bytes: &[u8]) {
        self.shared.lock().download = Some(bytes.to_vec());
    }

    pub fn checkpoints(&self) -> Vec<StoredAt> {
        self.shared.lock().checkpoints.clone()
    }

    /// How much came of a checkpoint that was answered early, after a later one was stored.
    pub async fn came_late(&self) -> usize {
        self.wait("the end of an early answer's connection", |state| state.came_late).await
    }

    /// Waits until so many tries with checkpoints were made.
    pub async fn checkpoint_tries(&self, count: usize) {
        self.wait("a try with a checkpoint", |state| (state.checkpoint_tries >= count).then_some(())).await;
    }

    pub fn uploads(&self) -> Vec<Uploaded> {
        self.shared.lock().uploads.clone()
    }

    /// Waits until so many uploads were tried.
    pub async fn upload_tries(&self, count: usize) {
        self.wait("an upload", |state| (state.upload_tries >= count).then_some(())).await;
    }

    /// Says something on the newest connection.
    pub fn say(&self, message: GatewayMessage) {
        self.shared.lock().say(message);
    }

    pub fn reports(&self) -> Vec<Report> {
        self.shared.lock().reports.clone()
    }

    pub fn connections(&self) -> usize {
        self.shared.lock().connections
    }

    /// Connection and sequence number of every hello.
    pub fn hellos(&self) -> Vec<(usize, i64)> {
        self.shared.lock().hellos.clone()
    }

    pub fn bearers(&self) -> Vec<String> {
        self.shared.lock().bearers.clone()
    }

    /// Waits until a report fits.
    pub async fn report(&self, what: &str, mut fits: impl FnMut(&Report) -> bool) -> Report {
        self.wait(what, |state| state.reports.iter().find(|report| fits(report)).cloned()).await
    }

    /// Waits for the final report.
    pub async fn end(&self) -> Report {
        self.report("a final report", |report| report.end().is_some()).await
    }

    /// Waits until that many connections said hello.
    pub async fn connection(&self, count: usize) {
        self.wait("a connection", |state| (state.hellos.len() >= count).then_some(())).await;
    }

    async fn wait<T>(&self, what: &str, mut find: impl FnMut(&State) -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let changed = self.shared.changed.notified();
            if let Some(found) = find(&self.shared.lock()) {
                return found;
            }
            if timeout_at(deadline, changed).await.is_err() {
                panic!("{what} was not seen; {}", self.seen());
            }
        }
    }

    /// Everything that was seen, for a failing test.
    pub fn seen(&self) -> String {
        let state = self.shared.lock();
        let mut text = format!("{} connections, hellos {:?}, reports:\n", state.connections, state.hellos);
        for report in &state.reports {
            let snapshot = serde_json::to_string(&report.snapshot).unwrap();
            let _ = writeln!(text, "  {} on connection {}: {snapshot}", report.seq, report.connection);
        }
        text
    }
}

impl State {
    fn say(&self, message: GatewayMessage) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(Order::Say(message));
        }
    }

    /// What a gateway that reads the live run would answer.
    fn answer_hello(&mut self, versions: &[u32], seq: i64) -> (Vec<GatewayMessage>, bool) {
        let refused = |reason, retry| (vec![GatewayMessage::Refused { reason, retry, message: String::new() }], false);
        if let Some((reason, retry)) = self.refusals.pop() {
            return refused(reason, retry);
        }
        let Some(version) = choose_version(versions) else { return refused(RefusalReason::Version, false) };
        let stored = self.reports.last().map_or(0, |report| report.seq);
        if stored > seq {
            return refused(RefusalReason::WorkerLost, false);
        }
        let mut answers = vec![GatewayMessage::Welcome { version, turn_outputs: self.takes_outputs }];
        if seq == 0 {
            answers.extend(self.assignment.clone().map(|assignment| GatewayMessage::Assignment(Box::new(assignment))));
        }
        if self.cancelled {
            answers.push(GatewayMessage::Cancel { reason: String::new() });
        }
        (answers, true)
    }
}

async fn serve(shared: Arc<Shared>, acceptor: TlsAcceptor, stream: TcpStream) {
    if shared.lock().down {
        return;
    }
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let mut stream = BufReader::new(stream);
    if stream.fill_buf().await.is_ok_and(|head| head.starts_with(b"PUT ")) {
        let _ = take_upload(&shared, stream).await;
        return;
    }
    let asks = format!("GET {}?", subagent_link::CHECKPOINT_PATH);
    if stream.buffer().starts_with(asks.as_bytes()) {
        let _ = give_download(&shared, stream).await;
        return;
    }
    let mut bearer = String::new();
    // The callback's type is the crate's.
    #[allow(clippy::result_large_err)]
    let accepted = accept_hdr_async(stream, |request: &Request, response: Response| {
        let header = request.headers().get("authorization");
        bearer = header.and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
        Ok(response)
    });
    let Ok(mut socket) = accepted.await else { return };
    let (orders, mut ordered) = mpsc::unbounded_channel();
    let connection = {
        let mut state = shared.lock();
        state.connections += 1;
        state.bearers.push(bearer);
        state.orders = Some(orders.clone());
        state.connections
    };
    loop {
        tokio::select! {
            frame = socket.next() => {
                let Some(Ok(frame)) = frame else { return };
                let Message::Text(text) = frame else { continue };
                let Decode::Message(message) = decode::<WorkerMessage>(&text).unwrap() else { continue };
                let mut closes = false;
                {
                    let mut state = shared.lock();
                    match message {
                        WorkerMessage::Hello { versions, run_uid, attempt, seq } => {
                            assert_eq!((run_uid.as_str(), attempt), ("uid-1", 1));
                            state.hellos.push((connection, seq));
                            let (answers, serves) = state.answer_hello(&versions, seq);
                            closes = !serves;
                            for answer in answers {
                                let _ = orders.send(Order::Say(answer));
                            }
                        }
                        WorkerMessage::Report { seq, snapshot, result, transcript } => {
                            let (snapshot, uploads_before) = (*snapshot, state.uploads.len());
                            state.reports.push(Report { connection, seq, snapshot, result, transcript, uploads_before });
                            if !state.holds_acks {
                                state.acknowledged = seq;
                                let _ = orders.send(Order::Say(GatewayMessage::Ack { seq }));
                            }
                        }
                    }
                }
                shared.changed.notify_waiters();
                if closes {
                    let _ = orders.send(Order::Drop);
                }
            }
            order = ordered.recv() => match order {
                Some(Order::Say(message)) => {
                    if socket.send(Message::text(encode(&message).unwrap())).await.is_err() {
                        return;
                    }
                }
                Some(Order::Drop) | None => return,
            }
        }
    }
}

/// Path and length of a request, by the letter of HTTP as far as the worker uses it.
async fn head(stream: &mut BufReader<TlsStream<TcpStream>>) -> std::io::Result<(String, usize)> {
    let (mut path, mut length, mut line) = (String::new(), 0, String::new());
    while stream.read_line(&mut line).await? > 2 {
        if let Some(rest) = line.strip_prefix("PUT ").or(line.strip_prefix("GET ")) {
            path = rest.split(' ').next().unwrap_or_default().to_owned();
        }
        if let Some(("content-length", value)) = line.to_ascii_lowercase().trim().split_once(": ") {
            length = value.parse().unwrap();
        }
        line.clear();
    }
    Ok((path, length))
}

fn next_checkpointing(shared: &Shared) -> Option<Checkpointing> {
    let mut state = shared.lock();
    state.checkpoint_tries += 1;
    state.checkpointing.pop()
}

async fn say_status(mut stream: BufReader<TlsStream<TcpStream>>, status: u16, said: &str) -> std::io::Result<()> {
    let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n{said}", said.len());
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

/// A checkpoint on its way in. Its body is read whatever becomes of it.
async fn take_checkpoint(
    shared: &Shared,
    mut stream: BufReader<TlsStream<TcpStream>>,
    query: &str,
    length: usize,
) -> std::io::Result<()> {
    let query: HashMap<&str, &str> = query.split('&').filter_map(|pair| pair.split_once('=')).collect();
    assert_eq!((query["runUID"], query["attempt"], query["size"]), ("uid-1", "1", length.to_string().as_str()));
    let next = next_checkpointing(shared);
    if let Some(Checkpointing::Early(status)) = next {
        return answer_early(shared, stream, status).await;
    }
    let read = if next == Some(Checkpointing::Break) { length / 2 } else { length };
    let mut bytes = vec![0; read];
    stream.read_exact(&mut bytes).await?;
    shared.changed.notify_waiters();
    match next {
        None => {
            let (turn, sha256) = (query["turn"].parse().unwrap(), query["sha256"].to_owned());
            assert_eq!(format!("{:x}", Sha256::digest(&bytes)), sha256);
            let key = format!("uid/1/{turn}/{sha256}");
            let said = serde_json::to_string(&StoredCheckpoint { key: key.clone() }).unwrap();
            {
                let mut state = shared.lock();
                let reports_before = state.reports.len();
                state.checkpoints.push(StoredAt { turn, sha256, key, bytes, reports_before });
            }
            shared.changed.notify_waiters();
            say_status(stream, 200, &said).await
        }
        Some(Checkpointing::Answer(status)) => say_status(stream, status, "no session store is configured").await,
        Some(Checkpointing::Break | Checkpointing::Early(_)) => Ok(()),
        Some(Checkpointing::Silence) => {
            // Until the worker hangs up.
            stream.read_u8().await.map(drop)
        }
    }
}

async fn answer_early(
    shared: &Shared,
    mut stream: BufReader<TlsStream<TcpStream>>,
    status: u16,
) -> std::io::Result<()> {
    shared.changed.notify_waiters();
    let answer = format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: 4\r\n\r\nlate");
    stream.write_all(answer.as_bytes()).await?;
    stream.flush().await?;
    loop {
        let changed = shared.changed.notified();
        if !shared.lock().checkpoints.is_empty() {
            break;
        }
        changed.await;
    }
    let (mut came, mut piece) = (0, vec![0; 64 * 1024]);
    while let Ok(more @ 1..) = stream.read(&mut piece).await {
        came += more;
    }
    shared.lock().came_late = Some(came);
    shared.changed.notify_waiters();
    Ok(())
}

async fn give_download(shared: &Shared, mut stream: BufReader<TlsStream<TcpStream>>) -> std::io::Result<()> {
    let (path, _) = head(&mut stream).await?;
    assert_eq!(path, format!("{}?runUID=uid-1&attempt=1", subagent_link::CHECKPOINT_PATH));
    let (next, bytes) = (next_checkpointing(shared), shared.lock().download.clone());
    shared.changed.notify_waiters();
    match (next, bytes) {
        (Some(Checkpointing::Answer(status)), _) => say_status(stream, status, "no session store is configured").await,
        (None, None) => say_status(stream, 410, "gone").await,
        (Some(Checkpointing::Silence), _) => stream.read_u8().await.map(drop),
        (next, bytes) => {
            let bytes = bytes.unwrap_or_default();
            let sent = if next.is_some() { bytes.len() / 2 } else { bytes.len() };
            stream.write_all(format!("HTTP/1.1 200 X\r\ncontent-length: {}\r\n\r\n", bytes.len()).as_bytes()).await?;
            stream.write_all(&bytes[..sent]).await?;
            stream.shutdown().await
        }
    }
}

/// One upload.
async fn take_upload(shared: &Shared, mut stream: BufReader<TlsStream<TcpStream>>) -> std::io::Result<()> {
    let (path, length) = head(&mut stream).await?;
    let (route, query) = path.split_once('?').unwrap();
    if route == subagent_link::CHECKPOINT_PATH {
        return take_checkpoint(shared, stream, query, length).await;
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let query: HashMap<&str, &str> = query.split('&').filter_map(|pair| pair.split_once('=')).collect();
    let turn = query.get("turn").map(|turn| turn.parse().unwrap());
    assert_eq!(route, if turn.is_some() { subagent_link::TURN_PATH } else { subagent_link::RESULT_PATH });
    assert_eq!((query["runUID"], query["attempt"], query["size"]), ("uid-1", "1", length.to_string().as_str()));
    let status = {
        let mut state = shared.lock();
        state.upload_tries += 1;
        let next = match state.upload_answers.as_slice() {
            [] => None,
            [last] => Some(*last),
            [.., _] => state.upload_answers.pop(),
        };
        if next.is_none_or(|status| status == 204) {
            let (part, sha256) = (query["part"].to_owned(), query["sha256"].to_owned());
            state.uploads.push(Uploaded { turn, part, sha256, text: String::from_utf8(body).unwrap() });
        }
        next.unwrap_or(204)
    };
    shared.changed.notify_waiters();
    stream.write_all(format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n").as_bytes()).await?;
    stream.shutdown().await
}

/// A server certificate for `localhost` and the PEM of its root.
fn certificates() -> (TlsAcceptor, String) {
    let mut root = CertificateParams::new(Vec::new()).unwrap();
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = CertifiedIssuer::self_signed(root, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, &root).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from(leaf.der().to_vec())],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    (TlsAcceptor::from(Arc::new(config)), root.pem())
}

/// Another root, which signed nothing.
pub fn strange_root() -> String {
    certificates().1
}
