//! Layers of neural networks: convolution, normalization, softmax, embedding and padding.

use super::Table;
use super::When::{Always, NoKernel};
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, Size, TensorSpec, VarId, VarType};
use pteron_tensor::{Scalar, ScalarType};

pub(super) const RULES: Table = &[
    ("aten._log_softmax", NoKernel, log_softmax),
    ("aten.conv1d", Always, to_convolution),
    ("aten.conv2d", Always, to_convolution),
    ("aten.conv3d", Always, to_convolution),
    ("aten.conv_transpose1d", Always, to_convolution),
    ("aten.conv_transpose2d", Always, to_convolution),
    ("aten.conv_transpose3d", Always, to_convolution),
    ("aten._convolution", Always, to_convolution),
    ("aten.instance_norm", Always, instance_norm),
    ("aten.layer_norm", Always, layer_norm),
    ("aten.group_norm", Always, group_norm),
    ("aten.rms_norm", Always, rms_norm),
    ("aten._fused_rms_norm", Always, rms_norm),
    ("aten.softmax", Always, softmax),
    ("aten._safe_softmax", Always, softmax),
    ("aten.log_softmax", Always, softmax),
    ("aten._softmax_backward_data", NoKernel, softmax_backward),
    ("aten.embedding", Always, embedding),
    ("aten.constant_pad_nd", NoKernel, crop_and_pad),
    ("aten.pad", Always, pad),
    ("aten.cosine_similarity", NoKernel, cosine_similarity),
    ("aten.rrelu", Always, rrelu),
    ("aten._weight_norm", NoKernel, weight_norm),
    ("aten._weight_norm_interface", NoKernel, weight_norm),
];

/// Rewrites a convolution of any kind to `aten.convolution`.
fn to_convolution(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let mut x = cx.tensor(node, "input")?;
    let weight = cx.tensor(node, "weight")?;
    let space = cx.spec(node, weight)?.rank().saturating_sub(2);
    let transposed = node.target.contains("transpose") || cx.bool(node, "transposed", false)?;
    let list = |name: &str, default: i64| -> Result<Vec<i64>> {
        let mut list = cx.ints(node, name)?.unwrap_or_default();
        if let [one] = list[..] {
            list = vec![one; space];
        }
        Ok(if list.is_empty() { vec![default; space] } else { list })
    };
    let (stride, dilation, output_padding) =
        (list("stride", 1)?, list("dilation", 1)?, list("output_padding", 0)?);
    let spec = cx.spec(node, x)?;
    let single = spec.rank() == space + 1;
    if !single && spec.rank() != space + 2 {
        return Ok(Outcome::Kept);
    }
    if single {
        x = cx.unsqueeze(node, x, 0)?;
    }
    let padding = match node.arg("padding") {
        Some(Argument::Str(s)) if s == "same" => same_padding(cx, node, &mut x, weight, &dilation)?,
        Some(Argument::Str(_)) => vec![0; space],
        _ => {
            let list = cx.ints(node, "padding")?.unwrap_or_default();
            match list[..] {
                [] => vec![0; space],
                [one] => vec![one; space],
                _ => list,
            }
        }
    };
    let bias = cx.optional_tensor(node, "bias").map_or(Argument::None, Argument::Var);
    let args = vec![
        ("input", Argument::Var(x)),
        ("weight", Argument::Var(weight)),
        ("bias", bias),
        ("stride", Argument::ints(&stride)),
        ("padding", Argument::ints(&padding)),
        ("dilation", Argument::ints(&dilation)),
        ("transposed", Argument::Bool(transposed)),
        ("output_padding", Argument::ints(&output_padding)),
        ("groups", Argument::Int(cx.int(node, "groups", 1)?)),
    ];
    if !single {
        return Ok(cx.retarget(node, "aten.convolution.default", args));
    }
    let mut want = cx.result_spec(node)?;
    want.sizes.insert(0, Size::Int(1));
    let batch = cx.emit("aten.convolution.default", args, TensorSpec::contiguous(want.dtype, want.sizes));
    let new = cx.squeeze(node, batch, 0)?;
    cx.replace_node(node, new)
}

/// The symmetric part of "same" padding. Where the total padding of a dimension is odd, the extra element is added at
/// the end of `x` by a pad operator.
fn same_padding(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    x: &mut VarId,
    weight: VarId,
    dilation: &[i64],
) -> Result<Vec<i64>> {
    let kernel = cx.spec(node, weight)?.known_sizes().unwrap_or_default();
    let totals: Vec<i64> = kernel.iter().skip(2).zip(dilation).map(|(&k, &d)| d * (k - 1)).collect();
    if totals.iter().any(|t| t % 2 != 0) {
        let pads: Vec<i64> = totals.iter().rev().flat_map(|t| [0, t % 2]).collect();
        let mut spec = cx.spec_of(*x);
        let first = spec.rank() - totals.len();
        for (i, t) in totals.iter().enumerate() {
            spec.sizes[first + i] = spec.sizes[first + i].add(&Size::Int(t % 2));
        }
        let args =
            vec![("self", Argument::Var(*x)), ("pad", Argument::ints(&pads)), ("value", Argument::Int(0))];
        *x = cx.emit("aten.constant_pad_nd.default", args, spec);
    }
    Ok(totals.iter().map(|t| t / 2).collect())
}

pub(super) fn optional_argument(cx: &Rewriter<'_>, node: &ExportedNode, name: &str) -> Argument {
    cx.optional_tensor(node, name).map_or(Argument::None, Argument::Var)
}

/// Normalizes each channel of each image: a group norm with one group for each channel.
fn instance_norm(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "input")?;
    if !cx.bool(node, "use_input_stats", true)? {
        let mut plain = node.clone();
        plain.target = "aten.batch_norm.default".into();
        cx.push_node(plain);
        return Ok(Outcome::Replaced);
    }
    let Some(channels) = cx.spec(node, x)?.sizes.get(1).and_then(Size::known) else {
        return cx.fail(node, "the number of its channels is not known");
    };
    normalize_groups(cx, node, x, channels)
}

fn group_norm(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, groups) = (cx.tensor(node, "input")?, cx.int(node, "num_groups", 1)?);
    normalize_groups(cx, node, x, groups)
}

fn normalize_groups(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId, groups: i64) -> Result<Outcome> {
    let spec = cx.spec(node, x)?;
    if spec.rank() < 2 {
        return cx.fail(node, "it has no channels");
    }
    let (batch, channels) = (spec.sizes[0].clone(), spec.sizes[1].clone());
    let pixels = spec.sizes[2..].iter().fold(Size::Int(1), |n, s| n.mul(s));
    let mut int = |size: &Size| cx.size_argument(node, size).map(crate::operators::int_argument);
    let (n, c, hw) = (int(&batch)?, int(&channels)?, int(&pixels)?);
    let args = vec![
        ("input", Argument::Var(x)),
        ("weight", optional_argument(cx, node, "weight")),
        ("bias", optional_argument(cx, node, "bias")),
        ("N", n),
        ("C", c),
        ("HxW", hw),
        ("group", Argument::Int(groups)),
        ("eps", Argument::Float(cx.float(node, "eps", 1e-5)?)),
    ];
    let statistic = TensorSpec::contiguous(spec.dtype, vec![batch, Size::Int(groups)]);
    let types = vec![
        VarType::Tensor(TensorSpec::contiguous(spec.dtype, spec.sizes)),
        VarType::Tensor(statistic.clone()),
        VarType::Tensor(statistic),
    ];
    let outs = cx.emit_many("aten.native_group_norm.default", args, types);
    cx.replace_node(node, outs[0])
}

fn layer_norm(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "input")?;
    let spec = cx.result_spec(node)?;
    let Some(Argument::Ints(shape)) = node.arg("normalized_shape").cloned() else {
        return cx.fail(node, "it has no `normalized_shape`");
    };
    let first = spec.rank().saturating_sub(shape.len());
    let args = vec![
        ("input", Argument::Var(x)),
        ("normalized_shape", Argument::Ints(shape)),
        ("weight", optional_argument(cx, node, "weight")),
        ("bias", optional_argument(cx, node, "bias")),
        ("eps", Argument::Float(cx.float(node, "eps", 1e-5)?)),
    ];
    let sizes = spec.sizes.iter().enumerate().map(|(d, s)| if d < first { s.clone() } else { Size::Int(1) });
    let statistic = TensorSpec::contiguous(spec.dtype, sizes.collect());
    let types = vec![
        VarType::Tensor(TensorSpec::contiguous(spec.dtype, spec.sizes)),
        VarType::Tensor(statistic.clone()),
        VarType::Tensor(statistic),
    ];
    let outs = cx.emit_many("aten.native_layer_norm.default", args, types);
    cx.replace_node(node, outs[0])
}

/// `x / sqrt(mean(x^2) + eps) * weight`, in f32 for half precision.
fn rms_norm(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "input")?;
    let spec = cx.spec(node, x)?;
    let Some(Argument::Ints(shape)) = node.arg("normalized_shape") else {
        return cx.fail(node, "it has no `normalized_shape`");
    };
    let count = shape.len();
    let wide = if spec.dtype == ScalarType::Double { ScalarType::Double } else { ScalarType::Float };
    let default = match spec.dtype {
        ScalarType::Double => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    };
    let eps = cx.float(node, "eps", default)?;
    let value = cx.cast(x, wide);
    let squares = cx.binary("aten.mul.Tensor", value, value);
    let dims: Vec<usize> = (spec.rank().saturating_sub(count)..spec.rank()).collect();
    let mean = cx.reduce("aten.mean.dim", squares, &dims, true);
    let more = cx.binary("aten.add.Tensor", mean, eps);
    let scale = cx.unary("aten.rsqrt.default", more);
    let mut normal = cx.binary("aten.mul.Tensor", value, scale);
    if let Some(weight) = cx.optional_tensor(node, "weight") {
        let weight = cx.cast(weight, wide);
        normal = cx.binary("aten.mul.Tensor", normal, weight);
    }
    let new = cx.cast(normal, spec.dtype);
    if let Some(&second) = node.outputs.get(1) {
        cx.replace(second, scale);
    }
    cx.replace_node(node, new)
}

fn softmax(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let want = cx.result_spec(node)?;
    let target = match node.target.starts_with("aten.log_softmax") {
        true => "aten._log_softmax.default",
        false => "aten._softmax.default",
    };
    let dim = cx.int(node, "dim", -1)?;
    let value = cx.cast(x, want.dtype);
    if node.target.starts_with("aten._safe_softmax") {
        let new = safe_softmax(cx, value, dim)?;
        return cx.replace_node(node, new);
    }
    let args = vec![
        ("self", Argument::Var(value)),
        ("dim", Argument::Int(dim)),
        ("half_to_float", Argument::Bool(false)),
    ];
    Ok(cx.retarget(node, target, args))
}

/// `x - max - log(sum(exp(x - max)))`
fn log_softmax(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let (rank, dim) = (cx.spec(node, x)?.rank(), cx.int(node, "dim", -1)?);
    let dim = cx.dim(node, dim, rank)?;
    if rank == 0 || !cx.spec_of(x).dtype.is_floating() {
        return Ok(Outcome::Kept);
    }
    let most = cx.reduce("aten.amax.default", x, &[dim], true);
    let below = cx.sub(x, most);
    let powers = cx.unary("aten.exp.default", below);
    let sum = cx.sum(powers, &[dim], true);
    let log = cx.unary("aten.log.default", sum);
    let new = cx.sub(below, log);
    cx.replace_node(node, new)
}

/// The gradient with respect to the input of a softmax: `y (g - sum(g y))`.
fn softmax_backward(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (g, y) = (cx.tensor(node, "grad_output")?, cx.tensor(node, "output")?);
    let (rank, want) = (cx.spec(node, y)?.rank(), cx.result_spec(node)?.dtype);
    let dim = cx.int(node, "dim", -1)?;
    let product = cx.mul(g, y);
    let new = match rank {
        // A softmax of one element is constant, so the gradient is 0.
        0 => cx.sub(product, product),
        _ => {
            let dim = cx.dim(node, dim, rank)?;
            let sum = cx.sum(product, &[dim], true);
            let scaled = cx.mul(y, sum);
            cx.sub(product, scaled)
        }
    };
    let new = cx.cast(new, want);
    cx.replace_node(node, new)
}

/// A softmax over the last dimension.
pub(super) fn softmax_last(cx: &mut Rewriter<'_>, x: VarId) -> VarId {
    let spec = cx.spec_of(x);
    let args = vec![
        ("self", Argument::Var(x)),
        ("dim", Argument::Int(-1)),
        ("half_to_float", Argument::Bool(false)),
    ];
    cx.emit("aten._softmax.default", args, TensorSpec::contiguous(spec.dtype, spec.sizes))
}

/// A softmax that returns zeros for rows in which every element is -inf.
pub(super) fn safe_softmax(cx: &mut Rewriter<'_>, x: VarId, dim: i64) -> Result<VarId> {
    let spec = cx.spec_of(x);
    let rank = spec.rank();
    let axis = if dim < 0 { (dim + rank as i64) as usize } else { dim as usize };
    let args = vec![
        ("self", Argument::Var(x)),
        ("dim", Argument::Int(dim)),
        ("half_to_float", Argument::Bool(false)),
    ];
    let soft = cx.emit("aten._softmax.default", args, TensorSpec::contiguous(spec.dtype, spec.sizes.clone()));
    let most = cx.reduce("aten.amax.default", x, &[axis], true);
    let masked = cx.compare("aten.eq.Scalar", most, f64::NEG_INFINITY);
    let zero = cx.scalar(Scalar::Double(0.0), spec.dtype)?;
    Ok(cx.choose(masked, zero, soft))
}

/// Drops `padding_idx`, `scale_grad_by_freq` and `sparse`, which only training uses.
fn embedding(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    if node.args.len() == 2 {
        return Ok(Outcome::Kept);
    }
    let (weight, indices) = (cx.tensor(node, "weight")?, cx.tensor(node, "indices")?);
    let args = vec![("weight", Argument::Var(weight)), ("indices", Argument::Var(indices))];
    Ok(cx.retarget(node, "aten.embedding.default", args))
}

fn pad(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let Some(Argument::Ints(pads)) = node.arg("pad").cloned() else {
        return cx.fail(node, "it has no `pad`");
    };
    let mode = match node.arg("mode") {
        Some(Argument::Str(mode)) => mode.as_str(),
        _ => "constant",
    };
    let count = pads.len() / 2;
    let target = match (mode, count) {
        ("constant", _) => {
            let value = match node.arg("value") {
                None | Some(Argument::None) => Argument::Int(0),
                Some(value) => value.clone(),
            };
            let args = vec![("self", Argument::Var(x)), ("pad", Argument::Ints(pads)), ("value", value)];
            return Ok(cx.retarget(node, "aten.constant_pad_nd.default", args));
        }
        ("reflect", 1) => "aten.reflection_pad1d.default",
        ("reflect", 2) => "aten.reflection_pad2d.default",
        ("reflect", 3) => "aten.reflection_pad3d.default",
        ("replicate", 1) => "aten.replication_pad1d.default",
        ("replicate", 2) => "aten.replication_pad2d.default",
        ("replicate", 3) => "aten.replication_pad3d.default",
        ("circular", _) => return pad_circular(cx, node, x),
        _ => return cx.fail(node, format!("no padding of {count} dimensions by `{mode}`")),
    };
    Ok(cx.retarget(node, target, vec![("self", Argument::Var(x)), ("padding", Argument::Ints(pads))]))
}

/// Rewrites negative padding: crops first, then pads.
fn crop_and_pad(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let mut x = cx.tensor(node, "self")?;
    let rank = cx.spec(node, x)?.rank();
    let pads = cx.pads(node, rank)?;
    if pads.iter().all(|&(_, before, after)| before >= 0 && after >= 0) {
        return Ok(Outcome::Kept);
    }
    for &(dim, before, after) in &pads {
        let end = cx.size_of(node, x, dim)?.add(&Size::Int(after.min(0)));
        x = cx.slice(node, x, dim, (&Size::Int(before.min(0).saturating_neg()), &end))?;
    }
    let pads: Vec<i64> = pads.iter().flat_map(|&(_, before, after)| [before.max(0), after.max(0)]).collect();
    if pads.iter().all(|&pad| pad == 0) {
        return cx.replace_node(node, x);
    }
    let value = node.arg("value").cloned().unwrap_or(Argument::Int(0));
    let args = vec![("self", Argument::Var(x)), ("pad", Argument::ints(&pads)), ("value", value)];
    Ok(cx.retarget(node, "aten.constant_pad_nd.default", args))
}

/// Pads with the elements from the opposite end. Negative padding crops first; the rest wraps around what is left.
fn pad_circular(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId) -> Result<Outcome> {
    let pads = cx.ints(node, "pad")?.unwrap_or_default();
    let rank = cx.spec(node, x)?.rank();
    let mut value = x;
    for (i, pair) in pads.chunks_exact(2).enumerate() {
        let Some(dim) = rank.checked_sub(i + 1) else {
            return cx.fail(node, "it pads more dimensions than there are");
        };
        let (before, after) = (pair[0].max(0), pair[1].max(0));
        let end = cx.spec_of(value).sizes[dim].add(&Size::Int(pair[1].min(0)));
        value = cx.slice(node, value, dim, (&Size::Int(pair[0].min(0).saturating_neg()), &end))?;
        let size = cx.spec_of(value).sizes[dim].clone();
        if size.known().is_some_and(|size| size < before.max(after)) {
            return cx.fail(node, "it pads a dimension by more than its size");
        }
        let from = size.add(&Size::Int(-before));
        let mut parts = Vec::new();
        if before > 0 {
            parts.push(cx.slice(node, value, dim, (&from, &size))?);
        }
        parts.push(value);
        if after > 0 {
            parts.push(cx.slice(node, value, dim, (&Size::Int(0), &Size::Int(after)))?);
        }
        value = cx.cat(&parts, dim);
    }
    cx.replace_node(node, value)
}

fn cosine_similarity(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (a, b) = (cx.tensor(node, "x1")?, cx.tensor(node, "x2")?);
    let rank = cx.result_spec(node)?.rank() + 1;
    let dim = cx.int(node, "dim", 1)?;
    let dim = cx.dim(node, dim, rank)?;
    let eps = cx.float(node, "eps", 1e-8)?;
    let product = cx.binary("aten.mul.Tensor", a, b);
    let over = cx.reduce("aten.sum.dim_IntList", product, &[dim], false);
    let sizes = cx.spec_of(product).sizes;
    let mut norms = Vec::new();
    for v in [a, b] {
        let own = cx.spec_of(v).sizes;
        let v = match own.len() != sizes.len() || own.get(dim) != sizes.get(dim) {
            true => cx.expand(node, v, sizes.clone())?,
            false => v,
        };
        let squares = cx.binary("aten.mul.Tensor", v, v);
        let sum = cx.reduce("aten.sum.dim_IntList", squares, &[dim], false);
        let norm = cx.unary("aten.sqrt.default", sum);
        let spec = cx.spec_of(norm);
        let args = vec![("self", Argument::Var(norm)), ("min", Argument::Float(eps))];
        norms.push(cx.emit("aten.clamp.default", args, spec));
    }
    let under = cx.binary("aten.mul.Tensor", norms[0], norms[1]);
    let new = cx.binary("aten.div.Tensor", over, under);
    cx.replace_node(node, new)
}

/// The slope at inference is the mean of the bounds of the random slope in training.
fn rrelu(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    if cx.bool(node, "training", false)? {
        return cx.fail(node, "an activation of training: export the model after `model.eval()`");
    }
    let x = cx.tensor(node, "self")?;
    let slope = (cx.float(node, "lower", 0.125)? + cx.float(node, "upper", 1.0 / 3.0)?) / 2.0;
    let args = vec![("self", Argument::Var(x)), ("negative_slope", Argument::Float(slope))];
    Ok(cx.retarget(node, "aten.leaky_relu.default", args))
}

/// `g v / |v|`, with the norm over all dimensions except `dim`, or over all if `dim` is -1.
fn weight_norm(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (v, g) = (cx.tensor(node, "v")?, cx.tensor(node, "g")?);
    let rank = cx.spec(node, v)?.rank();
    let own = cx.int(node, "dim", 0)?;
    let dims: Vec<usize> = match own {
        -1 => (0..rank).collect(),
        own => {
            let own = cx.dim(node, own, rank)?;
            (0..rank).filter(|&d| d != own).collect()
        }
    };
    let norm = super::reduce::vector_norm(cx, v, 2.0, &dims, true);
    let factor = cx.div(g, norm);
    let new = cx.mul(v, factor);
    if let Some(&second) = node.outputs.get(1) {
        let sizes = cx.spec(node, second)?.sizes;
        let norm = cx.view(node, norm, sizes)?;
        cx.replace(second, norm);
    }
    cx.replace_node(node, new)
}
