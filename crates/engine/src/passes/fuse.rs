//! Fuses nodes that are the only users of the results of convolutions and matrix multiplications into the epilogues of
//! these.

use super::norm::scale_and_shift;
use crate::graph::{Graph, NodeId, ValueId, add_constant, argument, meaning, single_use_producer};
use crate::operation::{OpKind, as_op, operation};
use crate::ops::conv::Convolution;
use crate::ops::pointwise::Pointwise;
use crate::ops::relayout::Reshape;
use pteron_kernels::compute::Activation;
use pteron_operator::{Binary, Expression, Instr, Meaning};
use pteron_tensor::ScalarType;
use pteron_tensor::memory::{copied, filled};

/// Folds batch norms, and fuses activations and residuals.
pub(super) fn run(graph: &mut Graph) {
    for node in graph.order() {
        if let Some(Meaning::BatchNorm { eps }) = meaning(graph, node) {
            fold_batch_norm(graph, node, eps);
        }
    }
    bypass_identities(graph);
    for node in graph.order() {
        fuse_into_producer(graph, node);
    }
}

/// A batch norm with known statistics: `x · scale[c] + shift[c]`.
struct Affine {
    scale: Vec<f32>,
    shift: Vec<f32>,
}

/// Folds a batch norm into the convolution before it; if that is impossible, rewrites it as an elementwise expression.
fn fold_batch_norm(graph: &mut Graph, node: NodeId, eps: f64) -> Option<()> {
    let affine = batch_norm_factors(graph, node, eps)?;
    let x = graph.node(node).inputs()[0];
    let scaled =
        single_use_producer(graph, x).and_then(|conv| Some((conv, scale_conv(graph, conv, &affine)?)));
    if let Some((producer, (conv, inputs))) = scaled {
        // The norm's node becomes the convolution.
        graph.rewrite(node, OpKind::arc(conv), &inputs);
        graph.truncate_outputs(node, 1);
        graph.absorb(node, producer);
        graph.remove(producer);
        return Some(());
    }
    let mut sizes = vec![1; graph.meta(x).rank()];
    sizes[1] = affine.scale.len();
    let (scale, shift) =
        (add_constant(graph, &sizes, &affine.scale)?, add_constant(graph, &sizes, &affine.shift)?);
    graph.rewrite(node, OpKind::arc(Pointwise(scale_and_shift())), &[x, scale, shift]);
    graph.truncate_outputs(node, 1);
    Some(())
}

/// Scale and shift of a batch norm; `None` unless its statistics, weight and bias are f32 constants and only its first
/// output is used.
fn batch_norm_factors(graph: &Graph, id: NodeId, eps: f64) -> Option<Affine> {
    let node = graph.node(id);
    let (x, out) = (graph.meta(argument(graph, id, 0)?), graph.meta(*node.outputs().first()?));
    let unused = node.outputs()[1..].iter().all(|&v| !graph.is_used(v));
    if !unused || x.rank() < 2 || x != out || x.dtype() != ScalarType::Float {
        return None;
    }
    let channels = x.sizes()[1];
    let channel_values = |position: usize, default: f32| -> Option<Vec<f32>> {
        if node.call()?.is_none(position) {
            return filled(channels, default).ok();
        }
        let values = graph.floats(argument(graph, id, position)?)?;
        if values.len() == channels { copied(values).ok() } else { None }
    };
    let (weight, bias) = (channel_values(1, 1.0)?, channel_values(2, 0.0)?);
    let (mean, variance) = (channel_values(3, 0.0)?, channel_values(4, 1.0)?);
    let scale: Vec<f32> =
        weight.iter().zip(&variance).map(|(&w, &v)| (w as f64 / (v as f64 + eps).sqrt()) as f32).collect();
    let shift = bias.iter().zip(&mean).zip(&scale).map(|((b, m), s)| b - m * s).collect();
    Some(Affine { scale, shift })
}

/// Scales the weights of a convolution without residual and activation per output channel. Returns the new convolution
/// and its inputs.
fn scale_conv(graph: &mut Graph, node: NodeId, affine: &Affine) -> Option<(Convolution, Vec<ValueId>)> {
    let conv = *as_op::<Convolution>(graph, node)?;
    let (inputs, channels) = (graph.node(node).inputs().to_vec(), conv.params.out_channels);
    if conv.residual || conv.activation != Activation::Identity || channels != affine.scale.len() {
        return None;
    }
    let meta = graph.meta(inputs[1]).clone();
    let old_bias = if conv.bias { Some(graph.floats(inputs[2])?) } else { None };
    let bias: Vec<f32> =
        (0..channels).map(|c| old_bias.map_or(0.0, |b| b[c]) * affine.scale[c] + affine.shift[c]).collect();
    if !meta.dim_order().is_contiguous() || meta.numel() == 0 {
        return None;
    }
    let mut scaled = graph.copy_of(&graph.view(inputs[1])?).ok()?;
    let (first, second) = (meta.strides()[0], meta.strides()[1]);
    let rows = scaled.as_mut_slice::<f32>().ok()?.chunks_exact_mut(first).enumerate();
    let scale = |weights: &mut [f32], channel: usize| {
        let by = affine.scale[channel];
        weights.iter_mut().for_each(|x| *x *= by);
    };
    if conv.params.transposed {
        let (in_group, columns) = (meta.sizes()[0] / conv.params.groups, meta.sizes()[1]);
        for (r, row) in rows {
            let columns = row.chunks_exact_mut(second).zip(r / in_group * columns..);
            columns.for_each(|(weights, channel)| scale(weights, channel));
        }
    } else {
        rows.for_each(|(channel, row)| scale(row, channel));
    }
    let w = graph.constant(scaled.meta().clone(), scaled.into());
    let b = add_constant(graph, &[channels], &bias)?;
    graph.set_value_origin(w, graph.value(inputs[1]).origin());
    if graph.uses(inputs[1]).len() == 1 {
        graph.forget_constant(inputs[1]);
    }
    Some((Convolution { bias: true, ..conv }, vec![inputs[0], w, b]))
}

/// Removes reshapes to the same sizes.
fn bypass_identities(graph: &mut Graph) {
    for node in graph.order() {
        if as_op::<Reshape>(graph, node).is_some() {
            let (from, to) = (graph.node(node).inputs()[0], graph.node(node).outputs()[0]);
            if graph.meta(from) == graph.meta(to) && !graph.is_live_out(to) {
                graph.replace_uses(to, from);
                graph.remove(node);
            }
        }
    }
}

/// The activation that an expression applies to its only input; `None` unless an epilogue supports it.
fn activation(expression: &Expression) -> Option<Activation> {
    match (expression.as_clamp(), expression.instrs.as_slice()) {
        (Some((0.0, f32::INFINITY)), _) => Some(Activation::Relu),
        (Some((low, high)), _) => Some(Activation::Clamp { low, high }),
        (None, &[Instr::Input(0), Instr::Unary(f, 0)]) => Some(Activation::Unary(f)),
        _ => None,
    }
}

/// Fuses an activation, or the addition of a tensor with the same meta, into the producer of an input.
fn fuse_into_producer(graph: &mut Graph, node: NodeId) -> Option<()> {
    let Pointwise(expression) = as_op(graph, node)?;
    let (inputs, out) = (graph.node(node).inputs().to_vec(), graph.node(node).outputs()[0]);
    let same_meta = |v: ValueId| graph.meta(v) == graph.meta(out);
    if let Some(activation) = activation(expression) {
        let producer = single_use_producer(graph, inputs[0]).filter(|_| same_meta(inputs[0]))?;
        let kind = operation(graph, producer)?.with_activation(activation)?;
        let inputs = graph.node(producer).inputs().to_vec();
        return merge_into_later(graph, node, producer, kind, &inputs);
    }
    if *expression != Expression::binary(Binary::Add) || inputs[0] == inputs[1] {
        return None;
    }
    let (producer, kind, other) =
        [(inputs[0], inputs[1]), (inputs[1], inputs[0])].into_iter().find_map(|(into, other)| {
            let like = same_meta(into) && same_meta(other) && !graph.is_constant(other);
            let producer = single_use_producer(graph, into).filter(|_| like)?;
            Some((producer, operation(graph, producer)?.with_residual()?, other))
        })?;
    let inputs = [graph.node(producer).inputs(), &[other]].concat();
    merge_into_later(graph, node, producer, kind, &inputs)
}

/// Fuses two nodes into the later one: there the residual is available, and the later node's result stays the same.
fn merge_into_later(
    graph: &mut Graph,
    node: NodeId,
    producer: NodeId,
    kind: std::sync::Arc<dyn crate::Kind>,
    inputs: &[ValueId],
) -> Option<()> {
    graph.rewrite(node, kind, inputs);
    graph.absorb(node, producer);
    graph.remove(producer);
    Some(())
}
