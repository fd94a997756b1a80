//! Is what arrives what was announced.

use super::{Key, PART};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use sha2::{Digest, Sha256};
use std::fmt::Display;

/// Why a content is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// It broke off. The next try may be whole.
    #[error("the content broke off: {0}")]
    Broken(String),
    /// It has another size.
    #[error("{arrived} bytes or more arrived, {announced} were announced")]
    Size {
        /// What arrived until this was clear, in bytes.
        arrived: u64,
        /// What was announced, in bytes.
        announced: u64,
    },
    /// It has another digest.
    #[error("the content has another digest than announced")]
    Digest,
}

/// A content on its way, counted and hashed.
pub(super) struct Announced<'a, S> {
    frames: S,
    key: &'a Key,
    size: u64,
    arrived: u64,
    digest: Sha256,
    /// Arrived, and not given out.
    rest: Bytes,
}

impl<'a, S, E> Announced<'a, S>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: Display,
{
    pub fn new(frames: S, key: &'a Key, size: u64) -> Self {
        Self { frames, key, size, arrived: 0, digest: Sha256::new(), rest: Bytes::new() }
    }

    /// The next part of [`PART`] bytes, or what is left. `None` only after all of it has arrived and is right: whoever has
    /// not seen it has nothing to keep.
    pub async fn part(&mut self) -> Result<Option<Vec<u8>>, ContentError> {
        let left = self.size - self.arrived + self.rest.len() as u64;
        // Never more than was announced, so never more than it takes.
        let room = usize::try_from(left.min(PART)).unwrap_or(0);
        let mut part = Vec::with_capacity(room);
        loop {
            let taken = self.rest.split_to(self.rest.len().min(room - part.len()));
            part.extend_from_slice(&taken);
            if part.len() == room && room > 0 {
                return Ok(Some(part));
            }
            match self.frames.next().await {
                Some(Ok(frame)) => self.count(frame)?,
                Some(Err(error)) => return Err(ContentError::Broken(error.to_string())),
                None => return self.end().map(|()| None),
            }
        }
    }

    fn count(&mut self, frame: Bytes) -> Result<(), ContentError> {
        self.arrived += frame.len() as u64;
        if self.arrived > self.size {
            return Err(ContentError::Size { arrived: self.arrived, announced: self.size });
        }
        self.digest.update(&frame);
        self.rest = frame;
        Ok(())
    }

    fn end(&mut self) -> Result<(), ContentError> {
        if self.arrived != self.size {
            return Err(ContentError::Size { arrived: self.arrived, announced: self.size });
        }
        let digest = std::mem::take(&mut self.digest);
        if crate::naming::hex(&digest.finalize()) == self.key.sha256 { Ok(()) } else { Err(ContentError::Digest) }
    }
}
