//! Fuses elementwise nodes that remain after convolutions into the convolutions: half-precision batch norms and
//! activations, which are rounded step by step, and other expressions that are not supported as an epilogue.

use crate::graph::{Graph, NodeId, single_use_producer};
use crate::operation::{OpKind, as_op};
use crate::ops::conv::Convolution;
use crate::ops::conv_pass::ConvPass;
use crate::ops::pointwise::Pointwise;
use pteron_kernels::compute::Layout;
use pteron_operator::{Expression, Instr};

/// Fuses each elementwise node into a channels-last convolution whose result only this node uses, if the results of
/// both have the same meta.
pub(super) fn run(graph: &mut Graph) {
    for node in graph.order() {
        fuse(graph, node);
    }
}

fn fuse(graph: &mut Graph, node: NodeId) -> Option<()> {
    let Pointwise(expression) = as_op(graph, node)?;
    let (inputs, out) = (graph.node(node).inputs().to_vec(), graph.node(node).outputs()[0]);
    let (slot, producer, conv) = inputs.iter().enumerate().find_map(|(slot, &v)| {
        let producer = single_use_producer(graph, v)?;
        let conv = *as_op::<Convolution>(graph, producer)?;
        let fits = conv.layout == Layout::ChannelsLast && graph.meta(v) == graph.meta(out);
        fits.then_some((slot, producer, conv))
    })?;
    let pass = move_input_first(expression, slot);
    let others = inputs.iter().enumerate().filter(|&(i, _)| i != slot).map(|(_, &v)| v);
    let all: Vec<_> = graph.node(producer).inputs().iter().copied().chain(others).collect();
    graph.rewrite(node, OpKind::arc(ConvPass { conv, pass }), &all);
    graph.absorb(node, producer);
    graph.remove(producer);
    Some(())
}

/// The expression with input `slot` moved before the other inputs.
fn move_input_first(expression: &Expression, slot: usize) -> Expression {
    let place = |n: usize| match n {
        _ if n == slot => 0,
        _ if n < slot => n + 1,
        _ => n,
    };
    let instrs = expression.instrs.iter().map(|instr| match *instr {
        Instr::Input(n) => Instr::Input(place(n)),
        other => other,
    });
    Expression { instrs: instrs.collect() }
}
