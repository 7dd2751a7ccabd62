//! Batch normalization, by running statistics or by the statistics of the batch.

use super::Table;
use super::When::{Always, NoKernel};
use super::nn::optional_argument;
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, Size, TensorSpec, VarId, VarType};
use pteron_tensor::ScalarType;

pub(super) const RULES: Table = &[
    ("aten.batch_norm", Always, batch_norm),
    ("aten.native_batch_norm", Always, batch_norm),
    ("aten.cudnn_batch_norm", Always, batch_norm),
    ("aten._native_batch_norm_legit", NoKernel, batch_norm),
    ("aten._native_batch_norm_legit_functional", Always, batch_norm),
    ("aten._batch_norm_with_update_functional", Always, batch_norm),
];

fn batch_norm(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let of_batch = cx.bool(node, "training", node.target.contains("with_update"))?;
    if of_batch {
        return normalize_by_batch(cx, node);
    }
    let x = cx.tensor(node, "input")?;
    let spec = cx.result_spec(node)?;
    let dtype = spec.dtype;
    let (mean, var) = (cx.tensor(node, "running_mean")?, cx.tensor(node, "running_var")?);
    let args = vec![
        ("input", Argument::Var(x)),
        ("weight", optional_argument(cx, node, "weight")),
        ("bias", optional_argument(cx, node, "bias")),
        ("running_mean", Argument::Var(mean)),
        ("running_var", Argument::Var(var)),
        ("momentum", Argument::Float(cx.float(node, "momentum", 0.1)?)),
        ("eps", Argument::Float(cx.float(node, "eps", 1e-5)?)),
    ];
    // The empty statistics of the batch: the reference's kernel requires them to have the type of the result.
    let none = || VarType::Tensor(TensorSpec::contiguous(dtype, vec![Size::Int(0)]));
    let types = vec![VarType::Tensor(spec), none(), none()];
    let outs = cx.emit_many("aten._native_batch_norm_legit_no_training.default", args, types);
    for &statistic in node.outputs.get(1..).unwrap_or_default() {
        let sizes = cx.spec(node, statistic)?.sizes;
        let empty = super::windows::zeros(cx, node, sizes, ScalarType::Float)?;
        cx.replace(statistic, empty);
    }
    cx.replace_node(node, outs[0])
}

/// Normalizes each channel by the mean and variance of the batch.
fn normalize_by_batch(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    if cx.optional_tensor(node, "running_mean").is_some() && !node.target.contains("functional") {
        return cx.fail(
            node,
            "a batch norm of training, which changes its statistics: export the model after `model.eval()`",
        );
    }
    let x = cx.tensor(node, "input")?;
    let (spec, eps) = (cx.spec(node, x)?, cx.float(node, "eps", 1e-5)?);
    if spec.rank() < 2 {
        return cx.fail(node, "it has no channels");
    }
    let wide = if spec.dtype == ScalarType::Double { spec.dtype } else { ScalarType::Float };
    let value = cx.cast(x, wide);
    let dims: Vec<usize> = (0..spec.rank()).filter(|&d| d != 1).collect();
    let mean = cx.reduce("aten.mean.dim", value, &dims, true);
    let centered = cx.sub(value, mean);
    let squares = cx.mul(centered, centered);
    let variance = cx.reduce("aten.mean.dim", squares, &dims, true);
    let more = cx.add(variance, eps);
    let scale = cx.unary("aten.rsqrt.default", more);
    let mut normal = cx.mul(centered, scale);
    let mut column = vec![Size::Int(1); spec.rank()];
    column[1] = spec.sizes[1].clone();
    for (name, target) in [("weight", "aten.mul.Tensor"), ("bias", "aten.add.Tensor")] {
        if let Some(v) = cx.optional_tensor(node, name) {
            let by_channel = cx.view(node, v, column.clone())?;
            normal = cx.binary(target, normal, by_channel);
        }
    }
    let new = cx.cast(normal, spec.dtype);
    let channels = vec![spec.sizes[1].clone()];
    let (mean, scale) = (cx.view(node, mean, channels.clone())?, cx.view(node, scale, channels.clone())?);
    let variance = cx.view(node, variance, channels)?;
    running_statistics(cx, node, (mean, scale, variance), value)?;
    cx.replace_node(node, new)
}

/// Replaces the other results of the node: the mean, the reciprocal standard deviation, and the updated running
/// statistics.
fn running_statistics(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    (mean, scale, variance): (VarId, VarId, VarId),
    value: VarId,
) -> Result<()> {
    let rest = node.outputs.get(1..).unwrap_or_default();
    for (&output, value) in rest.iter().zip([mean, scale]) {
        cx.replace(output, value);
    }
    // The functional forms return the new running mean and variance last.
    let Some(&[new_mean, new_variance]) = rest.get(rest.len().saturating_sub(2)..) else { return Ok(()) };
    if rest.len() < 4 {
        return Ok(());
    }
    // The reserve tensors: only the backward pass reads them.
    for &reserve in &rest[2..rest.len() - 2] {
        let spec = cx.spec(node, reserve)?;
        let empty = super::windows::zeros(cx, node, spec.sizes, spec.dtype)?;
        cx.replace(reserve, empty);
    }
    let spec = cx.spec_of(value);
    let count = spec.numel().known().zip(spec.sizes[1].known()).map(|(n, c)| n / c.max(1));
    let unbiased = match count {
        Some(count) => cx.mul(variance, count as f64 / (count - 1).max(1) as f64),
        None => {
            let dims: Vec<i64> = (0..spec.rank() as i64).filter(|&d| d != 1).collect();
            let args = vec![
                ("self", Argument::Var(value)),
                ("dim", Argument::ints(&dims)),
                ("correction", Argument::Int(1)),
                ("keepdim", Argument::Bool(false)),
            ];
            cx.emit(
                "aten.var.correction",
                args,
                TensorSpec::contiguous(spec.dtype, vec![spec.sizes[1].clone()]),
            )
        }
    };
    let momentum = cx.float(node, "momentum", 0.1)?;
    for (name, value, output) in [("running_mean", mean, new_mean), ("running_var", unbiased, new_variance)] {
        let old = cx.tensor(node, name)?;
        let (old, value) = (cx.mul(old, 1.0 - momentum), cx.mul(value, momentum));
        let new = cx.add(old, value);
        cx.replace(output, new);
    }
    Ok(())
}
