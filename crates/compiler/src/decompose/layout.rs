//! Copies, casts and layout conversions; identities and checks, which are removed.

use super::When::Always;
use super::{Rule, Table};
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, MemoryFormat, TensorSpec};
use pteron_tensor::DimOrder;

/// Operators whose result is an alias of their operand.
pub(super) const ALIASES: Table = &[
    ("aten.detach", Always, identity as Rule),
    ("aten.alias", Always, identity),
    ("aten.resolve_conj", Always, identity),
    ("aten.resolve_neg", Always, identity),
];

pub(super) const RULES: Table = &[
    ("aten.to", Always, copy),
    ("aten._to_copy", Always, copy),
    ("aten.type_as", Always, copy),
    ("aten.float", Always, copy),
    ("aten.clone", Always, copy),
    ("aten.contiguous", Always, copy),
    ("aten.lift_fresh_copy", Always, identity),
    ("aten.lift_fresh", Always, identity),
    ("aten.lift", Always, identity),
    ("aten.detach_copy", Always, identity),
    ("aten.alias_copy", Always, identity),
    ("aten.positive", Always, identity),
    ("aten.fill", Always, fill),
    ("aten.copy", Always, copy_from),
    ("aten.dropout", Always, dropout),
    ("aten.feature_dropout", Always, dropout),
    ("aten.alpha_dropout", Always, dropout),
    ("aten.feature_alpha_dropout", Always, dropout),
    ("aten.native_dropout", Always, native_dropout),
    ("aten._assert_tensor_metadata", Always, remove_check),
    ("aten._assert_scalar", Always, remove_check),
    ("aten._assert_async", Always, remove_check),
    ("aten.sym_constrain_range", Always, remove_check),
    ("aten.sym_constrain_range_for_size", Always, remove_check),
];

/// Removes a check: a program that would pass it computes the same without it.
fn remove_check(_: &mut Rewriter<'_>, _: &ExportedNode) -> Result<Outcome> {
    Ok(Outcome::Replaced)
}

fn identity(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    cx.replace_node(node, x)
}

/// A copy in another dtype or memory format; the operand itself if neither changes.
fn copy(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let (have, mut want) = (cx.spec(node, x)?, cx.result_spec(node)?);
    let asked =
        node.args.iter().find_map(|(_, a)| if let Argument::MemoryFormat(f) = a { Some(*f) } else { None });
    let default = if node.target.starts_with("aten.contiguous") {
        MemoryFormat::Contiguous
    } else {
        MemoryFormat::Preserve
    };
    want.dim_order = dim_order_of(asked.unwrap_or(default), &have);
    let same = have.dtype == want.dtype && is_same_order(&have, &want.dim_order);
    if same {
        return cx.replace_node(node, x);
    }
    let new = convert(cx, x, want);
    cx.replace_node(node, new)
}

/// The elements of `x` in the dtype and dim order of `want`.
pub(crate) fn convert(
    cx: &mut Rewriter<'_>,
    x: pteron_exported::VarId,
    want: TensorSpec,
) -> pteron_exported::VarId {
    let dims: Vec<i64> = want.dim_order.iter().map(|&d| i64::from(d)).collect();
    let args = vec![("self", Argument::Var(x)), ("dim_order", Argument::ints(&dims))];
    cx.emit("dim_order_ops._to_dim_order_copy.default", args, want)
}

fn dim_order_of(format: MemoryFormat, have: &TensorSpec) -> DimOrder {
    match format {
        MemoryFormat::Contiguous => DimOrder::contiguous(have.rank()),
        MemoryFormat::ChannelsLast | MemoryFormat::ChannelsLast3d => DimOrder::channels_last(have.rank()),
        MemoryFormat::Preserve => have.dim_order,
    }
}

fn is_same_order(have: &TensorSpec, order: &DimOrder) -> bool {
    let sizes: Option<Vec<usize>> =
        have.sizes.iter().map(|s| s.known().and_then(|v| usize::try_from(v).ok())).collect();
    have.dim_order == *order || sizes.is_some_and(|sizes| have.dim_order.same_layout(order, &sizes))
}

/// Dropout, which is the identity in inference.
fn dropout(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    if cx.bool(node, "train", false)? && cx.float(node, "p", 0.0)? > 0.0 {
        return cx.fail(node, "a dropout of training: export the model after `model.eval()`");
    }
    let x = cx.tensor(node, "input")?;
    cx.replace_node(node, x)
}

fn native_dropout(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    if cx.bool(node, "train", false)? {
        return Ok(Outcome::Kept);
    }
    let x = cx.tensor(node, "input")?;
    let sizes = cx.spec(node, x)?.sizes;
    if let Some(&mask) = node.outputs.get(1) {
        let ones = cx.full(node, sizes, Argument::Bool(true), pteron_tensor::ScalarType::Bool)?;
        cx.replace(mask, ones);
    }
    cx.replace_node(node, x)
}

/// Fills a tensor with a scalar or with the element of a 0-d tensor.
fn fill(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let spec = cx.result_spec(node)?;
    match node.arg("value") {
        Some(Argument::Var(v)) if cx.program.spec(*v).is_some() => {
            let value = cx.cast(*v, spec.dtype);
            let new = cx.expand(node, value, spec.sizes)?;
            cx.replace_node(node, new)
        }
        Some(value) => {
            let value = value.clone();
            let new = cx.full(node, spec.sizes, value, spec.dtype)?;
            cx.replace_node(node, new)
        }
        None => cx.fail(node, "it has no `value`"),
    }
}

/// Functionalized `copy_`: the source, cast and broadcast to the target's dtype and sizes.
fn copy_from(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (src, spec) = (cx.tensor(node, "src")?, cx.result_spec(node)?);
    let cast = cx.cast(src, spec.dtype);
    let new = cx.expand(node, cast, spec.sizes)?;
    cx.replace_node(node, new)
}
