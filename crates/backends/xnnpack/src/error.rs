use crate::payload::Payload;
use pteron_runtime::BackendError;
use std::fmt;

/// Why a payload cannot be run, or a run failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Error {
    message: String,
    /// Whether the sizes of values do not fit each other. A payload records the sizes for which it was exported, which
    /// are upper bounds if the program has dynamic sizes, so values that do not fit there may fit in a call.
    depends_on_sizes: bool,
}

/// The result of raising or running a payload.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), depends_on_sizes: false }
    }

    /// Whether the error is about sizes, so that a call with other sizes may succeed.
    pub(crate) fn depends_on_sizes(&self) -> bool {
        self.depends_on_sizes
    }

    /// Prefixes the error with a node of a payload.
    pub(crate) fn at_node(self, payload: &Payload, node: usize) -> Self {
        let message = format!("node {node} ({}): {}", payload.nodes[node].name, self.message);
        Self { message, ..self }
    }
}

/// Fails with this message.
pub(crate) fn fail<T>(message: impl fmt::Display) -> Result<T> {
    Err(Error::new(message.to_string()))
}

/// Fails with this message about sizes that do not fit each other.
pub(crate) fn fail_sizes<T>(message: impl fmt::Display) -> Result<T> {
    Err(Error { message: message.to_string(), depends_on_sizes: true })
}

impl From<pteron_tensor::Error> for Error {
    fn from(e: pteron_tensor::Error) -> Self {
        Self::new(e.to_string())
    }
}

impl From<pteron_operator::Error> for Error {
    fn from(e: pteron_operator::Error) -> Self {
        Self::new(e.to_string())
    }
}

impl From<Error> for BackendError {
    fn from(e: Error) -> Self {
        Self::new(e.message)
    }
}
