//! Builds the graph of a region, call by call.

use crate::backend::DelegateEntry;
use crate::plan::{ArgRef, Id, Instr, KernelCall, OutRef, State, Storage};
use crate::prepare::operands::Operands;
use crate::prepare::raise::{DefId, DefUse, Position, writes_only_its_outs};
use pteron_engine::{Call, CallOut, Graph, OpKind, Reshape, ValueId};
use pteron_operator::{Budget, Results};
use pteron_tensor::{Scalar, Shape, ShapeDynamism, TensorMeta};
use pteron_trace::Place;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Minimum number of calls that make a region worth its entry and exit cost.
pub(super) const MIN_CALLS: usize = 2;

/// No call is added to a region whose [`Builder::calls`] has reached this number. Each run of a region compares the
/// extents of its inputs and outputs pairwise.
pub(super) const MAX_CALLS: usize = 4096;

/// Maximum number of inputs of a region, and of its definitions that are live-out.
pub(super) const MAX_INTERFACE: usize = 1024;

/// Where sizes and computed scalars come from.
pub(crate) enum Sizes<'m> {
    /// All sizes are static. A call with dynamic sizes cannot be added.
    Fixed,
    /// Sizes are the upper bounds of the plan and computed scalars are unknown. Used to find which calls can be added.
    Bounds,
    /// Sizes and scalars were recorded in an execution of the instructions.
    Recorded(&'m Recorded),
}

/// Sizes and scalars recorded in an execution of a region's instructions.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    /// The sizes that tensors had before the region ran, by id.
    pub(crate) sizes_before: HashMap<Id, Shape>,
    /// The values that scalars had before the region ran, by id.
    pub(crate) scalars_before: HashMap<Id, Scalar>,
    /// The results of all calls, in the order of the calls, and for each call in the order of its outs.
    pub(crate) results: Vec<Observed>,
    /// Whether any tensor was empty at its recorded sizes, but not at its upper bounds.
    pub(crate) has_empty_tensor: bool,
}

/// What was recorded of one result of a call: the sizes of a tensor, or the value of a scalar.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Observed {
    Sizes(Shape),
    Scalar(Scalar),
}

pub(crate) struct Builder<'m> {
    pub(super) state: &'m State,
    pub(super) delegates: &'m [DelegateEntry],
    pub(super) def_use: &'m DefUse,
    pub(super) sizes: Sizes<'m>,
    /// Maximum number of bytes that the nodes of one delegate may write.
    pub(crate) backend_bytes: usize,
    /// The position of the region's first instruction.
    start: Position,
    /// The position of the instruction that is being added.
    pub(super) at: Position,
    /// The number of recorded results used so far.
    pub(super) recorded_consumed: usize,
    pub(crate) graph: Graph,
    /// The place of the instruction that is being added, which the graph records for its nodes.
    pub(super) place: Place,
    /// The graph value of each definition in the region.
    defined: HashMap<DefId, ValueId>,
    /// The definitions in the region, in order, each with its graph value and the id of the value that it is written to.
    pub(super) definitions: Vec<(DefId, ValueId, Id)>,
    /// Graph values, with value ids, of tensors that are read with other sizes than they were written with.
    pub(super) reshaped: Vec<(ValueId, Id)>,
    /// The number of definitions that are live-out.
    live_out: usize,
    /// The inputs of the region. With [`Sizes::Bounds`] they include scalars, and tensors of which only the sizes are
    /// read.
    pub(crate) inputs: Vec<(ValueId, Id)>,
    /// The graph inputs, by the ids of the values that they read.
    input_of: HashMap<Id, ValueId>,
    /// The first graph input that reads each arena extent.
    input_at: HashMap<(usize, usize, usize), ValueId>,
    constants: HashMap<Id, ValueId>,
    /// The undo log: entries that were added to the maps above.
    pub(super) added: Vec<Added>,
    /// The operands of the call that is being added.
    pub(super) operands: Vec<ValueId>,
    /// Tensors that the region has written or made views.
    pub(super) written: HashMap<Id, Written>,
    /// The values of scalars that the region has computed, as far as they are known.
    pub(crate) known_scalars: HashMap<Id, Scalar>,
    /// The graph values of computed scalars. Used only with [`Sizes::Bounds`].
    pub(super) graph_scalars: HashMap<Id, ValueId>,
    /// Views that the region has made, as (view, viewed value).
    pub(super) views: Vec<(Id, Id)>,
    /// Whether any size or scalar in the region is dynamic.
    pub(crate) is_dynamic: bool,
    /// The number of kernel calls that compute elements plus, for each delegate, the number of its nodes, but at least
    /// [`MIN_CALLS`].
    pub(crate) calls: usize,
    /// Whether the region calls kernels, not only delegates. Output sizes of kernels are known only when they run.
    pub(crate) has_kernels: bool,
}

/// A tensor that the region has written or made a view.
pub(super) struct Written {
    pub(super) sizes: Shape,
    /// The tensor's graph value with these sizes; `None` for a view whose sizes were recorded.
    pub(super) value: Option<ValueId>,
}

/// An entry in the undo log of a builder.
pub(super) enum Added {
    Constant(Id),
    Input(Id),
    InputAt((usize, usize, usize)),
    Scalar(Id),
}

impl<'m> Builder<'m> {
    /// A builder for a region that starts at an instruction.
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
            recorded_consumed: 0,
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
            known_scalars: HashMap::new(),
            graph_scalars: HashMap::new(),
            views: Vec::new(),
            is_dynamic: false,
            calls: 0,
            has_kernels: false,
        }
    }

    /// Sets the number of bytes that the nodes of a delegate may write, and the memory budget for computed constants.
    pub(crate) fn with_limits(mut self, backend_bytes: usize, budget: &Budget) -> Self {
        self.backend_bytes = backend_bytes;
        self.graph.set_budget(budget.clone());
        self
    }

    /// Adds the call of an instruction of a chain, which becomes the origin of its nodes and values. If it cannot be part
    /// of the region, returns `false` and leaves the region unchanged.
    pub(super) fn add(&mut self, chain: usize, instruction: usize, instr: &Instr) -> bool {
        self.place = Place::instruction(chain as u32, instruction as u32);
        self.at = self.def_use.position(chain, instruction);
        let (mark, inputs, added) = (self.graph.mark(), self.inputs.len(), self.added.len());
        let (reshaped, was_dynamic) = (self.reshaped.len(), self.is_dynamic);
        let mut attempt = || match instr {
            Instr::Kernel(call) => self.add_call(call),
            Instr::Delegate(call) => self.add_delegate(call),
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
                Added::Scalar(id) => self.graph_scalars.remove(&id),
            };
        }
        false
    }

    fn add_call(&mut self, call: &KernelCall) -> Option<()> {
        if self.calls >= MAX_CALLS {
            return None;
        }
        self.has_kernels = true;
        match call.kernel.results() {
            Results::Shapes => self.add_shapes(call),
            Results::Elements | Results::Random => self.add_tensor_call(call),
            Results::DataDependentShape => None,
        }
    }

    /// Whether the instruction clobbers a definition of the region that is needed afterwards. The region writes each
    /// output as a whole at its end, so it cannot reproduce a partial overwrite.
    pub(super) fn clobbers_needed_definition(&self) -> bool {
        let needed =
            |def: &DefId| self.defined.contains_key(def) && self.def_use.is_needed_after(*def, self.at);
        self.def_use.clobbered_by(self.at).iter().any(needed)
    }

    /// The number of the instruction's live-out outs. `None` if the region would have too many, or if the outs overlap.
    pub(super) fn count_live_outs(&self, written: usize) -> Option<usize> {
        let defs = self.def_use.writes(self.at);
        let live_out = defs.iter().flatten().filter(|&&def| self.def_use.is_live_out(def)).count();
        let is_disjoint = written == defs.len() && (written < 2 || !self.def_use.overwrites_itself(self.at));
        (is_disjoint && self.live_out + live_out <= MAX_INTERFACE).then_some(live_out)
    }

    /// Records the definitions of the instruction.
    pub(super) fn define_outs(
        &mut self,
        written: Vec<(Id, TensorMeta)>,
        values: &[ValueId],
        live_out: usize,
    ) {
        self.live_out += live_out;
        for ((def, (id, meta)), &value) in self.def_use.writes(self.at).iter().zip(written).zip(values) {
            self.written.insert(id, Written { sizes: *meta.sizes(), value: Some(value) });
            if let Some(def) = *def {
                self.defined.insert(def, value);
                self.definitions.push((def, value, id));
            }
        }
    }

    /// Adds a call that computes tensors. Definitions are only recorded once nothing can fail any more.
    fn add_tensor_call(&mut self, call: &KernelCall) -> Option<()> {
        if !writes_only_its_outs(call) || self.clobbers_needed_definition() {
            return None;
        }
        self.operands.clear();
        let args = call.args.iter().map(|arg| self.call_arg(*arg)).collect::<Option<Vec<_>>>()?;
        let inputs = std::mem::take(&mut self.operands);
        let mut outs = Vec::new();
        let mut written: Vec<(Id, TensorMeta)> = Vec::new();
        for out in &call.outs {
            let ids: &[Id] = match out {
                OutRef::Tensor(id) => {
                    outs.push(CallOut::Tensor);
                    std::slice::from_ref(id)
                }
                OutRef::Tensors(ids) => {
                    outs.push(CallOut::Tensors(ids.len()));
                    ids
                }
                OutRef::Scalar(_) | OutRef::View { .. } => return None,
            };
            for &id in ids {
                written.push((id, self.recorded_out_meta(id)?));
            }
        }
        let live_out = self.count_live_outs(written.len())?;
        let call = Call::new(Arc::clone(&call.kernel), args, outs);
        self.graph.set_origin(self.place);
        let node = self.graph.append(call, &inputs, written.iter().map(|(_, m)| m.clone()));
        self.graph.set_origin(Place::default());
        let outputs = self.graph.node(node).outputs().to_vec();
        self.define_outs(written, &outputs, live_out);
        self.calls += 1;
        Some(())
    }

    /// The meta of a tensor that a call writes, with its recorded sizes if there are any.
    fn recorded_out_meta(&mut self, id: Id) -> Option<TensorMeta> {
        let mut meta = self.planned_out_meta(id)?;
        match self.next_recorded() {
            Some(Observed::Sizes(sizes)) => meta.reshape(&sizes).ok()?,
            Some(Observed::Scalar(_)) => return None,
            None => {}
        }
        Some(meta)
    }

    /// The meta of a tensor that an instruction writes, with the sizes of the plan. `None` if it has no fixed extent,
    /// or if its sizes are dynamic and must be static.
    pub(super) fn planned_out_meta(&mut self, id: Id) -> Option<TensorMeta> {
        let t = self.state.values[id].tensor()?;
        if self.def_use.is_rebound(id) || !matches!(t.home, Storage::Arena(_)) {
            return None;
        }
        let mut meta = t.meta.clone();
        self.note_dynamic_sizes(&meta)?;
        // The current sizes are those of the last execution.
        meta.reshape(&t.bound).ok()?;
        Some(meta.with_dynamism(ShapeDynamism::Static))
    }

    /// The graph value of a tensor that the instruction reads: a constant, a definition of the region, or an input.
    /// `None` if the region cannot read it, for example because its bytes are parts of several definitions.
    pub(super) fn read_tensor(&mut self, id: Id) -> Option<ValueId> {
        let t = self.state.values[id].tensor()?;
        if let Storage::Constant(index) = t.home
            && !self.def_use.is_rebound(id)
        {
            if let Some(&known) = self.constants.get(&id) {
                return Some(known);
            }
            let meta = t.meta.clone().with_dynamism(ShapeDynamism::Static);
            let value = self.graph.constant(meta, self.state.constants[index].to_graph_constant());
            self.constants.insert(id, value);
            self.added.push(Added::Constant(id));
            return Some(value);
        }
        let reach = self.def_use.reaching_def(self.at, id)?;
        let meta = self.current_meta(id)?;
        let value = match reach.def.and_then(|def| self.defined.get(&def)) {
            Some(&value) => value,
            // The read spans parts of what the region has written, so it is not a single value of the graph.
            None if reach.latest >= self.start => return None,
            None => match reach.root.filter(|_| self.written.contains_key(&id)) {
                // The region itself makes this view, so the input is the tensor that it views.
                Some(root) => {
                    let meta = self.current_meta(root)?;
                    self.graph_input(root, meta)?
                }
                None => self.graph_input(id, meta.clone())?,
            },
        };
        let written = self.graph.meta(value);
        if *written == meta {
            return Some(value);
        }
        // The same bytes with another shape: a view, elided or not.
        let plain = written.dim_order().is_contiguous() && meta.dim_order().is_contiguous();
        if written.dtype() != meta.dtype() || written.numel() != meta.numel() || !plain {
            return None;
        }
        let node = self.graph.append(OpKind::new(Reshape), &[value], [meta]);
        let reshaped = self.graph.node(node).outputs()[0];
        self.reshaped.push((reshaped, id));
        Some(reshaped)
    }

    /// The graph input for a tensor that the region reads from outside. `None` if the region would have too many inputs.
    pub(super) fn graph_input(&mut self, id: Id, meta: TensorMeta) -> Option<ValueId> {
        if let Some(&known) = self.input_of.get(&id) {
            return Some(known);
        }
        let home = match self.state.values[id].tensor()?.home {
            Storage::Arena(extent) if !self.def_use.is_rebound(id) => {
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
        if self.inputs.len() == MAX_INTERFACE {
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

    /// Makes the definitions that are read after the region outputs of the graph, and returns where they are written.
    /// `end` is the first instruction after the region.
    pub(crate) fn add_outputs(&mut self, end: Position) -> Box<[OutRef]> {
        let mut outs = Vec::new();
        for &(def, value, id) in &self.definitions {
            if self.def_use.is_needed_after(def, end - 1) {
                self.graph.output(value);
                outs.push(OutRef::Tensor(id));
            }
        }
        outs.into()
    }

    /// The values that the graph's inputs read, in order, as arguments.
    pub(crate) fn input_args(&self) -> Box<[ArgRef]> {
        self.inputs.iter().map(|(_, id)| ArgRef::Value(*id)).collect()
    }

    /// Whether every recorded result has been used.
    pub(crate) fn consumed_all_results(&self) -> bool {
        matches!(&self.sizes, Sizes::Recorded(r) if r.results.len() == self.recorded_consumed)
    }

    /// The updates that a run of the graph makes to the value table besides its outputs: sizes of tensors, and views.
    /// Limited to the values for which `is_observable` returns `true`, and to what those view.
    pub(crate) fn table_updates(&self, is_observable: impl Fn(Id) -> bool) -> TableUpdates {
        let mut viewed = HashSet::new();
        let mut views = Vec::new();
        for &(to, of) in self.views.iter().rev() {
            if (is_observable(to) || viewed.contains(&to))
                && let Some(written) = self.written.get(&to)
            {
                views.push((to, of, written.sizes));
                viewed.insert(of);
            }
        }
        views.reverse();
        let made_views: HashSet<Id> = self.views.iter().map(|(to, _)| *to).collect();
        let is_resized = |id: &Id| (is_observable(*id) || viewed.contains(id)) && !made_views.contains(id);
        let sizes = self.written.iter().filter(|(id, _)| is_resized(id));
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

    fn known_scalar(&mut self, id: Id) -> Option<Scalar> {
        self.fixed_scalar(id)
    }

    fn is_graph_scalar(&self, id: Id) -> bool {
        Builder::is_graph_scalar(self, id)
    }

    fn push_scalar(&mut self, id: Id) -> Option<()> {
        self.push_scalar_operand(id)
    }

    fn push_tensor(&mut self, id: Id) -> Option<()> {
        let value = self.read_tensor(id)?;
        self.operands.push(value);
        Some(())
    }
}

/// Updates to the table of values: sizes of tensors, and views as (view, viewed value, sizes).
type TableUpdates = (Vec<(Id, Shape)>, Vec<(Id, Id, Shape)>);
