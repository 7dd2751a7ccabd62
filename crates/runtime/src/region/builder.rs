//! A graph that grows call by call from the instructions of a region.

use crate::call::State;
use crate::operands::Operands;
use crate::raise::{DefId, DefUse, Position, writes_only_its_outs};
use crate::step::{ArgStep, DelegateEntry, KernelStep, OutStep, Step};
use crate::value::{Id, Storage};
use graph::{Call, CallOut, Fused, Graph, Reshape, ValueId};
use operator::{Budget, Results};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tensor::{Scalar, Shape, ShapeDynamism, TensorMeta};
use trace::Place;

/// Calls of a region, at most: what a region reads and writes is compared with each other when it runs.
pub(super) const MOST_CALLS: usize = 4096;

/// Tensors that a region reads, and tensors that outlive the execution that it writes, at most.
pub(super) const MOST_ENDS: usize = 1024;

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
    pub(super) state: &'m State,
    pub(super) delegates: &'m [DelegateEntry],
    pub(super) def_use: &'m DefUse,
    pub(super) sizes: Sizes<'m>,
    /// Bytes that the nodes of a delegate may write.
    pub(crate) backend_bytes: usize,
    /// The region's first instruction, and the one that is being added.
    start: Position,
    pub(super) at: Position,
    /// How many notes were used.
    pub(super) noted: usize,
    pub(crate) graph: Graph,
    /// The instruction that is being added.
    pub(crate) place: Place,
    /// What the region has defined: the value, and the table's id for it.
    defined: HashMap<DefId, ValueId>,
    pub(super) definitions: Vec<(DefId, ValueId, Id)>,
    /// Tensors under other sizes than they were written with.
    pub(super) reshaped: Vec<(ValueId, Id)>,
    /// How many of them outlive the execution.
    live_out: usize,
    /// Tensors that the region reads from outside; where sizes are bounded, numbers, too, and tensors of which it
    /// looks at the sizes alone.
    pub(crate) inputs: Vec<(ValueId, Id)>,
    /// Inputs by id, and the first one of each place.
    input_of: HashMap<Id, ValueId>,
    input_at: HashMap<(usize, usize, usize), ValueId>,
    constants: HashMap<Id, ValueId>,
    /// What was added to the maps, to take away again.
    pub(super) added: Vec<Added>,
    /// Values that the call that is being added reads.
    pub(super) operands: Vec<ValueId>,
    /// Sizes of tensors that the region has written or viewed.
    pub(super) written: HashMap<Id, Written>,
    /// Numbers that the region has computed, as far as they are known.
    pub(crate) numbers: HashMap<Id, Scalar>,
    /// Computed numbers as values of the graph, where sizes are bounded.
    pub(super) scalars: HashMap<Id, ValueId>,
    /// Views that the region has made, and of what.
    pub(super) views: Vec<(Id, Id)>,
    /// Whether anything in it is not fixed.
    pub(crate) is_dynamic: bool,
    /// Calls that compute elements, and nodes of delegates.
    pub(crate) calls: usize,
    /// Whether kernels are called, whose results' sizes are seen when they run.
    pub(crate) has_kernels: bool,
}

/// What the region has written, or viewed.
pub(super) struct Written {
    pub(super) sizes: Shape,
    /// The value of the graph with these sizes; none of a view whose sizes are known.
    pub(super) value: Option<ValueId>,
}

/// An entry of one of a builder's maps.
pub(super) enum Added {
    Constant(Id),
    Input(Id),
    InputAt((usize, usize, usize)),
    Number(Id),
}

impl<'m> Builder<'m> {
    /// A region that begins at an instruction.
    pub(crate) fn new(
        state: &'m State,
        delegates: &'m [DelegateEntry],
        def_use: &'m DefUse,
        start: Position,
        sizes: Sizes<'m>,
    ) -> Self {
        Self {
            state,
            delegates,
            def_use,
            sizes,
            backend_bytes: usize::MAX,
            start,
            at: start,
            noted: 0,
            graph: Graph::new(),
            place: Place::default(),
            defined: HashMap::new(),
            definitions: Vec::new(),
            reshaped: Vec::new(),
            live_out: 0,
            inputs: Vec::new(),
            input_of: HashMap::new(),
            input_at: HashMap::new(),
            constants: HashMap::new(),
            added: Vec::new(),
            operands: Vec::new(),
            written: HashMap::new(),
            numbers: HashMap::new(),
            scalars: HashMap::new(),
            views: Vec::new(),
            is_dynamic: false,
            calls: 0,
            has_kernels: false,
        }
    }

    /// The same, with what the nodes of a delegate may write, and what computed constants are taken from.
    pub(crate) fn within(mut self, backend_bytes: usize, budget: &Budget) -> Self {
        self.backend_bytes = backend_bytes;
        self.graph.set_budget(budget.clone());
        self
    }

    /// Adds the call of an instruction of a chain, which its nodes and values belong to; as [`Self::add`].
    pub(super) fn add_at(&mut self, chain: usize, instruction: usize, step: &Step) -> bool {
        self.place = Place::instruction(chain as u32, instruction as u32);
        self.add(step, self.def_use.position(chain, instruction))
    }

    /// Adds the call of an instruction. `false` if it cannot be part of the region, which is as it was then.
    pub(crate) fn add(&mut self, step: &Step, at: Position) -> bool {
        let (mark, inputs, added) = (self.graph.mark(), self.inputs.len(), self.added.len());
        let (reshaped, was_dynamic) = (self.reshaped.len(), self.is_dynamic);
        self.at = at;
        let mut attempt = || match step {
            Step::Kernel(call) => self.add_call(call),
            Step::Delegate(call) => self.add_delegate(call),
            _ => None,
        };
        if attempt().is_some() {
            return true;
        }
        self.graph.rollback(&mark);
        self.inputs.truncate(inputs);
        self.reshaped.truncate(reshaped);
        self.is_dynamic = was_dynamic;
        for added in self.added.drain(added..) {
            _ = match added {
                Added::Constant(id) => self.constants.remove(&id),
                Added::Input(id) => self.input_of.remove(&id),
                Added::InputAt(place) => self.input_at.remove(&place),
                Added::Number(id) => self.scalars.remove(&id),
            };
        }
        false
    }

    fn add_call(&mut self, call: &KernelStep) -> Option<()> {
        if self.calls >= MOST_CALLS {
            return None;
        }
        self.has_kernels = true;
        match call.kernel.results() {
            Results::Shapes => self.add_shapes(call),
            Results::Elements | Results::Random => self.add_elements(call),
            Results::DataDependentShape => None,
        }
    }

    /// Whether the instruction overwrites a part of what the region has written, of which the rest is needed: what
    /// is torn here is written whole at the end of the region.
    pub(super) fn tears_what_is_needed(&self) -> bool {
        let needed =
            |def: &DefId| self.defined.contains_key(def) && self.def_use.is_needed_after(*def, self.at);
        self.def_use.torn_by(self.at).iter().any(needed)
    }

    /// Counts the outs of the instruction that outlive the execution. `None` if there are too many, or if they overlap.
    pub(super) fn room_for_outs(&self, written: usize) -> Option<usize> {
        let defs = self.def_use.writes(self.at);
        let live_out = defs.iter().flatten().filter(|&&def| self.def_use.is_live_out(def)).count();
        let is_apart = written == defs.len() && (written < 2 || !self.def_use.overwrites_itself(self.at));
        (is_apart && self.live_out + live_out <= MOST_ENDS).then_some(live_out)
    }

    /// Notes what the instruction has defined.
    pub(super) fn define(&mut self, written: Vec<(Id, TensorMeta)>, values: &[ValueId], live_out: usize) {
        self.live_out += live_out;
        for ((def, (id, meta)), &value) in self.def_use.writes(self.at).iter().zip(written).zip(values) {
            self.written.insert(id, Written { sizes: *meta.sizes(), value: Some(value) });
            if let Some(def) = *def {
                self.defined.insert(def, value);
                self.definitions.push((def, value, id));
            }
        }
    }

    /// Adds a call that computes tensors. Places are only written once nothing can fail any more.
    fn add_elements(&mut self, call: &KernelStep) -> Option<()> {
        if !writes_only_its_outs(call) || self.tears_what_is_needed() {
            return None;
        }
        self.operands.clear();
        let args = call.args.iter().map(|arg| self.arg(*arg)).collect::<Option<Vec<_>>>()?;
        let inputs = std::mem::take(&mut self.operands);
        let mut outs = Vec::new();
        let mut written: Vec<(Id, TensorMeta)> = Vec::new();
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
                written.push((id, self.out(id)?));
            }
        }
        let live_out = self.room_for_outs(written.len())?;
        let call = Call::new(Arc::clone(&call.kernel), args, outs);
        self.graph.set_origin(self.place);
        let node = self.graph.append(call, &inputs, written.iter().map(|(_, m)| m.clone()));
        self.graph.set_origin(Place::default());
        let outputs = self.graph.node(node).outputs().to_vec();
        self.define(written, &outputs, live_out);
        self.calls += 1;
        Some(())
    }

    /// What a call gives to a tensor.
    fn out(&mut self, id: Id) -> Option<TensorMeta> {
        let mut meta = self.place_of_out(id)?;
        match self.note() {
            Some(Note::Sizes(sizes)) => meta.reshape(&sizes).ok()?,
            Some(Note::Number(_)) => return None,
            None => {}
        }
        Some(meta)
    }

    /// The tensor that an instruction writes, with the sizes that it has in the plan. `None` if it has no place of its
    /// own, or if they may change and must not.
    pub(super) fn place_of_out(&mut self, id: Id) -> Option<TensorMeta> {
        let t = self.state.values[id].tensor()?;
        if self.def_use.is_moving(id) || !matches!(t.home, Storage::Arena(_)) {
            return None;
        }
        let mut meta = t.meta.clone();
        self.depends_on_sizes(&meta)?;
        // What was there last says nothing of what comes.
        meta.reshape(&t.bound).ok()?;
        Some(meta.with_dynamism(ShapeDynamism::Static))
    }

    /// The value that a read of a tensor finds.
    pub(super) fn read(&mut self, id: Id) -> Option<ValueId> {
        let t = self.state.values[id].tensor()?;
        if let Storage::Constant(index) = t.home
            && !self.def_use.is_moving(id)
        {
            if let Some(&known) = self.constants.get(&id) {
                return Some(known);
            }
            let meta = t.meta.clone().with_dynamism(ShapeDynamism::Static);
            let value = self.graph.constant(meta, self.state.constants[index].to_graph());
            self.constants.insert(id, value);
            self.added.push(Added::Constant(id));
            return Some(value);
        }
        let reach = self.def_use.read(self.at, id)?;
        let meta = self.meta(id)?;
        let found = match reach.def.and_then(|def| self.defined.get(&def)) {
            Some(&value) => value,
            // Pieces of what the region has written are no value of the graph.
            None if reach.latest >= self.start => return None,
            None => match reach.root.filter(|_| self.written.contains_key(&id)) {
                // A view that the region itself makes is not there when it begins.
                Some(root) => {
                    let meta = self.meta(root)?;
                    self.input(root, meta)?
                }
                None => self.input(id, meta.clone())?,
            },
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
        let node = self.graph.append(Fused::new(Reshape), &[found], [meta]);
        let reshaped = self.graph.node(node).outputs()[0];
        self.reshaped.push((reshaped, id));
        Some(reshaped)
    }

    /// The input that is a tensor as the region finds it.
    pub(super) fn input(&mut self, id: Id, meta: TensorMeta) -> Option<ValueId> {
        if let Some(&known) = self.input_of.get(&id) {
            return Some(known);
        }
        let home = match self.state.values[id].tensor()?.home {
            Storage::Arena(extent) if !self.def_use.is_moving(id) => {
                Some((extent.arena, extent.offset, extent.len))
            }
            _ => None,
        };
        if matches!(self.sizes, Sizes::Fixed)
            && let Some(&same) = home.and_then(|home| self.input_at.get(&home))
            && *self.graph.meta(same) == meta
        {
            return Some(same);
        }
        if self.inputs.len() == MOST_ENDS {
            return None;
        }
        let value = self.graph.input(meta);
        self.inputs.push((value, id));
        self.input_of.insert(id, value);
        self.added.push(Added::Input(id));
        if let Some(home) = home.filter(|home| !self.input_at.contains_key(home)) {
            self.input_at.insert(home, value);
            self.added.push(Added::InputAt(home));
        }
        Some(value)
    }

    /// Makes what something behind the region can read a result of the graph, and gives the ids of the results.
    /// `end` is the instruction behind the region.
    pub(crate) fn outputs(&mut self, end: Position) -> Box<[OutStep]> {
        let mut outs = Vec::new();
        for &(def, value, id) in &self.definitions {
            if self.def_use.is_needed_after(def, end - 1) {
                self.graph.output(value);
                outs.push(OutStep::Tensor(id));
            }
        }
        outs.into()
    }

    /// The tensors that the graph reads.
    pub(crate) fn input_args(&self) -> Box<[ArgStep]> {
        self.inputs.iter().map(|(_, id)| ArgStep::Value(*id)).collect()
    }

    /// Whether every note was used.
    pub(crate) fn used_all_notes(&self) -> bool {
        matches!(&self.sizes, Sizes::Recorded(r) if r.notes.len() == self.noted)
    }

    /// What a run of the graph has to leave in the table besides its results, for whoever asks for a value:
    /// sizes of tensors, and views with what they are of.
    pub(crate) fn left_behind(&self, is_asked: impl Fn(Id) -> bool) -> LeftBehind {
        let mut viewed = HashSet::new();
        let mut views = Vec::new();
        for &(to, of) in self.views.iter().rev() {
            if (is_asked(to) || viewed.contains(&to))
                && let Some(written) = self.written.get(&to)
            {
                views.push((to, of, written.sizes));
                viewed.insert(of);
            }
        }
        views.reverse();
        let made: HashSet<Id> = self.views.iter().map(|(to, _)| *to).collect();
        let is_left = |id: &Id| (is_asked(*id) || viewed.contains(id)) && !made.contains(id);
        let sizes = self.written.iter().filter(|(id, _)| is_left(id));
        (sizes.map(|(id, written)| (*id, written.sizes)).collect(), views)
    }
}

impl Operands for Builder<'_> {
    fn state(&self) -> &State {
        self.state
    }

    fn is_computed(&self, id: Id) -> bool {
        self.def_use.is_computed(id)
    }

    fn number(&mut self, id: Id) -> Option<Scalar> {
        self.fixed_number(id)
    }

    fn is_scalar(&self, id: Id) -> bool {
        Builder::is_scalar(self, id)
    }

    fn scalar(&mut self, id: Id) -> Option<()> {
        self.scalar_operand(id)
    }

    fn tensor(&mut self, id: Id) -> Option<()> {
        let value = self.read(id)?;
        self.operands.push(value);
        Some(())
    }
}

/// Sizes of tensors; views, of what, and their sizes.
type LeftBehind = (Vec<(Id, Shape)>, Vec<(Id, Id, Shape)>);
