//! One connection, from hello to end.

use super::{
    Gateway,
    admission::{Admitted, Child},
    connections::Seat,
    fence::{Refusal, reason_name},
    inbox, snapshot,
    store::{Pending, Place, Stored},
};
use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use futures::{
    FutureExt, SinkExt, StreamExt,
    future::{BoxFuture, OptionFuture},
    stream::{SplitSink, SplitStream},
};
use std::{sync::Arc, time::Duration};
use subagent_crds::SubagentRun;
use subagent_link::{
    DEAD_AFTER, Decode, GatewayMessage, PING_INTERVAL, RefusalReason, WorkerMessage, choose_version, decode, encode,
};
use tokio::time::{Instant, interval_at, sleep_until, timeout};

/// Longest wait for a hello: a worker sends it at once.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time one message may take to go out: a peer that takes nothing for so long is as good as silent.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a report that is being stored at shutdown may still take; with the goodbye it stays within two seconds.
const LAST_STORE: Duration = Duration::from_secs(1);

/// Why a connection ends.
enum End {
    /// The peer is told why it is not served.
    Refused(Refusal),
    /// A close frame with a code and a reason.
    Close(u16, &'static str),
    /// The peer is gone or cannot be reached.
    Broken(&'static str),
}

impl From<Refusal> for End {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Holds a connection until it ends.
pub(super) async fn hold(gateway: &Arc<Gateway>, socket: WebSocket, token: String) {
    let (sink, stream) = socket.split();
    let mut worker = Worker { sink, stream };
    let Err(end) = talk(gateway, &mut worker, token).await;
    match end {
        End::Refused(refusal) => {
            gateway.refused(&refusal);
            tracing::info!(
                reason = reason_name(refusal.reason),
                retry = refusal.retry,
                message = refusal.message,
                "worker refused"
            );
            let Refusal { reason, retry, message } = refusal;
            if worker.send(&GatewayMessage::Refused { reason, retry, message }).await.is_ok() {
                worker.close(close_code::POLICY, "refused").await;
            }
        }
        End::Close(code, reason) => worker.close(code, reason).await,
        End::Broken(why) => tracing::debug!(why, "connection ended"),
    }
}

async fn talk(gateway: &Arc<Gateway>, worker: &mut Worker, token: String) -> Result<std::convert::Infallible, End> {
    let going_away = || End::Close(close_code::AWAY, "this gateway is shutting down");
    let hello = async {
        let (version, run_uid, attempt, seq) =
            timeout(HELLO_TIMEOUT, worker.hello()).await.map_err(|_| End::Broken("no hello"))??;
        Ok::<_, End>((version, gateway.admit(token, run_uid, attempt, seq).await?))
    };
    let shutdown = &gateway.shutdown;
    let (version, admitted) = shutdown.run_until_cancelled(hello).await.ok_or_else(going_away)??;
    let Admitted { place, stored, stop, assignment, child } = admitted;
    let place = Arc::new(place);
    let seat = gateway.connections.join(&place.claim.run_uid, stop.as_deref());
    tracing::info!(
        namespace = place.namespace,
        run = place.run_name,
        attempt = place.claim.attempt,
        seq = place.claim.seq,
        assignment = assignment.is_some(),
        "worker connected"
    );
    worker.send(&GatewayMessage::Welcome { version, turn_outputs: true }).await?;
    if let Some(assignment) = assignment {
        worker.send(&GatewayMessage::Assignment(assignment)).await?;
    }
    let conversation = Conversation {
        gateway,
        place: place.clone(),
        stored,
        pending: None,
        storing: None,
        told: inbox::Told::default(),
        // What changed between admission and the seat was seen by nobody: the first look is after it.
        reading: child.is_some().then(|| gateway.read_run(&place)),
        child,
    };
    conversation.run(worker, seat).await
}

/// State of an admitted connection.
struct Conversation<'a> {
    gateway: &'a Arc<Gateway>,
    place: Arc<Place>,
    stored: Stored,
    /// The child whose activation it is.
    child: Option<Child>,
    /// The newest report that waits while another one is being stored: a queue of one, since snapshots are cumulative.
    pending: Option<Pending>,
    storing: Option<BoxFuture<'static, Result<Stored, Refusal>>>,
    /// What of the inbox of an activation was told.
    told: inbox::Told,
    /// The run is being read for what its inbox holds.
    reading: Option<BoxFuture<'static, Result<Option<SubagentRun>, Refusal>>>,
}

impl Conversation<'_> {
    async fn run(mut self, worker: &mut Worker, mut seat: Seat) -> Result<std::convert::Infallible, End> {
        let shutdown = self.gateway.shutdown.clone();
        let mut pings = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
        let mut dead_at = Instant::now() + DEAD_AFTER;
        let mut told_to_stop = false;
        loop {
            let stop = seat.stop.borrow_and_update().clone();
            if let Some(reason) = stop.filter(|_| !told_to_stop) {
                told_to_stop = true;
                worker.send(&GatewayMessage::Cancel { reason: reason.to_string() }).await?;
            }
            tokio::select! {
                () = shutdown.cancelled() => {
                    self.finish(worker).await?;
                    return Err(End::Close(close_code::AWAY, "this gateway is shutting down"));
                }
                () = seat.replaced.cancelled() => {
                    return Err(End::Close(close_code::POLICY, "a newer connection of this attempt is here"));
                }
                // The senders live as long as the seat.
                _ = seat.stop.changed(), if !told_to_stop => {}
                _ = seat.spec.changed(), if self.reading.is_none() => {
                    self.reading = Some(self.gateway.read_run(&self.place));
                }
                Some(run) = OptionFuture::from(self.reading.as_mut()) => {
                    self.reading = None;
                    self.tell_inbox(worker, run?).await?;
                }
                Some(stored) = OptionFuture::from(self.storing.as_mut()) => {
                    self.storing = None;
                    self.acknowledge(worker, stored?).await?;
                    let next = self.pending.take();
                    self.start_storing(next);
                }
                frame = worker.stream.next() => {
                    dead_at = Instant::now() + DEAD_AFTER;
                    if let Some(text) = text_of(frame)? {
                        self.hear(worker, &text).await?;
                    }
                }
                _ = pings.tick() => worker.ping().await?,
                () = sleep_until(dead_at) => return Err(End::Broken("silent for too long")),
            }
        }
    }

    /// Tells what the live run's inbox holds and this connection was not told. The run may be another one by now: the fence of
    /// the next report says so.
    async fn tell_inbox(&mut self, worker: &mut Worker, run: Option<SubagentRun>) -> Result<(), End> {
        let claim = &self.place.claim;
        let Some(run) = run.filter(|run| run.metadata.uid.as_ref() == Some(&claim.run_uid)) else { return Ok(()) };
        for message in self.told.next(&run, claim.attempt) {
            worker.send(&message).await?;
        }
        Ok(())
    }

    async fn hear(&mut self, worker: &mut Worker, text: &str) -> Result<(), End> {
        let (seq, snapshot, result, transcript) = match decode::<WorkerMessage>(text) {
            Ok(Decode::Message(WorkerMessage::Report { seq, snapshot, result, transcript })) => {
                (seq, snapshot, result, transcript)
            }
            // Repeated by a worker that is unsure; it was answered.
            Ok(Decode::Message(WorkerMessage::Hello { .. })) => return Ok(()),
            Ok(Decode::UnknownKind(kind)) => {
                tracing::debug!(kind, "ignoring a message kind of a newer worker");
                return Ok(());
            }
            Err(error) => return Err(invalid(error)),
        };
        let claim = &self.place.claim;
        let stored = self.stored.seq(claim.attempt);
        if seq >= 1 && seq <= stored {
            // A repeat, after an acknowledgement that got lost.
            return worker.send(&GatewayMessage::Ack { seq: stored }).await;
        }
        let report = snapshot::report(&self.gateway.rules, claim, seq, &snapshot).map_err(invalid)?;
        snapshot::checkpoint(&report, self.child.as_ref()).map_err(invalid)?;
        let limit = self.gateway.max_result_bytes;
        let outputs = snapshot::outputs(&snapshot, limit).map_err(invalid)?;
        let result = result.map(|result| snapshot::result(claim, &result, limit)).transpose().map_err(invalid)?;
        let transcript = transcript.map(|tail| snapshot::transcript(&tail)).transpose().map_err(invalid)?;
        let newer = Pending { report, outputs, result, transcript, arrived: Instant::now() };
        if self.storing.is_none() {
            self.start_storing(Some(newer));
        } else {
            self.pending = Some(match self.pending.take() {
                Some(older) => older.absorbed_by(newer),
                None => newer,
            });
        }
        Ok(())
    }

    fn start_storing(&mut self, pending: Option<Pending>) {
        // A report that waited may have become old: the other one held it.
        let Some(pending) = pending.filter(|new| new.report.seq > self.stored.seq(self.place.claim.attempt)) else {
            return;
        };
        let (gateway, place, stored) = (self.gateway.clone(), self.place.clone(), self.stored.clone());
        self.storing = Some(async move { gateway.store(&place, &stored, pending).await }.boxed());
    }

    async fn acknowledge(&mut self, worker: &mut Worker, stored: Stored) -> Result<(), End> {
        self.stored = stored;
        worker.send(&GatewayMessage::Ack { seq: self.stored.seq(self.place.claim.attempt) }).await
    }

    /// Lets a report that is being stored come to its end.
    async fn finish(&mut self, worker: &mut Worker) -> Result<(), End> {
        let Some(storing) = self.storing.take() else { return Ok(()) };
        match timeout(LAST_STORE, storing).await {
            Ok(stored) => self.acknowledge(worker, stored?).await,
            Err(_) => Ok(()),
        }
    }
}

fn invalid(error: impl std::fmt::Display) -> End {
    End::Refused(Refusal::last(RefusalReason::Invalid, error.to_string()))
}

/// The text of a frame, `None` for one that carries none.
fn text_of(frame: Option<Result<Message, axum::Error>>) -> Result<Option<String>, End> {
    match frame {
        Some(Ok(Message::Text(text))) => Ok(Some(text.as_str().to_owned())),
        Some(Ok(Message::Ping(_) | Message::Pong(_))) => Ok(None),
        Some(Ok(Message::Binary(_))) => Err(invalid("link messages are text frames")),
        Some(Ok(Message::Close(_))) | None => Err(End::Broken("the worker closed the connection")),
        Some(Err(error)) => {
            tracing::debug!(%error, "reading from a worker");
            Err(End::Broken("reading failed"))
        }
    }
}

/// The peer.
struct Worker {
    sink: SplitSink<WebSocket, Message>,
    stream: SplitStream<WebSocket>,
}

impl Worker {
    /// The hello: common version, run UID, attempt, sequence number.
    async fn hello(&mut self) -> Result<(u32, String, i32, i64), End> {
        loop {
            let Some(text) = text_of(self.stream.next().await)? else { continue };
            return match decode::<WorkerMessage>(&text) {
                Ok(Decode::Message(WorkerMessage::Hello { versions, run_uid, attempt, seq })) => {
                    let version = choose_version(&versions).ok_or_else(|| {
                        Refusal::last(RefusalReason::Version, format!("no common link version in {versions:?}"))
                    })?;
                    if seq < 0 {
                        return Err(invalid("hello.seq is negative"));
                    }
                    Ok((version, run_uid, attempt, seq))
                }
                Ok(_) => Err(invalid("the first message must be a hello")),
                Err(error) => Err(invalid(error)),
            };
        }
    }

    async fn send(&mut self, message: &GatewayMessage) -> Result<(), End> {
        let text = encode(message).map_err(|error| {
            tracing::error!(%error, "a message does not fit the link");
            // Only an assignment can be that large: a prompt whose escaped form is many times its size.
            End::Refused(Refusal::last(RefusalReason::Invalid, "the prompt does not fit one link message"))
        })?;
        self.put(Message::text(text)).await
    }

    async fn ping(&mut self) -> Result<(), End> {
        self.put(Message::Ping(Default::default())).await
    }

    async fn put(&mut self, message: Message) -> Result<(), End> {
        match timeout(SEND_TIMEOUT, self.sink.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(End::Broken("writing failed")),
            Err(_) => Err(End::Broken("the worker takes nothing")),
        }
    }

    async fn close(&mut self, code: u16, reason: &'static str) {
        let _ = self.put(Message::Close(Some(CloseFrame { code, reason: reason.into() }))).await;
        // Reading to the peer's own close lets it see what was sent last: unread data would reset the connection.
        let _ = timeout(Duration::from_secs(1), async { while let Some(Ok(_)) = self.stream.next().await {} }).await;
    }
}
