//! subagent-operator
fn main() {}
