use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// The result of reading, verifying or writing a file format.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong with a file, and where.
///
/// Displayed on one line, whatever the file's names contain: the field's path, what was expected, what was found, the
/// byte offset in the file, and what to do about it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct Error(Box<Fault>);

/// The kinds of errors in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file is not of the format it was read as.
    NotThisFormat,
    /// A version, or a kind of value or instruction, that this reader does not know.
    Newer,
    /// The file ends before something that it declares.
    Truncated,
    /// The flatbuffer itself is malformed: an offset, a vtable, a vector or a string is out of bounds.
    Structure,
    /// The structure is sound, but a value contradicts another or is invalid.
    Invalid,
    /// Legal in the format, but not supported by this implementation.
    Unsupported,
    /// Exceeds one of the [`Limits`](crate::Limits).
    Limit,
    /// What was asked for (a key, a method) is not in the file.
    NotFound,
    /// Reading or writing bytes failed.
    Io,
}

impl ErrorKind {
    /// A remedy for errors of this kind, to be printed once after the errors.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::NotThisFormat => "check that this is the file you meant",
            Self::Newer => "update Pteron, or export the file again with an older release",
            Self::Truncated => "the file is cut off; copy or export it again",
            Self::Structure | Self::Invalid => {
                "the file is damaged, or its writer is at fault; export it again"
            }
            Self::Unsupported => "export the program again without this",
            Self::Limit => "raise the limit if you trust the file",
            Self::NotFound => "look at what the file holds with `pteron inspect`",
            Self::Io => "check that the file can be read and written, and that the disk has room",
        }
    }
}

#[derive(Debug, Clone)]
struct Fault {
    kind: ErrorKind,
    offset: Option<u64>,
    path: String,
    expected: Cow<'static, str>,
    found: String,
    hint: Option<Cow<'static, str>>,
    source: Option<Arc<std::io::Error>>,
}

impl Error {
    /// An error of `kind` at the field `path`, with what was expected there and what was found.
    #[cold]
    pub fn new(
        kind: ErrorKind,
        path: impl Into<String>,
        expected: impl Into<Cow<'static, str>>,
        found: impl fmt::Display,
    ) -> Self {
        Self(Box::new(Fault {
            kind,
            offset: None,
            path: path.into(),
            expected: expected.into(),
            found: found.to_string(),
            hint: None,
            source: None,
        }))
    }

    /// Sets the byte offset of the error in the file.
    #[cold]
    #[must_use]
    pub fn at(mut self, offset: u64) -> Self {
        self.0.offset = Some(offset);
        self
    }

    /// Adds a remedy.
    #[cold]
    #[must_use]
    pub fn hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Prefixes the path with `outer`, the container around it.
    #[cold]
    #[must_use]
    pub fn within(mut self, outer: &str) -> Self {
        let dot = if self.0.path.is_empty() || self.0.path.starts_with('[') { "" } else { "." };
        self.0.path = format!("{outer}{dot}{}", self.0.path);
        self
    }

    /// The kind of error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The byte offset of the error in the file, if it has one.
    pub fn offset(&self) -> Option<u64> {
        self.0.offset
    }

    /// The path of the field, such as `execution_plan[0].values[17].sizes`; empty for the file itself.
    pub fn path(&self) -> &str {
        &self.0.path
    }

    /// What was expected at the error's path.
    pub fn expected(&self) -> &str {
        &self.0.expected
    }

    /// What was found at the error's path.
    pub fn found(&self) -> &str {
        &self.0.found
    }
}

impl From<std::io::Error> for Error {
    #[cold]
    fn from(error: std::io::Error) -> Self {
        let mut new = Self::new(ErrorKind::Io, "", "bytes to be read or written", &error);
        new.0.source = Some(Arc::new(error));
        new
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(source) = &self.source {
            return pteron_text::line(&source.to_string()).fmt(f);
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        let (expected, found) = (pteron_text::line(&self.expected), pteron_text::line(&self.found));
        write!(f, "expected {expected}, found {found}")?;
        if let Some(offset) = self.offset {
            write!(f, " (at byte {offset:#x})")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_reads_as_one_line() {
        let error = Error::new(ErrorKind::Invalid, "values[3].sizes[1]", "a size of 0 or more", -3)
            .at(0x1f4)
            .hint("export the program again")
            .within("execution_plan[0]");
        assert_eq!(
            error.to_string(),
            "execution_plan[0].values[3].sizes[1]: expected a size of 0 or more, found -3 (at byte 0x1f4); \
             export the program again"
        );
    }
}
