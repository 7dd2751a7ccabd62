use tensor::ScalarType;

/// Why an operator call was refused or failed. The caller adds the operator's name and
/// the place of the call.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument of another kind than the schema says.
    #[error("argument {index} ({name}): expected {expected}, found {found}")]
    ArgumentKind {
        /// Position in the schema.
        index: usize,
        /// The schema's name for it.
        name: String,
        /// The kind the kernel asked for.
        expected: &'static str,
        /// The kind it found.
        found: String,
    },
    /// A value of another kind than was asked for.
    #[error("the value is {found}, not {expected}")]
    ValueKind {
        /// The kind asked for.
        expected: &'static str,
        /// What there is.
        found: String,
    },
    /// A scalar type that the operator is not defined for.
    #[error("{argument}: {dtype} is not supported here (supported: {supported})")]
    UnsupportedType {
        /// The argument's name.
        argument: String,
        /// Its scalar type.
        dtype: ScalarType,
        /// The types that are supported, as text.
        supported: String,
    },
    /// Arguments that make no sense together.
    #[error("{0}")]
    InvalidArgument(String),
    /// The call needs more memory than its limit allows.
    #[error("{what} needs {needed} bytes, the limit is {limit}; raise it in `Limits` if that is intended")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// What the call needs.
        needed: usize,
        /// What it may have.
        limit: usize,
    },
    /// A tensor error.
    #[error(transparent)]
    Tensor(#[from] tensor::Error),
}

impl Error {
    /// An [`Error::InvalidArgument`].
    #[cold]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::InvalidArgument(message.into())
    }
}

/// The result of an operator call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Returns an [`Error::InvalidArgument`](crate::Error::InvalidArgument) with the formatted message
/// unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::Error::invalid(format!($($message)+)));
        }
    };
}
