//! Products with constant matrices.

use crate::graph::{Graph, NodeId, ValueId, argument, meaning};
use crate::operation::Fused;
use crate::steps::linear::Linear;
use kernels::compute::Activation;
use operator::Meaning;
use operator::facts::{Product, ViewOf};
use tensor::ScalarType;

/// Whether a node transposes a constant matrix for products alone. A product packs the matrix itself: the
/// transpose need not be computed, nor kept beside what is packed.
pub(super) fn is_transpose_for_products(graph: &Graph, node: NodeId) -> bool {
    let Some((_, to)) = transpose(graph, node) else { return false };
    let reads_as_weights = |user: ir::User| {
        let ir::User::Node(user) = user else { return false };
        match meaning(graph, user) {
            Some(Meaning::Product(product)) => argument(graph, user, product.weights) == Some(to),
            _ => false,
        }
    };
    graph.is_used(to) && graph.uses(to).iter().all(|u| reads_as_weights(u.user))
}

/// A constant matrix and its transpose, if that is what a node computes.
fn transpose(graph: &Graph, node: NodeId) -> Option<(ValueId, ValueId)> {
    let (&[from], &[to]) = (graph.node(node).inputs(), graph.node(node).outputs()) else { return None };
    let Some(Meaning::View(ViewOf::Permute(dims))) = meaning(graph, node) else { return None };
    let &[rows, columns] = &**graph.meta(from).sizes() else { return None };
    let transposes = dims[..] == [1, 0]
        && graph.meta(to).sizes()[..] == [columns, rows]
        && graph.is_constant(from)
        && !graph.is_constant(to);
    transposes.then_some((from, to))
}

/// Rewrites a product of a matrix that is constant, or the transpose of a constant. Says whether it did.
pub(super) fn rewrite(graph: &mut Graph, node: NodeId, product: &Product) -> bool {
    let Some((linear, inputs)) = linear(graph, node, product) else { return false };
    graph.rewrite(node, Fused::kind(linear), &inputs);
    true
}

fn linear(graph: &Graph, node: NodeId, product: &Product) -> Option<(Linear, Vec<ValueId>)> {
    let &[out] = graph.node(node).outputs() else { return None };
    let (x, mut w) = (argument(graph, node, product.x)?, argument(graph, node, product.weights)?);
    let bias = match product.bias {
        Some(at) => Some(argument(graph, node, at)?),
        None => None,
    };
    let mut out_major = product.out_major;
    if let Some((matrix, _)) = graph.producer(w).and_then(|p| transpose(graph, p)) {
        (w, out_major) = (matrix, !out_major);
    }
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

/// Whether `out` has the shape of the product of `x` with constant weights. Programs may say anything;
/// a call that does not fit stays a call, and says so when it runs.
fn has_shape_of_product(graph: &Graph, x: ValueId, w: ValueId, out_major: bool, out: ValueId) -> bool {
    let &[rows, columns] = &**graph.meta(w).sizes() else { return false };
    let (k, n) = if out_major { (columns, rows) } else { (rows, columns) };
    match (graph.meta(x).sizes().split_last(), graph.meta(out).sizes().split_last()) {
        (Some((&last, lead)), Some((&width, rest))) => {
            graph.is_constant(w) && !lead.is_empty() && last == k && width == n && lead == rest
        }
        _ => false,
    }
}
