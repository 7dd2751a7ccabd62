//! A graph that grows call by call from the instructions of a region.

use super::facts::Facts;
use crate::call::State;
use crate::step::{ArgStep, KernelStep, OutStep, Step};
use crate::value::{Id, Storage, Value};
use graph::{Call, CallArg, CallOut, Constant, Graph, Op, ValueId};
use operator::Results;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tensor::{Extent, Scalar, Shape, ShapeDynamism, TensorMeta};
use trace::Place;

/// Calls that were folded one from another, of which a graph is told: a dequantization and a transpose are
/// two.
const TOLD: usize = 4;

/// Where sizes and computed numbers come from.
pub(crate) enum Sizes<'m> {
    /// Everything is fixed: what is not cannot be added.
    Fixed,
    /// The bounds of the plan, and no numbers: to see what can be added.
    Bounds,
    /// What a run of the instructions has shown.
    Recorded(&'m Recorded),
}

/// What a run of a region's instructions has shown.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    /// Sizes that tensors had before.
    pub(crate) sizes_before: HashMap<Id, Shape>,
    /// Numbers that were there before.
    pub(crate) numbers_before: HashMap<Id, Scalar>,
    /// What the calls gave, in the order of their outs.
    pub(crate) notes: Vec<Note>,
    /// Whether anything was empty that need not be.
    pub(crate) is_empty: bool,
}

/// What a call gave to one of its outs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Note {
    Sizes(Shape),
    Number(Scalar),
}

pub(crate) struct Builder<'m> {
    state: &'m State,
    facts: &'m Facts,
    sizes: Sizes<'m>,
    /// How many notes were used.
    noted: usize,
    pub(crate) graph: Graph,
    /// The instruction that is being added.
    pub(crate) place: Place,
    /// What the places hold that the region has written: place, value, and the table's id for it.
    pub(crate) current: Vec<(Extent, ValueId, Id)>,
    /// Places that the region has written and of which no whole tensor is left.
    ruined: Vec<Extent>,
    /// Tensors that the region reads from outside.
    pub(crate) inputs: Vec<(Extent, ValueId, Id)>,
    constants: HashMap<Id, ValueId>,
    /// The calls that were folded, by what they gave.
    folded: HashMap<Id, &'m KernelStep>,
    /// How many folded calls, each an argument of the next, are being told.
    told: usize,
    /// Sizes of tensors that the region has written or viewed.
    pub(crate) written_sizes: HashMap<Id, Shape>,
    /// Numbers that the region has computed.
    pub(crate) numbers: HashMap<Id, Scalar>,
    /// Views that the region has made, and of what.
    pub(crate) views: Vec<(Id, Id)>,
    /// Tensors whose sizes before the region its calls depend on.
    pub(crate) size_keys: Vec<Id>,
    /// Numbers computed before the region on which its calls depend.
    pub(crate) number_keys: Vec<Id>,
    /// Whether anything in it is not fixed.
    pub(crate) is_dynamic: bool,
    /// Calls that compute elements.
    pub(crate) calls: usize,
}

impl<'m> Builder<'m> {
    pub(crate) fn new(state: &'m State, facts: &'m Facts, sizes: Sizes<'m>) -> Self {
        Self {
            state,
            facts,
            sizes,
            noted: 0,
            graph: Graph::new(),
            place: Place::default(),
            current: Vec::new(),
            ruined: Vec::new(),
            inputs: Vec::new(),
            constants: HashMap::new(),
            folded: HashMap::new(),
            told: 0,
            written_sizes: HashMap::new(),
            numbers: HashMap::new(),
            views: Vec::new(),
            size_keys: Vec::new(),
            number_keys: Vec::new(),
            is_dynamic: false,
            calls: 0,
        }
    }

    /// The same, which tells the graph how constants were computed that were folded in a chain: passes may
    /// know something better than the result, such as the numbers of quantized weights.
    pub(crate) fn with_folded(mut self, steps: &'m [Step]) -> Self {
        for step in steps {
            if let Step::Folded(call) = step
                && let [OutStep::Tensor(id)] = call.outs[..]
            {
                self.folded.insert(id, call);
            }
        }
        self
    }

    /// Adds a call. `false` if it cannot be part of the region, which is as it was then.
    pub(crate) fn add(&mut self, call: &KernelStep) -> bool {
        let (mark, inputs) = (self.graph.mark(), self.inputs.len());
        let (sizes, numbers) = (self.size_keys.len(), self.number_keys.len());
        let was_dynamic = self.is_dynamic;
        if self.try_add(call).is_some() {
            return true;
        }
        self.graph.rollback(&mark);
        self.inputs.truncate(inputs);
        self.size_keys.truncate(sizes);
        self.number_keys.truncate(numbers);
        self.is_dynamic = was_dynamic;
        self.constants.retain(|_, v| v.index() < self.graph.num_values());
        false
    }

    fn try_add(&mut self, call: &KernelStep) -> Option<()> {
        match call.kernel.results() {
            Results::Shapes => self.add_shapes(call),
            Results::Elements | Results::Random => self.add_elements(call),
            Results::AnySize => None,
        }
    }

    /// Adds a call that computes a number, or makes a view, from sizes and numbers. It is no part of the
    /// graph: for the same sizes it gives the same.
    fn add_shapes(&mut self, call: &KernelStep) -> Option<()> {
        if matches!(self.sizes, Sizes::Fixed) {
            return None;
        }
        for arg in &call.args {
            let ArgStep::Value(id) = *arg else { return None };
            match &self.state.values[id] {
                Value::Tensor(_) => {
                    self.meta(id)?;
                }
                Value::Tensors(_) | Value::OptionalTensors(_) => return None,
                Value::Ints(ids) => {
                    for &id in Arc::clone(ids).iter() {
                        self.number(id)?;
                    }
                }
                Value::Int(_) | Value::Double(_) | Value::Bool(_) => {
                    self.number(id)?;
                }
                _ if self.facts.is_computed(id) => return None,
                _ => {}
            }
        }
        let [out] = &call.outs[..] else { return None };
        match *out {
            OutStep::Scalar(id) => {
                let number = match self.note() {
                    Some(Note::Number(number)) => number,
                    Some(Note::Sizes(_)) => return None,
                    None => Scalar::Int(0),
                };
                self.numbers.insert(id, number);
            }
            OutStep::View { to, of } => {
                self.facts.place(self.state, to)?;
                let sizes = match self.note() {
                    Some(Note::Sizes(sizes)) => sizes,
                    Some(Note::Number(_)) => return None,
                    None => *self.state.values[to].tensor()?.meta.sizes(),
                };
                self.written_sizes.insert(to, sizes);
                self.views.push((to, of));
            }
            _ => return None,
        }
        self.is_dynamic = true;
        Some(())
    }

    /// The next note, if there are notes.
    fn note(&mut self) -> Option<Note> {
        let Sizes::Recorded(recorded) = &self.sizes else { return None };
        self.noted += 1;
        recorded.notes.get(self.noted - 1).copied()
    }

    /// Adds a call that computes tensors. Places are only written once nothing can fail any more.
    fn add_elements(&mut self, call: &KernelStep) -> Option<()> {
        if !writes_only_its_outs(call) {
            return None;
        }
        let mut inputs = Vec::new();
        let args = call.args.iter().map(|arg| self.arg(*arg, &mut inputs)).collect::<Option<Vec<_>>>()?;
        let mut outs = Vec::new();
        let mut written: Vec<(Id, Extent, TensorMeta)> = Vec::new();
        for out in &call.outs {
            let ids: &[Id] = match out {
                OutStep::Tensor(id) => {
                    outs.push(CallOut::Tensor);
                    std::slice::from_ref(id)
                }
                OutStep::Tensors(ids) => {
                    outs.push(CallOut::Tensors(ids.len()));
                    ids
                }
                OutStep::Scalar(_) | OutStep::View { .. } => return None,
            };
            for &id in ids {
                let (extent, meta) = self.out(id)?;
                if written.iter().any(|(_, e, _)| e.overlaps(&extent)) {
                    return None;
                }
                written.push((id, extent, meta));
            }
        }
        let outputs: Vec<ValueId> = written.iter().map(|(_, _, m)| self.graph.value(m.clone())).collect();
        outputs.iter().for_each(|&v| self.graph.set_origin(v, self.place));
        let kernel = Arc::clone(&call.kernel);
        self.graph.node(Op::Call(Call { kernel, prepared: None, args, outs }), inputs, outputs.clone());
        for ((id, extent, meta), value) in written.into_iter().zip(outputs) {
            self.written_sizes.insert(id, *meta.sizes());
            self.write(extent, value, id);
        }
        self.calls += 1;
        Some(())
    }

    /// Where a call writes a tensor, and what it gives.
    fn out(&mut self, id: Id) -> Option<(Extent, TensorMeta)> {
        let t = self.state.values[id].tensor()?;
        if self.facts.is_moving(id) {
            return None;
        }
        let Storage::Arena(extent) = t.home else { return None };
        let mut meta = t.meta.clone();
        match self.note() {
            Some(Note::Sizes(sizes)) => meta.reshape(&sizes).ok()?,
            Some(Note::Number(_)) => return None,
            None => self.depends_on_sizes(&meta)?,
        }
        Some((extent, meta.with_dynamism(ShapeDynamism::Static)))
    }

    /// Notes that a tensor's sizes may change. `None` if they must not.
    fn depends_on_sizes(&mut self, meta: &TensorMeta) -> Option<()> {
        if meta.dynamism() != ShapeDynamism::Static {
            if matches!(self.sizes, Sizes::Fixed) {
                return None;
            }
            self.is_dynamic = true;
        }
        Some(())
    }

    /// Type, sizes and layout of a tensor that is read.
    fn meta(&mut self, id: Id) -> Option<TensorMeta> {
        let mut meta = self.state.values[id].tensor()?.meta.clone();
        if self.facts.is_moving(id) {
            if matches!(self.sizes, Sizes::Fixed) {
                return None;
            }
            self.facts.place(self.state, id)?;
        } else {
            self.depends_on_sizes(&meta)?;
        }
        if let Some(sizes) = self.written_sizes.get(&id) {
            meta.reshape(sizes).ok()?;
        } else if meta.dynamism() != ShapeDynamism::Static || self.facts.is_moving(id) {
            if !self.size_keys.contains(&id) {
                self.size_keys.push(id);
            }
            if let Sizes::Recorded(recorded) = &self.sizes {
                meta.reshape(recorded.sizes_before.get(&id)?).ok()?;
            }
        }
        Some(meta.with_dynamism(ShapeDynamism::Static))
    }

    /// A number that is fixed or follows from sizes.
    fn number(&mut self, id: Id) -> Option<Scalar> {
        if let Some(&number) = self.numbers.get(&id) {
            return Some(number);
        }
        let present = number_of(&self.state.values[id])?;
        if !self.facts.is_computed(id) {
            return Some(present);
        }
        if matches!(self.sizes, Sizes::Fixed) || !self.facts.is_from_shapes(id) {
            return None;
        }
        self.is_dynamic = true;
        if !self.number_keys.contains(&id) {
            self.number_keys.push(id);
        }
        match &self.sizes {
            Sizes::Recorded(recorded) => recorded.numbers_before.get(&id).copied(),
            _ => Some(present),
        }
    }

    fn arg(&mut self, arg: ArgStep, inputs: &mut Vec<ValueId>) -> Option<CallArg> {
        let id = match arg {
            ArgStep::Out(i) => return Some(CallArg::Out(i)),
            ArgStep::Value(id) => id,
        };
        Some(match &self.state.values[id] {
            Value::Int(_) | Value::Double(_) | Value::Bool(_) => CallArg::Scalar(self.number(id)?),
            Value::Tensor(_) => {
                inputs.push(self.read(id)?);
                CallArg::Tensor
            }
            _ if self.facts.is_computed(id) => return None,
            Value::None => CallArg::None,
            Value::Str(s) => CallArg::Str(Arc::clone(s)),
            Value::Doubles(v) => CallArg::Doubles(Arc::clone(v)),
            Value::Bools(v) => CallArg::Bools(Arc::clone(v)),
            Value::Ints(ids) => {
                let int = |id: &Id| match self.number(*id)? {
                    Scalar::Int(v) => Some(v),
                    _ => None,
                };
                CallArg::Ints(Arc::clone(ids).iter().map(int).collect::<Option<_>>()?)
            }
            Value::Tensors(ids) => {
                for &id in Arc::clone(ids).iter() {
                    inputs.push(self.read(id)?);
                }
                CallArg::Tensors(ids.len())
            }
            Value::OptionalTensors(ids) => {
                for id in Arc::clone(ids).iter().flatten() {
                    inputs.push(self.read(*id)?);
                }
                CallArg::OptionalTensors(ids.iter().map(Option::is_some).collect())
            }
        })
    }

    /// The value that a read of a tensor finds.
    fn read(&mut self, id: Id) -> Option<ValueId> {
        let t = self.state.values[id].tensor()?;
        if let Storage::Constant(index) = t.home
            && !self.facts.is_moving(id)
        {
            if let Some(&known) = self.constants.get(&id) {
                return Some(known);
            }
            let bytes = Constant::Shared(Arc::new(self.state.constants[index].clone()));
            let meta = t.meta.clone().with_dynamism(ShapeDynamism::Static);
            let value = self.graph.constant(meta, bytes);
            self.constants.insert(id, value);
            self.tell(id, value);
            return Some(value);
        }
        let extent = self.facts.place(self.state, id)?;
        let meta = self.meta(id)?;
        let mut met = self.current.iter().filter(|(e, ..)| e.overlaps(&extent));
        let found = match (met.next(), met.next()) {
            (None, _) if self.ruined.iter().any(|e| e.overlaps(&extent)) => return None,
            (None, _) => {
                let same = |(e, v, other): &&(Extent, ValueId, Id)| {
                    let fixed = matches!(self.sizes, Sizes::Fixed) && *self.graph.meta(*v) == meta;
                    *e == extent && (*other == id || fixed)
                };
                if let Some((_, v, _)) = self.inputs.iter().find(same) {
                    return Some(*v);
                }
                let value = self.graph.input(meta);
                self.inputs.push((extent, value, id));
                return Some(value);
            }
            (Some((e, v, _)), None) if *e == extent => *v,
            _ => return None,
        };
        let written = self.graph.meta(found);
        if *written == meta {
            return Some(found);
        }
        // The same bytes under another shape: a view, whether or not it has an instruction.
        let plain = written.dim_order().is_contiguous() && meta.dim_order().is_contiguous();
        if written.dtype() != meta.dtype() || written.numel() != meta.numel() || !plain {
            return None;
        }
        let view = self.graph.value(meta);
        self.graph.node(Op::Reshape, vec![found], vec![view]);
        Some(view)
    }

    /// Adds the call that gave a constant, if it was folded.
    fn tell(&mut self, id: Id, value: ValueId) {
        let Some(&call) = self.folded.get(&id).filter(|_| self.told < TOLD) else { return };
        self.told += 1;
        let mut inputs = Vec::new();
        let args: Option<Vec<_>> = call.args.iter().map(|arg| self.arg(*arg, &mut inputs)).collect();
        if let Some(args) = args {
            let kernel = Arc::clone(&call.kernel);
            let call = Call { kernel, prepared: None, args, outs: vec![CallOut::Tensor] };
            self.graph.node(Op::Call(call), inputs, vec![value]);
        }
        self.told -= 1;
    }

    fn write(&mut self, extent: Extent, value: ValueId, id: Id) {
        let covered =
            |e: &Extent| e.offset >= extent.offset && e.offset + e.len <= extent.offset + extent.len;
        for (e, ..) in self.current.iter().filter(|(e, ..)| e.overlaps(&extent) && !covered(e)) {
            self.ruined.push(*e);
        }
        self.current.retain(|(e, ..)| !e.overlaps(&extent));
        self.current.push((extent, value, id));
    }

    /// Makes what something outside can still see a result of the graph, and gives the ids of the results.
    pub(crate) fn outputs(&mut self, outside: &[Extent]) -> Box<[OutStep]> {
        let kept: Vec<Extent> =
            self.inputs.iter().map(|(e, ..)| *e).filter(|e| !self.facts.inputs().contains(e)).collect();
        let seen = self.facts.seen();
        let visible = |e: &Extent| outside.iter().chain(seen).chain(&kept).any(|other| other.overlaps(e));
        let mut outs = Vec::new();
        for (_, value, id) in self.current.iter().filter(|(e, ..)| visible(e)) {
            self.graph.output(*value);
            outs.push(OutStep::Tensor(*id));
        }
        outs.into()
    }

    /// The tensors that the graph reads.
    pub(crate) fn input_args(&self) -> Box<[ArgStep]> {
        self.inputs.iter().map(|(_, _, id)| ArgStep::Value(*id)).collect()
    }

    /// Whether every note was used.
    pub(crate) fn used_all_notes(&self) -> bool {
        matches!(&self.sizes, Sizes::Recorded(r) if r.notes.len() == self.noted)
    }

    /// What a run of the graph has to leave in the table besides its results, for whoever asks for one of
    /// `asked`: sizes of tensors, and views with what they are of.
    pub(crate) fn left_behind(&self, asked: &HashSet<Id>) -> LeftBehind {
        let mut asked = asked.clone();
        let mut views = Vec::new();
        for &(to, of) in self.views.iter().rev() {
            if asked.contains(&to)
                && let Some(sizes) = self.written_sizes.get(&to)
            {
                views.push((to, of, *sizes));
                asked.insert(of);
            }
        }
        views.reverse();
        let is_view = |id: &Id| self.views.iter().any(|(to, _)| to == id);
        let written = self.written_sizes.iter().filter(|(id, _)| asked.contains(id) && !is_view(id));
        let sizes = written.map(|(id, sizes)| (*id, *sizes)).collect();
        (sizes, views)
    }
}

/// Sizes of tensors; views, of what, and their sizes.
type LeftBehind = (Vec<(Id, Shape)>, Vec<(Id, Id, Shape)>);

/// A value as a number.
pub(crate) fn number_of(value: &Value) -> Option<Scalar> {
    match value {
        Value::Int(v) => Some(Scalar::Int(*v)),
        Value::Double(v) => Some(Scalar::Double(*v)),
        Value::Bool(v) => Some(Scalar::Bool(*v)),
        _ => None,
    }
}

/// Whether everything that a call writes is written anew: an out, or the target of a copy. A call
/// that changes what it finds cannot be part of a region, whose values have no past.
pub(crate) fn writes_only_its_outs(call: &KernelStep) -> bool {
    let schema = call.kernel.schema();
    let trailing = schema.args.iter().rev().take_while(|a| a.written).count();
    trailing == schema.written().count() || schema.name == "aten::copy_"
}
