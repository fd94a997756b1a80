//! A provider's settings as a worker is told them. Pure.

use subagent_crds::{SubagentProviderSpec, provider};
use subagent_link::{AcpTransport, PermissionMode, StopGraces};

/// How the agent is spoken to; none for a transport that this version does not know.
pub fn transport(spec: &SubagentProviderSpec) -> Option<AcpTransport> {
    let acp = spec.transport.acp.as_ref()?;
    Some(AcpTransport {
        permission: match acp.permission.mode {
            provider::PermissionMode::Reject => PermissionMode::Reject,
            provider::PermissionMode::Allow => PermissionMode::Allow,
        },
        auth_method: acp.auth_method.clone(),
        session_mode: acp.session_mode.clone(),
    })
}

/// The graces of the stop ladder.
pub fn stop(spec: &SubagentProviderSpec) -> StopGraces {
    StopGraces {
        cancel_grace_seconds: spec.stop.cancel_grace_seconds,
        eof_grace_seconds: spec.stop.eof_grace_seconds,
        term_grace_seconds: spec.stop.term_grace_seconds,
    }
}
