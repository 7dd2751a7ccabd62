//! Errors of backends.

use super::text::one_line;
use pteron_pool::Interrupted;

/// Why a backend refused a payload or failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", pteron_operator::shown_line(message))]
pub struct BackendError {
    message: String,
    interrupted: Option<Interrupted>,
}

impl BackendError {
    /// An error with this message.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), interrupted: None }
    }

    /// Why the delegate stopped, if it stopped because it was interrupted: see
    /// [`BackendExecutionContext::interrupted`](crate::BackendExecutionContext::interrupted).
    pub fn interrupted(&self) -> Option<Interrupted> {
        self.interrupted
    }
}

impl From<pteron_operator::Error> for BackendError {
    fn from(e: pteron_operator::Error) -> Self {
        Self::new(one_line(&e))
    }
}

impl From<pteron_tensor::Error> for BackendError {
    fn from(e: pteron_tensor::Error) -> Self {
        Self::new(one_line(&e))
    }
}

/// A delegate that stops because it was interrupted returns this error. The runtime then reports the interruption.
impl From<Interrupted> for BackendError {
    fn from(why: Interrupted) -> Self {
        Self { message: why.to_string(), interrupted: Some(why) }
    }
}
