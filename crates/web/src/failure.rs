//! Errors for JavaScript.

use pteron::facts::{ErrorFacts, ErrorKind, Remedy};
use serde::Serialize;
use std::error::Error;

/// The result of executing a request.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// An error that is serialized for JavaScript.
#[derive(Debug, Serialize)]
pub(crate) struct Failure(Box<FailureDetails>);

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct FailureDetails {
    /// The messages of the error and its sources, on one line.
    message: String,
    /// The kind of the error.
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    /// The field of the file, or the instruction, that the error is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// The byte offset in the file at which the error is, if it is known.
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
    /// An error for an invalid request.
    pub(crate) fn invalid_input(message: impl Into<String>) -> Self {
        Self(Box::new(FailureDetails { message: message.into(), kind: "input", ..FailureDetails::default() }))
    }

    /// Prefixes the message with the index of an input.
    pub(crate) fn with_input_index(mut self, index: usize) -> Self {
        self.0.message = format!("input {index}: {}", self.0.message);
        self
    }
}

impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let ErrorFacts { kind, file, path, offset, remedy, method, operators, backends, .. } =
            ErrorFacts::of(&error);
        let message = pteron_toolbox::one_line(&error);
        let (kind, remedy) = (kind_name(kind), remedy.and_then(remedy_text));
        Self(Box::new(FailureDetails {
            message,
            kind,
            file,
            path,
            offset,
            remedy,
            method,
            operators,
            backends,
        }))
    }
}

/// The name of a kind of error in JavaScript.
fn kind_name(kind: ErrorKind) -> &'static str {
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

/// The remedy as text, with the names of the JavaScript API; `None` for remedies that JavaScript does not offer.
fn remedy_text(remedy: Remedy) -> Option<String> {
    match remedy {
        Remedy::Text(text) => Some(text),
        Remedy::GiveData => Some("load the program with its .ptd files as `data`".to_owned()),
        _ => None,
    }
}
