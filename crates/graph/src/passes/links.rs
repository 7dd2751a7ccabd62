//! Who writes and who uses a value, kept while a pass changes nodes in place.

use crate::graph::{Graph, ValueId};
use crate::node::{Node, Op};

/// Writers and users of a graph's values. A pass that changes nodes through this keeps it true; a node that it
/// removes leaves an empty place, so that the positions of the others stay, until [`Self::finish`].
pub(super) struct Links {
    producers: Vec<Option<usize>>,
    /// Uses by nodes and by the graph's results.
    counts: Vec<usize>,
    /// The sum of the positions of the nodes that use a value: of a value with one use, where that is.
    users: Vec<usize>,
}

impl Links {
    pub(super) fn of(graph: &Graph) -> Self {
        let mut links = Self { producers: graph.producers(), counts: graph.use_counts(), users: Vec::new() };
        links.users.resize(graph.values.len(), 0);
        for (i, node) in graph.nodes.iter().enumerate() {
            node.inputs.iter().for_each(|v| links.users[v.0] = links.users[v.0].wrapping_add(i));
        }
        // A result is used behind all nodes.
        graph.outputs.iter().for_each(|v| links.users[v.0] = links.users[v.0].wrapping_add(usize::MAX));
        links
    }

    /// The position of the node that writes a value.
    pub(super) fn producer(&self, v: ValueId) -> Option<usize> {
        self.producers.get(v.0).copied().flatten()
    }

    /// How many nodes and results use a value.
    pub(super) fn count(&self, v: ValueId) -> usize {
        self.counts.get(v.0).copied().unwrap_or(0)
    }

    /// The position of the node that writes a value which one node or result uses.
    pub(super) fn own(&self, v: ValueId) -> Option<usize> {
        self.producer(v).filter(|_| self.count(v) == 1)
    }

    /// The position of the one node that uses a value, if there is no other use.
    pub(super) fn only_user(&self, v: ValueId) -> Option<usize> {
        Some(self.users[v.0]).filter(|&i| self.count(v) == 1 && i != usize::MAX)
    }

    /// Puts a node in the place of another.
    pub(super) fn replace(&mut self, graph: &mut Graph, i: usize, node: Node) {
        let len = graph.values.len();
        self.producers.resize(len, None);
        self.counts.resize(len, 0);
        self.users.resize(len, 0);
        self.remove(graph, i);
        for v in &node.inputs {
            self.counts[v.0] += 1;
            self.users[v.0] = self.users[v.0].wrapping_add(i);
        }
        node.outputs.iter().for_each(|v| self.producers[v.0] = Some(i));
        graph.nodes[i] = node;
    }

    /// Takes a node away.
    pub(super) fn remove(&mut self, graph: &mut Graph, i: usize) -> Node {
        let empty = Node { op: Op::Reshape, inputs: Vec::new(), outputs: Vec::new() };
        let node = std::mem::replace(&mut graph.nodes[i], empty);
        for v in &node.inputs {
            self.counts[v.0] -= 1;
            self.users[v.0] = self.users[v.0].wrapping_sub(i);
        }
        for v in &node.outputs {
            if self.producers[v.0] == Some(i) {
                self.producers[v.0] = None;
            }
        }
        node
    }

    /// Takes away the nodes that computed any of these values, where no output of theirs is used any more, and
    /// what they alone used.
    pub(super) fn remove_unused(&mut self, graph: &mut Graph, mut values: Vec<ValueId>) {
        while let Some(v) = values.pop() {
            let Some(p) = self.producer(v) else { continue };
            if graph.nodes[p].outputs.iter().all(|&v| self.count(v) == 0) {
                values.extend(self.remove(graph, p).inputs);
            }
        }
    }

    /// Closes the empty places.
    pub(super) fn finish(self, graph: &mut Graph) {
        graph.nodes.retain(|node| !node.outputs.is_empty());
    }
}
