//! From the errors of the crates below to the exception classes of `pteron.errors`.

use pteron::format;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyModule};
use std::error::Error as StdError;
use std::path::Path;
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
            Failure::Input(message) => Facts { class: "InputError", ..Facts::default() }.exception(&message),
        }
    }
}

/// What an exception says beside its message.
#[derive(Default)]
struct Facts {
    class: &'static str,
    file: Option<String>,
    path: Option<String>,
    offset: Option<u64>,
    remedy: Option<String>,
    method: Option<String>,
    instruction: Option<(usize, usize)>,
    operators: Vec<String>,
    backends: Vec<String>,
    errno: Option<i32>,
}

/// The exception for an error and all that caused it.
pub(crate) fn raise(error: &(dyn StdError + 'static)) -> PyErr {
    let mut facts = Facts::default();
    let mut next = Some(error);
    while let Some(error) = next {
        facts.learn(error);
        next = error.source();
    }
    facts.exception(&one_line(error))
}

/// An error of this type, in a box or not.
fn found<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    error.downcast_ref::<E>().or_else(|| Some(&**error.downcast_ref::<Box<E>>()?))
}

impl Facts {
    /// Adds what an error knows. The first that has a class gives it.
    fn learn(&mut self, error: &(dyn StdError + 'static)) {
        if let Some(error) = found::<pteron::Error>(error) {
            self.of_runtime(error);
        } else if let Some(error) = found::<toolbox::Error>(error) {
            self.of_toolbox(error);
        } else if let Some(error) = found::<format::Error>(error) {
            self.is("FormatError");
            self.path.get_or_insert_with(|| error.path().to_owned());
            self.offset = self.offset.or(error.offset());
            self.remedy.get_or_insert_with(|| error.kind().advice().to_owned());
        } else if let Some(error) = found::<pteron::bef::Error>(error) {
            self.is("FormatError");
            self.path.get_or_insert_with(|| error.path.clone());
            self.offset = self.offset.or(error.offset);
        } else if let Some(error) = found::<pteron::compile::Error>(error) {
            self.of_compiler(error);
        } else if let Some(error) = found::<std::io::Error>(error) {
            self.errno = error.raw_os_error();
        } else if found::<pteron::tensor::Error>(error).is_some() {
            self.is("TensorError");
        }
    }

    fn is(&mut self, class: &'static str) {
        if self.class.is_empty() {
            self.class = class;
        }
    }

    fn of_file(&mut self, path: &Path) {
        self.is("FileError");
        self.file.get_or_insert_with(|| path.display().to_string());
    }

    fn of_runtime(&mut self, error: &pteron::Error) {
        use pteron::Error as E;
        match error {
            E::Io { path, .. } => self.of_file(path),
            E::OutOfFile { file, offset, .. } => {
                self.is("FormatError");
                self.file = Some(file.clone());
                self.offset = Some(*offset);
                self.remedy = Some(format::ErrorKind::Truncated.advice().to_owned());
            }
            E::Format { file, .. } => self.file = Some(file.clone()),
            E::Compile { file, .. } => {
                self.is("CompileError");
                self.file = Some(file.clone());
            }
            E::Limit { field, .. } => {
                self.is("LimitError");
                self.path = Some((*field).to_owned());
                self.remedy = Some(format!("raise `{field}` of `pteron.Limits` if that is intended"));
            }
            E::NoSuchMethod { name, .. } => {
                self.is("NoSuchMethodError");
                self.method = Some(name.clone());
            }
            E::Missing(missing) => {
                self.is("MissingError");
                self.method = Some(missing.method.clone());
                self.operators = missing.operators.iter().map(|op| op.name.clone()).collect();
                self.backends = missing.backends.iter().map(|backend| backend.id.clone()).collect();
                self.remedy = Some(remedy_of_missing(missing).to_owned());
            }
            E::ExternalData { method, key, .. } => {
                self.is("DataError");
                (self.method, self.path) = (Some(method.clone()), Some(key.clone()));
                self.remedy = Some("name the program's .ptd files with `data=[…]`".to_owned());
            }
            E::DuplicateKey { key, .. } | E::NoSuchKey { key, .. } => {
                self.is("DataError");
                self.path = Some(key.clone());
            }
            E::Input { method, .. } => {
                self.is("InputError");
                self.method = Some(method.clone());
            }
            E::Execute { method, at, .. } => {
                self.is("ExecuteError");
                self.method = Some(method.clone());
                self.path = Some(at.to_string());
                self.instruction = Some((at.chain, at.instruction));
            }
            E::Load { method, place, .. } => {
                self.is("LoadError");
                (self.method, self.path) = (Some(method.clone()), Some(place.clone()));
            }
            E::BackendInit { method, index, .. } => {
                self.is("LoadError");
                (self.method, self.path) = (Some(method.clone()), Some(format!("delegates[{index}]")));
            }
            E::Interrupted { method, .. } => {
                self.is("ExecuteError");
                self.method = Some(method.clone());
            }
            E::Tensor(_) => self.is("TensorError"),
            _ => {}
        }
    }

    fn of_toolbox(&mut self, error: &toolbox::Error) {
        use toolbox::Error as E;
        match error {
            E::Io { path, .. } => self.of_file(path),
            E::WrongFormat { file, expected, .. } => {
                self.is("FormatError");
                self.file = Some(file.clone());
                self.remedy = Some(format!("give it {expected}"));
            }
            E::BadFile { file, .. } => {
                self.is("FormatError");
                self.file = Some(file.clone());
            }
            E::Input(_) => self.is("InputError"),
            // What is transparent has the source of what it holds.
            E::Runtime(error) => self.of_runtime(error),
            E::Tensor(_) => self.is("TensorError"),
            _ => {}
        }
    }

    fn of_compiler(&mut self, error: &pteron::compile::Error) {
        use pteron::compile::Error as E;
        self.is("CompileError");
        match error {
            E::Archive { place, help, .. } => {
                self.path = Some(place.clone());
                self.remedy = (!help.is_empty()).then(|| help.clone());
            }
            E::Node(node) => self.path = Some(node.node.clone()),
            E::Unsupported(operators) => {
                self.operators = operators.iter().map(|operator| operator.target.clone()).collect();
            }
            E::Recover { place, .. } => self.path = Some(place.clone()),
            E::Format(error) => self.learn(error),
            _ => {}
        }
    }

    fn exception(self, message: &str) -> PyErr {
        Python::attach(|py| self.build(py, message).unwrap_or_else(|e| e))
    }

    fn build(&self, py: Python<'_>, message: &str) -> PyResult<PyErr> {
        static CLASSES: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
        let classes =
            CLASSES.get_or_try_init(py, || Ok::<_, PyErr>(py.import("pteron.errors")?.unbind()))?.bind(py);
        let class = classes.getattr(if self.class.is_empty() { "Error" } else { self.class })?;
        let facts = PyDict::new(py);
        facts.set_item("file", &self.file)?;
        facts.set_item("path", &self.path)?;
        facts.set_item("offset", self.offset)?;
        facts.set_item("remedy", &self.remedy)?;
        facts.set_item("method", &self.method)?;
        facts.set_item("instruction", self.instruction)?;
        facts.set_item("operators", PyList::new(py, &self.operators)?.to_tuple())?;
        facts.set_item("backends", PyList::new(py, &self.backends)?.to_tuple())?;
        facts.set_item("errno", self.errno)?;
        Ok(PyErr::from_value(class.call((message,), Some(&facts))?))
    }
}

/// What to do about operators or backends that are missing, in this package's words.
fn remedy_of_missing(missing: &pteron::Missing) -> &'static str {
    match (missing.operators.is_empty(), missing.backends.is_empty()) {
        (false, _) => "export the model without these operators; `pteron.operators()` lists those there are",
        (true, false) => {
            "export the model without lowering it to these backends, or bring it back with `pteron.retarget`"
        }
        (true, true) => "",
    }
}
