//! Keeping a child's session: after each turn its files become a checkpoint in the session store, and only then does the turn
//! count as done (contract c41).

use super::{
    attempt::{Attempt, Halt},
    beside::{Signs, on_a_thread},
    retry::{Trouble, again_and_again, in_vain},
};
use crate::{
    link,
    outcome::{End, NotKept, NotResumable, NotStored, Stage},
    state::{PackFault, Packed, pack},
    transcript::Transcript,
};
use std::{path::PathBuf, sync::Arc, time::Duration};
use subagent_link::{
    Checkpoint, CheckpointUpload, Continuation, FINAL_ACK_TIMEOUT, STORING_SESSION, StoredCheckpoint, Storing,
};
use tokio::{sync::watch, time::timeout};

/// Where a child's session lies in the pod.
#[derive(Clone, Debug)]
pub struct State {
    /// Absolute folders.
    pub paths: Vec<PathBuf>,
    /// Largest archive of them, before compression, in bytes.
    pub limit: u64,
}

impl State {
    /// What an activation is to keep; nothing when its provider names no folders.
    pub fn of(continuation: &Continuation) -> Option<Self> {
        let paths: Vec<_> = continuation.state_paths.iter().map(PathBuf::from).collect();
        let limit = continuation.max_state_bytes.max(0).unsigned_abs();
        (!paths.is_empty()).then_some(Self { paths, limit })
    }
}

/// What is said while it is not stored.
const NOT_STORED: &str = "the session is not stored";

impl Attempt {
    /// Keeps the session as the turn left it. Nothing for a run that has none to keep, and for a turn that did not complete
    /// and left nothing.
    ///
    /// # Errors
    /// [`Halt`]: stopped, refused, or not kept.
    pub(super) async fn keep_session(&mut self, completed: bool) -> Result<Option<Checkpoint>, Halt> {
        let Some(state) = self.state.clone() else { return Ok(None) };
        self.enter(Stage::Checkpoint);
        let turn = self.ledger.turns();
        let (moving, moved) = watch::channel(0);
        let (told, trouble) = watch::channel(Trouble::default());
        let keeper = Keeper {
            settings: self.settings.clone(),
            transcript: self.transcript.clone(),
            state,
            turn,
            moved: Arc::new(moving),
            told,
        };
        let stores = Storing { what: Some(STORING_SESSION.to_owned()), ..Storing::default() };
        let signs =
            Signs { stores: Some(stores), trouble: (NOT_STORED, trouble), moved: Some(("storing the session", moved)) };
        // A cancel may wait for it as long as for an agent's answer: what the turn did is worth that.
        let grace = Duration::from_secs(u64::try_from(self.stop_graces.cancel_grace_seconds).unwrap_or(0));
        match self.beside(keeper.keep(), grace, signs).await? {
            // R8: also what came right behind the response, or meanwhile.
            Ok(_) if self.has_strayed => Err(Halt::End(End::NotResumable(NotResumable::OtherSession))),
            Ok(checkpoint) => Ok(Some(checkpoint)),
            Err(NotKept::Packed(PackFault::Nothing)) if !completed => {
                self.say("the turn left no session to keep");
                Ok(None)
            }
            Err(why) => Err(Halt::End(End::NotKept { turn, why })),
        }
    }
}

/// What keeps a session.
struct Keeper {
    settings: crate::config::Settings,
    transcript: Transcript,
    state: State,
    turn: i64,
    moved: Arc<watch::Sender<u64>>,
    /// What is in the way.
    told: watch::Sender<Trouble>,
}

impl Keeper {
    async fn keep(self) -> Result<Checkpoint, NotKept> {
        let (State { paths, limit }, spool) = (self.state.clone(), self.settings.home_dir.clone());
        let packed = on_a_thread(move || pack(&paths, &spool, limit)).await;
        let packed = packed.map_err(NotKept::Packed)?;
        self.say(&packed);
        let Packed { file, sha256, size, .. } = packed;
        let size = i64::try_from(size).unwrap_or(i64::MAX);
        let worker = &self.settings.worker;
        let upload = CheckpointUpload {
            run_uid: worker.run_uid.clone(),
            attempt: worker.attempt,
            turn: self.turn,
            sha256,
            size,
        };
        let stored = self.store(&upload, &Arc::new(file)).await.map_err(|why| NotKept::Stored { size, why })?;
        Ok(Checkpoint { key: stored.key, digest: upload.sha256, size, turn: self.turn })
    }

    /// Stores it, trying again for as long as a result would be.
    async fn store(&self, upload: &CheckpointUpload, file: &Arc<std::fs::File>) -> Result<StoredCheckpoint, NotStored> {
        let once = || link::store(&self.settings, upload, file, &self.moved);
        let storing = again_and_again(&self.transcript, NOT_STORED, &self.told, once);
        timeout(FINAL_ACK_TIMEOUT, storing).await.unwrap_or_else(|_| Err(in_vain(&self.told.subscribe())))
    }

    fn say(&self, packed: &Packed) {
        let Packed { size, files, unpacked, others, mounted, is_settled, .. } = packed;
        let mut line = format!("keeping the session: {files} files, {unpacked} bytes, compressed {size}");
        if *others > 0 {
            line.push_str(&format!("; left out: {others} sockets, pipes and devices"));
        }
        if *mounted > 0 {
            line.push_str(&format!("; left out: {mounted} read-only mounts"));
        }
        if !is_settled {
            line.push_str("; some of them were being written to all the time");
        }
        self.transcript.line(crate::transcript::Speaker::Worker, &line);
    }
}
