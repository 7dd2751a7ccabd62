//! Copies of tensors into another layout. They have no effect inside of a payload, which has images in NHWC and all
//! other values in the order of their dimensions, so they only decide in which layout values enter and leave it.

use pteron_exported::{Argument, ExportedGraph, ExportedNode, ExportedProgram, VarId};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// The operand of a node that only copies it into another layout.
pub(super) fn copied_operand(program: &ExportedProgram, node: &ExportedNode) -> Option<VarId> {
    let name = node.target.strip_prefix("dim_order_ops.")?;
    if !matches!(name, "_to_dim_order_copy.default" | "_clone_dim_order.default") {
        return None;
    }
    let (x, &out) = (node.arg("self")?.var()?, node.outputs.first()?);
    (program.spec(x)?.dtype == program.spec(out)?.dtype).then_some(x)
}

/// The program whose nodes read the operands of copies instead of the copies, without the copies that nothing else
/// uses.
pub(super) fn without_copies(program: &ExportedProgram) -> Cow<'_, ExportedProgram> {
    let mut sources = HashMap::new();
    program.graph.for_each_node(&mut |node| {
        if let (Some(x), Some(&out)) = (copied_operand(program, node), node.outputs.first()) {
            let source = sources.get(&x).copied().unwrap_or(x);
            sources.insert(out, source);
        }
    });
    if sources.is_empty() {
        return Cow::Borrowed(program);
    }
    let mut logical = program.clone();
    replace_uses(&mut logical.graph, &sources);
    let uses = logical.use_counts();
    remove_unused(&mut logical.graph, &|node| {
        node.outputs.first().is_some_and(|out| sources.contains_key(out) && uses[out.index()] == 0)
    });
    Cow::Owned(logical)
}

fn replace_uses(graph: &mut ExportedGraph, sources: &HashMap<VarId, VarId>) {
    for node in &mut graph.nodes {
        for (_, arg) in &mut node.args {
            arg.map_vars(&mut |var| sources.get(&var).copied().unwrap_or(var));
        }
        node.graphs_mut().for_each(|inner| replace_uses(inner, sources));
    }
}

fn remove_unused(graph: &mut ExportedGraph, is_unused: &dyn Fn(&ExportedNode) -> bool) {
    graph.nodes.retain(|node| !is_unused(node));
    let inner = graph.nodes.iter_mut().flat_map(ExportedNode::graphs_mut);
    inner.for_each(|inner| remove_unused(inner, is_unused));
}

/// The copies next to a node in `supported`. Other copies are not delegated, as a payload with only a copy gains
/// nothing.
pub(super) fn adjacent_copies(program: &ExportedProgram, supported: &HashSet<VarId>) -> Vec<VarId> {
    let mut results: HashSet<VarId> = HashSet::new();
    let mut read: HashSet<VarId> = HashSet::new();
    let is_supported =
        |node: &ExportedNode| node.outputs.first().is_some_and(|first| supported.contains(first));
    program.graph.for_each_node(&mut |node| {
        if is_supported(node) && copied_operand(program, node).is_none() {
            results.extend(&node.outputs);
            read.extend(node.args.iter().flat_map(|(_, arg): &(_, Argument)| arg.vars()));
        }
    });
    let mut copies = Vec::new();
    program.graph.for_each_node(&mut |node| {
        if let (Some(x), Some(&out)) = (copied_operand(program, node), node.outputs.first())
            && (results.contains(&x) || read.contains(&out))
        {
            copies.push(out);
        }
    });
    copies
}
