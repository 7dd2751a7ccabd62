//! Rewrites matrix multiplications with constant matrices.

use crate::fold::before_transpose;
use crate::graph::{Graph, NodeId, ValueId, argument};
use crate::operation::OpKind;
use crate::ops::linear::Linear;
use pteron_kernels::compute::Activation;
use pteron_operator::facts::MatMul;
use pteron_tensor::ScalarType;

/// Rewrites a matrix multiplication with a constant matrix or with the transpose of one, in which case the matrix
/// before the transposition is packed. Returns whether it did.
pub(super) fn rewrite(graph: &mut Graph, node: NodeId, product: &MatMul) -> bool {
    let Some(w) = argument(graph, node, product.weights) else { return false };
    let matrix = graph.value(w).constant().and_then(|constant| before_transpose(graph.meta(w), constant));
    let (w, out_major) = match matrix {
        Some((meta, constant)) => {
            let (matrix, origin) = (graph.constant(meta, constant), graph.value(w).origin());
            graph.set_value_origin(matrix, origin);
            (matrix, !product.out_major)
        }
        None => (w, product.out_major),
    };
    let Some((linear, inputs)) = linear(graph, node, product, w, out_major) else { return false };
    graph.rewrite(node, OpKind::arc(linear), &inputs);
    true
}

fn linear(
    graph: &Graph,
    node: NodeId,
    product: &MatMul,
    w: ValueId,
    out_major: bool,
) -> Option<(Linear, Vec<ValueId>)> {
    let &[out] = graph.node(node).outputs() else { return None };
    let x = argument(graph, node, product.x)?;
    let bias = match product.bias {
        Some(at) => Some(argument(graph, node, at)?),
        None => None,
    };
    let columns = *graph.meta(out).sizes().last()?;
    let is_row = |bias: ValueId| {
        let meta = graph.meta(bias);
        meta.numel() == columns && meta.sizes().last() == Some(&columns) && graph.is_constant(bias)
    };
    let plain = |v: ValueId| {
        let meta = graph.meta(v);
        meta.dtype() == ScalarType::Float && meta.dim_order().is_contiguous()
    };
    let inputs: Vec<ValueId> = [x, w].into_iter().chain(bias).collect();
    let fits = bias.is_none_or(is_row)
        && inputs.iter().chain([&out]).all(|&v| plain(v))
        && product.rank.is_none_or(|rank| rank == graph.meta(x).rank())
        && has_shape_of_product(graph, x, w, out_major, out);
    let linear =
        Linear { out_major, bias: bias.is_some(), residual: false, activation: Activation::Identity };
    fits.then_some((linear, inputs))
}

/// Whether `out` has the shape of the product of `x` with constant weights. Programs may declare any shape; a call with
/// another one stays a call and fails when it runs.
fn has_shape_of_product(graph: &Graph, x: ValueId, w: ValueId, out_major: bool, out: ValueId) -> bool {
    let &[rows, columns] = &**graph.meta(w).sizes() else { return false };
    let (k, n) = if out_major { (columns, rows) } else { (rows, columns) };
    if k == 0 || n == 0 {
        // The step has no rows to pack; kernels fill the result with zeros, or have none to fill.
        return false;
    }
    match (graph.meta(x).sizes().split_last(), graph.meta(out).sizes().split_last()) {
        (Some((&last, lead)), Some((&width, rest))) => {
            graph.is_constant(w) && !lead.is_empty() && last == k && width == n && lead == rest
        }
        _ => false,
    }
}
