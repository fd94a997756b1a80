//! The definitions on a real API server: every validation rule and every bound tried both ways, defaults, unknown fields,
//! nulls, the status subresource.

mod bounds;
mod inbox;
mod rules;
mod storage;
mod subagents;
mod table;
