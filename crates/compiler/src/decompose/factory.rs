//! Tensors made of numbers.

use super::Table;
use super::When::{Always, NoKernel};
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use ir::exported::{Argument, ExportedNode, Size, TensorSpec};
use tensor::ScalarType;

pub(super) const RULES: Table = &[
    ("aten.zeros", Always, zeros),
    ("aten.zeros_like", Always, zeros),
    ("aten.new_zeros", Always, zeros),
    ("aten.zero", Always, zeros),
    ("aten.empty", Always, zeros),
    ("aten.empty_like", Always, zeros),
    ("aten.new_empty", Always, zeros),
    ("aten.empty_strided", Always, zeros),
    ("aten.new_empty_strided", Always, zeros),
    ("aten.ones", Always, ones),
    ("aten.ones_like", Always, ones),
    ("aten.new_ones", Always, ones),
    ("aten.new_full", Always, full),
    ("aten.full_like", Always, full),
    ("aten.full", Always, full),
    ("aten.scalar_tensor", Always, scalar_tensor),
    ("aten.arange", Always, arange),
    ("aten.linspace", NoKernel, linspace),
    ("aten.eye", NoKernel, eye),
    ("aten.triu", NoKernel, triu),
    ("aten.one_hot", NoKernel, one_hot),
];

fn filled(cx: &mut Rewriter<'_>, node: &ExportedNode, value: Argument) -> Result<Outcome> {
    let spec = cx.result(node)?;
    let size = cx.sizes(node, &spec.sizes)?;
    let value = match (value, spec.dtype) {
        (Argument::Int(v), d) if d.is_floating() => Argument::Float(v as f64),
        (Argument::Int(v), ScalarType::Bool) => Argument::Bool(v != 0),
        (value, _) => value,
    };
    Ok(cx.retarget(node, "aten.full.default", vec![("size", size), ("fill_value", value)]))
}

fn zeros(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    filled(cx, node, Argument::Int(0))
}

fn ones(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    filled(cx, node, Argument::Int(1))
}

fn full(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let Some(value) = node.arg("fill_value").cloned() else {
        return cx.wrong(node, "it has no `fill_value`");
    };
    if &*node.target == "aten.full.default" && node.args.len() <= 2 {
        return Ok(Outcome::Kept);
    }
    filled(cx, node, value)
}

fn scalar_tensor(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    match node.arg("s").cloned() {
        Some(value) => filled(cx, node, value),
        None => cx.wrong(node, "it has no number"),
    }
}

/// All forms name a start, an end and a step.
fn arange(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    if &*node.target == "aten.arange.start" {
        return Ok(Outcome::Kept);
    }
    let or = |name: &str, value: i64| node.arg(name).cloned().unwrap_or(Argument::Int(value));
    let args = vec![("start", or("start", 0)), ("end", or("end", 0)), ("step", or("step", 1))];
    Ok(cx.retarget(node, "aten.arange.start", args))
}

fn numbers(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    count: &Size,
    dtype: ScalarType,
) -> Result<ir::exported::VarId> {
    let end = crate::operators::int_argument(cx.size(node, count)?);
    let args = vec![("start", Argument::Int(0)), ("end", end), ("step", Argument::Int(1))];
    Ok(cx.emit("aten.arange.start", args, TensorSpec::contiguous(dtype, vec![count.clone()])))
}

/// Counted from both ends, so that both ends are exact.
fn linspace(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let spec = cx.result(node)?;
    let (start, end) = (cx.float(node, "start", 0.0)?, cx.float(node, "end", 0.0)?);
    let Some(steps) = spec.sizes.first().and_then(Size::known) else {
        return cx.wrong(node, "the number of its steps is not known");
    };
    let step = if steps > 1 { (end - start) / (steps - 1) as f64 } else { 0.0 };
    let count = numbers(cx, node, &Size::Int(steps), spec.dtype)?;
    let scaled = cx.binary("aten.mul.Tensor", count, step);
    let rising = cx.binary("aten.add.Tensor", scaled, start);
    let first_half = cx.compare("aten.lt.Scalar", count, (steps / 2) as f64);
    let back = cx.binary("aten.sub.Tensor", count, (steps - 1) as f64);
    let scaled = cx.binary("aten.mul.Tensor", back, step);
    let falling = cx.binary("aten.add.Tensor", scaled, end);
    let new = cx.choose(first_half, rising, falling);
    cx.done(node, new)
}

fn eye(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let spec = cx.result(node)?;
    let [rows, columns] = spec.sizes.as_slice() else { return cx.wrong(node, "it is no matrix") };
    let down = numbers(cx, node, rows, ScalarType::Long)?;
    let down = cx.unsqueeze(node, down, 1)?;
    let across = numbers(cx, node, columns, ScalarType::Long)?;
    let same = cx.compare("aten.eq.Tensor", down, across);
    let new = cx.cast(same, spec.dtype);
    cx.done(node, new)
}

/// What `tril` of one diagonal less leaves out.
fn triu(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let spec = cx.spec(node, x)?;
    let diagonal = cx.int(node, "diagonal", 0)?;
    let matrix = spec.sizes[spec.rank().saturating_sub(2)..].to_vec();
    let ones = cx.filled(node, matrix.clone(), Argument::Bool(true), ScalarType::Bool)?;
    let args = vec![("self", Argument::Var(ones)), ("diagonal", Argument::Int(diagonal - 1))];
    let below = cx.emit("aten.tril.default", args, TensorSpec::contiguous(ScalarType::Bool, matrix));
    let zero = cx.number(tensor::Scalar::Int(0), spec.dtype)?;
    let new = cx.choose(below, zero, x);
    cx.done(node, new)
}

fn one_hot(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let spec = cx.result(node)?;
    let Some(classes) = spec.sizes.last().cloned() else { return cx.wrong(node, "it has no classes") };
    let rank = cx.spec(node, x)?.rank();
    let each = numbers(cx, node, &classes, ScalarType::Long)?;
    let wide = cx.unsqueeze(node, x, rank)?;
    let same = cx.compare("aten.eq.Tensor", wide, each);
    let new = cx.cast(same, spec.dtype);
    cx.done(node, new)
}
