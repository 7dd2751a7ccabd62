//! The pass pipeline that brings a program to the form that can be emitted.

mod bind;
mod bounds;
mod dead;
mod fold;
mod folded;
pub(crate) mod functionalize;
mod inline;
mod layouts;
mod norms;
pub(crate) mod products;
mod promote;
#[cfg(test)]
mod tests;
mod vmap;

pub(crate) use layouts::call_meaning;

use crate::operators::OperatorTable;
use crate::{Error, Result, decompose};
use pteron_exported::ExportedProgram;
use pteron_operator::did_you_mean;

type Pass = fn(&mut ExportedProgram, &OperatorTable) -> Result<()>;

/// The passes and their names, in the order in which they run.
pub(crate) const PASSES: &[(&str, Pass)] = &[
    ("inline", |program, _| inline::run(program)),
    ("bind", |program, _| bind::run(program)),
    ("vmap", |program, _| vmap::run(program)),
    ("bound-sizes", |program, _| bounds::run(program)),
    ("views", decompose::rewrite_views),
    ("functionalize", |program, _| functionalize::run(program)),
    ("remove-unused", |program, _| dead::run(program)),
    ("decompose", decompose::run),
    ("promote", promote::run),
    ("remove-dead", |program, _| dead::run(program)),
    ("layouts", layouts::run),
    ("fold", fold::run),
    ("remove-folded", |program, _| dead::run(program)),
    ("products", |program, _| products::to_linear(program, products::Weights::Dequantized)),
];

/// The pass that folds batch norms, for programs that are quantized statically, delegated or whose weights are stored in
/// fewer bits, and the pass after which
/// it runs. After later passes, changes of layout would separate norms from their convolutions.
const FOLD_NORMS: &str = "fold-norms";
const BEFORE_NORMS: &str = "remove-dead";

/// The pass name reported after quantization.
pub(crate) const QUANTIZE: &str = "quantize";

/// The pass name reported after each backend has taken its parts.
pub(crate) const DELEGATE: &str = "delegate";

/// The pass name reported after weights were stored in fewer bits.
pub(crate) const WEIGHTS: &str = "weights";

/// What the quantizer and the backends, which run after the passes, prefer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Preferences {
    /// Batch norms should be folded into convolutions.
    pub(crate) folded_norms: bool,
    /// Images should be channels-last.
    pub(crate) channels_last: bool,
}

/// Runs all passes, and calls `watch` after each. If the program may call every operator but cannot be brought to a
/// form that prefers those of the reference runtime, the passes run again for all operators: a portable form is not
/// always a matter of one node, e.g. if complex numbers become pairs of real ones.
pub(crate) fn run(
    program: &mut ExportedProgram,
    table: &OperatorTable,
    preferences: Preferences,
    watch: &mut dyn FnMut(&str, &ExportedProgram),
) -> Result<()> {
    let Some(all) = table.fallback() else { return run_once(program, table, preferences, watch) };
    let (before, charged) = (program.clone(), program.budget.num_charged());
    let portable = run_once(program, table, preferences, watch).and_then(|()| Ok(program.verify()?));
    portable.or_else(|_| {
        *program = before;
        program.budget.release_after(charged);
        run_once(program, &all, preferences, watch)
    })
}

fn run_once(
    program: &mut ExportedProgram,
    table: &OperatorTable,
    preferences: Preferences,
    watch: &mut dyn FnMut(&str, &ExportedProgram),
) -> Result<()> {
    watch("read", program);
    for (name, pass) in PASSES {
        pass(program, table)?;
        if cfg!(debug_assertions) {
            program.verify()?;
        }
        watch(name, program);
        if preferences.folded_norms && *name == BEFORE_NORMS {
            norms::fold_norms(program);
            watch(FOLD_NORMS, program);
        }
        if preferences.channels_last && *name == BEFORE_NORMS {
            layouts::prefer_channels_last(program, table)?;
        }
    }
    Ok(())
}

/// All pass names that are reported during compilation.
pub fn pass_names() -> impl Iterator<Item = &'static str> {
    let after = |name: &'static str| (name == BEFORE_NORMS).then_some(FOLD_NORMS);
    let passes = PASSES.iter().flat_map(move |(name, _)| std::iter::once(*name).chain(after(name)));
    std::iter::once("read").chain(passes).chain([QUANTIZE, DELEGATE, WEIGHTS])
}

/// Checks that a pass of this name exists.
///
/// # Errors
/// There is no such pass; the error suggests similar names and lists all.
pub fn expect_pass(name: &str) -> Result<()> {
    if pass_names().any(|n| n == name) {
        return Ok(());
    }
    let all: Vec<&str> = pass_names().collect();
    let like = did_you_mean(name, pass_names());
    Err(Error::Option(format!("`{name}` is no pass{like}; the passes are {}", all.join(", "))))
}
