//! Regions with dynamic sizes: specialized for the sizes that they get at run time.
//!
//! All sizes and scalars within a region follow from its *key*: the sizes of its inputs and the scalars computed from
//! sizes before it, which are inputs of its graph ([`Builder::key_inputs`]). For a new key, a region runs its instructions
//! one by one and records the sizes and scalars that the calls return; it is then lowered for those, and the
//! specialization is cached. When the cache is full, a new key replaces the least recently used one, but only if the
//! new key comes again while it is remembered, and the old key has been idle for some executions: a program that is
//! called with other sizes each time runs its instructions one by one, with its weights packed.
//!
//! # Why this way
//!
//! *Keys are sizes and scalars at the region's entry.* No call is part of a region whose result sizes depend on elements
//! ([`Results::DataDependentShape`](pteron_operator::Results::DataDependentShape)), and every computed scalar that a
//! region reads depends only on sizes ([`DefUse::depends_only_on_shapes`]). So all sizes within the region are functions of the
//! key, and equal keys have equal specializations. To compare a few words for each input costs less than one call.
//!
//! *Sizes are recorded, not inferred.* Kernels have no shape functions: they resize their outs when they run. So the
//! first execution with a key runs the instructions as they are written, which costs what it would cost without
//! regions, and yields every size. Delegates' graphs are made for given sizes; a region of nothing else is lowered at once
//! ([`DynamicRegion::is_determined_by_graphs`]).
//!
//! If a specialized run fails, for example because a size differs from the recorded one, it has no effect and the
//! region runs its instructions one by one: results are written to the method's memory only after all calls have
//! succeeded.

use super::builder::{Builder, Observed, Recorded, Sizes};
use super::lowered::Lowered;
use super::run::{Run, calls};
use crate::backend::DelegateEntry;
use crate::plan::{Chain, Id, Instr, KernelCall, OutRef, State, TensorValue, Value};
use crate::prepare::raise::{DefUse, scalar_of};
use pteron_engine::{Executable, Graph, Packs};
use pteron_operator::KernelContext;
use pteron_tensor::{Scalar, Shape};
use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Maximum number of cached specializations of a region.
const MAX_SPECIALIZATIONS: usize = 4;

/// Number of executions that must pass without using a specialization before it can be replaced.
const MIN_IDLE: u64 = 16;

/// Maximum number of keys that are remembered because they occurred while the cache was full.
const MAX_REMEMBERED: usize = 16;

/// After this many specialized runs that failed although the instructions succeeded, only the instructions are run.
const MAX_FAILURES: u32 = 4;

pub(crate) struct DynamicRegion {
    /// The graph with upper bounds as sizes, before any pass; `None` unless graphs are kept.
    pub(crate) graph: Option<Box<Graph>>,
    def_use: Arc<DefUse>,
    chain: usize,
    range: Range<usize>,
    /// The tensors whose sizes make up the key, and the scalars whose values do.
    keys: Box<[Id]>,
    /// Whether the region calls kernels, not only delegates. Output sizes of kernels are known only when they run.
    has_kernels: bool,
    backend_bytes: usize,
    specializations: Vec<Specialization>,
    /// Hashes of recent keys that occurred while the cache was full.
    remembered: VecDeque<u64>,
    /// The number of executions of the region so far.
    clock: u64,
    /// The key of the current execution: sizes of tensors, and values of scalars.
    key: Vec<u64>,
    /// Sizes and scalars of the current execution, if they are being recorded.
    recorded: Recorded,
    failures: u32,
}

/// The parts of a method that are needed to lower one of its regions.
pub(crate) struct LoweringContext<'a> {
    pub(crate) state: &'a State,
    pub(crate) chains: &'a [Chain],
    pub(crate) delegates: &'a [DelegateEntry],
    pub(crate) ctx: &'a KernelContext<'a>,
    pub(crate) packs: &'a mut Packs,
}

/// The region lowered for one key.
struct Specialization {
    key: Box<[u64]>,
    /// The lowered region. `None` if the region cannot be lowered for this key, or if a run of it has failed.
    lowered: Option<Lowered>,
    /// The number of the execution that last used the specialization.
    used: u64,
}

/// How to run a region in one execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunMode {
    /// Run the specialization with this index.
    Lowered(usize),
    /// Run the instructions one by one, and record the sizes and scalars that they compute.
    Record,
    /// Run the instructions one by one.
    Interpret,
}

impl DynamicRegion {
    /// A dynamic region for a run of a chain's `instrs`. `builder` must be empty, with `Sizes::Bounds`. `None` if one
    /// of its calls cannot be added to the graph.
    pub(super) fn new(
        mut builder: Builder<'_>,
        def_use: &Arc<DefUse>,
        run: &Run,
        instrs: &[Instr],
        keep_graph: bool,
    ) -> Option<Self> {
        if !calls(instrs, run.range.clone()).all(|(i, call)| builder.add(run.chain, i, call)) {
            return None;
        }
        builder.mark_bounds();
        builder.add_outputs(run.positions(def_use).end);
        let keys = builder.key_inputs();
        Some(Self {
            graph: keep_graph.then_some(Box::new(builder.graph)),
            def_use: Arc::clone(def_use),
            chain: run.chain,
            range: run.range.clone(),
            keys,
            has_kernels: builder.has_kernels,
            backend_bytes: builder.backend_bytes,
            specializations: Vec::new(),
            remembered: VecDeque::new(),
            clock: 0,
            key: Vec::new(),
            recorded: Recorded::default(),
            failures: 0,
        })
    }

    /// The same region for another instance of the method, with forks of its specializations.
    pub(crate) fn fork(&self) -> crate::Result<Self> {
        let fork = |old: &Specialization| {
            let lowered = old.lowered.as_ref().map(Lowered::fork).transpose()?;
            Ok(Specialization { key: old.key.clone(), lowered, used: old.used })
        };
        Ok(Self {
            graph: self.graph.clone(),
            def_use: Arc::clone(&self.def_use),
            chain: self.chain,
            range: self.range.clone(),
            keys: self.keys.clone(),
            has_kernels: self.has_kernels,
            backend_bytes: self.backend_bytes,
            specializations: self.specializations.iter().map(fork).collect::<crate::Result<_>>()?,
            remembered: self.remembered.clone(),
            clock: self.clock,
            key: Vec::new(),
            recorded: Recorded::default(),
            failures: self.failures,
        })
    }

    /// Reads the current key and decides how to run the region.
    pub(crate) fn choose_mode(&mut self, state: &State) -> RunMode {
        self.clock += 1;
        if self.failures >= MAX_FAILURES || !self.read_key(state) {
            return RunMode::Interpret;
        }
        if let Some(i) = self.specializations.iter().position(|p| *p.key == *self.key) {
            self.specializations[i].used = self.clock;
            return if self.specializations[i].lowered.is_some() {
                RunMode::Lowered(i)
            } else {
                RunMode::Interpret
            };
        }
        if self.specializations.len() >= MAX_SPECIALIZATIONS
            && !(self.remember_key() && self.replaceable_specialization().is_some())
        {
            return RunMode::Interpret;
        }
        let keys = self.keys.iter();
        self.recorded = Recorded {
            sizes_before: keys.clone().filter_map(|&id| Some((id, current_sizes(state, id)?))).collect(),
            scalars_before: keys.filter_map(|&id| Some((id, scalar_of(&state.values[id])?))).collect(),
            results: Vec::new(),
            has_empty_tensor: false,
        };
        RunMode::Record
    }

    /// Reads the current key. Returns `false` if a tensor is empty, so that a specialization is not worthwhile, or if a
    /// scalar has no value.
    fn read_key(&mut self, state: &State) -> bool {
        self.key.clear();
        for &id in &self.keys {
            match (&state.values[id], scalar_of(&state.values[id])) {
                (Value::Tensor(tensor), _) if is_empty_below_bounds(tensor) => return false,
                (Value::Tensor(tensor), _) => {
                    self.key.extend(tensor.meta.sizes().iter().map(|&n| n as u64));
                }
                (_, Some(Scalar::Int(v))) => self.key.extend([0, v as u64]),
                (_, Some(Scalar::Double(v))) => self.key.extend([1, v.to_bits()]),
                (_, Some(Scalar::Bool(v))) => self.key.extend([2, u64::from(v)]),
                (_, None) => return false,
            }
        }
        true
    }

    /// Remembers the current key, which occurs while the cache is full. Returns whether it was remembered already.
    fn remember_key(&mut self) -> bool {
        let hash =
            self.key.iter().fold(0u64, |h, &k| (h.rotate_left(5) ^ k).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        if self.remembered.contains(&hash) {
            return true;
        }
        if self.remembered.len() == MAX_REMEMBERED {
            self.remembered.pop_front();
        }
        self.remembered.push_back(hash);
        false
    }

    /// The least recently used specialization, if it has been idle long enough to be replaced.
    fn replaceable_specialization(&self) -> Option<usize> {
        let (i, oldest) = self.specializations.iter().enumerate().min_by_key(|(_, p)| p.used)?;
        (self.clock - oldest.used > MIN_IDLE).then_some(i)
    }

    /// The lowered region of the specialization with this index, if lowering succeeded.
    pub(crate) fn specialization(&mut self, index: usize) -> Option<&mut Lowered> {
        self.specializations.get_mut(index)?.lowered.as_mut()
    }

    /// Invalidates a specialization whose run has failed although the instructions succeeded: its sizes do not follow
    /// from the key alone.
    pub(crate) fn invalidate(&mut self, index: usize) {
        self.failures += 1;
        if let Some(failed) = self.specializations.get_mut(index) {
            failed.lowered = None;
        }
    }

    /// Records the sizes and scalars that a call has returned.
    pub(crate) fn record(&mut self, state: &State, call: &KernelCall) {
        for out in &call.outs {
            let ids: &[Id] = match out {
                OutRef::Tensor(id) | OutRef::View { to: id, .. } => std::slice::from_ref(id),
                OutRef::Tensors(ids) => ids,
                OutRef::Scalar(id) => {
                    let scalar = scalar_of(&state.values[*id]).unwrap_or(Scalar::Int(0));
                    self.recorded.results.push(Observed::Scalar(scalar));
                    &[]
                }
            };
            self.recorded.has_empty_tensor |=
                ids.iter().any(|&id| state.values[id].tensor().is_some_and(is_empty_below_bounds));
            let sizes =
                ids.iter().map(|&id| Observed::Sizes(current_sizes(state, id).unwrap_or(Shape::SCALAR)));
            self.recorded.results.extend(sizes);
        }
    }

    /// Whether the region can be lowered for a new key without running its instructions, because the graphs of
    /// delegates determine all sizes.
    pub(crate) fn is_determined_by_graphs(&self) -> bool {
        !self.has_kernels
    }

    /// Lowers the region for the recorded sizes and scalars, and caches the result. `first` is the call that the region
    /// replaces. Returns the index of the specialization if lowering succeeded.
    pub(crate) fn lower(&mut self, first: &Instr, method: LoweringContext<'_>) -> Option<usize> {
        let recorded = std::mem::take(&mut self.recorded);
        let lowered = self.lower_recorded(&recorded, first, method);
        let new = Specialization { key: self.key.as_slice().into(), lowered, used: self.clock };
        let is_lowered = new.lowered.is_some();
        let at = if self.specializations.len() < MAX_SPECIALIZATIONS {
            self.specializations.push(new);
            self.specializations.len() - 1
        } else {
            let oldest = self.replaceable_specialization()?;
            self.specializations[oldest] = new;
            oldest
        };
        is_lowered.then_some(at)
    }

    fn lower_recorded(
        &self,
        recorded: &Recorded,
        first: &Instr,
        method: LoweringContext<'_>,
    ) -> Option<Lowered> {
        let LoweringContext { state, chains, delegates, ctx, packs } = method;
        if recorded.has_empty_tensor {
            return None;
        }
        let def_use = &*self.def_use;
        let position = |instruction| def_use.position(self.chain, instruction);
        let positions = position(self.range.start)..position(self.range.end);
        let sizes = Sizes::Recorded(recorded);
        let builder = Builder::new(state, delegates, def_use, positions.start, sizes);
        let mut builder = builder.with_limits(self.backend_bytes, packs.budget());
        let rest = calls(&chains[self.chain].instrs, self.range.start + 1..self.range.end);
        for (i, call) in std::iter::once((self.range.start, first)).chain(rest) {
            if !builder.add(self.chain, i, call) {
                return None;
            }
        }
        if !builder.consumed_all_results() {
            return None;
        }
        let outs = builder.add_outputs(positions.end);
        let args = builder.input_args();
        // The next execution reads the key, so those values are updated, too.
        let keys: HashSet<Id> = self.keys.iter().copied().collect();
        let (sizes, views) =
            builder.table_updates(|id| keys.contains(&id) || def_use.is_mentioned_outside(id, &positions));
        let scalars = builder.known_scalars.iter().map(|(&id, &scalar)| (id, scalar)).collect();
        delegates.iter().for_each(DelegateEntry::forget_graph);
        let executable = Executable::with_packs(builder.graph, ctx, packs).ok()?;
        Some(Lowered { graph: None, executable, args, outs, sizes, scalars, views })
    }
}

/// Whether the tensor is empty at its current sizes, but not at its upper bounds.
fn is_empty_below_bounds(tensor: &TensorValue) -> bool {
    tensor.meta.numel() == 0 && !tensor.bound.contains(&0)
}

fn current_sizes(state: &State, id: Id) -> Option<Shape> {
    Some(*state.values[id].tensor()?.meta.sizes())
}
