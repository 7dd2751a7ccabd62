//! Verifies untrusted programs once; a [`VerifiedProgram`] is the proof.

mod plan;
mod program;
mod tensor;
mod verified;

pub use verified::{InvalidMethod, TensorData, VerifiedProgram};

use super::read::Broken;
use super::{ExecutionPlan, Header, Program};
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
    let plans: Vec<_> = program.execution_plan.iter().map(Ok).collect();
    Verifier::run(program, &plans, header, limits, 1)
        .into_iter()
        .next()
        .map_or(Ok(()), |first| Err(first.error))
}

/// All errors that [`verify`] would report one at a time, up to [`Limits::errors`].
pub fn verify_all(program: &Program, header: &Header, limits: &Limits) -> Vec<Error> {
    let plans: Vec<_> = program.execution_plan.iter().map(Ok).collect();
    let errors = Verifier::run(program, &plans, header, limits, limits.errors);
    errors.into_iter().map(|error| error.error).collect()
}

/// An error, and the index of the method that it is about; `None` if it is about the program as a whole.
struct MethodError {
    method: Option<usize>,
    error: Error,
}

/// The errors found so far, and the program that is verified.
struct Verifier<'v> {
    program: &'v Program,
    plans: &'v [Result<&'v ExecutionPlan, &'v Broken>],
    header: &'v Header,
    limits: &'v Limits,
    /// How many more errors may be collected.
    room: usize,
    /// The index of the method that is being verified.
    method: Option<usize>,
    errors: Vec<MethodError>,
}

impl<'v> Verifier<'v> {
    /// Verifies the tables of a program and its methods, `plans`, and collects up to `most` errors.
    fn run(
        program: &'v Program,
        plans: &'v [Result<&'v ExecutionPlan, &'v Broken>],
        header: &'v Header,
        limits: &'v Limits,
        most: usize,
    ) -> Vec<MethodError> {
        let mut verifier =
            Verifier { program, plans, header, limits, room: most, method: None, errors: Vec::new() };
        verifier.check_program();
        for index in 0..plans.len() {
            if verifier.is_full() {
                break;
            }
            verifier.check_method(index);
        }
        verifier.errors
    }

    /// The first error of the program as a whole, or else the first error of each method.
    fn run_by_method(
        program: &'v Program,
        plans: &'v [Result<&'v ExecutionPlan, &'v Broken>],
        header: &'v Header,
        limits: &'v Limits,
    ) -> Vec<MethodError> {
        let mut verifier =
            Verifier { program, plans, header, limits, room: usize::MAX, method: None, errors: Vec::new() };
        verifier.check_program();
        if let Some(first) = verifier.errors.iter().position(|error| error.method.is_none()) {
            return vec![verifier.errors.swap_remove(first)];
        }
        for index in 0..plans.len() {
            verifier.room = 1;
            verifier.check_method(index);
        }
        verifier.errors
    }

    fn check_method(&mut self, index: usize) {
        self.method = Some(index);
        match self.plans[index] {
            Ok(plan) => self.check_plan(plan, Path::ROOT.field("execution_plan").index(index)),
            Err(broken) => {
                self.push(broken.error.clone());
                broken.unknown.iter().skip(1).for_each(|error| _ = self.push(error.clone()));
            }
        }
        self.method = None;
    }
}

impl Verifier<'_> {
    fn is_full(&self) -> bool {
        self.room == 0
    }

    fn push(&mut self, error: Error) -> bool {
        if !self.is_full() {
            self.errors.push(MethodError { method: self.method, error });
            self.room -= 1;
        }
        !self.is_full()
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
    fn fail_invalid(&mut self, path: Path<'_>, expected: impl Into<Cow<'static, str>>, found: impl Display) {
        self.fail(ErrorKind::Invalid, path, expected, found);
    }

    #[cold]
    fn fail_over_limit(&mut self, path: Path<'_>, limit: u64, what: &str, found: impl Display) {
        self.fail(ErrorKind::Limit, path, format!("at most {limit} {what}"), found);
    }

    /// Checks an index into a vector of `len` entries; `what` names the entries in errors.
    fn check_index(
        &mut self,
        path: Path<'_>,
        index: impl Into<i64>,
        len: usize,
        what: &str,
    ) -> Option<usize> {
        let index = index.into();
        match usize::try_from(index) {
            Ok(index) if index < len => Some(index),
            _ => {
                self.fail_invalid(path, format!("an index into the {len} {what}"), index);
                None
            }
        }
    }

    /// Checks a vector of value indices.
    fn check_indices(&mut self, path: Path<'_>, indices: &[i32], values: usize) {
        for (i, &index) in indices.iter().enumerate() {
            if self.is_full() {
                return;
            }
            self.check_index(path.index(i), index, values, "values of the plan");
        }
    }
}
