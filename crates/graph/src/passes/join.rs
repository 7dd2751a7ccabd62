//! Chains of elementwise nodes become one node: one pass over memory instead of several.

use crate::graph::Graph;
use crate::node::{Node, Op};
use crate::pointwise::{Instr, Program};

/// Instructions of a joined program, at most: beyond, another pass costs less than more registers.
const LONGEST: usize = 48;

/// Joins until nothing more can be.
pub(super) fn run(graph: &mut Graph) {
    let mut i = 0;
    while i < graph.nodes.len() {
        // A joined node stands one place earlier, and may be joined again.
        if join_with_producer(graph, i) { i -= 1 } else { i += 1 }
    }
}

/// Joins node `i` with a node that makes one of its inputs for nobody else. Says whether it did; the
/// joined node stands at `i - 1` then.
fn join_with_producer(graph: &mut Graph, i: usize) -> bool {
    let Op::Pointwise(program) = &graph.nodes[i].op else { return false };
    let (counts, producers) = (graph.use_counts(), graph.producers());
    let (inputs, out) = (&graph.nodes[i].inputs, graph.nodes[i].outputs[0]);
    for (slot, &v) in inputs.iter().enumerate() {
        let users = inputs.iter().filter(|u| **u == v).count();
        let Some(p) = producers[v.0].filter(|_| counts[v.0] == users) else { continue };
        let Op::Pointwise(inner) = &graph.nodes[p].op else { continue };
        let whole = graph.meta(v).sizes() == graph.meta(out).sizes()
            && graph.meta(v).dim_order() == graph.meta(out).dim_order();
        if !whole || program.instrs.len() + inner.instrs.len() > LONGEST {
            continue;
        }
        let node = joined(&graph.nodes[i], slot, &graph.nodes[p], program, inner);
        graph.nodes[i] = node;
        graph.nodes.remove(p);
        return true;
    }
    false
}

/// The node that computes `outer` with what `inner` computes in the place of one of its inputs.
fn joined(outer: &Node, slot: usize, inner: &Node, outer_program: &Program, inner_program: &Program) -> Node {
    let joined_value = outer.inputs[slot];
    let mut inputs = Vec::new();
    let mut place = |v| match inputs.iter().position(|u| *u == v) {
        Some(i) => i,
        None => {
            inputs.push(v);
            inputs.len() - 1
        }
    };
    let inner_places: Vec<usize> = inner.inputs.iter().map(|&v| place(v)).collect();
    let map: Vec<usize> =
        outer.inputs.iter().map(|&v| if v == joined_value { usize::MAX } else { place(v) }).collect();
    // Every use of the joined value reads the same register.
    let merged = Program {
        instrs: outer_program
            .instrs
            .iter()
            .map(|instr| match *instr {
                Instr::Input(n) if outer.inputs[n] == joined_value => Instr::Input(slot),
                other => other,
            })
            .collect(),
    };
    let program = merged.substitute(slot, inner_program, &inner_places, &map);
    Node { op: Op::Pointwise(program), inputs, outputs: outer.outputs.clone() }
}
