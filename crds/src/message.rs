//! Messages: entries of an inbox, how each asks to be delivered, and what became of it.

use crate::content::ResourceLink;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a message asks to be delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Delivery {
    /// A turn of its own, after those before it.
    #[default]
    Queue,
    /// Into the turn that is running, or not at all.
    Steer,
    /// Ends the turn that is running; a turn of its own follows if it has content.
    Interrupt,
}

impl Delivery {
    /// The API's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "Queue",
            Self::Steer => "Steer",
            Self::Interrupt => "Interrupt",
        }
    }
}

/// What became of a message. The first three can change, the others are final.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Outcome {
    /// It has its place in the order.
    #[default]
    Accepted,
    /// A running activation has it.
    Queued,
    /// It waits for the next message that wakes the child.
    Parked,
    /// It woke the child: the first turn of an activation was its own.
    Started,
    /// A turn of a running activation was its own.
    Claimed,
    /// The agent took it into the turn that was running.
    Steered,
    /// It asked for an interruption and no more, and nothing runs any more.
    Applied,
    /// It was not and will not be delivered; the code says why.
    Rejected,
    /// A cancellation threw it away.
    Discarded,
}

impl Outcome {
    /// The API's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "Accepted",
            Self::Queued => "Queued",
            Self::Parked => "Parked",
            Self::Started => "Started",
            Self::Claimed => "Claimed",
            Self::Steered => "Steered",
            Self::Applied => "Applied",
            Self::Rejected => "Rejected",
            Self::Discarded => "Discarded",
        }
    }

    /// True for an outcome that never changes.
    pub fn is_terminal(self) -> bool {
        !matches!(self, Self::Accepted | Self::Queued | Self::Parked)
    }
}

/// Why a message was rejected (contract c46).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Code {
    /// There was no turn to steer, or the agent did not take it.
    NotDelivered,
    /// Its worker was lost before the agent confirmed it.
    Unconfirmed,
    /// The child's session cannot be resumed.
    NotResumable,
    /// The activation it should have started failed before its turn, or cannot begin: the child was refused. (There is no
    /// session yet, so it is not that one cannot be resumed.)
    ActivationFailed,
    /// It has no content, or content the agent does not take.
    InvalidContent,
    /// It is larger than a message may be.
    TooLarge,
}

impl Code {
    /// The API's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotDelivered => "NotDelivered",
            Self::Unconfirmed => "Unconfirmed",
            Self::NotResumable => "NotResumable",
            Self::ActivationFailed => "ActivationFailed",
            Self::InvalidContent => "InvalidContent",
            Self::TooLarge => "TooLarge",
        }
    }

    /// The code of that name.
    pub fn parse(word: &str) -> Option<Self> {
        [
            Self::NotDelivered,
            Self::Unconfirmed,
            Self::NotResumable,
            Self::ActivationFailed,
            Self::InvalidContent,
            Self::TooLarge,
        ]
        .into_iter()
        .find(|code| code.as_str() == word)
    }
}

/// One block of a message: exactly one of text and resourceLink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.text) != has(self.resourceLink)")
        .message("a content block of a message has exactly one of text and resourceLink")
)]
pub struct MessageBlock {
    /// text is plain text. At most 16 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16384))]
    pub text: Option<String>,
    /// resourceLink points at something the agent may read by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_link: Option<ResourceLink>,
}

/// An entry of an inbox. It never changes; a correction is a new entry with a new id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self == oldSelf").message("a message never changes; append another one with a new id"),
    validation = Rule::new("!(has(self.text) && has(self.content))").message("a message has text or content, not both"),
    validation = Rule::new("has(self.text) || has(self.content) || (has(self.delivery) && self.delivery == 'Interrupt')").message("a message has text or content; only delivery Interrupt may have neither")
)]
pub struct InboxMessage {
    /// id is the sender's idempotency key: the same id again has no effect. Lower-case letters, digits, dashes and dots, at
    /// most 63.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub id: String,
    /// delivery is Queue (default: a turn of its own, in order), Steer (into the running turn, or rejected) or Interrupt
    /// (ends the running turn first).
    #[serde(default)]
    pub delivery: Delivery,
    /// text is what the agent is told. At most 16 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16384))]
    pub text: Option<String>,
    /// content is what the agent is told, as a list of blocks. 1 to 8 blocks, together at most 16 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub content: Option<Vec<MessageBlock>>,
}

/// A message that the operator has placed on an activation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self == oldSelf").message("a placed message never changes"))]
pub struct PlacedMessage {
    /// id of the message.
    #[schemars(length(min = 1, max = 63))]
    pub id: String,
    /// placement numbers every placing of a child's messages, rising: the order of delivery. A message that was parked
    /// comes back with a new one. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = 9007199254740991_i64))]
    pub placement: i64,
    /// delivery asked for.
    #[serde(default)]
    pub delivery: Delivery,
    /// text of the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16384))]
    pub text: Option<String>,
    /// content of the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub content: Option<Vec<MessageBlock>>,
}

/// What the worker says of a message that was placed with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MessageReport {
    /// id of the message.
    #[schemars(length(min = 1, max = 63))]
    pub id: String,
    /// placement it speaks of.
    #[schemars(range(min = 1, max = 9007199254740991_i64))]
    pub placement: i64,
    /// outcome: Parked, Started, Claimed, Steered, Applied or Rejected; an open set.
    #[schemars(length(min = 1, max = 32))]
    pub outcome: String,
    /// code says why it was rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub code: Option<String>,
    /// turn that took it, within the attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 9007199254740991_i64))]
    pub turn: Option<i64>,
    /// at is when. RFC 3339.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub at: String,
}

impl InboxMessage {
    /// Bytes of its content.
    pub fn bytes(&self) -> usize {
        content_bytes(self.text.as_deref(), self.content.as_deref())
    }

    /// True when it tells the agent something.
    pub fn has_content(&self) -> bool {
        self.text.is_some() || self.content.is_some()
    }
}

impl PlacedMessage {
    /// True when it tells the agent something.
    pub fn has_content(&self) -> bool {
        self.text.is_some() || self.content.is_some()
    }
}

fn content_bytes(text: Option<&str>, content: Option<&[MessageBlock]>) -> usize {
    let blocks = content.unwrap_or_default().iter().map(|block| {
        block.text.as_ref().map_or(0, String::len)
            + block.resource_link.as_ref().map_or(0, |link| link.uri.len() + link.name.len())
    });
    text.map_or(0, str::len) + blocks.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_wire_and_only_three_outcomes_can_change() {
        use Outcome::*;
        let all = [Accepted, Queued, Parked, Started, Claimed, Steered, Applied, Rejected, Discarded];
        for outcome in all {
            assert_eq!(serde_json::to_value(outcome).unwrap(), outcome.as_str());
        }
        assert_eq!(all.iter().filter(|outcome| !outcome.is_terminal()).count(), 3);
        for delivery in [Delivery::Queue, Delivery::Steer, Delivery::Interrupt] {
            assert_eq!(serde_json::to_value(delivery).unwrap(), delivery.as_str());
        }
        assert_eq!(Code::parse("TooLarge"), Some(Code::TooLarge));
        assert_eq!(Code::parse("Nonsense"), None);
    }

    #[test]
    fn a_message_counts_all_its_content() {
        let link = ResourceLink { uri: "file:///x".into(), name: "x".into() };
        let blocks = vec![
            MessageBlock { text: Some("äb".into()), resource_link: None },
            MessageBlock { text: None, resource_link: Some(link) },
        ];
        let message = InboxMessage { content: Some(blocks), ..InboxMessage::default() };
        assert_eq!(message.bytes(), 3 + 10);
        assert!(message.has_content() && !InboxMessage::default().has_content());
    }
}
