//! Sorting, order statistics and searches: medians, quantiles, modes, membership, buckets.

use super::Table;
use super::When::{Always, NoKernel};
use crate::Result;
use crate::operators::int_argument;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, Size, SymOp, TensorSpec, VarId};
use pteron_tensor::{Scalar, ScalarType};

pub(super) const RULES: Table = &[
    ("aten.sort", NoKernel, sort),
    ("aten.msort", NoKernel, sort),
    ("aten.argsort", NoKernel, argsort),
    ("aten.median", NoKernel, median),
    ("aten.nanmedian", NoKernel, median),
    ("aten.kthvalue", NoKernel, kthvalue),
    ("aten.mode", NoKernel, mode),
    ("aten.quantile", Always, quantile),
    ("aten.nanquantile", Always, quantile),
    ("aten.isin", NoKernel, isin),
    ("aten.bucketize", NoKernel, bucketize),
    ("aten.searchsorted", NoKernel, bucketize),
];

/// Sorts a dimension of the operand: the sorted values and their indices.
fn sort_dim(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<(VarId, VarId)> {
    let x = cx.tensor(node, "self")?;
    let spec = cx.spec(node, x)?;
    let dim = if node.target.starts_with("aten.msort") { 0 } else { cx.int(node, "dim", -1)? };
    let axis = cx.dim(node, dim, spec.rank())?;
    let Some(count) = spec.sizes.get(axis).cloned() else {
        // A 0-d tensor is sorted.
        let first = cx.full(node, Vec::new(), Argument::Int(0), ScalarType::Long)?;
        return Ok((x, first));
    };
    let largest = cx.bool(node, "descending", false)?;
    let (values, places) = cx.topk(node, x, axis, (&count, largest))?;
    let places = stabilize_indices(cx, node, (values, places), axis)?;
    Ok((values, places))
}

/// Orders the indices of equal elements in a sorted dimension, which `topk` leaves in any order. PyTorch sorts every
/// dimension stably on a CPU, whether it is asked to or not.
///
/// The indices are sorted again, by the rank of their value among the distinct values and then by themselves. NaN are
/// equal here.
fn stabilize_indices(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    (values, places): (VarId, VarId),
    dim: usize,
) -> Result<VarId> {
    let spec = cx.spec_of(values);
    let count = spec.sizes[dim].clone();
    if count.known().is_some_and(|count| count < 2) {
        return Ok(places);
    }
    let first = cx.slice(node, values, dim, (&Size::Int(0), &count.add(&Size::Int(-1))))?;
    let second = cx.slice(node, values, dim, (&Size::Int(1), &count))?;
    let mut starts = cx.compare("aten.ne.Tensor", first, second);
    if spec.dtype.is_floating() {
        // NaN are last or first in the sorted dimension, and only they differ from themselves.
        let (a, b) = (cx.nan_mask(first), cx.nan_mask(second));
        let nans = cx.binary("aten.logical_and.default", a, b);
        let others = cx.unary("aten.logical_not.default", nans);
        starts = cx.binary("aten.logical_and.default", starts, others);
    }
    let starts = cx.cast(starts, ScalarType::Long);
    let starts = cx.pad(starts, dim, (1, 0), 0);
    let args = vec![("self", Argument::Var(starts)), ("dim", Argument::Int(dim as i64))];
    let ranks = TensorSpec { dtype: ScalarType::Long, ..spec };
    let rank = cx.emit("aten.cumsum.default", args, ranks);
    let count = int_argument(cx.size_argument(node, &count)?);
    let scaled = match count {
        Argument::Int(count) => cx.mul(rank, count),
        count => {
            let spec = cx.spec_of(rank);
            cx.emit("aten.mul.Scalar", vec![("self", Argument::Var(rank)), ("other", count.clone())], spec)
        }
    };
    let keys = cx.add(scaled, places);
    let size = cx.spec_of(keys).sizes[dim].clone();
    let (keys, _) = cx.topk(node, keys, dim, (&size, false))?;
    Ok(cx.sub(keys, scaled))
}

/// Replaces the results of a node that returns values and their indices.
fn replace_values_and_indices(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    (values, indices): (VarId, VarId),
) -> Result<Outcome> {
    if let Some(&second) = node.outputs.get(1) {
        cx.replace(second, indices);
    }
    cx.replace_node(node, values)
}

fn sort(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let sorted = sort_dim(cx, node)?;
    replace_values_and_indices(cx, node, sorted)
}

fn argsort(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (_, places) = sort_dim(cx, node)?;
    cx.replace_node(node, places)
}

/// The operand and the dimension that the node names; without one, the flattened operand and dimension 0.
fn operand_and_dim(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId) -> Result<(VarId, usize)> {
    let spec = cx.spec(node, x)?;
    match node.arg("dim") {
        None | Some(Argument::None) => Ok((cx.view(node, x, vec![spec.numel()])?, 0)),
        _ if spec.rank() == 0 => Ok((cx.view(node, x, vec![Size::Int(1)])?, 0)),
        _ => {
            let dim = cx.int(node, "dim", -1)?;
            Ok((x, cx.dim(node, dim, spec.rank())?))
        }
    }
}

/// The value and the index at a position of a sorted dimension, counted from zero.
fn select_position(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    (values, places): (VarId, VarId),
    dim: usize,
    place: &Size,
) -> Result<(VarId, VarId)> {
    let next = place.add(&Size::Int(1));
    let value = cx.slice(node, values, dim, (place, &next))?;
    let index = cx.slice(node, places, dim, (place, &next))?;
    Ok((value, index))
}

/// Replaces the node's two results by values and indices that are reshaped to the sizes of the results.
fn replace_reshaped(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    (values, indices): (VarId, VarId),
) -> Result<Outcome> {
    let want = cx.result_spec(node)?.sizes;
    let (values, indices) = (cx.view(node, values, want.clone())?, cx.view(node, indices, want)?);
    replace_values_and_indices(cx, node, (values, indices))
}

/// The median, i.e. the lower of the two middle elements. A NaN makes the result NaN; `nanmedian` ignores NaN.
fn median(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let (x, dim) = operand_and_dim(cx, node, x)?;
    let spec = cx.spec_of(x);
    let count = spec.sizes[dim].clone();
    let is_float = spec.dtype.is_floating();
    if is_float && node.target.starts_with("aten.nanmedian") {
        let all = cx.topk(node, x, dim, (&count, false))?;
        let nan = cx.nan_mask(x);
        let nan = cx.cast(nan, ScalarType::Long);
        let nans = cx.sum(nan, &[dim], true);
        let down = cx.unary("aten.neg.default", nans);
        let last = match count.known() {
            Some(n) => cx.add(down, n - 1),
            None => return cx.fail(node, "the size of its dimension is not known"),
        };
        let half = cx.floor_div(last, 2);
        let place = cx.clamp_low(half, 0);
        let median = (cx.gather(all.0, dim, place), cx.gather(all.1, dim, place));
        return replace_reshaped(cx, node, median);
    }
    let up_to = count.add(&Size::Int(1)).combine(SymOp::FloorDiv, &Size::Int(2));
    let lower = cx.topk(node, x, dim, (&up_to, false))?;
    let (mut value, mut index) = select_position(cx, node, lower, dim, &up_to.add(&Size::Int(-1)))?;
    if is_float {
        let nan = cx.nan_mask(x);
        let number = cx.cast(nan, ScalarType::Float);
        let (most, first) = cx.min_or_max(number, dim, true, true);
        let any = cx.compare("aten.gt.Scalar", most, 0.0);
        let not_a_number = cx.scalar(Scalar::Double(f64::NAN), spec.dtype)?;
        value = cx.choose(any, not_a_number, value);
        index = cx.choose(any, first, index);
    }
    replace_reshaped(cx, node, (value, index))
}

fn kthvalue(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, k) = (cx.tensor(node, "self")?, cx.int(node, "k", 1)?);
    let spec = cx.spec(node, x)?;
    let x = if spec.rank() == 0 { cx.view(node, x, vec![Size::Int(1)])? } else { x };
    let dim = cx.int(node, "dim", -1)?;
    let dim = cx.dim(node, dim, spec.rank())?;
    let lower = cx.topk(node, x, dim, (&Size::Int(k), false))?;
    let kth = select_position(cx, node, lower, dim, &Size::Int(k - 1))?;
    replace_reshaped(cx, node, kth)
}

/// The most frequent element (the smallest on a tie) and the last index at which it occurs.
fn mode(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let rank = cx.spec(node, x)?.rank();
    let x = if rank == 0 { cx.view(node, x, vec![Size::Int(1)])? } else { x };
    let dim = cx.int(node, "dim", -1)?;
    let dim = cx.dim(node, dim, rank)?;
    let spec = cx.spec_of(x);
    let (down, across) = (cx.unsqueeze(node, x, dim)?, cx.unsqueeze(node, x, dim + 1)?);
    let same = cx.compare("aten.eq.Tensor", down, across);
    let same = cx.cast(same, ScalarType::Long);
    let counts = cx.sum(same, &[dim], false);
    let most = cx.reduce("aten.amax.default", counts, &[dim], true);
    let often = cx.compare("aten.eq.Tensor", counts, most);
    let Some(largest) = largest_value(spec.dtype) else {
        return cx.fail(node, "it compares no real numbers");
    };
    let largest = cx.scalar(largest, spec.dtype)?;
    let candidates = cx.choose(often, x, largest);
    let value = cx.reduce("aten.amin.default", candidates, &[dim], true);
    let here = cx.compare("aten.eq.Tensor", x, value);
    let mut column = vec![Size::Int(1); spec.rank()];
    column[dim] = spec.sizes[dim].clone();
    let places = cx.arange(node, &spec.sizes[dim], ScalarType::Long)?;
    let places = cx.view(node, places, column)?;
    let none = cx.scalar(Scalar::Int(-1), ScalarType::Long)?;
    let places = cx.choose(here, places, none);
    let index = cx.reduce("aten.amax.default", places, &[dim], true);
    replace_reshaped(cx, node, (value, index))
}

/// The largest value of a type, infinity for floating-point types.
pub(super) fn largest_value(dtype: ScalarType) -> Option<Scalar> {
    Some(match dtype {
        ScalarType::Byte => Scalar::Int(255),
        ScalarType::Char => Scalar::Int(127),
        ScalarType::Short => Scalar::Int(i64::from(i16::MAX)),
        ScalarType::Int => Scalar::Int(i64::from(i32::MAX)),
        ScalarType::Long => Scalar::Int(i64::MAX),
        ScalarType::Bool => Scalar::Bool(true),
        d if d.is_floating() => Scalar::Double(f64::INFINITY),
        _ => return None,
    })
}

/// Quantiles along a dimension, interpolated between neighbouring elements as the node asks.
fn quantile(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let (x, dim) = operand_and_dim(cx, node, x)?;
    let (spec, want) = (cx.spec_of(x), cx.result_spec(node)?);
    let Some(count) = spec.sizes[dim].known() else {
        return cx.fail(node, "the size of its dimension is not known");
    };
    let fractions = match cx.optional_tensor(node, "q") {
        Some(q) => {
            let numel = cx.spec_of(q).numel();
            cx.view(node, q, vec![numel])?
        }
        None => {
            let q = cx.float(node, "q", 0.5)?;
            cx.constant(&[Scalar::Double(q)], spec.dtype, &[1])?
        }
    };
    // PyTorch computes positions in f64.
    let fractions = cx.cast(fractions, ScalarType::Double);
    let mut dims: Vec<usize> = (0..spec.rank()).filter(|&d| d != dim).collect();
    dims.push(dim);
    let rows = cx.permute(x, &dims);
    let last = spec.rank() - 1;
    let (values, _) = cx.topk(node, rows, last, (&Size::Int(count), false))?;
    let nan = cx.nan_mask(rows);
    let skips = node.target.starts_with("aten.nanquantile");
    let rank = match skips {
        true => {
            let nan = cx.cast(nan, ScalarType::Double);
            let nans = cx.sum(nan, &[last], true);
            let down = cx.unary("aten.neg.default", nans);
            let highest = cx.add(down, (count - 1) as f64);
            let highest = cx.clamp(highest, Some(0.0), None);
            cx.mul(highest, fractions)
        }
        false => cx.mul(fractions, (count - 1) as f64),
    };
    let mut sizes = cx.spec_of(rows).sizes;
    sizes[last] = cx.spec_of(fractions).sizes[0].clone();
    let rank = cx.expand(node, rank, sizes)?;
    let interpolation = match node.arg("interpolation") {
        Some(Argument::Str(mode)) => mode.clone(),
        _ => "linear".into(),
    };
    let mut quantiles = interpolate_at_rank(cx, node, values, rank, &interpolation)?;
    if !skips {
        let any = cx.reduce("aten.any.dims", nan, &[last], true);
        let not_a_number = cx.scalar(Scalar::Double(f64::NAN), spec.dtype)?;
        quantiles = cx.choose(any, not_a_number, quantiles);
    }
    let mut dims: Vec<usize> = (0..last).collect();
    dims.insert(0, last);
    let first = cx.permute(quantiles, &dims);
    let new = cx.view(node, first, want.sizes)?;
    cx.replace_node(node, new)
}

/// Interpolates between the sorted values at fractional positions.
fn interpolate_at_rank(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    values: VarId,
    rank: VarId,
    interpolation: &str,
) -> Result<VarId> {
    let last = cx.spec_of(values).rank() - 1;
    let value_at = |cx: &mut Rewriter<'_>, target: &'static str| {
        let place = cx.unary(target, rank);
        let place = cx.cast(place, ScalarType::Long);
        cx.gather(values, last, place)
    };
    match interpolation {
        "lower" => Ok(value_at(cx, "aten.floor.default")),
        "higher" => Ok(value_at(cx, "aten.ceil.default")),
        "nearest" => Ok(value_at(cx, "aten.round.default")),
        "linear" | "midpoint" => {
            let (low, high) = (value_at(cx, "aten.floor.default"), value_at(cx, "aten.ceil.default"));
            let way = cx.sub(high, low);
            let part = if interpolation == "midpoint" {
                cx.mul(way, 0.5)
            } else {
                let floor = cx.unary("aten.floor.default", rank);
                let rest = cx.sub(rank, floor);
                let dtype = cx.spec_of(way).dtype;
                let rest = cx.cast(rest, dtype);
                cx.mul(way, rest)
            };
            Ok(cx.add(low, part))
        }
        other => cx.fail(node, format!("`{other}` is no interpolation that is known")),
    }
}

/// Whether each element equals one of the test elements.
fn isin(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let tensor = |cx: &mut Rewriter<'_>, names: [&str; 2], like: Option<VarId>| -> Result<VarId> {
        let argument = names.iter().find_map(|n| node.arg(n).map(|a| (n, a.clone())));
        let dtype = like.map(|v| cx.spec_of(v).dtype);
        match argument {
            Some((name, Argument::Var(_))) => cx.tensor(node, name),
            Some((_, Argument::Int(v))) => cx.scalar(Scalar::Int(v), dtype.unwrap_or(ScalarType::Long)),
            Some((_, Argument::Float(v))) => cx.scalar(Scalar::Double(v), dtype.unwrap_or(ScalarType::Float)),
            _ => cx.fail(node, "it compares what is no number"),
        }
    };
    let tensor_operand = cx.optional_tensor(node, "elements").or(cx.optional_tensor(node, "test_elements"));
    let elements = tensor(cx, ["elements", "element"], tensor_operand)?;
    let others = tensor(cx, ["test_elements", "test_element"], tensor_operand)?;
    let (spec, other) = (cx.spec_of(elements), cx.spec_of(others));
    let flat = cx.view(node, others, vec![other.numel()])?;
    let wide = cx.unsqueeze(node, elements, spec.rank())?;
    let same = cx.compare("aten.eq.Tensor", wide, flat);
    let mut new = cx.reduce("aten.any.dims", same, &[spec.rank()], false);
    if cx.bool(node, "invert", false)? {
        new = cx.unary("aten.logical_not.default", new);
    }
    cx.replace_node(node, new)
}

/// The index of each element's bucket: the number of boundaries below it; with `right`, of those not above it.
fn bucketize(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let edges = match node.target.starts_with("aten.bucketize") {
        true => cx.tensor(node, "boundaries")?,
        false => cx.tensor(node, "sorted_sequence")?,
    };
    let want = cx.result_spec(node)?;
    let x = match (cx.optional_tensor(node, "self"), node.arg("self").cloned()) {
        (Some(x), _) => x,
        (None, Some(Argument::Int(v))) => cx.scalar(Scalar::Int(v), cx.spec_of(edges).dtype)?,
        (None, Some(Argument::Float(v))) => cx.scalar(Scalar::Double(v), cx.spec_of(edges).dtype)?,
        _ => return cx.fail(node, "it looks for what is no number"),
    };
    let mut edges = edges;
    if let Some(sorter) = cx.optional_tensor(node, "sorter") {
        let Some(last) = cx.spec_of(edges).rank().checked_sub(1) else {
            return cx.fail(node, "it sorts a tensor without dimensions");
        };
        edges = cx.gather(edges, last, sorter);
    }
    let right =
        cx.bool(node, "right", false)? || matches!(node.arg("side"), Some(Argument::Str(s)) if s == "right");
    let rank = cx.spec(node, x)?.rank();
    let wide = cx.unsqueeze(node, x, rank)?;
    if cx.spec_of(edges).rank() > 1 {
        // Each row has its own boundaries.
        let Some(place) = rank.checked_sub(1) else { return cx.fail(node, "it has no rows") };
        edges = cx.unsqueeze(node, edges, place)?;
    }
    // An element counts every boundary that is not above it; the comparison is inverted so that NaN goes into the last
    // bucket.
    let target = if right { "aten.gt.Tensor" } else { "aten.ge.Tensor" };
    let above = cx.compare(target, edges, wide);
    let before = cx.unary("aten.logical_not.default", above);
    let ones = cx.cast(before, ScalarType::Long);
    let count = cx.sum(ones, &[rank], false);
    let new = cx.cast(count, want.dtype);
    cx.replace_node(node, new)
}
