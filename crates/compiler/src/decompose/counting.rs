//! Histograms, segments, and mantissas and exponents, by comparing all elements with all bins or segments.

use super::Table;
use super::When::NoKernel;
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, Size, TensorSpec, VarId};
use pteron_tensor::{Scalar, ScalarType};

pub(super) const RULES: Table = &[
    ("aten.frexp", NoKernel, frexp),
    ("aten.histogram", NoKernel, histogram),
    ("aten.segment_reduce", NoKernel, segment_reduce),
];

/// Replaces a node's two results by `first` and `second`.
fn replace_both(cx: &mut Rewriter<'_>, node: &ExportedNode, first: VarId, second: VarId) -> Result<Outcome> {
    match node.outputs.get(1) {
        Some(&output) => cx.replace(output, second),
        None => return cx.fail(node, "it has one result instead of two"),
    }
    cx.replace_node(node, first)
}

/// `2^exponent`.
fn power_of_two(cx: &mut Rewriter<'_>, exponent: VarId) -> VarId {
    let spec = cx.spec_of(exponent);
    cx.emit(
        "aten.pow.Scalar",
        vec![("self", Argument::Float(2.0)), ("exponent", Argument::Var(exponent))],
        spec,
    )
}

/// `frexp`: takes the exponent from the logarithm, and corrects it where rounding puts the mantissa out of range.
fn frexp(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let dtype = cx.spec(node, x)?.dtype;
    let wide = cx.cast(x, ScalarType::Double);
    let size = cx.unary("aten.abs.default", wide);
    let (above, below) =
        (cx.compare("aten.gt.Scalar", size, 0.0), cx.compare("aten.lt.Scalar", size, f64::INFINITY));
    let has_parts = cx.compare("aten.logical_and.default", above, below);
    let [one, zero] = [1.0, 0.0].map(|v| cx.scalar(Scalar::Double(v), ScalarType::Double));
    let (one, zero) = (one?, zero?);
    let size = cx.choose(has_parts, size, one);
    let log = cx.unary("aten.log2.default", size);
    let floor = cx.unary("aten.floor.default", log);
    let exponent = cx.add(floor, 1.0);
    // In two factors, neither of which overflows or vanishes.
    let half = cx.mul(exponent, -0.5);
    let half = cx.unary("aten.floor.default", half);
    let sum = cx.add(half, exponent);
    let rest = cx.unary("aten.neg.default", sum);
    let (first, second) = (power_of_two(cx, half), power_of_two(cx, rest));
    let scaled = cx.mul(size, first);
    let mantissa = cx.mul(scaled, second);
    let high = cx.compare("aten.ge.Scalar", mantissa, 1.0);
    let low = cx.compare("aten.lt.Scalar", mantissa, 0.5);
    let [high, low] = [high, low].map(|v| cx.cast(v, ScalarType::Double));
    let step = cx.sub(high, low);
    let exponent = cx.add(exponent, step);
    let back = cx.unary("aten.neg.default", step);
    let factor = power_of_two(cx, back);
    let mantissa = cx.mul(mantissa, factor);
    let sign = cx.unary("aten.sign.default", wide);
    let mantissa = cx.mul(mantissa, sign);
    let mantissa = cx.choose(has_parts, mantissa, wide);
    let exponent = cx.choose(has_parts, exponent, zero);
    let (mantissa, exponent) = (cx.cast(mantissa, dtype), cx.cast(exponent, ScalarType::Int));
    replace_both(cx, node, mantissa, exponent)
}

/// The edges of a histogram's bins: an argument, or evenly spaced over a given range or the range of the elements.
fn bin_edges(cx: &mut Rewriter<'_>, node: &ExportedNode, flat: VarId) -> Result<VarId> {
    if let Some(edges) = cx.optional_tensor(node, "bins") {
        return Ok(edges);
    }
    let (dtype, bins) = (cx.spec_of(flat).dtype, cx.int(node, "bins", 100)?);
    if !(1..1 << 24).contains(&bins) {
        return cx.fail(node, format!("{bins} bins"));
    }
    let range = match node.arg("range") {
        Some(Argument::Floats(range)) => range.clone(),
        _ if cx.spec_of(flat).sizes == [Size::Int(0)] => vec![0.0, 1.0],
        _ => Vec::new(),
    };
    let (low, high) = match range[..] {
        [low, high] => {
            let widen = if low == high { 0.5 } else { 0.0 };
            (cx.scalar(Scalar::Double(low - widen), dtype)?, cx.scalar(Scalar::Double(high + widen), dtype)?)
        }
        _ => value_range(cx, flat, 0.5)?,
    };
    let share = |i: i64| Scalar::Double(i as f64 / bins as f64);
    let parts: Vec<Scalar> = (0..=bins).map(share).collect();
    let rest: Vec<Scalar> = (0..=bins).rev().map(share).collect();
    let count = parts.len();
    let (parts, rest) = (cx.constant(&parts, dtype, &[count])?, cx.constant(&rest, dtype, &[count])?);
    let (of_high, of_low) = (cx.mul(parts, high), cx.mul(rest, low));
    Ok(cx.add(of_high, of_low))
}

/// The smallest and greatest element of a vector; if they are equal, each is moved outwards by `widen`.
pub(super) fn value_range(cx: &mut Rewriter<'_>, flat: VarId, widen: f64) -> Result<(VarId, VarId)> {
    let [low, high] =
        ["aten.amin.default", "aten.amax.default"].map(|target| cx.reduce(target, flat, &[0], false));
    let same = cx.compare("aten.eq.Tensor", low, high);
    let dtype = cx.spec_of(flat).dtype;
    let same = cx.cast(same, dtype);
    let step = cx.mul(same, widen);
    Ok((cx.sub(low, step), cx.add(high, step)))
}

fn histogram(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let numel = cx.spec(node, x)?.numel();
    let flat = cx.view(node, x, vec![numel.clone()])?;
    let edges = bin_edges(cx, node, flat)?;
    let dtype = cx.spec_of(flat).dtype;
    let Some(last) = cx.spec_of(edges).sizes.first().and_then(Size::known).map(|n| n - 1) else {
        return cx.fail(node, "the number of its bins is not known");
    };
    if !(0..1 << 24).contains(&last) {
        return cx.fail(node, format!("{last} bins"));
    }
    let lower = cx.slice(node, edges, 0, (&Size::Int(0), &Size::Int(last)))?;
    let upper = cx.slice(node, edges, 0, (&Size::Int(1), &Size::Int(last + 1)))?;
    let (low, high) = (cx.unsqueeze(node, lower, 1)?, cx.unsqueeze(node, upper, 1)?);
    let from = cx.compare("aten.le.Tensor", low, flat);
    let before = cx.compare("aten.gt.Tensor", high, flat);
    // The last bin contains its upper edge.
    let is_last: Vec<Scalar> = (0..last).map(|i| Scalar::Bool(i == last - 1)).collect();
    let is_last = cx.constant(&is_last, ScalarType::Bool, &[is_last.len(), 1])?;
    let on_edge = cx.compare("aten.eq.Tensor", high, flat);
    let on_edge = cx.compare("aten.logical_and.default", on_edge, is_last);
    let before = cx.compare("aten.logical_or.default", before, on_edge);
    let inside = cx.compare("aten.logical_and.default", from, before);
    let values = match cx.optional_tensor(node, "weight") {
        None => cx.cast(inside, dtype),
        Some(weight) => {
            let (weight, zero) =
                (cx.view(node, weight, vec![numel])?, cx.scalar(Scalar::Double(0.0), dtype)?);
            cx.choose(inside, weight, zero)
        }
    };
    let mut hist = cx.sum(values, &[1], false);
    if cx.bool(node, "density", false)? {
        let (total, width) = (cx.sum(hist, &[0], false), cx.sub(upper, lower));
        let share = cx.div(hist, total);
        hist = cx.div(share, width);
    }
    replace_both(cx, node, hist, edges)
}

/// Reduces segments: for each segment, reduces the whole dimension, with neutral elements in place of the elements of
/// other segments.
fn segment_reduce(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, want) = (cx.tensor(node, "data")?, cx.result_spec(node)?);
    let spec = cx.spec(node, x)?;
    let axis = cx.int(node, "axis", 0)?;
    let axis = cx.dim(node, axis, spec.rank())?;
    let (Some(size), Some(segments)) = (spec.sizes.get(axis).cloned(), want.sizes.get(axis).cloned()) else {
        return cx.fail(node, "its data has no such dimension");
    };
    let how = match node.arg("reduce") {
        Some(Argument::Str(how)) => how.clone(),
        _ => return cx.fail(node, "it has no reduction"),
    };
    let (target, neutral) = match &*how {
        "sum" | "mean" => ("aten.sum.dim_IntList", 0.0),
        "max" => ("aten.amax.default", f64::NEG_INFINITY),
        "min" => ("aten.amin.default", f64::INFINITY),
        "prod" => ("aten.prod.dim_int", 1.0),
        other => return cx.fail(node, format!("`{other}` is no reduction that is known")),
    };
    let product = |sizes: &[Size]| sizes.iter().fold(Size::Int(1), |n, s| n.mul(s));
    let (outer, inner) = (product(&spec.sizes[..axis]), product(&spec.sizes[axis + 1..]));
    let (starts, ends) = segment_bounds(cx, node, &outer, &segments)?;
    let (starts, ends) = (cx.unsqueeze(node, starts, 2)?, cx.unsqueeze(node, ends, 2)?);
    let places = cx.arange(node, &size, ScalarType::Long)?;
    let (after, before) =
        (cx.compare("aten.le.Tensor", starts, places), cx.compare("aten.gt.Tensor", ends, places));
    let inside = cx.compare("aten.logical_and.default", after, before);
    let inside = cx.unsqueeze(node, inside, 3)?;
    let rows = cx.view(node, x, vec![outer, Size::Int(1), size, inner])?;
    let fill = cx.scalar(Scalar::Double(neutral), spec.dtype)?;
    let chosen = cx.choose(inside, rows, fill);
    let mut value = match target {
        "aten.prod.dim_int" => {
            let mut spec = cx.spec_of(chosen);
            spec.sizes.remove(2);
            let args = vec![
                ("self", Argument::Var(chosen)),
                ("dim", Argument::Int(2)),
                ("keepdim", Argument::Bool(false)),
            ];
            cx.emit(target, args, TensorSpec::contiguous(spec.dtype, spec.sizes))
        }
        _ => cx.reduce(target, chosen, &[2], false),
    };
    let initial = node.arg("initial").is_some_and(|a| *a != Argument::None);
    if initial {
        let start = cx.float(node, "initial", 0.0)?;
        let start = cx.scalar(Scalar::Double(start), spec.dtype)?;
        let combine = match &*how {
            "sum" | "mean" => "aten.add.Tensor",
            "max" => "aten.maximum.default",
            "min" => "aten.minimum.default",
            _ => "aten.mul.Tensor",
        };
        value = cx.binary(combine, value, start);
    }
    if &*how == "mean" {
        let lengths = cx.sub(ends, starts);
        let lengths = cx.cast(lengths, spec.dtype);
        // Without an initial value, the mean of no elements is 0 / 0.
        let under = if initial { cx.clamp(lengths, Some(1.0), None) } else { lengths };
        value = cx.div(value, under);
    }
    let new = cx.view(node, value, want.sizes)?;
    cx.replace_node(node, new)
}

/// The start and the exclusive end of each segment: two matrices with a row for each row of the data.
fn segment_bounds(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    outer: &Size,
    segments: &Size,
) -> Result<(VarId, VarId)> {
    if let Some(offsets) = cx.optional_tensor(node, "offsets") {
        let offsets = cx.cast(offsets, ScalarType::Long);
        let all = cx.view(node, offsets, vec![outer.clone(), segments.add(&Size::Int(1))])?;
        let starts = cx.slice(node, all, 1, (&Size::Int(0), segments))?;
        return Ok((starts, cx.slice(node, all, 1, (&Size::Int(1), &segments.add(&Size::Int(1))))?));
    }
    let lengths = cx.tensor(node, "lengths")?;
    let lengths = cx.cast(lengths, ScalarType::Long);
    let lengths = cx.view(node, lengths, vec![outer.clone(), segments.clone()])?;
    let spec = cx.spec_of(lengths);
    let ends = cx.emit(
        "aten.cumsum.default",
        vec![("self", Argument::Var(lengths)), ("dim", Argument::Int(1))],
        spec,
    );
    Ok((cx.sub(ends, lengths), ends))
}
