//! What the API server says when it refuses.

use kube::core::Status;

/// One cause of a refusal: the field's path (`<nil>` for the whole object) and the message.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cause {
    /// Path of the field.
    pub field: String,
    /// The API server's message.
    pub message: String,
}

impl Cause {
    /// The cause a validation rule gives.
    pub fn rule(field: &str, message: &str) -> Self {
        Self { field: field.into(), message: format!("Invalid value: {message}") }
    }
}

/// The API server's answer.
///
/// # Panics
/// When there was none.
pub fn status(error: kube::Error) -> Status {
    match error {
        kube::Error::Api(status) => *status,
        other => panic!("no answer from the API server: {other}"),
    }
}

/// Causes of an `Invalid` answer.
///
/// # Panics
/// When it is not one.
pub fn causes(error: kube::Error) -> Vec<Cause> {
    let status = status(error);
    assert_eq!(status.code, 422, "not an Invalid answer: {}", status.message);
    let causes = status.details.map(|details| details.causes).unwrap_or_default();
    causes.into_iter().map(|cause| Cause { field: cause.field, message: cause.message }).collect()
}
