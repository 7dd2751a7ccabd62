//! Recompiles a program for other backends.

use crate::compile::{lower_and_emit, select_methods};
use crate::recover::{Recoverable, recover};
use crate::{Compiled, OperatorTable, Options, Result, Watch};
use pteron_exported::CompileBudget;

/// Recompiles a program without its source: delegate calls are lifted to the operators that their payloads compute, and
/// backends take their parts anew ([`Options::delegation`]). Segments and constants are aligned as in the program,
/// unless the options say otherwise.
///
/// # Errors
/// The program cannot be lifted to operators ([`recover`]), or cannot be compiled.
pub fn retarget(
    source: &Recoverable<'_>,
    table: &OperatorTable,
    options: &Options,
    watch: Watch<'_>,
) -> Result<Compiled> {
    let mut programs = recover(source, &CompileBudget::new(options.memory))?;
    select_methods(&mut programs, options)?;
    let alignments = (source.program.segment_alignment(), source.program.constant_alignment());
    let options = Options {
        task: options.task.clone().map_or_else(|| source.task(), |task| Ok(Some(task)))?,
        segment_alignment: options.segment_alignment.or(Some(alignments.0)),
        constant_alignment: options.constant_alignment.or(Some(alignments.1)),
        ..options.clone()
    };
    lower_and_emit(programs, table, &options, watch)
}
