//! The tail of a pod's log, in the place of a transcript that no worker could send.

use super::transcript::Tail;
use base64::{Engine, prelude::BASE64_STANDARD};
use futures::{AsyncBufRead, AsyncBufReadExt};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::LogParams};
use std::time::Duration;
use subagent_crds::names;

/// Longest time for the whole log: a kubelet that is alive answers in milliseconds, and the end of a run waits for this.
const LOG_TIMEOUT: Duration = Duration::from_secs(5);
/// Lines asked for: of usual length, more than the archive holds.
const LINES: i64 = 4000;
/// Longest piece of a line that is kept together. The worker writes shorter lines; before it runs, or beside it, anything
/// may be in a log.
const PIECE: usize = 16 * 1024;

/// A log that could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The API server, or the kubelet behind it, refused.
    #[error("the log of the pod could not be read: {0}")]
    Call(#[from] kube::Error),
    /// It broke off.
    #[error("the log of the pod broke off: {0}")]
    Read(#[from] std::io::Error),
    /// No answer in time.
    #[error("the log of the pod could not be read within {} s: its node does not answer", LOG_TIMEOUT.as_secs())]
    Timeout,
}

/// Reads the end of what the agent's container wrote; `None` when it wrote nothing.
///
/// # Errors
/// [`LogError`]; nothing is lost by it but the transcript.
pub async fn tail(client: &Client, namespace: &str, pod: &str) -> Result<Option<Tail>, LogError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let params = LogParams {
        container: Some(names::AGENT_CONTAINER.to_owned()),
        tail_lines: Some(LINES),
        ..LogParams::default()
    };
    let read = async { Ok(tail_of(pods.log_stream(pod, &params).await?).await?) };
    tokio::time::timeout(LOG_TIMEOUT, read).await.unwrap_or(Err(LogError::Timeout))
}

/// Keeps the end of a stream, in bounded memory.
async fn tail_of(log: impl AsyncBufRead) -> std::io::Result<Option<Tail>> {
    let mut log = std::pin::pin!(log);
    let mut tail = subagent_link::Tail::new();
    let mut line = Vec::new();
    loop {
        let read = log.fill_buf().await?;
        let ended = read.is_empty();
        let end = read.iter().position(|byte| *byte == b'\n').map_or(read.len(), |at| at + 1);
        let end = end.min(PIECE - line.len());
        line.extend_from_slice(&read[..end]);
        log.as_mut().consume(end);
        if line.ends_with(b"\n") || line.len() == PIECE || ended {
            tail.push(&String::from_utf8_lossy(&line));
            line.clear();
        }
        if ended {
            break;
        }
    }
    Ok(tail.payload().and_then(|payload| {
        let data = BASE64_STANDARD.decode(&payload.data).ok()?;
        Some(Tail { data, sha256: payload.sha256, size: payload.size, dropped_bytes: payload.dropped_bytes })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::io::BufReader;
    use rstest::rstest;

    async fn kept(log: &[u8]) -> Option<(String, i64)> {
        // Small pieces, as from a connection.
        let tail = tail_of(BufReader::with_capacity(100, log)).await.unwrap()?;
        Some((String::from_utf8(zstd::decode_all(&tail.data[..]).unwrap()).unwrap(), tail.dropped_bytes))
    }

    #[rstest]
    #[case::nothing(b"", None)]
    #[case::lines(b"a\nb\n", Some("a\nb\n"))]
    #[case::no_end(b"a\nb", Some("a\nb"))]
    #[case::no_utf8(b"a\xff\n", Some("a\u{fffd}\n"))]
    #[tokio::test]
    async fn t9_a_short_log_is_kept_whole(#[case] log: &[u8], #[case] expected: Option<&str>) {
        assert_eq!(kept(log).await, expected.map(|text| (text.to_owned(), 0)));
    }

    #[tokio::test]
    async fn t9_of_a_long_log_the_end_is_kept_also_without_line_ends() {
        for separator in ["\n", " "] {
            let log: String = (0..300_000).map(|number| format!("{number}{separator}")).collect();
            let (text, dropped) = kept(log.as_bytes()).await.unwrap();
            assert!(log.ends_with(&text) && text.len() > 16 * 1024, "{}", text.len());
            assert_eq!(dropped as usize + text.len(), log.len());
        }
    }
}
