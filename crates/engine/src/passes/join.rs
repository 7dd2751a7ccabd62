//! Fuses chains of elementwise nodes into one node: one pass over memory instead of several.

use crate::graph::{Graph, NodeId, ValueId};
use crate::operation::{OpKind, as_op};
use crate::ops::pointwise::Pointwise;
use pteron_operator::{Expression, Instr};

/// The maximum number of instructions of a fused expression. Beyond it, another pass over memory costs less than more
/// registers.
const MAX_INSTRS: usize = 48;

/// Fuses every elementwise node with the elementwise nodes that produce its inputs, repeatedly.
pub(super) fn run(graph: &mut Graph) {
    for node in graph.order() {
        while let Some((producer, expression, inputs)) = joined_with_producer(graph, node) {
            graph.rewrite(node, OpKind::arc(Pointwise(expression)), &inputs);
            graph.absorb(node, producer);
            graph.remove(producer);
        }
    }
}

/// The first producer that can be joined with an elementwise node, and the expression and the inputs of the joined
/// node. The producer must be elementwise, with a result of the same sizes and layout that only the node uses, and the
/// joined expression within `MAX_INSTRS`.
fn joined_with_producer(graph: &Graph, node: NodeId) -> Option<(NodeId, Expression, Vec<ValueId>)> {
    let Pointwise(expression) = as_op(graph, node)?;
    let inputs = graph.node(node).inputs();
    let to = graph.meta(graph.node(node).outputs()[0]);
    inputs.iter().enumerate().find_map(|(slot, &v)| {
        let producer = graph.producer(v)?;
        let Pointwise(inner) = as_op(graph, producer)?;
        let from = graph.meta(v);
        let fits = graph.node(producer).outputs().len() == 1
            && graph.only_user(v) == Some(node)
            && (from.sizes(), from.dim_order()) == (to.sizes(), to.dim_order())
            && expression.instrs.len() + inner.instrs.len() <= MAX_INSTRS;
        let (expression, inputs) = fits
            .then(|| inline_expression((expression, inputs), slot, (inner, graph.node(producer).inputs())))?;
        Some((producer, expression, inputs))
    })
}

/// `expression` and its inputs after `inner` is substituted for the input at `slot`.
fn inline_expression(
    (expression, inputs): (&Expression, &[ValueId]),
    slot: usize,
    (inner, inner_inputs): (&Expression, &[ValueId]),
) -> (Expression, Vec<ValueId>) {
    let value = inputs[slot];
    let mut all = Vec::new();
    let mut place = |v| match all.iter().position(|u| *u == v) {
        Some(i) => i,
        None => {
            all.push(v);
            all.len() - 1
        }
    };
    let inner_places: Vec<usize> = inner_inputs.iter().map(|&v| place(v)).collect();
    let map: Vec<usize> = inputs.iter().map(|&v| if v == value { usize::MAX } else { place(v) }).collect();
    // Every use of the value reads the same register.
    let merged = expression.instrs.iter().map(|instr| match *instr {
        Instr::Input(n) if inputs[n] == value => Instr::Input(slot),
        other => other,
    });
    let merged = Expression { instrs: merged.collect() };
    (merged.substitute(slot, inner, &inner_places, &map), all)
}
