//! A result that fits no report is stored before the report of the end is made (contract c31): ConfigMaps first, then
//! the status, then the acknowledgement.

use super::{
    attempt::{Attempt, Wake, timestamp},
    retry::{Trouble, again_and_again, in_vain},
    stop::is_completed,
};
use crate::{
    config::Settings,
    link::{Content, put},
    outcome::{End, NotStored, Stage, StopCause},
    output::{Whole, hex},
    transcript::Transcript,
};
use hyper::body::Bytes;
use sha2::{Digest, Sha256};
use subagent_link::{
    ContentDigest, FINAL_ACK_TIMEOUT, MAX_INLINE_RESULT_BYTES, ResultPart, ResultPayload, ResultUpload,
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

impl Attempt {
    /// Reports the end with its output, what does not fit the report being stored first.
    pub(super) fn deliver(&mut self, end: End, whole: Whole) {
        let size = whole.text.len();
        let mut result = ResultPayload {
            text: None,
            other_blocks: whole.other_blocks,
            blocks: None,
            sha256: whole.sha256.clone(),
            size: i64::try_from(size).unwrap_or(i64::MAX),
        };
        let mut contents = Vec::new();
        if let Some(blocks) = whole.blocks {
            let sha256 = hex(&Sha256::digest(&blocks));
            let content = self.content(ResultPart::Blocks, sha256.clone(), blocks);
            result.blocks = Some(ContentDigest { sha256, size: content.announced.size });
            contents.push(content);
        }
        if size > MAX_INLINE_RESULT_BYTES {
            contents.push(self.content(ResultPart::Text, whole.sha256, whole.text));
        } else {
            result.text = Some(whole.text);
        }
        if contents.is_empty() {
            let result = Some(result).filter(|result| size > 0 || result.other_blocks > 0 || is_completed(&end));
            return self.conclude(&end, result);
        }
        let bytes: usize = contents.iter().map(|content| content.bytes.len()).sum();
        self.say(&format!("storing {bytes} bytes of the result"));
        self.enter(Stage::StoringResult);
        self.ledger.store(i64::try_from(bytes).unwrap_or(i64::MAX), timestamp());
        let (told, trouble) = watch::channel(Trouble::default());
        let uploader = Uploader { settings: self.settings.clone(), transcript: self.transcript.clone(), told };
        let task = tokio::spawn(async move { uploader.store(&contents).await });
        self.upload = Some(Upload { end, result, task, trouble });
    }

    fn content(&self, part: ResultPart, sha256: String, text: String) -> Content {
        let bytes = Bytes::from(text);
        let size = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
        let (run_uid, attempt) = (self.settings.worker.run_uid.clone(), self.settings.worker.attempt);
        let announced = ResultUpload { run_uid, attempt, part, sha256, size };
        Content { announced, bytes }
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
    /// Completed (contract c31).
    pub(super) fn uploaded(&mut self, outcome: Outcome) -> Wake {
        let Some(Upload { end, result, .. }) = self.upload.take() else { return Wake::News };
        self.enter(Stage::Stopping);
        let size = result.size.max(0) + result.blocks.as_ref().map_or(0, |blocks| blocks.size);
        match outcome {
            Ok(()) => self.conclude(&end, Some(result)),
            Err(why) if is_completed(&end) => {
                self.conclude(&End::DurabilityFailed { size: size.unsigned_abs(), why }, None);
            }
            Err(_) => {
                self.circumstances.dropped_output = Some(size.unsigned_abs());
                self.conclude(&end, None);
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

/// What stores a result.
struct Uploader {
    settings: Settings,
    transcript: Transcript,
    told: watch::Sender<Trouble>,
}

impl Uploader {
    /// Stores every content, trying again for as long as a final report would be.
    async fn store(&self, contents: &[Content]) -> Outcome {
        let all = async {
            for content in contents {
                self.store_one(content).await?;
            }
            Ok(())
        };
        let too_late = |_| Err(in_vain(&self.told.subscribe()));
        timeout(FINAL_ACK_TIMEOUT, all).await.unwrap_or_else(too_late)
    }

    async fn store_one(&self, content: &Content) -> Outcome {
        let what = "the result is not stored";
        again_and_again(&self.transcript, what, &self.told, || put(&self.settings, content)).await
    }
}
