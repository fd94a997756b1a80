//! Runs on real pods. Each test has a namespace of its own that enforces the Pod Security level `restricted`, and the
//! scripted agent's image holds nothing but its one program: no shell.

mod agents;
mod children;
mod echo;
mod examples;
mod faults;
mod identity;
mod kubectl;
mod permissions;
mod probing;
mod refusals;
mod starting;
mod stopping;
mod tokens;
