//! A result that fits no report is stored before the report of the end is made (contract c31): ConfigMaps first, then
//! the status, then the acknowledgement. So is the output of each turn of an activation before the turn counts as done.

use super::{
    attempt::{Attempt, Halt, Wake, timestamp},
    beside::Signs,
    retry::{Trouble, again_and_again, in_vain},
    stop::is_completed,
};
use crate::{
    config::Settings,
    link::{Content, put},
    outcome::{End, NotStored, Stage, StopCause},
    output::{Collected, Whole, hex},
    transcript::Transcript,
};
use hyper::body::Bytes;
use sha2::{Digest, Sha256};
use std::time::Duration;
use subagent_link::{
    ContentDigest, FINAL_ACK_TIMEOUT, MAX_INLINE_RESULT_BYTES, MAX_PREVIEW_BYTES, ResultPart, ResultPayload,
    ResultUpload, Storing, TurnOutput,
};
use tokio::{sync::watch, task::JoinHandle, time::timeout};

/// An end whose result is being stored.
#[derive(Debug)]
pub struct Upload {
    end: End,
    result: ResultPayload,
    task: JoinHandle<Outcome>,
    /// What is in the way, the latest.
    trouble: watch::Receiver<Trouble>,
}

/// What became of an upload: stored, or not, and why.
pub type Outcome = Result<(), NotStored>;

/// What is heard of an upload.
#[derive(Debug)]
pub enum UploadEvent {
    /// It is tried again; this was in the way.
    Trouble(String),
    /// It came to its end.
    Over(Outcome),
}

/// Waits for news of the upload; for ever when there is none. Safe to cancel.
pub async fn next_of(upload: &mut Option<Upload>) -> UploadEvent {
    let Some(Upload { task, trouble, .. }) = upload else { return std::future::pending().await };
    tokio::select! {
        biased;
        outcome = task => UploadEvent::Over(outcome.unwrap_or(Err(in_vain(trouble)))),
        // Its sender goes with the task.
        Ok(()) = trouble.changed() => UploadEvent::Trouble(trouble.borrow_and_update().words.clone()),
    }
}

/// What is said while it is not stored.
const NOT_STORED: &str = "the result is not stored";

/// How long an output is tried to be stored that the report of the end can hold as well, when no other turn waits. Enough for a
/// gateway that starts anew; a quota that is full may stay so.
const INLINE_PATIENCE: Duration = Duration::from_secs(120);

/// How long an output is tried to be stored.
fn patience(has_other_place: bool) -> Duration {
    if has_other_place { INLINE_PATIENCE } else { FINAL_ACK_TIMEOUT }
}

impl Attempt {
    /// Stores the whole output of the turn that was answered, when its preview does not hold it; only then the turn counts as
    /// done (c31). An older gateway gets the preview alone, also one that came meanwhile. So does the report of a last turn that
    /// cannot be stored when that of the end can hold it. Any other that is too large, or cannot be stored, fails a turn that
    /// would have completed, as the result of a run does.
    ///
    /// # Errors
    /// [`Halt`]: stopped or refused.
    pub(super) async fn keep_output(&mut self, end: End) -> Result<(End, Option<TurnOutput>), Halt> {
        if !*self.takes_outputs.borrow() {
            return Ok((end, None));
        }
        let whole = match self.output.collect() {
            Collected::Whole(whole) => whole,
            Collected::TooLarge { size, limit } if is_completed(&end) => {
                return Ok((End::ResultTooLarge { size, limit }, None));
            }
            Collected::TooLarge { .. } => return Ok((end, None)),
        };
        let turn = self.ledger.turns();
        let (told, contents) = self.split(whole, MAX_PREVIEW_BYTES, Some(turn));
        if contents.is_empty() {
            return Ok((end, None));
        }
        let size = size_of(&contents);
        self.say(&format!("storing {size} bytes of the output of turn {turn}"));
        self.enter(Stage::StoringResult);
        let fits_report = told.blocks.is_none() && size <= MAX_INLINE_RESULT_BYTES as u64;
        let patience = patience(fits_report && self.inbox.is_empty());
        let mut takes_outputs = self.takes_outputs.subscribe();
        let (uploader, trouble) = self.uploader();
        let work = async move {
            tokio::select! {
                stored = uploader.store(&contents, patience) => stored.map(|()| true),
                _ = takes_outputs.wait_for(|takes| !takes) => Ok(false),
            }
        };
        let stores = Storing { size: i64::try_from(size).unwrap_or(i64::MAX), ..Storing::default() };
        let signs = Signs { stores: Some(stores), trouble: (NOT_STORED, trouble), moved: None };
        let grace = Duration::from_secs(u64::try_from(self.stop_graces.cancel_grace_seconds).unwrap_or(0));
        match self.beside(work, grace, signs).await? {
            Ok(true) => {
                let ResultPayload { other_blocks, blocks, sha256, size, .. } = told;
                Ok((end, Some(TurnOutput { sha256, size, other_blocks, blocks })))
            }
            Ok(false) => {
                self.say(&format!("this gateway takes no outputs of turns: turn {turn} has its preview alone"));
                Ok((end, None))
            }
            Err(_) if fits_report && self.inbox.is_empty() => {
                self.circumstances.trouble = None;
                self.say(&format!("the output of turn {turn} is not stored: it goes into the report of the end"));
                Ok((end, None))
            }
            Err(why) if is_completed(&end) => Ok((End::DurabilityFailed { size, why }, None)),
            Err(_) => Ok((end, None)),
        }
    }

    /// Reports that the output of a turn is not stored, which is not tried again. Its text is the partial output if it fits.
    pub(super) fn lament(&mut self, end: &End, whole: Whole) {
        let (result, _) = self.split(whole, MAX_INLINE_RESULT_BYTES, None);
        self.conclude(end, partial(result));
    }

    /// Reports the end with its output, what does not fit the report being stored first. What the last turn left is stored
    /// already.
    pub(super) fn deliver(&mut self, end: End, whole: Whole) {
        let stored =
            self.ledger.stored_output().filter(|(_, output)| *self.takes_outputs.borrow() && is_of(output, &whole));
        let turn = stored.map(|(turn, _)| turn);
        let (mut result, contents) = self.split(whole, MAX_INLINE_RESULT_BYTES, None);
        if contents.is_empty() {
            let (size, blocks) = (result.size, result.other_blocks);
            let result = Some(result).filter(|_| size > 0 || blocks > 0 || is_completed(&end));
            return self.conclude(&end, result);
        }
        if turn.is_some() {
            result.turn = turn;
            return self.conclude(&end, Some(result));
        }
        let bytes = size_of(&contents);
        self.say(&format!("storing {bytes} bytes of the result"));
        self.enter(Stage::StoringResult);
        self.ledger.store(i64::try_from(bytes).unwrap_or(i64::MAX), timestamp());
        let (uploader, trouble) = self.uploader();
        let task = tokio::spawn(async move { uploader.store(&contents, FINAL_ACK_TIMEOUT).await });
        self.upload = Some(Upload { end, result, task, trouble });
    }

    /// What is said of an output, with a text of at most `inline` bytes in it, and what is to be uploaded beside that.
    fn split(&self, whole: Whole, inline: usize, turn: Option<i64>) -> (ResultPayload, Vec<Content>) {
        let size = whole.text.len();
        let mut told = ResultPayload {
            text: None,
            other_blocks: whole.other_blocks,
            blocks: None,
            sha256: whole.sha256.clone(),
            size: i64::try_from(size).unwrap_or(i64::MAX),
            turn: None,
        };
        let mut contents = Vec::new();
        if let Some(blocks) = whole.blocks {
            let sha256 = hex(&Sha256::digest(&blocks));
            let content = self.content(ResultPart::Blocks, turn, sha256.clone(), blocks);
            told.blocks = Some(ContentDigest { sha256, size: content.announced.size });
            contents.push(content);
        }
        if size > inline {
            contents.push(self.content(ResultPart::Text, turn, whole.sha256, whole.text));
        } else {
            told.text = Some(whole.text);
        }
        (told, contents)
    }

    fn content(&self, part: ResultPart, turn: Option<i64>, sha256: String, text: String) -> Content {
        let bytes = Bytes::from(text);
        let size = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
        let (run_uid, attempt) = (self.settings.worker.run_uid.clone(), self.settings.worker.attempt);
        let announced = ResultUpload { run_uid, attempt, turn, part, sha256, size };
        Content { announced, bytes }
    }

    fn uploader(&self) -> (Uploader, watch::Receiver<Trouble>) {
        let (told, trouble) = watch::channel(Trouble::default());
        (Uploader { settings: self.settings.clone(), transcript: self.transcript.clone(), told }, trouble)
    }

    /// What is heard of the upload.
    pub(super) fn hear_upload(&mut self, event: UploadEvent) -> Wake {
        match event {
            UploadEvent::Trouble(trouble) => {
                self.ledger.store_again(trouble);
                Wake::News
            }
            UploadEvent::Over(outcome) => self.uploaded(outcome),
        }
    }

    /// Reports the end now that its upload has come to one. A result that is not stored is none: the end is then not
    /// Completed (contract c31), and what fits the report is partial output.
    pub(super) fn uploaded(&mut self, outcome: Outcome) -> Wake {
        let Some(Upload { end, result, .. }) = self.upload.take() else { return Wake::News };
        self.enter(Stage::Stopping);
        let size = result.size.max(0) + result.blocks.as_ref().map_or(0, |blocks| blocks.size);
        match outcome {
            Ok(()) => self.conclude(&end, Some(result)),
            Err(why) if is_completed(&end) => {
                self.conclude(&End::DurabilityFailed { size: size.unsigned_abs(), why }, partial(result));
            }
            Err(_) => {
                let kept = partial(result);
                let dropped = size - kept.as_ref().map_or(0, |kept| kept.size);
                self.circumstances.dropped_output = Some(dropped.unsigned_abs());
                self.conclude(&end, kept);
            }
        }
        Wake::News
    }

    /// There is no time left to store the result.
    pub(super) fn give_up_upload(&mut self) {
        if let Some(upload) = &self.upload {
            upload.task.abort();
            // A cancel says more than the SIGTERM that follows it.
            let stopped = Some(self.stop.unwrap_or(StopCause::Terminated));
            let status = upload.trouble.borrow().status;
            self.uploaded(Err(NotStored::InVain { status, stopped }));
        }
    }
}

fn size_of(contents: &[Content]) -> u64 {
    contents.iter().map(|content| content.bytes.len() as u64).sum()
}

/// What is left of a result that is not stored: its text, when the report holds that.
fn partial(result: ResultPayload) -> Option<ResultPayload> {
    let has_text = result.text.is_some() && result.size > 0;
    has_text.then_some(ResultPayload { blocks: None, ..result })
}

/// Whether the stored output of a turn is this one: what came after the turn is none of it.
fn is_of(output: &TurnOutput, whole: &Whole) -> bool {
    let blocks = whole.blocks.as_ref().map(|blocks| hex(&Sha256::digest(blocks)));
    output.sha256 == whole.sha256 && output.blocks.as_ref().map(|blocks| &blocks.sha256) == blocks.as_ref()
}

/// What stores a result.
struct Uploader {
    settings: Settings,
    transcript: Transcript,
    told: watch::Sender<Trouble>,
}

impl Uploader {
    /// Stores every content, trying again for so long.
    async fn store(&self, contents: &[Content], patience: Duration) -> Outcome {
        let all = async {
            for content in contents {
                self.store_one(content).await?;
            }
            Ok(())
        };
        let too_late = |_| Err(in_vain(&self.told.subscribe()));
        timeout(patience, all).await.unwrap_or_else(too_late)
    }

    async fn store_one(&self, content: &Content) -> Outcome {
        again_and_again(&self.transcript, NOT_STORED, &self.told, || put(&self.settings, content)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c31_what_has_another_place_is_not_waited_for_as_long_as_the_end() {
        assert_eq!((patience(true), patience(false)), (Duration::from_secs(120), FINAL_ACK_TIMEOUT));
    }

    #[test]
    fn c31_of_what_is_not_stored_the_text_stays_when_it_fits() {
        let blocks = Some(ContentDigest { sha256: "cd".into(), size: 70_000 });
        let (text, sha256) = (Some("ab".into()), "ef".into());
        let told = ResultPayload { text, other_blocks: 1, blocks, sha256, size: 2, turn: None };
        assert_eq!(partial(told.clone()), Some(ResultPayload { blocks: None, ..told.clone() }));
        assert_eq!(partial(ResultPayload { text: None, size: 70_000, ..told }), None);
    }
}
