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
    let (counts, producers) = (graph.use_counts(), graph.producers());
    let node = &graph.nodes[i];
    let found = (0..node.inputs.len()).find_map(|slot| {
        let p = own_producer(graph, node, slot, &counts, &producers)?;
        Some((p, inlined(graph, node, slot, p, LONGEST)?))
    });
    let Some((p, node)) = found else { return false };
    graph.nodes[i] = node;
    graph.nodes.remove(p);
    true
}

/// The node that makes an input of `node`, if it makes it for nobody else. `counts` and `producers` are
/// the graph's.
pub(super) fn own_producer(
    graph: &Graph,
    node: &Node,
    slot: usize,
    counts: &[usize],
    producers: &[Option<usize>],
) -> Option<usize> {
    let v = node.inputs[slot];
    let users = node.inputs.iter().filter(|u| **u == v).count();
    producers[v.0].filter(|&p| counts[v.0] == users && graph.nodes[p].outputs.len() == 1)
}

/// An elementwise node with what node `p` computes in the place of an input, if that is elementwise of
/// the same elements and the program stays within `longest` instructions.
pub(super) fn inlined(graph: &Graph, node: &Node, slot: usize, p: usize, longest: usize) -> Option<Node> {
    let (Op::Pointwise(program), Op::Pointwise(inner)) = (&node.op, &graph.nodes[p].op) else { return None };
    let (v, out) = (graph.meta(node.inputs[slot]), graph.meta(node.outputs[0]));
    let whole = v.sizes() == out.sizes() && v.dim_order() == out.dim_order();
    let short = program.instrs.len() + inner.instrs.len() <= longest;
    (whole && short).then(|| joined(node, slot, &graph.nodes[p], program, inner))
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
