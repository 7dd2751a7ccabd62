//! Recovers the structure of a chain, as calls, branches and loops, and its liveness.

use super::Recovery;
use super::calls::{COPY, ET_VIEW, scalar_primitive};
use super::memory::Extent;
use crate::Result;
use pteron_format::pte::{EValue, Instruction};
use std::collections::HashMap;
use std::ops::Range;

/// Maximum nesting of branches and loops.
const MAX_NESTING: usize = 32;

/// Where a value is stored: its extent in an arena, or the value itself if it is not planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Place(Extent),
    Value(usize),
}

/// The storage of each value that is read before it is written, with a value of the plan that reads it.
pub(super) type LiveIn = HashMap<Key, usize>;

/// A part of a chain: a call, a branch or a loop.
pub(super) enum Block {
    /// An instruction that neither jumps nor is jumped to.
    Call(usize),
    Branch(Branch),
    Loop(Loop),
}

/// Two arms of which one is executed.
pub(super) struct Branch {
    /// The conditional jump.
    pub(super) at: usize,
    /// The plan's index of the value that the jump tests.
    pub(super) condition: usize,
    pub(super) then: Vec<Block>,
    pub(super) otherwise: Vec<Block>,
    /// The values that are live after the branch.
    pub(super) live: LiveIn,
    flow: Flow,
}

/// Parts that are executed repeatedly.
pub(super) struct Loop {
    /// The jump that decides whether to repeat.
    pub(super) at: usize,
    /// The plan's index of the value that the jump tests.
    pub(super) condition: usize,
    /// The parts of the loop before the jump at `at`.
    pub(super) head: Vec<Block>,
    /// The parts after the jump at `at`, if a false condition leaves the loop; `None` if a false condition repeats it.
    pub(super) body: Option<Vec<Block>>,
    /// The values that an iteration reads from the previous one or from before the loop, and those that it writes.
    pub(super) flow: Flow,
}

/// The values that parts read before they write them, those that they certainly write, and those that they may write.
#[derive(Default, Clone)]
pub(super) struct Flow {
    pub(super) read: LiveIn,
    killed: LiveIn,
    pub(super) written: LiveIn,
}

impl Flow {
    /// Prepends `first`, the flow of the blocks that come before.
    fn prepend(&mut self, first: &Flow) {
        first.apply_to_live(&mut self.read);
        self.killed.extend(&first.killed);
        self.written.extend(&first.written);
    }

    /// Updates `live` from the values live after the blocks to those live before them.
    fn apply_to_live(&self, live: &mut LiveIn) {
        self.killed.keys().for_each(|key| {
            live.remove(key);
        });
        live.extend(&self.read);
    }
}

impl Block {
    pub(super) fn flow<'a>(&'a self, calls: &'a [Flow]) -> &'a Flow {
        match self {
            Block::Call(at) => &calls[*at],
            Block::Branch(branch) => &branch.flow,
            Block::Loop(part) => &part.flow,
        }
    }
}

/// Propagates liveness backwards through parts, and records it in branches.
pub(super) fn record_live(parts: &mut [Block], calls: &[Flow], mut live: LiveIn) {
    for part in parts.iter_mut().rev() {
        match part {
            Block::Call(_) => {}
            Block::Branch(branch) => {
                record_live(&mut branch.then, calls, live.clone());
                record_live(&mut branch.otherwise, calls, live.clone());
                branch.live = live.clone();
            }
            Block::Loop(part) => {
                let mut inside = live.clone();
                inside.extend(&part.flow.read);
                if let Some(body) = &mut part.body {
                    record_live(body, calls, inside.clone());
                }
                record_live(&mut part.head, calls, inside);
            }
        }
        part.flow(calls).apply_to_live(&mut live);
    }
}

/// The combined flow of consecutive parts.
pub(super) fn combined_flow(parts: &[Block], calls: &[Flow]) -> Flow {
    let mut flow = Flow::default();
    parts.iter().rev().for_each(|part| flow.prepend(part.flow(calls)));
    flow
}

/// Recovers the branches and loops of a chain.
pub(super) struct Structure<'a> {
    pub(super) instructions: &'a [Instruction],
    pub(super) values: &'a [EValue],
    /// The values that each instruction reads and writes.
    pub(super) calls: &'a [Flow],
    /// For each instruction that backward jumps lead to, the last of these jumps.
    back: HashMap<usize, usize>,
    /// For each value, whether any instruction writes it.
    written: Vec<bool>,
}

impl<'a> Structure<'a> {
    pub(super) fn new(instructions: &'a [Instruction], values: &'a [EValue], calls: &'a [Flow]) -> Self {
        let mut back = HashMap::new();
        for (at, instruction) in instructions.iter().enumerate() {
            if let Some((_, to)) = jump_operands(instruction)
                && to <= at
            {
                back.insert(to, at);
            }
        }
        let mut written = vec![false; values.len()];
        for value in calls.iter().flat_map(|flow| flow.written.values()) {
            written[*value] = true;
        }
        Self { instructions, values, calls, back, written }
    }

    /// The parts of a range of instructions; `None` if its jumps do not form nested branches and loops.
    pub(super) fn find_blocks(&self, range: Range<usize>) -> Option<Vec<Block>> {
        self.find_nested_blocks(range, None, MAX_NESTING)
    }

    /// Finds the blocks of a range. A loop that starts at `inside` is the enclosing one, and is not found again.
    fn find_nested_blocks(
        &self,
        range: Range<usize>,
        inside: Option<usize>,
        nesting: usize,
    ) -> Option<Vec<Block>> {
        let nesting = nesting.checked_sub(1)?;
        let mut parts = Vec::new();
        let mut at = range.start;
        while at < range.end {
            if let Some(&end) = self.back.get(&at)
                && inside != Some(at)
            {
                if end >= range.end {
                    return None;
                }
                parts.push(Block::Loop(self.find_loop(at, end, nesting)?));
                at = end + 1;
                continue;
            }
            let Some((condition, to)) = jump_operands(&self.instructions[at]) else {
                parts.push(Block::Call(at));
                at += 1;
                continue;
            };
            if to <= at || to > range.end {
                return None;
            }
            // An unconditional jump at the end of the first arm skips the second.
            let second = jump_operands(&self.instructions[to - 1])
                .filter(|&(condition, end)| to - 1 > at && self.is_false(condition) && end >= to);
            let (then, otherwise) = match second {
                Some((_, end)) if end <= range.end => (at + 1..to - 1, to..end),
                _ => (at + 1..to, to..to),
            };
            let end = otherwise.end;
            let then = self.find_nested_blocks(then, None, nesting)?;
            let otherwise = self.find_nested_blocks(otherwise, None, nesting)?;
            let (a, b) = (combined_flow(&then, self.calls), combined_flow(&otherwise, self.calls));
            let killed = a.killed.iter().filter(|(key, _)| b.killed.contains_key(key));
            let mut flow = Flow { killed: killed.map(|(&k, &v)| (k, v)).collect(), ..Flow::default() };
            flow.read.extend(a.read.iter().chain(&b.read));
            flow.written.extend(a.written.iter().chain(&b.written));
            flow.read.extend(&self.calls[at].read);
            parts.push(Block::Branch(Branch { at, condition, then, otherwise, live: LiveIn::new(), flow }));
            at = end;
        }
        Some(parts)
    }

    /// The loop from `start` to the backward jump at `end`.
    fn find_loop(&self, start: usize, end: usize, nesting: usize) -> Option<Loop> {
        let (condition, _) = jump_operands(&self.instructions[end])?;
        if !self.is_false(condition) {
            let head = self.find_nested_blocks(start..end, Some(start), nesting)?;
            let mut flow = self.calls[end].clone();
            flow.prepend(&combined_flow(&head, self.calls));
            return Some(Loop { at: end, condition, head, body: None, flow });
        }
        let leaves = |&at: &usize| jump_operands(&self.instructions[at]).is_some_and(|(_, to)| to == end + 1);
        let at = (start..end).find(leaves)?;
        let (condition, _) = jump_operands(&self.instructions[at])?;
        let head = self.find_nested_blocks(start..at, Some(start), nesting)?;
        let body = self.find_nested_blocks(at + 1..end, None, nesting)?;
        let mut first = self.calls[at].clone();
        first.prepend(&combined_flow(&head, self.calls));
        let mut flow = combined_flow(&body, self.calls);
        flow.prepend(&first);
        flow.killed = first.killed;
        Some(Loop { at, condition, head, body: Some(body), flow })
    }

    /// Whether a value is always false.
    fn is_false(&self, value: usize) -> bool {
        matches!(self.values[value], EValue::Bool(false)) && !self.written[value]
    }
}

/// A jump's condition, by its index in the plan, and the instruction to which a false condition jumps.
fn jump_operands(instruction: &Instruction) -> Option<(usize, usize)> {
    match instruction {
        Instruction::JumpFalseCall { cond_value_index, destination_instruction } => {
            Some((*cond_value_index as usize, *destination_instruction as usize))
        }
        _ => None,
    }
}

impl Recovery<'_> {
    /// Where a value is stored.
    pub(super) fn storage_key(&self, value: usize) -> Key {
        let tensor = self.plan.values.get(value).and_then(EValue::as_tensor);
        tensor.and_then(|tensor| self.extent(tensor)).map_or(Key::Value(value), Key::Place)
    }

    /// The values that an instruction reads and writes, by where they are stored.
    pub(super) fn flow_of_instruction(&self, instruction: &Instruction) -> Result<Flow> {
        let mut flow = Flow::default();
        match instruction {
            Instruction::KernelCall { op_index, args } => {
                let operator = self.plan.operators[*op_index as usize].full_name();
                let written = self.arg_accesses(&operator, args);
                for (&value, (reads, writes)) in args.iter().zip(written) {
                    self.record_access(&mut flow, value as usize, reads, writes);
                }
            }
            Instruction::DelegateCall { delegate_index, args } => {
                let inputs = self.count_delegate_inputs(*delegate_index as usize)?;
                for (i, &value) in args.iter().enumerate() {
                    self.record_access(&mut flow, value as usize, i < inputs, i >= inputs);
                }
            }
            Instruction::MoveCall { move_from, move_to } => {
                self.record_access(&mut flow, *move_from as usize, true, false);
                self.record_access(&mut flow, *move_to as usize, false, true);
            }
            Instruction::JumpFalseCall { cond_value_index, .. } => {
                self.record_access(&mut flow, *cond_value_index as usize, true, false);
            }
            Instruction::FreeCall { .. } => {}
        }
        Ok(flow)
    }

    /// For each argument of a call, whether it is read and whether it is written.
    fn arg_accesses(&self, operator: &str, values: &[i32]) -> Vec<(bool, bool)> {
        let count = values.len();
        let last_written = |i: usize| (i + 1 < count, i + 1 == count);
        if scalar_primitive(operator).is_some() || operator == ET_VIEW {
            return (0..count).map(last_written).collect();
        }
        let Some(kernel) = self.source.operators.kernel(operator) else { return vec![(true, true); count] };
        let args = &kernel.schema().args;
        if operator == COPY && self.overwrites_destination(values) {
            return (0..count).map(|i| (i == 1, i != 1)).collect();
        }
        let outs = args.iter().rev().take_while(|arg| arg.written).count();
        let first_out = args.len() - outs;
        (0..count).map(|i| (i < first_out, i >= args.len() || args[i].written)).collect()
    }

    /// Whether a copy overwrites all of its destination.
    fn overwrites_destination(&self, values: &[i32]) -> bool {
        let tensor = |i: usize| self.plan.values.get(*values.get(i)? as usize)?.as_tensor();
        match (tensor(0), tensor(1)) {
            (Some(to), Some(from)) => to.sizes == from.sizes,
            _ => false,
        }
    }

    fn record_access(&self, flow: &mut Flow, value: usize, reads: bool, writes: bool) {
        let items: Vec<usize> = match &self.plan.values[value] {
            EValue::TensorList(list) => list.iter().map(|&v| v as usize).collect(),
            EValue::OptionalTensorList(list) => {
                list.iter().filter_map(|&v| usize::try_from(v).ok()).collect()
            }
            EValue::IntList(list) => list.iter().filter_map(|&v| usize::try_from(v).ok()).collect(),
            _ => vec![value],
        };
        for value in items {
            let key = self.storage_key(value);
            if reads && !flow.killed.contains_key(&key) {
                flow.read.insert(key, value);
            }
            if writes {
                flow.killed.insert(key, value);
                flow.written.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jump_to(value: i32, to: i32) -> Instruction {
        Instruction::JumpFalseCall { cond_value_index: value, destination_instruction: to }
    }

    /// The parts of instructions as text: calls as their index, branches as `if(…|…)`, loops as `until(…)` and
    /// `while(…|…)`. Value 0 is always false, others are computed.
    fn parts(instructions: &[Instruction]) -> Option<String> {
        let values = [EValue::Bool(false), EValue::Bool(false)];
        let mut calls = vec![Flow::default(); instructions.len()];
        calls[0].written.insert(Key::Value(1), 1);
        let structure = Structure::new(instructions, &values, &calls);
        structure.find_blocks(0..instructions.len()).map(|parts| text(&parts))
    }

    fn text(parts: &[Block]) -> String {
        let part = |part: &Block| match part {
            Block::Call(at) => at.to_string(),
            Block::Branch(b) => format!("if({}|{})", text(&b.then), text(&b.otherwise)),
            Block::Loop(Loop { head, body: None, .. }) => format!("until({})", text(head)),
            Block::Loop(Loop { head, body: Some(body), .. }) => {
                format!("while({}|{})", text(head), text(body))
            }
        };
        parts.iter().map(part).collect::<Vec<_>>().join(" ")
    }

    fn call() -> Instruction {
        Instruction::FreeCall { value_index: 0 }
    }

    #[test]
    fn jumps_form_branches_and_loops() {
        let two_arms = [call(), jump_to(1, 4), call(), jump_to(0, 5), call(), call()];
        assert_eq!(parts(&two_arms).unwrap(), "0 if(2|4) 5");
        let one_arm = [call(), jump_to(1, 3), call(), call()];
        assert_eq!(parts(&one_arm).unwrap(), "0 if(2|) 3");
        let until = [call(), call(), jump_to(1, 1), call()];
        assert_eq!(parts(&until).unwrap(), "0 until(1) 3");
        let with_exit = [call(), call(), jump_to(1, 5), call(), jump_to(0, 1), call()];
        assert_eq!(parts(&with_exit).unwrap(), "0 while(1|3) 5");
        let branch_in_loop = [call(), jump_to(1, 3), call(), jump_to(1, 1), call()];
        assert_eq!(parts(&branch_in_loop).unwrap(), "0 until(if(2|)) 4");
    }

    #[test]
    fn unstructured_jumps_are_rejected() {
        let into_an_arm = [call(), jump_to(1, 4), jump_to(1, 5), call(), call(), call()];
        assert_eq!(parts(&into_an_arm), None);
        let across_loops = [call(), call(), call(), jump_to(1, 1), jump_to(1, 2)];
        assert_eq!(parts(&across_loops), None);
        let endless = [call(), call(), jump_to(0, 1)];
        assert_eq!(parts(&endless), None);
        let deep: Vec<_> = (0..100).map(|_| jump_to(1, 100)).chain([call()]).collect();
        assert_eq!(parts(&deep), None);
    }

    #[test]
    fn branches_know_what_is_live_after_them() {
        let flow = |reads: &[usize], writes: &[usize]| {
            let live = |values: &[usize]| values.iter().map(|&v| (Key::Value(v), v)).collect::<LiveIn>();
            Flow { read: live(reads), killed: live(writes), written: live(writes) }
        };
        let instructions = [call(), jump_to(1, 4), call(), jump_to(0, 5), call(), call()];
        let calls = [
            flow(&[], &[1]),
            flow(&[1], &[]),
            flow(&[2], &[3]),
            flow(&[], &[]),
            flow(&[4], &[3, 5]),
            flow(&[3], &[]),
        ];
        let values = vec![EValue::Bool(false); 6];
        let structure = Structure::new(&instructions, &values, &calls);
        let mut parts = structure.find_blocks(0..6).unwrap();
        assert_eq!(combined_flow(&parts, &calls).read, flow(&[2, 4], &[]).read);
        record_live(&mut parts, &calls, LiveIn::new());
        let Block::Branch(branch) = &parts[1] else { panic!("no branch") };
        assert_eq!(branch.live, flow(&[3], &[]).read);
    }
}
