//! Dead-code elimination: removes nodes whose results are unused.

use crate::Result;
use pteron_exported::{ExportedGraph, ExportedProgram};

pub(super) fn run(program: &mut ExportedProgram) -> Result<()> {
    let mut live = vec![false; program.num_vars()];
    for mutation in &program.mutations {
        live[mutation.value.index()] = true;
    }
    let mut graph = std::mem::take(&mut program.graph);
    sweep(&mut graph, &mut live);
    program.graph = graph;
    Ok(())
}

fn sweep(graph: &mut ExportedGraph, live: &mut [bool]) {
    for var in graph.outputs.iter().flat_map(|o| o.vars()) {
        live[var.index()] = true;
    }
    let mut live_nodes = Vec::with_capacity(graph.nodes.len());
    while let Some(mut node) = graph.nodes.pop() {
        if !node.outputs.iter().any(|v| live[v.index()]) {
            continue;
        }
        for inner in node.graphs_mut() {
            sweep(inner, live);
        }
        for var in node.operands() {
            live[var.index()] = true;
        }
        live_nodes.push(node);
    }
    live_nodes.reverse();
    graph.nodes = live_nodes;
}
