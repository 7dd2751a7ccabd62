//! Tracks values in two forms, of which a pass prefers one: another layout or another element type. Conversions are
//! inserted where a user needs the other form.

use crate::graph::{Graph, Kind, NodeId, ValueId};
use pteron_ir::User;
use pteron_tensor::TensorMeta;
use std::collections::HashMap;
use std::sync::Arc;

/// The values that are available in the form that a pass prefers, as it proceeds from node to node.
pub(super) struct ConvertedValues {
    /// The kind of node that converts between the forms, in both directions.
    conversion: Arc<dyn Kind>,
    /// For each value that exists in both forms, the value in the other form.
    others: HashMap<ValueId, ValueId>,
    /// The values that the pass changed to the preferred form, with their original metas.
    changed: HashMap<ValueId, TensorMeta>,
}

impl ConvertedValues {
    pub(super) fn new(conversion: Arc<dyn Kind>) -> Self {
        Self { conversion, others: HashMap::new(), changed: HashMap::new() }
    }

    /// Whether a value exists in the preferred form.
    pub(super) fn is_preferred(&self, v: ValueId) -> bool {
        self.changed.contains_key(&v) || self.others.contains_key(&v)
    }

    /// The meta of a value before the pass.
    pub(super) fn original_meta<'a>(&'a self, graph: &'a Graph, v: ValueId) -> &'a TensorMeta {
        self.changed.get(&v).unwrap_or_else(|| graph.meta(v))
    }

    /// Sets the preferred form of a value.
    pub(super) fn set_preferred(&mut self, v: ValueId, preferred: ValueId) {
        self.others.insert(v, preferred);
    }

    /// Value `v` in the preferred form, with the meta `meta`; inserts a conversion before `node` if necessary.
    pub(super) fn preferred_form(
        &mut self,
        graph: &mut Graph,
        node: NodeId,
        v: ValueId,
        meta: TensorMeta,
    ) -> ValueId {
        if self.changed.contains_key(&v) { v } else { self.convert_before(graph, node, v, meta) }
    }

    /// The preferred form of a value; `None` if it does not exist yet.
    pub(super) fn existing_preferred(&self, v: ValueId) -> Option<ValueId> {
        if self.changed.contains_key(&v) { Some(v) } else { self.others.get(&v).copied() }
    }

    /// Changes an output of a node to the preferred form, which has the meta `meta`.
    pub(super) fn change_to_preferred(&mut self, graph: &mut Graph, output: ValueId, meta: TensorMeta) {
        self.changed.insert(output, graph.meta(output).clone());
        graph.set_meta(output, meta);
    }

    /// Makes a node that the pass leaves unchanged read all inputs in their original form.
    pub(super) fn keep_original(&mut self, graph: &mut Graph, node: NodeId) {
        for slot in 0..graph.node(node).inputs().len() {
            self.use_original(graph, node, slot);
        }
    }

    /// Makes a node read an input in its original form.
    pub(super) fn use_original(&mut self, graph: &mut Graph, node: NodeId, slot: usize) {
        let v = graph.node(node).inputs()[slot];
        if let Some(meta) = self.changed.get(&v).cloned() {
            let own = self.convert_before(graph, node, v, meta);
            graph.set_input(node, slot, own);
        }
    }

    /// Converts the graph's results back to their original form.
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
                    self.record_conversion(graph, node, v)
                }
            };
            let ends = graph.uses(v).iter().filter(|u| matches!(u.user, User::Terminator(_)));
            ends.copied().collect::<Vec<_>>().into_iter().for_each(|used| graph.replace_use(used, own));
        }
    }

    fn convert_before(&mut self, graph: &mut Graph, before: NodeId, v: ValueId, meta: TensorMeta) -> ValueId {
        if let Some(&other) = self.others.get(&v) {
            return other;
        }
        let node = graph.insert_before(before, Arc::clone(&self.conversion), &[v], [meta]);
        self.record_conversion(graph, node, v)
    }

    /// Records that `conversion` converts a value, and returns the converted value, which gets the value's origin.
    fn record_conversion(&mut self, graph: &mut Graph, conversion: NodeId, v: ValueId) -> ValueId {
        let (other, origin) = (graph.node(conversion).outputs()[0], graph.value(v).origin());
        graph.set_value_origin(other, origin);
        self.others.insert(v, other);
        other
    }
}
