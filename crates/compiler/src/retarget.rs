//! From a program to one for other backends.

use crate::compile::{choose, finish};
use crate::recover::{Recoverable, recover};
use crate::{Compiled, OperatorTable, Options, Result, Watch};

/// Compiles a program again, without its source: its calls of backends become the operators that their payloads
/// compute, and backends take their parts anew ([`Options::delegation`]).
///
/// # Errors
/// The program cannot be brought back to operators ([`recover`]), or cannot be compiled.
pub fn retarget(
    source: &Recoverable<'_>,
    table: &OperatorTable,
    options: &Options,
    watch: Watch<'_>,
) -> Result<Compiled> {
    let mut programs = recover(source)?;
    choose(&mut programs, options)?;
    finish(programs, table, options, watch)
}
