//! Errors as JavaScript gets them.

use pteron::format;
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

impl Facts {
    /// The first that has a kind gives it; a file's or a field's name from further out is kept.
    fn learn(&mut self, error: &(dyn Error + 'static)) {
        if let Some(error) = found::<pteron::Error>(error) {
            self.of_runtime(error);
        } else if let Some(error) = found::<toolbox::Error>(error) {
            self.of_toolbox(error);
        } else if let Some(error) = found::<format::Error>(error) {
            self.is("format");
            self.path.get_or_insert_with(|| error.path().to_owned());
            self.offset = self.offset.or(error.offset());
            self.remedy.get_or_insert_with(|| error.kind().advice().to_owned());
        } else if let Some(error) = found::<pteron::bef::Error>(error) {
            self.is("format");
            self.path.get_or_insert_with(|| error.path.clone());
            self.offset = self.offset.or(error.offset);
        } else if let Some(error) = found::<pteron::compile::Error>(error) {
            self.of_compiler(error);
        }
    }

    fn is(&mut self, kind: &'static str) {
        if self.kind.is_empty() {
            self.kind = kind;
        }
    }

    fn of_runtime(&mut self, error: &pteron::Error) {
        use pteron::Error as E;
        match error {
            E::OutOfFile { file, offset, .. } => {
                self.is("format");
                (self.file, self.offset) = (Some(file.clone()), Some(*offset));
                self.remedy = Some(format::ErrorKind::Truncated.advice().to_owned());
            }
            E::Format { file, .. } => self.file = Some(file.clone()),
            E::Compile { file, .. } => {
                self.is("compile");
                self.file = Some(file.clone());
            }
            E::Limit { field, .. } => {
                self.is("limit");
                self.path = Some((*field).to_owned());
            }
            E::NoSuchMethod { name, .. } => {
                self.is("input");
                self.method = Some(name.clone());
            }
            E::Missing(missing) => {
                self.is("missing");
                self.method = Some(missing.method.clone());
                self.operators = missing.operators.iter().map(|operator| operator.name.clone()).collect();
                self.backends = missing.backends.iter().map(|backend| backend.id.clone()).collect();
            }
            E::ExternalData { method, key, .. } => {
                self.is("data");
                (self.method, self.path) = (Some(method.clone()), Some(key.clone()));
                self.remedy = Some("load the program with its .ptd files as `data`".to_owned());
            }
            E::DuplicateKey { key, .. } | E::NoSuchKey { key, .. } => {
                self.is("data");
                self.path = Some(key.clone());
            }
            E::Input { method, .. } => {
                self.is("input");
                self.method = Some(method.clone());
            }
            E::Execute { method, at, .. } => {
                self.is("execute");
                (self.method, self.path) = (Some(method.clone()), Some(at.to_string()));
            }
            E::Interrupted { method, .. } => {
                self.is("execute");
                self.method = Some(method.clone());
            }
            E::Load { method, place, .. } => {
                self.is("load");
                (self.method, self.path) = (Some(method.clone()), Some(place.clone()));
            }
            E::BackendInit { method, index, .. } => {
                self.is("load");
                (self.method, self.path) = (Some(method.clone()), Some(format!("delegates[{index}]")));
            }
            _ => {}
        }
    }

    fn of_toolbox(&mut self, error: &toolbox::Error) {
        use toolbox::Error as E;
        match error {
            E::WrongFormat { file, expected, .. } => {
                self.is("format");
                self.file = Some(file.clone());
                self.remedy = Some(format!("give it {expected}"));
            }
            E::BadFile { file, .. } => {
                self.is("format");
                self.file = Some(file.clone());
            }
            E::Input(_) => self.is("input"),
            E::Runtime(error) => self.of_runtime(error),
            _ => {}
        }
    }

    fn of_compiler(&mut self, error: &pteron::compile::Error) {
        use pteron::compile::Error as E;
        self.is("compile");
        match error {
            E::Archive { place, help, .. } => {
                self.path = Some(place.clone());
                self.remedy = (!help.is_empty()).then(|| help.clone());
            }
            E::Node(node) => self.path = Some(node.node.clone()),
            E::Unsupported(operators) => {
                self.operators = operators.iter().map(|operator| operator.target.clone()).collect();
            }
            E::Format(error) => self.learn(error),
            _ => {}
        }
    }
}

/// An error of this type, in a box or not.
fn found<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    error.downcast_ref::<E>().or_else(|| Some(&**error.downcast_ref::<Box<E>>()?))
}

impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut facts = Facts { message: toolbox::one_line(&error), ..Facts::default() };
        let mut next: Option<&(dyn Error + 'static)> = Some(&error);
        while let Some(error) = next {
            facts.learn(error);
            next = error.source();
        }
        facts.is("error");
        Self(Box::new(facts))
    }
}
