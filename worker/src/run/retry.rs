//! What is asked of the gateway beside the link is asked again until it is done or refused for good.

use crate::{
    link::{Backoff, Failure},
    outcome::NotStored,
    transcript::{Speaker, Transcript, clip},
};
use subagent_link::MAX_TROUBLE_BYTES;
use tokio::{sync::watch, time::sleep};

/// What was in the way at the last try.
#[derive(Debug, Default)]
pub struct Trouble {
    /// HTTP status of the gateway, if it answered.
    pub status: Option<u16>,
    /// For a person.
    pub words: String,
}

/// Nobody stopped it.
pub fn in_vain(trouble: &watch::Receiver<Trouble>) -> NotStored {
    NotStored::InVain { status: trouble.borrow().status, stopped: None }
}

/// Tries until it works. What is in the way goes to `told`, and into the transcript behind `what`, once per cause.
///
/// # Errors
/// [`NotStored::Refused`].
pub async fn again_and_again<T, F: Future<Output = Result<T, Failure>>>(
    transcript: &Transcript,
    what: &str,
    told: &watch::Sender<Trouble>,
    mut once: impl FnMut() -> F,
) -> Result<T, NotStored> {
    let mut backoff = Backoff::new();
    loop {
        let (status, trouble, refused) = match once().await {
            Ok(done) => return Ok(done),
            Err(Failure::Trouble(status, trouble)) => (status, trouble, None),
            Err(Failure::Refused(status, said)) => (Some(status), said, Some(NotStored::Refused(status))),
        };
        // The words are the gateway's or the system's, and name objects of this namespace at most.
        let words = clip(&trouble, MAX_TROUBLE_BYTES);
        if words != told.borrow().words {
            transcript.line(Speaker::Worker, &format!("{what}: {words}"));
            told.send_replace(Trouble { status, words });
        }
        if let Some(refused) = refused {
            return Err(refused);
        }
        sleep(backoff.wait(rand::random())).await;
    }
}
