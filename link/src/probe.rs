//! A probe: what its worker is told, and the finding it leaves as its container's termination message. There is no
//! connection in between.

use crate::{AcpTransport, Agent, StopGraces};
use serde::{Deserialize, Serialize};

/// Longest finding in bytes of JSON: what a kubelet reads of a termination message.
pub const MAX_FINDING_BYTES: usize = 4096;
/// Longest name or version of an agent in a finding, in bytes (see [`Agent`]).
const MAX_NAME_BYTES: usize = 256;
/// Most capabilities in a finding, and the longest one in bytes.
const MAX_CAPABILITIES: usize = 32;
const MAX_CAPABILITY_BYTES: usize = 64;
/// Longest reason in a finding, in bytes.
const MAX_REASON_BYTES: usize = 64;
/// Longest diagnostic in a finding, in bytes: it goes into a condition's message.
const MAX_DIAGNOSTIC_BYTES: usize = 512;

/// The content of the configuration file of a worker that probes. It takes the place of a [`WorkerConfig`](crate::WorkerConfig)
/// and an [`Assignment`](crate::Assignment).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeConfig {
    /// Namespace of the provider.
    pub namespace: String,
    /// Name of the provider, for the transcript.
    pub provider: String,
    /// Number of the probe, from 1.
    pub attempt: i32,
    /// Absolute working directory of the agent's process and of its session (contract c18).
    pub cwd: String,
    /// The stop ladder's graces.
    pub stop: StopGraces,
    /// How the agent is spoken to.
    pub transport: AcpTransport,
}

/// What a probe found. Whatever runs in the agent's container can have written it: it is the word of whoever owns the
/// provider, about that provider. Reading bounds it and believes nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Finding {
    /// The agent answered.
    Agent(Agent),
    /// A run would have ended like this.
    Failure {
        /// Reason of the failure taxonomy.
        reason: String,
        /// Allow-listed facts (contract c30).
        diagnostic: String,
    },
}

impl Finding {
    /// As JSON. Its bounds keep it below [`MAX_FINDING_BYTES`], also when JSON has to escape all of it.
    pub fn encode(&self) -> String {
        serde_json::to_string(&self.clone().bounded()).unwrap_or_default()
    }

    /// Reads a termination message; none when it is no finding.
    pub fn decode(text: &str) -> Option<Self> {
        if text.len() > MAX_FINDING_BYTES {
            return None;
        }
        serde_json::from_str::<Self>(text).ok().map(Self::bounded)
    }

    fn bounded(self) -> Self {
        match self {
            Self::Agent(mut agent) => {
                for name in [&mut agent.name, &mut agent.version] {
                    name.retain(|character| !character.is_control());
                    cut(name, MAX_NAME_BYTES);
                }
                agent.protocol_version = agent.protocol_version.clamp(0, 65535);
                let is_word = |text: &str| {
                    (1..=MAX_CAPABILITY_BYTES).contains(&text.len())
                        && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
                };
                let mut known: Vec<String> = vec![];
                for capability in agent.capabilities {
                    if is_word(&capability) && !known.contains(&capability) && known.len() < MAX_CAPABILITIES {
                        known.push(capability);
                    }
                }
                agent.capabilities = known;
                Self::Agent(agent)
            }
            Self::Failure { mut reason, mut diagnostic } => {
                for (text, bytes) in [(&mut reason, MAX_REASON_BYTES), (&mut diagnostic, MAX_DIAGNOSTIC_BYTES)] {
                    text.retain(|character| !character.is_control());
                    cut(text, bytes);
                }
                Self::Failure { reason, diagnostic }
            }
        }
    }
}

/// Cuts to at most so many bytes, on a character boundary.
fn cut(text: &mut String, bytes: usize) {
    let end = (0..=bytes.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    text.truncate(end);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(name: &str, capabilities: Vec<String>) -> Finding {
        let (name, version) = (name.to_owned(), name.to_owned());
        Finding::Agent(Agent { name, version, protocol_version: 1, capabilities })
    }

    #[test]
    fn a_finding_is_read_as_it_was_written() {
        let found = agent("OpenCode", vec!["LoadSession".into(), "ImagePrompt".into()]);
        let failed = Finding::Failure { reason: "AgentAuthRequired".into(), diagnostic: "in stage SessionNew".into() };
        for finding in [found, failed] {
            assert_eq!(Finding::decode(&finding.encode()), Some(finding));
        }
    }

    #[test]
    fn a_finding_always_fits_a_termination_message() {
        let words: Vec<String> = (0..99).map(|number| format!("Capability{number:054}")).collect();
        let escaped = "\"".repeat(5000);
        let findings = [
            agent(&"ä".repeat(5000), words.clone()),
            agent(&escaped, words),
            Finding::Failure { reason: escaped.clone(), diagnostic: escaped },
        ];
        for finding in findings {
            let text = finding.encode();
            assert!(text.len() <= MAX_FINDING_BYTES, "{}", text.len());
            assert!(Finding::decode(&text).is_some(), "{text}");
        }
    }

    /// T2: what an agent wrote in the worker's place is bounded, whatever it is.
    #[test]
    fn t2_a_forged_finding_is_bounded() {
        let long = "x".repeat(600);
        let forged = serde_json::json!({"agent": {"name": format!("a\u{1b}{long}"), "version": "", "protocolVersion": -7,
            "capabilities": ["A", "A", "", "b c", "x".repeat(65)]}});
        let Some(Finding::Agent(read)) = Finding::decode(&forged.to_string()) else { panic!("a finding") };
        assert_eq!((read.name.len(), read.protocol_version), (MAX_NAME_BYTES, 0));
        assert!(!read.name.contains('\u{1b}'));
        assert_eq!(read.capabilities, ["A"]);
        for other in ["", "no connection to the gateway", "{}", "[]", r#"{"agent": 5}"#, &" ".repeat(5000)] {
            assert_eq!(Finding::decode(other), None, "{other}");
        }
    }
}
