//! Random values of further distributions, from uniform and normal ones.

use super::Table;
use super::When::NoKernel;
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, TensorSpec, VarId};
use pteron_tensor::ScalarType;
use std::f64::consts::PI;

pub(super) const RULES: Table = &[
    ("aten.uniform", NoKernel, uniform),
    ("aten.normal", NoKernel, normal),
    ("aten.exponential", NoKernel, exponential),
    ("aten.cauchy", NoKernel, cauchy),
    ("aten.log_normal", NoKernel, log_normal),
    ("aten.geometric", NoKernel, geometric),
    ("aten.bernoulli", NoKernel, bernoulli),
];

/// Emits the random operator `target` with the sizes of the result, in f64 if the result is f64, otherwise in f32.
fn draw(cx: &mut Rewriter<'_>, node: &ExportedNode, target: &'static str) -> Result<VarId> {
    let want = cx.result_spec(node)?;
    let dtype = if want.dtype == ScalarType::Double { ScalarType::Double } else { ScalarType::Float };
    let size = cx.sizes_argument(node, &want.sizes)?;
    Ok(cx.emit(target, vec![("size", size)], TensorSpec::contiguous(dtype, want.sizes)))
}

fn uniform_draw(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<VarId> {
    draw(cx, node, "aten.rand.default")
}

/// The logarithm of uniformly distributed values in `(0, 1]`.
fn log_draw(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<VarId> {
    let draw = uniform_draw(cx, node)?;
    let down = cx.unary("aten.neg.default", draw);
    Ok(cx.unary("aten.log1p.default", down))
}

fn replace_with_cast(cx: &mut Rewriter<'_>, node: &ExportedNode, value: VarId) -> Result<Outcome> {
    let dtype = cx.result_spec(node)?.dtype;
    let new = cx.cast(value, dtype);
    cx.replace_node(node, new)
}

fn uniform(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (from, to) = (cx.float(node, "from", 0.0)?, cx.float(node, "to", 1.0)?);
    let draw = uniform_draw(cx, node)?;
    let scaled = cx.mul(draw, to - from);
    let new = cx.add(scaled, from);
    replace_with_cast(cx, node, new)
}

/// Normally distributed values; mean and standard deviation are numbers or tensors.
fn normal(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let draw = draw(cx, node, "aten.randn.default")?;
    let scaled = match cx.optional_tensor(node, "std") {
        Some(std) => cx.mul(draw, std),
        None => {
            let std = cx.float(node, "std", 1.0)?;
            cx.mul(draw, std)
        }
    };
    let new = match cx.optional_tensor(node, "mean") {
        Some(mean) => cx.add(scaled, mean),
        None => {
            let mean = cx.float(node, "mean", 0.0)?;
            cx.add(scaled, mean)
        }
    };
    replace_with_cast(cx, node, new)
}

/// Exponentially distributed values, which are never zero, since callers take the logarithm.
fn exponential(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let rate = cx.float(node, "lambd", 1.0)?;
    let log = log_draw(cx, node)?;
    let time = cx.mul(log, -1.0 / rate);
    let new = cx.clamp(time, Some(f64::from(f32::MIN_POSITIVE)), None);
    replace_with_cast(cx, node, new)
}

fn cauchy(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (median, sigma) = (cx.float(node, "median", 0.0)?, cx.float(node, "sigma", 1.0)?);
    let draw = uniform_draw(cx, node)?;
    let centered = cx.sub(draw, 0.5);
    let angle = cx.mul(centered, PI);
    let tan = cx.unary("aten.tan.default", angle);
    let scaled = cx.mul(tan, sigma);
    let new = cx.add(scaled, median);
    replace_with_cast(cx, node, new)
}

fn log_normal(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (mean, std) = (cx.float(node, "mean", 1.0)?, cx.float(node, "std", 2.0)?);
    let draw = draw(cx, node, "aten.randn.default")?;
    let scaled = cx.mul(draw, std);
    let moved = cx.add(scaled, mean);
    let new = cx.unary("aten.exp.default", moved);
    replace_with_cast(cx, node, new)
}

/// Geometrically distributed values: the number of trials up to the first success.
fn geometric(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let p = cx.float(node, "p", 0.5)?;
    let log = log_draw(cx, node)?;
    let trials = cx.mul(log, 1.0 / (-p).ln_1p());
    let trials = cx.unary("aten.ceil.default", trials);
    let new = cx.clamp(trials, Some(1.0), None);
    replace_with_cast(cx, node, new)
}

/// One with the given probability, otherwise zero.
fn bernoulli(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let draw = uniform_draw(cx, node)?;
    let new = match (cx.optional_tensor(node, "p"), node.arg("p")) {
        (Some(p), _) => cx.compare("aten.lt.Tensor", draw, p),
        (None, None | Some(Argument::None)) => {
            let p = cx.tensor(node, "self")?;
            cx.compare("aten.lt.Tensor", draw, p)
        }
        (None, Some(_)) => {
            let p = cx.float(node, "p", 0.5)?;
            cx.compare("aten.lt.Scalar", draw, p)
        }
    };
    replace_with_cast(cx, node, new)
}
