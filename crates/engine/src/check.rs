//! Whether nodes can run: every node is checked before a graph is lowered, whether a pass made it or a file holds it.

use crate::graph::{Graph, NodeId};
use crate::layouts::satisfies;
use crate::operands::Operands;
use crate::operation::operation;
use pteron_operator::{Error, Result};

/// Checks every node of a graph.
pub(crate) fn check_graph(graph: &Graph) -> Result<()> {
    graph.order().into_iter().try_for_each(|node| check_node(graph, node))
}

/// Checks that a node can run: its operands ([`Operation::check`](crate::Operation::check)) and their layouts
/// ([`Operation::operand_layout`](crate::Operation::operand_layout)).
///
/// # Errors
/// The node cannot run; the error says why.
pub fn check_node(graph: &Graph, node: NodeId) -> Result<()> {
    if let Some(operation) = operation(graph, node) {
        operation.check(&Operands::new(graph, node))?;
    }
    check_layout(graph, node)
}

/// Whether the operands of a node have the layouts that the node requires.
pub(crate) fn layouts_fit(graph: &Graph, node: NodeId) -> bool {
    check_layout(graph, node).is_ok()
}

/// Checks that the operands of a node have the layouts that its operation requires.
fn check_layout(graph: &Graph, id: NodeId) -> Result<()> {
    // Kernels of calls receive the layouts of their tensors at run time.
    let Some(operation) = operation(graph, id) else { return Ok(()) };
    let node = graph.node(id);
    let input0 = node.inputs().first().map(|&v| graph.meta(v));
    for (i, &v) in node.inputs().iter().chain(node.outputs()).enumerate() {
        let meta = graph.meta(v);
        if !satisfies(meta, operation.operand_layout(i, node.inputs().len()), input0) {
            let place = if i < node.inputs().len() { "reads" } else { "writes" };
            let name = node.name();
            return Err(Error::invalid(format!(
                "{name} {place} {meta}, which is not in the layout that it requires"
            )));
        }
    }
    Ok(())
}
