//! The memory plan of a program: what lies where in its arenas, from when to when, and whether anything
//! that is needed is overwritten.

mod delegate;
mod lifetime;
mod text;

pub use delegate::DelegatePlan;
pub use text::{overlaps_text, text};

use crate::Result;
use format::pte::ExecutionPlan;
use operator::KernelRegistry;
use runtime::{BackendRegistry, Program};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Range;

/// The plans of a program's methods.
#[derive(Debug, Serialize)]
pub struct PlanReport {
    /// The file.
    pub file: String,
    /// The methods, in the order of the file.
    pub methods: Vec<MethodPlan>,
}

/// The memory plan of a method.
#[derive(Debug, Serialize)]
pub struct MethodPlan {
    /// The method's name.
    pub name: String,
    /// How many instructions it has, those of all chains.
    pub instructions: usize,
    /// Its arenas.
    pub arenas: Vec<ArenaPlan>,
    /// Pairs of blocks of which one is written over the other while that is still needed, the first
    /// [`MAX_OVERLAPS`] of an arena.
    pub overlaps: Vec<Overlap>,
    /// What the delegates hold and compute beside the arenas, where their backends show it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub delegates: Vec<DelegatePlan>,
    /// Operators that are not known here, of whose arguments the last is taken to be what they write.
    pub unknown_operators: Vec<String>,
}

/// One arena.
#[derive(Debug, Serialize)]
pub struct ArenaPlan {
    /// Its memory id, from 1.
    pub memory_id: u32,
    /// Its bytes.
    pub bytes: u64,
    /// The most bytes that are needed at a time.
    pub peak: u64,
    /// An instruction at which they are, with what it calls.
    pub peak_at: Option<String>,
    /// What lies in it, by offset and then by time.
    pub blocks: Vec<Block>,
}

/// Tensors that are the same memory: one, and what is a view of it.
#[derive(Debug, Clone, Serialize)]
pub struct Block {
    /// The arena.
    #[serde(skip)]
    pub memory_id: u32,
    /// Bytes of the arena.
    pub bytes: Range<u64>,
    /// Instructions during which it is needed, as ranges with both ends, those of all chains counted on. -1
    /// is before the first, the number of instructions behind the last.
    pub life: Vec<(i64, i64)>,
    /// Instructions that write it.
    #[serde(skip)]
    pub writes: Vec<i64>,
    /// The values, as ids.
    pub values: Vec<usize>,
    /// Its type and sizes.
    pub layout: String,
    /// `input`, `output`, `state`: why it lives longer than instructions use it.
    pub role: &'static str,
}

/// Two blocks that have bytes in common, of which one is written while the other is needed.
#[derive(Debug, Serialize)]
pub struct Overlap {
    /// The arena.
    pub memory_id: u32,
    /// The first block.
    pub one: Block,
    /// The second.
    pub other: Block,
    /// The bytes that they have in common.
    pub bytes: Range<u64>,
    /// An instruction that writes one of them while the other is needed.
    pub at: i64,
}

impl PlanReport {
    /// Whether nothing that is needed is written over.
    pub fn is_sound(&self) -> bool {
        self.methods.iter().all(|method| method.overlaps.is_empty())
    }
}

/// The plans of a program. The kernels tell which arguments an operator writes, the backends what is in payloads.
pub fn plan(program: &Program, kernels: &KernelRegistry, backends: &BackendRegistry) -> Result<PlanReport> {
    let plans = program.tables().execution_plan.iter();
    let methods = plans.map(|plan| method(program, plan, kernels, backends)).collect::<Result<_>>()?;
    Ok(PlanReport { file: program.loader().name().to_owned(), methods })
}

/// The plan of one method of this program, if it has it.
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

fn method(
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
        let (peak, at) = peak(&blocks);
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

/// Pairs of blocks that a report lists for an arena.
pub const MAX_OVERLAPS: usize = 1000;

/// The pairs among blocks, sorted by where they start, of which one is written over the other.
fn find_overlaps(blocks: &[Block], overlaps: &mut Vec<Overlap>) {
    let mut pairs = BTreeSet::new();
    each_meeting(blocks, |a, b| {
        let (a, b) = (a.min(b), a.max(b));
        if clash(&blocks[a], &blocks[b]).is_some() {
            pairs.insert((b, a));
        }
        pairs.len() < MAX_OVERLAPS
    });
    for (b, a) in pairs {
        let (one, other) = (&blocks[a], &blocks[b]);
        let bytes = other.bytes.start..one.bytes.end.min(other.bytes.end);
        let at = clash(one, other).unwrap_or_default();
        overlaps.push(Overlap {
            memory_id: one.memory_id,
            one: one.clone(),
            other: other.clone(),
            bytes,
            at,
        });
    }
}

/// Calls `met` with each pair of blocks that have bytes in common and are needed at the same time, roughly: from
/// the first instruction to the last. Goes on while `met` says so. In a sound plan blocks seldom meet, and the
/// cost is that of sorting them.
fn each_meeting(blocks: &[Block], mut met: impl FnMut(usize, usize) -> bool) {
    let span = |block: &Block| Some((block.life.first()?.0, block.life.last()?.1));
    let mut order: Vec<(i64, i64, usize)> = blocks
        .iter()
        .enumerate()
        .filter_map(|(i, b)| span(b).map(|(first, last)| (first, last, i)))
        .collect();
    order.sort_unstable();
    let mut leaving: BinaryHeap<Reverse<(i64, usize)>> = BinaryHeap::new();
    // Those that are needed now, by the power of two that their length is below, and by where they start: a
    // block that meets another begins no further before it than its length.
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

/// An instruction that writes one of two blocks while the other is needed. That both are needed is no harm
/// where execution came by different ways.
fn clash(a: &Block, b: &Block) -> Option<i64> {
    let needed =
        |block: &Block, at: i64| block.life.iter().any(|&(first, last)| (first..=last).contains(&at));
    let writes = |by: &Block, over: &Block| by.writes.iter().copied().filter(|&at| needed(over, at)).min();
    writes(a, b).into_iter().chain(writes(b, a)).min()
}

/// The most bytes that blocks need at a time, and the first instruction at which they do. Bytes of blocks
/// that overlap count for each.
fn peak(blocks: &[Block]) -> (u64, i64) {
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
    fn blocks_that_use_the_same_places_in_turn_are_not_compared() {
        // Each is needed by the next; three places are used in turn.
        let blocks: Vec<Block> =
            (0..3000).map(|i: i64| block(i as u64 % 3 * 64..(i as u64 % 3 + 1) * 64, (i, i + 1))).collect();
        let mut pairs = 0;
        each_meeting(&blocks, |_, _| {
            pairs += 1;
            true
        });
        assert_eq!(pairs, 0);
    }

    proptest! {
        #[test]
        fn blocks_meet_that_share_bytes_and_time(
            blocks in prop::collection::vec((0..60u64, 1..20u64, 0..30i64, 0..8i64), 0..40),
        ) {
            let mut blocks: Vec<Block> = blocks
                .into_iter()
                .map(|(start, len, first, more)| block(start..start + len, (first, first + more)))
                .collect();
            blocks.sort_by_key(|b| b.bytes.start);
            let mut found = BTreeSet::new();
            each_meeting(&blocks, |a, b| found.insert((a.min(b), a.max(b))));
            let meet = |a: &Block, b: &Block| {
                a.bytes.start < b.bytes.end
                    && b.bytes.start < a.bytes.end
                    && a.life[0].0 <= b.life[0].1
                    && b.life[0].0 <= a.life[0].1
            };
            for b in 0..blocks.len() {
                for a in 0..b {
                    prop_assert_eq!(found.contains(&(a, b)), meet(&blocks[a], &blocks[b]), "{} and {}", a, b);
                }
            }
        }
    }
}
