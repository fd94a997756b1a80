//! subagent-crds
