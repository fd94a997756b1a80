//! The prompt: inline blocks, or a file that a ConfigMap is mounted as.

use crate::output::hex;
use sha2::{Digest, Sha256};
use std::{fs, io::Read, path::Path};
use subagent_link::{ContentBlock, Prompt, PromptDigest};

/// Largest prompt file in bytes: what a ConfigMap can hold.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// A prompt, ready to be sent.
#[derive(Debug, PartialEq)]
pub struct LoadedPrompt {
    /// Its blocks.
    pub blocks: Vec<ContentBlock>,
    /// Digest of the file, when it came from one.
    pub digest: Option<PromptDigest>,
}

impl LoadedPrompt {
    /// Reads the prompt; `None` when its file is missing, too large or not UTF-8.
    pub fn load(prompt: Prompt) -> Option<Self> {
        match prompt {
            Prompt::Inline { content } => Some(Self { blocks: content, digest: None }),
            Prompt::File { path } => {
                let bytes = read_bounded(Path::new(&path))?;
                let digest = PromptDigest { sha256: hex(&Sha256::digest(&bytes)), size: bytes.len().try_into().ok()? };
                let text = String::from_utf8(bytes).ok()?;
                Some(Self { blocks: vec![ContentBlock::Text { text }], digest: Some(digest) })
            }
        }
    }

    /// True when one of the blocks is an image.
    pub fn has_image(&self) -> bool {
        self.blocks.iter().any(|block| matches!(block, ContentBlock::Image { .. }))
    }
}

fn read_bounded(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= MAX_FILE_BYTES).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_whole_with_their_digest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("prompt");
        let load = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            LoadedPrompt::load(Prompt::File { path: path.to_str().unwrap().into() })
        };
        let loaded = load(b"hi\n").unwrap();
        assert_eq!(loaded.blocks, [ContentBlock::Text { text: "hi\n".into() }]);
        assert_eq!(loaded.digest.unwrap(), PromptDigest { sha256: hex(&Sha256::digest("hi\n")), size: 3 });
        assert!(load(b"\xff").is_none());
        assert!(load(&vec![b'x'; 1024 * 1024 + 1]).is_none());
        assert!(LoadedPrompt::load(Prompt::File { path: "/nowhere".into() }).is_none());
    }
}
