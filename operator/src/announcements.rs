//! What is told beside the work: Events go out in the order of their transitions, and no reconcile waits for one
//! (contract c10).

use futures::future::BoxFuture;
use std::time::Duration;
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

/// Announcements that may wait: a burst of some hundred runs. With more the API server is in trouble, and what is dropped
/// then stands in the conditions, which are the record.
const QUEUE: usize = 1024;
/// How long what waits may still go out at the end. The lease is held meanwhile, so it is short.
const FLUSH: Duration = Duration::from_secs(1);

/// Hands announcements to the task that carries them out, one after the other.
#[derive(Clone, Debug)]
pub struct Announcements {
    queue: mpsc::Sender<BoxFuture<'static, ()>>,
}

/// The task.
#[derive(Debug)]
pub struct Announcing {
    task: JoinHandle<()>,
    closing: CancellationToken,
}

impl Announcements {
    /// Starts the task.
    pub fn start() -> (Self, Announcing) {
        let (queue, mut waiting) = mpsc::channel::<BoxFuture<'static, ()>>(QUEUE);
        let closing = CancellationToken::new();
        let closed = closing.clone();
        let task = tokio::spawn(async move {
            while let Some(Some(announcement)) = closed.run_until_cancelled(waiting.recv()).await {
                announcement.await;
            }
            waiting.close();
            while let Some(announcement) = waiting.recv().await {
                announcement.await;
            }
        });
        (Self { queue }, Announcing { task, closing })
    }

    /// Carries this out later, after what was handed over before. It must end by itself.
    pub fn later(&self, announcement: impl Future<Output = ()> + Send + 'static) {
        if self.queue.try_send(Box::pin(announcement)).is_err() {
            tracing::warn!("an Event was dropped: too many wait");
        }
    }
}

impl Announcing {
    /// Lets what waits go out, for a short time.
    pub async fn finish(self) {
        self.closing.cancel();
        if timeout(FLUSH, self.task).await.is_err() {
            tracing::warn!("Events were left out at the end");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use tokio::sync::Notify;

    #[tokio::test]
    async fn c10_events_keep_their_order_and_nobody_waits_for_them() {
        let (announcements, announcing) = Announcements::start();
        let (told, gate) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Notify::new()));
        let (slow, opened) = (told.clone(), gate.clone());
        announcements.later(async move {
            opened.notified().await;
            slow.lock().unwrap().push(1);
        });
        for number in 2..5 {
            let told = told.clone();
            announcements.later(async move { told.lock().unwrap().push(number) });
        }
        tokio::task::yield_now().await;
        assert!(told.lock().unwrap().is_empty(), "the first one hangs, and we are here");
        gate.notify_one();
        announcing.finish().await;
        assert_eq!(*told.lock().unwrap(), [1, 2, 3, 4]);
    }

    #[tokio::test]
    async fn c10_an_event_that_hangs_holds_up_neither_the_work_nor_the_end() {
        let (announcements, announcing) = Announcements::start();
        for _ in 0..2 * QUEUE {
            announcements.later(std::future::pending());
        }
        announcing.finish().await;
    }
}
