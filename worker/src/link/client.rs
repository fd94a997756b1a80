//! Keeps a connection to the gateway for as long as the worker wants one.

use super::{
    backoff::Backoff,
    connection::{Ended, Heard, dial, serve},
};
use crate::{config::Settings, ledger::Ledger, outcome::StopReason};
use std::sync::Arc;
use subagent_link::{Assignment, GatewayMessage, InboxMessage, RefusalReason, encode};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::sleep,
};

/// Messages of the gateway that wait for the worker. They are few and small; beyond this the connection waits.
const QUEUE: usize = 16;

/// What the link tells the worker.
#[derive(Debug)]
pub enum LinkEvent {
    /// What to do.
    Assignment(Box<Assignment>),
    /// Reports up to this one are stored.
    Acknowledged(i64),
    /// Stop the turn, and why.
    Cancel(StopReason),
    /// A message of the run's inbox; it may be a repeat.
    Message(Box<InboxMessage>),
    /// Placements that the run's inbox lists now.
    Listed(Vec<i64>),
    /// No further message comes.
    Close,
    /// The gateway will not serve this worker again.
    Refused(RefusalReason),
    /// The gateway took the hello.
    Connected {
        /// It takes the outputs of turns.
        turn_outputs: bool,
    },
    /// No connection, and why, for a person. Told once per cause.
    Trouble(String),
}

/// What waits to be sent.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    /// Highest number used, for the hello.
    pub seq: i64,
    /// The newest report as a frame, until it is acknowledged.
    pub report: Option<(i64, Arc<str>)>,
}

/// The worker's handle on the link. Dropping it ends the connection.
#[derive(Debug)]
pub struct Link {
    events: mpsc::Receiver<LinkEvent>,
    outbox: watch::Sender<Outbox>,
    task: JoinHandle<()>,
}

impl Link {
    /// Starts to connect.
    pub fn start(settings: Settings) -> Self {
        let (outbox, outgoing) = watch::channel(Outbox::default());
        let (told, events) = mpsc::channel(QUEUE);
        let task = tokio::spawn(keep_connected(settings, outgoing, told));
        Self { events, outbox, task }
    }

    /// A link that leads nowhere, for a probe: nothing comes from it, and what is posted stays where it is.
    pub fn nowhere() -> Self {
        let (outbox, _) = watch::channel(Outbox::default());
        let (_, events) = mpsc::channel(QUEUE);
        Self { events, outbox, task: tokio::spawn(std::future::ready(())) }
    }

    /// The next event. Safe to cancel.
    pub async fn next(&mut self) -> LinkEvent {
        match self.events.recv().await {
            Some(event) => event,
            // The task has told its last; nothing more comes.
            None => std::future::pending().await,
        }
    }

    /// Puts the ledger's newest unacknowledged report into the outbox, in place of what was there.
    pub fn post(&self, ledger: &Ledger) {
        let (known, waiting) = {
            let outbox = self.outbox.borrow();
            (outbox.seq, outbox.report.is_some())
        };
        let pending = ledger.pending();
        if known == ledger.seq() && waiting == pending.is_some() {
            return;
        }
        let report = pending.and_then(|report| match encode(&report) {
            Ok(frame) => Some((ledger.seq(), Arc::from(frame))),
            // Every part of a report is bounded so that this cannot be; a test holds the bounds together.
            Err(error) => {
                tracing::error!(%error, "a report does not fit the link");
                None
            }
        });
        self.outbox.send_replace(Outbox { seq: ledger.seq(), report });
    }

    /// Ends the connection in good order.
    pub async fn close(mut self) {
        drop(self.outbox);
        // The task may be about to tell something; it ends once that is taken and the socket is closed.
        while self.events.recv().await.is_some() {}
        let _ = self.task.await;
    }
}

async fn keep_connected(settings: Settings, mut outbox: watch::Receiver<Outbox>, told: mpsc::Sender<LinkEvent>) {
    let mut backoff = Backoff::new();
    let mut last_trouble = String::new();
    loop {
        let trouble = match one_connection(&settings, &mut outbox, &told, &mut backoff, &mut last_trouble).await {
            Ok(Next::Stop) => return,
            Ok(Next::Retry(trouble)) => trouble,
            Err(error) => format!("{error:#}"),
        };
        tracing::info!(trouble, "no connection to the gateway");
        if trouble != last_trouble {
            last_trouble.clone_from(&trouble);
            if told.send(LinkEvent::Trouble(trouble)).await.is_err() {
                return;
            }
        }
        tokio::select! {
            () = sleep(backoff.wait(rand::random())) => {}
            () = dropped(outbox.clone()) => return,
        }
    }
}

/// Resolves once the worker has dropped its handle.
async fn dropped(mut outbox: watch::Receiver<Outbox>) {
    while outbox.changed().await.is_ok() {}
}

enum Next {
    Stop,
    Retry(String),
}

async fn one_connection(
    settings: &Settings,
    outbox: &mut watch::Receiver<Outbox>,
    told: &mpsc::Sender<LinkEvent>,
    backoff: &mut Backoff,
    last_trouble: &mut String,
) -> anyhow::Result<Next> {
    let socket = tokio::select! {
        socket = dial(settings) => socket?,
        () = dropped(outbox.clone()) => return Ok(Next::Stop),
    };
    let (heard, mut messages) = mpsc::channel(1);
    let mut refusal: Option<(RefusalReason, bool)> = None;
    let forward = async {
        while let Some(message) = messages.recv().await {
            let event = match message {
                Heard::Welcome { turn_outputs } => {
                    backoff.reset();
                    last_trouble.clear();
                    LinkEvent::Connected { turn_outputs }
                }
                Heard::Message(GatewayMessage::Assignment(assignment)) => LinkEvent::Assignment(assignment),
                Heard::Message(GatewayMessage::Ack { seq }) => LinkEvent::Acknowledged(seq),
                Heard::Message(GatewayMessage::Cancel { reason }) => LinkEvent::Cancel(StopReason::parse(&reason)),
                Heard::Message(GatewayMessage::Deliver(message)) => LinkEvent::Message(message),
                Heard::Message(GatewayMessage::Inbox { placements }) => LinkEvent::Listed(placements),
                Heard::Message(GatewayMessage::Close) => LinkEvent::Close,
                Heard::Message(GatewayMessage::Refused { reason, retry, message }) => {
                    tracing::warn!(?reason, retry, message, "the gateway refused");
                    refusal = Some((reason, retry));
                    continue;
                }
                Heard::Message(GatewayMessage::Welcome { .. }) => continue,
            };
            if told.send(event).await.is_err() {
                return;
            }
        }
    };
    let serving = async {
        let ended = serve(socket, settings, outbox, &heard).await;
        drop(heard);
        ended
    };
    let (ended, ()) = tokio::join!(serving, forward);
    match (ended?, refusal) {
        (Ended::Done, _) => Ok(Next::Stop),
        (Ended::Refused, Some((reason, false))) => {
            let _ = told.send(LinkEvent::Refused(reason)).await;
            Ok(Next::Stop)
        }
        (Ended::Refused, refusal) => {
            let reason = refusal.map_or(RefusalReason::Unknown, |(reason, _)| reason);
            Ok(Next::Retry(format!("the gateway answered {reason:?}, to be tried again")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use subagent_link::{
        Activity, Agent, ContentDigest, Final, MAX_DIAGNOSTIC_BYTES, MAX_INLINE_RESULT_BYTES, MAX_SNAPSHOT_BYTES,
        MAX_TRANSCRIPT_BYTES, ResultPayload, Session, SessionOrigin, TranscriptPayload, WorkerMessage,
    };

    /// The largest report the worker can make: every part at its bound, of the bytes that grow most in JSON.
    #[test]
    fn the_largest_report_fits_the_link_and_the_status() {
        let now = std::time::Instant::now();
        let (control, quote) = ("\u{1}", "\"");
        let mut ledger = Ledger::new();
        ledger.enter("Authenticate");
        ledger.note(|snapshot| {
            snapshot.agent = Some(Agent {
                name: quote.repeat(256),
                version: quote.repeat(256),
                protocol_version: 1,
                capabilities: vec!["EmbeddedContext".into(); 9],
            });
            snapshot.activity = Some(Activity { at: "t".repeat(20), summary: quote.repeat(256) });
        });
        ledger.record_turn(Session { id: control.repeat(256), how: SessionOrigin::New }, None, "t".repeat(20), now);
        let end = Final {
            stop_reason: "Completed".into(),
            reason: "AgentHandshakeFailed".into(),
            diagnostic: Some(quote.repeat(MAX_DIAGNOSTIC_BYTES)),
            at: "t".repeat(20),
        };
        let size = 1;
        let result = ResultPayload {
            text: Some(control.repeat(MAX_INLINE_RESULT_BYTES)),
            other_blocks: i64::MAX,
            blocks: Some(ContentDigest { sha256: "0".repeat(64), size }),
            sha256: "0".repeat(64),
            size,
            turn: Some(i64::MAX),
        };
        let transcript = TranscriptPayload {
            data: "x".repeat(MAX_TRANSCRIPT_BYTES.div_ceil(3) * 4),
            sha256: "0".repeat(64),
            size,
            dropped_bytes: i64::MAX,
        };
        ledger.finish(end, Some(control.repeat(1024)), Some(result), Some(transcript), now);
        let report = ledger.pending().unwrap();
        encode(&report).unwrap();
        let WorkerMessage::Report { snapshot, .. } = report else { panic!("a report") };
        assert!(serde_json::to_vec(&snapshot).unwrap().len() <= MAX_SNAPSHOT_BYTES);
    }
}
