use pteron_runtime::BackendError;
use std::fmt;

/// Why a payload is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

/// The result of reading, writing or raising a payload.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// Adds the index and name of a kernel of the payload's function.
    pub(crate) fn at_kernel(self, index: usize, name: &str) -> Self {
        Self(format!("kernel {index} ({name}): {}", self.0))
    }
}

/// Fails with this message.
pub(crate) fn fail<T>(message: impl fmt::Display) -> Result<T> {
    Err(Error(message.to_string()))
}

macro_rules! from {
    ($($error:ty),*) => {$(
        impl From<$error> for Error {
            fn from(e: $error) -> Self {
                Self(e.to_string())
            }
        }
    )*};
}

from!(pteron_bef::Error, pteron_operator::Error, pteron_tensor::Error);

impl From<Error> for BackendError {
    fn from(e: Error) -> Self {
        Self::new(e.0)
    }
}
