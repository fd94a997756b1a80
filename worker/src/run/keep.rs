//! Keeping a child's session: after each turn its files become a checkpoint in the session store, and only then does the turn
//! count as done (contract c41).

use super::{
    attempt::{Attempt, Halt},
    beside::on_a_thread,
    retry::{Trouble, again_and_again, in_vain},
};
use crate::{
    link,
    outcome::{End, NotKept, NotResumable, NotStored, Stage},
    state::{PackFault, Packed, pack},
    transcript::Transcript,
};
use std::{path::PathBuf, sync::Arc, time::Duration};
use subagent_link::{Checkpoint, CheckpointUpload, Continuation, FINAL_ACK_TIMEOUT, StoredCheckpoint};
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

/// A session that was not kept: why, and what was in the way.
struct Failure(NotKept, Option<String>);

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
        let (told, moved) = watch::channel(0);
        let keeper = Keeper {
            settings: self.settings.clone(),
            transcript: self.transcript.clone(),
            state,
            turn,
            moved: Arc::new(told),
        };
        // A cancel may wait for it as long as for an agent's answer: what the turn did is worth that.
        let grace = Duration::from_secs(u64::try_from(self.stop_graces.cancel_grace_seconds).unwrap_or(0));
        match self.beside(keeper.keep(), grace, moved).await? {
            // R8: also what came right behind the response, or meanwhile.
            Ok(_) if self.has_strayed => Err(Halt::End(End::NotResumable(NotResumable::OtherSession))),
            Ok(checkpoint) => Ok(Some(checkpoint)),
            Err(Failure(NotKept::Packed(PackFault::Nothing), _)) if !completed => {
                self.say("the turn left no session to keep");
                Ok(None)
            }
            Err(Failure(why, trouble)) => {
                self.circumstances.trouble = trouble;
                Err(Halt::End(End::NotKept { turn, why }))
            }
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
}

impl Keeper {
    async fn keep(self) -> Result<Checkpoint, Failure> {
        let (State { paths, limit }, spool) = (self.state.clone(), self.settings.home_dir.clone());
        let packed = on_a_thread(move || pack(&paths, &spool, limit)).await;
        let packed = packed.map_err(|fault| Failure(NotKept::Packed(fault), None))?;
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
        let (told, trouble) = watch::channel(Trouble::default());
        let stored = self.store(&upload, &Arc::new(file), &told).await.map_err(|why| {
            let words = trouble.borrow().words.clone();
            Failure(NotKept::Stored { size, why }, Some(words).filter(|words| !words.is_empty()))
        })?;
        Ok(Checkpoint { key: stored.key, digest: upload.sha256, size, turn: self.turn })
    }

    /// Stores it, trying again for as long as a result would be.
    async fn store(
        &self,
        upload: &CheckpointUpload,
        file: &Arc<std::fs::File>,
        told: &watch::Sender<Trouble>,
    ) -> Result<StoredCheckpoint, NotStored> {
        let once = || link::store(&self.settings, upload, file, &self.moved);
        let storing = again_and_again(&self.transcript, "the session is not stored", told, once);
        timeout(FINAL_ACK_TIMEOUT, storing).await.unwrap_or_else(|_| Err(in_vain(&told.subscribe())))
    }

    fn say(&self, packed: &Packed) {
        let Packed { size, files, unpacked, others, is_settled, .. } = packed;
        let mut line = format!("keeping the session: {files} files, {unpacked} bytes, compressed {size}");
        if *others > 0 {
            line.push_str(&format!("; left out: {others} sockets, pipes and devices"));
        }
        if !is_settled {
            line.push_str("; some of them were being written to all the time");
        }
        self.transcript.line(crate::transcript::Speaker::Worker, &line);
    }
}
