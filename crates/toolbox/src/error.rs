use crate::show::line;
use std::io;
use std::path::{Path, PathBuf};

/// An error of a verb.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of a format that the verb does not accept.
    #[error("{}", line(&format!("{file} is {found}; {verb} takes {expected}")))]
    WrongFormat {
        /// The file, as the user named it.
        file: String,
        /// The format, recognised by its first bytes.
        found: String,
        verb: &'static str,
        /// The formats that the verb accepts.
        expected: &'static str,
    },
    /// A file whose contents are invalid.
    #[error("{}", line(&format!("{file}: {problem}")))]
    BadFile {
        /// The file, as the user named it.
        file: String,
        /// The problem, and the expected contents.
        problem: String,
    },
    /// An argument or input of the user that the verb or program cannot take.
    #[error("{}", line(.0))]
    Input(String),
    /// Files that cannot be merged: a line for each key that they do not agree on.
    #[error("the files do not agree:{}", indented_lines(.0))]
    Conflicts(Vec<String>),
    /// An error of the runtime.
    #[error(transparent)]
    Runtime(#[from] pteron_runtime::Error),
    /// A tensor error.
    #[error(transparent)]
    Tensor(#[from] pteron_tensor::Error),
    /// An error, with the operation in which it occurred.
    #[error("{}", line(context))]
    Context {
        /// The operation that failed.
        context: String,
        /// The underlying error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// Makes an [`Io`](pteron_runtime::Error::Io) error of a failed read, for `map_err`.
    pub fn read(path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        Self::io_error(path.as_ref().to_owned(), "read")
    }

    /// Makes an [`Io`](pteron_runtime::Error::Io) error of a failed write, for `map_err`.
    pub fn write(path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        Self::io_error(path.as_ref().to_owned(), "write")
    }

    fn io_error(path: PathBuf, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Runtime(pteron_runtime::Error::Io { path, action, source })
    }

    /// An [`Error::BadFile`].
    pub fn bad_file(file: impl AsRef<Path>, problem: impl Into<String>) -> Self {
        Self::BadFile { file: file.as_ref().display().to_string(), problem: problem.into() }
    }

    /// An [`Error::Input`].
    pub fn input(message: impl Into<String>) -> Self {
        Self::Input(message.into())
    }
}

/// Formats each item on its own indented line.
fn indented_lines(items: &[String]) -> String {
    items.iter().map(|item| format!("\n  {}", line(item))).collect()
}

/// Adds context to errors.
pub trait Context<T> {
    /// Wraps the error into an [`Error::Context`] that says what was being done.
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: std::error::Error + Send + Sync + 'static> Context<T> for Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| Error::Context { context: what(), source: Box::new(e) })
    }
}

/// The result of a verb.
pub type Result<T, E = Error> = std::result::Result<T, E>;
