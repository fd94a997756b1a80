//! Content blocks and prompts.

use crate::bounds;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// One block of a prompt: exactly one of text, resourceLink and image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.text), has(self.resourceLink), has(self.image)].filter(x, x).size() == 1")
        .message("a content block has exactly one of text, resourceLink and image")
)]
pub struct ContentBlock {
    /// text is plain text. At most 64 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65536))]
    pub text: Option<String>,
    /// resourceLink points at something the agent may read by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_link: Option<ResourceLink>,
    /// image is picture data; it needs an agent that takes images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
}

/// A link to a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceLink {
    /// uri of the resource. At most 2048 characters.
    #[schemars(length(min = 1, max = 2048))]
    pub uri: String,
    /// name shown for the resource. At most 256 characters.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
}

/// An image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    /// data is the image in base64. At most 256 KiB of image.
    #[schemars(length(min = 1, max = 349528))]
    pub data: String,
    /// mimeType of the image, for example image/png.
    #[schemars(length(min = 1, max = 128))]
    pub mime_type: String,
}

/// What the agent is asked: exactly one of text, content and configMapKeyRef.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.text), has(self.content), has(self.configMapKeyRef)].filter(x, x).size() == 1")
        .message("a prompt has exactly one of text, content and configMapKeyRef")
)]
pub struct Prompt {
    /// text is the prompt as plain text. At most 64 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub text: Option<String>,
    /// content is the prompt as a list of blocks. 1 to 16 blocks, together at most 640 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub content: Option<Vec<ContentBlock>>,
    /// configMapKeyRef takes the prompt from a ConfigMap in the run's namespace, mounted into the pod. UTF-8 text of 1 byte
    /// to 1 MiB, which is what a ConfigMap holds, in its data or binaryData. Creating such a run needs the right to get
    /// that ConfigMap. The digest of what the agent was given is recorded in
    /// status.report.prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<ConfigMapKeyRef>,
}

impl Prompt {
    /// Bytes of all inline content together.
    pub fn inline_bytes(&self) -> usize {
        let blocks = self.content.iter().flatten();
        let block_bytes = blocks.map(|block| {
            block.text.as_ref().map_or(0, String::len)
                + block.resource_link.as_ref().map_or(0, |link| link.uri.len() + link.name.len())
                + block.image.as_ref().map_or(0, |image| image.data.len() + image.mime_type.len())
        });
        self.text.as_ref().map_or(0, String::len) + block_bytes.sum::<usize>()
    }

    /// True when the inline content is over [`bounds::PROMPT_TOTAL`], or its text over [`bounds::PROMPT_TEXT`]: the
    /// schema counts characters, storage counts bytes.
    pub fn is_too_large(&self) -> bool {
        self.inline_bytes() > bounds::PROMPT_TOTAL
            || self.text.as_ref().is_some_and(|text| text.len() > bounds::PROMPT_TEXT)
    }
}

/// A key of a ConfigMap in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapKeyRef {
    /// name of the ConfigMap.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: String,
    /// key in its data or binaryData.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}
