//! What follows a convolution or a product and is seen by nobody else goes into it.

use crate::graph::{Constant, Graph, ValueId};
use crate::node::{Node, Op};
use crate::pointwise::{Instr, Program};
use kernels::compute::{Activation, Binary};
use std::sync::Arc;
use tensor::{ScalarType, Tensor};

/// Fuses until nothing more can be.
pub(super) fn run(graph: &mut Graph) {
    batch_norms(graph);
    epilogues(graph);
}

/// `x · scale[c] + shift[c]`, which a batch norm with known statistics is.
struct Affine {
    scale: Vec<f32>,
    shift: Vec<f32>,
}

/// Puts batch norms into the convolutions before them; the others become elementwise.
fn batch_norms(graph: &mut Graph) {
    for i in 0..graph.nodes.len() {
        let Some(affine) = batch_norm(graph, &graph.nodes[i]) else { continue };
        let (x, out) = (graph.nodes[i].inputs[0], graph.nodes[i].outputs[0]);
        let counts = graph.use_counts();
        let producer = graph.producers()[x.0].filter(|_| counts[x.0] == 1);
        let taken = producer.is_some_and(|p| scale_conv(graph, p, &affine));
        if taken {
            // The norm's node goes; the convolution computes its value from now on.
            graph.values[x.0].origin = graph.values[out.0].origin;
            graph.nodes[i] = Node { op: Op::Reshape, inputs: vec![x], outputs: vec![out] };
        } else {
            let channels = affine.scale.len();
            let rank = graph.meta(x).rank();
            let mut sizes = vec![1; rank];
            sizes[1] = channels;
            let Some(scale) = constant(graph, &sizes, &affine.scale) else { continue };
            let Some(shift) = constant(graph, &sizes, &affine.shift) else { continue };
            let program = super::norm::scale_and_shift();
            graph.nodes[i] =
                Node { op: Op::Pointwise(program), inputs: vec![x, scale, shift], outputs: vec![out] };
        }
    }
    bypass_identities(graph);
}

pub(super) fn constant(graph: &mut Graph, sizes: &[usize], elements: &[f32]) -> Option<ValueId> {
    let tensor = Tensor::from_slice(sizes, elements).ok()?;
    Some(graph.constant(tensor.meta().clone(), Constant::Computed(Arc::new(tensor))))
}

/// What a batch norm with constant statistics computes, if the node is one whose other outputs are
/// not used.
fn batch_norm(graph: &Graph, node: &Node) -> Option<Affine> {
    let call = node.op.as_call()?;
    if call.name() != "aten::_native_batch_norm_legit_no_training.out" {
        return None;
    }
    if call.input_at(0) != Some(0) {
        return None;
    }
    let counts = graph.use_counts();
    let (x, out) = (graph.meta(node.inputs[0]), graph.meta(node.outputs[0]));
    if node.outputs[1..].iter().any(|v| counts[v.0] > 0) || x.rank() < 2 || x != out {
        return None;
    }
    let channels = graph.meta(node.inputs[0]).sizes()[1];
    let given = |position: usize, default: f32| -> Option<Vec<f32>> {
        if call.is_none(position) {
            return Some(vec![default; channels]);
        }
        let values = graph.floats(node.inputs[call.input_at(position)?])?;
        (values.len() == channels).then(|| values.to_vec())
    };
    let (weight, bias) = (given(1, 1.0)?, given(2, 0.0)?);
    let (mean, variance) = (given(3, 0.0)?, given(4, 1.0)?);
    let eps = call.scalar(6)?.to_f64();
    let scale: Vec<f32> =
        weight.iter().zip(&variance).map(|(&w, &v)| (w as f64 / (v as f64 + eps).sqrt()) as f32).collect();
    let shift = bias.iter().zip(&mean).zip(&scale).map(|((b, m), s)| b - m * s).collect();
    let float = graph.meta(node.inputs[0]).dtype() == ScalarType::Float;
    float.then_some(Affine { scale, shift })
}

/// Multiplies the weights of a convolution's output channels, if the node is a plain convolution.
fn scale_conv(graph: &mut Graph, node: usize, affine: &Affine) -> bool {
    let Op::Conv(conv) = graph.nodes[node].op.clone() else { return false };
    let (w, channels) = (graph.nodes[node].inputs[1], conv.params.out_channels);
    if conv.residual || conv.activation != Activation::Identity || channels != affine.scale.len() {
        return false;
    }
    let meta = graph.meta(w).clone();
    let Some(weights) = graph.floats(w) else { return false };
    let mut weights = weights.to_vec();
    let old_bias = if conv.bias { graph.floats(graph.nodes[node].inputs[2]) } else { None };
    let bias: Vec<f32> =
        (0..channels).map(|c| old_bias.map_or(0.0, |b| b[c]) * affine.scale[c] + affine.shift[c]).collect();
    // The position of a weight's output channel: the first dimension; of a transposed convolution
    // the second one, within the group of the first.
    let (first, second) = (meta.strides()[0], meta.strides()[1]);
    let (rows, columns) = (meta.sizes()[0], meta.sizes()[1]);
    let dense = meta.dim_order().is_contiguous();
    if !dense || weights.is_empty() {
        return false;
    }
    let groups = conv.params.groups;
    for r in 0..rows {
        for c in 0..columns {
            let channel = if conv.params.transposed { r / (rows / groups) * columns + c } else { r };
            let at = r * first + c * second;
            weights[at..at + second].iter_mut().for_each(|x| *x *= affine.scale[channel]);
        }
    }
    let sizes = *meta.sizes();
    let Some(new_w) = constant(graph, &sizes, &weights) else { return false };
    let Some(new_b) = constant(graph, &[channels], &bias) else { return false };
    graph.nodes[node].inputs = vec![graph.nodes[node].inputs[0], new_w, new_b];
    graph.nodes[node].op = Op::Conv(crate::node::Convolution { bias: true, ..conv });
    true
}

/// Lets users of a reshape to the same sizes use its input.
fn bypass_identities(graph: &mut Graph) {
    for i in 0..graph.nodes.len() {
        let node = &graph.nodes[i];
        if matches!(node.op, Op::Reshape) {
            let (from, to) = (node.inputs[0], node.outputs[0]);
            let same = graph.meta(from) == graph.meta(to);
            if same && !graph.outputs.contains(&to) {
                graph.replace_uses(to, from);
            }
        }
    }
    graph.drop_unused_nodes();
}

/// Puts activations and additions of a like tensor into the convolution or product before them.
fn epilogues(graph: &mut Graph) {
    let mut i = 0;
    while i < graph.nodes.len() {
        if !fuse_into_producer(graph, i) {
            i += 1;
        }
    }
}

/// What a program applies to its one input, if a convolution or a product can do so to its result.
fn activation(program: &Program) -> Option<Activation> {
    match (program.as_clamp(), program.instrs.as_slice()) {
        (Some((0.0, f32::INFINITY)), _) => Some(Activation::Relu),
        (Some((low, high)), _) => Some(Activation::Clamp { low, high }),
        (None, &[Instr::Input(0), Instr::Unary(f, 0)]) => Some(Activation::Unary(f)),
        _ => None,
    }
}

/// Fuses node `i` into what makes one of its inputs. Says whether it did; the node is gone then.
fn fuse_into_producer(graph: &mut Graph, i: usize) -> bool {
    let Op::Pointwise(program) = &graph.nodes[i].op else { return false };
    let (inputs, out) = (graph.nodes[i].inputs.clone(), graph.nodes[i].outputs[0]);
    let (counts, producers) = (graph.use_counts(), graph.producers());
    let own = |v: ValueId| producers[v.0].filter(|_| counts[v.0] == 1);
    let same_meta = |graph: &Graph, v: ValueId| graph.meta(v) == graph.meta(out);
    if let Some(activation) = activation(program) {
        let Some(p) = own(inputs[0]).filter(|_| same_meta(graph, inputs[0])) else { return false };
        match &mut graph.nodes[p].op {
            Op::Conv(conv) if conv.activation == Activation::Identity => conv.activation = activation,
            Op::Linear(linear) if linear.activation == Activation::Identity => linear.activation = activation,
            Op::QuantizedLinear(linear) if linear.activation == Activation::Identity => {
                linear.activation = activation;
            }
            Op::QuantizedConv(q) if q.conv.activation == Activation::Identity => {
                q.conv.activation = activation;
            }
            _ => return false,
        }
        graph.nodes[p].outputs = vec![out];
        graph.nodes.remove(i);
        return true;
    }
    if *program != Program::binary(Binary::Add) || inputs[0] == inputs[1] {
        return false;
    }
    for (into, other) in [(inputs[0], inputs[1]), (inputs[1], inputs[0])] {
        let Some(p) = own(into) else { continue };
        if !same_meta(graph, into) || !same_meta(graph, other) || graph.get(other).constant.is_some() {
            continue;
        }
        match &mut graph.nodes[p].op {
            Op::Conv(conv) if conv.activation == Activation::Identity && !conv.residual => {
                conv.residual = true
            }
            Op::Linear(l) if l.activation == Activation::Identity && !l.residual => l.residual = true,
            _ => continue,
        }
        let mut node = graph.nodes.remove(p);
        node.inputs.push(other);
        node.outputs = vec![out];
        // It runs now where the addition ran: the residual is known there at the latest.
        graph.nodes[i - 1] = node;
        return true;
    }
    false
}
