//! The connection to an agent: frames in, one at a time and in order; frames out through a queue that is bounded by its bytes.

use super::{
    frame::{self, Frame},
    lines::{Line, LineReader, MAX_LINE_BYTES},
};
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::AsyncWriteExt,
    process::{ChildStdin, ChildStdout},
    sync::mpsc,
    task::JoinHandle,
};

/// Bytes of frames that may wait for the agent to read them, above the frame that is being queued. A burst of requests
/// makes answers of some 100 KiB; more only piles up when an agent asks without reading the answers.
const MAX_WAITING_BYTES: usize = 4 * 1024 * 1024;
/// How long frames that wait may still be written once stdin is to be closed.
const LAST_WRITES: Duration = Duration::from_millis(200);

/// What came from the agent.
#[derive(Debug)]
pub enum Incoming {
    /// A frame.
    Frame(Frame),
    /// A line that is none.
    Garbage(String),
    /// A line over [`MAX_LINE_BYTES`].
    TooLong,
    /// Stdout was closed.
    End,
}

/// The agent does not read: more than [`MAX_WAITING_BYTES`] wait for it.
#[derive(Debug)]
pub struct NotReading;

/// A frame to be written: method, parameters.
#[derive(Debug)]
pub struct Call {
    /// Method.
    pub method: &'static str,
    /// Parameters.
    pub params: Value,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    lines: LineReader<ChildStdout>,
    outgoing: Option<mpsc::UnboundedSender<String>>,
    /// Bytes in the queue.
    waiting: Arc<AtomicUsize>,
    writer: JoinHandle<()>,
    last_id: u64,
}

impl Connection {
    /// A connection over these pipes.
    pub fn new(stdin: ChildStdin, stdout: ChildStdout) -> Self {
        let (outgoing, queue) = mpsc::unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let writer = tokio::spawn(write_all(stdin, queue, waiting.clone()));
        let lines = LineReader::new(stdout, MAX_LINE_BYTES);
        Self { lines, outgoing: Some(outgoing), waiting, writer, last_id: 0 }
    }

    /// What comes next. Safe to cancel. After [`Incoming::End`] it is not to be asked again.
    pub async fn next(&mut self) -> Incoming {
        match self.lines.next().await {
            Line::Text(line) => match frame::parse(&line) {
                Some(frame) => Incoming::Frame(frame),
                None => Incoming::Garbage(line),
            },
            Line::TooLong => Incoming::TooLong,
            Line::End => Incoming::End,
        }
    }

    /// Sends a request and gives its number.
    ///
    /// # Errors
    /// [`NotReading`].
    pub fn request(&mut self, call: Call) -> Result<u64, NotReading> {
        self.last_id += 1;
        let id = self.last_id;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": call.method, "params": call.params}))?;
        Ok(id)
    }

    /// Sends a notification.
    ///
    /// # Errors
    /// [`NotReading`].
    pub fn notify(&self, call: Call) -> Result<(), NotReading> {
        self.send(&json!({"jsonrpc": "2.0", "method": call.method, "params": call.params}))
    }

    /// Answers a request.
    ///
    /// # Errors
    /// [`NotReading`].
    pub fn answer(&self, id: &RawValue, result: &impl Serialize) -> Result<(), NotReading> {
        #[derive(Serialize)]
        struct Answer<'a, R> {
            jsonrpc: &'static str,
            id: &'a RawValue,
            result: &'a R,
        }
        self.send(&Answer { jsonrpc: "2.0", id, result })
    }

    /// Answers a request for something this client does not do (c54).
    ///
    /// # Errors
    /// [`NotReading`].
    pub fn refuse(&self, id: &RawValue) -> Result<(), NotReading> {
        #[derive(Serialize)]
        struct Refusal<'a> {
            jsonrpc: &'static str,
            id: &'a RawValue,
            error: Value,
        }
        let error = json!({"code": -32601, "message": "Method not found"});
        self.send(&Refusal { jsonrpc: "2.0", id, error })
    }

    /// Closes the agent's stdin, once what waits is written or could not be for [`LAST_WRITES`].
    pub fn close_stdin(&mut self) {
        if self.outgoing.take().is_some() {
            let writer = self.writer.abort_handle();
            tokio::spawn(async move {
                tokio::time::sleep(LAST_WRITES).await;
                writer.abort();
            });
        }
    }

    fn send(&self, frame: &impl Serialize) -> Result<(), NotReading> {
        let Some(outgoing) = &self.outgoing else { return Ok(()) };
        // Frames are made of strings, numbers and raw JSON; these always serialise.
        let Ok(mut line) = serde_json::to_string(frame) else { return Ok(()) };
        line.push('\n');
        if self.waiting.load(Ordering::Relaxed) > MAX_WAITING_BYTES {
            return Err(NotReading);
        }
        self.waiting.fetch_add(line.len(), Ordering::Relaxed);
        // An agent that closed its stdin is noticed by its end, or by its missing answer.
        let _ = outgoing.send(line);
        Ok(())
    }
}

async fn write_all(mut stdin: ChildStdin, mut queue: mpsc::UnboundedReceiver<String>, waiting: Arc<AtomicUsize>) {
    while let Some(line) = queue.recv().await {
        if stdin.write_all(line.as_bytes()).await.is_err() {
            return;
        }
        waiting.fetch_sub(line.len(), Ordering::Relaxed);
    }
}
