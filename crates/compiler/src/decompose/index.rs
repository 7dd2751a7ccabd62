//! Gathers, and indexed reads and writes.

use super::Table;
use super::When::{Always, NoKernel};
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, Size, TensorSpec};
use pteron_tensor::ScalarType;

pub(super) const RULES: Table = &[
    ("aten.gather", Always, gather),
    ("aten.take_along_dim", NoKernel, take_along_dim),
    ("aten.take", NoKernel, take),
    ("aten._unsafe_index", NoKernel, rewrite_unsafe_index),
    ("aten._unsafe_index_put", NoKernel, rewrite_unsafe_index),
    ("aten._index_put_impl", NoKernel, rewrite_unsafe_index),
    ("aten._unsafe_masked_index", NoKernel, masked_index),
    ("aten.index_copy", NoKernel, index_copy),
    ("aten.index_fill", NoKernel, index_copy),
];

fn take_along_dim(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, indices) = (cx.tensor(node, "self")?, cx.tensor(node, "indices")?);
    let Some(dim) = node.arg("dim").filter(|d| **d != Argument::None).cloned() else {
        return Ok(Outcome::Kept);
    };
    let want = cx.result_spec(node)?.sizes;
    let spec = cx.spec(node, x)?;
    let along = cx.int(node, "dim", 0)?;
    let along = cx.dim(node, along, spec.rank())?;
    let indices = cx.expand(node, indices, want.clone())?;
    let mut sizes = want;
    if let (Some(size), Some(own)) = (sizes.get_mut(along), spec.sizes.get(along)) {
        *size = own.clone();
    }
    let x = cx.expand(node, x, sizes)?;
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

fn rewrite_unsafe_index(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let mut plain = node.clone();
    plain.target = match &*node.target {
        t if t.starts_with("aten._unsafe_index.") => "aten.index.Tensor".into(),
        _ => "aten.index_put.default".into(),
    };
    plain.args.retain(|(name, _)| &**name != "unsafe");
    cx.push_node(plain);
    Ok(Outcome::Replaced)
}

/// The indexed elements where the mask is true, and `fill` elsewhere. Indices may be out of bounds where the mask is
/// false, so they are clamped.
fn masked_index(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, mask) = (cx.tensor(node, "self")?, cx.tensor(node, "mask")?);
    let (spec, want) = (cx.spec(node, x)?, cx.result_spec(node)?);
    let indices = match node.arg("indices") {
        Some(Argument::OptionalVars(list)) => list.clone(),
        Some(Argument::Vars(list)) => list.iter().copied().map(Some).collect(),
        _ => return cx.fail(node, "its indices are no list of tensors"),
    };
    let mut within = Vec::with_capacity(indices.len());
    for (dim, index) in indices.into_iter().enumerate() {
        let Some(index) = index else {
            within.push(None);
            continue;
        };
        let Some(size) = spec.sizes.get(dim).and_then(Size::known) else {
            return cx.fail(node, format!("the size of dimension {dim} is not known"));
        };
        let args = vec![
            ("self", Argument::Var(index)),
            ("min", Argument::Int(0)),
            ("max", Argument::Int((size - 1).max(0))),
        ];
        let like = cx.spec_of(index);
        within.push(Some(cx.emit("aten.clamp.default", args, like)));
    }
    let args = vec![("self", Argument::Var(x)), ("indices", Argument::OptionalVars(within))];
    let gathered = cx.emit("aten.index.Tensor", args, TensorSpec::contiguous(want.dtype, want.sizes));
    let fill = match node.arg("fill") {
        Some(Argument::Float(v)) => pteron_tensor::Scalar::Double(*v),
        Some(Argument::Int(v)) => pteron_tensor::Scalar::Int(*v),
        Some(Argument::Bool(v)) => pteron_tensor::Scalar::Bool(*v),
        _ => return cx.fail(node, "what it fills is not known"),
    };
    let fill = cx.scalar(fill, want.dtype)?;
    let new = cx.choose(mask, gathered, fill);
    cx.replace_node(node, new)
}

/// `index_copy` and `index_fill` as `index_put`, with `None` for the dimensions before `dim`.
fn index_copy(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, index) = (cx.tensor(node, "self")?, cx.tensor(node, "index")?);
    let spec = cx.spec(node, x)?;
    let dim = cx.int(node, "dim", 0)?;
    let dim = cx.dim(node, dim, spec.rank())?;
    let x = if spec.rank() == 0 { cx.view(node, x, vec![Size::Int(1)])? } else { x };
    let values = match node.arg("value").or(node.arg("source")) {
        Some(&Argument::Var(v)) => v,
        Some(Argument::Float(v)) => cx.scalar(pteron_tensor::Scalar::Double(*v), spec.dtype)?,
        Some(Argument::Int(v)) => cx.scalar(pteron_tensor::Scalar::Int(*v), spec.dtype)?,
        _ => return cx.fail(node, "it writes no values that are known"),
    };
    let mut indices = vec![None; dim];
    indices.push(Some(index));
    // With slices before and after it, a single index tensor keeps its dimension's position in the result.
    let values =
        if cx.spec_of(values).sizes == [Size::Int(1)] { cx.view(node, values, Vec::new())? } else { values };
    let args = vec![
        ("self", Argument::Var(x)),
        ("indices", Argument::OptionalVars(indices)),
        ("values", Argument::Var(values)),
    ];
    if spec.rank() > 0 {
        return Ok(cx.retarget(node, "aten.index_put.default", args));
    }
    let row = TensorSpec::contiguous(spec.dtype, vec![Size::Int(1)]);
    let row = cx.emit("aten.index_put.default", args, row);
    let new = cx.view(node, row, Vec::new())?;
    cx.replace_node(node, new)
}

/// Casts the index to int64, the only index type that the kernels take.
fn gather(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, index) = (cx.tensor(node, "self")?, cx.tensor(node, "index")?);
    if cx.spec(node, index)?.dtype == ScalarType::Long {
        return Ok(Outcome::Kept);
    }
    let index = cx.cast(index, ScalarType::Long);
    let dim = Argument::Int(cx.int(node, "dim", 0)?);
    let args = vec![("self", Argument::Var(x)), ("dim", dim), ("index", Argument::Var(index))];
    Ok(cx.retarget(node, "aten.gather.default", args))
}
