use std::fmt;
use std::sync::{Arc, OnceLock};

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
    /// The request's deadline passed.
    DeadlineExceeded,
    /// Something that is needed cannot be reached now; another attempt may succeed.
    Unavailable,
    /// Something that was requested does not exist.
    NotFound,
    /// A failure that none of the other codes describes.
    Unknown,
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Internal => "INTERNAL",
            Self::Cancelled => "CANCELLED",
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::Unavailable => "UNAVAILABLE",
            Self::NotFound => "NOT_FOUND",
            Self::Unknown => "UNKNOWN",
        })
    }
}

/// A location in a program's source, as the file records it: a position in a file, a name, a call site with callee and
/// caller, or several locations that were fused.
pub type SourceLocation = pteron_bef::Location<'static>;

/// Displays a location. A location that is not a position in a file is displayed as `loc("...")`.
struct Shown<'a>(&'a SourceLocation);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            SourceLocation::FileLineCol { .. } => write!(f, "{}", self.0),
            other => write!(f, "loc(\"{other}\")"),
        }
    }
}

/// The contents of an error value.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failure {
    code: ErrorCode,
    message: String,
    origin: OnceLock<Origin>,
    /// Whether the executor must report the failure to the diagnostics handler as soon as the origin is known.
    unreported: bool,
}

/// The kernel that a failure came from, and its location; both absent if the failure belongs to the request as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Origin {
    kernel: Option<String>,
    location: Option<SourceLocation>,
}

/// A failure that propagates through a program as a value: every kernel that depends on it fails with the same error.
/// Cloning shares it.
#[derive(Clone, PartialEq, Eq)]
pub struct ErrorValue(Arc<Failure>);

impl ErrorValue {
    /// A failure without kernel and location. If a kernel sets a result to it, the result has the kernel's name and
    /// location.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::from_parts(code, message.into(), OnceLock::new(), false)
    }

    fn from_parts(code: ErrorCode, message: String, origin: OnceLock<Origin>, unreported: bool) -> Self {
        Self(Arc::new(Failure { code, message, origin, unreported }))
    }

    /// As [`Self::new`], for a failure that no kernel reports: the executor reports it, once, for the first kernel
    /// whose result it becomes.
    pub(crate) fn new_unreported(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::from_parts(code, message.into(), OnceLock::new(), true)
    }

    /// A failure of the kernel called `kernel`, with its source location if one is recorded.
    pub(crate) fn in_kernel(
        code: ErrorCode,
        message: String,
        kernel: &str,
        location: Option<SourceLocation>,
    ) -> Self {
        let origin = Origin { kernel: Some(kernel.to_owned()), location };
        Self::from_parts(code, message, OnceLock::from(origin), false)
    }

    /// Marks the failure as one of the whole request, without kernel and location.
    pub(crate) fn into_request_failure(self) -> Self {
        let _ = self.0.origin.set(Origin::default());
        self
    }

    /// The failure as a result of `kernel`: with its name and location, unless it has an origin already. Passes a
    /// failure that nobody has reported yet to `report`.
    pub(crate) fn with_origin(
        self,
        kernel: &str,
        location: impl FnOnce() -> Option<SourceLocation>,
        report: impl FnOnce(&Self),
    ) -> Self {
        let Failure { code, message, origin, unreported } = &*self.0;
        if origin.get().is_some() {
            return self;
        }
        if !unreported {
            // Whoever created the failure may return it from other kernels, too: this kernel gets a copy.
            return Self::in_kernel(*code, message.clone(), kernel, location());
        }
        let kernel_origin = Origin { kernel: Some(kernel.to_owned()), location: location() };
        if origin.set(kernel_origin).is_ok() {
            report(&self);
        }
        self
    }

    /// Completes the failure of a function that no kernel called. Passes it to `report` if it was not reported before.
    pub(crate) fn report_if_unreported(self, report: impl FnOnce(&Self)) -> Self {
        if self.0.unreported && self.0.origin.set(Origin::default()).is_ok() {
            report(&self);
        }
        self
    }

    /// The kind of failure.
    pub fn code(&self) -> ErrorCode {
        self.0.code
    }

    /// The message, without kernel and location.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The name of the kernel that failed; `None` if the failure is of the whole request or no kernel has set it yet.
    pub fn kernel(&self) -> Option<&str> {
        self.0.origin.get()?.kernel.as_deref()
    }

    /// The source location of the kernel, if the program records it.
    pub fn location(&self) -> Option<&SourceLocation> {
        self.0.origin.get()?.location.as_ref()
    }
}

impl fmt::Display for ErrorValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = self.location() {
            write!(f, "{}: ", Shown(location))?;
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

/// Why a kernel fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub(crate) code: ErrorCode,
    pub(crate) message: String,
}

impl Fault {
    /// A failure with this code.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// An argument or attribute that the kernel does not accept ([`ErrorCode::InvalidArgument`]).
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidArgument, message)
    }

    /// The message, without the kernel's name and location.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl From<String> for Fault {
    fn from(message: String) -> Self {
        Self::new(ErrorCode::Internal, message)
    }
}

impl From<&str> for Fault {
    fn from(message: &str) -> Self {
        Self::new(ErrorCode::Internal, message)
    }
}

/// Why a function cannot be built, opened or called.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The BEF file is malformed.
    #[error(transparent)]
    Bef(#[from] pteron_bef::Error),
    /// Kernels that are not in the registry.
    #[error("{}", unknown_kernels_message(.0))]
    UnknownKernels(Vec<UnknownKernel>),
    /// A native function that is not in the registry.
    #[error(
        "native function `{name}`{} is not registered: add it to the KernelRegistry before opening the program",
        call_site_note(.location.as_ref())
    )]
    UnknownNative {
        /// The function's name.
        name: String,
        /// The source location of the first kernel that refers to the function, if it is recorded.
        location: Option<SourceLocation>,
    },
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
        /// The number of arguments that the function has.
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
    /// The kernel's name in the file.
    pub name: String,
    /// The source location of the first call of the kernel, if it is recorded.
    pub location: Option<SourceLocation>,
}

fn call_site_note(location: Option<&SourceLocation>) -> String {
    location.map(|location| format!(" (called at {})", Shown(location))).unwrap_or_default()
}

fn unknown_kernels_message(kernels: &[UnknownKernel]) -> String {
    let list = kernels.iter().map(|k| match &k.location {
        Some(location) => format!("`{}` ({})", k.name, Shown(location)),
        None => format!("`{}`", k.name),
    });
    format!(
        "no kernel is registered under {}: add them to the KernelRegistry before opening the program",
        list.collect::<Vec<_>>().join(", ")
    )
}

/// The result of this crate's fallible functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;
