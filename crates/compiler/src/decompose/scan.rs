//! Scans along a dimension: each step combines every element with the one twice as far before it as in the step before,
//! so the number of steps is logarithmic in the size.

use super::Table;
use super::When::{Always, NoKernel};
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, Size, VarId};
use pteron_tensor::{Scalar, ScalarType};

pub(super) const RULES: Table = &[
    ("aten.cumprod", NoKernel, cumprod),
    ("aten.cummax", NoKernel, cumulative_extreme),
    ("aten.cummin", NoKernel, cumulative_extreme),
    ("aten.logcumsumexp", NoKernel, logcumsumexp),
    ("aten._logcumsumexp", NoKernel, logcumsumexp),
    ("aten.cumsum", NoKernel, cumsum),
    ("aten.diff", NoKernel, diff),
    ("aten.gradient", Always, gradient),
    ("aten.trapz", Always, trapezoid),
    ("aten.trapezoid", Always, trapezoid),
    ("aten.cumulative_trapezoid", Always, trapezoid),
];

/// The node's dimension, and the upper bound of its size.
fn scan_dim(cx: &Rewriter<'_>, node: &ExportedNode, x: VarId) -> Result<(usize, i64)> {
    let spec = cx.spec(node, x)?;
    let dim = cx.int(node, "dim", -1)?;
    let dim = cx.dim(node, dim, spec.rank())?;
    let most = spec.sizes.get(dim).map_or(1, |s| s.bounds(&cx.program.ranges).max);
    if most > 1 << 31 {
        return cx.fail(node, "the size of its dimension has no upper bound");
    }
    Ok((dim, most))
}

/// The distances of a parallel scan: 1, 2, 4, ... below `size`.
fn powers_of_two_below(size: i64) -> impl Iterator<Item = i64> {
    std::iter::successors(Some(1), |d| Some(d * 2)).take_while(move |&d| d < size)
}

/// For each element of dimension `dim`, the one `distance` positions before it, or `first` where there is none.
fn shift_by(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    x: VarId,
    (dim, distance): (usize, i64),
    first: Scalar,
) -> Result<VarId> {
    let size = cx.spec_of(x).sizes[dim].clone();
    let padded = cx.pad(x, dim, (distance, 0), first);
    cx.slice(node, padded, dim, (&Size::Int(0), &size))
}

/// The operand in the type of the result, the dimension of the scan, and the upper bound of that dimension's size: 1
/// for 0-d tensors.
fn operand(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<(VarId, usize, i64)> {
    let x = cx.tensor(node, "self")?;
    let want = cx.result_spec(node)?.dtype;
    let x = cx.cast(x, want);
    let (dim, most) = scan_dim(cx, node, x)?;
    let most = if cx.spec_of(x).rank() == 0 { 1 } else { most };
    Ok((x, dim, most))
}

fn cumprod(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (mut x, dim, most) = operand(cx, node)?;
    let one = if cx.spec_of(x).dtype.is_floating() { Scalar::Double(1.0) } else { Scalar::Int(1) };
    for distance in powers_of_two_below(most) {
        let earlier = shift_by(cx, node, x, (dim, distance), one)?;
        x = cx.mul(x, earlier);
    }
    cx.replace_node(node, x)
}

/// Casts the operand to the type of the result, in which the kernel then accumulates.
fn cumsum(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let (have, want) = (cx.spec(node, x)?, cx.result_spec(node)?.dtype);
    if have.dtype == want && have.rank() > 0 {
        return Ok(Outcome::Kept);
    }
    let cast = cx.cast(x, want);
    if have.rank() == 0 {
        return cx.replace_node(node, cast);
    }
    let dim = cx.int(node, "dim", 0)?;
    Ok(cx.retarget(
        node,
        "aten.cumsum.default",
        vec![("self", Argument::Var(cast)), ("dim", Argument::Int(dim))],
    ))
}

/// `cummax` and `cummin`: of equal elements the last one counts; NaN propagates.
fn cumulative_extreme(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (mut x, dim, most) = operand(cx, node)?;
    let is_max = node.target.starts_with("aten.cummax");
    let spec = cx.spec_of(x);
    let mut column = vec![Size::Int(1); spec.rank()];
    let mut places = match column.get_mut(dim) {
        Some(own) => {
            *own = spec.sizes[dim].clone();
            let places = cx.arange(node, &spec.sizes[dim], ScalarType::Long)?;
            let places = cx.view(node, places, column)?;
            cx.expand(node, places, spec.sizes.clone())?
        }
        None => cx.full(node, Vec::new(), Argument::Int(0), ScalarType::Long)?,
    };
    let (target, lowest) = match (is_max, super::order::largest_value(spec.dtype)) {
        (_, None) => return cx.fail(node, "it compares no real numbers"),
        (false, Some(largest)) => ("aten.le.Tensor", largest),
        (true, Some(_)) => ("aten.ge.Tensor", smallest_value(spec.dtype)),
    };
    for distance in powers_of_two_below(most) {
        let earlier = shift_by(cx, node, x, (dim, distance), lowest)?;
        let earlier_place = shift_by(cx, node, places, (dim, distance), Scalar::Int(0))?;
        let mut keep = cx.compare(target, x, earlier);
        if spec.dtype.is_floating() {
            let nan = cx.nan_mask(x);
            keep = cx.compare("aten.logical_or.default", keep, nan);
        }
        x = cx.choose(keep, x, earlier);
        places = cx.choose(keep, places, earlier_place);
    }
    if let Some(&second) = node.outputs.get(1) {
        cx.replace(second, places);
    }
    cx.replace_node(node, x)
}

/// The smallest value of a type, -infinity for floating-point types.
pub(super) fn smallest_value(dtype: ScalarType) -> Scalar {
    match dtype {
        ScalarType::Byte => Scalar::Int(0),
        ScalarType::Char => Scalar::Int(-128),
        ScalarType::Short => Scalar::Int(i64::from(i16::MIN)),
        ScalarType::Int => Scalar::Int(i64::from(i32::MIN)),
        ScalarType::Long => Scalar::Int(i64::MIN),
        ScalarType::Bool => Scalar::Bool(false),
        _ => Scalar::Double(f64::NEG_INFINITY),
    }
}

fn logcumsumexp(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (mut x, dim, most) = operand(cx, node)?;
    for distance in powers_of_two_below(most) {
        let earlier = shift_by(cx, node, x, (dim, distance), Scalar::Double(f64::NEG_INFINITY))?;
        x = log_add_exp(cx, x, earlier)?;
    }
    cx.replace_node(node, x)
}

/// `log(e^x + e^y)`; where the larger operand is infinite, it is the result.
pub(super) fn log_add_exp(cx: &mut Rewriter<'_>, x: VarId, y: VarId) -> Result<VarId> {
    let most = cx.binary("aten.maximum.default", x, y);
    let way = cx.sub(x, y);
    let size = cx.unary("aten.abs.default", way);
    let down = cx.unary("aten.neg.default", size);
    let power = cx.unary("aten.exp.default", down);
    let log = cx.unary("aten.log1p.default", power);
    let sum = cx.add(most, log);
    let size = cx.unary("aten.abs.default", most);
    let infinite = cx.compare("aten.eq.Scalar", size, f64::INFINITY);
    Ok(cx.choose(infinite, most, sum))
}

/// Differences of neighbours, `n` times.
fn diff(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let mut x = cx.tensor(node, "self")?;
    let (dim, _) = scan_dim(cx, node, x)?;
    if cx.int(node, "n", 1)? == 0 {
        return cx.replace_node(node, x);
    }
    let mut parts = vec![x];
    if let Some(first) = cx.optional_tensor(node, "prepend") {
        parts.insert(0, first);
    }
    parts.extend(cx.optional_tensor(node, "append"));
    x = cx.cat(&parts, dim);
    let is_bool = cx.spec_of(x).dtype == ScalarType::Bool;
    let times = cx.int(node, "n", 1)?;
    let known = cx.spec_of(x).sizes.get(dim).and_then(Size::known).unwrap_or(i64::MAX);
    cx.check_unrolled_size(node, times.min(known), 3)?;
    for _ in 0..times {
        let Some(size) = cx.spec_of(x).sizes.get(dim).cloned() else {
            return cx.fail(node, "it has no neighbours");
        };
        if size == Size::Int(0) {
            break;
        }
        let (low, high) = neighbours(cx, node, x, dim, &size)?;
        x = match is_bool {
            true => cx.compare("aten.logical_xor.default", high, low),
            false => cx.sub(high, low),
        };
    }
    cx.replace_node(node, x)
}

/// The derivative along each dimension from central differences, and at the ends from one-sided ones.
fn gradient(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let rank = cx.spec(node, x)?.rank();
    let dims = cx.dims(node, "dim", rank)?;
    let second = cx.int(node, "edge_order", 1)? == 2;
    let spacings = match node.arg("spacing") {
        None | Some(Argument::None) => vec![1.0],
        Some(Argument::Int(v)) => vec![*v as f64],
        Some(Argument::Float(v)) => vec![*v],
        Some(Argument::Floats(list)) => list.clone(),
        Some(list) => match list.known_ints() {
            Some(list) => list.iter().map(|&v| v as f64).collect(),
            None => {
                return cx.fail(
                    node,
                    "its elements have coordinates: only spacings that are numbers are supported",
                );
            }
        },
    };
    let dtype = cx.result_spec(node)?.dtype;
    let x = cx.cast(x, dtype);
    for (i, (&dim, &output)) in dims.iter().zip(&node.outputs).enumerate() {
        let Some(&spacing) = spacings.get(i).or(spacings.first()) else {
            return cx.fail(node, "it has no spacing");
        };
        let slopes = slopes(cx, node, x, dim, second)?;
        let new = cx.mul(slopes, 1.0 / spacing);
        cx.replace(output, new);
    }
    Ok(Outcome::Replaced)
}

/// The derivative along a dimension whose points are 1 apart; `second` makes the one-sided differences of second order.
fn slopes(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId, dim: usize, second: bool) -> Result<VarId> {
    let size = cx.spec_of(x).sizes.get(dim).cloned().unwrap_or(Size::Int(0));
    let low = if second { 3 } else { 2 };
    if size.bounds(&cx.program.ranges).min < low {
        return cx.fail(node, format!("dimension {dim} may have fewer than {low} elements"));
    }
    let at = |from: i64| if from < 0 { size.add(&Size::Int(from)) } else { Size::Int(from) };
    let part = |cx: &mut Rewriter<'_>, from: i64, len: &Size| {
        let start = at(from);
        cx.slice(node, x, dim, (&start, &start.add(len)))
    };
    let (one, inner) = (Size::Int(1), size.add(&Size::Int(-2)));
    let (before, after) = (part(cx, 0, &inner)?, part(cx, 2, &inner)?);
    let central = cx.sub(after, before);
    let central = cx.mul(central, 0.5);
    // The elements at an end, outermost first; the sign of the slope is that of the direction.
    let mut end = |places: [i64; 3], sign: f64| -> Result<VarId> {
        let [a, b] = [part(cx, places[0], &one)?, part(cx, places[1], &one)?];
        if !second {
            let step = cx.sub(b, a);
            return Ok(cx.mul(step, sign));
        }
        let c = part(cx, places[2], &one)?;
        let (a, b, c) = (cx.mul(a, -1.5 * sign), cx.mul(b, 2.0 * sign), cx.mul(c, -0.5 * sign));
        let sum = cx.add(a, b);
        Ok(cx.add(sum, c))
    };
    let (first, last) = (end([0, 1, 2], 1.0)?, end([-1, -2, -3], -1.0)?);
    Ok(cx.cat(&[first, central, last], dim))
}

/// All elements of a dimension but the last, and all but the first.
fn neighbours(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    x: VarId,
    dim: usize,
    size: &Size,
) -> Result<(VarId, VarId)> {
    let less = size.add(&Size::Int(-1));
    let low = cx.slice(node, x, dim, (&Size::Int(0), &less))?;
    Ok((low, cx.slice(node, x, dim, (&Size::Int(1), size))?))
}

/// The trapezoidal rule: the whole area, or the area up to each point.
fn trapezoid(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (y, want) = (cx.tensor(node, "y")?, cx.result_spec(node)?);
    let y = cx.cast(y, want.dtype);
    let (dim, _) = scan_dim(cx, node, y)?;
    let Some(size) = cx.spec_of(y).sizes.get(dim).cloned() else { return cx.fail(node, "it has no points") };
    let (low, high) = neighbours(cx, node, y, dim, &size)?;
    let mut area = cx.add(low, high);
    match cx.optional_tensor(node, "x") {
        Some(x) => {
            let spec = cx.spec_of(x);
            let along = if spec.rank() == 1 { 0 } else { cx.int(node, "dim", -1)? };
            let along = cx.dim(node, along, spec.rank())?;
            let Some(size) = spec.sizes.get(along).cloned() else {
                return cx.fail(node, "it has no points");
            };
            let (low, high) = neighbours(cx, node, x, along, &size)?;
            let mut way = cx.sub(high, low);
            if spec.rank() == 1 {
                let mut sizes = vec![Size::Int(1); cx.spec_of(y).rank() - dim];
                sizes[0] = cx.spec_of(way).sizes[0].clone();
                way = cx.view(node, way, sizes)?;
            }
            area = cx.mul(area, way);
        }
        None => {
            let dx = cx.float(node, "dx", 1.0)?;
            area = cx.mul(area, dx);
        }
    }
    let area = cx.mul(area, 0.5);
    let new = match node.target.starts_with("aten.cumulative") {
        true => {
            let spec = cx.spec_of(area);
            let args = vec![("self", Argument::Var(area)), ("dim", Argument::Int(dim as i64))];
            cx.emit("aten.cumsum.default", args, spec)
        }
        false => cx.sum(area, &[dim], false),
    };
    cx.replace_node(node, new)
}
