//! Reductions and statistics.

use super::Table;
use super::When::{Always, NoKernel};
use crate::Result;
use crate::rewrite::{Arg, Outcome, Rewriter};
use ir::exported::{Argument, ExportedNode, TensorSpec, VarId};
use tensor::{Scalar, ScalarType};

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
];

fn x_of(cx: &Rewriter<'_>, node: &ExportedNode) -> Result<(VarId, TensorSpec)> {
    let x = cx.tensor(node, "self")?;
    Ok((x, cx.spec(node, x)?))
}

/// Both name their dimensions, and read elements of the type that they add up in.
fn sum_or_mean(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, spec) = x_of(cx, node)?;
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
    let want = cx.result(node)?.dtype;
    let x = if want.is_floating() { cx.cast(x, want) } else { x };
    let args =
        vec![("self", Argument::Var(x)), ("dim", Argument::ints(&dims)), ("keepdim", Argument::Bool(keep))];
    Ok(cx.retarget(node, target, args))
}

/// Dimensions, correction and whether they stay, however the overload names them.
fn variance_args(cx: &Rewriter<'_>, node: &ExportedNode) -> Result<Vec<Arg>> {
    let (x, spec) = x_of(cx, node)?;
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
    let (args, spec) = (variance_args(cx, node)?, cx.result(node)?);
    let var = cx.emit("aten.var.correction", args, TensorSpec::contiguous(spec.dtype, spec.sizes));
    let new = cx.unary("aten.sqrt.default", var);
    cx.done(node, new)
}

fn variance_and_mean(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<(VarId, VarId)> {
    let (args, spec) = (variance_args(cx, node)?, cx.result(node)?);
    let (x, have) = x_of(cx, node)?;
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
    cx.done(node, var)
}

fn std_mean(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (var, mean) = variance_and_mean(cx, node)?;
    if let Some(&second) = node.outputs.get(1) {
        cx.replace(second, mean);
    }
    let new = cx.unary("aten.sqrt.default", var);
    cx.done(node, new)
}

/// Not any is not.
fn all(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, _) = x_of(cx, node)?;
    let mut spec = cx.of(x);
    spec.dtype = ScalarType::Bool;
    let not = cx.emit("aten.logical_not.default", vec![("self", Argument::Var(x))], spec);
    let mut any = node.clone();
    any.target = node.target.replacen("aten.all", "aten.any", 1).into();
    for (name, arg) in &mut any.args {
        if &**name == "self" {
            *arg = Argument::Var(not);
        }
    }
    let want = cx.result(node)?;
    let wrong = cx
        .program
        .add_var(format!("any_{}", cx.program.num_vars()), ir::exported::VarType::Tensor(want.clone()));
    any.outputs = vec![wrong];
    cx.put(any);
    let new = cx.emit("aten.logical_not.default", vec![("self", Argument::Var(wrong))], want);
    cx.done(node, new)
}

/// Over the largest, which may be infinite.
fn logsumexp(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, spec) = x_of(cx, node)?;
    let dims = cx.dims(node, "dim", spec.rank())?;
    let want = cx.result(node)?;
    let most = cx.reduce("aten.amax.default", x, &dims, true);
    let size = cx.unary("aten.abs.default", most);
    let infinite = cx.compare("aten.eq.Scalar", size, f64::INFINITY);
    let zero = cx.number(Scalar::Double(0.0), spec.dtype)?;
    let most = cx.choose(infinite, zero, most);
    let moved = cx.binary("aten.sub.Tensor", x, most);
    let powers = cx.unary("aten.exp.default", moved);
    let sum = cx.reduce("aten.sum.dim_IntList", powers, &dims, true);
    let log = cx.unary("aten.log.default", sum);
    let whole = cx.binary("aten.add.Tensor", log, most);
    let new = cx.view(node, whole, want.sizes)?;
    cx.done(node, new)
}

fn norm(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, spec) = x_of(cx, node)?;
    let dims = cx.dims(node, "dim", spec.rank())?;
    let keep = cx.bool(node, "keepdim", false)?;
    let order = if node.arg("p").is_some() { "p" } else { "ord" };
    let p = cx.float(node, order, 2.0)?;
    let want = cx.result(node)?.dtype;
    let x = cx.cast(x, want);
    let sum = |cx: &mut Rewriter<'_>, v| cx.reduce("aten.sum.dim_IntList", v, &dims, keep);
    let new = if p == 2.0 {
        let squares = cx.binary("aten.mul.Tensor", x, x);
        let total = sum(cx, squares);
        cx.unary("aten.sqrt.default", total)
    } else if p == 1.0 {
        let sizes = cx.unary("aten.abs.default", x);
        sum(cx, sizes)
    } else if p == f64::INFINITY {
        let sizes = cx.unary("aten.abs.default", x);
        cx.reduce("aten.amax.default", sizes, &dims, keep)
    } else if p == f64::NEG_INFINITY {
        let sizes = cx.unary("aten.abs.default", x);
        cx.reduce("aten.amin.default", sizes, &dims, keep)
    } else if p == 0.0 {
        let there = cx.compare("aten.ne.Scalar", x, 0.0);
        let ones = cx.cast(there, want);
        sum(cx, ones)
    } else {
        let sizes = cx.unary("aten.abs.default", x);
        let powers = power(cx, sizes, p);
        let total = sum(cx, powers);
        power(cx, total, 1.0 / p)
    };
    cx.done(node, new)
}

fn power(cx: &mut Rewriter<'_>, x: VarId, exponent: f64) -> VarId {
    let spec = cx.of(x);
    let args = vec![("self", Argument::Var(x)), ("exponent", Argument::Float(exponent))];
    cx.emit("aten.pow.Tensor_Scalar", args, spec)
}

fn count_nonzero(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, spec) = x_of(cx, node)?;
    let dims = cx.dims(node, "dim", spec.rank())?;
    let there = cx.compare("aten.ne.Scalar", x, 0);
    let ones = cx.cast(there, ScalarType::Long);
    let new = cx.reduce("aten.sum.dim_IntList", ones, &dims, false);
    cx.done(node, new)
}

fn aminmax(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, spec) = x_of(cx, node)?;
    let dims = cx.dims(node, "dim", spec.rank())?;
    let keep = cx.bool(node, "keepdim", false)?;
    for (&output, target) in node.outputs.iter().zip(["aten.amin.default", "aten.amax.default"]) {
        let new = cx.reduce(target, x, &dims, keep);
        cx.replace(output, new);
    }
    Ok(Outcome::Replaced)
}
