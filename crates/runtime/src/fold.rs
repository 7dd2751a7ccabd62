//! Constant folding: calls of constants alone are computed when a method is loaded, such as the transpose
//! that exporters put before each product with weights. What reads their results reads constants then, and
//! can prepare itself for them.
//!
//! A plan gives a result a place that other tensors use before and after. A call is folded if every read of
//! its result stands between it and the next write to that place, and nothing else reads the place there.

use crate::FreeableBuffer;
use crate::method::Method;
use crate::prepare::{FixedValues, known};
use crate::region::{Facts, Region, tensors_of, writes_only_its_outs};
use crate::step::{ArgStep, KernelStep, OutStep, Step};
use crate::value::{Id, Storage, Value};
use operator::{Arg, Args, KernelContext, Out, Outs, Results};
use smallvec::{SmallVec, smallvec};
use std::collections::HashMap;
use std::ops::Range;
use tensor::{AlignedBuffer, Extent, TensorMeta, TensorViewMut};

/// How many times larger a result may be than what it is computed of: an int8 weight that holds four bits
/// grows four times when it becomes f32.
const GROWTH: usize = 8;

/// Bytes of a result that is small whatever it is computed of.
const SMALL: usize = 4096;

/// Bytes of results that are folded whatever the constants of the method take.
const BASE_BUDGET: usize = 256 << 20;

/// Pieces that may be left of a result whose place is used again bit by bit.
const PIECES: usize = 64;

/// Instructions looked at for all results together.
const PATIENCE: usize = 50_000_000;

/// Folds what can be folded of a method that is one straight line. `fixed` learns what became constant.
pub(crate) fn fold(method: &mut Method, facts: &Facts, fixed: &mut FixedValues) {
    if !facts.is_straight() {
        return;
    }
    let uses = Uses::of(method, facts);
    let constants: usize = method.state.constants.iter().map(|c| c.len()).sum();
    let mut budget = constants.saturating_mul(GROWTH).saturating_add(BASE_BUDGET);
    let mut patience = PATIENCE;
    for (i, behind) in uses.accesses.iter().enumerate().map(|(i, a)| (i, a.in_region)) {
        if behind {
            continue;
        }
        let Step::Kernel(call) = &method.chains[0].steps[i] else { continue };
        if !uses.only_they_see(method, facts, call, i, &mut patience) {
            continue;
        }
        let Some(results) = compute(method, call, fixed, budget) else { continue };
        budget -= results.iter().map(|(_, _, bytes)| bytes.len()).sum::<usize>();
        for (id, meta, bytes) in results {
            method.state.constants.push(FreeableBuffer::read(bytes));
            let storage = Storage::Constant(method.state.constants.len() - 1);
            if let Some(t) = method.state.values[id].tensor_mut() {
                (t.meta, t.storage, t.home) = (meta, storage, storage);
            }
            fixed.insert(id);
        }
        let slot = &mut method.chains[0].steps[i];
        if let Step::Kernel(call) = std::mem::replace(slot, Step::Free(0)) {
            *slot = Step::Folded(call);
        }
    }
}

/// What instructions read and write.
struct Uses {
    accesses: Vec<Access>,
    /// How many instructions read and write each value.
    reads: HashMap<Id, usize>,
    writes: HashMap<Id, usize>,
    /// Values that outputs and moves take as they are.
    taken: Vec<Id>,
}

#[derive(Default)]
struct Access {
    reads: SmallVec<[(Id, Option<Extent>); 4]>,
    writes: SmallVec<[Extent; 2]>,
    /// Whether a region stands for the instruction.
    in_region: bool,
}

impl Uses {
    fn of(method: &Method, facts: &Facts) -> Self {
        let state = &method.state;
        let taken = method.outputs.iter().flat_map(|&id| tensors_of(state, id)).collect();
        let mut uses = Self { accesses: Vec::new(), reads: HashMap::new(), writes: HashMap::new(), taken };
        let mut covered = 0;
        for (i, step) in method.chains[0].steps.iter().enumerate() {
            let mut access = Access { in_region: i < covered, ..Access::default() };
            let (args, outs): (&[ArgStep], &[OutStep]) = match step {
                _ if access.in_region => (&[], &[]),
                Step::Kernel(k) | Step::Folded(k) => (&k.args, &k.outs),
                Step::Delegate(d) => (&d.args, &d.outs),
                Step::Region(r) => {
                    covered = r.next;
                    match &method.regions[r.region] {
                        Region::Fixed(l) => (&l.args, &l.outs),
                        Region::Dynamic(_) => (&[], &[]),
                    }
                }
                Step::Move { from, .. } => {
                    uses.taken.push(*from);
                    (&[], &[])
                }
                Step::JumpFalse { .. } | Step::Free(_) => (&[], &[]),
            };
            let mut read = |uses: &mut Self, id: Id| {
                for id in tensors_of(state, id) {
                    access.reads.push((id, facts.home(state, id)));
                    *uses.reads.entry(id).or_default() += 1;
                }
            };
            for arg in args {
                if let ArgStep::Value(id) = arg {
                    read(&mut uses, *id);
                }
            }
            for out in outs {
                let ids: &[Id] = match out {
                    OutStep::Tensor(id) => std::slice::from_ref(id),
                    OutStep::Tensors(ids) => ids,
                    // A view shares the bytes, wherever it goes.
                    OutStep::View { of, .. } => {
                        uses.taken.push(*of);
                        &[]
                    }
                    OutStep::Scalar(_) => &[],
                };
                for &id in ids {
                    access.writes.extend(facts.home(state, id));
                    *uses.writes.entry(id).or_default() += 1;
                }
                // A call that changes what it finds reads it.
                if let Step::Kernel(k) = step
                    && !writes_only_its_outs(k)
                {
                    ids.iter().for_each(|&id| read(&mut uses, id));
                }
            }
            uses.accesses.push(access);
        }
        uses
    }

    /// Whether the results of a call are read where nothing has written over them, and nothing but their
    /// readers can tell whether they were written at all.
    fn only_they_see(
        &self,
        method: &Method,
        facts: &Facts,
        call: &KernelStep,
        at: usize,
        patience: &mut usize,
    ) -> bool {
        if call.kernel.results() != Results::Elements || !writes_only_its_outs(call) {
            return false;
        }
        call.outs.iter().all(|out| match out {
            OutStep::Tensor(id) => self.only_its_readers_see(method, facts, *id, at, patience),
            _ => false,
        })
    }

    fn only_its_readers_see(
        &self,
        method: &Method,
        facts: &Facts,
        id: Id,
        at: usize,
        patience: &mut usize,
    ) -> bool {
        let Some(t) = method.state.values[id].tensor() else { return false };
        let Storage::Arena(place) = t.home else { return false };
        let own = place.len > 0
            && !facts.is_moving(id)
            && t.name.is_none()
            && self.writes.get(&id) == Some(&1)
            && !self.taken.contains(&id)
            && !method.inputs.contains(&id);
        if !own {
            return false;
        }
        // What is left of the result at its place, byte ranges.
        let mut left: SmallVec<[Range<usize>; 4]> = smallvec![place.offset..place.offset + place.len];
        let is_left = |left: &[Range<usize>], e: &Extent| {
            e.arena == place.arena && left.iter().any(|r| r.start < e.offset + e.len && e.offset < r.end)
        };
        let (mut reads, mut written) = (0, false);
        let after = self.accesses[at + 1..].iter();
        for (n, access) in after.chain(&self.accesses[..=at]).enumerate() {
            *patience = patience.saturating_sub(1);
            if *patience == 0 || left.len() > PIECES {
                return false;
            }
            let this_execution = at + 1 + n < self.accesses.len();
            if at + 1 + n == self.accesses.len() {
                facts.inputs().iter().for_each(|e| overwrite(&mut left, place.arena, e));
                if facts.seen().iter().any(|e| is_left(&left, e)) {
                    return false;
                }
            }
            for (read, extent) in &access.reads {
                if *read == id {
                    reads += usize::from(!written && this_execution);
                } else if extent.is_some_and(|e| is_left(&left, &e)) {
                    return false;
                }
            }
            written = written || access.writes.iter().any(|e| e.overlaps(&place));
            access.writes.iter().for_each(|e| overwrite(&mut left, place.arena, e));
            if left.is_empty() {
                break;
            }
        }
        reads == self.reads.get(&id).copied().unwrap_or(0)
    }
}

/// Takes away what a write to an extent overwrites.
fn overwrite(left: &mut SmallVec<[Range<usize>; 4]>, arena: usize, e: &Extent) {
    let (start, end) = (e.offset, e.offset + e.len);
    if e.arena != arena || !left.iter().any(|r| r.start < end && start < r.end) {
        return;
    }
    let pieces = left.iter().flat_map(|r| [r.start..r.end.min(start), r.start.max(end)..r.end]);
    *left = pieces.filter(|r| r.start < r.end).collect();
}

/// The results of a call all of whose arguments are known, if they are not too large.
fn compute(
    method: &Method,
    call: &KernelStep,
    fixed: &FixedValues,
    budget: usize,
) -> Option<Vec<(Id, TensorMeta, AlignedBuffer)>> {
    let mut read = 0usize;
    let mut list: SmallVec<[Arg<'_>; 12]> = smallvec![];
    for arg in &call.args {
        list.push(match *arg {
            ArgStep::Out(i) => Arg::Out(i),
            ArgStep::Value(id) => match known(id, &method.state, fixed) {
                Arg::Spec(_) | Arg::Unknown => return None,
                arg => arg,
            },
        });
    }
    for arg in &list {
        read += match arg {
            Arg::Tensor(t) => t.nbytes(),
            Arg::Tensors(all) => all.iter().map(|t| t.nbytes()).sum(),
            Arg::OptionalTensors(all) => all.iter().flatten().map(|t| t.nbytes()).sum(),
            _ => 0,
        };
    }
    let mut results = Vec::new();
    for out in &call.outs {
        let OutStep::Tensor(id) = out else { return None };
        let Value::Tensor(t) = &method.state.values[*id] else { return None };
        results.push((*id, t.meta.clone(), AlignedBuffer::default()));
    }
    let bytes = results.iter().try_fold(0usize, |sum, (_, meta, _)| sum.checked_add(meta.nbytes()))?;
    if bytes > budget || bytes > SMALL.max(read.saturating_mul(GROWTH)) {
        return None;
    }
    for (_, meta, buffer) in &mut results {
        *buffer = AlignedBuffer::zeroed(meta.nbytes()).ok()?;
    }
    {
        let views =
            results.iter_mut().map(|(_, meta, buffer)| TensorViewMut::new(meta, buffer).map(Out::Tensor));
        let mut outs = Outs::new(views.collect::<Result<_, _>>().ok()?);
        let ctx = KernelContext::new(&method.pool, &method.scratch, &method.generator).with_isa(method.isa);
        // A call that fails here fails again when it runs, and says then what is wrong.
        call.kernel.execute(&ctx, &Args::new(call.kernel.schema(), list), &mut outs).ok()?;
    }
    Some(results)
}
