//! Pooling.

use super::Table;
use super::When::{Always, NoKernel};
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, Size, TensorSpec, VarId, VarType};
use pteron_tensor::ScalarType;

pub(super) const RULES: Table = &[
    ("aten.max_pool1d", Always, pool_1d),
    ("aten.max_pool1d_with_indices", NoKernel, pool_1d),
    ("aten.max_pool2d", Always, max_pool2d),
    ("aten.avg_pool1d", NoKernel, pool_1d),
    ("aten.adaptive_avg_pool1d", Always, adaptive_avg_pool1d),
    ("aten.adaptive_avg_pool2d", Always, adaptive_avg_pool2d),
];

fn max_pool2d(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let spec = cx.result_spec(node)?;
    let new = max_pool(cx, node, x, spec)?;
    cx.replace_node(node, new)
}

/// Max pooling with the node's arguments; a list of one number applies to both dimensions.
fn max_pool(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId, spec: TensorSpec) -> Result<VarId> {
    let mut args = vec![("self", Argument::Var(x))];
    for name in ["kernel_size", "stride", "padding", "dilation"] {
        if let Some(list) = cx.ints(node, name)? {
            args.push((name, Argument::ints(&expand_to_pair(list))));
        }
    }
    args.push(("ceil_mode", Argument::Bool(cx.bool(node, "ceil_mode", false)?)));
    let spec = TensorSpec::contiguous(spec.dtype, spec.sizes);
    let places = TensorSpec { dtype: ScalarType::Long, ..spec.clone() };
    let types = vec![VarType::Tensor(spec), VarType::Tensor(places)];
    Ok(cx.emit_many("aten.max_pool2d_with_indices.default", args, types)[0])
}

fn expand_to_pair(list: Vec<i64>) -> Vec<i64> {
    if let [one] = list[..] { vec![one, one] } else { list }
}

/// A node's signals as images of one row, the spec of its result as images, and the row dimension.
fn signals_as_images(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<(VarId, TensorSpec, usize)> {
    let x = cx.tensor(node, "self")?;
    let rank = cx.spec(node, x)?.rank();
    let mut spec = cx.result_spec(node)?;
    if rank == 0 || spec.rank() != rank {
        return cx.fail(node, "it takes signals");
    }
    let wide = cx.unsqueeze(node, x, rank - 1)?;
    spec.sizes.insert(rank - 1, Size::Int(1));
    Ok((wide, spec, rank - 1))
}

/// Pools signals as images of one row.
fn pool_1d(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (wide, spec, row) = signals_as_images(cx, node)?;
    let is_max = node.target.starts_with("aten.max");
    let mut args = vec![("self", Argument::Var(wide))];
    for (name, of_row) in [("kernel_size", 1), ("stride", 1), ("padding", 0), ("dilation", 1)] {
        if let Some(&[size, ..]) = cx.ints(node, name)?.as_deref()
            && (is_max || name != "dilation")
        {
            args.push((name, Argument::ints(&[of_row, size])));
        }
    }
    args.push(("ceil_mode", Argument::Bool(cx.bool(node, "ceil_mode", false)?)));
    let spec = TensorSpec::contiguous(spec.dtype, spec.sizes);
    let pooled = match is_max {
        true => {
            let places = TensorSpec { dtype: ScalarType::Long, ..spec.clone() };
            let types = vec![VarType::Tensor(spec), VarType::Tensor(places)];
            cx.emit_many("aten.max_pool2d_with_indices.default", args, types)
        }
        false => {
            args.push(("count_include_pad", Argument::Bool(cx.bool(node, "count_include_pad", true)?)));
            vec![cx.emit("aten.avg_pool2d.default", args, spec)]
        }
    };
    for (&output, pooled) in node.outputs.iter().zip(pooled) {
        let narrow = cx.squeeze(node, pooled, row)?;
        cx.replace(output, narrow);
    }
    Ok(Outcome::Replaced)
}

fn adaptive_avg_pool1d(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (wide, spec, row) = signals_as_images(cx, node)?;
    let pooled = adaptive_avg_pool_images(cx, node, wide, spec)?;
    let new = cx.squeeze(node, pooled, row)?;
    cx.replace_node(node, new)
}

fn adaptive_avg_pool2d(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let spec = cx.result_spec(node)?;
    let new = adaptive_avg_pool_images(cx, node, x, spec)?;
    cx.replace_node(node, new)
}

pub(super) fn adaptive_avg_pool_images(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    x: VarId,
    want: TensorSpec,
) -> Result<VarId> {
    let rank = want.rank();
    if rank < 2 || cx.spec_of(x).rank() != rank {
        return cx.fail(node, "it takes images");
    }
    if want.sizes[rank - 2..] == [Size::Int(1), Size::Int(1)] {
        return Ok(cx.reduce("aten.mean.dim", x, &[rank - 2, rank - 1], true));
    }
    if even_windows(&cx.spec_of(x), &want).is_some() {
        return even_pool(cx, node, x, &want);
    }
    let size = cx.sizes_argument(node, &want.sizes[rank - 2..])?;
    let args = vec![("self", Argument::Var(x)), ("output_size", size)];
    Ok(cx.emit("aten._adaptive_avg_pool2d.default", args, TensorSpec::contiguous(want.dtype, want.sizes)))
}

/// The windows of an adaptive pooling whose output sizes divide its input sizes; `None` if they do not.
fn even_windows(have: &TensorSpec, want: &TensorSpec) -> Option<[i64; 2]> {
    let rank = want.rank();
    let mut windows = [1; 2];
    for (i, window) in windows.iter_mut().enumerate() {
        let (from, to) = (have.sizes[rank - 2 + i].known()?, want.sizes[rank - 2 + i].known()?);
        if to == 0 || from % to != 0 {
            return None;
        }
        *window = from / to;
    }
    Some(windows)
}

fn even_pool(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId, want: &TensorSpec) -> Result<VarId> {
    let Some(windows) = even_windows(&cx.spec_of(x), want) else {
        return cx.fail(node, "its output sizes do not divide those of its input");
    };
    let args = vec![
        ("self", Argument::Var(x)),
        ("kernel_size", Argument::ints(&windows)),
        ("stride", Argument::ints(&windows)),
    ];
    let spec = TensorSpec::contiguous(want.dtype, want.sizes.clone());
    Ok(cx.emit("aten.avg_pool2d.default", args, spec))
}
