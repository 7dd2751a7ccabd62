//! Partitioning: which runs of a method's calls become regions.
//!
//! # Why this way
//!
//! *Greedy, from the first call on.* A run grows until a call cannot be added to its graph: an opaque delegate, a result
//! whose size depends on data, a write that clobbers what is needed later, the start of a block. The next run starts
//! there. Within a region intermediate results need neither memory of the plan nor a call each, and the engine sees all
//! of them at once, so the longest run is the best guess; to compare cuts, each would have to be lowered.
//!
//! *Static prefixes.* A static region is lowered once, when the method is loaded. A dynamic one needs its key read and
//! compared in each execution, and is lowered again for each key. So static calls at the start of a dynamic run are cut
//! off if they are many ([`MIN_STATIC_PREFIX`]); a few are worth more fused with the calls that read them. A prefix
//! without inputs computes constants, and is never cut off from its readers: the engine folds it into them.
//!
//! *Halving.* A static run that cannot be lowered usually exceeds the memory limit with all of its packed weights, of which
//! each half may still fit. A dynamic run is not halved: what it takes is known only once it is lowered, at run time.

use super::Region;
use super::builder::{Builder, MIN_CALLS, Sizes};
use super::dynamic::DynamicRegion;
use super::lowered::Lowered;
use super::run::{Run, calls};
use crate::backend::DelegateEntry;
use crate::plan::{Instr, RegionCall};
use crate::prepare::prepared::{Prepared, Settings};
use crate::prepare::raise::{DefUse, Position};
use pteron_engine::Executable;
use pteron_operator::Error;
use std::ops::Range;
use std::sync::Arc;

/// If a dynamic run starts with at least this many static calls, they become a static region of their own.
const MIN_STATIC_PREFIX: usize = 8;

/// Lowers the regions of a method that have static sizes.
pub(crate) fn lower_static_regions(method: &mut Prepared, settings: &Settings<'_>, def_use: &DefUse) {
    for_each_run(method, settings, def_use, |method, run, built| {
        if run.is_dynamic {
            Err(None)
        } else {
            Ok(Region::Fixed(lower_static_run(method, settings, def_use, run, built)?))
        }
    });
}

/// Makes dynamic regions of the runs that are not yet lowered. Runs that folding has made static are lowered here.
pub(crate) fn make_dynamic_regions(method: &mut Prepared, settings: &Settings<'_>, def_use: &Arc<DefUse>) {
    // What could not be lowered before is tried again.
    method.as_written.clear();
    for_each_run(method, settings, def_use, |method, run, built| {
        if !run.is_dynamic {
            return Ok(Region::Fixed(lower_static_run(method, settings, def_use, run, built)?));
        }
        let bounds = builder(method, settings, def_use, run.positions(def_use).start, Sizes::Bounds);
        let instrs = &method.chains[run.chain].instrs;
        let region = DynamicRegion::new(bounds, def_use, run, instrs, settings.keep_graphs);
        Ok(Region::Dynamic(Box::new(region.ok_or(None)?)))
    });
}

/// Replaces runs by regions. A static run that cannot be lowered is halved and tried again; a dynamic run is left as it
/// is. So each instruction is visited at most a logarithmic number of times.
fn for_each_run(
    method: &mut Prepared,
    settings: &Settings<'_>,
    def_use: &DefUse,
    region: impl Fn(&Prepared, &Run, Option<Builder<'_>>) -> Result<Region, Option<Error>>,
) {
    for chain in 0..method.chains.len() {
        let (mut next, mut limits) = (0, vec![method.chains[chain].instrs.len()]);
        while let Some(&limit) = limits.last() {
            if next >= limit {
                limits.pop();
                continue;
            }
            if let Instr::Region(region) = &method.chains[chain].instrs[next] {
                next = region.next;
                continue;
            }
            let (run, built) = match longest_run(method, settings, def_use, chain, next..limit) {
                Ok(run) => run,
                Err(end) => {
                    next = end;
                    continue;
                }
            };
            match region(method, &run, built) {
                Ok(region) => install_region(method, &run, region),
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
fn install_region(method: &mut Prepared, run: &Run, region: Region) {
    method.regions.push(region);
    let slot = &mut method.chains[run.chain].instrs[run.range.start];
    let first = Box::new(std::mem::replace(slot, Instr::Free(0)));
    *slot = Instr::Region(RegionCall { region: method.regions.len() - 1, first, next: run.range.end });
}

/// Removes all regions, so that their instructions run one by one.
pub(crate) fn remove_all_regions(method: &mut Prepared) {
    for instr in method.chains.iter_mut().flat_map(|chain| &mut chain.instrs) {
        match std::mem::replace(instr, Instr::Free(0)) {
            Instr::Region(region) => *instr = *region.first,
            other => *instr = other,
        }
    }
    method.regions.clear();
}

/// The longest run that starts at the first instruction of a range, and the region's graph if it is static and was built to
/// find the end of the run. If there is no run that is long enough, the error is the instruction at which to continue the
/// search.
fn longest_run<'m>(
    method: &'m Prepared,
    settings: &Settings<'_>,
    def_use: &'m DefUse,
    chain: usize,
    range: Range<usize>,
) -> Result<(Run, Option<Builder<'m>>), usize> {
    let instrs = &method.chains[chain].instrs;
    let start = range.start;
    let may_start = match instrs.get(start) {
        Some(Instr::Kernel(_)) => true,
        Some(Instr::Delegate(call)) => method.delegates[call.delegate].has_graph(),
        _ => false,
    };
    if !may_start {
        return Err(start + 1);
    }
    let grow = |sizes| {
        let mut builder = builder(method, settings, def_use, def_use.position(chain, start), sizes);
        let mut end = start;
        while end < range.end && (end == start || !def_use.starts_block(def_use.position(chain, end))) {
            match &instrs[end] {
                Instr::Folded(_) => {}
                instr @ (Instr::Kernel(_) | Instr::Delegate(_)) if builder.add(chain, end, instr) => {}
                _ => break,
            }
            end += 1;
        }
        // Folded calls at the end are not part of the run.
        while end > start && matches!(instrs[end - 1], Instr::Folded(_)) {
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
fn builder<'m>(
    method: &'m Prepared,
    settings: &Settings<'_>,
    def_use: &'m DefUse,
    start: Position,
    sizes: Sizes<'m>,
) -> Builder<'m> {
    let builder = Builder::new(&method.state, &method.delegates, def_use, start, sizes);
    builder.with_limits(settings.backend_bytes, method.packs.budget())
}

/// Lowers a static run. `built` is the region's graph if it exists already. Returns `Err(None)` if one of the calls
/// cannot be added to a graph.
fn lower_static_run(
    method: &Prepared,
    settings: &Settings<'_>,
    def_use: &DefUse,
    run: &Run,
    built: Option<Builder<'_>>,
) -> Result<Box<Lowered>, Option<Error>> {
    let positions = run.positions(def_use);
    let mut builder = match built {
        Some(built) => built,
        None => {
            let mut builder = builder(method, settings, def_use, positions.start, Sizes::Fixed);
            let mut calls = calls(&method.chains[run.chain].instrs, run.range.clone());
            if !calls.all(|(i, call)| builder.add(run.chain, i, call)) {
                return Err(None);
            }
            builder
        }
    };
    let outs = builder.add_outputs(positions.end);
    let args = builder.input_args();
    let graph = settings.keep_graphs.then(|| Box::new(builder.graph.clone()));
    // Drops the cached delegate graphs, so that weights computed for them are freed as soon as they are packed.
    method.delegates.iter().for_each(DelegateEntry::forget_graph);
    let executable = Executable::with_packs(builder.graph, &settings.ctx, &mut method.packs.clone())?;
    let lowered =
        Lowered { graph, executable, args, outs, sizes: Vec::new(), scalars: Vec::new(), views: Vec::new() };
    Ok(Box::new(lowered))
}
