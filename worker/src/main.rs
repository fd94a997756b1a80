//! subagent-worker
fn main() {}
