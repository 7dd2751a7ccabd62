//! Chains of elementwise nodes become one node: one pass over memory instead of several.

use super::links::Links;
use crate::graph::Graph;
use crate::node::{Node, Op};
use crate::pointwise::{Instr, Program};

/// Instructions of a joined program, at most: beyond, another pass costs less than more registers.
const LONGEST: usize = 48;

/// Joins until nothing more can be.
pub(super) fn run(graph: &mut Graph) {
    let mut links = Links::of(graph);
    for i in 0..graph.nodes.len() {
        // A joined node may be joined again.
        while join_with_producer(graph, &mut links, i) {}
    }
    links.finish(graph);
}

/// Joins node `i` with a node that makes one of its inputs for nobody else. Says whether it did.
fn join_with_producer(graph: &mut Graph, links: &mut Links, i: usize) -> bool {
    let node = &graph.nodes[i];
    if !matches!(node.op, Op::Pointwise(_)) {
        return false;
    }
    let found = (0..node.inputs.len()).find_map(|slot| {
        let p = own_producer(graph, node, slot, links)?;
        Some((p, inlined(graph, node, slot, p, LONGEST)?))
    });
    let Some((p, node)) = found else { return false };
    links.replace(graph, i, node);
    links.remove(graph, p);
    true
}

/// The node that makes an input of `node`, if it makes it for nobody else. `links` are the graph's.
pub(super) fn own_producer(graph: &Graph, node: &Node, slot: usize, links: &Links) -> Option<usize> {
    let v = node.inputs[slot];
    let users = || node.inputs.iter().filter(|u| **u == v).count();
    links.producer(v).filter(|&p| graph.nodes[p].outputs.len() == 1 && links.count(v) == users())
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
