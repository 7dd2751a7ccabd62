//! The largest parts that hold supported nodes alone.

use crate::exported::{ExportedGraph, ExportedNode, ExportedProgram, VarId};
use std::collections::HashMap;
use std::sync::Arc;

/// Tags the nodes that `is_supported` takes and that have no tag yet: connected ones alike, in the largest parts of
/// which each can run at once. Returns the tags, `PREFIX0`, `PREFIX1` and so on, in the order in which the parts stand.
///
/// The cost grows with the number of operands. A node's *level* is the greatest number of changes from a supported
/// node to another one on the ways to it. What joins two parts of one level without lying in them would be of a higher
/// level, so that connected supported nodes of one level can run at once, and parts never wait for each other in turn.
pub fn tag_supported(
    program: &mut ExportedProgram,
    prefix: &str,
    is_supported: &dyn Fn(&ExportedProgram, &ExportedNode) -> bool,
) -> Vec<Arc<str>> {
    let mut found = Vec::new();
    let mut next = 0;
    propose(program, &program.graph, prefix, is_supported, &mut next, &mut found);
    program.tags.extend(found);
    (0..next).map(|n| format!("{prefix}{n}").into()).collect()
}

/// What is known of a node that defines a value.
#[derive(Clone, Copy)]
struct Producer {
    level: u32,
    /// Its index among the supported nodes, if it is one.
    supported: Option<usize>,
}

fn propose(
    program: &ExportedProgram,
    graph: &ExportedGraph,
    prefix: &str,
    is_supported: &dyn Fn(&ExportedProgram, &ExportedNode) -> bool,
    next: &mut usize,
    found: &mut Vec<(VarId, Arc<str>)>,
) {
    let mut producers: HashMap<VarId, Producer> = HashMap::new();
    let mut parts = Parts::default();
    let mut nodes = Vec::new();
    for node in &graph.nodes {
        let first = node.outputs.first().copied();
        let takes = first.is_some() && program.tag_of(node).is_none() && is_supported(program, node);
        let operands = all_operands(node);
        let mut level = 0;
        for producer in operands.iter().filter_map(|v| producers.get(v)) {
            level = level.max(producer.level + u32::from(producer.supported.is_some() && !takes));
        }
        let supported = takes.then(|| {
            let index = parts.add();
            for producer in operands.iter().filter_map(|v| producers.get(v)) {
                if let Some(other) = producer.supported.filter(|_| producer.level == level) {
                    parts.join(index, other);
                }
            }
            index
        });
        nodes.extend(supported.zip(first));
        producers.extend(node.outputs.iter().map(|&v| (v, Producer { level, supported })));
        if supported.is_none() {
            node.graphs().for_each(|inner| propose(program, inner, prefix, is_supported, next, found));
        }
    }
    let mut names: HashMap<usize, Arc<str>> = HashMap::new();
    for (index, var) in nodes {
        let name = names.entry(parts.root(index)).or_insert_with(|| {
            *next += 1;
            format!("{prefix}{}", *next - 1).into()
        });
        found.push((var, Arc::clone(name)));
    }
}

/// What a node uses, that which only its nested graphs use with it.
pub(super) fn all_operands(node: &ExportedNode) -> Vec<VarId> {
    fn of_graph(graph: &ExportedGraph, all: &mut Vec<VarId>) {
        for node in &graph.nodes {
            all.extend(node.operands());
            node.graphs().for_each(|inner| of_graph(inner, all));
        }
        all.extend(graph.outputs.iter().flat_map(|output| output.vars()));
    }
    let mut all: Vec<VarId> = node.operands().collect();
    node.graphs().for_each(|inner| of_graph(inner, &mut all));
    all
}

/// Sets that are joined.
#[derive(Default)]
struct Parts {
    above: Vec<usize>,
}

impl Parts {
    fn add(&mut self) -> usize {
        self.above.push(self.above.len());
        self.above.len() - 1
    }

    fn root(&mut self, mut index: usize) -> usize {
        while self.above[index] != index {
            self.above[index] = self.above[self.above[index]];
            index = self.above[index];
        }
        index
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.above[a.max(b)] = a.min(b);
    }
}
