//! Folds constants and rewrites operator calls to operations by the meaning that their kernels declare. Calls without a
//! declared meaning, or in an unsupported form, stay calls.

use super::{convolution, matmul};
use crate::check::layouts_fit;
use crate::fold;
use crate::graph::{Graph, NodeId, argument, meaning};
use crate::operation::OpKind;
use crate::ops::global_mean::GlobalMean;
use crate::ops::pointwise::Pointwise;
use crate::ops::relayout::{Permute, Relayout, Reshape};
use pteron_operator::facts::ViewOf;
use pteron_operator::{Expression, Instr, KernelContext, Meaning};
use pteron_tensor::{DimOrder, ScalarType, TensorMeta};
use std::sync::Arc;

/// Folds constants, and rewrites calls with a known meaning.
pub(super) fn run(graph: &mut Graph, ctx: &KernelContext<'_>) {
    for node in graph.order() {
        if !fold::fold(graph, node, ctx) {
            normalize(graph, node, ctx);
        }
    }
}

fn normalize(graph: &mut Graph, node: NodeId, ctx: &KernelContext<'_>) {
    let Some(meaning) = meaning(graph, node) else { return };
    if matches!(meaning, Meaning::Convolution(_)) {
        make_row_major(graph, node, 1, ctx);
    }
    let (call, inputs) = (Arc::clone(graph.node(node).kind()), graph.node(node).inputs().to_vec());
    if rewrite(graph, node, &meaning) && !layouts_fit(graph, node) {
        graph.rewrite(node, call, &inputs);
    }
}

/// Makes a constant input of a node row-major. The conversion is lazy: it does not happen if packing reads the original
/// layout.
fn make_row_major(graph: &mut Graph, node: NodeId, slot: usize, ctx: &KernelContext<'_>) {
    let Some(&value) = graph.node(node).inputs().get(slot) else { return };
    let meta = graph.meta(value);
    let order = DimOrder::contiguous(meta.rank());
    if *meta.dim_order() == order || !graph.is_constant(value) {
        return;
    }
    let plain = TensorMeta::new(meta.dtype(), meta.sizes(), order).ok();
    let plain = plain.and_then(|plain| Some((fold::to_layout(graph, value, &plain, ctx)?, plain)));
    if let Some((constant, meta)) = plain {
        let origin = graph.value(value).origin();
        let plain = graph.constant(meta, constant);
        graph.set_value_origin(plain, origin);
        graph.set_input(node, slot, plain);
    }
}

/// Rewrites a call as the operation that its meaning describes. Returns whether the call was rewritten.
fn rewrite(graph: &mut Graph, node: NodeId, meaning: &Meaning) -> bool {
    match meaning {
        Meaning::Reshape | Meaning::View(ViewOf::Expand) => rewrite_same_elements(graph, node),
        Meaning::View(ViewOf::Permute(dims)) => {
            let Some(v) = argument(graph, node, 0) else { return false };
            let (from, to) = (graph.meta(v), graph.meta(graph.node(node).outputs()[0]));
            if keeps_memory_order(from, dims, to) {
                return rewrite_same_elements(graph, node);
            }
            // For example the permutation of a channels-last image to rows of channels.
            let keeps_bytes = from.numel() > 0 && Permute::keeps_bytes(dims, from, to);
            if keeps_bytes {
                graph.rewrite(node, OpKind::new(Permute { dims: dims[..].into() }), &[v]);
            }
            keeps_bytes
        }
        Meaning::Convolution(of) => convolution::rewrite(graph, node, of),
        Meaning::MatMul(of) => matmul::rewrite(graph, node, of),
        Meaning::Mean(dims) => rewrite_mean(graph, node, dims),
        Meaning::Elementwise(expression) => rewrite_elementwise(graph, node, expression).is_some(),
        _ => false,
    }
}

/// Rewrites a call that returns the elements of its first input in order as a reshape or a change of layout.
fn rewrite_same_elements(graph: &mut Graph, node: NodeId) -> bool {
    let (Some(from), Some(&to)) = (argument(graph, node, 0), graph.node(node).outputs().first()) else {
        return false;
    };
    let (x, out) = (graph.meta(from), graph.meta(to));
    if x.dtype() != out.dtype() || x.numel() != out.numel() {
        return false;
    }
    let kind = if x.dim_order().is_contiguous() && out.dim_order().is_contiguous() {
        OpKind::arc(Reshape)
    } else if x.sizes() == out.sizes() {
        OpKind::arc(Relayout)
    } else {
        return false;
    };
    graph.rewrite(node, kind, &[from]);
    true
}

/// Whether a permutation moves only dimensions of size 1, so that the order of elements in memory stays the same.
fn keeps_memory_order(from: &TensorMeta, dims: &[usize], out: &TensorMeta) -> bool {
    let long = dims.iter().filter(|&&d| from.sizes().get(d).is_some_and(|&n| n > 1));
    let same_long_sizes = from.sizes().iter().filter(|n| **n > 1).eq(out.sizes().iter().filter(|n| **n > 1));
    same_long_sizes && long.is_sorted() && from.dim_order().is_contiguous() && out.dim_order().is_contiguous()
}

fn is_float(graph: &Graph, node: NodeId) -> bool {
    let node = graph.node(node);
    let float = |&v: &_| graph.meta(v).dtype() == ScalarType::Float;
    node.outputs().len() == 1 && node.inputs().iter().chain(node.outputs()).all(float)
}

/// Rewrites a mean over all spatial dimensions of images.
fn rewrite_mean(graph: &mut Graph, node: NodeId, dims: &[usize]) -> bool {
    let Some(x) = argument(graph, node, 0).filter(|_| is_float(graph, node)) else { return false };
    let (meta, out) = (graph.meta(x), graph.meta(graph.node(node).outputs()[0]));
    let mut dims = dims.to_vec();
    dims.sort_unstable();
    // The mean over no elements is NaN: such calls stay.
    let fits = meta.rank() >= 3
        && dims.iter().copied().eq(2..meta.rank())
        && meta.numel() > 0
        && out.numel() == meta.sizes()[0] * meta.sizes()[1];
    if fits {
        graph.rewrite(node, OpKind::arc(GlobalMean), &[x]);
    }
    fits
}

fn rewrite_elementwise(graph: &mut Graph, node: NodeId, expression: &Expression) -> Option<()> {
    let (inputs, &out) = (graph.node(node).inputs().to_vec(), graph.node(node).outputs().first()?);
    let broadcast = inputs.iter().all(|&v| broadcasts(graph.meta(v), graph.meta(out)));
    if !is_float(graph, node) || expression.num_inputs() != inputs.len() || !broadcast {
        return None;
    }
    let number = |i: usize| match graph.floats(*inputs.get(i)?)? {
        &[number] => Some(number),
        _ => None,
    };
    // A constant of one element becomes a constant of the expression.
    let (expression, used) = match expression.instrs.as_slice() {
        [_, _, Instr::Binary(f, 0, 1)] if expression.num_inputs() == 2 => match (number(0), number(1)) {
            (_, Some(c)) => (Expression::with_const(*f, c), 0..1),
            (Some(c), None) if f.commutes() => (Expression::with_const(*f, c), 1..2),
            _ => (expression.clone(), 0..2),
        },
        _ => (expression.clone(), 0..inputs.len()),
    };
    graph.rewrite(node, OpKind::arc(Pointwise(expression)), &inputs[used]);
    Some(())
}

/// Whether a tensor broadcasts to the shape of `out`, by PyTorch's rules.
fn broadcasts(from: &TensorMeta, out: &TensorMeta) -> bool {
    let aligned = from.sizes().iter().rev().zip(out.sizes().iter().rev());
    from.rank() <= out.rank() && aligned.into_iter().all(|(&f, &o)| f == o || f == 1)
}
