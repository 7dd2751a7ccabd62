//! From the errors of the crates below to the exception classes of `pteron.errors`.

use pteron::facts::{ErrorFacts, ErrorKind, Remedy};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyModule};
use std::error::Error as StdError;
use toolbox::one_line;

/// What a function of this package fails with, until Python is told.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something below failed.
    Error(Box<dyn StdError + Send + Sync>),
    /// An argument that the program cannot take.
    Input(String),
}

/// The result of anything here that does not speak to Python.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl<E: StdError + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Error(Box::new(error))
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Error(error) => raise(&*error),
            Failure::Input(message) => {
                exception(&ErrorFacts { kind: ErrorKind::Input, ..ErrorFacts::default() }, &message)
            }
        }
    }
}

/// The exception for an error and all that caused it.
pub(crate) fn raise(error: &(dyn StdError + 'static)) -> PyErr {
    exception(&ErrorFacts::of(error), &one_line(error))
}

fn exception(facts: &ErrorFacts, message: &str) -> PyErr {
    Python::attach(|py| build(py, facts, message).unwrap_or_else(|e| e))
}

fn build(py: Python<'_>, facts: &ErrorFacts, message: &str) -> PyResult<PyErr> {
    static CLASSES: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let classes =
        CLASSES.get_or_try_init(py, || Ok::<_, PyErr>(py.import("pteron.errors")?.unbind()))?.bind(py);
    let class = classes.getattr(class(facts.kind))?;
    let said = PyDict::new(py);
    said.set_item("file", &facts.file)?;
    said.set_item("path", &facts.path)?;
    said.set_item("offset", facts.offset)?;
    said.set_item("remedy", facts.remedy.as_ref().and_then(|remedy| in_words(remedy, facts)))?;
    said.set_item("method", &facts.method)?;
    said.set_item("instruction", facts.instruction)?;
    said.set_item("operators", PyList::new(py, &facts.operators)?.to_tuple())?;
    said.set_item("backends", PyList::new(py, &facts.backends)?.to_tuple())?;
    said.set_item("errno", facts.errno)?;
    Ok(PyErr::from_value(class.call((message,), Some(&said))?))
}

/// The class of `pteron.errors` for errors of a kind.
fn class(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::File => "FileError",
        ErrorKind::Format => "FormatError",
        ErrorKind::Compile => "CompileError",
        ErrorKind::Limit => "LimitError",
        ErrorKind::NoSuchMethod => "NoSuchMethodError",
        ErrorKind::Missing => "MissingError",
        ErrorKind::Data => "DataError",
        ErrorKind::Input => "InputError",
        ErrorKind::Execute => "ExecuteError",
        ErrorKind::Load => "LoadError",
        ErrorKind::Tensor => "TensorError",
        _ => "Error",
    }
}

/// What to do, in this package's words.
fn in_words(remedy: &Remedy, facts: &ErrorFacts) -> Option<String> {
    match remedy {
        Remedy::Text(text) => Some(text.clone()),
        Remedy::RaiseLimit(field) => Some(format!("raise `{field}` of `pteron.Limits` if that is intended")),
        Remedy::GiveData => Some("name the program's .ptd files with `data=[…]`".to_owned()),
        Remedy::ExportWithout if !facts.operators.is_empty() => Some(
            "export the model without these operators; `pteron.operators()` lists those there are".to_owned(),
        ),
        Remedy::ExportWithout => Some(
            "export the model without lowering it to these backends, or bring it back with `pteron.retarget`"
                .to_owned(),
        ),
        _ => None,
    }
}
