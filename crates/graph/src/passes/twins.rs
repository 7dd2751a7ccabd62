//! Values in two forms, of which a pass prefers one: another layout, another type. Conversions stand where a value
//! meets something that needs it in the other form.

use crate::graph::{Graph, ValueId};
use crate::node::{Node, Op};
use std::collections::{HashMap, HashSet};
use tensor::TensorMeta;

/// The nodes of a graph as a pass writes them anew, one after another.
pub(super) struct Twins {
    /// What converts from one form to the other, either way.
    conversion: Op,
    /// The twin of a value, in the form that the pass prefers.
    twins: HashMap<ValueId, ValueId>,
    /// The values that exist in their own form: inputs and constants do, others once written.
    own: HashSet<ValueId>,
    done: Vec<Node>,
}

impl Twins {
    /// Begins with the inputs and constants of a graph.
    pub(super) fn new(graph: &Graph, conversion: Op) -> Self {
        let producers = graph.producers();
        let own = (0..graph.values.len()).filter(|&v| producers[v].is_none()).map(ValueId).collect();
        Self { conversion, twins: HashMap::new(), own, done: Vec::new() }
    }

    /// The twin of a value, if there is one.
    pub(super) fn get(&self, v: ValueId) -> Option<ValueId> {
        self.twins.get(&v).copied()
    }

    /// Makes a value the twin of another.
    pub(super) fn set(&mut self, v: ValueId, twin: ValueId) {
        self.twins.insert(v, twin);
    }

    /// Converts a value to a twin of this meta.
    pub(super) fn convert(&mut self, graph: &mut Graph, v: ValueId, meta: TensorMeta) -> ValueId {
        let twin = graph.twin(v, meta);
        self.push_conversion(v, twin);
        self.set(v, twin);
        twin
    }

    /// Lets a node write a twin of this meta in place of an output, which exists in its own form only when asked
    /// for.
    pub(super) fn write(&mut self, graph: &mut Graph, output: &mut ValueId, meta: TensorMeta) {
        let twin = graph.twin(*output, meta);
        self.set(*output, twin);
        *output = twin;
    }

    /// A node whose inputs and outputs are as they should be.
    pub(super) fn push(&mut self, node: Node) {
        self.done.push(node);
    }

    /// Outputs of a node are written in their own form.
    pub(super) fn written<'v>(&mut self, outputs: impl IntoIterator<Item = &'v ValueId>) {
        self.own.extend(outputs);
    }

    /// A node that stays as it was: its inputs must exist in their own form.
    pub(super) fn keep(&mut self, node: Node) {
        node.inputs.iter().for_each(|&v| self.need_own(v));
        self.written(&node.outputs);
        self.push(node);
    }

    /// Makes a value exist in its own form, if so far only its twin does.
    pub(super) fn need_own(&mut self, v: ValueId) {
        if let Some(twin) = self.get(v)
            && self.own.insert(v)
        {
            self.push_conversion(twin, v);
        }
    }

    /// Puts the nodes into the graph.
    pub(super) fn finish(mut self, graph: &mut Graph) {
        graph.outputs.iter().for_each(|&v| self.need_own(v));
        graph.nodes = self.done;
        graph.drop_unused_nodes();
    }

    fn push_conversion(&mut self, from: ValueId, to: ValueId) {
        self.done.push(Node { op: self.conversion.clone(), inputs: vec![from], outputs: vec![to] });
    }
}
