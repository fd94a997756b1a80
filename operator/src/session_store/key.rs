//! Names of checkpoints.

use object_store::path::Path;
use std::fmt;

/// The name of a checkpoint. It holds the digest of its content, so two contents never share one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// UID of the Subagent.
    pub child_uid: String,
    /// Number of the activation, from 1.
    pub epoch: i64,
    /// Turn after which it was taken, from 1, within the attempt.
    pub turn: i64,
    /// SHA-256 of the content in lower-case hex.
    pub sha256: String,
}

/// The name of a checkpoint as it is stored and written into objects: `uid/epoch/turn/digest`.
pub fn key(child_uid: &str, epoch: i64, turn: i64, sha256: &str) -> String {
    format!("{child_uid}/{epoch}/{turn}/{sha256}")
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&key(&self.child_uid, self.epoch, self.turn, &self.sha256))
    }
}

impl Key {
    /// Reads a name. `None` for everything that [`key`] does not make: nothing else is ever read or removed.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let (child_uid, epoch, turn, sha256) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let key = Self {
            child_uid: child_uid.to_owned(),
            epoch: epoch.parse().ok()?,
            turn: turn.parse().ok()?,
            sha256: sha256.to_owned(),
        };
        let sound = is_uid(child_uid) && key.epoch >= 1 && key.turn >= 1 && is_digest(sha256);
        // Numbers have more than one spelling.
        (sound && key.to_string() == text).then_some(key)
    }

    pub(super) fn path(&self) -> Path {
        Path::from(self.to_string())
    }
}

/// Whether a text can be the UID of an object: it becomes the name of a folder.
pub(super) fn is_uid(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const DIGEST: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn a_key_is_read_as_it_is_written() {
        let text = key("7f9c1f0e-5f0a-4f7e-8a63-2f1f3e1f6f10", 12, 3, DIGEST);
        let read = Key::parse(&text).unwrap();
        assert_eq!((read.epoch, read.turn, read.sha256.as_str()), (12, 3, DIGEST));
        assert_eq!((read.to_string(), read.path().to_string()), (text.clone(), text));
    }

    #[rstest]
    #[case::nothing("")]
    #[case::a_prefix("u/1/1")]
    #[case::more(&format!("u/1/1/{DIGEST}/x"))]
    #[case::another_folder(&format!("../1/1/{DIGEST}"))]
    #[case::no_uid(&format!("/1/1/{DIGEST}"))]
    #[case::another_spelling(&format!("u/01/1/{DIGEST}"))]
    #[case::no_epoch(&format!("u/0/1/{DIGEST}"))]
    #[case::no_turn(&format!("u/1/-1/{DIGEST}"))]
    #[case::upper_case(&format!("u/1/1/{}", DIGEST.to_uppercase()))]
    #[case::being_written(&format!("u/1/1/{DIGEST}#1"))]
    fn nothing_else_is_a_key(#[case] text: &str) {
        assert_eq!(Key::parse(text), None);
    }
}
