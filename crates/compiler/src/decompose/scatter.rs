//! Scatters: elements written or accumulated at indices.

use super::Table;
use super::When::{Always, NoKernel};
use super::order::largest_value;
use super::scan::smallest_value;
use super::windows::zeros;
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, Size, TensorSpec, VarId};
use pteron_tensor::{Scalar, ScalarType};

pub(super) const RULES: Table = &[
    ("aten.scatter", NoKernel, scatter),
    ("aten.scatter_reduce", NoKernel, scatter_reduce),
    ("aten.index_reduce", NoKernel, index_reduce),
    ("aten.index_add", NoKernel, index_add),
    ("aten.put", NoKernel, put),
    ("aten.diagonal_scatter", NoKernel, diagonal_scatter),
    ("aten.fill_diagonal", NoKernel, fill_diagonal),
    ("aten.as_strided_scatter", NoKernel, as_strided_scatter),
    ("aten.embedding_bag", Always, embedding_bag),
    ("aten._embedding_bag", NoKernel, embedding_bag),
    ("aten._embedding_bag_forward_only", NoKernel, embedding_bag),
    ("aten.masked_scatter", NoKernel, masked_scatter),
    ("aten.unfold_copy", NoKernel, unfold),
    ("aten.unfold", NoKernel, unfold),
];

/// Slices the source to the sizes of the index.
fn clip_source(cx: &mut Rewriter<'_>, node: &ExportedNode, src: VarId, sizes: &[Size]) -> Result<VarId> {
    let mut src = src;
    for (dim, size) in sizes.iter().enumerate() {
        if cx.spec_of(src).sizes.get(dim) != Some(size) {
            src = cx.slice(node, src, dim, (&Size::Int(0), size))?;
        }
    }
    Ok(src)
}

/// How elements with the same index are combined.
#[derive(Clone, Copy, PartialEq)]
enum Combine {
    Sum,
    Product,
    Mean,
    Largest,
    Smallest,
}

impl Combine {
    fn from_node(cx: &Rewriter<'_>, node: &ExportedNode) -> Result<Self> {
        match node.arg("reduce") {
            Some(Argument::Str(s)) => Ok(match s.as_str() {
                "sum" | "add" => Self::Sum,
                "prod" | "multiply" => Self::Product,
                "mean" => Self::Mean,
                "amax" => Self::Largest,
                "amin" => Self::Smallest,
                other => return cx.fail(node, format!("`{other}` is no reduction that is known")),
            }),
            _ => cx.fail(node, "it has no reduction"),
        }
    }
}

/// The operands of a scatter with a reduction.
struct Scatter {
    x: VarId,
    dim: usize,
    index: VarId,
    src: VarId,
    keeps_self: bool,
}

/// Scatters the source's elements, combining them with the operand's own elements.
fn scatter(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    if node.arg("reduce").is_none() {
        return Ok(Outcome::Kept);
    }
    let (x, index) = (cx.tensor(node, "self")?, cx.tensor(node, "index")?);
    let spec = cx.spec_of(index);
    let src = match node.arg("src").or(node.arg("value")).cloned() {
        Some(Argument::Var(v)) => v,
        Some(value) => {
            let dtype = cx.spec_of(x).dtype;
            cx.full(node, spec.sizes.clone(), value, dtype)?
        }
        None => return cx.fail(node, "it writes nothing"),
    };
    let dim = cx.int(node, "dim", 0)?;
    let dim = cx.dim(node, dim, cx.spec_of(x).rank())?;
    let src = clip_source(cx, node, src, &spec.sizes)?;
    combine(cx, node, &Scatter { x, dim, index, src, keeps_self: true })
}

fn scatter_reduce(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, index, src) = (cx.tensor(node, "self")?, cx.tensor(node, "index")?, cx.tensor(node, "src")?);
    let rank = cx.spec_of(x).rank();
    let dim = cx.int(node, "dim", 0)?;
    let dim = cx.dim(node, dim, rank)?;
    let keeps_self = cx.bool(node, "include_self", true)?;
    if rank == 0 {
        let row = |cx: &mut Rewriter<'_>, v| cx.view(node, v, vec![Size::Int(1)]);
        let (x, index, src) = (row(cx, x)?, row(cx, index)?, row(cx, src)?);
        return combine(cx, node, &Scatter { x, dim, index, src, keeps_self });
    }
    let sizes = cx.spec_of(index).sizes;
    let src = clip_source(cx, node, src, &sizes)?;
    combine(cx, node, &Scatter { x, dim, index, src, keeps_self })
}

/// Broadcasts a 1-d index to the sizes of the source. Returns the operand, the dimension and the index.
fn broadcast_row_index(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    src: VarId,
) -> Result<(VarId, usize, VarId)> {
    let (x, index) = (cx.tensor(node, "self")?, cx.tensor(node, "index")?);
    let dim = cx.int(node, "dim", 0)?;
    let dim = cx.dim(node, dim, cx.spec_of(x).rank())?;
    let sizes = cx.spec_of(src).sizes;
    let index = match sizes.is_empty() {
        true => cx.view(node, index, Vec::new())?,
        false => {
            let mut column = vec![Size::Int(1); sizes.len()];
            match column.get_mut(dim) {
                Some(own) => *own = cx.spec_of(index).numel(),
                None => return cx.fail(node, "its source has another rank than its operand"),
            }
            let column = cx.view(node, index, column)?;
            cx.expand(node, column, sizes)?
        }
    };
    let index = cx.cast(index, ScalarType::Long);
    Ok((x, dim, index))
}

fn index_reduce(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let src = cx.tensor(node, "source")?;
    let (x, dim, index) = broadcast_row_index(cx, node, src)?;
    let keeps_self = cx.bool(node, "include_self", true)?;
    if cx.spec_of(x).rank() == 0 {
        let row = |cx: &mut Rewriter<'_>, v| cx.view(node, v, vec![Size::Int(1)]);
        let (x, index, src) = (row(cx, x)?, row(cx, index)?, row(cx, src)?);
        return combine(cx, node, &Scatter { x, dim, index, src, keeps_self });
    }
    combine(cx, node, &Scatter { x, dim, index, src, keeps_self })
}

fn index_add(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let mut src = cx.tensor(node, "source")?;
    let (x, dim, index) = broadcast_row_index(cx, node, src)?;
    match node.arg("alpha") {
        None | Some(Argument::Int(1)) => {}
        Some(Argument::Int(alpha)) => src = cx.mul(src, *alpha),
        Some(_) => {
            let alpha = cx.float(node, "alpha", 1.0)?;
            src = cx.mul(src, alpha);
        }
    }
    let new = match cx.spec_of(x).rank() {
        0 => cx.add(x, src),
        _ => scatter_add(cx, x, (dim, index), src),
    };
    cx.replace_node(node, new)
}

fn scatter_add(cx: &mut Rewriter<'_>, x: VarId, (dim, index): (usize, VarId), src: VarId) -> VarId {
    let spec = cx.spec_of(x);
    let args = vec![
        ("self", Argument::Var(x)),
        ("dim", Argument::Int(dim as i64)),
        ("index", Argument::Var(index)),
        ("src", Argument::Var(src)),
    ];
    cx.emit("aten.scatter_add.default", args, TensorSpec::contiguous(spec.dtype, spec.sizes))
}

fn combine(cx: &mut Rewriter<'_>, node: &ExportedNode, scatter: &Scatter) -> Result<Outcome> {
    let new = match Combine::from_node(cx, node)? {
        how @ (Combine::Sum | Combine::Mean) => sum_or_mean(cx, node, scatter, how == Combine::Mean)?,
        how => combine_by_comparison(cx, node, scatter, how)?,
    };
    let want = cx.result_spec(node)?.sizes;
    let new = cx.view(node, new, want)?;
    cx.replace_node(node, new)
}

/// Sums or means, by `scatter_add`.
fn sum_or_mean(cx: &mut Rewriter<'_>, node: &ExportedNode, s: &Scatter, is_mean: bool) -> Result<VarId> {
    let (spec, index) = (cx.spec_of(s.x), cx.spec_of(s.index));
    let one = if spec.dtype.is_floating() { Argument::Float(1.0) } else { Argument::Int(1) };
    let at = (s.dim, s.index);
    let start = zeros(cx, node, spec.sizes.clone(), spec.dtype)?;
    let ones = cx.full(node, index.sizes, one, spec.dtype)?;
    let hits = scatter_add(cx, start, at, ones);
    let was_hit = cx.compare("aten.gt.Scalar", hits, 0);
    let zero = cx.scalar(Scalar::Int(0), spec.dtype)?;
    let base = if s.keeps_self { s.x } else { cx.choose(was_hit, zero, s.x) };
    let sum = scatter_add(cx, base, at, s.src);
    if !is_mean {
        return Ok(sum);
    }
    let counts = match s.keeps_self {
        true if spec.dtype.is_floating() => cx.add(hits, 1.0),
        true => cx.add(hits, 1),
        false => cx.clamp_low(hits, 1),
    };
    Ok(match spec.dtype.is_floating() {
        true => cx.div(sum, counts),
        false => {
            let args = vec![
                ("self", Argument::Var(sum)),
                ("other", Argument::Var(counts)),
                ("rounding_mode", Argument::Str("floor".into())),
            ];
            cx.emit("aten.div.Tensor_mode", args, TensorSpec::contiguous(spec.dtype, spec.sizes))
        }
    })
}

/// Products, maxima and minima, by comparing every index with every position along the dimension.
fn combine_by_comparison(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    s: &Scatter,
    how: Combine,
) -> Result<VarId> {
    let (spec, index) = (cx.spec_of(s.x), cx.spec_of(s.index));
    if index.rank() != spec.rank() || s.dim >= spec.rank() {
        return cx.fail(node, "its indices have another rank than its operand");
    }
    let shorter = (0..spec.rank()).find(|&d| d != s.dim && spec.sizes[d] != index.sizes[d]);
    if let Some(d) = shorter {
        // The elements beyond the indices stay as they are.
        let x = cx.slice(node, s.x, d, (&Size::Int(0), &index.sizes[d]))?;
        let rest = cx.slice(node, s.x, d, (&index.sizes[d], &spec.sizes[d]))?;
        let new = combine_by_comparison(cx, node, &Scatter { x, ..*s }, how)?;
        return Ok(cx.cat(&[new, rest], d));
    }
    let Some(most) = largest_value(spec.dtype) else { return cx.fail(node, "it compares no real numbers") };
    let how = match how {
        // A product of booleans is their minimum.
        Combine::Product if spec.dtype == ScalarType::Bool => Combine::Smallest,
        how => how,
    };
    let (identity, target) = match how {
        Combine::Largest => (smallest_value(spec.dtype), "aten.amax.default"),
        Combine::Smallest => (most, "aten.amin.default"),
        _ => (Scalar::Int(1), "aten.prod.dim_int"),
    };
    let mut column = vec![Size::Int(1); spec.rank() + 1];
    column[s.dim] = spec.sizes[s.dim].clone();
    let places = cx.arange(node, &spec.sizes[s.dim], ScalarType::Long)?;
    let places = cx.view(node, places, column)?;
    let (wide_index, wide_src) = (cx.unsqueeze(node, s.index, s.dim)?, cx.unsqueeze(node, s.src, s.dim)?);
    let meets = cx.compare("aten.eq.Tensor", wide_index, places);
    let identity = cx.scalar(identity, spec.dtype)?;
    let each = cx.choose(meets, wide_src, identity);
    let reduced = match how {
        Combine::Product => {
            let args = vec![
                ("self", Argument::Var(each)),
                ("dim", Argument::Int(s.dim as i64 + 1)),
                ("keepdim", Argument::Bool(false)),
            ];
            cx.emit(target, args, TensorSpec::contiguous(spec.dtype, spec.sizes.clone()))
        }
        _ => cx.reduce(target, each, &[s.dim + 1], false),
    };
    if s.keeps_self {
        return Ok(match how {
            Combine::Largest => cx.binary("aten.maximum.default", s.x, reduced),
            Combine::Smallest => cx.binary("aten.minimum.default", s.x, reduced),
            _ => cx.mul(s.x, reduced),
        });
    }
    let was_hit = cx.reduce("aten.any.dims", meets, &[s.dim + 1], false);
    Ok(cx.choose(was_hit, reduced, s.x))
}

/// `put`: writes or adds the source's elements at indices into the flattened operand.
fn put(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, index, src) = (cx.tensor(node, "self")?, cx.tensor(node, "index")?, cx.tensor(node, "source")?);
    let spec = cx.spec(node, x)?;
    let flat = cx.view(node, x, vec![spec.numel()])?;
    let count = cx.spec_of(index).numel();
    let (index, src) = (cx.view(node, index, vec![count.clone()])?, cx.view(node, src, vec![count])?);
    let args = vec![
        ("self", Argument::Var(flat)),
        ("indices", Argument::OptionalVars(vec![Some(index)])),
        ("values", Argument::Var(src)),
        ("accumulate", Argument::Bool(cx.bool(node, "accumulate", false)?)),
    ];
    let row = TensorSpec::contiguous(spec.dtype, vec![spec.numel()]);
    let put = cx.emit("aten.index_put.default", args, row);
    let new = cx.view(node, put, spec.sizes)?;
    cx.replace_node(node, new)
}

/// Replaces a diagonal of the operand by the source.
fn diagonal_scatter(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, src) = (cx.tensor(node, "self")?, cx.tensor(node, "src")?);
    let spec = cx.spec(node, x)?;
    let offset = cx.int(node, "offset", 0)?;
    let (a, b) = (cx.int(node, "dim1", 0)?, cx.int(node, "dim2", 1)?);
    let (a, b) = (cx.dim(node, a, spec.rank())?, cx.dim(node, b, spec.rank())?);
    if a == b || spec.rank() < 2 || cx.spec_of(src).rank() + 1 != spec.rank() {
        return cx.fail(node, "it writes no diagonal of its operand");
    }
    let spread =
        super::matrix::spread_on_diagonal(cx, node, src, (offset, a, b), [&spec.sizes[a], &spec.sizes[b]])?;
    let mask = super::matrix::diagonal_mask(cx, node, (offset, a, b), &spec)?;
    let new = cx.choose(mask, spread, x);
    cx.replace_node(node, new)
}

/// Fills the diagonal of a matrix.
fn fill_diagonal(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let spec = cx.spec(node, x)?;
    if spec.rank() != 2 || cx.bool(node, "wrap", false)? {
        return cx.fail(node, "it fills the diagonal of other than a matrix, or wraps around");
    }
    let value = match node.arg("fill_value") {
        Some(Argument::Int(v)) => Scalar::Int(*v),
        Some(Argument::Float(v)) => Scalar::Double(*v),
        Some(Argument::Bool(v)) => Scalar::Bool(*v),
        _ => return cx.fail(node, "`fill_value` is no number that is known"),
    };
    let mask = super::matrix::diagonal_mask(cx, node, (0, 0, 1), &spec)?;
    let value = cx.scalar(value, spec.dtype)?;
    let new = cx.choose(mask, value, x);
    cx.replace_node(node, new)
}

/// Overwrites the elements that a strided view of the row-major operand selects with the elements of the source.
fn as_strided_scatter(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, src) = (cx.tensor(node, "self")?, cx.tensor(node, "src")?);
    let spec = cx.spec(node, x)?;
    let (Some(size), Some(stride)) = (cx.ints(node, "size")?, cx.ints(node, "stride")?) else {
        return cx.fail(node, "it has no `size` or no `stride`");
    };
    let numel = super::windows::static_size(cx, node, Some(&spec.numel()))?;
    let mut places = vec![cx.int(node, "storage_offset", 0)?];
    for (&size, &stride) in size.iter().zip(&stride) {
        if size < 0 || (places.len() as u64).saturating_mul(size as u64) > numel as u64 {
            return cx.fail(node, "it writes more elements than its operand has");
        }
        let steps = |&place: &i64| (0..size).map(move |i| place.saturating_add(stride.saturating_mul(i)));
        places = places.iter().flat_map(steps).collect();
    }
    let inside = |&place: &i64| usize::try_from(place).ok().filter(|&place| place < numel);
    let Some(places) = places.iter().map(inside).collect::<Option<Vec<usize>>>() else {
        return cx.fail(node, "it writes beyond its operand");
    };
    let count = places.len();
    let index = cx.index_constant(places, &[count])?;
    let flat = cx.view(node, x, vec![spec.numel()])?;
    let src = cx.view(node, src, vec![Size::Int(count as i64)])?;
    let args = vec![
        ("self", Argument::Var(flat)),
        ("indices", Argument::OptionalVars(vec![Some(index)])),
        ("values", Argument::Var(src)),
        ("accumulate", Argument::Bool(false)),
    ];
    let row = TensorSpec::contiguous(spec.dtype, vec![spec.numel()]);
    let put = cx.emit("aten.index_put.default", args, row);
    let new = cx.view(node, put, spec.sizes)?;
    cx.replace_node(node, new)
}

/// The sum, mean or maximum of the rows of a table for each bag of indices.
fn embedding_bag(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let [weight, indices, offsets] = ["weight", "indices", "offsets"].map(|name| cx.tensor(node, name));
    let (weight, indices, offsets) = (weight?, indices?, offsets?);
    let dtype = cx.spec_of(weight).dtype;
    let mode = cx.int(node, "mode", 0)?;
    let mut starts = cx.cast(offsets, ScalarType::Long);
    if cx.bool(node, "include_last_offset", false)? {
        let less = cx.size_of(node, starts, 0)?.add(&Size::Int(-1));
        starts = cx.slice(node, starts, 0, (&Size::Int(0), &less))?;
    }
    let indices = cx.cast(indices, ScalarType::Long);
    if [weight, indices, starts].map(|v| cx.spec_of(v).rank()) != [2, 1, 1] {
        return cx.fail(node, "it takes a table, and indices and offsets of one dimension");
    }
    let (bags, count) = (cx.spec_of(starts).sizes[0].clone(), cx.spec_of(indices).numel());
    // The bag of an index is the number of bags that start at or before it, minus one.
    let places = cx.arange(node, &count, ScalarType::Long)?;
    let places = cx.unsqueeze(node, places, 1)?;
    let started = cx.compare("aten.ge.Tensor", places, starts);
    let started = cx.cast(started, ScalarType::Long);
    let bag = cx.sum(started, &[1], false);
    let bag = cx.sub(bag, 1);
    let numbers = cx.arange(node, &bags, ScalarType::Long)?;
    let numbers = cx.unsqueeze(node, numbers, 1)?;
    let mut is_in = cx.compare("aten.eq.Tensor", numbers, bag);
    let mut padding = cx.int(node, "padding_idx", -1)?;
    // In this overload, negative values count rows from the end; in the others, -1 means no padding index.
    let is_given = matches!(node.arg("padding_idx"), Some(Argument::Int(_)));
    if padding < 0 && is_given && node.target.ends_with(".padding_idx") {
        padding += super::windows::static_size(cx, node, cx.spec_of(weight).sizes.first())? as i64;
    }
    if padding >= 0 {
        let counts = cx.compare("aten.ne.Scalar", indices, padding);
        is_in = cx.compare("aten.logical_and.default", is_in, counts);
    }
    let mut rows = cx.index_select(weight, 0, indices);
    if let Some(factors) = cx.optional_tensor(node, "per_sample_weights") {
        let factors = cx.unsqueeze(node, factors, 1)?;
        rows = cx.mul(rows, factors);
    }
    let members = cx.cast(is_in, dtype);
    let new = if mode == 2 {
        let wide = cx.unsqueeze(node, is_in, 2)?;
        let low = cx.scalar(Scalar::Double(f64::NEG_INFINITY), dtype)?;
        let each = cx.choose(wide, rows, low);
        let most = cx.reduce("aten.amax.default", each, &[1], false);
        let any = cx.reduce("aten.any.dims", is_in, &[1], true);
        let zero = cx.scalar(Scalar::Double(0.0), dtype)?;
        cx.choose(any, most, zero)
    } else {
        let sum = cx.matmul(members, rows);
        match mode {
            0 => sum,
            _ => {
                let count = cx.sum(members, &[1], true);
                let count = cx.clamp(count, Some(1.0), None);
                cx.div(sum, count)
            }
        }
    };
    cx.replace_node(node, new)
}

/// Writes the elements of the source, in order, where the mask is true.
fn masked_scatter(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, mask, src) = (cx.tensor(node, "self")?, cx.tensor(node, "mask")?, cx.tensor(node, "source")?);
    let spec = cx.spec(node, x)?;
    let mask = cx.expand(node, mask, spec.sizes.clone())?;
    let flat = cx.view(node, mask, vec![spec.numel()])?;
    let ones = cx.cast(flat, ScalarType::Long);
    let row = cx.spec_of(ones);
    let args = vec![("self", Argument::Var(ones)), ("dim", Argument::Int(0))];
    let counted = cx.emit("aten.cumsum.default", args, row);
    let place = cx.sub(counted, 1);
    let place = cx.clamp_low(place, 0);
    let numel = cx.spec_of(src).numel();
    let source = cx.view(node, src, vec![numel])?;
    let chosen = cx.index_select(source, 0, place);
    let chosen = cx.view(node, chosen, spec.sizes)?;
    let new = cx.choose(mask, chosen, x);
    cx.replace_node(node, new)
}

/// Windows of a dimension, `step` apart; the elements of a window are along a new last dimension.
fn unfold(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let (rank, want) = (cx.spec(node, x)?.rank(), cx.result_spec(node)?);
    let dim = cx.int(node, "dimension", 0)?;
    let dim = cx.dim(node, dim, rank)?;
    let (size, step) = (cx.int(node, "size", 1)?, cx.int(node, "step", 1)?);
    if rank == 0 {
        let new = cx.view(node, x, want.sizes)?;
        return cx.replace_node(node, new);
    }
    let count = super::windows::static_size(cx, node, want.sizes.get(dim))?;
    let (Ok(size), Ok(step)) = (usize::try_from(size), usize::try_from(step)) else {
        return cx.fail(node, "its windows have a negative size");
    };
    cx.check_table_size(node, &[count, size.max(1)])?;
    if step > i32::MAX as usize {
        return cx.fail(node, format!("its windows are {step} elements apart"));
    }
    let places: Vec<Vec<usize>> = (0..count).map(|i| (i * step..i * step + size).collect()).collect();
    let parts = super::windows::windows(cx, node, x, dim, &places)?;
    let mut dims: Vec<usize> = (0..=rank).filter(|&d| d != dim + 1).collect();
    dims.push(dim + 1);
    let new = cx.permute(parts, &dims);
    cx.replace_node(node, new)
}
