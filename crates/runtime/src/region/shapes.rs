//! Sizes and numbers of a region: the calls that compute them, and what they follow from.
//!
//! Of a region whose sizes change, the graph for their upper bounds has the numbers as values: a call that computes one
//! is a node, calls that read it take it as an input, and what is computed before the region is an input of the graph,
//! as is each tensor whose sizes matter, whether or not its elements do. So the inputs with bounded sizes and those
//! that are numbers are the region's key: [`Builder::keys`].

use super::builder::{Added, Builder, MOST_ENDS, Note, Sizes, Written};
use crate::operands::Operands;
use crate::raise::number_of;
use crate::step::{ArgStep, KernelStep, OutStep};
use crate::value::{Id, TensorValue, Value};
use graph::{Call, CallArg, CallOut, Type, ValueId};
use std::sync::Arc;
use tensor::{Scalar, ScalarType, ShapeDynamism, TensorMeta};

impl Builder<'_> {
    /// Adds a call that computes a number, or makes a view, from sizes and numbers. Where these are known, it is no
    /// part of the graph: what it gives was noted.
    pub(super) fn add_shapes(&mut self, call: &KernelStep) -> Option<()> {
        if matches!(self.sizes, Sizes::Fixed) {
            return None;
        }
        self.operands.clear();
        let args = call.args.iter().map(|arg| self.shape_arg(*arg)).collect::<Option<Vec<_>>>()?;
        let [out] = &call.outs[..] else { return None };
        match *out {
            OutStep::Scalar(id) => {
                if let Some(note) = self.note() {
                    let Note::Number(number) = note else { return None };
                    self.numbers.insert(id, number);
                } else {
                    let declared = number_of(&self.state.values[id]).map_or(ScalarType::Long, Scalar::dtype);
                    let meta = TensorMeta::contiguous(declared, &[]).ok()?;
                    let value = self.append_shapes(call, args, Type::Scalar, meta)?;
                    self.scalars.insert(id, value);
                }
            }
            OutStep::View { to, of } => {
                self.def_use.read(self.at, to)?;
                let written = if let Some(note) = self.note() {
                    let Note::Sizes(sizes) = note else { return None };
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

    /// Adds a call of one result, on the operands that were gathered.
    fn append_shapes(
        &mut self,
        call: &KernelStep,
        args: Vec<CallArg>,
        ty: Type,
        meta: TensorMeta,
    ) -> Option<ValueId> {
        let kind = Call::new(Arc::clone(&call.kernel), args, vec![CallOut::Tensor]);
        let inputs = std::mem::take(&mut self.operands);
        self.graph.set_origin(self.place);
        let node = self.graph.append_typed(kind, &inputs, [(ty, meta)]);
        self.graph.set_origin(trace::Place::default());
        self.graph.node(node).outputs().first().copied()
    }

    /// An argument of a call that looks at sizes and numbers alone.
    fn shape_arg(&mut self, arg: ArgStep) -> Option<CallArg> {
        let ArgStep::Value(id) = arg else { return None };
        match &self.state.values[id] {
            Value::Tensor(_) => {
                let meta = self.meta(id)?;
                if matches!(self.sizes, Sizes::Bounds) {
                    let value = match self.written.get(&id) {
                        Some(written) => written.value?,
                        None => self.input(id, meta)?,
                    };
                    self.operands.push(value);
                }
                Some(CallArg::Tensor)
            }
            Value::Tensors(_) | Value::OptionalTensors(_) => None,
            _ => self.arg(arg),
        }
    }

    /// The next note, if there are notes.
    pub(super) fn note(&mut self) -> Option<Note> {
        let Sizes::Recorded(recorded) = &self.sizes else { return None };
        self.noted += 1;
        recorded.notes.get(self.noted - 1).copied()
    }

    /// Notes that a tensor's sizes may change. `None` if they must not.
    pub(super) fn depends_on_sizes(&mut self, meta: &TensorMeta) -> Option<()> {
        if meta.dynamism() != ShapeDynamism::Static {
            if matches!(self.sizes, Sizes::Fixed) {
                return None;
            }
            self.is_dynamic = true;
        }
        Some(())
    }

    /// Type, sizes and layout of a tensor that is read. One whose sizes before the region matter becomes an input.
    pub(super) fn meta(&mut self, id: Id) -> Option<TensorMeta> {
        let mut meta = self.state.values[id].tensor()?.meta.clone();
        let may_change = meta.dynamism() != ShapeDynamism::Static || self.def_use.is_moving(id);
        if self.def_use.is_moving(id) {
            if matches!(self.sizes, Sizes::Fixed) {
                return None;
            }
            self.def_use.read(self.at, id)?;
        } else {
            self.depends_on_sizes(&meta)?;
        }
        meta = meta.with_dynamism(ShapeDynamism::Static);
        if let Some(written) = self.written.get(&id) {
            meta.reshape(&written.sizes).ok()?;
        } else if may_change {
            match &self.sizes {
                Sizes::Recorded(recorded) => meta.reshape(recorded.sizes_before.get(&id)?).ok()?,
                Sizes::Bounds => _ = self.input(id, meta.clone())?,
                Sizes::Fixed => {}
            }
        }
        Some(meta)
    }

    /// A number that is fixed or follows from sizes: what it is now, if it is not known what it will be. One that was
    /// computed before the region becomes an input.
    pub(super) fn fixed_number(&mut self, id: Id) -> Option<Scalar> {
        if let Some(&number) = self.numbers.get(&id) {
            return Some(number);
        }
        let present = number_of(&self.state.values[id])?;
        if !self.def_use.is_computed(id) || self.scalars.contains_key(&id) {
            return Some(present);
        }
        if matches!(self.sizes, Sizes::Fixed) || !self.def_use.is_from_shapes(id) {
            return None;
        }
        self.is_dynamic = true;
        if let Sizes::Recorded(recorded) = &self.sizes {
            return recorded.numbers_before.get(&id).copied();
        }
        if self.inputs.len() == MOST_ENDS {
            return None;
        }
        let value = self.graph.scalar_input(present.dtype());
        self.inputs.push((value, id));
        self.scalars.insert(id, value);
        self.added.push(Added::Number(id));
        Some(present)
    }

    /// Whether a number is a value of the graph.
    pub(super) fn is_scalar(&self, id: Id) -> bool {
        matches!(self.sizes, Sizes::Bounds) && self.def_use.is_computed(id)
    }

    /// Takes a number as an operand.
    pub(super) fn scalar_operand(&mut self, id: Id) -> Option<()> {
        let present = self.fixed_number(id)?;
        let value = match self.scalars.get(&id) {
            Some(&value) => value,
            None => self.graph.scalar(present),
        };
        self.operands.push(value);
        Some(())
    }

    /// Marks the sizes of what may have others as bounds.
    pub(crate) fn mark_bounds(&mut self) {
        let written = self.definitions.iter().map(|&(_, value, id)| (value, id));
        for (value, id) in self.inputs.iter().chain(&self.reshaped).copied().chain(written) {
            let is_static = |t: &TensorValue| t.meta.dynamism() == ShapeDynamism::Static;
            let Some(tensor) = self.state.values[id].tensor() else { continue };
            if !is_static(tensor) || self.def_use.is_moving(id) {
                self.graph.set_bounded(value);
            }
        }
    }

    /// What everything in the graph that is not an element follows from: its inputs with bounded sizes, and its
    /// inputs that are numbers.
    pub(crate) fn keys(&self) -> Box<[Id]> {
        let is_key = |value: ValueId| {
            let value = self.graph.value(value);
            value.is_bounded() || value.ty() == Type::Scalar
        };
        self.inputs.iter().filter(|(value, _)| is_key(*value)).map(|&(_, id)| id).collect()
    }
}
