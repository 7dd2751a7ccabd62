//! What an error knows, for those who pass errors on: to another language, or over a wire.
//!
//! ```
//! use pteron::facts::{ErrorFacts, ErrorKind};
//!
//! let error = pteron::open("no such file.pte").unwrap_err();
//! let facts = ErrorFacts::of(&error);
//! assert_eq!(facts.kind, ErrorKind::File);
//! assert_eq!(facts.file.as_deref(), Some("no such file.pte"));
//! ```

use std::error::Error as StdError;
use std::path::Path;

/// What an error and all that caused it know, beside their messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ErrorFacts {
    /// What kind of error it is: the outermost that has a kind says it.
    pub kind: ErrorKind,
    /// The file.
    pub file: Option<String>,
    /// The field of the file, the instruction, the weight or the limit.
    pub path: Option<String>,
    /// The byte of the file.
    pub offset: Option<u64>,
    /// What to do about it.
    pub remedy: Option<Remedy>,
    /// The method.
    pub method: Option<String>,
    /// The chain and the index of the instruction.
    pub instruction: Option<(usize, usize)>,
    /// Operators that are missing.
    pub operators: Vec<String>,
    /// Backends that are missing.
    pub backends: Vec<String>,
    /// The number of the operating system's error.
    pub errno: Option<i32>,
}

/// Kinds of errors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// None of the others.
    #[default]
    Other,
    /// A file cannot be opened, read or written.
    File,
    /// A file is not valid, or not of a format that was expected.
    Format,
    /// An archive or a program cannot be compiled.
    Compile,
    /// A limit is exceeded.
    Limit,
    /// The program has no such method.
    NoSuchMethod,
    /// Operators or backends are missing.
    Missing,
    /// Named data is missing, or is there twice.
    Data,
    /// An argument is not what a method or a function takes.
    Input,
    /// An instruction failed, or was interrupted.
    Execute,
    /// A method cannot be loaded.
    Load,
    /// A tensor cannot be made, or is not what it is taken for.
    Tensor,
}

/// What to do about an error. Who has other names for options than Rust puts it in words of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// This.
    Text(String),
    /// Raise this field of the limits, if what exceeds it is intended.
    RaiseLimit(&'static str),
    /// Load the program with its `.ptd` files.
    GiveData,
    /// Export the program without the operators, or the backends, that are missing.
    ExportWithout,
}

impl ErrorFacts {
    /// The facts of an error and of all that caused it.
    pub fn of(error: &(dyn StdError + 'static)) -> Self {
        let mut facts = Self::default();
        let mut next = Some(error);
        while let Some(error) = next {
            facts.learn(error);
            next = error.source();
        }
        facts
    }

    /// Adds what an error knows; a file's or a field's name from further out is kept.
    fn learn(&mut self, error: &(dyn StdError + 'static)) {
        if let Some(error) = found::<runtime::Error>(error) {
            self.of_runtime(error);
        } else if let Some(error) = found::<format::Error>(error) {
            self.is(ErrorKind::Format);
            self.path.get_or_insert_with(|| error.path().to_owned());
            self.offset = self.offset.or(error.offset());
            self.remedy.get_or_insert_with(|| Remedy::Text(error.kind().advice().to_owned()));
        } else if let Some(error) = found::<std::io::Error>(error) {
            self.errno = error.raw_os_error();
        } else if found::<tensor::Error>(error).is_some() {
            self.is(ErrorKind::Tensor);
        }
        #[cfg(feature = "tools")]
        if let Some(error) = found::<toolbox::Error>(error) {
            self.of_toolbox(error);
        }
        #[cfg(feature = "compile")]
        if let Some(error) = found::<compiler::Error>(error) {
            self.of_compiler(error);
        }
        #[cfg(feature = "bef")]
        if let Some(error) = found::<bef::Error>(error) {
            self.is(ErrorKind::Format);
            self.path.get_or_insert_with(|| error.path.clone());
            self.offset = self.offset.or(error.offset);
        }
    }

    fn is(&mut self, kind: ErrorKind) {
        if self.kind == ErrorKind::Other {
            self.kind = kind;
        }
    }

    fn of_file(&mut self, path: &Path) {
        self.is(ErrorKind::File);
        self.file.get_or_insert_with(|| path.display().to_string());
    }

    fn of_runtime(&mut self, error: &runtime::Error) {
        use runtime::Error as E;
        match error {
            E::Io { path, .. } => self.of_file(path),
            E::OutOfFile { file, offset, .. } => {
                self.is(ErrorKind::Format);
                (self.file, self.offset) = (Some(file.clone()), Some(*offset));
                self.remedy = Some(Remedy::Text(format::ErrorKind::Truncated.advice().to_owned()));
            }
            E::Format { file, .. } => self.file = Some(file.clone()),
            E::Compile { file, .. } => {
                self.is(ErrorKind::Compile);
                self.file = Some(file.clone());
            }
            E::Limit { field, .. } => {
                self.is(ErrorKind::Limit);
                self.path = Some((*field).to_owned());
                self.remedy = Some(Remedy::RaiseLimit(field));
            }
            E::NoSuchMethod { name, .. } => {
                self.is(ErrorKind::NoSuchMethod);
                self.method = Some(name.clone());
            }
            E::Missing(missing) => {
                self.is(ErrorKind::Missing);
                self.method = Some(missing.method.clone());
                self.operators = missing.operators.iter().map(|operator| operator.name.clone()).collect();
                self.backends = missing.backends.iter().map(|backend| backend.id.clone()).collect();
                self.remedy = Some(Remedy::ExportWithout);
            }
            E::ExternalData { method, key, .. } => {
                self.is(ErrorKind::Data);
                (self.method, self.path) = (Some(method.clone()), Some(key.clone()));
                self.remedy = Some(Remedy::GiveData);
            }
            E::DuplicateKey { key, .. } | E::NoSuchKey { key, .. } => {
                self.is(ErrorKind::Data);
                self.path = Some(key.clone());
            }
            E::Input { method, .. } => {
                self.is(ErrorKind::Input);
                self.method = Some(method.clone());
            }
            E::Execute { method, at, .. } => {
                self.is(ErrorKind::Execute);
                (self.method, self.path) = (Some(method.clone()), Some(at.to_string()));
                self.instruction = Some((at.chain, at.instruction));
            }
            E::Interrupted { method, .. } => {
                self.is(ErrorKind::Execute);
                self.method = Some(method.clone());
            }
            E::Load { method, place, .. } => {
                self.is(ErrorKind::Load);
                (self.method, self.path) = (Some(method.clone()), Some(place.clone()));
            }
            E::BackendInit { method, index, .. } => {
                self.is(ErrorKind::Load);
                (self.method, self.path) = (Some(method.clone()), Some(format!("delegates[{index}]")));
            }
            E::Tensor(_) => self.is(ErrorKind::Tensor),
            _ => {}
        }
    }

    #[cfg(feature = "tools")]
    fn of_toolbox(&mut self, error: &toolbox::Error) {
        use toolbox::Error as E;
        match error {
            E::Io { path, .. } => self.of_file(path),
            E::WrongFormat { file, expected, .. } => {
                self.is(ErrorKind::Format);
                self.file = Some(file.clone());
                self.remedy = Some(Remedy::Text(format!("give it {expected}")));
            }
            E::BadFile { file, .. } => {
                self.is(ErrorKind::Format);
                self.file = Some(file.clone());
            }
            E::Input(_) => self.is(ErrorKind::Input),
            // What is transparent has the source of what it holds.
            E::Runtime(error) => self.of_runtime(error),
            E::Tensor(_) => self.is(ErrorKind::Tensor),
            _ => {}
        }
    }

    #[cfg(feature = "compile")]
    fn of_compiler(&mut self, error: &compiler::Error) {
        use compiler::Error as E;
        self.is(ErrorKind::Compile);
        match error {
            E::Archive { place, help, .. } => {
                self.path = Some(place.clone());
                self.remedy = (!help.is_empty()).then(|| Remedy::Text(help.clone()));
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
}

/// An error of this type, in a box or not.
fn found<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    error.downcast_ref::<E>().or_else(|| Some(&**error.downcast_ref::<Box<E>>()?))
}
