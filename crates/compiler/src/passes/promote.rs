//! Makes type promotion explicit, so that kernels get operands of one type.

use crate::Result;
use crate::dtypes::dtype_of;
use crate::operators::OperatorTable;
use crate::promotion::{CAST, promoted_type};
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, ExportedProgram};
use pteron_tensor::ScalarType;

/// Operators that write `src` into a part of their operand.
const INTO_OPERAND: &[&str] = &["aten.slice_scatter", "aten.select_scatter", "aten.diagonal_scatter"];

pub(super) fn run(program: &mut ExportedProgram, _: &OperatorTable) -> Result<()> {
    Rewriter::run(program, &mut |cx, node| {
        let base = node.target.rsplit_once('.').map_or(&*node.target, |(base, _)| base);
        if INTO_OPERAND.contains(&base) {
            let dtype = cx.result_spec(node)?.dtype;
            return cast_operands(cx, node, dtype, &["src"]);
        }
        match promoted_type(cx.program, node) {
            Some(dtype) => cast_operands(cx, node, dtype, CAST),
            None => Ok(Outcome::Kept),
        }
    })
}

/// Casts the named tensor operands to `dtype` if they have another type.
fn cast_operands(
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
    cx.push_node(fresh);
    Ok(Outcome::Replaced)
}
