//! Regions: runs of kernel calls that are lowered together through the graph crate.
//!
//! A plan gives values places in memory, not names to data: a view that was elided is another value
//! at the same place without any instruction, and a place is used again once its tensor is dead. So a
//! region follows places. What was last written to a place is what a read of that place finds; a read
//! of a place that the region has not written is an input; and what must be there when the region
//! ends is every write that something outside can still see: another instruction, an output, a named
//! tensor, or the next execution. Where places overlap in any other way, the region ends.
//!
//! A region whose sizes are fixed is lowered when the method is loaded. One whose sizes change is lowered
//! for the sizes that it meets: see [`dynamic`]. A place's capacity is the bytes of the upper bound, and
//! so are the overlaps that count.

mod builder;
mod dynamic;
mod facts;

pub(crate) use builder::writes_only_its_outs;
pub(crate) use dynamic::{Choice, DynamicRegion};
pub(crate) use facts::{Facts, tensors_of};

use crate::call::State;
use crate::method::Method;
use crate::step::{ArgStep, Chain, KernelStep, OutStep, RegionStep, Step};
use crate::value::Id;
use builder::{Builder, Sizes};
use graph::Executable;
use operator::KernelContext;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use tensor::{Extent, Scalar, Shape};
use trace::Place;

/// Calls below which a region is not worth its entry and exit.
const SHORTEST: usize = 2;

/// Calls of fixed sizes at the start of a dynamic run that are a region of their own.
const FIXED_START: usize = 8;

/// A region of a method.
pub(crate) enum Region {
    Fixed(Box<Lowered>),
    Dynamic(Box<DynamicRegion>),
}

/// A region, lowered: what runs, on which values, and what it leaves in the table besides.
pub(crate) struct Lowered {
    pub(crate) executable: Executable,
    pub(crate) args: Box<[ArgStep]>,
    pub(crate) outs: Box<[OutStep]>,
    pub(crate) sizes: Vec<(Id, Shape)>,
    pub(crate) numbers: Vec<(Id, Scalar)>,
    /// Views, of what, and their sizes, in the order in which they are made.
    pub(crate) views: Vec<(Id, Id, Shape)>,
}

/// Lowers the regions of a method whose sizes are fixed.
pub(crate) fn lower_fixed(method: &mut Method, facts: &Facts) {
    each_run(method, facts, |method, run| {
        if run.is_dynamic { None } else { Some(Region::Fixed(fixed(method, facts, run)?)) }
    });
}

/// Makes dynamic regions of the other runs.
pub(crate) fn find_dynamic(method: &mut Method, facts: &Arc<Facts>) {
    each_run(method, facts, |method, run| {
        if !run.is_dynamic {
            return Some(Region::Fixed(fixed(method, facts, run)?));
        }
        let outside = Outside::of(method, facts, run);
        Some(Region::Dynamic(Box::new(DynamicRegion::new(method, facts, run, outside)?)))
    });
}

/// Calls that can be lowered together.
pub(crate) struct Run {
    pub(crate) chain: usize,
    pub(crate) range: Range<usize>,
    is_dynamic: bool,
}

/// Puts regions in the places of runs. Where there is none, the next run starts behind the run's first
/// call, or, if it is dynamic, behind the run.
fn each_run(method: &mut Method, facts: &Facts, region: impl Fn(&Method, &Run) -> Option<Region>) {
    for chain in 0..method.chains.len() {
        let mut next = 0;
        while next < method.chains[chain].steps.len() {
            if let Step::Region(region) = &method.chains[chain].steps[next] {
                next = region.next;
                continue;
            }
            let Some(run) = longest(method, facts, chain, next) else {
                next += 1;
                continue;
            };
            next = match region(method, &run) {
                Some(region) => {
                    method.regions.push(region);
                    let step =
                        RegionStep { region: method.regions.len() - 1, first: None, next: run.range.end };
                    let slot = &mut method.chains[chain].steps[next];
                    let first = std::mem::replace(slot, Step::Region(step));
                    if let (Step::Kernel(first), Step::Region(region)) = (first, slot) {
                        region.first = Some(Box::new(first));
                    }
                    run.range.end
                }
                None if run.is_dynamic => run.range.end,
                None => next + 1,
            };
        }
    }
}

/// The longest run that starts at an instruction, if there is one worth it.
fn longest(method: &Method, facts: &Facts, chain: usize, start: usize) -> Option<Run> {
    let steps = &method.chains[chain].steps;
    if !matches!(steps.get(start), Some(Step::Kernel(_))) {
        return None;
    }
    let grow = |sizes| {
        let mut builder = Builder::new(&method.state, facts, sizes);
        let mut end = start;
        let more = |end: usize| end == start || !facts.is_target(chain, end);
        while let Some(step) = steps.get(end).filter(|_| more(end)) {
            match step {
                Step::Kernel(call) if builder.add(call) => {}
                Step::Folded(_) => {}
                _ => break,
            }
            end += 1;
        }
        // Folded calls at the end are nobody's.
        while end > start && matches!(steps[end - 1], Step::Folded(_)) {
            end -= 1;
        }
        (builder, end)
    };
    let (builder, end) = grow(Sizes::Bounds);
    if builder.is_dynamic {
        let (fixed, end) = grow(Sizes::Fixed);
        if fixed.calls >= FIXED_START && !fixed.inputs.is_empty() {
            return Some(Run { chain, range: start..end, is_dynamic: false });
        }
    }
    (builder.calls >= SHORTEST).then_some(Run { chain, range: start..end, is_dynamic: builder.is_dynamic })
}

/// The calls of a range of a chain, those of regions and those that were computed when loaded left out.
fn calls(steps: &[Step], range: Range<usize>) -> impl Iterator<Item = (usize, &KernelStep)> {
    range.filter_map(|i| match &steps[i] {
        Step::Kernel(call) => Some((i, call)),
        Step::Region(RegionStep { first: Some(call), .. }) => Some((i, &**call)),
        _ => None,
    })
}

/// Lowers a run of fixed sizes.
fn fixed(method: &Method, facts: &Facts, run: &Run) -> Option<Box<Lowered>> {
    let steps = &method.chains[run.chain].steps;
    let mut builder = Builder::new(&method.state, facts, Sizes::Fixed).with_folded(steps);
    for (i, call) in calls(steps, run.range.clone()) {
        builder.place = Place::instruction(run.chain as u32, i as u32);
        if !builder.add(call) {
            return None;
        }
    }
    let outs = builder.outputs(&Outside::of(method, facts, run).places);
    let args = builder.input_args();
    let ctx = KernelContext::new(&method.pool, &method.scratch, &method.generator).with_isa(method.isa);
    let executable = Executable::new(builder.graph, &ctx).ok()?;
    let lowered =
        Lowered { executable, args, outs, sizes: Vec::new(), numbers: Vec::new(), views: Vec::new() };
    Some(Box::new(lowered))
}

/// What instructions outside a run refer to.
pub(crate) struct Outside {
    /// The places of all tensors that they read.
    places: Vec<Extent>,
    /// All values, and those that the values list.
    values: HashSet<Id>,
}

impl Outside {
    fn of(method: &Method, facts: &Facts, run: &Run) -> Self {
        let mut ids = HashSet::new();
        for (c, Chain { steps }) in method.chains.iter().enumerate() {
            for (i, step) in steps.iter().enumerate() {
                if c == run.chain && run.range.contains(&i) {
                    continue;
                }
                let (args, outs): (&[ArgStep], &[OutStep]) = match step {
                    Step::Kernel(k) => (&k.args, &k.outs),
                    Step::Delegate(d) => (&d.args, &[]),
                    Step::Region(r) => match &method.regions[r.region] {
                        Region::Fixed(l) => (&l.args, &[]),
                        Region::Dynamic(_) => r.first.as_ref().map_or((&[], &[]), |k| (&k.args, &k.outs)),
                    },
                    Step::Move { from, .. } => {
                        ids.insert(*from);
                        continue;
                    }
                    Step::JumpFalse { condition, .. } => {
                        ids.insert(*condition);
                        continue;
                    }
                    Step::Free(_) | Step::Folded(_) => continue,
                };
                ids.extend(
                    args.iter().filter_map(|a| if let ArgStep::Value(id) = a { Some(*id) } else { None }),
                );
                // What is written in place is read too.
                for out in outs {
                    if let OutStep::Tensor(id) | OutStep::View { of: id, .. } = out {
                        ids.insert(*id);
                    }
                }
            }
        }
        let state: &State = &method.state;
        let tensors: HashSet<Id> = ids.iter().flat_map(|&id| tensors_of(state, id)).collect();
        let places = tensors.iter().filter_map(|&id| facts.home(state, id)).collect();
        ids.extend(tensors);
        ids.extend(method.outputs.iter().flat_map(|&id| tensors_of(state, id)));
        Self { places, values: ids }
    }
}
