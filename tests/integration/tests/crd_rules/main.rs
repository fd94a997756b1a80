//! The definitions on a real API server: every validation rule and every bound tried both ways, defaults, unknown fields,
//! nulls, the status subresource.

mod bounds;
mod rules;
mod storage;
mod table;
