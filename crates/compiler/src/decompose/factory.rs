//! Factories: tensors of constants, ranges, random values and windows.

use super::Table;
use super::When::{Always, NoKernel};
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, Size, TensorSpec, VarId};
use pteron_tensor::{Scalar, ScalarType};

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
    ("aten.rand_like", NoKernel, random_like),
    ("aten.randn_like", NoKernel, random_like),
    ("aten.scalar_tensor", Always, scalar_tensor),
    ("aten.arange", Always, arange),
    ("aten.linspace", NoKernel, linspace),
    ("aten.logspace", NoKernel, logspace),
    ("aten.hann_window", NoKernel, cosine_window),
    ("aten.hamming_window", NoKernel, cosine_window),
    ("aten.blackman_window", NoKernel, cosine_window),
    ("aten.bartlett_window", NoKernel, cosine_window),
    ("aten.eye", NoKernel, eye),
    ("aten.triu", NoKernel, triu),
    ("aten.one_hot", NoKernel, one_hot),
];

fn replace_with_full(cx: &mut Rewriter<'_>, node: &ExportedNode, value: Argument) -> Result<Outcome> {
    let spec = cx.result_spec(node)?;
    let size = cx.sizes_argument(node, &spec.sizes)?;
    let value = match (value, spec.dtype) {
        (Argument::Int(v), d) if d.is_floating() => Argument::Float(v as f64),
        (Argument::Int(v), ScalarType::Bool) => Argument::Bool(v != 0),
        (value, _) => value,
    };
    Ok(cx.retarget(node, "aten.full.default", vec![("size", size), ("fill_value", value)]))
}

fn zeros(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    replace_with_full(cx, node, Argument::Int(0))
}

fn ones(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    replace_with_full(cx, node, Argument::Int(1))
}

fn full(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let Some(value) = node.arg("fill_value").cloned() else {
        return cx.fail(node, "it has no `fill_value`");
    };
    if &*node.target == "aten.full.default" && node.args.len() <= 2 {
        return Ok(Outcome::Kept);
    }
    replace_with_full(cx, node, value)
}

fn random_like(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let sizes = cx.result_spec(node)?.sizes;
    let size = cx.sizes_argument(node, &sizes)?;
    let normal = node.target.starts_with("aten.randn");
    let target = if normal { "aten.randn.default" } else { "aten.rand.default" };
    Ok(cx.retarget(node, target, vec![("size", size)]))
}

fn scalar_tensor(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    match node.arg("s").cloned() {
        Some(value) => replace_with_full(cx, node, value),
        None => cx.fail(node, "it has no number"),
    }
}

/// Brings all overloads to `arange.start`, with a start, an end and a step.
fn arange(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    if &*node.target == "aten.arange.start" {
        return Ok(Outcome::Kept);
    }
    let or = |name: &str, value: i64| node.arg(name).cloned().unwrap_or(Argument::Int(value));
    let args = vec![("start", or("start", 0)), ("end", or("end", 0)), ("step", or("step", 1))];
    Ok(cx.retarget(node, "aten.arange.start", args))
}

/// One end of a range, as a 0-d tensor; the argument is a scalar or a tensor of one element.
fn range_end(cx: &mut Rewriter<'_>, node: &ExportedNode, name: &str, dtype: ScalarType) -> Result<VarId> {
    match cx.optional_tensor(node, name) {
        Some(x) => {
            let x = cx.cast(x, dtype);
            cx.view(node, x, Vec::new())
        }
        None => {
            let value = cx.float(node, name, 0.0)?;
            cx.scalar(Scalar::Double(value), dtype)
        }
    }
}

/// Evenly spaced values. The first half is computed from the start and the second from the end, so that both ends are
/// exact.
fn evenly_spaced(cx: &mut Rewriter<'_>, node: &ExportedNode, dtype: ScalarType) -> Result<VarId> {
    let spec = cx.result_spec(node)?;
    let wide = if dtype.is_floating() { dtype } else { ScalarType::Double };
    let Some(steps) = spec.sizes.first().and_then(Size::known) else {
        return cx.fail(node, "the number of its steps is not known");
    };
    let (start, end) = (range_end(cx, node, "start", wide)?, range_end(cx, node, "end", wide)?);
    let way = cx.sub(end, start);
    let step = cx.div(way, (steps - 1).max(1) as f64);
    let count = cx.arange(node, &Size::Int(steps), wide)?;
    let scaled = cx.mul(count, step);
    let rising = cx.add(scaled, start);
    let first_half =
        cx.compare("aten.lt.Scalar", count, steps.div_euclid(2).max(i64::from(steps == 1)) as f64);
    let back = cx.sub(count, (steps - 1) as f64);
    let scaled = cx.mul(back, step);
    let falling = cx.add(scaled, end);
    Ok(cx.choose(first_half, rising, falling))
}

fn linspace(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let dtype = cx.result_spec(node)?.dtype;
    let new = evenly_spaced(cx, node, dtype)?;
    let new = cx.cast(new, dtype);
    cx.replace_node(node, new)
}

/// A base raised to evenly spaced exponents.
fn logspace(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let dtype = cx.result_spec(node)?.dtype;
    let exponent = evenly_spaced(cx, node, ScalarType::Double)?;
    let base = Argument::Float(cx.float(node, "base", 10.0)?);
    let spec = cx.spec_of(exponent);
    let args = vec![("self", base), ("exponent", Argument::Var(exponent))];
    let power = cx.emit("aten.pow.Scalar", args, spec);
    let new = cx.cast(power, dtype);
    cx.replace_node(node, new)
}

fn eye(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let spec = cx.result_spec(node)?;
    let [rows, columns] = spec.sizes.as_slice() else { return cx.fail(node, "it is no matrix") };
    let down = cx.arange(node, rows, ScalarType::Long)?;
    let down = cx.unsqueeze(node, down, 1)?;
    let across = cx.arange(node, columns, ScalarType::Long)?;
    let same = cx.compare("aten.eq.Tensor", down, across);
    let new = cx.cast(same, spec.dtype);
    cx.replace_node(node, new)
}

/// `triu`: zeroes the elements below a diagonal, which are those that `tril` keeps up to the next lower diagonal.
fn triu(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let spec = cx.spec(node, x)?;
    let diagonal = cx.int(node, "diagonal", 0)?;
    let matrix = spec.sizes[spec.rank().saturating_sub(2)..].to_vec();
    let ones = cx.full(node, matrix.clone(), Argument::Bool(true), ScalarType::Bool)?;
    let args = vec![("self", Argument::Var(ones)), ("diagonal", Argument::Int(diagonal.saturating_sub(1)))];
    let below = cx.emit("aten.tril.default", args, TensorSpec::contiguous(ScalarType::Bool, matrix));
    let zero = cx.scalar(Scalar::Int(0), spec.dtype)?;
    let new = cx.choose(below, zero, x);
    cx.replace_node(node, new)
}

fn one_hot(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let spec = cx.result_spec(node)?;
    let Some(classes) = spec.sizes.last().cloned() else { return cx.fail(node, "it has no classes") };
    let rank = cx.spec(node, x)?.rank();
    let each = cx.arange(node, &classes, ScalarType::Long)?;
    let wide = cx.unsqueeze(node, x, rank)?;
    let same = cx.compare("aten.eq.Tensor", wide, each);
    let new = cx.cast(same, spec.dtype);
    cx.replace_node(node, new)
}

/// Window functions such as `hann_window`. Their lengths are static, so the windows become constants.
fn cosine_window(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let want = cx.result_spec(node)?;
    let Some(length) = want.sizes.first().and_then(Size::known).and_then(|n| usize::try_from(n).ok()) else {
        return cx.fail(node, "its length is not known");
    };
    cx.check_table_size(node, &[length])?;
    let periodic = cx.bool(node, "periodic", true)?;
    let (alpha, beta) = (cx.float(node, "alpha", 0.54)?, cx.float(node, "beta", 0.46)?);
    let last = if periodic { length } else { length.saturating_sub(1) }.max(1) as f64;
    let name = &*node.target;
    let at = |i: usize| {
        let turn = std::f64::consts::TAU * i as f64 / last;
        Scalar::Double(match name {
            _ if length == 1 => 1.0,
            n if n.starts_with("aten.hann") => 0.5 - 0.5 * turn.cos(),
            n if n.starts_with("aten.hamming") => alpha - beta * turn.cos(),
            n if n.starts_with("aten.blackman") => 0.42 - 0.5 * turn.cos() + 0.08 * (2.0 * turn).cos(),
            _ => 1.0 - (2.0 * i as f64 / last - 1.0).abs(),
        })
    };
    let values: Vec<Scalar> = (0..length).map(at).collect();
    let new = cx.constant(&values, want.dtype, &[length])?;
    cx.replace_node(node, new)
}
