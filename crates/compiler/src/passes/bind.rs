//! Lets nested graphs refer to the values around them directly. Their only remaining inputs are those that change
//! between runs of the graph.

use crate::{Error, Result};
use pteron_exported::{Argument, ExportedGraph, ExportedNode, ExportedProgram, VarId};
use std::collections::HashMap;

pub(super) fn run(program: &mut ExportedProgram) -> Result<()> {
    let mut graph = std::mem::take(&mut program.graph);
    let bound = bind_graph(program, &mut graph, &mut HashMap::new());
    program.graph = graph;
    bound
}

fn bind_graph(
    program: &ExportedProgram,
    graph: &mut ExportedGraph,
    outer: &mut HashMap<VarId, VarId>,
) -> Result<()> {
    let find = |outer: &HashMap<VarId, VarId>, v: VarId| outer.get(&v).copied().unwrap_or(v);
    for node in &mut graph.nodes {
        for (_, arg) in &mut node.args {
            arg.map_vars(&mut |v| find(outer, v));
        }
        if node.graphs().next().is_some() {
            bind_invariants(program, node, outer)?;
            for inner in node.graphs_mut() {
                bind_graph(program, inner, outer)?;
            }
        }
    }
    for output in &mut graph.outputs {
        output.map_vars(&mut |v| find(outer, v));
    }
    Ok(())
}

/// Removes the invariant operands of a node and substitutes them for the corresponding inputs of its graphs.
fn bind_invariants(
    program: &ExportedProgram,
    node: &mut ExportedNode,
    outer: &mut HashMap<VarId, VarId>,
) -> Result<()> {
    let lists: Vec<usize> = (0..node.args.len())
        .filter(|&i| matches!(node.args[i].1, Argument::Vars(_) | Argument::OptionalVars(_)))
        .collect();
    // The number of operand lists before the list of invariant operands.
    let carried = match &*node.target {
        "higher_order.cond" => 0,
        "higher_order.map_impl" | "higher_order.map" | "higher_order.while_loop" => 1,
        "higher_order.scan" => 2,
        other => {
            return Err(Error::node(program, node, format!("`{other}` is no control flow that is known")));
        }
    };
    let before: usize = lists.iter().take(carried).map(|&i| node.args[i].1.vars().len()).sum();
    let Some(&fixed) = lists.get(carried) else { return Ok(()) };
    let operands = node.args[fixed].1.vars();
    let wrong = Error::node(program, node, "its graphs take other inputs than it passes");
    for graph in node.graphs_mut() {
        if graph.inputs.len() != before + operands.len() {
            return Err(wrong);
        }
        for (input, &operand) in graph.inputs.drain(before..).zip(&operands) {
            outer.insert(input, operand);
        }
    }
    node.args[fixed].1 = Argument::Vars(Vec::new());
    Ok(())
}
