//! Other operands for a node, with which a kernel takes it: constants for its scalars, float32 for half precision.

use crate::dtypes::{dtype_of, promote, result_type};
use crate::operators::{OperatorTable, widen_half};
use crate::rewrite::{Outcome, Rewriter};
use crate::{Error, Result};
use pteron_exported::{Argument, ConstantTensor, ExportedNode, TensorSpec, VarId, VarType};
use pteron_tensor::{Scalar, ScalarType};
use std::sync::Arc;

/// Replaces complex scalars by constants: kernels have no complex scalar arguments.
pub(super) fn replace_complex_scalars(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    if !node.args.iter().any(|(_, arg)| matches!(arg, Argument::Complex(..))) {
        return Ok(Outcome::Kept);
    }
    let base = node.target.rsplit_once('.').map_or(&*node.target, |(base, _)| base);
    let mut dtype = cx.result_spec(node)?.dtype;
    for operand in node.operands().collect::<Vec<_>>() {
        dtype = promote(dtype, cx.spec_of(operand).dtype);
    }
    let dtype = promote(dtype, ScalarType::ComplexFloat);
    let mut fresh = node.clone();
    for (name, arg) in &mut fresh.args {
        let Argument::Complex(re, im) = *arg else { continue };
        let number = complex_constant(cx, (re, im), dtype)?;
        match &**name {
            "self" | "other" | "exponent" => *arg = Argument::Var(number),
            "value" if base == "aten.masked_fill" => *arg = Argument::Var(number),
            "value" | "fill_value" if FILLS.contains(&base) => {
                let filled = cx.expand(node, number, cx.result_spec(node)?.sizes)?;
                return cx.replace_node(node, filled);
            }
            name => return cx.fail(node, format!("its argument `{name}` is a complex number")),
        }
    }
    let overload = match base {
        "aten.pow" => "Tensor_Tensor",
        "aten.where" => "self",
        _ => "Tensor",
    };
    fresh.target = format!("{base}.{overload}").into();
    cx.push_node(fresh);
    Ok(Outcome::Replaced)
}

/// Empties the list of dimensions of a reduction of a 0-d tensor: kernels of the reference runtime would look up
/// dimensions that the tensor lacks. An empty list means all dimensions.
pub(super) fn drop_dims_of_scalar(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let names_some = |arg: &Argument| matches!(arg, Argument::Ints(dims) if !dims.is_empty());
    let is_reduction = REDUCTIONS.contains(&&*node.target);
    if !is_reduction
        || !node.arg("dim").is_some_and(names_some)
        || cx.spec(node, cx.tensor(node, "self")?)?.rank() != 0
    {
        return Ok(Outcome::Kept);
    }
    let mut fresh = node.clone();
    for (name, arg) in &mut fresh.args {
        if &**name == "dim" {
            *arg = Argument::Ints(Vec::new());
        }
    }
    cx.push_node(fresh);
    Ok(Outcome::Replaced)
}

/// `unfold` of a 0-d tensor returns all of it; the reference runtime's kernels would look up a dimension that it lacks.
pub(super) fn unfold_scalar(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    if !matches!(&*node.target, "aten.unfold.default" | "aten.unfold_copy.default") {
        return Ok(Outcome::Kept);
    }
    let x = cx.tensor(node, "self")?;
    if cx.spec(node, x)?.rank() != 0 {
        return Ok(Outcome::Kept);
    }
    let sizes = cx.result_spec(node)?.sizes;
    let new = cx.view(node, x, sizes)?;
    cx.replace_node(node, new)
}

/// Reductions that reduce all dimensions if their list of dimensions is empty.
const REDUCTIONS: &[&str] =
    &["aten.sum.dim_IntList", "aten.mean.dim", "aten.amax.default", "aten.amin.default"];

/// Casts the half-precision operand of `item` to float32: the reference runtime's kernel does not read half precision.
pub(super) fn half_item_as_float32(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    if !matches!(&*node.target, "aten.item.default" | "aten._local_scalar_dense.default") {
        return Ok(Outcome::Kept);
    }
    let x = cx.tensor(node, "self")?;
    if widen_half(cx.spec_of(x).dtype) == cx.spec_of(x).dtype {
        return Ok(Outcome::Kept);
    }
    let wide = cx.cast(x, ScalarType::Float);
    Ok(cx.retarget(node, "aten.item.default", vec![("self", Argument::Var(wide))]))
}

/// Replaces a node whose results are empty tensors by constants: the reference runtime's kernels fail on empty tensors.
pub(super) fn replace_empty_results(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let is_empty = |var: VarId| {
        let spec = cx.program.spec(var);
        spec.is_some_and(|s| !s.dtype.is_complex() && s.known_sizes().is_some_and(|sizes| sizes.contains(&0)))
    };
    let makes_them = matches!(&*node.target, "aten.full.default" | "aten.view.default");
    if makes_them || node.outputs.is_empty() || !node.outputs.iter().all(|&var| is_empty(var)) {
        return Ok(Outcome::Kept);
    }
    for &output in &node.outputs {
        let spec = cx.spec_of(output);
        let empty = cx.full(node, spec.sizes, Argument::Int(0), spec.dtype)?;
        cx.replace(output, empty);
    }
    Ok(Outcome::Replaced)
}

/// Operators that fill a tensor with a scalar.
const FILLS: &[&str] = &["aten.full", "aten.full_like", "aten.new_full", "aten.fill", "aten.scalar_tensor"];

/// A 0-d complex constant.
fn complex_constant(cx: &mut Rewriter<'_>, (re, im): (f64, f64), dtype: ScalarType) -> Result<VarId> {
    let mut bytes = Vec::with_capacity(dtype.size());
    for part in [re, im] {
        match Scalar::Double(part).to_le_bytes_as(dtype.to_real()) {
            Some(element) => bytes.extend(element),
            None => return Err(Error::archive("a number", format!("{part} is no {}", dtype.to_real()))),
        }
    }
    let name = format!("number_{}", cx.program.num_vars());
    let constant = ConstantTensor { name: None, range: 0..bytes.len(), bytes: Arc::new(bytes) };
    Ok(cx.program.add_constant(name, TensorSpec::contiguous(dtype, Vec::new()), constant))
}

/// Replaces the node's scalar operands by constant tensors, if a kernel then takes the node.
pub(super) fn replace_scalar_operands(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    table: &OperatorTable,
) -> Result<Outcome> {
    let is_number = |a: &Argument| matches!(a, Argument::Int(_) | Argument::Float(_) | Argument::Bool(_));
    let operand = |name: &str| matches!(name, "self" | "other" | "exponent" | "input" | "value");
    if !node.args.iter().any(|(name, arg)| operand(name) && is_number(arg)) {
        return Ok(Outcome::Kept);
    }
    let dtype = result_type(cx.program, node.args.iter().filter(|(n, _)| operand(n)).map(|(_, a)| a));
    let Some(dtype) = dtype else { return Ok(Outcome::Kept) };
    let mut probe = node.clone();
    for (_, arg) in probe.args.iter_mut().filter(|(n, _)| operand(n)) {
        let number = match arg {
            Argument::Int(v) => Scalar::Int(*v),
            Argument::Float(v) => Scalar::Double(*v),
            Argument::Bool(v) => Scalar::Bool(*v),
            _ => continue,
        };
        *arg = Argument::Var(cx.scalar(number, dtype)?);
    }
    let base = probe.target.rsplit_once('.').map_or(&*probe.target, |(base, _)| base).to_owned();
    probe.target = format!("{base}.Tensor").into();
    if table.select(cx.program, &probe).is_none() {
        return Ok(Outcome::Kept);
    }
    cx.push_node(probe);
    Ok(Outcome::Replaced)
}

/// Computes the node in float32 and rounds its results to half precision, if a kernel takes the node only in float32.
pub(super) fn compute_in_float32(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    table: &OperatorTable,
) -> Result<Outcome> {
    let is_half =
        |cx: &Rewriter<'_>, var: VarId| dtype_of(cx.program, var).is_some_and(|d| widen_half(d) != d);
    if !node.operands().any(|var| is_half(cx, var)) || !table.accepts_widened(cx.program, node) {
        return Ok(Outcome::Kept);
    }
    let mut wide = node.clone();
    for (_, arg) in &mut wide.args {
        arg.map_vars(&mut |var| if is_half(cx, var) { cx.cast(var, ScalarType::Float) } else { var });
    }
    let narrow: Vec<VarId> = node.outputs.iter().copied().filter(|&var| is_half(cx, var)).collect();
    for output in wide.outputs.iter_mut().filter(|var| narrow.contains(var)) {
        let spec = TensorSpec { dtype: ScalarType::Float, ..cx.spec_of(*output) };
        let name = format!("{}_wide", cx.program.var(*output).name);
        *output = cx.program.add_var(name, VarType::Tensor(spec));
    }
    let pairs: Vec<(VarId, VarId)> = node.outputs.iter().copied().zip(wide.outputs.iter().copied()).collect();
    cx.push_node(wide);
    for (old, new) in pairs.into_iter().filter(|(old, new)| old != new) {
        let dtype = cx.spec_of(old).dtype;
        let rounded = cx.cast(new, dtype);
        cx.replace(old, rounded);
    }
    Ok(Outcome::Replaced)
}
