//! The crate's one error type.

use std::fmt;

/// What is wrong, in one word; [`Error`] adds the place and the particulars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file does not start with `0B EF 00`.
    Header,
    /// A section header is incomplete, or its alignment byte is not a power of two.
    SectionHeader,
    /// A section occurs twice.
    DuplicateSection,
    /// A section that every program needs is absent.
    MissingSection,
    /// Something runs past the end of the bytes that hold it.
    Truncated,
    /// Bytes are left over behind the last entry of a section.
    TrailingBytes,
    /// A variable-length integer does not fit 64 bits, or not the width that its field allows.
    VbrOverflow,
    /// A record stands at a file offset that its alignment forbids.
    Misaligned,
    /// A padding byte is not `0xCC`.
    Padding,
    /// An index or offset points outside its table or section.
    OutOfRange,
    /// An offset points inside an entry, where none begins.
    NotAStart,
    /// A string has no terminating NUL, holds a NUL, or is not UTF-8.
    String,
    /// A function kind, location kind or attribute type that does not exist.
    UnknownTag,
    /// Two statements of the file (or model) about the same thing disagree.
    Mismatch,
    /// A register has no definition, several, or one that comes after its use.
    Definition,
    /// Two records share bytes.
    Overlap,
    /// The value of an attribute is impossible, such as a bool of 2.
    Value,
    /// Nested deeper, or more numerous, than the [`Limits`](crate::Limits) allow.
    Limit,
    /// The format has no way to write this down, such as an attribute that starts past 4 GiB.
    Unaddressable,
    /// The caller's sink failed while a file was being written.
    Io,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorKind::Header => "not a BEF header",
            ErrorKind::SectionHeader => "malformed section header",
            ErrorKind::DuplicateSection => "duplicate section",
            ErrorKind::MissingSection => "missing section",
            ErrorKind::Truncated => "runs past its end",
            ErrorKind::TrailingBytes => "bytes left over",
            ErrorKind::VbrOverflow => "integer too large",
            ErrorKind::Misaligned => "misaligned",
            ErrorKind::Padding => "wrong padding",
            ErrorKind::OutOfRange => "out of range",
            ErrorKind::NotAStart => "offset points inside an entry",
            ErrorKind::String => "malformed string",
            ErrorKind::UnknownTag => "unknown kind",
            ErrorKind::Mismatch => "inconsistent",
            ErrorKind::Definition => "register not properly defined",
            ErrorKind::Overlap => "overlapping records",
            ErrorKind::Value => "impossible value",
            ErrorKind::Limit => "limit exceeded",
            ErrorKind::Unaddressable => "not expressible in BEF",
            ErrorKind::Io => "write failed",
        })
    }
}

/// The particulars of an [`Error`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// What is wrong.
    pub kind: ErrorKind,
    /// Absolute offset in the file of the byte where it shows; `None` for a fault of a model that is not a file yet.
    pub offset: Option<u64>,
    /// Which field, as `functions[3].kernels[2].args[1]`.
    pub path: String,
    /// What stands there.
    pub found: String,
    /// What had to stand there.
    pub expected: String,
}

/// Why a file was refused, or a model cannot be written.
///
/// One pointer wide, so that the success path of the small readers stays cheap; it dereferences to its [`Fault`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(Box<Fault>);

/// The crate's result type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        write!(f, "{}", self.kind)?;
        if let Some(offset) = self.offset {
            write!(f, " at byte {offset} ({offset:#x})")?;
        }
        write!(f, ": found {}, expected {}", self.found, self.expected)
    }
}

impl std::ops::Deref for Error {
    type Target = Fault;
    fn deref(&self) -> &Fault {
        &self.0
    }
}

impl Error {
    /// An error at absolute file offset `offset`; the path is added on the way out by [`Within::within`].
    #[cold]
    pub(crate) fn new(
        kind: ErrorKind,
        offset: u64,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Error(Box::new(Fault {
            kind,
            offset: Some(offset),
            path: String::new(),
            found: found.into(),
            expected: expected.into(),
        }))
    }

    /// An error of a model, which has no file offset.
    #[cold]
    pub(crate) fn model(kind: ErrorKind, found: impl Into<String>, expected: impl Into<String>) -> Self {
        let mut error = Error::new(kind, 0, found, expected);
        error.0.offset = None;
        error
    }

    /// Prefixes the path with `segment`.
    #[cold]
    pub(crate) fn within(mut self, segment: impl fmt::Display) -> Self {
        let path = &mut self.0.path;
        let dot = if path.is_empty() || path.starts_with('[') { "" } else { "." };
        *path = format!("{segment}{dot}{path}");
        self
    }
}

/// Adds the enclosing field to an error's path.
pub(crate) trait Within {
    /// Prefixes the path with `segment`, which is only evaluated for an error.
    fn within<S: fmt::Display>(self, segment: impl FnOnce() -> S) -> Self;
}

impl<T> Within for Result<T> {
    #[inline]
    fn within<S: fmt::Display>(self, segment: impl FnOnce() -> S) -> Self {
        self.map_err(|error| error.within(segment()))
    }
}
