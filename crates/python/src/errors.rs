//! Conversion of Rust errors to the exception classes of `pteron.errors`.

use pteron::facts::{ErrorFacts, ErrorKind, Remedy};
use pteron_toolbox::one_line;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyModule};
use std::error::Error as StdError;

/// The crate's error type. It can be created without the GIL, and is converted to a Python exception later.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error of another crate.
    Error(Box<dyn StdError + Send + Sync>),
    /// An invalid argument: raised as `InputError`.
    Input(String),
}

/// The result of functions that run without the GIL.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl<E: StdError + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Error(Box::new(error))
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Error(error) => to_exception(&*error),
            Failure::Input(message) => {
                exception(&ErrorFacts { kind: ErrorKind::Input, ..ErrorFacts::default() }, &message)
            }
        }
    }
}

/// The Python exception for an error, with the messages of its chain of sources.
pub(crate) fn to_exception(error: &(dyn StdError + 'static)) -> PyErr {
    exception(&ErrorFacts::of(error), &one_line(error))
}

fn exception(facts: &ErrorFacts, message: &str) -> PyErr {
    Python::attach(|py| build_exception(py, facts, message).unwrap_or_else(|e| e))
}

fn build_exception(py: Python<'_>, facts: &ErrorFacts, message: &str) -> PyResult<PyErr> {
    static CLASSES: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let classes =
        CLASSES.get_or_try_init(py, || Ok::<_, PyErr>(py.import("pteron.errors")?.unbind()))?.bind(py);
    let class = classes.getattr(class_name(facts.kind))?;
    let fields = PyDict::new(py);
    fields.set_item("file", &facts.file)?;
    fields.set_item("path", &facts.path)?;
    fields.set_item("offset", facts.offset)?;
    fields.set_item("remedy", facts.remedy.as_ref().and_then(|remedy| remedy_text(remedy, facts)))?;
    fields.set_item("method", &facts.method)?;
    fields.set_item("instruction", facts.instruction)?;
    fields.set_item("operators", PyList::new(py, &facts.operators)?.to_tuple())?;
    fields.set_item("backends", PyList::new(py, &facts.backends)?.to_tuple())?;
    fields.set_item("errno", facts.errno)?;
    Ok(PyErr::from_value(class.call((message,), Some(&fields))?))
}

/// The name of the class in `pteron.errors` for a kind of error.
fn class_name(kind: ErrorKind) -> &'static str {
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

/// The remedy for an error as text, in which parts of the Python API have their Python names.
fn remedy_text(remedy: &Remedy, facts: &ErrorFacts) -> Option<String> {
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
