//! Makes type promotion explicit, so that kernels get operands of one type.

use crate::Result;
use crate::dtypes::{dtype_of, result_type};
use crate::operators::OperatorTable;
use crate::rewrite::{Outcome, Rewriter};
use ir::exported::{Argument, ExportedNode, ExportedProgram};
use tensor::ScalarType;

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

pub(super) fn run(program: &mut ExportedProgram, _: &OperatorTable) -> Result<()> {
    Rewriter::run(program, &mut |cx, node| {
        let base = node.target.rsplit_once('.').map_or(&*node.target, |(base, _)| base);
        if PROMOTING.contains(&base) {
            return promoted(cx, node, base);
        }
        if OF_RESULT.contains(&base) {
            let want = cx.result(node)?.dtype;
            return with_operands(cx, node, want, &["self", "other"]);
        }
        Ok(Outcome::Kept)
    })
}

fn promoted(cx: &mut Rewriter<'_>, node: &ExportedNode, base: &str) -> Result<Outcome> {
    let operands = node.args.iter().filter(|(name, _)| matches!(&**name, "self" | "other" | "exponent"));
    let Some(mut dtype) = result_type(cx.program, operands.map(|(_, a)| a)) else { return Ok(Outcome::Kept) };
    let result = node.outputs.first().and_then(|&v| dtype_of(cx.program, v));
    // A true division of integers computes in the floating-point type that the exporter recorded.
    if base == "aten.div" && result.is_some_and(ScalarType::is_floating) && !dtype.is_floating() {
        dtype = result.unwrap_or(dtype);
    }
    with_operands(cx, node, dtype, &["self", "other", "exponent"])
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
