//! The crate's error type.

use std::fmt;

/// The kind of an [`Error`], which adds offset, path and details.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file does not start with `0B EF 00`.
    Header,
    /// A section header is incomplete, or its alignment byte is not a power of two.
    SectionHeader,
    /// A section occurs twice.
    DuplicateSection,
    /// A mandatory section is absent.
    MissingSection,
    /// A value or list runs past the end of the bytes that contain it.
    Truncated,
    /// Bytes are left over after the last entry of a section.
    TrailingBytes,
    /// A variable-length integer does not fit 64 bits, or not the width that its field allows.
    VbrOverflow,
    /// A record's file offset is not a multiple of its alignment.
    Misaligned,
    /// A padding byte is not `0xCC`.
    Padding,
    /// An index or offset points outside its table or section.
    OutOfRange,
    /// An offset points into the middle of an entry.
    NotAStart,
    /// A string has no terminating NUL, holds a NUL, or is not UTF-8.
    String,
    /// A function kind, location kind or attribute type is unknown.
    UnknownTag,
    /// Two parts of the file (or model) that must agree do not.
    Mismatch,
    /// A register has no definition, several definitions, or one that comes after a use.
    Definition,
    /// Two records share bytes.
    Overlap,
    /// The value of an attribute is invalid, such as a bool of 2.
    Value,
    /// Nesting depth, a count or a total size exceeds the [`Limits`](crate::Limits).
    Limit,
    /// The format cannot represent this, such as an attribute that starts past 4 GiB.
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

/// The contents of an [`Error`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// The kind of error.
    pub kind: ErrorKind,
    /// Absolute file offset of the offending byte, or its offset in the bytes that a constructor was given; `None` for
    /// other errors in a model that is not written yet.
    pub offset: Option<u64>,
    /// Path of the field, such as `functions[3].kernels[2].args[1]`.
    pub path: String,
    /// Describes what was found in the file or model.
    pub found: String,
    /// Describes what was expected instead.
    pub expected: String,
}

/// The reason why a file was rejected or a model cannot be written.
///
/// One pointer wide, so that returning a `Result` from small readers stays cheap; it dereferences to its [`Fault`].
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
    /// An error at absolute file offset `offset`; the path is added on the way out by [`InField::in_field`].
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

    /// An error in a module that has not been encoded, so that no file offset can be given.
    #[cold]
    pub(crate) fn without_offset(
        kind: ErrorKind,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        let mut error = Error::new(kind, 0, found, expected);
        error.0.offset = None;
        error
    }

    /// Prefixes the path with `segment`.
    #[cold]
    pub(crate) fn in_field(mut self, segment: impl fmt::Display) -> Self {
        let path = &mut self.0.path;
        let dot = if path.is_empty() || path.starts_with('[') { "" } else { "." };
        *path = format!("{segment}{dot}{path}");
        self
    }
}

/// Adds the enclosing field to an error's path.
pub(crate) trait InField {
    /// Prefixes the path with `segment`, which is only evaluated for an error.
    fn in_field<S: fmt::Display>(self, segment: impl FnOnce() -> S) -> Self;
}

impl<T> InField for Result<T> {
    #[inline]
    fn in_field<S: fmt::Display>(self, segment: impl FnOnce() -> S) -> Self {
        self.map_err(|error| error.in_field(segment()))
    }
}
