//! Reductions and statistics.

use super::Table;
use super::When::{Always, NoKernel};
use crate::Result;
use crate::rewrite::{Arg, Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, TensorSpec, VarId};
use pteron_tensor::{Scalar, ScalarType};

pub(super) const RULES: Table = &[
    ("aten.sum", Always, sum_or_mean),
    ("aten.mean", Always, sum_or_mean),
    ("aten.var", Always, var),
    ("aten.std", NoKernel, std),
    ("aten.std_mean", NoKernel, std_mean),
    ("aten.var_mean", NoKernel, var_mean),
    ("aten.all", NoKernel, all),
    ("aten.logsumexp", NoKernel, logsumexp),
    ("aten.norm", NoKernel, norm),
    ("aten.linalg_vector_norm", NoKernel, norm),
    ("aten.linalg_norm", NoKernel, norm),
    ("aten.count_nonzero", NoKernel, count_nonzero),
    ("aten.aminmax", NoKernel, aminmax),
    ("aten.nansum", NoKernel, nansum_or_nanmean),
    ("aten.nanmean", NoKernel, nansum_or_nanmean),
    ("aten.sum_to_size", Always, sum_to_size),
    ("aten.linalg_matrix_norm", NoKernel, matrix_norm),
    ("aten.frobenius_norm", NoKernel, frobenius),
    ("aten.dist", NoKernel, dist),
    ("aten.histc", NoKernel, histc),
    ("aten.renorm", NoKernel, renorm),
];

fn self_operand(cx: &Rewriter<'_>, node: &ExportedNode) -> Result<(VarId, TensorSpec)> {
    let x = cx.tensor(node, "self")?;
    Ok((x, cx.spec(node, x)?))
}

/// Makes the dimensions explicit, and casts the operand to the type of the result if that is a floating-point type.
fn sum_or_mean(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, spec) = self_operand(cx, node)?;
    let is_sum = node.target.starts_with("aten.sum");
    let target = if is_sum { "aten.sum.dim_IntList" } else { "aten.mean.dim" };
    if *node.target == *target
        && node.arg("dtype").is_none()
        && node.arg("dim").is_some_and(|d| *d != Argument::None)
    {
        return Ok(Outcome::Kept);
    }
    let dims: Vec<i64> = cx.dims(node, "dim", spec.rank())?.into_iter().map(|d| d as i64).collect();
    let keep = cx.bool(node, "keepdim", false)?;
    let want = cx.result_spec(node)?.dtype;
    let x = if want.is_floating() { cx.cast(x, want) } else { x };
    let args =
        vec![("self", Argument::Var(x)), ("dim", Argument::ints(&dims)), ("keepdim", Argument::Bool(keep))];
    Ok(cx.retarget(node, target, args))
}

/// The dimensions, correction and `keepdim` arguments of a variance, for whichever overload the node calls.
fn variance_args(cx: &Rewriter<'_>, node: &ExportedNode) -> Result<Vec<Arg>> {
    let (x, spec) = self_operand(cx, node)?;
    let dims: Vec<i64> = cx.dims(node, "dim", spec.rank())?.into_iter().map(|d| d as i64).collect();
    let correction = match (node.arg("correction"), node.arg("unbiased")) {
        (Some(Argument::None) | None, Some(_)) => f64::from(u8::from(cx.bool(node, "unbiased", true)?)),
        _ => cx.float(node, "correction", 1.0)?,
    };
    let correction = match correction.fract() == 0.0 {
        true => Argument::Int(correction as i64),
        false => Argument::Float(correction),
    };
    Ok(vec![
        ("self", Argument::Var(x)),
        ("dim", Argument::ints(&dims)),
        ("correction", correction),
        ("keepdim", Argument::Bool(cx.bool(node, "keepdim", false)?)),
    ])
}

fn var(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    if &*node.target == "aten.var.correction" && node.arg("dim").is_some_and(|d| *d != Argument::None) {
        return Ok(Outcome::Kept);
    }
    let args = variance_args(cx, node)?;
    Ok(cx.retarget(node, "aten.var.correction", args))
}

fn std(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (args, spec) = (variance_args(cx, node)?, cx.result_spec(node)?);
    let var = cx.emit("aten.var.correction", args, TensorSpec::contiguous(spec.dtype, spec.sizes));
    let new = cx.unary("aten.sqrt.default", var);
    cx.replace_node(node, new)
}

fn variance_and_mean(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<(VarId, VarId)> {
    let (args, spec) = (variance_args(cx, node)?, cx.result_spec(node)?);
    let (x, have) = self_operand(cx, node)?;
    let dims = cx.dims(node, "dim", have.rank())?;
    let keep = cx.bool(node, "keepdim", false)?;
    let var = cx.emit("aten.var.correction", args, TensorSpec::contiguous(spec.dtype, spec.sizes));
    Ok((var, cx.reduce("aten.mean.dim", x, &dims, keep)))
}

fn var_mean(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (var, mean) = variance_and_mean(cx, node)?;
    if let Some(&second) = node.outputs.get(1) {
        cx.replace(second, mean);
    }
    cx.replace_node(node, var)
}

fn std_mean(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (var, mean) = variance_and_mean(cx, node)?;
    if let Some(&second) = node.outputs.get(1) {
        cx.replace(second, mean);
    }
    let new = cx.unary("aten.sqrt.default", var);
    cx.replace_node(node, new)
}

/// `all(x) = !any(!x)`.
fn all(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, _) = self_operand(cx, node)?;
    let mut spec = cx.spec_of(x);
    spec.dtype = ScalarType::Bool;
    let not = cx.emit("aten.logical_not.default", vec![("self", Argument::Var(x))], spec);
    let mut any = node.clone();
    any.target = node.target.replacen("aten.all", "aten.any", 1).into();
    for (name, arg) in &mut any.args {
        if &**name == "self" {
            *arg = Argument::Var(not);
        }
    }
    let want = cx.result_spec(node)?;
    let wrong = cx
        .program
        .add_var(format!("any_{}", cx.program.num_vars()), pteron_exported::VarType::Tensor(want.clone()));
    any.outputs = vec![wrong];
    cx.push_node(any);
    let new = cx.emit("aten.logical_not.default", vec![("self", Argument::Var(wrong))], want);
    cx.replace_node(node, new)
}

/// Subtracts the maximum before `exp`, unless it is infinite.
fn logsumexp(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, _) = self_operand(cx, node)?;
    let want = cx.result_spec(node)?;
    let x = cx.cast(x, want.dtype);
    let spec = cx.spec_of(x);
    let dims = cx.dims(node, "dim", spec.rank())?;
    let most = cx.reduce("aten.amax.default", x, &dims, true);
    let size = cx.unary("aten.abs.default", most);
    let infinite = cx.compare("aten.eq.Scalar", size, f64::INFINITY);
    let zero = cx.scalar(Scalar::Double(0.0), spec.dtype)?;
    let most = cx.choose(infinite, zero, most);
    let moved = cx.binary("aten.sub.Tensor", x, most);
    let powers = cx.unary("aten.exp.default", moved);
    let sum = cx.reduce("aten.sum.dim_IntList", powers, &dims, true);
    let log = cx.unary("aten.log.default", sum);
    let total = cx.binary("aten.add.Tensor", log, most);
    let new = cx.view(node, total, want.sizes)?;
    cx.replace_node(node, new)
}

fn norm(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, spec) = self_operand(cx, node)?;
    if node.target.starts_with("aten.linalg_norm") && is_matrix_norm(cx, node, spec.rank())? {
        return matrix_norm(cx, node);
    }
    let dims = cx.dims(node, "dim", spec.rank())?;
    let keep = cx.bool(node, "keepdim", false)?;
    let order = if node.arg("p").is_some() { "p" } else { "ord" };
    let p = cx.float(node, order, 2.0)?;
    let want = cx.result_spec(node)?.dtype;
    let x = cx.cast(x, want);
    let new = vector_norm(cx, x, p, &dims, keep);
    cx.replace_node(node, new)
}

/// Whether a `linalg_norm` node computes a matrix norm: it has an `ord`, and either two `dim`s or none and a 2-d
/// operand.
fn is_matrix_norm(cx: &Rewriter<'_>, node: &ExportedNode, rank: usize) -> Result<bool> {
    let count = cx.ints(node, "dim")?.map_or(rank, |dims| dims.len());
    Ok(count == 2 && node.arg("ord").is_some_and(|ord| !matches!(ord, Argument::None)))
}

/// The p-norm over dimensions.
pub(super) fn vector_norm(cx: &mut Rewriter<'_>, x: VarId, p: f64, dims: &[usize], keep: bool) -> VarId {
    if p == 2.0 {
        let squares = cx.mul(x, x);
        let total = cx.sum(squares, dims, keep);
        return cx.unary("aten.sqrt.default", total);
    }
    if p == 0.0 {
        let there = cx.compare("aten.ne.Scalar", x, 0.0);
        let dtype = cx.spec_of(x).dtype;
        let ones = cx.cast(there, dtype);
        return cx.sum(ones, dims, keep);
    }
    let sizes = cx.unary("aten.abs.default", x);
    if p == 1.0 {
        return cx.sum(sizes, dims, keep);
    }
    if p.is_infinite() {
        let target = if p > 0.0 { "aten.amax.default" } else { "aten.amin.default" };
        return cx.reduce(target, sizes, dims, keep);
    }
    let powers = cx.pow(sizes, p);
    let total = cx.sum(powers, dims, keep);
    cx.pow(total, 1.0 / p)
}

fn count_nonzero(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, spec) = self_operand(cx, node)?;
    let dims = cx.dims(node, "dim", spec.rank())?;
    let there = cx.compare("aten.ne.Scalar", x, 0);
    let ones = cx.cast(there, ScalarType::Long);
    let new = cx.reduce("aten.sum.dim_IntList", ones, &dims, false);
    cx.replace_node(node, new)
}

fn aminmax(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, spec) = self_operand(cx, node)?;
    let dims = cx.dims(node, "dim", spec.rank())?;
    let keep = cx.bool(node, "keepdim", false)?;
    for (&output, target) in node.outputs.iter().zip(["aten.amin.default", "aten.amax.default"]) {
        let new = cx.reduce(target, x, &dims, keep);
        cx.replace(output, new);
    }
    Ok(Outcome::Replaced)
}

/// `nansum` and `nanmean`: sums and means that ignore NaN.
fn nansum_or_nanmean(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, spec) = self_operand(cx, node)?;
    let want = cx.result_spec(node)?.dtype;
    let dims = cx.dims(node, "dim", spec.rank())?;
    let keep = cx.bool(node, "keepdim", false)?;
    let x = cx.cast(x, want);
    if !want.is_floating() {
        let new = cx.sum(x, &dims, keep);
        return cx.replace_node(node, new);
    }
    let nan = cx.nan_mask(x);
    let zero = cx.scalar(Scalar::Double(0.0), want)?;
    let numbers = cx.choose(nan, zero, x);
    let mut new = cx.sum(numbers, &dims, keep);
    if node.target.starts_with("aten.nanmean") {
        let counts = cx.unary("aten.logical_not.default", nan);
        let counts = cx.cast(counts, want);
        let count = cx.sum(counts, &dims, keep);
        new = cx.div(new, count);
    }
    cx.replace_node(node, new)
}

/// Sums over the dimensions that broadcasting from the result's sizes to the operand's would repeat.
fn sum_to_size(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let ((x, spec), want) = (self_operand(cx, node)?, cx.result_spec(node)?);
    let before = spec.rank().saturating_sub(want.rank());
    let repeated = |d: &usize| *d < before || want.sizes[d - before] != spec.sizes[*d];
    let dims: Vec<usize> = (0..spec.rank()).filter(repeated).collect();
    let new = if dims.is_empty() { x } else { cx.sum(x, &dims, true) };
    let new = cx.view(node, new, want.sizes)?;
    cx.replace_node(node, new)
}

/// The order that stands for the nuclear norm, which is the sum of the singular values.
const NUCLEAR: f64 = 0.0;

/// The Frobenius or nuclear norm, an extreme absolute sum of a row or column, or an extreme singular value.
fn matrix_norm(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let ((x, spec), want) = (self_operand(cx, node)?, cx.result_spec(node)?);
    let order = match node.arg("ord") {
        None | Some(Argument::None) => None,
        Some(Argument::Str(s)) if s == "fro" => None,
        Some(Argument::Str(s)) if s == "nuc" => Some(NUCLEAR),
        Some(Argument::Str(other)) => return cx.fail(node, format!("the norm `{other}` of a matrix")),
        _ => Some(cx.float(node, "ord", 2.0)?),
    };
    let list = cx.ints(node, "dim")?.unwrap_or(vec![-2, -1]);
    let dims: Vec<usize> = list.iter().map(|&d| cx.dim(node, d, spec.rank())).collect::<Result<_>>()?;
    let &[row, column] = dims.as_slice() else { return cx.fail(node, "it names no two dimensions") };
    let x = cx.cast(x, want.dtype);
    let new = match order {
        None => vector_norm(cx, x, 2.0, &dims, true),
        Some(p) if p.abs() == 1.0 || p.is_infinite() => {
            let sizes = cx.unary("aten.abs.default", x);
            let (summed, reduced) = if p.is_infinite() { (column, row) } else { (row, column) };
            let sums = cx.sum(sizes, &[summed], true);
            let target = if p > 0.0 { "aten.amax.default" } else { "aten.amin.default" };
            cx.reduce(target, sums, &[reduced], true)
        }
        Some(p) => {
            let others = (0..spec.rank()).filter(|d| !dims.contains(d));
            let order: Vec<usize> = others.chain([row, column]).collect();
            let matrices = cx.permute(x, &order);
            let wide = if want.dtype == ScalarType::Float {
                cx.cast(matrices, ScalarType::Double)
            } else {
                matrices
            };
            let values = super::singular::singular_values(cx, node, wide)?;
            let last = cx.spec_of(values).rank() - 1;
            let new = match p {
                _ if p == NUCLEAR => cx.sum(values, &[last], false),
                2.0 => cx.reduce("aten.amax.default", values, &[last], false),
                -2.0 => cx.reduce("aten.amin.default", values, &[last], false),
                other => return cx.fail(node, format!("the norm {other} of a matrix")),
            };
            cx.cast(new, want.dtype)
        }
    };
    let new = cx.view(node, new, want.sizes)?;
    cx.replace_node(node, new)
}

fn frobenius(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, spec) = self_operand(cx, node)?;
    let dims = cx.dims(node, "dim", spec.rank())?;
    let keep = cx.bool(node, "keepdim", false)?;
    let new = vector_norm(cx, x, 2.0, &dims, keep);
    cx.replace_node(node, new)
}

/// The p-norm of the difference of the operands.
fn dist(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, _) = self_operand(cx, node)?;
    let (other, p) = (cx.tensor(node, "other")?, cx.float(node, "p", 2.0)?);
    let way = cx.sub(x, other);
    let dims: Vec<usize> = (0..cx.spec_of(way).rank()).collect();
    let new = vector_norm(cx, way, p, &dims, false);
    cx.replace_node(node, new)
}

/// Counts the elements in each of `bins` equal parts of an interval.
fn histc(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let ((x, spec), bins) = (self_operand(cx, node)?, cx.int(node, "bins", 100)?);
    let (low, high) = (cx.float(node, "min", 0.0)?, cx.float(node, "max", 0.0)?);
    if !spec.dtype.is_floating() || bins < 1 {
        return cx.fail(node, format!("{bins} bins of {}", spec.dtype));
    }
    let flat = cx.view(node, x, vec![spec.numel()])?;
    let (low, high) = match low == high && spec.numel() != pteron_exported::Size::Int(0) {
        true => super::counting::value_range(cx, flat, 1.0)?,
        false => {
            let widen = if low == high { 1.0 } else { 0.0 };
            let mut edge = |edge: f64| cx.scalar(Scalar::Double(edge), spec.dtype);
            (edge(low - widen)?, edge(high + widen)?)
        }
    };
    let moved = cx.sub(flat, low);
    let scaled = cx.mul(moved, bins as f64);
    let length = cx.sub(high, low);
    let place = cx.div(scaled, length);
    let place = cx.unary("aten.floor.default", place);
    let place = cx.clamp(place, None, Some((bins - 1) as f64));
    let (above, below) = (cx.compare("aten.ge.Tensor", flat, low), cx.compare("aten.le.Tensor", flat, high));
    let inside = cx.compare("aten.logical_and.default", above, below);
    let numbers = cx.arange(node, &pteron_exported::Size::Int(bins), spec.dtype)?;
    let numbers = cx.unsqueeze(node, numbers, 1)?;
    let is_here = cx.compare("aten.eq.Tensor", numbers, place);
    let is_here = cx.compare("aten.logical_and.default", is_here, inside);
    let ones = cx.cast(is_here, spec.dtype);
    let new = cx.sum(ones, &[1], false);
    cx.replace_node(node, new)
}

/// Scales the slices along a dimension down to a maximum norm.
fn renorm(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, spec) = self_operand(cx, node)?;
    let (p, most) = (cx.float(node, "p", 2.0)?, cx.float(node, "maxnorm", 1.0)?);
    let dim = cx.int(node, "dim", 0)?;
    let dim = cx.dim(node, dim, spec.rank())?;
    let dims: Vec<usize> = (0..spec.rank()).filter(|&d| d != dim).collect();
    let norm = vector_norm(cx, x, p, &dims, true);
    let more = cx.add(norm, 1e-7);
    let one = cx.unary("aten.reciprocal.default", more);
    let factor = cx.mul(one, most);
    let is_above = cx.compare("aten.gt.Scalar", norm, most);
    let unit = cx.scalar(Scalar::Double(1.0), spec.dtype)?;
    let factor = cx.choose(is_above, factor, unit);
    let new = cx.mul(x, factor);
    cx.replace_node(node, new)
}
