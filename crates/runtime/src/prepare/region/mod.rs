//! Regions: sequences of calls that are lowered together as one graph. A kernel call becomes a node of the graph; a
//! call of a delegate that exposes a graph becomes that graph's nodes.
//!
//! A region is built from the def-use information of the raised method ([`crate::prepare::raise`]). A read that no definition of
//! the region reaches is an input; the outputs are the definitions that something after the region can read. A region
//! ends before a read of several partial definitions of its own, and before a write that clobbers a definition of
//! its own that is still needed.
//!
//! A region with static sizes is lowered when the method is loaded. A region with dynamic sizes is specialized at run
//! time for the sizes that it gets: see [`dynamic`]. Overlaps are judged by the capacity of tensors, the bytes of their
//! upper bounds.

mod builder;
mod delegate;
mod dynamic;
mod shapes;

pub(crate) use dynamic::{Choice, DynamicRegion, LoweringContext};

use crate::method::Method;
use crate::plan::{ArgStep, DelegateEntry, Id, OutStep, RegionStep, Step};
use crate::prepare::raise::{DefUse, Position};
use builder::{Builder, Sizes};
use pteron_engine::{Executable, Graph};
use pteron_operator::{Error, KernelContext};
use pteron_tensor::{Scalar, Shape};
use std::ops::Range;
use std::sync::Arc;

/// Minimum number of calls that make a region worth its entry and exit cost.
const MIN_CALLS: usize = 2;

/// Minimum number of static calls at the start of a dynamic run that become a static region of their own.
const MIN_STATIC_PREFIX: usize = 8;

/// A region of a method.
pub(crate) enum Region {
    Fixed(Box<Lowered>),
    Dynamic(Box<DynamicRegion>),
}

impl Region {
    /// The graph before any pass, if it is kept.
    pub(crate) fn graph(&self) -> Option<&Graph> {
        match self {
            Self::Fixed(lowered) => lowered.graph.as_deref(),
            Self::Dynamic(region) => region.graph.as_deref(),
        }
    }
}

/// A lowered region: its executable, the values that it reads and writes, and its other updates to the value table.
pub(crate) struct Lowered {
    /// The graph before any pass, if it is kept.
    pub(crate) graph: Option<Box<Graph>>,
    pub(crate) executable: Executable,
    pub(crate) args: Box<[ArgStep]>,
    pub(crate) outs: Box<[OutStep]>,
    pub(crate) sizes: Vec<(Id, Shape)>,
    pub(crate) scalars: Vec<(Id, Scalar)>,
    /// Views as (view, viewed value, sizes), in the order in which they are made.
    pub(crate) views: Vec<(Id, Id, Shape)>,
}

impl Region {
    /// The same region for another instance of the method.
    pub(crate) fn fork(&self) -> crate::Result<Self> {
        Ok(match self {
            Self::Fixed(lowered) => Self::Fixed(Box::new(lowered.fork()?)),
            Self::Dynamic(region) => Self::Dynamic(Box::new(region.fork()?)),
        })
    }
}

impl Lowered {
    fn fork(&self) -> crate::Result<Self> {
        let executable = self.executable.fork().map_err(|e| crate::Error::Unsupported(e.to_string()))?;
        Ok(Self {
            graph: self.graph.clone(),
            executable,
            args: self.args.clone(),
            outs: self.outs.clone(),
            sizes: self.sizes.clone(),
            scalars: self.scalars.clone(),
            views: self.views.clone(),
        })
    }
}

/// Lowers the regions of a method that have static sizes.
pub(crate) fn lower_fixed(method: &mut Method, def_use: &DefUse) {
    each_run(method, def_use, |method, run, built| {
        if run.is_dynamic { Err(None) } else { Ok(Region::Fixed(fixed(method, def_use, run, built)?)) }
    });
}

/// Makes dynamic regions of the remaining runs, and lowers those that have become static through folding.
pub(crate) fn find_dynamic(method: &mut Method, def_use: &Arc<DefUse>) {
    // What could not be lowered before is tried again.
    method.as_written.clear();
    each_run(method, def_use, |method, run, built| {
        if !run.is_dynamic {
            return Ok(Region::Fixed(fixed(method, def_use, run, built)?));
        }
        Ok(Region::Dynamic(Box::new(DynamicRegion::new(method, def_use, run).ok_or(None)?)))
    });
}

/// A range of instructions whose calls can be lowered together.
pub(crate) struct Run {
    pub(crate) chain: usize,
    pub(crate) range: Range<usize>,
    is_dynamic: bool,
}

impl Run {
    /// The positions of its instructions.
    fn positions(&self, def_use: &DefUse) -> Range<Position> {
        def_use.position(self.chain, self.range.start)..def_use.position(self.chain, self.range.end)
    }
}

/// Replaces runs by regions. A static run that cannot be lowered is halved and tried again; a dynamic run is left as it
/// is. So each instruction is visited at most a logarithmic number of times.
fn each_run(
    method: &mut Method,
    def_use: &DefUse,
    region: impl Fn(&Method, &Run, Option<Builder<'_>>) -> Result<Region, Option<Error>>,
) {
    for chain in 0..method.chains.len() {
        let (mut next, mut limits) = (0, vec![method.chains[chain].steps.len()]);
        while let Some(&limit) = limits.last() {
            if next >= limit {
                limits.pop();
                continue;
            }
            if let Step::Region(region) = &method.chains[chain].steps[next] {
                next = region.next;
                continue;
            }
            let (run, built) = match longest(method, def_use, chain, next..limit) {
                Ok(found) => found,
                Err(end) => {
                    next = end;
                    continue;
                }
            };
            match region(method, &run, built) {
                Ok(region) => put(method, &run, region),
                Err(error) if run.is_dynamic || run.range.len() < 2 * MIN_CALLS => {
                    method.note_as_written(run.chain, run.range.clone(), error);
                }
                Err(_) => {
                    limits.push(run.range.start + run.range.len() / 2);
                    continue;
                }
            }
            next = run.range.end;
        }
    }
}

/// Replaces the first call of a run by its region.
fn put(method: &mut Method, run: &Run, region: Region) {
    method.regions.push(region);
    let slot = &mut method.chains[run.chain].steps[run.range.start];
    let first = Box::new(std::mem::replace(slot, Step::Free(0)));
    *slot = Step::Region(RegionStep { region: method.regions.len() - 1, first, next: run.range.end });
}

/// Removes all regions, so that their instructions run one by one.
pub(crate) fn undo(method: &mut Method) {
    for step in method.chains.iter_mut().flat_map(|chain| &mut chain.steps) {
        match std::mem::replace(step, Step::Free(0)) {
            Step::Region(region) => *step = *region.first,
            other => *step = other,
        }
    }
    method.regions.clear();
}

/// The longest run that starts at the first instruction of a range, and the region's graph if it is static and was built to
/// find the end of the run. If there is no run that is long enough, the error is the instruction at which to continue the
/// search.
fn longest<'m>(
    method: &'m Method,
    def_use: &'m DefUse,
    chain: usize,
    range: Range<usize>,
) -> Result<(Run, Option<Builder<'m>>), usize> {
    let steps = &method.chains[chain].steps;
    let start = range.start;
    let may_start = match steps.get(start) {
        Some(Step::Kernel(_)) => true,
        Some(Step::Delegate(call)) => method.delegates[call.delegate].is_graph(),
        _ => false,
    };
    if !may_start {
        return Err(start + 1);
    }
    let grow = |sizes| {
        let mut builder = builder(method, def_use, def_use.position(chain, start), sizes);
        let mut end = start;
        while end < range.end && (end == start || !def_use.starts_block(def_use.position(chain, end))) {
            match &steps[end] {
                Step::Folded(_) => {}
                step @ (Step::Kernel(_) | Step::Delegate(_)) if builder.add(chain, end, step) => {}
                _ => break,
            }
            end += 1;
        }
        // Folded calls at the end are not part of the run.
        while end > start && matches!(steps[end - 1], Step::Folded(_)) {
            end -= 1;
        }
        (builder, end)
    };
    let (fixed, end) = grow(Sizes::Fixed);
    if fixed.calls >= MIN_STATIC_PREFIX && !fixed.inputs.is_empty() {
        return Ok((Run { chain, range: start..end, is_dynamic: false }, Some(fixed)));
    }
    let (builder, end) = grow(Sizes::Bounds);
    let run = Run { chain, range: start..end, is_dynamic: builder.is_dynamic };
    if builder.calls >= MIN_CALLS { Ok((run, None)) } else { Err(end.max(start + 1)) }
}

/// A builder for a region that starts at an instruction, within the limits of the method.
fn builder<'m>(method: &'m Method, def_use: &'m DefUse, start: Position, sizes: Sizes<'m>) -> Builder<'m> {
    let builder = Builder::new(&method.state, &method.delegates, def_use, start, sizes);
    builder.within(method.limits.backend_bytes, method.packs.budget())
}

/// The calls in a range of a chain: a region counts as its first call, and folded calls are skipped.
fn calls(steps: &[Step], range: Range<usize>) -> impl Iterator<Item = (usize, &Step)> {
    range.filter_map(|i| match &steps[i] {
        call @ (Step::Kernel(_) | Step::Delegate(_)) => Some((i, call)),
        Step::Region(region) => Some((i, &*region.first)),
        _ => None,
    })
}

/// Lowers a static run. `built` is the region's graph if it exists already. Fails without an error if one of the calls
/// cannot be added to a graph.
fn fixed(
    method: &Method,
    def_use: &DefUse,
    run: &Run,
    built: Option<Builder<'_>>,
) -> Result<Box<Lowered>, Option<Error>> {
    let positions = run.positions(def_use);
    let mut builder = match built {
        Some(built) => built,
        None => {
            let mut builder = builder(method, def_use, positions.start, Sizes::Fixed);
            let mut calls = calls(&method.chains[run.chain].steps, run.range.clone());
            if !calls.all(|(i, call)| builder.add(run.chain, i, call)) {
                return Err(None);
            }
            builder
        }
    };
    let outs = builder.outputs(positions.end);
    let args = builder.input_args();
    let ctx = KernelContext::new(&method.pool, &method.scratch, &method.generator).with_isa(method.isa);
    let graph = method.keep_graphs.then(|| Box::new(builder.graph.clone()));
    // Drops the cached delegate graphs, so that weights computed for them are freed as soon as they are packed.
    method.delegates.iter().for_each(DelegateEntry::forget_graph);
    let executable = Executable::with_packs(builder.graph, &ctx, &mut method.packs.clone())?;
    let lowered =
        Lowered { graph, executable, args, outs, sizes: Vec::new(), scalars: Vec::new(), views: Vec::new() };
    Ok(Box::new(lowered))
}
