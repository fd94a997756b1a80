//! Bounds of the API. Each has its reason; the schema, the controllers and the messages use the same number.

/// Longest name of a run: it becomes a label value.
pub const NAME_LENGTH: usize = 63;
/// Longest inline prompt, in characters and in bytes: one object stays far below what etcd stores.
pub const PROMPT_TEXT: usize = 64 * 1024;
/// Most bytes of all content blocks of a prompt together: an assignment fits into one link message of 1 MiB.
pub const PROMPT_TOTAL: usize = 640 * 1024;
/// Longest base64 data of an image block: 256 KiB of image.
pub const IMAGE_DATA: usize = 349_528;
/// Longest persona.
pub const PERSONA: usize = 16 * 1024;
/// Most parameters of a run.
pub const PARAMETERS: usize = 32;
/// Most bytes of all parameters' keys and values together.
pub const PARAMETERS_TOTAL: usize = 16 * 1024;
/// Longest message of a condition or of `status.message`: readable in `kubectl describe`.
pub const MESSAGE: usize = 1024;
/// Longest diagnostic (contract c30).
pub const DIAGNOSTIC: usize = 4096;
/// Most ancestors kept on a run, and with it the deepest lineage.
pub const ANCESTORS: usize = 64;
/// Attempts kept in full in `status.attempts`.
pub const ATTEMPTS: usize = 8;
/// Largest result that is kept inline in status, in bytes. A larger one goes into ConfigMaps.
pub const INLINE_RESULT: i64 = 16 * 1024;
/// Largest result in bytes unless the operator's settings say otherwise.
pub const RESULT: i64 = 4 * 1024 * 1024;
/// Longest time any field in seconds can say: ten years, far from any overflow.
pub const SECONDS: i64 = 315_360_000;
/// Most entries of an inbox.
pub const INBOX: usize = 64;
/// Entries above which the operator removes the oldest that are over.
pub const INBOX_PRUNED: usize = 48;
/// Longest content of one message, in bytes.
pub const MESSAGE_CONTENT: usize = 16 * 1024;
/// Most bytes of the content of all messages of an inbox together.
pub const INBOX_TOTAL: usize = 256 * 1024;
/// Bytes above which the operator removes the oldest entries that are over.
pub const INBOX_TOTAL_PRUNED: usize = 192 * 1024;
/// Messages without an outcome that an activation holds at a time. Steer and Interrupt may go past it.
pub const PLACED: usize = 32;
/// Turns kept in `status.turns`.
pub const TURNS: usize = 32;
