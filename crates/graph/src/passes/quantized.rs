//! Products and convolutions of quantized numbers, as exporters spell them: what is dequantized, and
//! multiplied in f32.
//!
//! | in the program | in the graph |
//! | --- | --- |
//! | `dequantize(quantize(x))`, parameters known | [`Op::Quantize`], [`Op::Dequantize`] |
//! | a product or convolution of a dequantized input with dequantized constant weights | [`Op::QuantizedLinear`], [`Op::QuantizedConv`] of the numbers |
//! | a product of an input quantized by parameters chosen from it, for the tensor or for each row | [`Op::QuantizedLinear`] of the input |
//! | the quantization of such a result | its `output` |
//!
//! The sums of the graph's nodes are exact, where those of the program round in f32: a result that is
//! quantized again may differ by one where it falls between two numbers.

use super::fuse;
use super::links::Links;
use crate::graph::{Graph, ValueId};
use crate::node::{
    Call, Convolution, Linear, Node, Op, QuantizedConvolution, QuantizedInput, QuantizedLinear,
};
use kernels::compute::{Activation, Affine, PackedWeights, Quantization, QuantizedConv, WeightBits};
use std::collections::HashMap;
use tensor::{ScalarType, TensorMeta};

/// Constant weights that a program dequantizes.
pub(super) struct Weights {
    numbers: ValueId,
    /// Whether the weights are the transpose of the numbers.
    transposed: bool,
    scales: Vec<f32>,
    /// The dimension of the numbers along which there is a scale for each, if not one for all.
    axis: Option<usize>,
}

/// The weights of a graph that nothing has changed yet, by the value that they become.
pub(super) fn weights(graph: &Graph) -> HashMap<ValueId, Weights> {
    let mut known = HashMap::new();
    for node in &graph.nodes {
        let Some(call) = node.op.as_call() else { continue };
        let (Some(&input), Some(&out)) = (node.inputs.first(), node.outputs.first()) else { continue };
        let found = match call.name() {
            "aten::permute_copy.out" | "aten::t_copy.out" => transposition(graph, call, input, &known),
            _ => dequantized(graph, node, call),
        };
        known.extend(found.map(|weights| (out, weights)));
    }
    known
}

fn transposition(
    graph: &Graph,
    call: &Call,
    input: ValueId,
    known: &HashMap<ValueId, Weights>,
) -> Option<Weights> {
    let weights = known.get(&input)?;
    let swaps = match call.ints(1) {
        Some(dims) => matches!(dims, [1, 0] | [-1, 0] | [1, -2] | [-1, -2]),
        None => call.name() == "aten::t_copy.out",
    };
    let matrix = graph.meta(input).rank() == 2;
    (swaps && matrix).then(|| Weights {
        transposed: !weights.transposed,
        scales: weights.scales.clone(),
        ..*weights
    })
}

fn dequantized(graph: &Graph, node: &Node, call: &Call) -> Option<Weights> {
    let numbers = *node.inputs.first()?;
    let (value, out) = (graph.get(numbers), graph.meta(*node.outputs.first()?));
    let plain = |m: &TensorMeta| m.dim_order().is_contiguous();
    let kept = value.constant.is_some() && value.meta.dtype() == ScalarType::Char;
    let floats = out.dtype() == ScalarType::Float && out.sizes() == value.meta.sizes();
    if !(kept && floats && plain(&value.meta) && plain(out) && call.input_at(0) == Some(0)) {
        return None;
    }
    match call.name() {
        "quantized_decomposed::dequantize_per_tensor.out" => {
            let (scale, zero) = (call.scalar(1)?.to_f64() as f32, call.int(2)?);
            (zero == 0).then(|| Weights { numbers, transposed: false, scales: vec![scale], axis: None })
        }
        "quantized_decomposed::dequantize_per_channel.out" => {
            let rank = value.meta.rank();
            let axis = call.int(3)?;
            let axis = usize::try_from(if axis < 0 { axis + rank as i64 } else { axis }).ok()?;
            let channels = *value.meta.sizes().get(axis)?;
            let numbers_of = |position: usize| {
                let v = *node.inputs.get(call.input_at(position)?)?;
                let view = graph.get(v).view()?;
                (view.numel() == channels).then_some(view)
            };
            let zeros = call.is_none(2) || numbers_of(2)?.bytes().iter().all(|&b| b == 0);
            let scales = numbers_of(1)?;
            let scales = match scales.dtype() {
                ScalarType::Float => scales.storage::<f32>().ok()?.to_vec(),
                ScalarType::Double => scales.storage::<f64>().ok()?.iter().map(|&s| s as f32).collect(),
                _ => return None,
            };
            zeros.then_some(Weights { numbers, transposed: false, scales, axis: Some(axis) })
        }
        _ => None,
    }
}

/// Rewrites quantizations whose parameters are known, and products and convolutions between them.
pub(super) fn run(graph: &mut Graph, known: &HashMap<ValueId, Weights>) {
    for i in 0..graph.nodes.len() {
        if let Some(op) =
            graph.nodes[i].op.as_call().and_then(|call| conversion(graph, &graph.nodes[i], call))
        {
            graph.nodes[i].op = op;
        }
    }
    if !known.is_empty() {
        let producers = graph.producers();
        let nodes = graph.nodes.clone();
        let find = |v: ValueId| producers[v.0].map(|p| &nodes[p]);
        graph.nodes.clear();
        for node in &nodes {
            let new = match &node.op {
                Op::Linear(linear) => product(graph, node, linear, known, &find),
                Op::Conv(conv) => convolution(graph, node, conv, known, &find),
                _ => None,
            };
            graph.nodes.push(new.unwrap_or_else(|| node.clone()));
        }
    }
    graph.drop_unused_nodes();
}

/// The parameters at the second to fifth arguments of a quantization that is given numbers.
fn quantization(call: &Call, dtype: ScalarType) -> Option<Quantization> {
    let small = |p: usize| call.int(p).and_then(|v| i32::try_from(v).ok());
    let affine = Affine { scale: call.scalar(1)?.to_f64() as f32, zero: small(2)? };
    let q = Quantization { affine, low: small(3)?, high: small(4)? };
    q.is_sound(signed(dtype)?).then_some(q)
}

/// Whether numbers of an 8-bit type are signed.
fn signed(dtype: ScalarType) -> Option<bool> {
    match dtype {
        ScalarType::Char => Some(true),
        ScalarType::Byte => Some(false),
        _ => None,
    }
}

fn conversion(graph: &Graph, node: &Node, call: &Call) -> Option<Op> {
    let (&[from], &[to]) = (node.inputs.as_slice(), node.outputs.as_slice()) else { return None };
    let (from, to) = (graph.meta(from), graph.meta(to));
    if from.sizes() != to.sizes() || !from.dim_order().same_layout(to.dim_order(), from.sizes()) {
        return None;
    }
    match call.name() {
        "quantized_decomposed::quantize_per_tensor.out" if from.dtype() == ScalarType::Float => {
            Some(Op::Quantize(quantization(call, to.dtype())?))
        }
        "quantized_decomposed::dequantize_per_tensor.out" if to.dtype() == ScalarType::Float => {
            Some(Op::Dequantize(quantization(call, from.dtype())?.affine))
        }
        _ => None,
    }
}

/// Where a product's input comes from, and how its numbers stand for it.
fn input<'a>(
    graph: &mut Graph,
    x: ValueId,
    find: &impl Fn(ValueId) -> Option<&'a Node>,
) -> Option<(ValueId, QuantizedInput)> {
    let mut node = find(x)?;
    while let Op::Reshape = node.op {
        node = find(node.inputs[0])?;
    }
    match &node.op {
        Op::Dequantize(affine) => {
            let numbers = node.inputs[0];
            let input = QuantizedInput::Numbers(*affine);
            if !graph.meta(numbers).dim_order().is_contiguous() {
                return None;
            }
            if graph.meta(numbers).sizes() == graph.meta(x).sizes() {
                return Some((numbers, input));
            }
            let meta = TensorMeta::contiguous(graph.meta(numbers).dtype(), graph.meta(x).sizes()).ok()?;
            let shaped = graph.twin(numbers, meta);
            graph.nodes.push(Node { op: Op::Reshape, inputs: vec![numbers], outputs: vec![shaped] });
            Some((shaped, input))
        }
        Op::Call(call) => {
            let (real, input) = dynamic(node, call, find)?;
            let (real_meta, meta) = (graph.meta(real), graph.meta(x));
            let same = real_meta.sizes() == meta.sizes() && real_meta.dim_order().is_contiguous();
            (same && real_meta.dtype() == ScalarType::Float).then_some((real, input))
        }
        _ => None,
    }
}

/// What is quantized by parameters that are chosen from it, if `node` dequantizes such a thing.
fn dynamic<'a>(
    node: &Node,
    call: &Call,
    find: &impl Fn(ValueId) -> Option<&'a Node>,
) -> Option<(ValueId, QuantizedInput)> {
    let named = |node: &'a Node, name: &str| node.op.as_call().filter(|call| call.name() == name);
    let (quantize, choose) = match call.name() {
        "quantized_decomposed::dequantize_per_tensor.Tensor_out" => (
            "quantized_decomposed::quantize_per_tensor.Tensor_out",
            "quantized_decomposed::choose_qparams.Tensor_out",
        ),
        "quantized_decomposed::dequantize_per_token.out" => (
            "quantized_decomposed::quantize_per_token.out",
            "quantized_decomposed::choose_qparams_per_token_asymmetric.out",
        ),
        _ => return None,
    };
    let &[numbers, scale, zero] = node.inputs.as_slice() else { return None };
    let quantizer = find(numbers)?;
    let quantizing = named(quantizer, quantize)?;
    let &[x, q_scale, q_zero] = quantizer.inputs.as_slice() else { return None };
    let chooser = find(scale)?;
    let choosing = named(chooser, choose)?;
    let agree = (q_scale, q_zero) == (scale, zero)
        && chooser.outputs == [scale, zero]
        && chooser.inputs == [x]
        && [call, quantizing].iter().all(|c| (0..3).all(|p| c.input_at(p) == Some(p)));
    let bounds = (i32::try_from(quantizing.int(3)?).ok()?, i32::try_from(quantizing.int(4)?).ok()?);
    let input = if choosing.args.len() == 7 {
        let range = (i32::try_from(choosing.int(1)?).ok()?, i32::try_from(choosing.int(2)?).ok()?);
        let eps = choosing.scalar(3)?.to_f64() as f32;
        let sane = eps > 0.0 && -128 <= range.0 && range.0 < range.1 && range.1 <= 127;
        (sane && range == bounds).then_some(QuantizedInput::ByTensor { low: range.0, high: range.1, eps })
    } else {
        (bounds == (-128, 127)).then_some(QuantizedInput::ByRow)
    };
    Some((x, input?)).filter(|_| agree)
}

/// The product of quantized numbers that a product means.
fn product<'a>(
    graph: &mut Graph,
    node: &Node,
    linear: &Linear,
    known: &HashMap<ValueId, Weights>,
    find: &impl Fn(ValueId) -> Option<&'a Node>,
) -> Option<Node> {
    let weights = known.get(&node.inputs[1]).filter(|_| !linear.residual)?;
    let out_major = linear.out_major != weights.transposed;
    let sizes = graph.meta(weights.numbers).sizes();
    let k = *sizes.get(usize::from(out_major))?;
    let along_outputs = weights.axis.is_none_or(|axis| axis == usize::from(!out_major));
    if !along_outputs || k > PackedWeights::MAX_ROWS {
        return None;
    }
    let (x, input) = input(graph, node.inputs[0], find)?;
    let op = QuantizedLinear {
        input,
        out_major,
        bits: WeightBits::Eight,
        group: k,
        bias: linear.bias,
        activation: linear.activation,
        output: None,
    };
    rewritten(graph, node, Op::QuantizedLinear(op), x, weights)
}

/// The convolution of quantized numbers that a convolution means.
fn convolution<'a>(
    graph: &mut Graph,
    node: &Node,
    conv: &Convolution,
    known: &HashMap<ValueId, Weights>,
    find: &impl Fn(ValueId) -> Option<&'a Node>,
) -> Option<Node> {
    let weights = known.get(&node.inputs[1]).filter(|_| !conv.residual)?;
    let plain = !weights.transposed && weights.axis.is_none_or(|axis| axis == 0);
    if !plain || !QuantizedConv::supports(&conv.params) {
        return None;
    }
    let dequantize = find(node.inputs[0])?;
    let Op::Dequantize(affine) = dequantize.op else { return None };
    let x = dequantize.inputs[0];
    let meta = graph.meta(x);
    let least = if signed(meta.dtype())? { -128 } else { 0 };
    let padded = (least..=least + 255).contains(&affine.zero);
    if !padded || meta.dim_order() != graph.meta(node.inputs[0]).dim_order() {
        return None;
    }
    let op = QuantizedConvolution { conv: *conv, input: affine, output: None };
    rewritten(graph, node, Op::QuantizedConv(op), x, weights)
}

fn rewritten(graph: &mut Graph, node: &Node, op: Op, x: ValueId, weights: &Weights) -> Option<Node> {
    let scales = fuse::constant(graph, &[weights.scales.len()], &weights.scales)?;
    let inputs = [x, weights.numbers, scales].into_iter().chain(node.inputs[2..].iter().copied());
    Some(Node { op, inputs: inputs.collect(), outputs: node.outputs.clone() })
}

/// Puts quantizations into the products and convolutions before them, and clamps of numbers into their
/// bounds.
pub(super) fn outputs(graph: &mut Graph) {
    let mut links = Links::of(graph);
    for i in 0..graph.nodes.len() {
        quantize_producer(graph, &mut links, i);
    }
    links.finish(graph);
}

/// Puts node `i` into what makes its input, if it quantizes that and nobody else reads it. `None` if not.
fn quantize_producer(graph: &mut Graph, links: &mut Links, i: usize) -> Option<()> {
    let Op::Quantize(q) = graph.nodes[i].op else { return None };
    let own = |v: ValueId| links.own(v);
    let (from, out) = (graph.nodes[i].inputs[0], graph.nodes[i].outputs[0]);
    let mut p = own(from)?;
    let mut bounds = (q.low, q.high);
    let mut steps = vec![i];
    // Numbers that are clamped as reals and become numbers by the same parameters.
    if let Op::Pointwise(program) = &graph.nodes[p].op
        && let Some((low, high)) = program.as_clamp()
        && let Some(d) = own(graph.nodes[p].inputs[0])
        && let Op::Dequantize(affine) = graph.nodes[d].op
        && affine == q.affine
    {
        bounds = (number(&q, low).max(q.low), number(&q, high).min(q.high));
        steps.extend([p, d]);
        p = own(graph.nodes[d].inputs[0])?;
    }
    let clamped = steps.len() > 1;
    let (output, activation) = match &mut graph.nodes[p].op {
        Op::QuantizedLinear(linear) => (&mut linear.output, linear.activation),
        Op::QuantizedConv(conv) => (&mut conv.output, conv.conv.activation),
        _ => return None,
    };
    match output {
        None if !clamped && !matches!(activation, Activation::Unary(_)) => *output = Some(q),
        Some(before) if clamped && before.affine == q.affine => {
            let (low, high) = (before.low.max(bounds.0), before.high.min(bounds.1));
            if low > high {
                return None;
            }
            (before.low, before.high) = (low, high);
        }
        _ => return None,
    }
    steps.into_iter().for_each(|step| drop(links.remove(graph, step)));
    let node = Node { outputs: vec![out], ..graph.nodes[p].clone() };
    links.replace(graph, p, node);
    Some(())
}

/// The number of a real, without bounds but those of 32 bits.
fn number(q: &Quantization, x: f32) -> i32 {
    ((x * (1.0 / q.affine.scale)).round_ties_even() as i32).saturating_add(q.affine.zero)
}
