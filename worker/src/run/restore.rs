//! Putting a child's session back, before its agent starts (contract c40).

use super::{
    attempt::{Attempt, Halt},
    beside::on_a_thread,
    keep::State,
    retry::{Trouble, again_and_again},
};
use crate::{
    config::Settings,
    link::{self, Absent},
    outcome::{End, NotResumable, NotStored, Stage, StartFault},
    state::{RestoreFault, Restored, restore},
    transcript::Transcript,
};
use std::time::Duration;
use subagent_link::{CheckpointDownload, ContentDigest, Continuation, ContinuedSession};
use tokio::sync::watch;

/// A session that was not put back: how the attempt ends, and what was in the way.
struct Failure(End, Option<String>);

impl Attempt {
    /// Fetches the checkpoint of this session and puts its files back. It is tried until the gateway answers or somebody stops
    /// the attempt: the start deadline holds.
    ///
    /// # Errors
    /// [`Halt`]: stopped, refused, or it cannot be.
    pub(super) async fn restore(
        &mut self,
        session: &ContinuedSession,
        continuation: &Continuation,
    ) -> Result<(), Halt> {
        self.enter(Stage::Restoring);
        self.say(&format!("epoch {} continues session {}", continuation.epoch, session.id));
        let Some(state) = self.state.clone() else {
            // Every file of it would lie outside of where files may lie.
            return Err(Halt::End(End::NotResumable(NotResumable::Unusable(RestoreFault::Outside))));
        };
        let restorer = Restorer { settings: self.settings.clone(), transcript: self.transcript.clone(), state };
        // Nothing is lost with it, so a cancel waits for nothing.
        let (_told, moved) = watch::channel(0);
        match self.beside(restorer.restore(session.checkpoint.clone()), Duration::ZERO, moved).await? {
            Ok(Restored { files, unpacked, mounted }) => {
                self.say(&format!("the session is back: {files} files, {unpacked} bytes"));
                if mounted > 0 {
                    self.say(&format!("{mounted} files were left as the pod mounts them"));
                }
                Ok(())
            }
            Err(Failure(end, trouble)) => {
                self.circumstances.trouble = trouble;
                Err(Halt::End(end))
            }
        }
    }
}

/// What puts a session back.
struct Restorer {
    settings: Settings,
    transcript: Transcript,
    state: State,
}

impl Restorer {
    async fn restore(self, checkpoint: ContentDigest) -> Result<Restored, Failure> {
        let worker = &self.settings.worker;
        let download = CheckpointDownload { run_uid: worker.run_uid.clone(), attempt: worker.attempt };
        let (told, trouble) = watch::channel(Trouble::default());
        let once = || link::fetch(&self.settings, &download, &checkpoint, &self.settings.home_dir);
        let fetched = again_and_again(&self.transcript, "the session is not fetched", &told, once).await;
        let fetched = fetched.map_err(|why: NotStored| {
            let words = trouble.borrow().words.clone();
            Failure(End::NotFetched(why), Some(words).filter(|words| !words.is_empty()))
        })?;
        let mut archive = fetched.map_err(|absent| {
            let end = match absent {
                Absent::Gone => End::NotResumable(NotResumable::Gone),
                Absent::Different => End::NotResumable(NotResumable::Different),
                Absent::NoRoom(number) => End::NotStarted(StartFault::Spool(number)),
            };
            Failure(end, None)
        })?;
        let State { paths, limit } = self.state;
        on_a_thread(move || restore(&mut archive, &paths, limit)).await.map_err(|fault| {
            let end = match fault {
                RestoreFault::Damaged | RestoreFault::Outside => End::NotResumable(NotResumable::Unusable(fault)),
                // The pod is to blame, or the provider: another one can go on from the same checkpoint.
                RestoreFault::TooLarge(_) | RestoreFault::Unwritable(_) => End::NotStarted(StartFault::State(fault)),
            };
            Failure(end, None)
        })
    }
}
