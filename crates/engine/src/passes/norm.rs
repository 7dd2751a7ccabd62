//! Splits group norms into the computation of per-channel factors and their application, which is elementwise and can
//! be fused with the nodes that follow.

use crate::graph::{Graph, NodeId, argument, meaning};
use crate::layouts::image_layout;
use crate::operation::OpKind;
use crate::ops::group_factors::GroupFactors;
use crate::ops::pointwise::Pointwise;
use pteron_operator::facts::GroupNorm;
use pteron_operator::formula::Term;
use pteron_operator::{Expression, Meaning};
use pteron_tensor::{ScalarType, TensorMeta};

/// Rewrites the group norms of a graph.
pub(super) fn run(graph: &mut Graph) {
    for node in graph.order() {
        let Some(Meaning::GroupNorm(norm)) = meaning(graph, node) else { continue };
        let Some(factors) = group_norm_factors(graph, node, &norm) else { continue };
        let x = graph.node(node).inputs()[0];
        let mut sizes = vec![1; graph.meta(x).rank()];
        sizes[..2].copy_from_slice(&[norm.batch, norm.channels]);
        let Ok(meta) = TensorMeta::contiguous(ScalarType::Float, &sizes) else { continue };
        let inputs = graph.node(node).inputs().to_vec();
        let factors_node = graph.insert_before(node, OpKind::arc(factors), &inputs, [meta.clone(), meta]);
        graph.absorb(factors_node, node);
        let &[scale, shift] = graph.node(factors_node).outputs() else { continue };
        graph.rewrite(node, OpKind::arc(Pointwise(scale_and_shift())), &[x, scale, shift]);
        graph.truncate_outputs(node, 1);
    }
}

/// `input 0 * input 1 + input 2`.
pub(super) fn scale_and_shift() -> Expression {
    (Term::input(0) * Term::input(1) + Term::input(2)).into()
}

/// The operation that computes a group norm's factors; `None` if the norm's statistics are used or it is not supported.
fn group_norm_factors(graph: &Graph, id: NodeId, norm: &GroupNorm) -> Option<GroupFactors> {
    let node = graph.node(id);
    let (x, out) = (graph.meta(argument(graph, id, 0)?), graph.meta(*node.outputs().first()?));
    let floats = node.inputs().iter().all(|&v| graph.meta(v).dtype() == ScalarType::Float);
    let unused = node.outputs()[1..].iter().all(|&v| !graph.is_used(v));
    if !floats || !unused || x != out || image_layout(x).is_none() || x.numel() == 0 {
        return None;
    }
    let &GroupNorm { batch, channels, pixels, groups, eps } = norm;
    let numel = batch.checked_mul(channels)?.checked_mul(pixels)?;
    let fits = x.sizes()[..2] == [batch, channels] && x.numel() == numel;
    if !fits || groups == 0 || !channels.is_multiple_of(groups) {
        return None;
    }
    if !node.inputs()[1..].iter().all(|&v| graph.meta(v).numel() == channels) {
        return None;
    }
    let there = |position: usize| argument(graph, id, position).is_some();
    Some(GroupFactors { groups, eps: eps as f32, weight: there(1), bias: there(2) })
}
