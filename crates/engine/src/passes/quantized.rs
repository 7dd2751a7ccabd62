//! Quantized matrix multiplications and convolutions, which exporters write as dequantization and computation in f32.
//!
//! | in the program | in the graph |
//! | --- | --- |
//! | `dequantize(quantize(x))`, parameters known | [`Quantize`], [`Dequantize`] |
//! | a matrix multiplication or convolution of a dequantized input with dequantized constant weights | [`QuantizedLinear`], [`QuantizedConvolution`] of the quantized values |
//! | a matrix multiplication of a dynamically quantized input (per tensor or per row), a convolution of one (per tensor) | [`QuantizedLinear`], [`QuantizedConvolution`] of the f32 input |
//! | a product of two dequantized values, the second with the zero point 0 | [`QuantizedProduct`] of the quantized values |
//! | the quantization of such a result | its `output` |
//!
//! The operations accumulate exactly, whereas the program rounds in f32: a requantized result may differ by one where
//! it falls between two quantized values.

use super::quantized_input::quantized_input;
use super::quantized_product;
use super::rule::{Match, Pattern, any, number, operation};
use crate::dequantized::{Weights, quantized_weights};
use crate::graph::{Graph, NodeId, ValueId, add_constant, meaning, single_use_producer};
use crate::operation::{OpKind, as_op, producer_as};
use crate::ops::conv::Convolution;
use crate::ops::linear::Linear;
use crate::ops::quantize::{Dequantize, Quantize};
use crate::ops::quantized_conv::QuantizedConvolution;
use crate::ops::quantized_linear::{QuantizedInput, QuantizedLinear};
use crate::ops::quantized_product::QuantizedProduct;
use crate::ops::relayout::Reshape;
use pteron_ir::Kind;
use pteron_kernels::compute::{Activation, Affine, PackedWeights, Quantization, QuantizedConv, WeightBits};
use pteron_operator::Meaning;
use pteron_operator::facts::QParams;
use pteron_tensor::{ScalarType, TensorMeta};
use std::sync::{Arc, LazyLock};

/// A quantization of `result`, directly or after `result` was dequantized with the same parameters and clamped.
static QUANTIZED: LazyLock<Pattern> = LazyLock::new(|| {
    let clamped =
        operation::<Dequantize>([any("result")]).named("dequantized").clamp(number("low"), number("high"));
    operation::<Quantize>([clamped.such_that(can_skip_requantization) | any("result")])
});

/// Whether a dequantization and the quantization after it have equal parameters, and only they use the values between.
fn can_skip_requantization(graph: &Graph, matched: &Match) -> bool {
    let from = producer_as(graph, matched["dequantized"]).map(|(_, Dequantize(affine))| affine);
    let to = as_op(graph, matched.parts[0]).map(|Quantize(q)| &q.affine);
    from == to && matched.is_closed(graph)
}

/// The quantized weights of a node whose input 1 is their dequantized form.
fn weights_of_node(graph: &Graph, node: NodeId) -> Option<Weights> {
    let &v = graph.node(node).inputs().get(1)?;
    quantized_weights(graph.meta(v), graph.value(v).constant()?)
}

/// Rewrites quantizations and dequantizations with known parameters, and the matrix multiplications and convolutions
/// between them.
pub(super) fn run(graph: &mut Graph) {
    for node in graph.order() {
        if let Some(kind) = conversion(graph, node) {
            graph.set_kind(node, kind);
        }
    }
    for node in graph.order() {
        if let Some(&linear) = as_op::<Linear>(graph, node) {
            quantize_product(graph, node, &linear);
        } else if let Some(&conv) = as_op::<Convolution>(graph, node) {
            quantize_convolution(graph, node, &conv);
        } else {
            quantized_product::rewrite(graph, node);
        }
    }
}

/// Whether an 8-bit type is signed; `None` for other types.
fn is_signed_8_bit(dtype: ScalarType) -> Option<bool> {
    match dtype {
        ScalarType::Char => Some(true),
        ScalarType::Byte => Some(false),
        _ => None,
    }
}

/// The quantization or dequantization that a call with known parameters computes.
fn conversion(graph: &Graph, node: NodeId) -> Option<Arc<dyn Kind>> {
    let (&[from], &[to]) = (graph.node(node).inputs(), graph.node(node).outputs()) else { return None };
    let (from, to) = (graph.meta(from), graph.meta(to));
    if from.sizes() != to.sizes() || !from.dim_order().same_layout(to.dim_order(), from.sizes()) {
        return None;
    }
    let sound = |scale: f64, zero: i64, low: i64, high: i64, dtype: ScalarType| {
        let affine = Affine { scale: scale as f32, zero: i32::try_from(zero).ok()? };
        let q = Quantization { affine, low: i32::try_from(low).ok()?, high: i32::try_from(high).ok()? };
        q.is_sound(is_signed_8_bit(dtype)?).then_some(q)
    };
    match meaning(graph, node)? {
        Meaning::Quantize(QParams::PerTensor { scale, zero, low, high })
            if from.dtype() == ScalarType::Float =>
        {
            Some(OpKind::arc(Quantize(sound(scale, zero, low, high, to.dtype())?)))
        }
        Meaning::Dequantize(QParams::PerTensor { scale, zero, low, high })
            if to.dtype() == ScalarType::Float =>
        {
            Some(OpKind::arc(Dequantize(sound(scale, zero, low, high, from.dtype())?.affine)))
        }
        _ => None,
    }
}

/// Rewrites a matrix multiplication to a quantized one, if its operands are dequantized.
fn quantize_product(graph: &mut Graph, node: NodeId, linear: &Linear) -> Option<()> {
    let inputs = graph.node(node).inputs().to_vec();
    let weights = weights_of_node(graph, node).filter(|_| !linear.residual)?;
    let out_major = linear.out_major != weights.transposed;
    let &[first, second] = &**weights.values.0.sizes() else { return None };
    let (k, inner_axis) = if out_major { (second, 1) } else { (first, 0) };
    let along_outputs = weights.axis.is_none_or(|axis| axis != inner_axis);
    if !along_outputs || k > PackedWeights::MAX_ROWS {
        return None;
    }
    let (mut x, input, reshaped) = quantized_input(graph, inputs[0])?;
    if reshaped {
        let meta = TensorMeta::contiguous(graph.meta(x).dtype(), graph.meta(inputs[0]).sizes()).ok()?;
        let reshape = graph.insert_before(node, OpKind::arc(Reshape), &[x], [meta]);
        x = graph.node(reshape).outputs()[0];
    }
    let op = QuantizedLinear {
        input,
        out_major,
        bits: WeightBits::Eight,
        group: k,
        bias: linear.bias,
        activation: linear.activation,
        output: None,
    };
    rewrite(graph, node, OpKind::arc(op), x, weights)
}

/// Rewrites a convolution to a quantized one, if its operands are dequantized.
fn quantize_convolution(graph: &mut Graph, node: NodeId, conv: &Convolution) -> Option<()> {
    let inputs = graph.node(node).inputs().to_vec();
    let weights = weights_of_node(graph, node).filter(|_| !conv.residual)?;
    let plain = !weights.transposed && weights.axis.is_none_or(|axis| axis == 0);
    if !plain || !QuantizedConv::supports(&conv.params) {
        return None;
    }
    let (x, input) = quantized_images(graph, inputs[0])?;
    if graph.meta(x).dim_order() != graph.meta(inputs[0]).dim_order() {
        return None;
    }
    let op = QuantizedConvolution { conv: *conv, input, output: None };
    rewrite(graph, node, OpKind::arc(op), x, weights)
}

/// The source of a convolution's input `x`, and how it is quantized.
fn quantized_images(graph: &Graph, x: ValueId) -> Option<(ValueId, QuantizedInput)> {
    if let Some((dequantize, &Dequantize(affine))) = producer_as(graph, x) {
        let x = graph.node(dequantize).inputs()[0];
        let least = if is_signed_8_bit(graph.meta(x).dtype())? { -128 } else { 0 };
        let padded = (least..=least + 255).contains(&affine.zero);
        return padded.then_some((x, QuantizedInput::Quantized(affine)));
    }
    let (x, input, reshaped) = quantized_input(graph, x)?;
    (!reshaped && matches!(input, QuantizedInput::ByTensor { .. })).then_some((x, input))
}

fn rewrite(graph: &mut Graph, node: NodeId, kind: Arc<dyn Kind>, x: ValueId, weights: Weights) -> Option<()> {
    let (meta, values) = weights.values;
    let values = graph.constant(meta, values);
    let scales = add_constant(graph, &[weights.scales.len()], &weights.scales)?;
    let bias = graph.node(node).inputs()[2..].to_vec();
    let inputs: Vec<ValueId> = [x, values, scales].into_iter().chain(bias).collect();
    graph.rewrite(node, kind, &inputs);
    Some(())
}

/// Fuses quantizations into the quantized operations before them, and clamps between two quantizations into the output
/// bounds.
pub(super) fn quantize_outputs(graph: &mut Graph) {
    for node in graph.order() {
        quantize_producer(graph, node);
    }
}

/// Fuses a quantization into the producer of its operand, if the quantization is the operand's only user.
fn quantize_producer(graph: &mut Graph, node: NodeId) -> Option<()> {
    let &Quantize(q) = as_op(graph, node)?;
    let matched = QUANTIZED.find(graph, node)?;
    let producer = single_use_producer(graph, matched["result"])?;
    let bounds = match (matched.number("low"), matched.number("high")) {
        (Some(low), Some(high)) => {
            Some((quantize_unclamped(&q, low).max(q.low), quantize_unclamped(&q, high).min(q.high)))
        }
        _ => None,
    };
    let kind = with_quantized_output(graph, producer, q, bounds)?;
    let inputs = graph.node(producer).inputs().to_vec();
    graph.rewrite(node, kind, &inputs);
    let fused: Vec<NodeId> = matched.parts[1..].iter().copied().chain([producer]).collect();
    fused.iter().for_each(|&other| graph.absorb(node, other));
    fused.into_iter().for_each(|other| graph.remove(other));
    Some(())
}

/// The kind of a node with its result quantized by `q`; `bounds` are those of a clamp after an earlier quantization.
fn with_quantized_output(
    graph: &Graph,
    node: NodeId,
    q: Quantization,
    bounds: Option<(i32, i32)>,
) -> Option<Arc<dyn Kind>> {
    let output = |before: Option<Quantization>, activation: Activation| match (before, bounds) {
        (None, None) if activation.is_simple() => Some(q),
        (Some(before), Some(bounds)) if before.affine == q.affine => {
            let (low, high) = (before.low.max(bounds.0), before.high.min(bounds.1));
            (low <= high).then_some(Quantization { low, high, ..before })
        }
        _ => None,
    };
    if let Some(&linear) = as_op::<QuantizedLinear>(graph, node) {
        let output = Some(output(linear.output, linear.activation)?);
        return Some(OpKind::arc(QuantizedLinear { output, ..linear }));
    }
    if let Some(&product) = as_op::<QuantizedProduct>(graph, node) {
        let output = Some(output(product.output, Activation::Identity)?);
        return Some(OpKind::arc(QuantizedProduct { output, ..product }));
    }
    let conv = *as_op::<QuantizedConvolution>(graph, node)?;
    let output = Some(output(conv.output, conv.conv.activation)?);
    Some(OpKind::arc(QuantizedConvolution { output, ..conv }))
}

/// The quantized value of an f32 value, saturated to 32 bits but not to the bounds of `q`.
fn quantize_unclamped(q: &Quantization, x: f32) -> i32 {
    ((x * (1.0 / q.affine.scale)).round_ties_even() as i32).saturating_add(q.affine.zero)
}
