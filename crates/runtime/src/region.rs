//! Regions: runs of kernel calls that are lowered together through the graph crate.
//!
//! A plan gives values places in memory, not names to data: a view that was elided is another value
//! at the same place without any instruction, and a place is used again once its tensor is dead. So a
//! region follows places. What was last written to a place is what a read of that place finds; a read
//! of a place that the region has not written is an input; and what must be there when the region
//! ends is every write that something outside can still see: another instruction, an output, a named
//! tensor, or the next execution. Where places overlap in any other way, the region ends.

use crate::method::Method;
use crate::step::{ArgStep, KernelStep, OutStep, RegionStep, Step};
use crate::value::{Id, Storage, Value};
use graph::{Call, CallArg, CallOut, Constant, Executable, Graph, Op, ValueId};
use operator::KernelContext;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tensor::{Extent, Scalar, ShapeDynamism, TensorMeta};
use trace::Place;

/// Calls below which a region is not worth its entry and exit.
const SHORTEST: usize = 2;

/// Lowers the regions of a method.
pub(crate) fn lower(method: &mut Method) {
    let facts = Facts::of(method);
    for c in 0..method.chains.len() {
        let mut next = 0;
        while next < method.chains[c].steps.len() {
            next = match region(method, &facts, c, next) {
                Some((step, executable)) => {
                    let after = step.next;
                    method.regions.push(executable);
                    let slot = &mut method.chains[c].steps[next];
                    if let Step::Kernel(first) = std::mem::replace(slot, Step::Region(step))
                        && let Step::Region(region) = slot
                    {
                        region.first = Some(Box::new(first));
                    }
                    after
                }
                None => next + 1,
            };
        }
    }
}

/// What the whole method says about its values.
struct Facts {
    /// Values that instructions move, free or make views: their places change at run time.
    moving: HashSet<Id>,
    /// Numbers and lists that some instruction computes.
    computed: HashSet<Id>,
    /// Instructions at which a jump can arrive, by chain.
    targets: Vec<HashSet<usize>>,
    /// Places that are read from outside the instructions: outputs and named tensors.
    seen: Vec<Extent>,
    /// Places of inputs, which are written before each execution.
    inputs: Vec<Extent>,
}

impl Facts {
    fn of(method: &Method) -> Self {
        let mut facts = Facts {
            moving: HashSet::new(),
            computed: method.inputs.iter().copied().collect(),
            targets: Vec::new(),
            seen: Vec::new(),
            inputs: method.inputs.iter().filter_map(|&id| home(method, id)).collect(),
        };
        for chain in &method.chains {
            let mut targets = HashSet::new();
            for step in &chain.steps {
                match step {
                    Step::JumpFalse { target, .. } => {
                        targets.insert(*target);
                    }
                    Step::Move { to, .. } => {
                        facts.moving.insert(*to);
                        facts.computed.insert(*to);
                    }
                    Step::Free(id) => {
                        facts.moving.insert(*id);
                    }
                    Step::Kernel(k) => k.outs.iter().for_each(|out| facts.note_out(out)),
                    Step::Delegate(d) => d.outs.iter().for_each(|out| facts.note_out(out)),
                    Step::Region(_) => {}
                }
            }
            facts.targets.push(targets);
        }
        facts.seen = method
            .outputs
            .iter()
            .flat_map(|&id| tensors_of(method, id))
            .chain(
                (0..method.state.values.len())
                    .filter(|&id| method.state.values[id].tensor().is_some_and(|t| t.name.is_some())),
            )
            .filter_map(|id| home(method, id))
            .collect();
        facts
    }

    fn note_out(&mut self, out: &OutStep) {
        match out {
            OutStep::Scalar(id) => {
                self.computed.insert(*id);
            }
            OutStep::View { to, .. } => {
                self.moving.insert(*to);
            }
            OutStep::Tensor(_) | OutStep::Tensors(_) => {}
        }
    }
}

fn home(method: &Method, id: Id) -> Option<Extent> {
    match method.state.values[id].tensor()?.home {
        Storage::Arena(extent) => Some(extent),
        _ => None,
    }
}

/// The tensors that a value is or lists.
fn tensors_of(method: &Method, id: Id) -> Vec<Id> {
    match &method.state.values[id] {
        Value::Tensor(_) => vec![id],
        Value::Tensors(ids) => ids.to_vec(),
        Value::OptionalTensors(ids) => ids.iter().flatten().copied().collect(),
        _ => Vec::new(),
    }
}

/// Lowers the longest region that starts at an instruction, if there is one worth it.
fn region(method: &Method, facts: &Facts, chain: usize, start: usize) -> Option<(RegionStep, Executable)> {
    let steps = &method.chains[chain].steps;
    let mut builder = Builder::new(method, facts);
    let mut next = start;
    while let Some(Step::Kernel(call)) = steps.get(next) {
        builder.place = Place::instruction(chain as u32, next as u32);
        if (next > start && facts.targets[chain].contains(&next)) || !builder.add(call) {
            break;
        }
        next += 1;
    }
    if next - start < SHORTEST {
        return None;
    }
    let outside = places_read_outside(method, chain, start..next);
    builder.finish(outside, next)
}

/// The places of all tensors that instructions outside a range read.
fn places_read_outside(method: &Method, chain: usize, range: std::ops::Range<usize>) -> Vec<Extent> {
    let mut ids = HashSet::new();
    for (c, chain_steps) in method.chains.iter().enumerate() {
        for (i, step) in chain_steps.steps.iter().enumerate() {
            if c == chain && range.contains(&i) {
                continue;
            }
            let args: &[ArgStep] = match step {
                Step::Kernel(k) => &k.args,
                Step::Delegate(d) => &d.args,
                Step::Region(r) => &r.args,
                Step::Move { from, .. } => {
                    ids.insert(*from);
                    &[]
                }
                Step::JumpFalse { condition, .. } => {
                    ids.insert(*condition);
                    &[]
                }
                Step::Free(_) => &[],
            };
            ids.extend(args.iter().filter_map(|a| if let ArgStep::Value(id) = a { Some(*id) } else { None }));
            // What is written in place is read too.
            if let Step::Kernel(k) = step {
                for out in &k.outs {
                    if let OutStep::Tensor(id) | OutStep::View { of: id, .. } = out {
                        ids.insert(*id);
                    }
                }
            }
        }
    }
    ids.into_iter().flat_map(|id| tensors_of(method, id)).filter_map(|id| home(method, id)).collect()
}

/// A graph that grows call by call.
struct Builder<'m> {
    method: &'m Method,
    facts: &'m Facts,
    graph: Graph,
    /// The instruction that is being added.
    place: Place,
    /// What the places hold that the region has written: place, value, and the table's id for it.
    current: Vec<(Extent, ValueId, Id)>,
    /// Places that the region has written and of which no whole tensor is left.
    ruined: Vec<Extent>,
    /// Tensors that the region reads from outside.
    inputs: Vec<(Extent, ValueId, Id)>,
    constants: HashMap<Id, ValueId>,
}

impl<'m> Builder<'m> {
    fn new(method: &'m Method, facts: &'m Facts) -> Self {
        Self {
            method,
            facts,
            graph: Graph::new(),
            place: Place::default(),
            current: Vec::new(),
            ruined: Vec::new(),
            inputs: Vec::new(),
            constants: HashMap::new(),
        }
    }

    /// Adds a call. `false` if it cannot be part of the region, which is as it was then.
    fn add(&mut self, call: &KernelStep) -> bool {
        let (mark, inputs) = (self.graph.mark(), self.inputs.len());
        if self.try_add(call).is_some() {
            return true;
        }
        self.graph.rollback(&mark);
        self.inputs.truncate(inputs);
        self.constants.retain(|_, v| v.index() < self.graph.num_values());
        false
    }

    /// Adds a call. Places are only written once nothing can fail any more.
    fn try_add(&mut self, call: &KernelStep) -> Option<()> {
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
                let (extent, meta) = self.place(id)?;
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
        for ((id, extent, _), value) in written.into_iter().zip(outputs) {
            self.write(extent, value, id);
        }
        Some(())
    }

    /// Where the plan puts a tensor of fixed place and shape, and what it is.
    fn place(&self, id: Id) -> Option<(Extent, TensorMeta)> {
        let t = self.method.state.values[id].tensor()?;
        let fixed = t.meta.dynamism() == ShapeDynamism::Static && !self.facts.moving.contains(&id);
        match t.home {
            Storage::Arena(extent) if fixed => Some((extent, t.meta.clone())),
            _ => None,
        }
    }

    fn arg(&mut self, arg: ArgStep, inputs: &mut Vec<ValueId>) -> Option<CallArg> {
        let id = match arg {
            ArgStep::Out(i) => return Some(CallArg::Out(i)),
            ArgStep::Value(id) => id,
        };
        let value = &self.method.state.values[id];
        if !matches!(value, Value::Tensor(_)) && self.facts.computed.contains(&id) {
            return None;
        }
        Some(match value {
            Value::None => CallArg::None,
            Value::Int(v) => CallArg::Scalar(Scalar::Int(*v)),
            Value::Double(v) => CallArg::Scalar(Scalar::Double(*v)),
            Value::Bool(v) => CallArg::Scalar(Scalar::Bool(*v)),
            Value::Str(s) => CallArg::Str(Arc::clone(s)),
            Value::Doubles(v) => CallArg::Doubles(Arc::clone(v)),
            Value::Bools(v) => CallArg::Bools(Arc::clone(v)),
            Value::Ints(ids) => {
                let fixed = |id: &Id| match &self.method.state.values[*id] {
                    Value::Int(v) if !self.facts.computed.contains(id) => Some(*v),
                    _ => None,
                };
                CallArg::Ints(ids.iter().map(fixed).collect::<Option<_>>()?)
            }
            Value::Tensor(_) => {
                inputs.push(self.read(id)?);
                CallArg::Tensor
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
        let t = self.method.state.values[id].tensor()?;
        if let Storage::Constant(index) = t.home
            && !self.facts.moving.contains(&id)
        {
            let bytes = Constant::Shared(Arc::new(self.method.state.constants[index].clone()));
            let graph = &mut self.graph;
            return Some(*self.constants.entry(id).or_insert_with(|| graph.constant(t.meta.clone(), bytes)));
        }
        let (extent, meta) = self.place(id)?;
        let mut met = self.current.iter().filter(|(e, ..)| e.overlaps(&extent));
        let found = match (met.next(), met.next()) {
            (None, _) if self.ruined.iter().any(|e| e.overlaps(&extent)) => return None,
            (None, _) => {
                let same = |(e, v, _): &&(Extent, ValueId, Id)| *e == extent && *self.graph.meta(*v) == meta;
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
        // The same bytes under another shape: a view that has no instruction.
        let plain = written.dim_order().is_contiguous() && meta.dim_order().is_contiguous();
        if written.dtype() != meta.dtype() || written.numel() != meta.numel() || !plain {
            return None;
        }
        let view = self.graph.value(meta);
        self.graph.node(Op::Reshape, vec![found], vec![view]);
        Some(view)
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

    /// Lowers what was gathered.
    fn finish(mut self, outside: Vec<Extent>, next: usize) -> Option<(RegionStep, Executable)> {
        let kept: Vec<Extent> =
            self.inputs.iter().map(|(e, ..)| *e).filter(|e| !self.facts.inputs.contains(e)).collect();
        let visible =
            |e: &Extent| outside.iter().chain(&self.facts.seen).chain(&kept).any(|other| other.overlaps(e));
        let mut outs = Vec::new();
        for (_, value, id) in self.current.iter().filter(|(e, ..)| visible(e)) {
            self.graph.output(*value);
            outs.push(OutStep::Tensor(*id));
        }
        let method = self.method;
        let ctx = KernelContext::new(&method.pool, &method.scratch, &method.generator).with_isa(method.isa);
        let executable = Executable::new(self.graph, &ctx).ok()?;
        let args = self.inputs.iter().map(|(_, _, id)| ArgStep::Value(*id)).collect();
        let region = method.regions.len();
        Some((RegionStep { region, first: None, args, outs: outs.into(), next }, executable))
    }
}

/// Whether everything that a call writes is written anew: an out, or the target of a copy. A call
/// that changes what it finds cannot be part of a region, whose values have no past.
pub(crate) fn writes_only_its_outs(call: &KernelStep) -> bool {
    let schema = call.kernel.schema();
    let trailing = schema.args.iter().rev().take_while(|a| a.written).count();
    trailing == schema.written().count() || schema.name == "aten::copy_"
}
