//! Values in two forms, of which a pass prefers one: another layout, another type. Conversions stand where a value
//! meets something that needs it in the other form.

use crate::graph::{Graph, Kind, NodeId, ValueId};
use ir::User;
use std::collections::HashMap;
use std::sync::Arc;
use tensor::TensorMeta;

/// Which values of a graph are in the form that a pass prefers, as it goes from node to node.
pub(super) struct Forms {
    /// What converts from one form to the other, either way.
    conversion: Arc<dyn Kind>,
    /// The same elements in the other form, where they exist.
    others: HashMap<ValueId, ValueId>,
    /// The values that were given the preferred form, and the metas that they had.
    changed: HashMap<ValueId, TensorMeta>,
}

impl Forms {
    pub(super) fn new(conversion: Arc<dyn Kind>) -> Self {
        Self { conversion, others: HashMap::new(), changed: HashMap::new() }
    }

    /// Whether a value exists in the preferred form.
    pub(super) fn is_preferred(&self, v: ValueId) -> bool {
        self.changed.contains_key(&v) || self.others.contains_key(&v)
    }

    /// The meta that a value had when the pass began.
    pub(super) fn meta<'a>(&'a self, graph: &'a Graph, v: ValueId) -> &'a TensorMeta {
        self.changed.get(&v).unwrap_or_else(|| graph.meta(v))
    }

    /// Makes another value the preferred form of one.
    pub(super) fn set(&mut self, v: ValueId, preferred: ValueId) {
        self.others.insert(v, preferred);
    }

    /// A value in the preferred form, of this meta: converted before `node` if need be.
    pub(super) fn preferred(
        &mut self,
        graph: &mut Graph,
        node: NodeId,
        v: ValueId,
        meta: TensorMeta,
    ) -> ValueId {
        if self.changed.contains_key(&v) { v } else { self.other(graph, node, v, meta) }
    }

    /// The preferred form of a value, if it exists.
    pub(super) fn existing(&self, v: ValueId) -> Option<ValueId> {
        if self.changed.contains_key(&v) { Some(v) } else { self.others.get(&v).copied() }
    }

    /// Lets a node write an output in the preferred form, of this meta.
    pub(super) fn write(&mut self, graph: &mut Graph, output: ValueId, meta: TensorMeta) {
        self.changed.insert(output, graph.meta(output).clone());
        graph.set_meta(output, meta);
    }

    /// Gives a node that stays as it was its inputs in their own form.
    pub(super) fn keep(&mut self, graph: &mut Graph, node: NodeId) {
        for slot in 0..graph.node(node).inputs().len() {
            self.need_own(graph, node, slot);
        }
    }

    /// Gives a node an input in its own form.
    pub(super) fn need_own(&mut self, graph: &mut Graph, node: NodeId, slot: usize) {
        let v = graph.node(node).inputs()[slot];
        if let Some(meta) = self.changed.get(&v).cloned() {
            let own = self.other(graph, node, v, meta);
            graph.set_input(node, slot, own);
        }
    }

    /// Gives results of the graph their own form.
    pub(super) fn finish(mut self, graph: &mut Graph) {
        for v in graph.outputs().to_vec() {
            let (Some(meta), Some(producer)) = (self.changed.get(&v).cloned(), graph.producer(v)) else {
                continue;
            };
            let own = match self.others.get(&v) {
                Some(&own) => own,
                None => {
                    let conversion = Arc::clone(&self.conversion);
                    let node = graph.insert_after(producer, conversion, &[v], [meta]);
                    self.credit(graph, node, v)
                }
            };
            let ends = graph.uses(v).iter().filter(|u| matches!(u.user, User::Terminator(_)));
            ends.copied().collect::<Vec<_>>().into_iter().for_each(|used| graph.replace_use(used, own));
        }
    }

    fn other(&mut self, graph: &mut Graph, before: NodeId, v: ValueId, meta: TensorMeta) -> ValueId {
        if let Some(&other) = self.others.get(&v) {
            return other;
        }
        let node = graph.insert_before(before, Arc::clone(&self.conversion), &[v], [meta]);
        self.credit(graph, node, v)
    }

    /// Notes a new conversion of a value, which is the result of the same instruction.
    fn credit(&mut self, graph: &mut Graph, conversion: NodeId, v: ValueId) -> ValueId {
        let (other, origin) = (graph.node(conversion).outputs()[0], graph.value(v).origin());
        graph.set_value_origin(other, origin);
        self.others.insert(v, other);
        other
    }
}
