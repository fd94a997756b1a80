//! The prompt: inline blocks, or a file that a ConfigMap is mounted as.

use crate::{outcome::PromptFault, output::hex};
use sha2::{Digest, Sha256};
use std::{fs, io::Read, path::Path};
use subagent_link::{ContentBlock, MAX_PROMPT_BYTES, Prompt, PromptDigest};

/// A prompt, ready to be sent.
#[derive(Debug, PartialEq)]
pub struct LoadedPrompt {
    /// Its blocks.
    pub blocks: Vec<ContentBlock>,
    /// Digest of the file, when it came from one.
    pub digest: Option<PromptDigest>,
}

impl LoadedPrompt {
    /// Reads the prompt.
    ///
    /// # Errors
    /// [`PromptFault`] of its file.
    pub fn load(prompt: Prompt) -> Result<Self, PromptFault> {
        match prompt {
            Prompt::Inline { content } => Ok(Self { blocks: content, digest: None }),
            Prompt::File { path } => {
                let bytes = read_bounded(Path::new(&path))?;
                let size = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
                let digest = PromptDigest { sha256: hex(&Sha256::digest(&bytes)), size };
                let text = String::from_utf8(bytes).map_err(|_| PromptFault::NotText)?;
                Ok(Self { blocks: vec![ContentBlock::Text { text }], digest: Some(digest) })
            }
        }
    }

    /// True when one of the blocks is an image.
    pub fn has_image(&self) -> bool {
        self.blocks.iter().any(|block| matches!(block, ContentBlock::Image { .. }))
    }
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, PromptFault> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(|_| PromptFault::Unreadable)?;
    file.take(MAX_PROMPT_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|_| PromptFault::Unreadable)?;
    match bytes.len() {
        0 => Err(PromptFault::Empty),
        size if size > MAX_PROMPT_BYTES => Err(PromptFault::TooLarge),
        _ => Ok(bytes),
    }
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
        assert!(load(&vec![b'x'; MAX_PROMPT_BYTES]).is_ok());
        assert_eq!(load(b"\xff"), Err(PromptFault::NotText));
        assert_eq!(load(b""), Err(PromptFault::Empty));
        assert_eq!(load(&vec![b'x'; MAX_PROMPT_BYTES + 1]), Err(PromptFault::TooLarge));
        assert_eq!(LoadedPrompt::load(Prompt::File { path: "/nowhere".into() }), Err(PromptFault::Unreadable));
    }
}
