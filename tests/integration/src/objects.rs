//! Objects as small as they may be; tests change what they are about.

use serde_json::json;
use subagent_crds::{
    SubagentProvider, SubagentProviderSpec, SubagentRun, SubagentRunSpec,
    content::Prompt,
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
