use crate::payload::Payload;
use runtime::BackendError;
use std::fmt;

/// Why a payload cannot be run, or a run failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Error(String);

/// The result of raising or running a payload.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// Prefixes the error with a node of a payload.
    pub(crate) fn at(self, payload: &Payload, node: usize) -> Self {
        Self(format!("node {node} ({}): {}", payload.nodes[node].name, self.0))
    }
}

/// An error with this message.
pub(crate) fn fail<T>(message: impl fmt::Display) -> Result<T> {
    Err(Error(message.to_string()))
}

impl From<tensor::Error> for Error {
    fn from(e: tensor::Error) -> Self {
        Self(e.to_string())
    }
}

impl From<operator::Error> for Error {
    fn from(e: operator::Error) -> Self {
        Self(e.to_string())
    }
}

impl From<Error> for BackendError {
    fn from(e: Error) -> Self {
        Self::new(e.0)
    }
}
