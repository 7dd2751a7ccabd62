//! Inlining the graphs of delegates into regions.

use super::builder::{Builder, MAX_CALLS, MIN_CALLS};
use crate::backend::GraphRequest;
use crate::plan::{ArgRef, DelegateCall, Id, OutRef};
use crate::prepare::raise::scalar_of;
use pteron_engine::{OpKind, Relayout, ValueId};
use pteron_tensor::{ShapeDynamism, TensorMeta};
use pteron_trace::Place;

impl Builder<'_> {
    /// Inlines the graph of a delegate. Definitions are only recorded once nothing can fail any more.
    pub(super) fn add_delegate(&mut self, call: &DelegateCall) -> Option<()> {
        let entry = &self.delegates[call.delegate];
        if self.calls >= MAX_CALLS || !entry.has_graph() || self.clobbers_needed_definition() {
            return None;
        }
        let mut inputs = Vec::new();
        for arg in &call.args {
            let ArgRef::Value(id) = *arg else { return None };
            // Scalars follow from the tensor sizes and are not part of the graph.
            if scalar_of(&self.state.values[id]).is_none() {
                inputs.push(self.read_tensor(id)?);
            }
        }
        let mut written: Vec<(Id, TensorMeta)> = Vec::new();
        for out in &call.outs {
            let OutRef::Tensor(id) = *out else { return None };
            written.push((id, self.planned_out_meta(id)?));
        }
        let metas: Vec<_> = inputs.iter().map(|&v| self.graph.meta(v).clone()).collect();
        let outputs: Vec<_> = written.iter().map(|(_, meta)| meta.clone()).collect();
        let request =
            GraphRequest::new(&metas, &outputs, self.backend_bytes).with_budget(self.graph.budget());
        let graph = entry.graph(&request)?;
        if graph.outputs().len() != written.len() {
            return None;
        }
        for ((id, meta), &v) in written.iter_mut().zip(graph.outputs()) {
            let result = graph.meta(v);
            let bound = &self.state.values[*id].tensor()?.bound;
            let is_within = |(&n, &most): (&usize, &usize)| n <= most && (n > 0 || most == 0);
            let is_static = self.state.values[*id].tensor()?.meta.dynamism() == ShapeDynamism::Static;
            let fits = result.rank() == bound.rank() && result.sizes().iter().zip(&**bound).all(is_within);
            if result.dtype() != meta.dtype() || !fits || is_static && result.sizes() != meta.sizes() {
                return None;
            }
            meta.reshape(result.sizes()).ok()?;
        }
        let live_out = self.count_live_outs(written.len())?;
        self.graph.set_origin(self.place);
        let outputs = self.graph.inline(&graph, &inputs);
        self.graph.set_origin(Place::default());
        let as_declared = |(v, (_, meta)): (ValueId, &(Id, TensorMeta))| self.value_in_layout(v, meta);
        let outputs: Vec<ValueId> = outputs.ok()?.into_iter().zip(&written).map(as_declared).collect();
        self.define_outs(written, &outputs, live_out);
        self.calls += graph.num_nodes().max(MIN_CALLS);
        Some(())
    }

    /// Converts a value to the layout of `meta`, which has the same type and sizes.
    fn value_in_layout(&mut self, value: ValueId, meta: &TensorMeta) -> ValueId {
        if self.graph.meta(value) == meta {
            return value;
        }
        let node = self.graph.append(OpKind::new(Relayout), &[value], [meta.clone()]);
        let (relaid, origin) = (self.graph.node(node).outputs()[0], self.graph.value(value).origin());
        self.graph.set_value_origin(relaid, origin);
        relaid
    }
}
