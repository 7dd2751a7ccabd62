//! Views, slices, splits and concatenations, in the canonical forms that later passes expect: `view`, `permute`,
//! `expand`, `slice`, `select`, `cat`.

use super::Table;
use super::When::{Always, NoKernel};
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, Size, SymOp, VarId};

/// Operators whose results alias their operand.
pub(super) const VIEWS: Table = &[
    ("aten.view", Always, view),
    ("aten._unsafe_view", Always, view),
    ("aten.reshape", Always, view),
    ("aten.reshape_as", Always, view),
    ("aten._reshape_alias", Always, view),
    ("aten.view_as", Always, view),
    ("aten.flatten", Always, view),
    ("aten.unflatten", Always, view),
    ("aten.ravel", Always, view),
    ("aten.squeeze", Always, view),
    ("aten.unsqueeze", Always, view),
    ("aten.atleast_1d", Always, atleast_nd),
    ("aten.atleast_2d", Always, atleast_nd),
    ("aten.atleast_3d", Always, atleast_nd),
    ("aten.real", Always, real),
    ("aten.transpose", Always, transpose),
    ("aten.swapaxes", Always, transpose),
    ("aten.swapdims", Always, transpose),
    ("aten.t", Always, reverse_dims),
    ("aten.numpy_T", Always, reverse_dims),
    ("aten.mT", Always, matrix_transpose),
    ("aten.adjoint", Always, adjoint),
    ("aten.mH", Always, adjoint),
    ("aten.matrix_H", Always, adjoint),
    ("aten.movedim", Always, movedim),
    ("aten.moveaxis", Always, movedim),
    ("aten.permute", Always, permute),
    ("aten.expand", Always, expand),
    ("aten.expand_as", Always, expand),
    ("aten.broadcast_to", Always, expand),
    ("aten.slice", Always, slice),
    ("aten.narrow", Always, narrow),
    ("aten.chunk", Always, split),
    ("aten.split", Always, split),
    ("aten.split_with_sizes", Always, split),
    ("aten.unsafe_split", Always, split),
    ("aten.unsafe_chunk", Always, split),
    ("aten.tensor_split", Always, split),
    ("aten.hsplit", Always, split_along),
    ("aten.vsplit", Always, split_along),
    ("aten.dsplit", Always, split_along),
    ("aten.unbind", Always, unbind),
    ("aten.broadcast_tensors", Always, broadcast_tensors),
];

pub(super) const RULES: Table = &[
    ("aten.view_copy", Always, view),
    ("aten.squeeze_copy", Always, view),
    ("aten.unsqueeze_copy", Always, view),
    ("aten.transpose_copy", Always, transpose),
    ("aten.t_copy", Always, reverse_dims),
    ("aten.permute_copy", Always, permute),
    ("aten.expand_copy", Always, expand),
    ("aten.slice_copy", Always, slice),
    ("aten.narrow_copy", Always, narrow),
    ("aten.split_copy", Always, split),
    ("aten.split_with_sizes_copy", Always, split),
    ("aten.unbind_copy", Always, unbind),
    ("aten.stack", Always, stack),
    ("aten.concat", Always, cat),
    ("aten.concatenate", Always, cat),
    ("aten.hstack", Always, hstack),
    ("aten.vstack", Always, vstack),
    ("aten.dstack", Always, dstack),
    ("aten.column_stack", Always, column_stack),
    ("aten.row_stack", Always, vstack),
    ("aten.cat", Always, normalize_cat),
    ("aten.rot90", Always, rot90),
    ("aten.argwhere", Always, argwhere),
    ("aten.tile", Always, tile),
    ("aten.repeat", Always, repeat),
    ("aten.repeat_interleave", Always, repeat_interleave),
    ("aten.channel_shuffle", NoKernel, channel_shuffle),
    ("aten.roll", NoKernel, roll),
    ("aten.fliplr", Always, fliplr_or_flipud),
    ("aten.flipud", Always, fliplr_or_flipud),
    ("aten.meshgrid", Always, meshgrid),
];

/// Reshapes the elements, in row-major order, to the sizes of the result.
fn view(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let (have, want) = (cx.spec(node, x)?, cx.result_spec(node)?);
    if have.dtype != want.dtype {
        // The bytes as elements of another type.
        return Ok(Outcome::Kept);
    }
    if have.sizes == want.sizes && have.dim_order == want.dim_order {
        return cx.replace_node(node, x);
    }
    if &*node.target == "aten.view.default" && have.dim_order.is_contiguous() && node.arg("size").is_some() {
        return Ok(Outcome::Kept);
    }
    let rows = match have.dim_order.is_contiguous() {
        true => x,
        false => {
            let order = pteron_tensor::DimOrder::contiguous(have.rank());
            super::layout::convert(cx, x, pteron_exported::TensorSpec { dim_order: order, ..have.clone() })
        }
    };
    let size = cx.view_sizes_argument(node, &want.sizes)?;
    let args = vec![("self", Argument::Var(rows)), ("size", size)];
    if let pteron_exported::VarType::Tensor(spec) = &mut cx.program.var_mut(node.outputs[0]).ty {
        spec.dim_order = pteron_tensor::DimOrder::contiguous(want.rank());
    }
    Ok(cx.retarget(node, "aten.view.default", args))
}

/// Adds dimensions of size 1 to one tensor, or to each tensor of a list.
fn atleast_nd(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let tensors = match cx.optional_tensor(node, "self") {
        Some(x) => vec![x],
        None => cx.tensors(node, "tensors")?,
    };
    for (&t, &output) in tensors.iter().zip(&node.outputs) {
        let want = cx.spec(node, output)?.sizes;
        let new = cx.view(node, t, want)?;
        cx.replace(output, new);
    }
    Ok(Outcome::Replaced)
}

fn real(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let new = if cx.spec(node, x)?.dtype.is_complex() { super::spectral::real_or_imag(cx, x, 0) } else { x };
    cx.replace_node(node, new)
}

fn replace_by_permute(cx: &mut Rewriter<'_>, node: &ExportedNode, dims: &[usize]) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let new = cx.permute(x, dims);
    cx.replace_node(node, new)
}

fn transpose(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let rank = cx.spec(node, x)?.rank();
    let first = |a, b| if node.arg(a).is_some() { a } else { b };
    let a = cx.int(node, first("dim0", "axis0"), 0)?;
    let b = cx.int(node, first("dim1", "axis1"), 0)?;
    let (a, b) = (cx.dim(node, a, rank)?, cx.dim(node, b, rank)?);
    let mut dims: Vec<usize> = (0..rank).collect();
    if rank > 0 {
        dims.swap(a, b);
    }
    replace_by_permute(cx, node, &dims)
}

fn reverse_dims(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let dims: Vec<usize> = (0..cx.spec(node, x)?.rank()).rev().collect();
    replace_by_permute(cx, node, &dims)
}

fn matrix_transpose(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let rank = cx.spec(node, x)?.rank();
    let mut dims: Vec<usize> = (0..rank).collect();
    if rank >= 2 {
        dims.swap(rank - 1, rank - 2);
    }
    replace_by_permute(cx, node, &dims)
}

/// The conjugate transpose.
fn adjoint(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let spec = cx.spec(node, x)?;
    if !spec.dtype.is_complex() {
        return matrix_transpose(cx, node);
    }
    let conjugate = cx.unary("aten._conj_physical.default", x);
    let new = cx.transpose(conjugate);
    cx.replace_node(node, new)
}

fn movedim(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let rank = cx.spec(node, x)?.rank();
    if rank == 0 {
        return cx.replace_node(node, x);
    }
    let (from, to) = (cx.dims(node, "source", rank)?, cx.dims(node, "destination", rank)?);
    if from.len() != to.len() {
        return cx.fail(node, "it moves other dimensions than it names places for");
    }
    let mut dims: Vec<Option<usize>> = vec![None; rank];
    for (&f, &t) in from.iter().zip(&to) {
        dims[t] = Some(f);
    }
    let mut rest = (0..rank).filter(|d| !from.contains(d));
    let dims: Vec<usize> = dims.into_iter().filter_map(|d| d.or_else(|| rest.next())).collect();
    replace_by_permute(cx, node, &dims)
}

fn permute(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let rank = cx.spec(node, x)?.rank();
    let dims = cx.dims(node, "dims", rank)?;
    if dims.iter().enumerate().all(|(i, &d)| i == d) {
        return cx.replace_node(node, x);
    }
    if &*node.target == "aten.permute.default" {
        return Ok(Outcome::Kept);
    }
    replace_by_permute(cx, node, &dims)
}

fn expand(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let (have, want) = (cx.spec(node, x)?, cx.result_spec(node)?);
    if have.sizes == want.sizes {
        return cx.replace_node(node, x);
    }
    if &*node.target == "aten.expand.default" && node.arg("implicit").is_none() {
        return Ok(Outcome::Kept);
    }
    let new = cx.expand(node, x, want.sizes)?;
    cx.replace_node(node, new)
}

/// Removes a slice that takes all elements.
fn slice(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let (have, want) = (cx.spec(node, x)?, cx.result_spec(node)?);
    let is_step = !matches!(node.arg("step"), None | Some(Argument::Int(1)));
    if have.sizes == want.sizes && !is_step {
        return cx.replace_node(node, x);
    }
    Ok(Outcome::Kept)
}

fn narrow(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let spec = cx.spec(node, x)?;
    let dim = cx.int(node, "dim", 0)?;
    let dim = cx.dim(node, dim, spec.rank())?;
    let amount = |cx: &Rewriter<'_>, name: &str| -> Result<Size> {
        match node.arg(name) {
            Some(Argument::Int(v)) => Ok(Size::Int(*v)),
            Some(Argument::Var(v)) => match &cx.program.var(*v).ty {
                pteron_exported::VarType::Int(size) => Ok(size.clone()),
                _ => cx.fail(node, format!("`{name}` is no integer")),
            },
            _ => cx.fail(node, format!("it has no `{name}`")),
        }
    };
    let (mut start, length) = (amount(cx, "start")?, amount(cx, "length")?);
    if start.known().is_some_and(|s| s < 0) {
        start = start.add(spec.sizes.get(dim).unwrap_or(&Size::Int(0)));
    }
    let end = start.add(&length);
    let new = cx.slice(node, x, dim, (&start, &end))?;
    cx.replace_node(node, new)
}

/// Splits into slices that have the sizes of the results.
fn split(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let dim = cx.int(node, "dim", 0)?;
    let dim = cx.dim(node, dim, cx.spec(node, x)?.rank())?;
    split_dim(cx, node, x, dim)
}

/// `hsplit`, `vsplit` and `dsplit`: splits along the dimension that the operator's name implies.
fn split_along(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let rank = cx.spec(node, x)?.rank();
    let dim = match &*node.target {
        t if t.starts_with("aten.vsplit") => 0,
        t if t.starts_with("aten.dsplit") => 2,
        _ => usize::from(rank > 1),
    };
    let dim = cx.dim(node, dim as i64, rank)?;
    split_dim(cx, node, x, dim)
}

fn split_dim(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId, dim: usize) -> Result<Outcome> {
    let mut start = Size::Int(0);
    for &output in &node.outputs {
        let Some(size) = cx.spec(node, output)?.sizes.get(dim).cloned() else {
            return cx.fail(node, "its results have other dimensions than its operand");
        };
        let end = start.add(&size);
        let piece = cx.slice(node, x, dim, (&start, &end))?;
        cx.replace(output, piece);
        start = end;
    }
    Ok(Outcome::Replaced)
}

fn unbind(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let rank = cx.spec(node, x)?.rank();
    let dim = cx.int(node, "dim", 0)?;
    let dim = cx.dim(node, dim, rank)?;
    for (i, &output) in node.outputs.iter().enumerate() {
        let piece = cx.select(x, dim, i as i64);
        cx.replace(output, piece);
    }
    Ok(Outcome::Replaced)
}

fn stack(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let tensors = cx.tensors(node, "tensors")?;
    let rank = cx.result_spec(node)?.rank();
    let dim = cx.int(node, "dim", 0)?;
    let dim = cx.dim(node, dim, rank)?;
    let parts: Vec<VarId> = tensors.iter().map(|&t| cx.unsqueeze(node, t, dim)).collect::<Result<_>>()?;
    let dtype = cx.result_spec(node)?.dtype;
    let parts: Vec<VarId> = parts.into_iter().map(|p| cx.cast(p, dtype)).collect();
    let new = cx.cat(&parts, dim);
    cx.replace_node(node, new)
}

fn cat(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (tensors, rank) = (cx.tensors(node, "tensors")?, cx.result_spec(node)?.rank());
    let dim = cx.int(node, "dim", 0)?;
    let dim = cx.dim(node, dim, rank)?;
    let args = vec![("tensors", Argument::Vars(tensors)), ("dim", Argument::Int(dim as i64))];
    Ok(cx.retarget(node, "aten.cat.default", args))
}

fn hstack(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (tensors, rank) = (cx.tensors(node, "tensors")?, cx.result_spec(node)?.rank());
    let args = vec![("tensors", Argument::Vars(tensors)), ("dim", Argument::Int(i64::from(rank > 1)))];
    Ok(cx.retarget(node, "aten.cat.default", args))
}

fn vstack(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let tensors = cx.tensors(node, "tensors")?;
    let rows = |cx: &mut Rewriter<'_>, t: VarId| match cx.spec_of(t).rank() {
        0 | 1 => cx.unsqueeze(node, t, 0),
        _ => Ok(t),
    };
    let tensors = tensors.into_iter().map(|t| rows(cx, t)).collect::<Result<_>>()?;
    let args = vec![("tensors", Argument::Vars(tensors)), ("dim", Argument::Int(0))];
    Ok(cx.retarget(node, "aten.cat.default", args))
}

/// Concatenates along the third dimension, after adding the dimensions that are missing.
fn dstack(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let tensors = cx.tensors(node, "tensors")?;
    let mut planes = Vec::new();
    for t in tensors {
        let mut sizes = cx.spec(node, t)?.sizes;
        if sizes.len() < 2 {
            sizes.insert(0, Size::Int(1));
        }
        while sizes.len() < 3 {
            sizes.push(Size::Int(1));
        }
        planes.push(cx.view(node, t, sizes)?);
    }
    let args = vec![("tensors", Argument::Vars(planes)), ("dim", Argument::Int(2))];
    Ok(cx.retarget(node, "aten.cat.default", args))
}

/// Concatenates along dimension 1; vectors become columns.
fn column_stack(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let tensors = cx.tensors(node, "tensors")?;
    let mut columns = Vec::new();
    for t in tensors {
        let spec = cx.spec(node, t)?;
        let sizes = if spec.rank() < 2 { vec![spec.numel(), Size::Int(1)] } else { spec.sizes };
        columns.push(cx.view(node, t, sizes)?);
    }
    let args = vec![("tensors", Argument::Vars(columns)), ("dim", Argument::Int(1))];
    Ok(cx.retarget(node, "aten.cat.default", args))
}

/// Rotates a plane by right angles: flips and transposes it.
fn rot90(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let rank = cx.spec(node, x)?.rank();
    let turns = cx.int(node, "k", 1)?.rem_euclid(4);
    let dims = match cx.ints(node, "dims")? {
        Some(list) => list.iter().map(|&d| cx.dim(node, d, rank)).collect::<Result<Vec<_>>>()?,
        None => vec![0, 1],
    };
    let &[a, b] = dims.as_slice() else { return cx.fail(node, "it turns no plane") };
    if a >= rank || b >= rank {
        return cx.fail(node, "it turns no plane");
    }
    let flip = |cx: &mut Rewriter<'_>, x: VarId, dims: &[usize]| {
        let spec = cx.spec_of(x);
        let list: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
        cx.emit("aten.flip.default", vec![("self", Argument::Var(x)), ("dims", Argument::ints(&list))], spec)
    };
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(a, b);
    let new = match turns {
        0 => x,
        1 => {
            let flipped = flip(cx, x, &[b]);
            cx.permute(flipped, &order)
        }
        2 => flip(cx, x, &[a, b]),
        _ => {
            let moved = cx.permute(x, &order);
            flip(cx, moved, &[b])
        }
    };
    cx.replace_node(node, new)
}

fn argwhere(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    Ok(cx.retarget(node, "aten.nonzero.default", vec![("self", Argument::Var(x))]))
}

/// Removes a concatenation of a single tensor; drops empty 1-d operands, and casts the others to the result's type.
fn normalize_cat(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (tensors, want) = (cx.tensors(node, "tensors")?, cx.result_spec(node)?);
    if let [only] = tensors.as_slice() {
        return cx.replace_node(node, *only);
    }
    // A legacy rule of PyTorch: `cat` ignores 1-d empty tensors.
    let counts = |cx: &Rewriter<'_>, t: VarId| {
        let spec = cx.spec_of(t);
        spec.rank() == want.rank() || spec.sizes != [Size::Int(0)]
    };
    let joined: Vec<VarId> = tensors.iter().copied().filter(|&t| counts(cx, t)).collect();
    if joined.len() == tensors.len() && tensors.iter().all(|&t| cx.spec_of(t).dtype == want.dtype) {
        return Ok(Outcome::Kept);
    }
    let joined = joined.into_iter().map(|t| cx.cast(t, want.dtype)).collect();
    let dim = cx.int(node, "dim", 0)?;
    let args = vec![("tensors", Argument::Vars(joined)), ("dim", Argument::Int(dim))];
    Ok(cx.retarget(node, "aten.cat.default", args))
}

fn tile(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let rank = cx.spec(node, x)?.rank();
    let Some(Argument::Ints(mut repeats)) = node.arg("dims").cloned() else {
        return cx.fail(node, "it has no `dims`");
    };
    while repeats.len() < rank {
        repeats.insert(0, pteron_exported::IntArgument::Int(1));
    }
    Ok(cx.retarget(
        node,
        "aten.repeat.default",
        vec![("self", Argument::Var(x)), ("repeats", Argument::Ints(repeats))],
    ))
}

/// If only dimensions of size 1 are repeated, the repetition is an expansion.
fn repeat(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let (have, want) = (cx.spec(node, x)?, cx.result_spec(node)?);
    if have.sizes == want.sizes {
        return cx.replace_node(node, x);
    }
    let shift = want.rank().saturating_sub(have.rank());
    let expands = have.sizes.iter().zip(&want.sizes[shift..]).all(|(h, w)| *h == Size::Int(1) || h == w);
    if !expands {
        return Ok(Outcome::Kept);
    }
    let new = cx.expand(node, x, want.sizes)?;
    cx.replace_node(node, new)
}

/// Repeats every element: inserts a dimension after `dim`, expands it, and merges the two.
fn repeat_interleave(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    if let Some(repeats) = cx.optional_tensor(node, "repeats") {
        return super::dynamic::repeat_by_tensor(cx, node, repeats);
    }
    let x = cx.tensor(node, "self")?;
    let want = cx.result_spec(node)?;
    let mut spec = cx.spec(node, x)?;
    let mut base = x;
    let dim = match node.arg("dim") {
        None | Some(Argument::None) => {
            base = cx.view(node, x, vec![spec.numel()])?;
            spec = cx.spec_of(base);
            0
        }
        _ => {
            let dim = cx.int(node, "dim", 0)?;
            cx.dim(node, dim, spec.rank())?
        }
    };
    let repeats = match node.arg("repeats") {
        Some(Argument::Int(v)) => Size::Int(*v),
        _ => want.sizes[dim].combine(SymOp::FloorDiv, &spec.sizes[dim]),
    };
    let wider = cx.unsqueeze(node, base, dim + 1)?;
    let mut sizes = cx.spec_of(wider).sizes;
    sizes[dim + 1] = repeats;
    let expanded = cx.expand(node, wider, sizes)?;
    let new = cx.view(node, expanded, want.sizes)?;
    cx.replace_node(node, new)
}

fn channel_shuffle(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, groups) = (cx.tensor(node, "self")?, cx.int(node, "groups", 1)?);
    let spec = cx.spec(node, x)?;
    let mut sizes = spec.sizes.clone();
    if sizes.len() < 3 {
        return cx.fail(node, "it takes images");
    }
    let per = sizes[1].combine(SymOp::FloorDiv, &Size::Int(groups));
    sizes.splice(1..2, [Size::Int(groups), per]);
    let grouped = cx.view(node, x, sizes)?;
    let mut dims: Vec<usize> = (0..=spec.rank()).collect();
    dims.swap(1, 2);
    let swapped = cx.permute(grouped, &dims);
    let new = cx.view(node, swapped, spec.sizes)?;
    cx.replace_node(node, new)
}

fn roll(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let spec = cx.spec(node, x)?;
    let shifts = cx.ints(node, "shifts")?.unwrap_or_default();
    let flat = node.arg("dims").is_none_or(|d| d.known_ints().is_some_and(|d| d.is_empty()));
    let (mut value, dims) = match flat {
        true => (cx.view(node, x, vec![spec.numel()])?, vec![0]),
        false => (x, cx.dims(node, "dims", spec.rank())?),
    };
    for (&shift, &dim) in shifts.iter().zip(&dims) {
        let Some(size) = cx.spec_of(value).sizes.get(dim).cloned() else { return cx.replace_node(node, x) };
        let Some(n) = size.known().filter(|&n| n > 0) else {
            return cx.fail(node, "it rolls a dimension whose size is not known");
        };
        let at = Size::Int((n - shift.rem_euclid(n)) % n);
        let tail = cx.slice(node, value, dim, (&at, &size))?;
        let head = cx.slice(node, value, dim, (&Size::Int(0), &at))?;
        value = if at == Size::Int(0) { value } else { cx.cat(&[tail, head], dim) };
    }
    let new = cx.view(node, value, spec.sizes)?;
    cx.replace_node(node, new)
}

fn fliplr_or_flipud(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let dim = i64::from(node.target.starts_with("aten.fliplr"));
    let x = cx.tensor(node, "self")?;
    Ok(cx.retarget(
        node,
        "aten.flip.default",
        vec![("self", Argument::Var(x)), ("dims", Argument::ints(&[dim]))],
    ))
}

fn meshgrid(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let tensors = cx.tensors(node, "tensors")?;
    let by_columns = tensors.len() > 1 && matches!(node.arg("indexing"), Some(Argument::Str(s)) if s == "xy");
    for (i, (&t, &output)) in tensors.iter().zip(&node.outputs).enumerate() {
        let want = cx.spec(node, output)?.sizes;
        let own = if by_columns && i < 2 { 1 - i } else { i };
        let mut sizes = vec![Size::Int(1); want.len()];
        let Some(size) = sizes.get_mut(own).zip(want.get(own)) else {
            return cx.fail(node, "it has more operands than dimensions");
        };
        *size.0 = size.1.clone();
        let placed = cx.view(node, t, sizes)?;
        let grid = cx.expand(node, placed, want)?;
        cx.replace(output, grid);
    }
    Ok(Outcome::Replaced)
}

fn broadcast_tensors(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let tensors = cx.tensors(node, "tensors")?;
    for (&t, &output) in tensors.iter().zip(&node.outputs) {
        let want = cx.spec(node, output)?.sizes;
        let new = cx.expand(node, t, want)?;
        cx.replace(output, new);
    }
    Ok(Outcome::Replaced)
}
