//! Objects as small as they may be; tests change what they are about.

use serde_json::json;
use subagent_crds::{
    Subagent, SubagentProvider, SubagentProviderSpec, SubagentRun, SubagentRunSpec, SubagentSpec,
    content::Prompt,
    message::InboxMessage,
    provider::{Acp, Probe, Transport},
    run::ProviderRef,
};

/// Provider that [`make_run`] names.
pub const PROVIDER: &str = "provider";

/// A run of the provider `provider` with the prompt `hello`.
pub fn make_run(name: &str) -> SubagentRun {
    let spec = SubagentRunSpec {
        provider_ref: ProviderRef { name: PROVIDER.into() },
        description: "say hello".into(),
        prompt: Some(Prompt { text: Some("hello".into()), ..Prompt::default() }),
        ..SubagentRunSpec::default()
    };
    SubagentRun::new(name, spec)
}

/// A child of the provider `provider`, first told `hello` in message `m1`.
pub fn make_subagent(name: &str) -> Subagent {
    let spec = SubagentSpec {
        provider_ref: ProviderRef { name: PROVIDER.into() },
        description: "say hello".into(),
        messages: vec![InboxMessage { id: "m1".into(), text: Some("hello".into()), ..InboxMessage::default() }],
        // Derived defaults are not those of the API.
        history_limit: 5,
        ..SubagentSpec::default()
    };
    Subagent::new(name, spec)
}

/// The spec of a claim that any API server takes.
pub fn claim_spec() -> serde_json::Value {
    json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}})
}

/// A provider with the container `agent`, whose image nobody pulls here. Its agent is not probed: that is a matter of the
/// tests about it.
pub fn make_provider(name: &str) -> SubagentProvider {
    let spec = SubagentProviderSpec {
        transport: Transport { acp: Some(Acp::default()) },
        template: json!({"spec": {"containers": [{"name": "agent", "image": "localhost/agent:dev", "command": ["/agent"]}]}}),
        probe: Probe::Never,
        ..SubagentProviderSpec::default()
    };
    SubagentProvider::new(name, spec)
}
