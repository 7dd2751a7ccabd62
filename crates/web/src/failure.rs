//! Errors as JavaScript gets them.

use pteron::facts::{ErrorFacts, ErrorKind, Remedy};
use serde::Serialize;
use std::error::Error;

/// The result of anything that a request asks for.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// What went wrong, and where.
#[derive(Debug, Serialize)]
pub(crate) struct Failure(Box<Facts>);

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Facts {
    /// Everything that is known, on one line.
    message: String,
    /// What kind of error it is.
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    /// The field of the file, or the instruction.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// The byte of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<String>,
    /// Operators that are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    operators: Vec<String>,
    /// Backends that are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    backends: Vec<String>,
}

impl Failure {
    /// A request that makes no sense.
    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self(Box::new(Facts { message: message.into(), kind: "input", ..Facts::default() }))
    }

    /// The same, which concerns an input.
    pub(crate) fn of_input(mut self, index: usize) -> Self {
        self.0.message = format!("input {index}: {}", self.0.message);
        self
    }
}

impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let ErrorFacts { kind, file, path, offset, remedy, method, operators, backends, .. } =
            ErrorFacts::of(&error);
        let message = toolbox::one_line(&error);
        let (kind, remedy) = (name(kind), remedy.and_then(in_words));
        Self(Box::new(Facts { message, kind, file, path, offset, remedy, method, operators, backends }))
    }
}

/// What JavaScript calls errors of a kind.
fn name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Format => "format",
        ErrorKind::Compile => "compile",
        ErrorKind::Limit => "limit",
        ErrorKind::Input | ErrorKind::NoSuchMethod => "input",
        ErrorKind::Missing => "missing",
        ErrorKind::Data => "data",
        ErrorKind::Execute => "execute",
        ErrorKind::Load => "load",
        _ => "error",
    }
}

/// What to do, where there are other words for it here than the message has.
fn in_words(remedy: Remedy) -> Option<String> {
    match remedy {
        Remedy::Text(text) => Some(text),
        Remedy::GiveData => Some("load the program with its .ptd files as `data`".to_owned()),
        _ => None,
    }
}
