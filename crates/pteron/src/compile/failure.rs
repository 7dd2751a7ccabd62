//! The error of a compilation as an error of the library.

use crate::{DataLoader, Error as Failure};
use pteron_compiler::Error;

pub(super) fn compile_failure(file: &dyn DataLoader, source: Error) -> Failure {
    Failure::Compile { file: file.name().to_owned(), source: Box::new(source) }
}
