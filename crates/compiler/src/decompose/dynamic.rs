//! Operators whose results have sizes that depend on elements.

use super::Table;
use super::When::{Always, NoKernel};
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, Size, TensorSpec, VarId, VarType};
use pteron_tensor::{Scalar, ScalarType};

pub(super) const RULES: Table = &[
    ("aten.nonzero_numpy", Always, coordinates),
    ("aten.nonzero_static", Always, nonzero_static),
    ("aten.bincount", NoKernel, bincount),
    ("aten.gcd", NoKernel, gcd),
    ("aten.lcm", NoKernel, lcm),
    ("torchvision.nms", NoKernel, nms),
];

/// The coordinates of the nonzero elements, a vector for each dimension. A 0-d tensor counts as one element.
pub(super) fn coordinates(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let mut x = match cx.optional_tensor(node, "condition") {
        Some(condition) => condition,
        None => cx.tensor(node, "self")?,
    };
    if cx.spec(node, x)?.rank() == 0 {
        x = cx.view(node, x, vec![Size::Int(1)])?;
    }
    let rank = cx.spec_of(x).rank();
    if rank != node.outputs.len() {
        return cx.fail(node, format!("{} results for {rank} dimensions", node.outputs.len()));
    }
    let [count] = cx.result_spec(node)?.sizes.try_into().unwrap_or([Size::Int(0)]);
    let places = nonzero(cx, x, count);
    for (dim, &output) in node.outputs.iter().enumerate() {
        let column = cx.select(places, 1, dim as i64);
        cx.replace(output, column);
    }
    Ok(Outcome::Replaced)
}

/// The coordinates of the `count` nonzero elements, one row for each.
fn nonzero(cx: &mut Rewriter<'_>, x: VarId, count: Size) -> VarId {
    let sizes = vec![count, Size::Int(cx.spec_of(x).rank() as i64)];
    let spec = TensorSpec::contiguous(ScalarType::Long, sizes);
    cx.emit("aten.nonzero.default", vec![("self", Argument::Var(x))], spec)
}

/// The coordinates of the first nonzero elements, padded with rows of `fill_value` to a fixed number of rows.
fn nonzero_static(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, want) = (cx.tensor(node, "self")?, cx.result_spec(node)?);
    let (spec, fill) = (cx.spec(node, x)?, cx.int(node, "fill_value", -1)?);
    let [Size::Int(rows), _] = want.sizes[..] else {
        return cx.fail(node, "the number of its rows is not known");
    };
    let (count, long) = (spec.numel(), ScalarType::Long);
    let flat = cx.view(node, x, vec![count.clone()])?;
    let is_nonzero = cx.compare("aten.ne.Scalar", flat, 0);
    let ones = cx.cast(is_nonzero, long);
    let sums = cx.spec_of(ones);
    let place =
        cx.emit("aten.cumsum.default", vec![("self", Argument::Var(ones)), ("dim", Argument::Int(0))], sums);
    let place = cx.add(place, -1);
    // Elements that have no row in the result are written to an extra row after the last one.
    let behind = cx.scalar(Scalar::Int(rows), long)?;
    let fits = cx.compare("aten.lt.Scalar", place, rows);
    let fits = cx.compare("aten.logical_and.default", fits, is_nonzero);
    let place = cx.choose(fits, place, behind);
    let numbers = cx.arange(node, &count, long)?;
    let into = cx.full(node, vec![Size::Int(rows.saturating_add(1))], Argument::Int(-1), long)?;
    let args = vec![
        ("self", Argument::Var(into)),
        ("dim", Argument::Int(0)),
        ("index", Argument::Var(place)),
        ("src", Argument::Var(numbers)),
    ];
    let like = cx.spec_of(into);
    let all = cx.emit("aten.scatter.src", args, like);
    let places = cx.slice(node, all, 0, (&Size::Int(0), &Size::Int(rows)))?;
    let (absent, filler) = (cx.compare("aten.lt.Scalar", places, 0), cx.scalar(Scalar::Int(fill), long)?);
    let mut columns = Vec::with_capacity(spec.rank());
    let mut rest = places;
    for size in spec.sizes.iter().rev() {
        let Some(size) = size.known() else { return cx.fail(node, "a size of its operand is not known") };
        let size = size.max(1);
        let args = vec![("self", Argument::Var(rest)), ("other", Argument::Int(size))];
        let like = cx.spec_of(rest);
        let within = cx.emit("aten.remainder.Scalar", args, like);
        let column = cx.choose(absent, filler, within);
        columns.push(cx.unsqueeze(node, column, 1)?);
        rest = cx.floor_div(rest, size);
    }
    columns.reverse();
    let new = match columns.is_empty() {
        true => cx.full(node, want.sizes, Argument::Int(0), long)?,
        false => cx.cat(&columns, 1),
    };
    cx.replace_node(node, new)
}

/// `repeat_interleave` by a tensor: takes each slice as often as the tensor says, by an index with repetitions.
pub(super) fn repeat_by_tensor(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    repeats: VarId,
) -> Result<Outcome> {
    let Some(mut x) = cx.optional_tensor(node, "self") else { return Ok(Outcome::Kept) };
    let want = cx.result_spec(node)?;
    let rank = cx.spec(node, x)?.rank();
    let dim = match node.arg("dim") {
        None | Some(Argument::None) => {
            let numel = cx.spec_of(x).numel();
            x = cx.view(node, x, vec![numel])?;
            0
        }
        _ if rank == 0 => {
            x = cx.view(node, x, vec![Size::Int(1)])?;
            0
        }
        _ => {
            let dim = cx.int(node, "dim", 0)?;
            cx.dim(node, dim, rank)?
        }
    };
    let (Some(size), Some(total)) = (cx.spec_of(x).sizes.get(dim).cloned(), want.sizes.get(dim).cloned())
    else {
        return cx.fail(node, "its result lacks the dimension that is repeated");
    };
    // A single number of repetitions holds for every slice.
    let repeats = match cx.spec_of(repeats).rank() {
        0 => cx.view(node, repeats, vec![Size::Int(1)])?,
        _ => repeats,
    };
    let repeats = cx.expand(node, repeats, vec![size])?;
    let spec = TensorSpec::contiguous(cx.spec_of(repeats).dtype, vec![total]);
    let args = vec![("repeats", Argument::Var(repeats))];
    let places = cx.emit("aten.repeat_interleave.Tensor", args, spec);
    let new = cx.index_select(x, dim, places);
    cx.replace_node(node, new)
}

/// Counts the occurrences of each number, or sums their weights, by comparing all elements with all numbers.
fn bincount(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, want) = (cx.tensor(node, "self")?, cx.result_spec(node)?);
    let [bins] = want.sizes.as_slice() else { return cx.fail(node, "its result is no list") };
    let numbers = match bins {
        Size::Int(_) => cx.arange(node, bins, ScalarType::Long)?,
        Size::Sym(_) => range_to_maximum(cx, node, x, bins)?,
    };
    let x = cx.cast(x, ScalarType::Long);
    let rows = cx.unsqueeze(node, numbers, 1)?;
    let is_here = cx.compare("aten.eq.Tensor", rows, x);
    let new = match cx.optional_tensor(node, "weights") {
        None => {
            let ones = cx.cast(is_here, ScalarType::Long);
            cx.sum(ones, &[1], false)
        }
        Some(weights) => {
            let weights = cx.cast(weights, want.dtype);
            let zero = cx.scalar(Scalar::Int(0), want.dtype)?;
            let chosen = cx.choose(is_here, weights, zero);
            cx.sum(chosen, &[1], false)
        }
    };
    cx.replace_node(node, new)
}

/// `0, 1, ...` up to the greatest element, but at least `minlength` numbers.
fn range_to_maximum(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId, bins: &Size) -> Result<VarId> {
    let least = cx.int(node, "minlength", 0)?;
    let x = cx.cast(x, ScalarType::Long);
    // The last number of the shortest result counts as an element, so that the operand may be empty.
    let floor = cx.constant(&[Scalar::Int(least.saturating_sub(1))], ScalarType::Long, &[1])?;
    let all = cx.cat(&[x, floor], 0);
    let greatest = cx.reduce("aten.amax.default", all, &[0], false);
    let end = cx.add(greatest, 1);
    let end = cx.emit_many(
        "aten._local_scalar_dense.default",
        vec![("self", Argument::Var(end))],
        vec![VarType::Int(bins.clone())],
    )[0];
    let args = vec![("start", Argument::Int(0)), ("end", Argument::Var(end)), ("step", Argument::Int(1))];
    Ok(cx.emit("aten.arange.start", args, TensorSpec::contiguous(ScalarType::Long, vec![bins.clone()])))
}

/// Euclid's algorithm on all elements, until every remainder is zero.
/// Returns both operands, broadcast, and their greatest common divisor.
fn operands_and_gcd(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<(VarId, VarId, VarId)> {
    let want = cx.result_spec(node)?;
    let operand = |cx: &mut Rewriter<'_>, name: &str| -> Result<VarId> {
        let x = cx.tensor(node, name)?;
        let x = cx.cast(x, want.dtype);
        cx.expand(node, x, want.sizes.clone())
    };
    let (a, b) = (operand(cx, "self")?, operand(cx, "other")?);
    let start = [cx.unary("aten.abs.default", a), cx.unary("aten.abs.default", b)];
    let results = cx.repeat_while(
        &start,
        |cx, state| {
            let left = cx.compare("aten.ne.Scalar", state[1], 0);
            Ok(cx.any(left))
        },
        |cx, state| {
            let done = cx.compare("aten.eq.Scalar", state[1], 0);
            let one = cx.scalar(Scalar::Int(1), want.dtype)?;
            let zero = cx.scalar(Scalar::Int(0), want.dtype)?;
            let under = cx.choose(done, one, state[1]);
            let rest = cx.binary("aten.remainder.Tensor", state[0], under);
            Ok(vec![cx.choose(done, state[0], state[1]), cx.choose(done, zero, rest)])
        },
    )?;
    Ok((a, b, results[0]))
}

fn gcd(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (.., common) = operands_and_gcd(cx, node)?;
    cx.replace_node(node, common)
}

fn lcm(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (a, b, common) = operands_and_gcd(cx, node)?;
    let dtype = cx.spec_of(common).dtype;
    let none = cx.compare("aten.eq.Scalar", common, 0);
    let one = cx.scalar(Scalar::Int(1), dtype)?;
    let under = cx.choose(none, one, common);
    let spec = cx.spec_of(a);
    let args = vec![
        ("self", Argument::Var(a)),
        ("other", Argument::Var(under)),
        ("rounding_mode", Argument::Str("trunc".into())),
    ];
    let share = cx.emit("aten.div.Tensor_mode", args, spec);
    let product = cx.mul(share, b);
    let new = cx.unary("aten.abs.default", product);
    cx.replace_node(node, new)
}

/// The largest number of boxes for non-maximum suppression, which computes the overlaps of all pairs.
const MAX_BOXES: i64 = 2048;

/// The boxes that no better remaining box overlaps by more than the threshold, best first. Starting with all boxes, the
/// set of those that no better one *of the set* suppresses is computed until it stays the same: after `n` steps the
/// best `n` boxes are right.
fn nms(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (boxes, scores) = (cx.tensor(node, "dets")?, cx.tensor(node, "scores")?);
    let (threshold, want) = (cx.float(node, "iou_threshold", 0.0)?, cx.result_spec(node)?);
    let spec = cx.spec(node, boxes)?;
    let [count, _] = spec.sizes.as_slice() else { return cx.fail(node, "its boxes are no matrix") };
    let [num_kept] = want.sizes.as_slice() else { return cx.fail(node, "its result is no list") };
    if count.bounds(&cx.program.ranges).max > MAX_BOXES {
        return Ok(Outcome::Kept);
    }
    let numbers = cx.arange(node, count, ScalarType::Long)?;
    let better = precedence_mask(cx, node, scores, numbers)?;
    let overlaps = overlap_mask(cx, node, boxes, threshold)?;
    let suppresses = cx.compare("aten.logical_and.default", better, overlaps);
    let all = cx.full(node, vec![count.clone()], Argument::Bool(true), ScalarType::Bool)?;
    let changed = cx.full(node, Vec::new(), Argument::Bool(true), ScalarType::Bool)?;
    let results = cx.repeat_while(
        &[all, changed],
        |_, state| Ok(state[1]),
        |cx, state| {
            let remaining = cx.unsqueeze(node, state[0], 1)?;
            let suppresses = cx.compare("aten.logical_and.default", suppresses, remaining);
            let suppressed = cx.reduce("aten.any.dims", suppresses, &[0], false);
            let left = cx.unary("aten.logical_not.default", suppressed);
            let differs = cx.compare("aten.ne.Tensor", left, state[0]);
            Ok(vec![left, cx.any(differs)])
        },
    )?;
    // The place of a box is the number of better ones.
    let ones = cx.cast(better, ScalarType::Float);
    let place = cx.sum(ones, &[0], false);
    let place = cx.cast(place, ScalarType::Long);
    let args = vec![
        ("self", Argument::Var(numbers)),
        ("dim", Argument::Int(0)),
        ("index", Argument::Var(place)),
        ("src", Argument::Var(numbers)),
    ];
    let like = cx.spec_of(numbers);
    let order = cx.emit("aten.scatter.src", args, like);
    let remaining = cx.cast(results[0], ScalarType::Long);
    let remaining = cx.index_select(remaining, 0, order);
    let rows = nonzero(cx, remaining, num_kept.clone());
    let rows = cx.select(rows, 1, 0);
    let new = cx.index_select(order, 0, rows);
    cx.replace_node(node, new)
}

/// Whether each box (a row) comes before another (a column): its score is greater, or equal and it is listed before.
fn precedence_mask(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    scores: VarId,
    numbers: VarId,
) -> Result<VarId> {
    // Like a sort, this takes NaN for the greatest.
    let nan = cx.nan_mask(scores);
    let most = cx.scalar(Scalar::Double(f64::INFINITY), cx.spec_of(scores).dtype)?;
    let scores = cx.choose(nan, most, scores);
    let rows = cx.unsqueeze(node, scores, 1)?;
    let greater = cx.compare("aten.gt.Tensor", rows, scores);
    let equal = cx.compare("aten.eq.Tensor", rows, scores);
    let rows = cx.unsqueeze(node, numbers, 1)?;
    let before = cx.compare("aten.lt.Tensor", rows, numbers);
    let first = cx.compare("aten.logical_and.default", equal, before);
    Ok(cx.compare("aten.logical_or.default", greater, first))
}

/// Whether each box (a row) overlaps another (a column) by more than the threshold.
fn overlap_mask(cx: &mut Rewriter<'_>, node: &ExportedNode, boxes: VarId, threshold: f64) -> Result<VarId> {
    let [left, top, right, bottom] = [0, 1, 2, 3].map(|column| cx.select(boxes, 1, column));
    let (width, height) = (cx.sub(right, left), cx.sub(bottom, top));
    let areas = cx.mul(width, height);
    let side = |cx: &mut Rewriter<'_>, low: VarId, high: VarId| -> Result<VarId> {
        let (first_low, first_high) = (cx.unsqueeze(node, low, 1)?, cx.unsqueeze(node, high, 1)?);
        let start = cx.binary("aten.maximum.default", first_low, low);
        let end = cx.binary("aten.minimum.default", first_high, high);
        let length = cx.sub(end, start);
        Ok(cx.clamp(length, Some(0.0), None))
    };
    let (across, down) = (side(cx, left, right)?, side(cx, top, bottom)?);
    let common = cx.mul(across, down);
    let first = cx.unsqueeze(node, areas, 1)?;
    let both = cx.add(first, areas);
    let union = cx.sub(both, common);
    let ratio = cx.div(common, union);
    Ok(cx.compare("aten.gt.Scalar", ratio, threshold))
}
