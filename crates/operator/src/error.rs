use pteron_tensor::ScalarType;

/// Why an operator call was rejected or failed. The caller adds the operator's name and
/// the location of the call.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument is not of the kind that the kernel expected.
    #[error("argument {index} ({name}): expected {expected}, found {found}")]
    ArgumentKind {
        /// The argument's position in the schema.
        index: usize,
        /// The argument's name in the schema.
        name: String,
        /// The kind that the kernel expected.
        expected: &'static str,
        /// The kind of the argument that the call passed.
        found: String,
    },
    /// A value is not of the requested kind.
    #[error("the value is {found}, not {expected}")]
    ValueKind {
        /// The requested kind.
        expected: &'static str,
        /// The actual value.
        found: String,
    },
    /// The operator does not support an argument's scalar type.
    #[error("{argument}: {dtype} is not supported here (supported: {supported})")]
    UnsupportedType {
        /// The argument's name.
        argument: String,
        /// The argument's scalar type.
        dtype: ScalarType,
        /// The scalar types that the operator supports, as text.
        supported: String,
    },
    /// Arguments that are invalid or inconsistent with each other.
    #[error("{}", pteron_text::line(.0))]
    InvalidArgument(String),
    /// The call needs more memory than its limit allows.
    #[error("{what} needs {needed} bytes, the limit is {limit}; raise it in `Limits` if that is intended")]
    Limit {
        /// The limited resource.
        what: &'static str,
        /// The bytes that the call needs.
        needed: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A tensor error.
    #[error(transparent)]
    Tensor(#[from] pteron_tensor::Error),
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
