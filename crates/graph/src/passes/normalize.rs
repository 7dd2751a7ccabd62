//! From operator calls to the graph's own nodes. The one table of which operator means what; calls
//! that it does not know, or not in this form, stay calls.

use crate::graph::{Constant, Graph, ValueId};
use crate::layouts::{self, has_layout, image_layout};
use crate::node::{Call, CallArg, Convolution, Linear, Node, Op};
use crate::pointwise::{Instr, Program};
use crate::{bind, cast};
use kernels::compute::{self, Activation, Binary, ConvParams, Unary};
use operator::{KernelContext, Results};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tensor::{DimOrder, Scalar, ScalarType, Tensor, TensorMeta, TensorView, TensorViewMut};

/// Bytes of a computed constant above which the computation stays in the graph.
const LARGEST_CONSTANT: usize = 256 << 20;

/// Computes constants, then rewrites the known calls.
pub(super) fn run(graph: &mut Graph, ctx: &KernelContext<'_>) {
    let mut transposes = Transposes::default();
    let results: HashSet<ValueId> = graph.outputs.iter().copied().collect();
    for node in std::mem::take(&mut graph.nodes) {
        if !node.outputs.iter().any(|v| results.contains(v)) && Transposes::is_one(graph, &node) {
            transposes.0.insert(node.outputs[0], node);
            continue;
        }
        if let Some(product) = transposes.product(graph, &node) {
            graph.nodes.push(product);
            continue;
        }
        let read: Vec<Node> = node.inputs.iter().filter_map(|v| transposes.0.remove(v)).collect();
        read.into_iter().chain([node]).for_each(|node| {
            let is_result = node.outputs.iter().any(|v| results.contains(v));
            normalize(graph, node, is_result, ctx);
        });
    }
}

fn normalize(graph: &mut Graph, node: Node, is_result: bool, ctx: &KernelContext<'_>) {
    if fold(graph, &node, is_result, ctx) || !is_result && fold_conversion(graph, &node, ctx) {
        return;
    }
    let node = plain_weights(graph, node);
    let new = rewrite(graph, &node).filter(|new| layouts::fit(graph, new));
    graph.nodes.push(new.unwrap_or(node));
}

/// Transposes of constant matrices, by their results, that only products have read so far. A product packs
/// the matrix itself: the transpose need not be computed, nor kept beside what is packed.
#[derive(Default)]
struct Transposes(HashMap<ValueId, Node>);

impl Transposes {
    /// Whether a node transposes a constant matrix.
    fn is_one(graph: &Graph, node: &Node) -> bool {
        let (Some(call), [from], [to]) = (node.op.as_call(), &node.inputs[..], &node.outputs[..]) else {
            return false;
        };
        let swaps = match call.name() {
            "aten::t_copy.out" => true,
            "aten::permute_copy.out" => matches!(call.ints(1), Some([1 | -1, 0 | -2])),
            "aten::transpose_copy.int_out" => {
                matches!(
                    (call.int(1), call.int(2)),
                    (Some(1 | -1), Some(0 | -2)) | (Some(0 | -2), Some(1 | -1))
                )
            }
            _ => false,
        };
        let &[rows, columns] = &**graph.meta(*from).sizes() else { return false };
        swaps
            && call.input_at(0) == Some(0)
            && graph.meta(*to).sizes()[..] == [columns, rows]
            && graph.get(*from).constant.is_some()
            && graph.get(*to).constant.is_none()
    }

    /// The node of a product with such a transpose.
    fn product(&self, graph: &Graph, node: &Node) -> Option<Node> {
        let call = node.op.as_call()?;
        let weights = match call.name() {
            "aten::mm.out" => 1,
            "aten::addmm.out" => 2,
            _ => return None,
        };
        let transpose = self.0.get(node.inputs.get(weights)?)?;
        let mut node = node.clone();
        node.inputs[weights] = transpose.inputs[0];
        product(graph, &node, true)
    }
}

/// A convolution whose constant weights are stored row-major, as they are packed from.
fn plain_weights(graph: &mut Graph, mut node: Node) -> Node {
    let convolution = node.op.as_call().is_some_and(|c| c.name() == "aten::convolution.out");
    if convolution && let Some(&w) = node.inputs.get(1) {
        let value = graph.get(w);
        let order = DimOrder::contiguous(value.meta.rank());
        let stored = value.view().filter(|_| *value.meta.dim_order() != order);
        if let Some(plain) = stored.and_then(|v| v.to_tensor().ok()?.to_dim_order(order).ok()) {
            node.inputs[1] = graph.constant(plain.meta().clone(), Constant::Computed(Arc::new(plain)));
        }
    }
    node
}

/// Computes a call whose inputs are all known, unless it computes a result of the graph. Says whether it did.
fn fold(graph: &mut Graph, node: &Node, is_result: bool, ctx: &KernelContext<'_>) -> bool {
    let Op::Call(call) = &node.op else { return false };
    // The graph's maker has computed it before, and says with the call how.
    if !node.outputs.is_empty() && node.outputs.iter().all(|&v| graph.get(v).constant.is_some()) {
        return true;
    }
    let bytes: usize = node.outputs.iter().map(|&v| graph.meta(v).nbytes()).sum();
    if call.kernel.results() != Results::Elements || bytes > LARGEST_CONSTANT || is_result {
        return false;
    }
    let Some(inputs) = node.inputs.iter().map(|&v| graph.get(v).view()).collect::<Option<Vec<_>>>() else {
        return false;
    };
    match compute_call(graph, call, &inputs, &node.outputs, ctx) {
        Some(tensors) => {
            for (&v, tensor) in node.outputs.iter().zip(tensors) {
                graph.values[v.0].constant = Some(Constant::Computed(Arc::new(tensor)));
            }
            true
        }
        None => false,
    }
}

/// Converts or rounds a constant. Says whether it did.
fn fold_conversion(graph: &mut Graph, node: &Node, ctx: &KernelContext<'_>) -> bool {
    let (&[from], &[to]) = (&node.inputs[..], &node.outputs[..]) else { return false };
    if graph.meta(to).nbytes() > LARGEST_CONSTANT {
        return false;
    }
    let computed = |x: &TensorView<'_>| -> Option<Tensor> {
        let mut tensor = Tensor::zeros(graph.meta(to).clone()).ok()?;
        let mut out = tensor.view_mut();
        match &node.op {
            Op::Cast => cast::run(ctx, x, &mut out).ok()?,
            Op::Pointwise(program) => {
                let &[Instr::Input(0), Instr::Unary(f, 0)] = &program.instrs[..] else { return None };
                compute::unary(ctx.pool(), ctx.isa(), f, x.storage().ok()?, out.storage_mut().ok()?);
            }
            _ => return None,
        }
        Some(tensor)
    };
    let tensor = graph.get(from).view().as_ref().and_then(computed);
    let folded = tensor.is_some();
    if let Some(tensor) = tensor {
        graph.values[to.0].constant = Some(Constant::Computed(Arc::new(tensor)));
    }
    folded
}

fn compute_call(
    graph: &Graph,
    call: &Call,
    inputs: &[TensorView<'_>],
    outputs: &[ValueId],
    ctx: &KernelContext<'_>,
) -> Option<Vec<Tensor>> {
    let zeros = |&v: &ValueId| Tensor::zeros(graph.meta(v).clone()).ok();
    let mut tensors: Vec<Tensor> = outputs.iter().map(zeros).collect::<Option<_>>()?;
    let views: Vec<TensorViewMut<'_>> = tensors.iter_mut().map(Tensor::view_mut).collect();
    // A call that fails here fails again when it runs, and says then what is wrong.
    bind::execute(call, ctx, inputs, views).ok()?;
    let same = outputs.iter().zip(&tensors).all(|(&v, t)| graph.meta(v).sizes() == t.sizes());
    same.then_some(tensors)
}

/// The node that a call means, if it is known.
fn rewrite(graph: &Graph, node: &Node) -> Option<Node> {
    let call = node.op.as_call()?;
    let meta = |position: usize| {
        let input = call.input_at(position)?;
        Some(graph.meta(node.inputs[input]))
    };
    let out = graph.meta(*node.outputs.first()?);
    let keep = |op: Op| Some(Node { op, inputs: node.inputs.clone(), outputs: node.outputs.clone() });
    let name = call.name();
    match name {
        "aten::view_copy.out"
        | "aten::unsqueeze_copy.out"
        | "aten::squeeze_copy.dim_out"
        | "aten::squeeze_copy.dims_out"
        | "aten::alias_copy.out"
        | "aten::detach_copy.out"
        | "aten::lift_fresh_copy.out"
        | "aten::clone.out"
        | "aten::_to_copy.out"
        | "aten::expand_copy.out"
        | "dim_order_ops::_clone_dim_order.out"
        | "dim_order_ops::_to_dim_order_copy.out" => {
            let from = meta(0)?;
            if from.dtype() != out.dtype() || from.numel() != out.numel() {
                return None;
            }
            let op = if from.dim_order().is_contiguous() && out.dim_order().is_contiguous() {
                Op::Reshape
            } else if from.sizes() == out.sizes() {
                Op::Relayout
            } else {
                return None;
            };
            Some(Node { op, inputs: vec![node.inputs[0]], outputs: node.outputs.clone() })
        }
        "aten::permute_copy.out" if keeps_order(meta(0)?, call.ints(1)?, out) => {
            Some(Node { op: Op::Reshape, inputs: vec![node.inputs[0]], outputs: node.outputs.clone() })
        }
        _ if !all_float(graph, node) || node.outputs.len() != 1 => None,
        "aten::convolution.out" | "aten::linear.out" if !tensors_lead(call) => None,
        "aten::convolution.out" => keep(Op::Conv(convolution(graph, node, call)?)),
        "aten::linear.out" => {
            let bias = !call.is_none(2);
            let columns = *out.sizes().last()?;
            let bias_fits = !bias || graph.meta(*node.inputs.get(2)?).numel() == columns;
            let fits = bias_fits && product_fits(graph, node.inputs[0], *node.inputs.get(1)?, true, out);
            (fits && contiguous(graph, node)).then(|| {
                keep(Op::Linear(Linear {
                    out_major: true,
                    bias,
                    residual: false,
                    activation: Activation::Identity,
                }))
            })?
        }
        "aten::mm.out" | "aten::addmm.out" => product(graph, node, false),
        "aten::mean.out" => {
            let over_space = call.ints(1).is_some_and(|dims| {
                let rank = meta(0).map_or(0, |m| m.rank() as i64);
                let mut dims: Vec<i64> = dims.iter().map(|d| if *d < 0 { d + rank } else { *d }).collect();
                dims.sort_unstable();
                rank >= 3 && dims == (2..rank).collect::<Vec<_>>()
            });
            let x = meta(0)?;
            // The mean of nothing is NaN.
            let fits = over_space && x.numel() > 0 && out.numel() == x.sizes()[0] * x.sizes()[1];
            fits.then(|| keep(Op::GlobalMean))?
        }
        _ => {
            let program = pointwise(call, name)?;
            let fits = program.inputs() == node.inputs.len()
                && node.inputs.iter().all(|&v| broadcasts(graph.meta(v), out));
            let number = |i: usize| match graph.floats(*node.inputs.get(i)?)? {
                &[number] => Some(number),
                _ => None,
            };
            // A number that stands in a constant of one element stands in the program.
            let (program, used) = match program.instrs.as_slice() {
                [_, _, Instr::Binary(f, 0, 1)] if program.inputs() == 2 => match (number(0), number(1)) {
                    (_, Some(c)) => (Program::with_const(*f, c), 0..1),
                    (Some(c), None) if f.commutes() => (Program::with_const(*f, c), 1..2),
                    _ => (program, 0..2),
                },
                _ => (program, 0..node.inputs.len()),
            };
            let inputs = node.inputs.get(used)?.to_vec();
            fits.then(|| Node { op: Op::Pointwise(program), inputs, outputs: node.outputs.clone() })
        }
    }
}

/// Whether a permutation moves dimensions of size 1 alone, so that the elements stay as they lie.
fn keeps_order(from: &TensorMeta, order: &[i64], out: &TensorMeta) -> bool {
    let rank = from.rank() as i64;
    let dims = order.iter().map(|&d| if d < 0 { d + rank } else { d });
    let long: Vec<i64> = dims
        .filter(|&d| usize::try_from(d).is_ok_and(|d| from.sizes().get(d).is_some_and(|&n| n > 1)))
        .collect();
    let plain = from.dim_order().is_contiguous() && out.dim_order().is_contiguous();
    let kept = from.sizes().iter().filter(|n| **n > 1).eq(out.sizes().iter().filter(|n| **n > 1));
    plain && kept && from.dtype() == out.dtype() && order.len() == from.rank() && long.is_sorted()
}

/// Whether the first two arguments of a call are tensors, and the third, if there is one, too.
fn tensors_lead(call: &Call) -> bool {
    let third = call.args.get(2).is_none_or(|a| !matches!(a, CallArg::Scalar(_) | CallArg::Str(_)));
    call.input_at(0) == Some(0) && call.input_at(1) == Some(1) && third
}

fn all_float(graph: &Graph, node: &Node) -> bool {
    node.inputs.iter().chain(node.outputs.first()).all(|&v| graph.meta(v).dtype() == ScalarType::Float)
}

fn contiguous(graph: &Graph, node: &Node) -> bool {
    node.inputs.iter().chain(&node.outputs).all(|&v| graph.meta(v).dim_order().is_contiguous())
}

/// Whether a tensor can be read as one of the shape of `out`, by PyTorch's broadcasting.
fn broadcasts(from: &TensorMeta, out: &TensorMeta) -> bool {
    let aligned = from.sizes().iter().rev().zip(out.sizes().iter().rev());
    from.rank() <= out.rank() && aligned.into_iter().all(|(&f, &o)| f == o || f == 1)
}

/// Whether `out` has the shape of the product of `x` with constant weights. Programs may say anything;
/// a call that does not fit stays a call, and says so when it runs.
fn product_fits(graph: &Graph, x: ValueId, w: ValueId, out_major: bool, out: &TensorMeta) -> bool {
    let (from, weights) = (graph.meta(x).sizes(), graph.meta(w).sizes());
    let &[rows, columns] = &**weights else { return false };
    let (k, n) = if out_major { (columns, rows) } else { (rows, columns) };
    let constant = graph.get(w).constant.is_some();
    match (from.split_last(), out.sizes().split_last()) {
        (Some((&last, lead)), Some((&width, rest))) => {
            constant && !lead.is_empty() && last == k && width == n && lead == rest
        }
        _ => false,
    }
}

/// What an elementwise operator computes, as a program over its tensor arguments.
fn pointwise(call: &Call, name: &str) -> Option<Program> {
    let number = |position: usize| call.scalar(position).map(|s| s.to_f64() as f32);
    let unary = |f| Some(Program::unary(f));
    let plain_alpha = |position: usize| {
        matches!(call.scalar(position), None | Some(Scalar::Int(1))) || number(position) == Some(1.0)
    };
    let clamp = |low: Option<f32>, high: Option<f32>| {
        let (low, high) = (low.unwrap_or(f32::NEG_INFINITY), high.unwrap_or(f32::INFINITY));
        (low <= high).then(|| Program::clamp(low, high))
    };
    match name {
        "aten::relu.out" => clamp(Some(0.0), None),
        "aten::hardtanh.out" => clamp(Some(number(1)?), Some(number(2)?)),
        "aten::clamp.out" => {
            let bound = |p: usize| if call.is_none(p) { Some(None) } else { number(p).map(Some) };
            clamp(bound(1)?, bound(2)?)
        }
        "aten::neg.out" => unary(Unary::Neg),
        "aten::abs.out" => unary(Unary::Abs),
        "aten::exp.out" => unary(Unary::Exp),
        "aten::log.out" => unary(Unary::Log),
        "aten::sin.out" => unary(Unary::Sin),
        "aten::cos.out" => unary(Unary::Cos),
        "aten::erf.out" => unary(Unary::Erf),
        "aten::sigmoid.out" => unary(Unary::Sigmoid),
        "aten::tanh.out" => unary(Unary::Tanh),
        "aten::sqrt.out" => unary(Unary::Sqrt),
        "aten::rsqrt.out" => unary(Unary::Rsqrt),
        "aten::reciprocal.out" => unary(Unary::Reciprocal),
        "aten::pow.Tensor_Scalar_out" if number(1) == Some(2.0) => unary(Unary::Square),
        "aten::gelu.out" => match call.args.get(1) {
            Some(CallArg::Str(s)) if &**s == "tanh" => unary(Unary::GeluTanh),
            _ => unary(Unary::Gelu),
        },
        "aten::add.out" if plain_alpha(2) => Some(Program::binary(Binary::Add)),
        "aten::sub.out" if plain_alpha(2) => Some(Program::binary(Binary::Sub)),
        "aten::mul.out" => Some(Program::binary(Binary::Mul)),
        "aten::div.out" => Some(Program::binary(Binary::Div)),
        "aten::maximum.out" => Some(Program::binary(Binary::Maximum)),
        "aten::minimum.out" => Some(Program::binary(Binary::Minimum)),
        "aten::add.Scalar_out" if plain_alpha(2) => Some(Program::with_const(Binary::Add, number(1)?)),
        "aten::sub.Scalar_out" if plain_alpha(2) => Some(Program::with_const(Binary::Sub, number(1)?)),
        "aten::mul.Scalar_out" => Some(Program::with_const(Binary::Mul, number(1)?)),
        "aten::div.Scalar_out" => Some(Program::with_const(Binary::Div, number(1)?)),
        _ => None,
    }
}

/// A product of two matrices, of which the second is constant, and perhaps a bias. `out_major` says that it is
/// the transpose of the second that stands in the node.
fn product(graph: &Graph, node: &Node, out_major: bool) -> Option<Node> {
    let call = node.op.as_call()?;
    let &[out] = node.outputs.as_slice() else { return None };
    let meta = graph.meta(out);
    let (x, w, bias) = match (call.name(), node.inputs.as_slice()) {
        ("aten::mm.out", &[x, w]) if tensors_lead(call) => (x, w, None),
        // `beta self + alpha mat1 mat2`
        ("aten::addmm.out", &[bias, x, w]) => {
            let one = |p: usize| call.scalar(p).is_some_and(|s| s.to_f64() == 1.0);
            let columns = *meta.sizes().last()?;
            let value = graph.get(bias);
            let is_row = value.meta.numel() == columns && value.meta.sizes().last() == Some(&columns);
            if !(one(3) && one(4) && is_row && value.constant.is_some()) {
                return None;
            }
            (x, w, Some(bias))
        }
        _ => return None,
    };
    if !(all_float(graph, node) && contiguous(graph, node) && product_fits(graph, x, w, out_major, meta)) {
        return None;
    }
    let linear =
        Linear { out_major, bias: bias.is_some(), residual: false, activation: Activation::Identity };
    let inputs = [x, w].into_iter().chain(bias).collect();
    Some(Node { op: Op::Linear(linear), inputs, outputs: vec![out] })
}

/// A convolution with constant, plainly stored weights of an image in a known layout.
fn convolution(graph: &Graph, node: &Node, call: &Call) -> Option<Convolution> {
    let (x, w) = (graph.meta(node.inputs[0]), graph.meta(node.inputs[1]));
    let out = graph.meta(node.outputs[0]);
    let bias = !call.is_none(2);
    let constants = node.inputs[1..].iter().all(|&v| graph.get(v).constant.is_some());
    let space = w.rank().checked_sub(2)?;
    if !constants || x.rank() != w.rank() || out.rank() != w.rank() || !(1..=3).contains(&space) {
        return None;
    }
    let spread = |position: usize, fill: usize| -> Option<[usize; 3]> {
        let given = call.ints(position)?;
        let mut all = [fill; 3];
        for (i, slot) in all[3 - space..].iter_mut().enumerate() {
            *slot = usize::try_from(*given.get(i).or(given.last())?).ok()?;
        }
        Some(all)
    };
    let mut kernel = [1; 3];
    kernel[3 - space..].copy_from_slice(&w.sizes()[2..]);
    let transposed = call.bool(6)?;
    let params = ConvParams {
        in_channels: x.sizes()[1],
        out_channels: out.sizes()[1],
        groups: usize::try_from(call.int(8)?).ok()?,
        kernel,
        stride: spread(3, 1)?,
        padding: spread(4, 0)?,
        dilation: spread(5, 1)?,
        transposed,
    };
    let layout = image_layout(x)?;
    let bias_fits = !bias || graph.meta(*node.inputs.get(2)?).numel() == params.out_channels;
    let sane = bias_fits
        && params.groups > 0
        && params.in_channels.is_multiple_of(params.groups)
        && params.out_channels.is_multiple_of(params.groups)
        && params.stride.iter().chain(&params.dilation).all(|&n| n > 0 && n < 1 << 20)
        && params.kernel.iter().chain(&params.padding).all(|&n| n < 1 << 20)
        && params.weights() == w.numel()
        && conv_sizes(&params, x, space, out, spread(7, 0)?)
        && has_layout(out, layout);
    sane.then_some(Convolution {
        params,
        space,
        layout,
        bias,
        residual: false,
        activation: Activation::Identity,
    })
}

fn conv_sizes(
    params: &ConvParams,
    x: &TensorMeta,
    space: usize,
    out: &TensorMeta,
    extra: [usize; 3],
) -> bool {
    let pixels = |m: &TensorMeta| {
        let mut all = [1; 3];
        all[3 - space..].copy_from_slice(&m.sizes()[2..]);
        all
    };
    let extra = if params.transposed { extra } else { [0; 3] };
    x.numel() > 0 && params.output_size(pixels(x), extra) == Some(pixels(out))
}
