//! Makes type promotion explicit, so that kernels get operands of one type.

use crate::Result;
use crate::dtypes::{dtype_of, result_type};
use crate::operators::OperatorTable;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, ExportedProgram};
use pteron_tensor::ScalarType;

/// Binary operators that compute in the promoted type of their operands.
const PROMOTING: &[&str] = &[
    "aten.add",
    "aten.sub",
    "aten.mul",
    "aten.div",
    "aten.maximum",
    "aten.minimum",
    "aten.remainder",
    "aten.fmod",
    "aten.pow",
    "aten.floor_divide",
    "aten.atan2",
    "aten.eq",
    "aten.ne",
    "aten.lt",
    "aten.le",
    "aten.gt",
    "aten.ge",
    "aten.bitwise_and",
    "aten.bitwise_or",
    "aten.bitwise_xor",
    "aten.rsub",
];

/// Operators whose operands are cast to the type of the result.
const OF_RESULT: &[&str] = &["aten.where"];

/// Operators that write `src` into a part of their operand.
const INTO_OPERAND: &[&str] = &["aten.slice_scatter", "aten.select_scatter", "aten.diagonal_scatter"];

/// Operands that are cast.
const CAST: &[&str] = &["self", "other", "exponent"];

pub(super) fn run(program: &mut ExportedProgram, _: &OperatorTable) -> Result<()> {
    Rewriter::run(program, &mut |cx, node| {
        let base = node.target.rsplit_once('.').map_or(&*node.target, |(base, _)| base);
        if INTO_OPERAND.contains(&base) {
            let dtype = cx.result(node)?.dtype;
            return with_operands(cx, node, dtype, &["src"]);
        }
        match promoted_type(cx.program, node) {
            Some(dtype) => with_operands(cx, node, dtype, CAST),
            None => Ok(Outcome::Kept),
        }
    })
}

/// Whether [`promoted_type`] applies to an operand of this name.
pub(crate) fn is_cast(operand: &str) -> bool {
    CAST.contains(&operand)
}

/// The type to which this pass casts the operands of a node, if it does.
pub(crate) fn promoted_type(program: &ExportedProgram, node: &ExportedNode) -> Option<ScalarType> {
    let base = node.target.rsplit_once('.').map_or(&*node.target, |(base, _)| base);
    let result = node.outputs.first().and_then(|&v| dtype_of(program, v));
    if OF_RESULT.contains(&base) {
        return result;
    }
    if !PROMOTING.contains(&base) {
        return None;
    }
    let operands = node.args.iter().filter(|(name, _)| is_cast(name));
    let dtype = result_type(program, operands.map(|(_, a)| a))?;
    // A true division of integers computes in the floating-point type that the exporter recorded.
    match result {
        Some(result) if base == "aten.div" && result.is_floating() && !dtype.is_floating() => Some(result),
        _ => Some(dtype),
    }
}

/// Casts the named tensor operands that have another type.
fn with_operands(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    dtype: ScalarType,
    names: &[&str],
) -> Result<Outcome> {
    let mut fresh = node.clone();
    let mut changed = false;
    for (name, arg) in &mut fresh.args {
        let Argument::Var(v) = *arg else { continue };
        if names.contains(&&**name) && dtype_of(cx.program, v).is_some_and(|d| d != dtype) {
            *arg = Argument::Var(cx.cast(v, dtype));
            changed = true;
        }
    }
    if !changed {
        return Ok(Outcome::Kept);
    }
    cx.put(fresh);
    Ok(Outcome::Replaced)
}
