//! The structured contents of an error, for code that passes errors on to another language or over the network.
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

/// The structured contents of an error and of its chain of sources, without their messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ErrorFacts {
    /// The kind of the outermost error in the chain that has one.
    pub kind: ErrorKind,
    /// The path of the file that the error is about, if it is about one.
    pub file: Option<String>,
    /// The field of the file, the instruction, the weight or the limit that the error is about.
    pub path: Option<String>,
    /// The byte offset in the file at which the error is, if it is known.
    pub offset: Option<u64>,
    /// What to do about the error, if there is a remedy.
    pub remedy: Option<Remedy>,
    /// The name of the method that the error is about.
    pub method: Option<String>,
    /// The chain index of the instruction that the error is about, and the instruction's index in the chain.
    pub instruction: Option<(usize, usize)>,
    /// Operators that are missing.
    pub operators: Vec<String>,
    /// Backends that are missing.
    pub backends: Vec<String>,
    /// The operating system's error code.
    pub errno: Option<i32>,
}

/// Kinds of errors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An error of none of the other kinds.
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
    /// Named data is missing, or a key is duplicated.
    Data,
    /// An argument does not match what a method or a function expects.
    Input,
    /// An instruction failed, or was interrupted.
    Execute,
    /// A method cannot be loaded.
    Load,
    /// A tensor cannot be created, or is not of the expected type, sizes or layout.
    Tensor,
}

/// What to do about an error, in a form that front ends can phrase with the names of their own options.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// Advice as text.
    Text(String),
    /// Raise the field of `Limits` that has this name, if exceeding the limit is intended.
    RaiseLimit(&'static str),
    /// Load the program with its `.ptd` files.
    GiveData,
    /// Export the program without the operators, or the backends, that are missing.
    ExportWithout,
}

impl ErrorFacts {
    /// Collects the facts of an error and of its chain of sources.
    pub fn of(error: &(dyn StdError + 'static)) -> Self {
        let mut facts = Self::default();
        let mut next = Some(error);
        while let Some(error) = next {
            facts.add(error);
            next = error.source();
        }
        facts
    }

    /// Adds the facts of one error. The file and field names of an outer error take precedence.
    fn add(&mut self, error: &(dyn StdError + 'static)) {
        if let Some(error) = downcast::<pteron_runtime::Error>(error) {
            self.add_runtime(error);
        } else if let Some(error) = downcast::<pteron_format::Error>(error) {
            self.set_kind(ErrorKind::Format);
            self.path.get_or_insert_with(|| error.path().to_owned());
            self.offset = self.offset.or(error.offset());
            self.remedy.get_or_insert_with(|| Remedy::Text(error.kind().advice().to_owned()));
        } else if let Some(error) = downcast::<std::io::Error>(error) {
            self.errno = error.raw_os_error();
        } else if downcast::<pteron_tensor::Error>(error).is_some() {
            self.set_kind(ErrorKind::Tensor);
        }
        #[cfg(feature = "tools")]
        if let Some(error) = downcast::<pteron_toolbox::Error>(error) {
            self.add_toolbox(error);
        }
        #[cfg(feature = "compile")]
        if let Some(error) = downcast::<pteron_compiler::Error>(error) {
            self.add_compiler(error);
        }
        #[cfg(feature = "bef")]
        if let Some(error) = downcast::<pteron_bef::Error>(error) {
            self.set_kind(ErrorKind::Format);
            self.path.get_or_insert_with(|| error.path.clone());
            self.offset = self.offset.or(error.offset);
        }
    }

    fn set_kind(&mut self, kind: ErrorKind) {
        if self.kind == ErrorKind::Other {
            self.kind = kind;
        }
    }

    fn add_file(&mut self, path: &Path) {
        self.set_kind(ErrorKind::File);
        self.file.get_or_insert_with(|| path.display().to_string());
    }

    fn add_runtime(&mut self, error: &pteron_runtime::Error) {
        use pteron_runtime::Error as E;
        match error {
            E::Io { path, .. } => self.add_file(path),
            E::OutOfFile { file, offset, .. } => {
                self.set_kind(ErrorKind::Format);
                (self.file, self.offset) = (Some(file.clone()), Some(*offset));
                self.remedy = Some(Remedy::Text(pteron_format::ErrorKind::Truncated.advice().to_owned()));
            }
            E::Format { file, .. } => self.file = Some(file.clone()),
            E::InvalidMethod { file, method, .. } => {
                (self.file, self.method) = (Some(file.clone()), Some(method.clone()));
            }
            E::Compile { file, .. } => {
                self.set_kind(ErrorKind::Compile);
                self.file = Some(file.clone());
            }
            E::Limit { field, .. } => {
                self.set_kind(ErrorKind::Limit);
                self.path = Some((*field).to_owned());
                self.remedy = Some(Remedy::RaiseLimit(field));
            }
            E::NoSuchMethod { name, .. } => {
                self.set_kind(ErrorKind::NoSuchMethod);
                self.method = Some(name.clone());
            }
            E::Missing(missing) => {
                self.set_kind(ErrorKind::Missing);
                self.method = Some(missing.method.clone());
                self.operators = missing.operators.iter().map(|operator| operator.name.clone()).collect();
                self.backends = missing.backends.iter().map(|backend| backend.id.clone()).collect();
                self.remedy = Some(Remedy::ExportWithout);
            }
            E::ExternalData { method, key, .. } => {
                self.set_kind(ErrorKind::Data);
                (self.method, self.path) = (Some(method.clone()), Some(key.clone()));
                self.remedy = Some(Remedy::GiveData);
            }
            E::DuplicateKey { key, .. } | E::NoSuchKey { key, .. } => {
                self.set_kind(ErrorKind::Data);
                self.path = Some(key.clone());
            }
            E::Input { method, .. } => {
                self.set_kind(ErrorKind::Input);
                self.method = Some(method.clone());
            }
            E::Execute { method, at, .. } => {
                self.set_kind(ErrorKind::Execute);
                (self.method, self.path) = (Some(method.clone()), Some(at.to_string()));
                self.instruction = Some((at.chain, at.instruction));
            }
            E::Interrupted { method, .. } => {
                self.set_kind(ErrorKind::Execute);
                self.method = Some(method.clone());
            }
            E::Load { method, place, .. } => {
                self.set_kind(ErrorKind::Load);
                (self.method, self.path) = (Some(method.clone()), Some(place.clone()));
            }
            E::BackendInit { method, index, .. } => {
                self.set_kind(ErrorKind::Load);
                (self.method, self.path) = (Some(method.clone()), Some(format!("delegates[{index}]")));
            }
            E::Tensor(_) => self.set_kind(ErrorKind::Tensor),
            _ => {}
        }
    }

    #[cfg(feature = "tools")]
    fn add_toolbox(&mut self, error: &pteron_toolbox::Error) {
        use pteron_toolbox::Error as E;
        match error {
            E::WrongFormat { file, expected, .. } => {
                self.set_kind(ErrorKind::Format);
                self.file = Some(file.clone());
                self.remedy = Some(Remedy::Text(format!("give it {expected}")));
            }
            E::BadFile { file, .. } => {
                self.set_kind(ErrorKind::Format);
                self.file = Some(file.clone());
            }
            E::Input(_) => self.set_kind(ErrorKind::Input),
            // A transparent error forwards `source()`, so the wrapped error is not in the chain.
            E::Runtime(error) => self.add_runtime(error),
            E::Tensor(_) => self.set_kind(ErrorKind::Tensor),
            _ => {}
        }
    }

    #[cfg(feature = "compile")]
    fn add_compiler(&mut self, error: &pteron_compiler::Error) {
        use pteron_compiler::Error as E;
        self.set_kind(ErrorKind::Compile);
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
            E::Format(error) => self.add(error),
            _ => {}
        }
    }
}

/// Downcasts an error to `E` or `Box<E>`.
fn downcast<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    error.downcast_ref::<E>().or_else(|| Some(&**error.downcast_ref::<Box<E>>()?))
}
