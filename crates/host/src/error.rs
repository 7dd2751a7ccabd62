use std::fmt;
use std::sync::Arc;

/// The kind of failure of an error value, with the reference implementation's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum ErrorCode {
    /// A kernel failed.
    #[default]
    Internal,
    /// The request was cancelled.
    Cancelled,
    /// A kernel was given an argument or attribute that it does not accept.
    InvalidArgument,
    /// A limit was exceeded.
    ResourceExhausted,
    /// Something that was requested does not exist.
    NotFound,
    /// The failure has no code of its own.
    Unknown,
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Internal => "INTERNAL",
            Self::Cancelled => "CANCELLED",
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::NotFound => "NOT_FOUND",
            Self::Unknown => "UNKNOWN",
        })
    }
}

/// A location in a program's source, as the file records it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SourceLocation {
    /// A position in a file; line and column count from 1.
    File {
        /// The path of the source file at the time of translation.
        file: String,
        /// The line.
        line: u64,
        /// The column.
        column: u64,
    },
    /// Any other kind of location, as text.
    Opaque(String),
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { file, line, column } => write!(f, "{file}:{line}:{column}"),
            Self::Opaque(text) => write!(f, "loc(\"{text}\")"),
        }
    }
}

/// The contents of an error value.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failure {
    code: ErrorCode,
    message: String,
    kernel: Option<String>,
    location: Option<SourceLocation>,
}

/// A failure that propagates through a program as a value: every kernel that depends on it fails with the same error.
/// Cloning shares it.
#[derive(Clone, PartialEq, Eq)]
pub struct ErrorValue(Arc<Failure>);

impl ErrorValue {
    /// A failure without kernel and location.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self(Arc::new(Failure { code, message: message.into(), kernel: None, location: None }))
    }

    /// The failure of a kernel, with its source location if recorded.
    pub(crate) fn at(
        code: ErrorCode,
        message: String,
        kernel: &str,
        location: Option<SourceLocation>,
    ) -> Self {
        Self(Arc::new(Failure { code, message, kernel: Some(kernel.to_owned()), location }))
    }

    /// The kind of failure.
    pub fn code(&self) -> ErrorCode {
        self.0.code
    }

    /// The message, without kernel and location.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The kernel that failed.
    pub fn kernel(&self) -> Option<&str> {
        self.0.kernel.as_deref()
    }

    /// The source location of the kernel, if the program records it.
    pub fn location(&self) -> Option<&SourceLocation> {
        self.0.location.as_ref()
    }
}

impl fmt::Display for ErrorValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = self.location() {
            write!(f, "{location}: ")?;
        }
        if let Some(kernel) = self.kernel() {
            write!(f, "{kernel}: ")?;
        }
        f.write_str(self.message())
    }
}

impl fmt::Debug for ErrorValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ErrorValue({}: {self})", self.code())
    }
}

impl std::error::Error for ErrorValue {}

/// Why a function cannot be built, opened or called.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The BEF file is malformed.
    #[error(transparent)]
    Bef(#[from] bef::Error),
    /// Kernels that are not in the registry.
    #[error("{}", unknown_kernels(.0))]
    UnknownKernels(Vec<UnknownKernel>),
    /// A native function that is not in the registry.
    #[error(
        "native function `{0}` is not registered: add it to the KernelRegistry before opening the program"
    )]
    UnknownNative(String),
    /// A function is not well-formed.
    #[error("function `{function}`: {problem}")]
    Malformed {
        /// The function's name.
        function: String,
        /// What is wrong.
        problem: String,
    },
    /// There is no function of that name.
    #[error("there is no function `{0}`")]
    NoFunction(String),
    /// A function is called with the wrong number of arguments.
    #[error("function `{function}` takes {expected} arguments, not {found}")]
    WrongArguments {
        /// The function's name.
        function: String,
        /// The number of its arguments.
        expected: usize,
        /// The number of arguments passed.
        found: usize,
    },
    /// The program ran and failed.
    #[error(transparent)]
    Failed(#[from] ErrorValue),
}

/// A kernel that is not in the registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKernel {
    /// Its name.
    pub name: String,
    /// The source location of its first use.
    pub location: Option<SourceLocation>,
}

fn unknown_kernels(kernels: &[UnknownKernel]) -> String {
    let list = kernels.iter().map(|k| match &k.location {
        Some(location) => format!("`{}` ({location})", k.name),
        None => format!("`{}`", k.name),
    });
    format!(
        "no kernel is registered under {}: add them to the KernelRegistry before opening the program",
        list.collect::<Vec<_>>().join(", ")
    )
}

/// The result of this crate's fallible functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;
