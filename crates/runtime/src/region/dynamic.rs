//! Regions whose sizes change: lowered for the sizes that they meet.
//!
//! Everything that is not an element follows, within a region, from its *key*: the sizes of what it reads
//! and the numbers computed from sizes before it, which are inputs of its graph ([`Builder::keys`]). For a key that it has not met, a region runs as it is
//! written, and notes the sizes and numbers that its calls give; it is lowered for those, and kept. A
//! handful of keys are kept. When they are taken, another one displaces the key that has not been used for
//! the longest time, but only if it comes again and that one has rested for a while: a program that is called
//! with other sizes each time runs as it is written, with its weights packed.
//!
//! A lowered region in which something does not come out as it was noted gives nothing, and the region runs
//! as it is written: results reach the method's memory only after all calls have succeeded.

use super::builder::{Builder, Note, Recorded, Sizes};
use super::{Lowered, Run, builder, calls};
use crate::call::State;
use crate::method::Method;
use crate::raise::{DefUse, number_of};
use crate::step::{Chain, DelegateEntry, KernelStep, OutStep, Step};
use crate::value::{Id, TensorValue, Value};
use graph::{Executable, Graph, Packs};
use operator::KernelContext;
use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use tensor::{Scalar, Shape};
use trace::Place;

/// Keys for which a region is kept lowered.
const KEPT: usize = 4;

/// Executions that a key must rest before another one displaces it.
const REST: u64 = 16;

/// Keys remembered that came when there was no room.
const REMEMBERED: usize = 16;

/// Lowered runs that may fail before the region is run as it is written for good.
const FAILURES: u32 = 4;

pub(crate) struct DynamicRegion {
    /// The graph for the upper bounds of all sizes, before any pass, if it is kept.
    pub(crate) graph: Option<Box<Graph>>,
    def_use: Arc<DefUse>,
    chain: usize,
    range: Range<usize>,
    /// Tensors whose sizes, and numbers, make the key.
    keys: Box<[Id]>,
    /// Whether the instructions have to run to see what comes of a key: the sizes that kernels give.
    has_kernels: bool,
    backend_bytes: usize,
    plans: Vec<Plan>,
    /// Hashes of keys that found no room.
    remembered: VecDeque<u64>,
    /// Executions so far.
    clock: u64,
    /// The key of this execution.
    key: Vec<u64>,
    /// What this execution shows, if that is noted.
    recorded: Recorded,
    failures: u32,
}

/// What of a method is needed to lower a region of it.
pub(crate) struct Surroundings<'a> {
    pub(crate) state: &'a State,
    pub(crate) chains: &'a [Chain],
    pub(crate) delegates: &'a [DelegateEntry],
    pub(crate) ctx: &'a KernelContext<'a>,
    pub(crate) packs: &'a mut Packs,
}

/// The region for one key.
struct Plan {
    key: Box<[u64]>,
    /// Nothing, if it cannot be lowered for this key.
    lowered: Option<Lowered>,
    used: u64,
}

/// How a region is run this time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// This plan.
    Lowered(usize),
    /// As it is written, noting what comes out.
    Record,
    /// As it is written.
    AsWritten,
}

impl DynamicRegion {
    /// A region of a run's calls. `None` if it is not worth it.
    pub(crate) fn new(method: &Method, def_use: &Arc<DefUse>, run: &Run) -> Option<Self> {
        let mut builder = builder(method, def_use, run.positions(def_use).start, Sizes::Bounds);
        for (i, call) in calls(&method.chains[run.chain].steps, run.range.clone()) {
            if !builder.add(call, def_use.position(run.chain, i)) {
                return None;
            }
        }
        builder.mark_bounds();
        builder.outputs(run.positions(def_use).end);
        let keys = builder.keys();
        Some(Self {
            graph: method.keep_graphs.then_some(Box::new(builder.graph)),
            def_use: Arc::clone(def_use),
            chain: run.chain,
            range: run.range.clone(),
            keys,
            has_kernels: builder.has_kernels,
            backend_bytes: builder.backend_bytes,
            plans: Vec::new(),
            remembered: VecDeque::new(),
            clock: 0,
            key: Vec::new(),
            recorded: Recorded::default(),
            failures: 0,
        })
    }

    /// The same region for another instance of the method, with what was lowered so far.
    pub(crate) fn fork(&self) -> crate::Result<Self> {
        let plan = |plan: &Plan| {
            let lowered = plan.lowered.as_ref().map(Lowered::fork).transpose()?;
            Ok(Plan { key: plan.key.clone(), lowered, used: plan.used })
        };
        Ok(Self {
            graph: self.graph.clone(),
            def_use: Arc::clone(&self.def_use),
            chain: self.chain,
            range: self.range.clone(),
            keys: self.keys.clone(),
            has_kernels: self.has_kernels,
            backend_bytes: self.backend_bytes,
            plans: self.plans.iter().map(plan).collect::<crate::Result<_>>()?,
            remembered: self.remembered.clone(),
            clock: self.clock,
            key: Vec::new(),
            recorded: Recorded::default(),
            failures: self.failures,
        })
    }

    /// Looks at the sizes and numbers that are there now, and says how to run.
    pub(crate) fn choose(&mut self, state: &State) -> Choice {
        self.clock += 1;
        if self.failures >= FAILURES || !self.read_key(state) {
            return Choice::AsWritten;
        }
        if let Some(i) = self.plans.iter().position(|p| *p.key == *self.key) {
            self.plans[i].used = self.clock;
            return if self.plans[i].lowered.is_some() { Choice::Lowered(i) } else { Choice::AsWritten };
        }
        if self.plans.len() >= KEPT && !(self.came_before() && self.oldest().is_some()) {
            return Choice::AsWritten;
        }
        let keys = self.keys.iter();
        self.recorded = Recorded {
            sizes_before: keys.clone().filter_map(|&id| Some((id, sizes(state, id)?))).collect(),
            numbers_before: keys.filter_map(|&id| Some((id, number_of(&state.values[id])?))).collect(),
            notes: Vec::new(),
            is_empty: false,
        };
        Choice::Record
    }

    /// Gathers the key. `false` for one that is not worth a plan: nothing is computed of empty tensors.
    fn read_key(&mut self, state: &State) -> bool {
        self.key.clear();
        for &id in &self.keys {
            match (&state.values[id], number_of(&state.values[id])) {
                (Value::Tensor(tensor), _) if is_emptied(tensor) => return false,
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

    /// Whether the key was here lately and found no room; from now on, it was.
    fn came_before(&mut self) -> bool {
        let hash =
            self.key.iter().fold(0u64, |h, &k| (h.rotate_left(5) ^ k).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        if self.remembered.contains(&hash) {
            return true;
        }
        if self.remembered.len() == REMEMBERED {
            self.remembered.pop_front();
        }
        self.remembered.push_back(hash);
        false
    }

    /// The plan that has rested the longest, and long enough.
    fn oldest(&self) -> Option<usize> {
        let (i, plan) = self.plans.iter().enumerate().min_by_key(|(_, p)| p.used)?;
        (self.clock - plan.used > REST).then_some(i)
    }

    /// The plan that was chosen.
    pub(crate) fn plan(&mut self, index: usize) -> Option<&mut Lowered> {
        self.plans.get_mut(index)?.lowered.as_mut()
    }

    /// A plan's run has failed where the instructions have not: its sizes are not the key's alone.
    pub(crate) fn give_up(&mut self, index: usize) {
        self.failures += 1;
        if let Some(plan) = self.plans.get_mut(index) {
            plan.lowered = None;
        }
    }

    /// Notes what a call has given.
    pub(crate) fn note(&mut self, state: &State, call: &KernelStep) {
        for out in &call.outs {
            let ids: &[Id] = match out {
                OutStep::Tensor(id) | OutStep::View { to: id, .. } => std::slice::from_ref(id),
                OutStep::Tensors(ids) => ids,
                OutStep::Scalar(id) => {
                    let number = number_of(&state.values[*id]).unwrap_or(Scalar::Int(0));
                    self.recorded.notes.push(Note::Number(number));
                    &[]
                }
            };
            self.recorded.is_empty |= ids.iter().any(|&id| state.values[id].tensor().is_some_and(is_emptied));
            let sizes = ids.iter().map(|&id| Note::Sizes(sizes(state, id).unwrap_or(Shape::SCALAR)));
            self.recorded.notes.extend(sizes);
        }
    }

    /// Whether a key can be lowered for without running the instructions: all that is not an element is said by the
    /// graphs of delegates.
    pub(crate) fn follows_from_graphs(&self) -> bool {
        !self.has_kernels
    }

    /// Lowers the region for what was noted. `first` is the call in whose place the region stands. Gives the plan, if
    /// it can be lowered.
    pub(crate) fn lower(&mut self, first: &Step, method: Surroundings<'_>) -> Option<usize> {
        let recorded = std::mem::take(&mut self.recorded);
        let lowered = self.lowered(&recorded, first, method);
        let plan = Plan { key: self.key.as_slice().into(), lowered, used: self.clock };
        let is_lowered = plan.lowered.is_some();
        let at = if self.plans.len() < KEPT {
            self.plans.push(plan);
            self.plans.len() - 1
        } else {
            let oldest = self.oldest()?;
            self.plans[oldest] = plan;
            oldest
        };
        is_lowered.then_some(at)
    }

    fn lowered(&self, recorded: &Recorded, first: &Step, method: Surroundings<'_>) -> Option<Lowered> {
        let Surroundings { state, chains, delegates, ctx, packs } = method;
        if recorded.is_empty {
            return None;
        }
        let def_use = &*self.def_use;
        let position = |instruction| def_use.position(self.chain, instruction);
        let positions = position(self.range.start)..position(self.range.end);
        let sizes = Sizes::Recorded(recorded);
        let builder = Builder::new(state, delegates, def_use, positions.start, sizes);
        let mut builder = builder.within(self.backend_bytes, packs.budget());
        let rest = calls(&chains[self.chain].steps, self.range.start + 1..self.range.end);
        for (i, call) in std::iter::once((self.range.start, first)).chain(rest) {
            builder.place = Place::instruction(self.chain as u32, i as u32);
            if !builder.add(call, position(i)) {
                return None;
            }
        }
        if !builder.used_all_notes() {
            return None;
        }
        let outs = builder.outputs(positions.end);
        let args = builder.input_args();
        // What the next execution depends on is asked for, too.
        let keys: HashSet<Id> = self.keys.iter().copied().collect();
        let (sizes, views) =
            builder.left_behind(|id| keys.contains(&id) || def_use.is_mentioned_outside(id, &positions));
        let numbers = builder.numbers.iter().map(|(&id, &number)| (id, number)).collect();
        delegates.iter().for_each(DelegateEntry::forget_graph);
        let executable = Executable::with_packs(builder.graph, ctx, packs).ok()?;
        Some(Lowered { graph: None, executable, args, outs, sizes, numbers, views })
    }
}

/// Whether a tensor is empty that may hold something.
fn is_emptied(tensor: &TensorValue) -> bool {
    tensor.meta.numel() == 0 && !tensor.bound.contains(&0)
}

fn sizes(state: &State, id: Id) -> Option<Shape> {
    Some(*state.values[id].tensor()?.meta.sizes())
}
