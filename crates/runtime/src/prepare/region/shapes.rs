//! Sizes and scalars of a region: the calls that compute them, and the inputs that determine them.
//!
//! In the upper-bound graph of a dynamic region, scalars are SSA values: a call that computes a scalar is a node, calls
//! that read it take it as an operand, and scalars computed before the region are inputs of the graph. A tensor is
//! an input if its sizes are read, even if its elements are not. So the inputs with bounded sizes and the scalar
//! inputs are the region's key: [`Builder::key_inputs`].

use super::builder::{Added, Builder, MAX_INTERFACE, Observed, Sizes, Written};
use crate::plan::{ArgRef, Id, KernelCall, OutRef, TensorValue, Value};
use crate::prepare::operands::Operands;
use crate::prepare::raise::scalar_of;
use pteron_engine::{Call, CallArg, CallOut, Type, ValueId};
use pteron_tensor::{Scalar, ScalarType, ShapeDynamism, TensorMeta};
use std::sync::Arc;

impl Builder<'_> {
    /// Adds a call that computes a scalar or makes a view from sizes and scalars only. If its result was recorded, it
    /// is not part of the graph.
    pub(super) fn add_shapes(&mut self, call: &KernelCall) -> Option<()> {
        if matches!(self.sizes, Sizes::Fixed) {
            return None;
        }
        self.operands.clear();
        let args = call.args.iter().map(|arg| self.shape_arg(*arg)).collect::<Option<Vec<_>>>()?;
        let [out] = &call.outs[..] else { return None };
        match *out {
            OutRef::Scalar(id) => {
                if let Some(observed) = self.next_recorded() {
                    let Observed::Scalar(scalar) = observed else { return None };
                    self.known_scalars.insert(id, scalar);
                } else {
                    let declared = scalar_of(&self.state.values[id]).map_or(ScalarType::Long, Scalar::dtype);
                    let meta = TensorMeta::contiguous(declared, &[]).ok()?;
                    let value = self.append_shapes(call, args, Type::Scalar, meta)?;
                    self.graph_scalars.insert(id, value);
                }
            }
            OutRef::View { to, of } => {
                self.def_use.reaching_def(self.at, to)?;
                let written = if let Some(observed) = self.next_recorded() {
                    let Observed::Sizes(sizes) = observed else { return None };
                    Written { sizes, value: None }
                } else {
                    let meta = self.state.values[to].tensor()?.meta.clone();
                    let (sizes, meta) = (*meta.sizes(), meta.with_dynamism(ShapeDynamism::Static));
                    let value = self.append_shapes(call, args, Type::Tensor, meta)?;
                    self.reshaped.push((value, to));
                    Written { sizes, value: Some(value) }
                };
                self.written.insert(to, written);
                self.views.push((to, of));
            }
            _ => return None,
        }
        self.is_dynamic = true;
        Some(())
    }

    /// Appends a call with one result to the graph, on the operands collected so far.
    fn append_shapes(
        &mut self,
        call: &KernelCall,
        args: Vec<CallArg>,
        ty: Type,
        meta: TensorMeta,
    ) -> Option<ValueId> {
        let kind = Call::new(Arc::clone(&call.kernel), args, vec![CallOut::Tensor]);
        let inputs = std::mem::take(&mut self.operands);
        self.graph.set_origin(self.place);
        let node = self.graph.append_typed(kind, &inputs, [(ty, meta)]);
        self.graph.set_origin(pteron_trace::Place::default());
        self.graph.node(node).outputs().first().copied()
    }

    /// Translates an argument of a call that reads only sizes and scalars. `None` if the argument is not supported.
    fn shape_arg(&mut self, arg: ArgRef) -> Option<CallArg> {
        let ArgRef::Value(id) = arg else { return None };
        match &self.state.values[id] {
            Value::Tensor(_) => {
                let meta = self.current_meta(id)?;
                if matches!(self.sizes, Sizes::Bounds) {
                    let value = match self.written.get(&id) {
                        Some(written) => written.value?,
                        None => self.graph_input(id, meta)?,
                    };
                    self.operands.push(value);
                }
                Some(CallArg::Tensor)
            }
            Value::Tensors(_) | Value::OptionalTensors(_) => None,
            _ => self.call_arg(arg),
        }
    }

    /// Takes the next recorded result. `None` if results were not recorded, or if none is left.
    pub(super) fn next_recorded(&mut self) -> Option<Observed> {
        let Sizes::Recorded(recorded) = &self.sizes else { return None };
        self.recorded_consumed += 1;
        recorded.results.get(self.recorded_consumed - 1).copied()
    }

    /// Marks the region as dynamic if a tensor's sizes are dynamic. `None` if all sizes of the region must be static.
    pub(super) fn note_dynamic_sizes(&mut self, meta: &TensorMeta) -> Option<()> {
        if meta.dynamism() != ShapeDynamism::Static {
            if matches!(self.sizes, Sizes::Fixed) {
                return None;
            }
            self.is_dynamic = true;
        }
        Some(())
    }

    /// Type, sizes and layout of a tensor that is read. If its sizes are dynamic and come from outside the region, it
    /// becomes an input.
    pub(super) fn current_meta(&mut self, id: Id) -> Option<TensorMeta> {
        let mut meta = self.state.values[id].tensor()?.meta.clone();
        let may_change = meta.dynamism() != ShapeDynamism::Static || self.def_use.is_rebound(id);
        if self.def_use.is_rebound(id) {
            if matches!(self.sizes, Sizes::Fixed) {
                return None;
            }
            self.def_use.reaching_def(self.at, id)?;
        } else {
            self.note_dynamic_sizes(&meta)?;
        }
        meta = meta.with_dynamism(ShapeDynamism::Static);
        if let Some(written) = self.written.get(&id) {
            meta.reshape(&written.sizes).ok()?;
        } else if may_change {
            match &self.sizes {
                Sizes::Recorded(recorded) => meta.reshape(recorded.sizes_before.get(&id)?).ok()?,
                Sizes::Bounds => _ = self.graph_input(id, meta.clone())?,
                Sizes::Fixed => {}
            }
        }
        Some(meta)
    }

    /// A scalar that is constant or follows from sizes: its recorded value if there is one, else its current one.
    /// `None` for any other. With [`Sizes::Bounds`], a scalar that is computed before the region becomes an input.
    pub(super) fn fixed_scalar(&mut self, id: Id) -> Option<Scalar> {
        if let Some(&scalar) = self.known_scalars.get(&id) {
            return Some(scalar);
        }
        let present = scalar_of(&self.state.values[id])?;
        if !self.def_use.is_computed(id) || self.graph_scalars.contains_key(&id) {
            return Some(present);
        }
        if matches!(self.sizes, Sizes::Fixed) || !self.def_use.depends_only_on_shapes(id) {
            return None;
        }
        self.is_dynamic = true;
        if let Sizes::Recorded(recorded) = &self.sizes {
            return recorded.scalars_before.get(&id).copied();
        }
        if self.inputs.len() == MAX_INTERFACE {
            return None;
        }
        let value = self.graph.scalar_input(present.dtype());
        self.inputs.push((value, id));
        self.graph_scalars.insert(id, value);
        self.added.push(Added::Scalar(id));
        Some(present)
    }

    /// Whether a scalar is an SSA value of the graph.
    pub(super) fn is_graph_scalar(&self, id: Id) -> bool {
        matches!(self.sizes, Sizes::Bounds) && self.def_use.is_computed(id)
    }

    /// Appends a scalar to the operands. `None` if the region cannot have the scalar as an operand.
    pub(super) fn push_scalar_operand(&mut self, id: Id) -> Option<()> {
        let present = self.fixed_scalar(id)?;
        let value = match self.graph_scalars.get(&id) {
            Some(&value) => value,
            None => self.graph.scalar(present),
        };
        self.operands.push(value);
        Some(())
    }

    /// Marks the sizes of all values with dynamic sizes as upper bounds.
    pub(crate) fn mark_bounds(&mut self) {
        let written = self.definitions.iter().map(|&(_, value, id)| (value, id));
        for (value, id) in self.inputs.iter().chain(&self.reshaped).copied().chain(written) {
            let is_static = |t: &TensorValue| t.meta.dynamism() == ShapeDynamism::Static;
            let Some(tensor) = self.state.values[id].tensor() else { continue };
            if !is_static(tensor) || self.def_use.is_rebound(id) {
                self.graph.set_bounded(value);
            }
        }
    }

    /// The inputs that determine all sizes and scalars of the graph: those with bounded sizes, and the scalars.
    pub(crate) fn key_inputs(&self) -> Box<[Id]> {
        let is_key = |value: ValueId| {
            let value = self.graph.value(value);
            value.is_bounded() || value.ty() == Type::Scalar
        };
        self.inputs.iter().filter(|(value, _)| is_key(*value)).map(|&(_, id)| id).collect()
    }
}
