//! Verifies untrusted programs once; a [`VerifiedProgram`] is the proof.

mod plan;
mod program;
mod tensor;
mod verified;

pub use verified::{TensorData, VerifiedProgram};

use super::{Header, Program};
use crate::flatbuffer::Path;
use crate::{Error, ErrorKind, Limits, Result};
use std::borrow::Cow;
use std::fmt::Display;

/// Checks everything that the tables of a program say: the schema version, that segments are in bounds of the file, all
/// indices, sizes and products of sizes, that planned tensors are in bounds of their arenas and constants and initial
/// data in bounds of their segments, dim orders, jump destinations, and duplicate names.
///
/// Returns the first error, with its path; [`VerifiedProgram::read`], which has the bytes, adds the byte offset. The
/// number of arguments is checked against operator schemas when a method is loaded.
pub fn verify(program: &Program, header: &Header, limits: &Limits) -> Result<()> {
    run(program, header, limits, 1).into_iter().next().map_or(Ok(()), Err)
}

/// All errors that [`verify`] would report one at a time, up to [`Limits::errors`].
pub fn verify_all(program: &Program, header: &Header, limits: &Limits) -> Vec<Error> {
    run(program, header, limits, limits.errors)
}

fn run(program: &Program, header: &Header, limits: &Limits, most: usize) -> Vec<Error> {
    let mut verifier = Verifier { program, header, limits, most, errors: Vec::new() };
    verifier.program();
    for (index, plan) in program.execution_plan.iter().enumerate() {
        if verifier.full() {
            break;
        }
        verifier.plan(plan, Path::ROOT.field("execution_plan").index(index));
    }
    verifier.errors
}

/// The errors found so far, and the program that is verified.
struct Verifier<'v> {
    program: &'v Program,
    header: &'v Header,
    limits: &'v Limits,
    most: usize,
    errors: Vec<Error>,
}

impl Verifier<'_> {
    fn full(&self) -> bool {
        self.errors.len() >= self.most
    }

    fn push(&mut self, error: Error) -> bool {
        if !self.full() {
            self.errors.push(error);
        }
        !self.full()
    }

    #[cold]
    fn fail(
        &mut self,
        kind: ErrorKind,
        path: Path<'_>,
        expected: impl Into<Cow<'static, str>>,
        found: impl Display,
    ) {
        self.push(Error::new(kind, path.to_string(), expected, found));
    }

    #[cold]
    fn invalid(&mut self, path: Path<'_>, expected: impl Into<Cow<'static, str>>, found: impl Display) {
        self.fail(ErrorKind::Invalid, path, expected, found);
    }

    #[cold]
    fn over(&mut self, path: Path<'_>, limit: u64, what: &str, found: impl Display) {
        self.fail(ErrorKind::Limit, path, format!("at most {limit} {what}"), found);
    }

    /// Checks an index into a vector of `len` entries; `what` names the entries in errors.
    fn index(&mut self, path: Path<'_>, index: impl Into<i64>, len: usize, what: &str) -> Option<usize> {
        let index = index.into();
        match usize::try_from(index) {
            Ok(index) if index < len => Some(index),
            _ => {
                self.invalid(path, format!("an index into the {len} {what}"), index);
                None
            }
        }
    }

    /// Checks a vector of value indices.
    fn indices(&mut self, path: Path<'_>, indices: &[i32], values: usize) {
        for (i, &index) in indices.iter().enumerate() {
            if self.full() {
                return;
            }
            self.index(path.index(i), index, values, "values of the plan");
        }
    }
}
