//! From when to when the tensors of a method are needed.

use super::Block;
use format::pte::{EValue, ExecutionPlan, Instruction, Tensor};
use operator::KernelRegistry;
use runtime::Places;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;
use tensor::Extent;

/// What is found in a method.
pub(super) struct Found {
    pub(super) blocks: Vec<Block>,
    pub(super) instructions: usize,
    pub(super) unknown_operators: Vec<String>,
}

/// One planned value.
#[derive(Debug, Clone)]
struct Life {
    memory_id: u32,
    bytes: Range<u64>,
    first: i64,
    last: i64,
    /// The first instruction that writes it.
    written: Option<i64>,
    /// All instructions that write it.
    writes: Vec<i64>,
    /// The first instruction that reads it.
    read: Option<i64>,
    role: &'static str,
}

impl Life {
    fn touch(&mut self, at: i64) {
        self.first = self.first.min(at);
        self.last = self.last.max(at);
    }
}

/// An instruction in words, by its number among those of all chains.
pub(super) fn describe(plan: &ExecutionPlan, at: i64) -> String {
    let mut index = usize::try_from(at).ok();
    let mut step = None;
    for chain in &plan.chains {
        step = step.or_else(|| chain.instructions.get(index?));
        index = index.and_then(|index| index.checked_sub(chain.instructions.len()));
    }
    match step {
        None if at < 0 => "when inputs are set".to_owned(),
        None => "when outputs are taken".to_owned(),
        Some(Instruction::KernelCall { op_index, .. }) => {
            let operator = usize::try_from(*op_index).ok().and_then(|index| plan.operators.get(index));
            format!("instruction {at}, {}", operator.map_or_else(String::new, |op| op.full_name()))
        }
        Some(other) => format!("instruction {at}, {}", other.kind()),
    }
}

/// The blocks of memory that a method's tensors need.
///
/// A tensor lives from the first instruction that names it, itself or in a list, to the last; an input from
/// before the first, an output to behind the last, and state, which starts with a value or is read before it
/// is written, all the time. What is needed across the start of a loop lives to its end. A value that a
/// `MoveCall` gives another name lives on wherever execution can go from there, up to the last use of that
/// name. A tensor that nothing writes is a view of the one whose bytes it lies in, and a result that is no
/// new tensor is what its operator writes or views: these are one block.
pub(super) fn blocks(plan: &ExecutionPlan, kernels: &KernelRegistry) -> Found {
    let steps: Vec<&Instruction> = plan.chains.iter().flat_map(|chain| &chain.instructions).collect();
    let end = steps.len() as i64;
    let mut lives: Vec<Option<Life>> = plan.values.iter().map(planned).collect();
    // The value whose memory another one is.
    let mut same: Vec<(usize, usize)> = Vec::new();
    let mut unknown = BTreeSet::new();

    for (at, step) in steps.iter().enumerate() {
        let (reads, writes) = match step {
            Instruction::KernelCall { op_index, args } => {
                let name = usize::try_from(*op_index).ok().and_then(|index| plan.operators.get(index));
                let name = name.map(|operator| operator.full_name()).unwrap_or_default();
                let args: Vec<Vec<usize>> = args.iter().map(|&id| mentioned(plan, id)).collect();
                match kernels.get(&name) {
                    Some(kernel) => {
                        let schema = kernel.schema();
                        let written: BTreeSet<usize> = schema.written().collect();
                        let slot = schema.has_result_slot().then_some(schema.args.len());
                        let fresh = schema.fresh_result().is_some();
                        // A result that is no new tensor is what was written, or what is viewed.
                        let whose = schema.viewed_arg().or_else(|| written.iter().next().copied());
                        if let (Some(slot), Some(whose)) = (slot, whose)
                            && let (Some(results), Some(owners)) = (args.get(slot), args.get(whose))
                        {
                            same.extend(results.iter().copied().zip(owners.iter().copied()));
                        }
                        let (mut reads, mut writes) = (Vec::new(), Vec::new());
                        for (position, ids) in args.into_iter().enumerate() {
                            let is_result = Some(position) == slot;
                            let writes_it = written.contains(&position) || is_result && fresh;
                            if writes_it || is_result {
                                writes.extend(ids);
                            } else {
                                reads.extend(ids);
                            }
                        }
                        (reads, writes)
                    }
                    None => {
                        unknown.insert(name);
                        let mut args = args;
                        let writes = args.pop().unwrap_or_default();
                        (args.concat(), writes)
                    }
                }
            }
            // Which arguments are outputs the program does not say: those that have no value yet.
            Instruction::DelegateCall { args, .. } => {
                let ids: Vec<usize> = args.iter().flat_map(|&id| mentioned(plan, id)).collect();
                let has_value = |id: &usize| match &lives[*id] {
                    Some(life) => life.written.is_some() || plan.inputs.contains(&(*id as i32)),
                    None => true,
                };
                ids.into_iter().partition(has_value)
            }
            Instruction::MoveCall { move_from, move_to } => {
                (mentioned(plan, *move_from), mentioned(plan, *move_to))
            }
            Instruction::JumpFalseCall { cond_value_index, .. } => {
                (mentioned(plan, *cond_value_index), Vec::new())
            }
            Instruction::FreeCall { .. } => continue,
        };
        let at = at as i64;
        for (ids, writes) in [(reads, false), (writes, true)] {
            for id in ids {
                let Some(Some(life)) = lives.get_mut(id) else { continue };
                life.touch(at);
                if writes {
                    life.written.get_or_insert(at);
                    life.writes.push(at);
                } else {
                    life.read.get_or_insert(at);
                }
            }
        }
    }
    let mut life_of = |id: &i32, touch: i64, role: &'static str| {
        if let Some(life) = usize::try_from(*id).ok().and_then(|id| lives.get_mut(id)?.as_mut()) {
            life.touch(touch);
            if role == "input" {
                life.written = Some(-1);
                life.writes.push(-1);
            }
            life.role = role;
        }
    };
    plan.inputs.iter().for_each(|id| life_of(id, -1, "input"));
    plan.outputs.iter().for_each(|id| life_of(id, end, "output"));

    let owners = owners(&mut lives, same, plan, end);
    let chains: Vec<&[Instruction]> = plan.chains.iter().map(|chain| &chain.instructions[..]).collect();
    let moved = follow_moves(&chains, &lives, plan);
    let mut blocks = gather(plan, &lives, &owners, &moved);
    close_loops(&chains, &mut blocks);
    Found { blocks, instructions: steps.len(), unknown_operators: unknown.into_iter().collect() }
}

fn planned(value: &EValue) -> Option<Life> {
    let tensor = value.as_tensor()?;
    let place = tensor.allocation_info?;
    let start = place.offset();
    Some(Life {
        memory_id: place.memory_id,
        bytes: start..start.saturating_add(tensor.nbytes().unwrap_or(0)),
        first: i64::MAX,
        last: i64::MIN,
        written: None,
        writes: Vec::new(),
        read: None,
        role: if has_initial_value(tensor) { "state" } else { "" },
    })
}

fn has_initial_value(tensor: &Tensor) -> bool {
    tensor.initial_data_idx().is_some() || tensor.is_external()
}

/// The tensors that an argument stands for.
fn mentioned(plan: &ExecutionPlan, id: i32) -> Vec<usize> {
    let Ok(id) = usize::try_from(id) else { return Vec::new() };
    match plan.values.get(id) {
        Some(EValue::Tensor(_)) => vec![id],
        Some(EValue::TensorList(ids) | EValue::OptionalTensorList(ids)) => ids
            .iter()
            .filter_map(|&id| usize::try_from(id).ok())
            .filter(|&id| id < plan.values.len())
            .collect(),
        _ => Vec::new(),
    }
}

/// For each value, the value whose memory it is; itself unless it is a view. Makes state of what is read
/// before anything writes it.
fn owners(
    lives: &mut [Option<Life>],
    same: Vec<(usize, usize)>,
    plan: &ExecutionPlan,
    end: i64,
) -> Vec<usize> {
    let mut owners: Vec<usize> = (0..lives.len()).collect();
    for (result, owner) in same {
        let root = root(&mut owners, owner);
        if root != result && owners[result] == result {
            owners[result] = root;
        }
    }
    let outputs: BTreeSet<usize> = plan.outputs.iter().filter_map(|&id| usize::try_from(id).ok()).collect();
    for (id, holder) in holders(lives, &owners) {
        let holder = holder.map(|holder| root(&mut owners, holder)).filter(|&root| root != id);
        match (holder, &mut lives[id]) {
            (Some(holder), _) => owners[id] = holder,
            (None, Some(life)) => life.role = if outputs.contains(&id) { "output" } else { "state" },
            (None, None) => {}
        }
    }
    for life in lives.iter_mut().flatten().filter(|life| life.role == "state") {
        life.touch(-1);
        life.touch(end);
        life.writes.push(-1);
    }
    (0..owners.len()).map(|id| root(&mut owners, id)).collect()
}

/// The values that are read before anything writes them, each with the value in whose bytes it lies: the one that
/// was last written there, as a whole, before it is first used.
fn holders(lives: &[Option<Life>], owners: &[usize]) -> Vec<(usize, Option<usize>)> {
    let all = || lives.iter().enumerate().filter_map(|(id, life)| Some((id, life.as_ref()?)));
    let is_unwritten = |id: usize, life: &Life| {
        let unwritten = life.written.is_none_or(|written| life.read.is_some_and(|read| read < written));
        unwritten && life.role != "state" && owners[id] == id && life.first != i64::MAX
    };
    let mut asked: Vec<(i64, usize)> = all()
        .filter(|&(id, life)| is_unwritten(id, life))
        .map(|(id, life)| (life.read.unwrap_or(life.first), id))
        .collect();
    asked.sort_unstable();
    // Of values written by one instruction, that with the least id counts.
    let mut written: Vec<(i64, Reverse<usize>)> =
        all().filter_map(|(id, life)| Some((life.written?, Reverse(id)))).collect();
    written.sort_unstable();
    let (mut written, mut memory) = (written.into_iter().peekable(), Places::default());
    let extent = |life: &Life| Extent {
        arena: life.memory_id as usize,
        offset: usize::try_from(life.bytes.start).unwrap_or(usize::MAX),
        len: usize::try_from(life.bytes.end - life.bytes.start).unwrap_or(0),
    };
    let mut found = Vec::new();
    for (used, id) in asked {
        while let Some((_, Reverse(other))) = written.next_if(|(at, _)| *at <= used) {
            lives[other].iter().for_each(|life| memory.write(extent(life), other, |_| ()));
        }
        let mut holder = None;
        let wanted = lives[id].as_ref().map(extent);
        wanted.into_iter().for_each(|wanted| {
            memory.read(wanted, |part, other| holder = other.filter(|&other| part == wanted && other != id));
        });
        found.push((id, holder));
    }
    found
}

/// The value whose memory a value's is, at the end of all that are views of one another.
fn root(owners: &mut [usize], mut id: usize) -> usize {
    while owners[id] != id {
        owners[id] = owners[owners[id]];
        id = owners[id];
    }
    id
}

/// For each value that a `MoveCall` gives another name, where it is needed for that: what execution can
/// reach from there, up to the last use of the name.
fn follow_moves(
    chains: &[&[Instruction]],
    lives: &[Option<Life>],
    plan: &ExecutionPlan,
) -> Vec<(usize, Vec<(i64, i64)>)> {
    /// Moves times instructions up to which the ways are followed; beyond, everything between is taken.
    const MOST: usize = 1 << 28;
    let total: usize = chains.iter().map(|chain| chain.len()).sum();
    let is_move = |step: &&Instruction| matches!(step, Instruction::MoveCall { .. });
    let moves = chains.iter().flat_map(|chain| chain.iter()).filter(is_move).count();
    let changing = changing_values(chains);
    let mut extra = Vec::new();
    let mut base = 0;
    for chain in chains {
        for (at, step) in chain.iter().enumerate() {
            let Instruction::MoveCall { move_from, move_to } = step else { continue };
            let to = mentioned(plan, *move_to);
            let Some(last) = to.iter().filter_map(|&id| lives[id].as_ref()).map(|life| life.last).max()
            else {
                continue;
            };
            let needed = match moves.checked_mul(total) {
                Some(work) if work <= MOST => {
                    let inside = reachable(chain, at, plan, &changing);
                    let mut needed: Vec<(i64, i64)> = inside
                        .into_iter()
                        .map(|(from, to)| ((base + from) as i64, ((base + to) as i64).min(last)))
                        .filter(|(from, to)| from <= to)
                        .collect();
                    let behind = (base + chain.len()) as i64;
                    if behind <= last {
                        needed.push((behind, last));
                    }
                    needed
                }
                _ => vec![((base + at) as i64, last.max((base + at) as i64))],
            };
            extra.extend(mentioned(plan, *move_from).into_iter().map(|id| (id, needed.clone())));
        }
        base += chain.len();
    }
    extra
}

/// Values that are no tensors and that an instruction may set.
fn changing_values(chains: &[&[Instruction]]) -> BTreeSet<i32> {
    let mut changing = BTreeSet::new();
    for step in chains.iter().flat_map(|chain| chain.iter()) {
        match step {
            Instruction::KernelCall { args, .. } => changing.extend(args.last()),
            Instruction::DelegateCall { args, .. } => changing.extend(args),
            Instruction::MoveCall { move_to, .. } => _ = changing.insert(*move_to),
            _ => {}
        }
    }
    changing
}

/// The instructions of a chain that can be executed after `from`, as ranges with both ends. A jump on a
/// constant goes one way.
fn reachable(
    chain: &[Instruction],
    from: usize,
    plan: &ExecutionPlan,
    changing: &BTreeSet<i32>,
) -> Vec<(usize, usize)> {
    let mut seen = vec![false; chain.len()];
    let mut open = vec![from + 1];
    while let Some(mut at) = open.pop() {
        while at < chain.len() && !seen[at] {
            seen[at] = true;
            if let Instruction::JumpFalseCall { cond_value_index, destination_instruction } = &chain[at] {
                let condition = usize::try_from(*cond_value_index).ok().and_then(|id| plan.values.get(id));
                let constant = match condition {
                    Some(EValue::Bool(value))
                        if !changing.contains(cond_value_index)
                            && !plan.inputs.contains(cond_value_index) =>
                    {
                        Some(*value)
                    }
                    _ => None,
                };
                let target = usize::try_from(*destination_instruction).unwrap_or(chain.len());
                if constant != Some(true) {
                    open.push(target);
                }
                if constant == Some(false) {
                    break;
                }
            }
            at += 1;
        }
    }
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for at in (0..chain.len()).filter(|&at| seen[at]) {
        match ranges.last_mut() {
            Some((_, end)) if *end + 1 == at => *end = at,
            _ => ranges.push((at, at)),
        }
    }
    ranges
}

/// One block for each value that is no view, with its views.
fn gather(
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
            tensor.map_or_else(String::new, |t| crate::show::typed(t.scalar_type, &t.sizes, &t.dim_order))
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
    blocks.iter_mut().for_each(|block| block.life = joined(std::mem::take(&mut block.life)));
    blocks
}

/// Ranges in order, those that meet made one.
fn joined(mut ranges: Vec<(i64, i64)>) -> Vec<(i64, i64)> {
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

/// What is needed at the start of a loop is needed until its end.
fn close_loops(chains: &[&[Instruction]], blocks: &mut [Block]) {
    /// Loops times blocks up to which each loop counts for itself; beyond, loops that meet are one.
    const MOST: usize = 1 << 24;
    let mut base = 0;
    let mut loops = Vec::new();
    for chain in chains {
        for (at, step) in chain.iter().enumerate() {
            let Instruction::JumpFalseCall { destination_instruction, .. } = step else { continue };
            let target = usize::try_from(*destination_instruction).ok().filter(|target| *target <= at);
            loops.extend(target.map(|target| ((base + target) as i64, (base + at) as i64)));
        }
        base += chain.len();
    }
    if loops.len().saturating_mul(blocks.len()) > MOST {
        loops = joined(loops);
        for block in blocks {
            let within = |&(first, last): &(i64, i64)| {
                let (start, end) = *loops[..loops.partition_point(|l| l.0 <= last)].last()?;
                (first < start && last <= end).then_some((start, end))
            };
            let more: Vec<(i64, i64)> = block.life.iter().filter_map(within).collect();
            block.life.extend(more);
            block.life = joined(std::mem::take(&mut block.life));
        }
        return;
    }
    for (start, end) in loops {
        for block in blocks.iter_mut() {
            if block.life.iter().any(|&(first, last)| first < start && last >= start) {
                block.life.push((start, end));
                block.life = joined(std::mem::take(&mut block.life));
            }
        }
    }
}
