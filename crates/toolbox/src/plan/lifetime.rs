//! The lifetimes of a method's planned tensors.

use super::Block;
use pteron_format::pte::{EValue, ExecutionPlan, Tensor};
use pteron_runtime::{RaisedFlow, RaisedInstruction, RaisedMethod};
use std::collections::BTreeSet;
use std::ops::Range;

/// The bytes and lifetime of one planned value.
#[derive(Debug, Clone)]
struct Life {
    memory_id: u32,
    bytes: Range<u64>,
    first: i64,
    last: i64,
    /// The indices of the instructions that write the value.
    writes: Vec<i64>,
    role: &'static str,
}

impl Life {
    fn extend_to(&mut self, at: i64) {
        self.first = self.first.min(at);
        self.last = self.last.max(at);
    }
}

/// Describes a moment: an instruction by its index over all chains; a negative index is before the first, the number of
/// instructions or more is after the last.
pub(super) fn describe(raised: &RaisedMethod, at: i64) -> String {
    match usize::try_from(at).ok().map(|index| raised.name(index)) {
        None => "when inputs are set".to_owned(),
        Some(None) => "when outputs are taken".to_owned(),
        Some(Some(name)) => format!("instruction {at}, {name}"),
    }
}

/// The memory blocks of a method's tensors, with their lifetimes.
///
/// A tensor is live from the first instruction that uses it, directly or in a list, to the last. An input is live from
/// before the first instruction, an output to after the last. State (a tensor with an initial value, or read before it is
/// written) is always live. A tensor that is live at the start of a loop is live to its end. A value that a
/// `MoveCall` aliases is live wherever execution can continue from there, up to the last use of the alias. A view, made
/// by an instruction or elided, shares the block of its base.
pub(super) fn blocks(raised: &RaisedMethod) -> Vec<Block> {
    let plan = raised.plan();
    let steps: Vec<RaisedInstruction> = raised.instructions().collect();
    let end = steps.len() as i64;
    let mut lives: Vec<Option<Life>> = plan.values.iter().map(planned_life).collect();
    let mut owners: Vec<usize> = (0..lives.len()).collect();
    for (at, step) in steps.iter().enumerate() {
        let mut touch = |id: usize, writes: bool| {
            let Some(Some(life)) = lives.get_mut(id) else { return };
            life.extend_to(at as i64);
            life.writes.extend(writes.then_some(at as i64));
        };
        step.reads.iter().for_each(|read| touch(read.value, false));
        step.writes.iter().for_each(|&id| touch(id, true));
        if let RaisedFlow::Move { from, to } = &step.flow {
            from.iter().for_each(|&id| touch(id, false));
            to.iter().for_each(|&id| touch(id, true));
        }
        for view in &step.views {
            touch(view.value, true);
            let root = owner_of(&mut owners, view.of);
            if root != view.value && owners[view.value] == view.value {
                owners[view.value] = root;
            }
        }
    }
    let mut live_at = |id: &i32, at: i64, role: &'static str, writes: bool| {
        let Some(life) = usize::try_from(*id).ok().and_then(|id| lives.get_mut(id)?.as_mut()) else { return };
        life.extend_to(at);
        life.writes.extend(writes.then_some(at));
        life.role = role;
    };
    plan.inputs.iter().for_each(|id| live_at(id, -1, "input", true));
    plan.outputs.iter().for_each(|id| live_at(id, end, "output", false));
    let outputs: BTreeSet<usize> = plan.outputs.iter().filter_map(|&id| usize::try_from(id).ok()).collect();
    for (id, life) in lives.iter_mut().enumerate() {
        let Some(life) = life else { continue };
        if owners[id] == id && life.role != "state" && life.first <= life.last {
            match raised
                .elided_view_source(id)
                .map(|holder| owner_of(&mut owners, holder))
                .filter(|&root| root != id)
            {
                Some(holder) => owners[id] = holder,
                None if raised.is_read_first(id) && !outputs.contains(&id) => life.role = "state",
                None => {}
            }
        }
        if life.role == "state" {
            life.extend_to(-1);
            life.extend_to(end);
            life.writes.push(-1);
        }
    }
    let owners: Vec<usize> = (0..owners.len()).map(|id| owner_of(&mut owners, id)).collect();
    let chains: Vec<Range<usize>> = raised.chains().collect();
    let moved = follow_moves(&chains, &steps, &lives);
    let mut blocks = gather_blocks(plan, &lives, &owners, &moved);
    extend_over_loops(&steps, &mut blocks);
    blocks
}

fn planned_life(value: &EValue) -> Option<Life> {
    let tensor = value.as_tensor()?;
    let place = tensor.allocation_info?;
    let start = place.offset();
    Some(Life {
        memory_id: place.memory_id,
        bytes: start..start.saturating_add(tensor.nbytes().unwrap_or(0)),
        first: i64::MAX,
        last: i64::MIN,
        writes: Vec::new(),
        role: if has_initial_value(tensor) { "state" } else { "" },
    })
}

fn has_initial_value(tensor: &Tensor) -> bool {
    tensor.initial_data_idx().is_some() || tensor.is_external()
}

/// The value that owns the memory of view `id` (union-find with path halving).
fn owner_of(owners: &mut [usize], mut id: usize) -> usize {
    while owners[id] != id {
        owners[id] = owners[owners[id]];
        id = owners[id];
    }
    id
}

/// For each value that a `MoveCall` aliases, the additional ranges in which it is live: the instructions reachable from
/// there, up to the last use of the alias.
fn follow_moves(
    chains: &[Range<usize>],
    steps: &[RaisedInstruction],
    lives: &[Option<Life>],
) -> Vec<(usize, Vec<(i64, i64)>)> {
    /// Limit of moves times instructions; beyond it, a moved value counts as live up to the last use of its alias.
    const MAX_WORK: usize = 1 << 28;
    let moves = steps.iter().filter(|step| matches!(step.flow, RaisedFlow::Move { .. })).count();
    let mut extra = Vec::new();
    for chain in chains {
        for at in chain.clone() {
            let RaisedFlow::Move { from, to } = &steps[at].flow else { continue };
            let Some(last) = to.iter().filter_map(|&id| lives[id].as_ref()).map(|life| life.last).max()
            else {
                continue;
            };
            let needed = match moves.checked_mul(steps.len()) {
                Some(work) if work <= MAX_WORK => {
                    let inside = reachable_ranges(chain, at, steps);
                    let mut needed: Vec<(i64, i64)> = inside
                        .into_iter()
                        .map(|(from, to)| (from as i64, (to as i64).min(last)))
                        .filter(|(from, to)| from <= to)
                        .collect();
                    let behind = chain.end as i64;
                    if behind <= last {
                        needed.push((behind, last));
                    }
                    needed
                }
                _ => vec![(at as i64, last.max(at as i64))],
            };
            extra.extend(from.iter().map(|&id| (id, needed.clone())));
        }
    }
    extra
}

/// The instructions of a chain that can be executed after `from`, as inclusive ranges. A jump on a
/// constant condition has one successor.
fn reachable_ranges(chain: &Range<usize>, from: usize, steps: &[RaisedInstruction]) -> Vec<(usize, usize)> {
    let mut seen = vec![false; chain.len()];
    let mut open = vec![from + 1];
    while let Some(mut at) = open.pop() {
        while chain.contains(&at) && !seen[at - chain.start] {
            seen[at - chain.start] = true;
            if let RaisedFlow::JumpFalse { target, known } = steps[at].flow {
                if known != Some(true) {
                    open.push(target);
                }
                if known == Some(false) {
                    break;
                }
            }
            at += 1;
        }
    }
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for at in chain.clone().filter(|&at| seen[at - chain.start]) {
        match ranges.last_mut() {
            Some((_, end)) if *end + 1 == at => *end = at,
            _ => ranges.push((at, at)),
        }
    }
    ranges
}

/// Makes one block per value that is not a view; the value's views belong to its block.
fn gather_blocks(
    plan: &ExecutionPlan,
    lives: &[Option<Life>],
    owners: &[usize],
    moved: &[(usize, Vec<(i64, i64)>)],
) -> Vec<Block> {
    let mut blocks: Vec<Option<Block>> = vec![None; lives.len()];
    let in_use = |id: &usize| lives[*id].as_ref().is_some_and(|l| l.first <= l.last && !l.bytes.is_empty());
    for id in (0..lives.len()).filter(in_use) {
        let Some(life) = &lives[id] else { continue };
        let owner = owners[id];
        let layout = || {
            let tensor = plan.values[owner].as_tensor();
            tensor.map_or_else(String::new, |t| {
                crate::show::layout_of_fields(t.scalar_type, &t.sizes, &t.dim_order)
            })
        };
        let block = blocks[owner].get_or_insert_with(|| Block {
            memory_id: life.memory_id,
            bytes: lives[owner].as_ref().unwrap_or(life).bytes.clone(),
            life: Vec::new(),
            writes: Vec::new(),
            values: Vec::new(),
            layout: layout(),
            role: life.role,
        });
        match block.life.first_mut() {
            Some((first, last)) => (*first, *last) = ((*first).min(life.first), (*last).max(life.last)),
            None => block.life.push((life.first, life.last)),
        }
        block.writes.extend(&life.writes);
        if block.role.is_empty() {
            block.role = life.role;
        }
        block.values.push(id);
    }
    for (id, needed) in moved {
        if let Some(block) = &mut blocks[owners[*id]] {
            block.life.extend(needed);
        }
    }
    let mut blocks: Vec<Block> = blocks.into_iter().flatten().collect();
    blocks.iter_mut().for_each(|block| block.life = merge_ranges(std::mem::take(&mut block.life)));
    blocks
}

/// Sorts inclusive ranges and merges overlapping and adjacent ones.
fn merge_ranges(mut ranges: Vec<(i64, i64)>) -> Vec<(i64, i64)> {
    ranges.sort_unstable();
    let mut all: Vec<(i64, i64)> = Vec::new();
    for (first, last) in ranges {
        match all.last_mut() {
            Some((_, end)) if *end + 1 >= first => *end = (*end).max(last),
            _ => all.push((first, last)),
        }
    }
    all
}

/// Extends the lifetime of blocks that are live at the start of a loop to the whole loop.
fn extend_over_loops(steps: &[RaisedInstruction], blocks: &mut [Block]) {
    /// Limit of the number of loops times the number of blocks; beyond it, overlapping loops are merged.
    const MAX_WORK: usize = 1 << 24;
    let mut loops: Vec<(i64, i64)> = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        let RaisedFlow::JumpFalse { target, .. } = step.flow else { continue };
        loops.extend((target <= at).then_some((target as i64, at as i64)));
    }
    if loops.len().saturating_mul(blocks.len()) > MAX_WORK {
        loops = merge_ranges(loops);
        for block in blocks {
            let within = |&(first, last): &(i64, i64)| {
                let (start, end) = *loops[..loops.partition_point(|l| l.0 <= last)].last()?;
                (first < start && last <= end).then_some((start, end))
            };
            let more: Vec<(i64, i64)> = block.life.iter().filter_map(within).collect();
            block.life.extend(more);
            block.life = merge_ranges(std::mem::take(&mut block.life));
        }
        return;
    }
    for (start, end) in loops {
        for block in blocks.iter_mut() {
            if block.life.iter().any(|&(first, last)| first < start && last >= start) {
                block.life.push((start, end));
                block.life = merge_ranges(std::mem::take(&mut block.life));
            }
        }
    }
}
