//! The memory plan of a program: the blocks of its arenas with their offsets and lifetimes, and a check that no live
//! block is overwritten.

mod delegate;
mod lifetime;
mod text;

pub use delegate::DelegatePlan;
pub use text::{overlaps_text, text};

use crate::Result;
use pteron_format::pte::ExecutionPlan;
use pteron_operator::KernelRegistry;
use pteron_runtime::{BackendRegistry, Program};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Range;

/// The memory plans of a program's methods.
#[derive(Debug, Serialize)]
pub struct PlanReport {
    pub file: String,
    /// The methods, in the order of the file.
    pub methods: Vec<MethodPlan>,
}

/// The memory plan of a method.
#[derive(Debug, Serialize)]
pub struct MethodPlan {
    /// The method's name.
    pub name: String,
    /// The number of instructions of all chains.
    pub instructions: usize,
    pub arenas: Vec<ArenaPlan>,
    /// Pairs of blocks that share bytes, of which one is written while the other is live; at most [`MAX_OVERLAPS`] per arena.
    pub overlaps: Vec<Overlap>,
    /// The memory of delegates outside the arenas, if their backends can read the payloads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub delegates: Vec<DelegatePlan>,
    /// Operators without a kernel in the registry; their last argument is assumed to be their output.
    pub unknown_operators: Vec<String>,
}

/// The memory plan of an arena.
#[derive(Debug, Serialize)]
pub struct ArenaPlan {
    /// The arena's memory id, from 1.
    pub memory_id: u32,
    /// The arena's size in bytes.
    pub bytes: u64,
    /// The largest number of the arena's bytes that are live at the same time.
    pub peak: u64,
    /// A description of the first instruction at which the peak is reached; `None` if the peak is 0.
    pub peak_at: Option<String>,
    /// The arena's blocks, sorted by offset, then by lifetime.
    pub blocks: Vec<Block>,
}

/// A block of memory: a tensor and its views.
#[derive(Debug, Clone, Serialize)]
pub struct Block {
    /// The memory id of the arena.
    #[serde(skip)]
    pub memory_id: u32,
    /// The block's byte range in the arena.
    pub bytes: Range<u64>,
    /// The instructions during which the block is live, as inclusive ranges; indices count over all chains. -1 is before the first
    /// instruction, the number of instructions is after the last.
    pub life: Vec<(i64, i64)>,
    /// The indices of the instructions that write the block.
    #[serde(skip)]
    pub writes: Vec<i64>,
    /// The ids of the block's values.
    pub values: Vec<usize>,
    /// The block's type and sizes.
    pub layout: String,
    /// `input`, `output` or `state` if the block is live beyond its uses by instructions; otherwise empty.
    pub role: &'static str,
}

/// Two blocks that share bytes, of which one is written while the other is live.
#[derive(Debug, Serialize)]
pub struct Overlap {
    /// The memory id of the arena.
    pub memory_id: u32,
    /// The first block.
    pub one: Block,
    /// The second block.
    pub other: Block,
    /// The byte range that the blocks share.
    pub bytes: Range<u64>,
    /// The index of an instruction that writes one block while the other is live.
    pub at: i64,
}

impl PlanReport {
    /// Whether no live block is overwritten.
    pub fn is_sound(&self) -> bool {
        self.methods.iter().all(|method| method.overlaps.is_empty())
    }
}

/// The memory plans of a program. The schemas in `kernels` say what operators write; `backends` read the payloads.
pub fn plan(program: &Program, kernels: &KernelRegistry, backends: &BackendRegistry) -> Result<PlanReport> {
    let plans = program.tables().execution_plan.iter();
    let methods = plans.map(|plan| method_plan(program, plan, kernels, backends)).collect::<Result<_>>()?;
    Ok(PlanReport { file: program.loader().name().to_owned(), methods })
}

/// The plan of one method of a program.
///
/// # Errors
/// If the program has no such method.
pub fn plan_of(
    program: &Program,
    method: &str,
    kernels: &KernelRegistry,
    backends: &BackendRegistry,
) -> Result<PlanReport> {
    program.method_meta(method)?;
    let mut report = plan(program, kernels, backends)?;
    report.methods.retain(|plan| plan.name == method);
    Ok(report)
}

fn method_plan(
    program: &Program,
    plan: &ExecutionPlan,
    kernels: &KernelRegistry,
    backends: &BackendRegistry,
) -> Result<MethodPlan> {
    let raised = program.raise(&plan.name, kernels)?;
    let mut by_arena: BTreeMap<u32, Vec<Block>> = BTreeMap::new();
    let blocks = lifetime::blocks(&raised).into_iter();
    blocks.for_each(|block| by_arena.entry(block.memory_id).or_default().push(block));
    let mut overlaps = Vec::new();
    let mut arenas = Vec::new();
    for (id, &size) in plan.non_const_buffer_sizes.iter().enumerate().skip(1) {
        let memory_id = id as u32;
        let mut blocks = by_arena.remove(&memory_id).unwrap_or_default();
        blocks.sort_by_key(|block| (block.bytes.start, block.life.first().copied(), block.bytes.end));
        find_overlaps(&blocks, &mut overlaps);
        let (peak, at) = peak_bytes(&blocks);
        arenas.push(ArenaPlan {
            memory_id,
            bytes: u64::try_from(size).unwrap_or(0),
            peak,
            peak_at: (peak > 0).then(|| lifetime::describe(&raised, at)),
            blocks,
        });
    }
    Ok(MethodPlan {
        name: plan.name.clone(),
        instructions: raised.chains().map(|chain| chain.len()).sum(),
        arenas,
        overlaps,
        delegates: delegate::delegates_of(program, plan, backends)?,
        unknown_operators: raised.unknown_operators().to_vec(),
    })
}

/// Maximum number of overlapping pairs of blocks that a report lists per arena.
pub const MAX_OVERLAPS: usize = 1000;

/// Finds the pairs of blocks that share bytes and of which one is written while the other is live. `blocks` is sorted by
/// offset.
fn find_overlaps(blocks: &[Block], overlaps: &mut Vec<Overlap>) {
    let mut pairs = BTreeSet::new();
    for_each_overlap(blocks, |a, b| {
        let (a, b) = (a.min(b), a.max(b));
        if overwriting_instruction(&blocks[a], &blocks[b]).is_some() {
            pairs.insert((b, a));
        }
        pairs.len() < MAX_OVERLAPS
    });
    for (b, a) in pairs {
        let (one, other) = (&blocks[a], &blocks[b]);
        let bytes = other.bytes.start..one.bytes.end.min(other.bytes.end);
        let at = overwriting_instruction(one, other).unwrap_or_default();
        overlaps.push(Overlap {
            memory_id: one.memory_id,
            one: one.clone(),
            other: other.clone(),
            bytes,
            at,
        });
    }
}

/// Calls `met` with each pair of blocks that share bytes and whose lifetimes overlap, where a lifetime is approximated by
/// its first and last instruction. Stops when `met` returns `false`. In a sound plan such pairs are rare, and the
/// cost is dominated by sorting.
fn for_each_overlap(blocks: &[Block], mut met: impl FnMut(usize, usize) -> bool) {
    let span = |block: &Block| Some((block.life.first()?.0, block.life.last()?.1));
    let mut order: Vec<(i64, i64, usize)> = blocks
        .iter()
        .enumerate()
        .filter_map(|(i, b)| span(b).map(|(first, last)| (first, last, i)))
        .collect();
    order.sort_unstable();
    let mut leaving: BinaryHeap<Reverse<(i64, usize)>> = BinaryHeap::new();
    // The blocks that are live now, by size class (the next power of two), then by offset: a block that overlaps another
    // starts before it by at most its own size, which bounds the search within a class.
    let mut now: BTreeMap<u32, BTreeSet<(u64, usize)>> = BTreeMap::new();
    let class =
        |block: &Block| (block.bytes.end - block.bytes.start).checked_ilog2().map_or(0, |log| log + 1);
    for (first, last, index) in order {
        while let Some(&Reverse((left, other))) = leaving.peek()
            && left < first
        {
            leaving.pop();
            if let Some(all) = now.get_mut(&class(&blocks[other])) {
                all.remove(&(blocks[other].bytes.start, other));
            }
        }
        let Range { start, end } = blocks[index].bytes;
        for (&class, all) in &now {
            let from = start.saturating_sub(1u64.checked_shl(class).unwrap_or(u64::MAX));
            for &(_, other) in all.range((from, 0)..(end, 0)).filter(|(_, o)| blocks[*o].bytes.end > start) {
                if !met(other, index) {
                    return;
                }
            }
        }
        now.entry(class(&blocks[index])).or_default().insert((start, index));
        leaving.push(Reverse((last, index)));
    }
}

/// The first instruction that writes one of two blocks while the other is live. Overlapping lifetimes alone are no
/// conflict: the blocks may be live on different execution paths.
fn overwriting_instruction(a: &Block, b: &Block) -> Option<i64> {
    let is_live =
        |block: &Block, at: i64| block.life.iter().any(|&(first, last)| (first..=last).contains(&at));
    let writes = |by: &Block, over: &Block| by.writes.iter().copied().filter(|&at| is_live(over, at)).min();
    writes(a, b).into_iter().chain(writes(b, a)).min()
}

/// The peak of the bytes of live blocks, and the first instruction at which it is reached. Bytes that several
/// blocks share count for each of them.
fn peak_bytes(blocks: &[Block]) -> (u64, i64) {
    let mut changes: BTreeMap<i64, i128> = BTreeMap::new();
    for block in blocks {
        let len = i128::from(block.bytes.end - block.bytes.start);
        for &(first, last) in &block.life {
            *changes.entry(first).or_default() += len;
            *changes.entry(last + 1).or_default() -= len;
        }
    }
    let (mut now, mut peak, mut at) = (0, 0, -1);
    for (step, by) in changes {
        now += by;
        if now > peak {
            (peak, at) = (now, step);
        }
    }
    (u64::try_from(peak).unwrap_or(u64::MAX), at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block(bytes: Range<u64>, life: (i64, i64)) -> Block {
        let (writes, values, layout) = (vec![life.0], Vec::new(), String::new());
        Block { memory_id: 1, bytes, life: vec![life], writes, values, layout, role: "" }
    }

    #[test]
    fn blocks_that_reuse_memory_in_turn_do_not_meet() {
        // Each block is read by the next; three offsets are used in turn.
        let blocks: Vec<Block> =
            (0..3000).map(|i: i64| block(i as u64 % 3 * 64..(i as u64 % 3 + 1) * 64, (i, i + 1))).collect();
        let mut pairs = 0;
        for_each_overlap(&blocks, |_, _| {
            pairs += 1;
            true
        });
        assert_eq!(pairs, 0);
    }

    proptest! {
        #[test]
        fn blocks_meet_if_bytes_and_lifetimes_overlap(
            blocks in prop::collection::vec((0..60u64, 1..20u64, 0..30i64, 0..8i64), 0..40),
        ) {
            let mut blocks: Vec<Block> = blocks
                .into_iter()
                .map(|(start, len, first, more)| block(start..start + len, (first, first + more)))
                .collect();
            blocks.sort_by_key(|b| b.bytes.start);
            let mut pairs = BTreeSet::new();
            for_each_overlap(&blocks, |a, b| pairs.insert((a.min(b), a.max(b))));
            let meet = |a: &Block, b: &Block| {
                a.bytes.start < b.bytes.end
                    && b.bytes.start < a.bytes.end
                    && a.life[0].0 <= b.life[0].1
                    && b.life[0].0 <= a.life[0].1
            };
            for b in 0..blocks.len() {
                for a in 0..b {
                    prop_assert_eq!(pairs.contains(&(a, b)), meet(&blocks[a], &blocks[b]), "{} and {}", a, b);
                }
            }
        }
    }
}
