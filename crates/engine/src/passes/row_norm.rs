//! Layer norms and RMS norms: rewrites calls, and fuses norms that are decomposed into means, squares and square roots.
//!
//! ```text
//! x ──► mean ──► x - mean = d ─────────────────────────► d * r [* weight [+ bias]]
//!                          └► d² ──► mean ──► + eps ──► rsqrt = r ┘
//! ```
//!
//! An RMS norm has `x` instead of `d`. The variance may be one operator, or one together with the mean; instead of the
//! multiplication by `r` there may be a division by the square root.

use super::rule::{Match, Pattern, any, constant, node, number, result};
use crate::check::layouts_fit;
use crate::graph::{Graph, NodeId, ValueId, argument, meaning, single_user};
use crate::operation::{OpKind, as_op};
use crate::ops::global_mean::GlobalMean;
use crate::ops::pointwise::Pointwise;
use crate::ops::row_norm::RowNorm;
use pteron_operator::facts::Dims;
use pteron_operator::{Meaning, Unary};
use pteron_tensor::ScalarType;
use std::sync::{Arc, LazyLock};

/// A layer norm or RMS norm of `x` without weight and bias, decomposed.
static NORM: LazyLock<Pattern> = LazyLock::new(|| {
    let x = any("x");
    let of_variance = |index| result(index, |m| matches!(m, Meaning::Variance(_)), [any("x")]);
    let mean = node(is_mean, [x.clone()]) | of_variance(1);
    let centred = x.clone() - mean;
    let variance = mean_square(&centred) | of_variance(0);
    let norm =
        divided_by_root(centred.named("centred"), variance) | divided_by_root(x.clone(), mean_square(&x));
    norm.such_that(|graph, matched| row_len(graph, matched).is_some())
});

/// The multiplication of a norm's rows by its weight; [`SHIFTED`] is the addition of its bias.
static SCALED: LazyLock<Pattern> = LazyLock::new(|| any("rows") * any("vector"));
static SHIFTED: LazyLock<Pattern> = LazyLock::new(|| any("rows") + any("vector"));

fn mean_square(x: &Pattern) -> Pattern {
    let square = x.clone().unary(Unary::Square) | (x.clone() * x.clone());
    node(is_mean, [square])
}

/// Matches `x / sqrt(variance + eps)`: with or without `eps`, as a division or a product with the reciprocal.
fn divided_by_root(x: Pattern, variance: Pattern) -> Pattern {
    let variance = (variance.clone() + number("eps")) | variance;
    let root = variance.clone().unary(Unary::Sqrt);
    let over =
        variance.unary(Unary::Rsqrt) | root.clone().unary(Unary::Reciprocal) | (constant(1.0) / root.clone());
    (x.clone() * over) | (x / root)
}

/// Rewrites all layer norms and RMS norms of a graph.
pub(super) fn run(graph: &mut Graph) {
    for node in graph.order() {
        if graph.contains(node) && rewrite_call(graph, node).is_none() {
            _ = rewrite_decomposed(graph, node);
        }
    }
}

/// Rewrites a call of a layer norm whose statistics are unused.
fn rewrite_call(graph: &mut Graph, node: NodeId) -> Option<()> {
    let Meaning::LayerNorm { elements, eps } = meaning(graph, node)? else { return None };
    let (x, weight, bias) = (argument(graph, node, 0)?, argument(graph, node, 2), argument(graph, node, 3));
    let (&out, statistics) = graph.node(node).outputs().split_first()?;
    let inputs: Vec<ValueId> = [Some(x), weight, bias].into_iter().flatten().collect();
    let floats = inputs.iter().chain([&out]).all(|&v| graph.meta(v).dtype() == ScalarType::Float);
    let have_row_len = inputs[1..].iter().all(|&v| graph.meta(v).numel() == elements);
    let unused = statistics.iter().all(|&v| !graph.is_used(v));
    if !floats || !have_row_len || !unused || graph.meta(x) != graph.meta(out) || graph.meta(x).numel() == 0 {
        return None;
    }
    let (weight, bias) = (weight.is_some(), bias.is_some());
    let norm = RowNorm { elements, eps: eps as f32, centred: true, weight, bias };
    rewrite(graph, node, norm, &inputs)?;
    graph.truncate_outputs(node, 1);
    Some(())
}

/// Rewrites the last node of a decomposed norm; multiplication by a weight and addition of a bias are included.
fn rewrite_decomposed(graph: &mut Graph, node: NodeId) -> Option<()> {
    as_op::<Pointwise>(graph, node)?;
    let matched = NORM.find(graph, node)?;
    let (x, out) = (matched["x"], graph.node(node).outputs()[0]);
    if graph.meta(x) != graph.meta(out) || !matched.is_closed(graph) {
        return None;
    }
    let (elements, centred) = (row_len(graph, &matched)?, matched.value("centred").is_some());
    let eps = matched.number("eps").unwrap_or(0.0);
    let (mut last, mut inputs, mut parts) = (node, vec![x], matched.parts[1..].to_vec());
    let mut norm = RowNorm { elements, eps, centred, weight: false, bias: false };
    if let Some((next, factor)) = find_row_vector_op(graph, last, &SCALED, elements) {
        parts.push(last);
        (last, norm.weight) = (next, true);
        inputs.push(factor);
    }
    if let Some((next, term)) = find_row_vector_op(graph, last, &SHIFTED, elements).filter(|_| centred) {
        parts.push(last);
        (last, norm.bias) = (next, true);
        inputs.push(term);
    }
    rewrite(graph, last, norm, &inputs)?;
    parts.iter().for_each(|&part| graph.absorb(last, part));
    Some(())
}

/// Makes a node a norm, if its operands have the required layouts.
fn rewrite(graph: &mut Graph, node: NodeId, norm: RowNorm, inputs: &[ValueId]) -> Option<()> {
    let (kind, before) = (Arc::clone(graph.node(node).kind()), graph.node(node).inputs().to_vec());
    graph.rewrite(node, OpKind::arc(norm), inputs);
    if layouts_fit(graph, node) {
        return Some(());
    }
    graph.rewrite(node, kind, &before);
    None
}

/// The dimensions that a node reduces, ascending, if it computes a mean or a variance.
fn reduced_dims(graph: &Graph, node: NodeId) -> Option<Dims> {
    if as_op::<GlobalMean>(graph, node).is_some() {
        return Some((2..graph.meta(graph.node(node).inputs()[0]).rank()).collect());
    }
    let (Meaning::Mean(mut dims) | Meaning::Variance(mut dims)) = meaning(graph, node)? else { return None };
    dims.sort_unstable();
    Some(dims)
}

fn is_mean(graph: &Graph, node: NodeId) -> bool {
    as_op::<GlobalMean>(graph, node).is_some() || matches!(meaning(graph, node), Some(Meaning::Mean(_)))
}

/// The number of elements of a row, if all reductions of a norm are over the same trailing dimensions, with `keepdim`.
fn row_len(graph: &Graph, norm: &Match) -> Option<usize> {
    let sizes = graph.meta(norm["x"]).sizes();
    let mut rank = None;
    for &part in &norm.parts {
        let Some(dims) = reduced_dims(graph, part) else { continue };
        let first = sizes.len().checked_sub(dims.len())?;
        let reduced_sizes = sizes[..first].iter().copied().chain(dims.iter().map(|_| 1));
        let outputs = graph.node(part).outputs();
        let fits = dims.iter().copied().eq(first..sizes.len())
            && outputs.iter().all(|&v| graph.meta(v).sizes().iter().copied().eq(reduced_sizes.clone()))
            && *rank.get_or_insert(first) == first;
        fits.then_some(())?;
    }
    let elements = sizes[rank?..].iter().product();
    (elements > 0 && sizes.iter().all(|&n| n > 0)).then_some(elements)
}

/// The only user of a node's result and the vector that it applies, if the user matches `rule`: an operation on the
/// result and a vector with one element for each element of a row.
fn find_row_vector_op(
    graph: &Graph,
    node: NodeId,
    rule: &Pattern,
    elements: usize,
) -> Option<(NodeId, ValueId)> {
    let out = graph.node(node).outputs()[0];
    let user = single_user(graph, out)?;
    let result = *graph.node(user).outputs().first()?;
    let vector = rule.find_with(graph, result, &[("rows", out)])?["vector"];
    let (meta, sizes) = (graph.meta(vector), graph.meta(out).sizes());
    let (mut left, mut aligned) = (elements, true);
    for (&have, &size) in meta.sizes().iter().rev().zip(sizes.iter().rev()) {
        aligned &= have == if left > 1 { size } else { 1 };
        left /= size.max(1);
    }
    let same = graph.meta(result) == graph.meta(out);
    (aligned && same && meta.numel() == elements).then_some((user, vector))
}
