//! Regions: runs of calls that are lowered together through the graph crate. A call of a kernel is a node of the
//! region's graph; of a delegate that is known as a graph, its nodes are.
//!
//! A region follows the definitions and uses of the raised method ([`crate::raise`]). A read of what the region
//! has not written is an input; the results are the definitions that something behind the region can read.
//! A read of pieces that the region has written, or a write over a part of a definition of which the rest is
//! still needed, ends it.
//!
//! A region whose sizes are fixed is lowered when the method is loaded. One whose sizes change is lowered
//! for the sizes that it meets: see [`dynamic`]. A place's capacity is the bytes of the upper bound, and
//! so are the overlaps that count.

mod builder;
mod delegate;
mod dynamic;
mod shapes;

pub(crate) use dynamic::{Choice, DynamicRegion, Surroundings};

use crate::method::Method;
use crate::raise::{DefUse, Position};
use crate::step::{ArgStep, DelegateEntry, OutStep, RegionStep, Step};
use crate::value::Id;
use builder::{Builder, Sizes};
use graph::{Executable, Graph};
use operator::KernelContext;
use std::ops::Range;
use std::sync::Arc;
use tensor::{Scalar, Shape};

/// Calls below which a region is not worth its entry and exit.
const SHORTEST: usize = 2;

/// Calls of fixed sizes at the start of a dynamic run that are a region of their own.
const FIXED_START: usize = 8;

/// A region of a method.
pub(crate) enum Region {
    Fixed(Box<Lowered>),
    Dynamic(Box<DynamicRegion>),
}

impl Region {
    /// The graph, before any pass, if it is kept.
    pub(crate) fn graph(&self) -> Option<&Graph> {
        match self {
            Self::Fixed(lowered) => lowered.graph.as_deref(),
            Self::Dynamic(region) => region.graph.as_deref(),
        }
    }
}

/// A region, lowered: what runs, on which values, and what it leaves in the table besides.
pub(crate) struct Lowered {
    /// The graph before any pass, if it is kept.
    pub(crate) graph: Option<Box<Graph>>,
    pub(crate) executable: Executable,
    pub(crate) args: Box<[ArgStep]>,
    pub(crate) outs: Box<[OutStep]>,
    pub(crate) sizes: Vec<(Id, Shape)>,
    pub(crate) numbers: Vec<(Id, Scalar)>,
    /// Views, of what, and their sizes, in the order in which they are made.
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
            numbers: self.numbers.clone(),
            views: self.views.clone(),
        })
    }
}

/// Lowers the regions of a method whose sizes are fixed.
pub(crate) fn lower_fixed(method: &mut Method, def_use: &DefUse) {
    each_run(method, def_use, |method, run, built| {
        if run.is_dynamic { None } else { Some(Region::Fixed(fixed(method, def_use, run, built)?)) }
    });
}

/// Makes dynamic regions of the other runs.
pub(crate) fn find_dynamic(method: &mut Method, def_use: &Arc<DefUse>) {
    each_run(method, def_use, |method, run, built| {
        if !run.is_dynamic {
            return Some(Region::Fixed(fixed(method, def_use, run, built)?));
        }
        Some(Region::Dynamic(Box::new(DynamicRegion::new(method, def_use, run)?)))
    });
}

/// Calls that can be lowered together.
pub(crate) struct Run {
    pub(crate) chain: usize,
    pub(crate) range: Range<usize>,
    is_dynamic: bool,
}

impl Run {
    /// The instructions, numbered as those of all chains.
    fn positions(&self, def_use: &DefUse) -> Range<Position> {
        def_use.position(self.chain, self.range.start)..def_use.position(self.chain, self.range.end)
    }
}

/// Puts regions in the places of runs. A run that cannot be lowered is tried in halves; dynamic ones are left as
/// they are. So no instruction is looked at more often than the logarithm of their number.
fn each_run(
    method: &mut Method,
    def_use: &DefUse,
    region: impl Fn(&Method, &Run, Option<Builder<'_>>) -> Option<Region>,
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
                Some(region) => put(method, &run, region),
                None if run.is_dynamic || run.range.len() < 2 * SHORTEST => {}
                None => {
                    limits.push(run.range.start + run.range.len() / 2);
                    continue;
                }
            }
            next = run.range.end;
        }
    }
}

/// Puts a region in the place of a run's first call.
fn put(method: &mut Method, run: &Run, region: Region) {
    method.regions.push(region);
    let slot = &mut method.chains[run.chain].steps[run.range.start];
    let first = Box::new(std::mem::replace(slot, Step::Free(0)));
    *slot = Step::Region(RegionStep { region: method.regions.len() - 1, first, next: run.range.end });
}

/// Takes all regions away: their instructions run as they stand.
pub(crate) fn undo(method: &mut Method) {
    for step in method.chains.iter_mut().flat_map(|chain| &mut chain.steps) {
        match std::mem::replace(step, Step::Free(0)) {
            Step::Region(region) => *step = *region.first,
            other => *step = other,
        }
    }
    method.regions.clear();
}

/// The longest run that starts at an instruction of a range, with its graph if its sizes are fixed and the graph was built to
/// find where the run ends; if no run is worth lowering, where to go on.
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
                step @ (Step::Kernel(_) | Step::Delegate(_)) if builder.add_at(chain, end, step) => {}
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
    let (fixed, end) = grow(Sizes::Fixed);
    if fixed.calls >= FIXED_START && !fixed.inputs.is_empty() {
        return Ok((Run { chain, range: start..end, is_dynamic: false }, Some(fixed)));
    }
    let (builder, end) = grow(Sizes::Bounds);
    let run = Run { chain, range: start..end, is_dynamic: builder.is_dynamic };
    if builder.calls >= SHORTEST { Ok((run, None)) } else { Err(end.max(start + 1)) }
}

/// A builder of a region that begins at an instruction, within the limits of the method.
fn builder<'m>(method: &'m Method, def_use: &'m DefUse, start: Position, sizes: Sizes<'m>) -> Builder<'m> {
    let builder = Builder::new(&method.state, &method.delegates, def_use, start, sizes);
    builder.within(method.limits.backend_bytes, method.packs.budget())
}

/// The calls of a range of a chain, those of regions and those that were computed when loaded left out.
fn calls(steps: &[Step], range: Range<usize>) -> impl Iterator<Item = (usize, &Step)> {
    range.filter_map(|i| match &steps[i] {
        call @ (Step::Kernel(_) | Step::Delegate(_)) => Some((i, call)),
        Step::Region(region) => Some((i, &*region.first)),
        _ => None,
    })
}

/// Lowers a run of fixed sizes, whose graph `built` is if that was built before.
fn fixed(method: &Method, def_use: &DefUse, run: &Run, built: Option<Builder<'_>>) -> Option<Box<Lowered>> {
    let positions = run.positions(def_use);
    let mut builder = match built {
        Some(built) => built,
        None => {
            let mut builder = builder(method, def_use, positions.start, Sizes::Fixed);
            let mut calls = calls(&method.chains[run.chain].steps, run.range.clone());
            if !calls.all(|(i, call)| builder.add_at(run.chain, i, call)) {
                return None;
            }
            builder
        }
    };
    let outs = builder.outputs(positions.end);
    let args = builder.input_args();
    let ctx = KernelContext::new(&method.pool, &method.scratch, &method.generator).with_isa(method.isa);
    let graph = method.keep_graphs.then(|| Box::new(builder.graph.clone()));
    // What delegates have computed of their weights goes as soon as it is packed.
    method.delegates.iter().for_each(DelegateEntry::forget_graph);
    let executable = Executable::with_packs(builder.graph, &ctx, &mut method.packs.clone()).ok()?;
    let lowered =
        Lowered { graph, executable, args, outs, sizes: Vec::new(), numbers: Vec::new(), views: Vec::new() };
    Some(Box::new(lowered))
}
