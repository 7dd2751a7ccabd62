//! What follows a convolution or a product and is seen by nobody else goes into it.

use super::links::Links;
use crate::graph::{Constant, Graph, ValueId};
use crate::node::{Node, Op};
use crate::pointwise::{Instr, Program};
use kernels::compute::{Activation, Binary};
use std::collections::{HashMap, HashSet};
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
    let mut links = Links::of(graph);
    for i in 0..graph.nodes.len() {
        let Some(affine) = batch_norm(graph, &links, &graph.nodes[i]) else { continue };
        let (x, out) = (graph.nodes[i].inputs[0], graph.nodes[i].outputs[0]);
        let scaled = links.own(x).and_then(|p| Some((p, scale_conv(graph, p, &affine)?)));
        if let Some((p, conv)) = scaled {
            links.replace(graph, p, conv);
            // The norm's node goes; the convolution computes its value from now on.
            graph.values[x.0].origin = graph.values[out.0].origin;
            let node = Node { op: Op::Reshape, inputs: vec![x], outputs: vec![out] };
            links.replace(graph, i, node);
        } else {
            let channels = affine.scale.len();
            let rank = graph.meta(x).rank();
            let mut sizes = vec![1; rank];
            sizes[1] = channels;
            let Some(scale) = constant(graph, &sizes, &affine.scale) else { continue };
            let Some(shift) = constant(graph, &sizes, &affine.shift) else { continue };
            let program = super::norm::scale_and_shift();
            let node = Node { op: Op::Pointwise(program), inputs: vec![x, scale, shift], outputs: vec![out] };
            links.replace(graph, i, node);
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
fn batch_norm(graph: &Graph, links: &Links, node: &Node) -> Option<Affine> {
    let call = node.op.as_call()?;
    if call.name() != "aten::_native_batch_norm_legit_no_training.out" {
        return None;
    }
    if call.input_at(0) != Some(0) {
        return None;
    }
    let (x, out) = (graph.meta(node.inputs[0]), graph.meta(node.outputs[0]));
    if node.outputs[1..].iter().any(|&v| links.count(v) > 0) || x.rank() < 2 || x != out {
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

/// The node with the weights of a convolution's output channels multiplied, if it is a plain convolution.
fn scale_conv(graph: &mut Graph, node: usize, affine: &Affine) -> Option<Node> {
    let Op::Conv(conv) = graph.nodes[node].op.clone() else { return None };
    let (w, channels) = (graph.nodes[node].inputs[1], conv.params.out_channels);
    if conv.residual || conv.activation != Activation::Identity || channels != affine.scale.len() {
        return None;
    }
    let meta = graph.meta(w).clone();
    let mut weights = graph.floats(w)?.to_vec();
    let old_bias = if conv.bias { graph.floats(graph.nodes[node].inputs[2]) } else { None };
    let bias: Vec<f32> =
        (0..channels).map(|c| old_bias.map_or(0.0, |b| b[c]) * affine.scale[c] + affine.shift[c]).collect();
    // The position of a weight's output channel: the first dimension; of a transposed convolution
    // the second one, within the group of the first.
    let (first, second) = (meta.strides()[0], meta.strides()[1]);
    let (rows, columns) = (meta.sizes()[0], meta.sizes()[1]);
    let dense = meta.dim_order().is_contiguous();
    if !dense || weights.is_empty() {
        return None;
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
    let (new_w, new_b) = (constant(graph, &sizes, &weights)?, constant(graph, &[channels], &bias)?);
    let Node { inputs, outputs, .. } = &graph.nodes[node];
    let op = Op::Conv(crate::node::Convolution { bias: true, ..conv });
    Some(Node { op, inputs: vec![inputs[0], new_w, new_b], outputs: outputs.clone() })
}

/// Lets users of a reshape to the same sizes use its input.
fn bypass_identities(graph: &mut Graph) {
    let results: HashSet<ValueId> = graph.outputs.iter().copied().collect();
    let mut same: HashMap<ValueId, ValueId> = HashMap::new();
    for i in 0..graph.nodes.len() {
        for v in &mut graph.nodes[i].inputs {
            *v = same.get(v).copied().unwrap_or(*v);
        }
        let node = &graph.nodes[i];
        if matches!(node.op, Op::Reshape) {
            let (from, to) = (node.inputs[0], node.outputs[0]);
            if graph.meta(from) == graph.meta(to) && !results.contains(&to) {
                same.insert(to, from);
            }
        }
    }
    graph.drop_unused_nodes();
}

/// Puts activations and additions of a like tensor into the convolution or product before them.
fn epilogues(graph: &mut Graph) {
    let mut links = Links::of(graph);
    for i in 0..graph.nodes.len() {
        fuse_into_producer(graph, &mut links, i);
    }
    links.finish(graph);
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

/// Fuses node `i` into what makes one of its inputs, if it can.
fn fuse_into_producer(graph: &mut Graph, links: &mut Links, i: usize) {
    let Op::Pointwise(program) = &graph.nodes[i].op else { return };
    let (inputs, out) = (graph.nodes[i].inputs.clone(), graph.nodes[i].outputs[0]);
    let same_meta = |graph: &Graph, v: ValueId| graph.meta(v) == graph.meta(out);
    if let Some(activation) = activation(program) {
        let Some(p) = links.own(inputs[0]).filter(|_| same_meta(graph, inputs[0])) else { return };
        match &mut graph.nodes[p].op {
            Op::Conv(conv) if conv.activation == Activation::Identity => conv.activation = activation,
            Op::Linear(linear) if linear.activation == Activation::Identity => linear.activation = activation,
            Op::QuantizedLinear(linear) if linear.activation == Activation::Identity => {
                linear.activation = activation;
            }
            Op::QuantizedConv(q) if q.conv.activation == Activation::Identity => {
                q.conv.activation = activation;
            }
            _ => return,
        }
        links.remove(graph, i);
        let node = Node { outputs: vec![out], ..graph.nodes[p].clone() };
        return links.replace(graph, p, node);
    }
    if *program != Program::binary(Binary::Add) || inputs[0] == inputs[1] {
        return;
    }
    for (into, other) in [(inputs[0], inputs[1]), (inputs[1], inputs[0])] {
        let Some(p) = links.own(into) else { continue };
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
        let mut node = links.remove(graph, p);
        node.inputs.push(other);
        node.outputs = vec![out];
        // It runs now where the addition ran: the residual is known there at the latest.
        return links.replace(graph, i, node);
    }
}
