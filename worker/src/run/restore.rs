//! Putting a child's session back, before its agent starts (contract c40).

use super::{
    attempt::{Attempt, Halt},
    beside::{Signs, on_a_thread},
    keep::State,
    retry::{Trouble, again_and_again},
};
use crate::{
    config::Settings,
    link::{self, Absent},
    outcome::{End, NotResumable, Stage, StartFault},
    state::{RestoreFault, Restored, restore},
    transcript::Transcript,
};
use std::time::Duration;
use subagent_link::{CheckpointDownload, ContentDigest, Continuation, ContinuedSession};
use tokio::sync::watch;

/// What is said while it does not come.
const NOT_FETCHED: &str = "the session is not fetched";

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
            // The provider keeps sessions no more. Once it does again, the child can go on.
            return Err(Halt::End(End::NotStarted(StartFault::State(RestoreFault::Elsewhere))));
        };
        let (told, trouble) = watch::channel(Trouble::default());
        let restorer = Restorer { settings: self.settings.clone(), transcript: self.transcript.clone(), state, told };
        let signs = Signs { stores: None, trouble: (NOT_FETCHED, trouble), moved: None };
        // Nothing is lost with it, so a cancel waits for nothing.
        match self.beside(restorer.restore(session.checkpoint.clone()), Duration::ZERO, signs).await? {
            Ok(Restored { files, unpacked, mounted }) => {
                self.say(&format!("the session is back: {files} files, {unpacked} bytes"));
                if mounted > 0 {
                    self.say(&format!("{mounted} files were left as the pod mounts them"));
                }
                Ok(())
            }
            Err(end) => Err(Halt::End(end)),
        }
    }
}

/// What puts a session back.
struct Restorer {
    settings: Settings,
    transcript: Transcript,
    state: State,
    /// What is in the way.
    told: watch::Sender<Trouble>,
}

impl Restorer {
    async fn restore(self, checkpoint: ContentDigest) -> Result<Restored, End> {
        let worker = &self.settings.worker;
        let download = CheckpointDownload { run_uid: worker.run_uid.clone(), attempt: worker.attempt };
        let once = || link::fetch(&self.settings, &download, &checkpoint, &self.settings.home_dir);
        let fetched =
            again_and_again(&self.transcript, NOT_FETCHED, &self.told, once).await.map_err(End::NotFetched)?;
        // It came, or never will: what was in the way is no more.
        self.told.send_replace(Trouble::default());
        let mut archive = fetched.map_err(|absent| match absent {
            Absent::Gone => End::NotResumable(NotResumable::Gone),
            Absent::Different => End::NotResumable(NotResumable::Different),
            Absent::NoRoom(number) => End::NotStarted(StartFault::Spool(number)),
        })?;
        let State { paths, limit } = self.state;
        on_a_thread(move || restore(&mut archive, &paths, limit)).await.map_err(|fault| match fault {
            RestoreFault::Damaged | RestoreFault::Outside => End::NotResumable(NotResumable::Unusable(fault)),
            // The pod is to blame, or the provider: another one can go on from the same checkpoint.
            RestoreFault::TooLarge(_) | RestoreFault::Unwritable(_) | RestoreFault::Elsewhere => {
                End::NotStarted(StartFault::State(fault))
            }
        })
    }
}
