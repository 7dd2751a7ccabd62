//! Proposes maximal parts of supported nodes.

use super::CALL_DELEGATE;
use crate::{ExportedGraph, ExportedNode, ExportedProgram, VarId};
use std::collections::HashMap;
use std::sync::Arc;

/// Tags the untagged nodes that `is_supported` accepts. Calls of payloads are not asked about. Connected nodes get the
/// same tag as long as the part can run in one call. Returns the tags, `PREFIX0`, `PREFIX1` and so on, in the order of
/// the parts.
///
/// The cost is linear in the number of operands. A node's *level* is the maximum, over all paths that lead to it, of
/// the number of steps from a supported node to an unsupported one. A path that leaves a level through an unsupported
/// node never returns to that level, so the connected supported nodes of one level do not depend on each other through
/// other nodes, and parts have no cyclic dependencies.
pub fn tag_supported(
    program: &mut ExportedProgram,
    prefix: &str,
    is_supported: &dyn Fn(&ExportedProgram, &ExportedNode) -> bool,
) -> Vec<Arc<str>> {
    let mut tags = Vec::new();
    let mut next = 0;
    propose_tags(program, &program.graph, prefix, is_supported, &mut next, &mut tags);
    program.tags.extend(tags);
    (0..next).map(|n| format!("{prefix}{n}").into()).collect()
}

/// The node that defines a value.
#[derive(Clone, Copy)]
struct Producer {
    level: u32,
    /// The node's index among the supported nodes; `None` if the backend does not support it.
    supported: Option<usize>,
}

fn propose_tags(
    program: &ExportedProgram,
    graph: &ExportedGraph,
    prefix: &str,
    is_supported: &dyn Fn(&ExportedProgram, &ExportedNode) -> bool,
    next: &mut usize,
    tags: &mut Vec<(VarId, Arc<str>)>,
) {
    let mut producers: HashMap<VarId, Producer> = HashMap::new();
    let mut parts = Parts::default();
    let mut nodes = Vec::new();
    for node in &graph.nodes {
        let first = node.outputs.first().copied();
        let is_open = first.is_some() && program.tag_of(node).is_none() && *node.target != *CALL_DELEGATE;
        let takes = is_open && is_supported(program, node);
        let operands = all_operands(node);
        let mut level = 0;
        for producer in operands.iter().filter_map(|v| producers.get(v)) {
            level = level.max(producer.level + u32::from(producer.supported.is_some() && !takes));
        }
        let supported = takes.then(|| {
            let index = parts.add_element();
            for producer in operands.iter().filter_map(|v| producers.get(v)) {
                if let Some(other) = producer.supported.filter(|_| producer.level == level) {
                    parts.union(index, other);
                }
            }
            index
        });
        nodes.extend(supported.zip(first));
        producers.extend(node.outputs.iter().map(|&v| (v, Producer { level, supported })));
        if supported.is_none() {
            node.graphs().for_each(|inner| propose_tags(program, inner, prefix, is_supported, next, tags));
        }
    }
    let mut names: HashMap<usize, Arc<str>> = HashMap::new();
    for (index, var) in nodes {
        let name = names.entry(parts.root(index)).or_insert_with(|| {
            *next += 1;
            format!("{prefix}{}", *next - 1).into()
        });
        tags.push((var, Arc::clone(name)));
    }
}

/// All values that a node uses, including those that only its nested graphs use.
pub(super) fn all_operands(node: &ExportedNode) -> Vec<VarId> {
    fn add_graph_operands(graph: &ExportedGraph, all: &mut Vec<VarId>) {
        for node in &graph.nodes {
            all.extend(node.operands());
            node.graphs().for_each(|inner| add_graph_operands(inner, all));
        }
        all.extend(graph.outputs.iter().flat_map(|output| output.vars()));
    }
    let mut all: Vec<VarId> = node.operands().collect();
    node.graphs().for_each(|inner| add_graph_operands(inner, &mut all));
    all
}

/// Union-find over supported nodes.
#[derive(Default)]
struct Parts {
    parent: Vec<usize>,
}

impl Parts {
    fn add_element(&mut self) -> usize {
        self.parent.push(self.parent.len());
        self.parent.len() - 1
    }

    fn root(&mut self, mut index: usize) -> usize {
        while self.parent[index] != index {
            self.parent[index] = self.parent[self.parent[index]];
            index = self.parent[index];
        }
        index
    }

    fn union(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.parent[a.max(b)] = a.min(b);
    }
}
