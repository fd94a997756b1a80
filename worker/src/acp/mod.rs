//! The Agent Client Protocol, version 1, as a client over an agent's stdio. The only module that knows the protocol
//! crate.
//!
//! The crate serves here for its schema types; its connection is not used. Where it matters to this worker it does not
//! do what is needed: it has no limit on a frame, dies of invalid UTF-8, answers a stray log line with an error on the
//! agent's stdin, turns an unknown stop reason into a parse error of its own, and gives responses in another order than
//! the notifications before them. One reader that hands out frames one by one, in the order of the pipe, has none of
//! these problems and keeps memory to one frame.

mod connection;
mod frame;
mod handshake;
mod lines;
pub mod permission;
mod session;
mod update;

pub use connection::{Call, Connection, Incoming};
pub use frame::Frame;
pub use handshake::{
    Introduced, authenticate, cancel, initialize, prompt, read_initialize, read_steered, read_stop, steer,
};
pub use lines::{Line, LineReader, MAX_LINE_BYTES};
pub use session::{
    Change, OpenSession, close_session, load_session, new_session, read_reopened, read_session, resume_session,
};
pub use update::{ToolCall, Update, parse as parse_update};

/// Method of a request for permission.
pub const REQUEST_PERMISSION: &str = agent_client_protocol::v1::schema::CLIENT_METHOD_NAMES.session_request_permission;
/// Method of a session's updates.
pub const SESSION_UPDATE: &str = agent_client_protocol::v1::schema::CLIENT_METHOD_NAMES.session_update;
/// Error code of "authentication required".
pub const AUTH_REQUIRED: i64 = -32000;
