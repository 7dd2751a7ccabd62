//! Chains channels-last convolutions with little work per element (pointwise and depthwise) if the images between them
//! are large.

use crate::graph::{Graph, NodeId, single_use_producer};
use crate::operation::{OpKind, as_op};
use crate::ops::conv::{Convolution, conv_frame};
use crate::ops::conv_chain::ConvChain;
use pteron_kernels::compute::{ConvFrame, can_chain, chain_pays};

/// Appends each convolution to the convolution or chain before it where that is faster with this number of threads.
pub(super) fn run(graph: &mut Graph, threads: usize) {
    for node in graph.order() {
        append_to_chain(graph, node, threads);
    }
}

fn append_to_chain(graph: &mut Graph, node: NodeId, threads: usize) -> Option<()> {
    let conv = *as_op::<Convolution>(graph, node)?;
    let before = single_use_producer(graph, *graph.node(node).inputs().first()?)?;
    let mut convs = match as_op::<Convolution>(graph, before) {
        Some(first) if can_be_chained(graph, before, first) => vec![*first],
        Some(_) => return None,
        None => as_op::<ConvChain>(graph, before)?.convs.clone(),
    };
    let follows = convs.last().is_some_and(|last| !last.residual) && can_be_chained(graph, node, &conv);
    if !follows || !chain_pays(&conv.params, &frame_of(graph, node), threads) {
        return None;
    }
    convs.push(conv);
    let all: Vec<_> =
        graph.node(before).inputs().iter().chain(&graph.node(node).inputs()[1..]).copied().collect();
    graph.rewrite(node, OpKind::arc(ConvChain { convs }), &all);
    graph.absorb(node, before);
    graph.remove(before);
    Some(())
}

/// Whether the convolution of a node can be part of a chain.
fn can_be_chained(graph: &Graph, node: NodeId, conv: &Convolution) -> bool {
    conv.space == 2 && can_chain(&conv.params, conv.layout, &frame_of(graph, node))
}

/// The input and output sizes of a 2-d convolution.
fn frame_of(graph: &Graph, node: NodeId) -> ConvFrame {
    let node = graph.node(node);
    conv_frame(graph.meta(node.inputs()[0]), graph.meta(node.outputs()[0]), 2)
}
