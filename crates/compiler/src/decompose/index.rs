//! Indices, sorting, and where values are written.

use super::Table;
use super::When::NoKernel;
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use ir::exported::{Argument, ExportedNode, Size, TensorSpec, VarId, VarType};
use tensor::ScalarType;

pub(super) const RULES: Table = &[
    ("aten.sort", NoKernel, sort),
    ("aten.argsort", NoKernel, argsort),
    ("aten.bucketize", NoKernel, bucketize),
    ("aten.searchsorted", NoKernel, bucketize),
    ("aten.take_along_dim", NoKernel, take_along_dim),
    ("aten.take", NoKernel, take),
    ("aten._unsafe_index", NoKernel, plain_index),
    ("aten._unsafe_index_put", NoKernel, plain_index),
    ("aten._index_put_impl", NoKernel, plain_index),
    ("aten.index_copy", NoKernel, index_copy),
    ("aten.index_fill", NoKernel, index_copy),
];

/// All the largest, or all the smallest, in order.
fn sorted(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<(VarId, VarId)> {
    let x = cx.tensor(node, "self")?;
    let spec = cx.spec(node, x)?;
    let dim = cx.int(node, "dim", -1)?;
    let axis = cx.dim(node, dim, spec.rank())?;
    let count = match spec.sizes.get(axis) {
        Some(size) => crate::operators::int_argument(cx.size(node, &size.clone())?),
        None => return cx.wrong(node, "it sorts a tensor without dimensions"),
    };
    let args = vec![
        ("self", Argument::Var(x)),
        ("k", count),
        ("dim", Argument::Int(dim)),
        ("largest", Argument::Bool(cx.bool(node, "descending", false)?)),
        ("sorted", Argument::Bool(true)),
    ];
    let values = TensorSpec::contiguous(spec.dtype, spec.sizes);
    let places = TensorSpec { dtype: ScalarType::Long, ..values.clone() };
    let outs =
        cx.emit_many("aten.topk.default", args, vec![VarType::Tensor(values), VarType::Tensor(places)]);
    Ok((outs[0], outs[1]))
}

fn sort(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (values, places) = sorted(cx, node)?;
    if let Some(&second) = node.outputs.get(1) {
        cx.replace(second, places);
    }
    cx.done(node, values)
}

fn argsort(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (_, places) = sorted(cx, node)?;
    cx.done(node, places)
}

/// How many boundaries lie before each number.
fn bucketize(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, edges) = match node.target.starts_with("aten.bucketize") {
        true => (cx.tensor(node, "self")?, cx.tensor(node, "boundaries")?),
        false => (cx.tensor(node, "self")?, cx.tensor(node, "sorted_sequence")?),
    };
    let rank = cx.spec(node, x)?.rank();
    if cx.spec(node, edges)?.rank() != 1 {
        return Ok(Outcome::Kept);
    }
    let wide = cx.unsqueeze(node, x, rank)?;
    let target = if cx.bool(node, "right", false)? { "aten.ge.Tensor" } else { "aten.gt.Tensor" };
    let before = cx.compare(target, wide, edges);
    let ones = cx.cast(before, ScalarType::Long);
    let count = cx.reduce("aten.sum.dim_IntList", ones, &[rank], false);
    let want = cx.result(node)?.dtype;
    let new = cx.cast(count, want);
    cx.done(node, new)
}

fn take_along_dim(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, indices) = (cx.tensor(node, "self")?, cx.tensor(node, "indices")?);
    let Some(dim) = node.arg("dim").filter(|d| **d != Argument::None).cloned() else {
        return Ok(Outcome::Kept);
    };
    let want = cx.result(node)?.sizes;
    let indices = cx.expand(node, indices, want)?;
    let args = vec![("self", Argument::Var(x)), ("dim", dim), ("index", Argument::Var(indices))];
    Ok(cx.retarget(node, "aten.gather.default", args))
}

fn take(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, index) = (cx.tensor(node, "self")?, cx.tensor(node, "index")?);
    let count = cx.spec(node, x)?.numel();
    let flat = cx.view(node, x, vec![count])?;
    let args = vec![("self", Argument::Var(flat)), ("indices", Argument::OptionalVars(vec![Some(index)]))];
    Ok(cx.retarget(node, "aten.index.Tensor", args))
}

fn plain_index(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let mut plain = node.clone();
    plain.target = match &*node.target {
        t if t.starts_with("aten._unsafe_index.") => "aten.index.Tensor".into(),
        _ => "aten.index_put.default".into(),
    };
    plain.args.retain(|(name, _)| &**name != "unsafe");
    cx.put(plain);
    Ok(Outcome::Replaced)
}

/// Rows written at indices: `index_put` with the dimension in front.
fn index_copy(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, index) = (cx.tensor(node, "self")?, cx.tensor(node, "index")?);
    let spec = cx.spec(node, x)?;
    let dim = cx.int(node, "dim", 0)?;
    let dim = cx.dim(node, dim, spec.rank())?;
    let values = match node.arg("value").or(node.arg("source")) {
        Some(&Argument::Var(v)) => v,
        Some(Argument::Float(v)) => cx.number(tensor::Scalar::Double(*v), spec.dtype)?,
        Some(Argument::Int(v)) => cx.number(tensor::Scalar::Int(*v), spec.dtype)?,
        _ => return cx.wrong(node, "it writes no values that are known"),
    };
    let mut indices = vec![None; dim];
    indices.push(Some(index));
    // Between whole dimensions the indices stay where they are.
    let values =
        if cx.of(values).sizes == [Size::Int(1)] { cx.view(node, values, Vec::new())? } else { values };
    let args = vec![
        ("self", Argument::Var(x)),
        ("indices", Argument::OptionalVars(indices)),
        ("values", Argument::Var(values)),
    ];
    Ok(cx.retarget(node, "aten.index_put.default", args))
}
