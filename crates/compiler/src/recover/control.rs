//! Lifts jumps to branches and loops.

use super::calls::scalar_primitive;
use super::flow::{Block, Branch, Flow, Key, Loop, Structure, combined_flow, record_live};
use super::{Recovery, State, instruction_source};
use crate::Result;
use pteron_exported::{Argument, ExportedGraph, ExportedNode, Size, VarId, VarType};
use pteron_format::pte::{Chain, EValue, Instruction};
use std::mem::{replace, take};

const COPY_INDEX: &str = "executorch_prim::et_copy_index.tensor";
const SELECT: &str = "aten::select_copy.int_out";

/// Maximum product of the numbers of jumps and values: each branch starts with a copy of the state of all values.
const MAX_STATES: usize = 1 << 26;

/// A chain, and the data flow of each of its instructions.
struct AnalyzedChain<'a> {
    chain: &'a Chain,
    calls: Vec<Flow>,
}

/// A part of the program that is lifted to a nested graph: the state at its end, and its nodes.
struct BranchBody {
    end: State,
    nodes: Vec<ExportedNode>,
}

/// A loop that visits the rows of tensors. Its body excludes the instructions that count and that read or write a row.
struct RowLoop {
    /// The plan's index of the loop counter.
    counter: usize,
    /// The plan's index of the number of rows.
    count: usize,
    /// The tensors whose rows the loop reads, each with the value that a row is copied to.
    read_rows: Vec<(usize, usize)>,
    /// The tensors whose rows the loop writes, each with the value that is copied to a row.
    stored: Vec<(usize, usize)>,
    /// The indices of the parts that form the body.
    body: Vec<usize>,
}

impl Recovery<'_> {
    /// Lifts a chain with jumps.
    pub(super) fn lift_with_jumps(&mut self, chain: &Chain) -> Result<()> {
        let jumps =
            chain.instructions.iter().filter(|i| matches!(i, Instruction::JumpFalseCall { .. })).count();
        if jumps.saturating_mul(self.plan.values.len()) > MAX_STATES {
            return self.fail(format_args!("{jumps} jumps among {} values", self.plan.values.len()));
        }
        let calls = chain.instructions.iter().map(|instruction| self.flow_of_instruction(instruction));
        let calls = calls.collect::<Result<Vec<Flow>>>()?;
        let structure = Structure::new(&chain.instructions, &self.plan.values, &calls);
        let Some(mut parts) = structure.find_blocks(0..chain.instructions.len()) else {
            return self.fail("its jumps do not form nested branches and loops");
        };
        // Live at the end are the values that the next execution reads before it writes them, and those that other
        // chains read.
        let mut live = combined_flow(&parts, &calls).read;
        for other in self.plan.chains.iter().filter(|other| !std::ptr::eq(*other, chain)) {
            for instruction in &other.instructions {
                live.extend(self.flow_of_instruction(instruction)?.read);
            }
        }
        let ends = self.plan.outputs.iter().chain(&self.plan.inputs).map(|&value| value as usize);
        live.extend(ends.map(|value| (self.storage_key(value), value)));
        record_live(&mut parts, &calls, live);
        self.lift_blocks(&AnalyzedChain { chain, calls }, &parts)
    }

    fn lift_blocks(&mut self, code: &AnalyzedChain<'_>, parts: &[Block]) -> Result<()> {
        parts.iter().try_for_each(|part| match part {
            Block::Call(at) => self.lift_instruction(code.chain, *at),
            Block::Branch(branch) => self.lift_branch(code, branch),
            Block::Loop(part) => self.lift_loop(code, part),
        })
    }

    fn lift_branch(&mut self, code: &AnalyzedChain<'_>, branch: &Branch) -> Result<()> {
        let condition = self.condition(branch.condition)?;
        let before = self.now.clone();
        let mut then = self.lift_body(before.clone(), |recovery| recovery.lift_blocks(code, &branch.then))?;
        let mut otherwise =
            self.lift_body(before, |recovery| recovery.lift_blocks(code, &branch.otherwise))?;
        let written: Vec<usize> = then.end.written.union(&otherwise.end.written).copied().collect();
        let mut merged = Vec::new();
        let mut results = [Vec::new(), Vec::new()];
        for &value in &written {
            if !branch.live.contains_key(&self.storage_key(value)) {
                continue;
            }
            let a = self.with_branch_state(&mut then, |recovery| recovery.defined_value(value));
            let b = self.with_branch_state(&mut otherwise, |recovery| recovery.defined_value(value));
            if let (Some(a), Some(b)) = (a, b) {
                let moved = [&then, &otherwise].iter().any(|arm| arm.end.unplaced.contains_key(&value));
                merged.push(((value, moved), self.common_type(value, &a, &b)?));
                results[0].push(a);
                results[1].push(b);
            }
        }
        self.invalidate(&written);
        if merged.is_empty() {
            return Ok(());
        }
        self.origin = instruction_source(code.chain, branch.at);
        let [then_results, else_results] = results;
        let graph = |arm: BranchBody, outputs| {
            Argument::Graph(Box::new(ExportedGraph { inputs: Vec::new(), nodes: arm.nodes, outputs }))
        };
        let args = vec![
            ("pred".into(), condition),
            ("true_graph".into(), graph(then, then_results)),
            ("false_graph".into(), graph(otherwise, else_results)),
            ("operands".into(), Argument::Vars(Vec::new())),
        ];
        let (values, types): (Vec<(usize, bool)>, Vec<VarType>) = merged.into_iter().unzip();
        let vars = self.push_node("higher_order.cond", args, types);
        for ((value, moved), var) in values.into_iter().zip(vars) {
            if moved {
                self.set_unplaced(value, var, None);
            } else {
                self.define_tensor_or_scalar(value, var)?;
            }
        }
        Ok(())
    }

    /// The condition of a branch: a boolean, or a tensor that holds one.
    fn condition(&mut self, value: usize) -> Result<Argument> {
        match &self.plan.values[value] {
            EValue::Tensor(_) => Ok(Argument::Var(self.current_value(value)?)),
            _ => self.scalar_argument(value),
        }
    }

    /// Lifts a part of the program to a nested graph, starting from a given state.
    fn lift_body(&mut self, start: State, read: impl FnOnce(&mut Self) -> Result<()>) -> Result<BranchBody> {
        let mut arm = BranchBody { end: State { written: Default::default(), ..start }, nodes: Vec::new() };
        self.with_branch_state(&mut arm, read).map(|()| arm)
    }

    /// Calls `act` with the state at the end of a nested graph.
    fn with_branch_state<T>(&mut self, arm: &mut BranchBody, act: impl FnOnce(&mut Self) -> T) -> T {
        let now = replace(&mut self.now, take(&mut arm.end));
        let nodes = replace(&mut self.program.graph.nodes, take(&mut arm.nodes));
        let result = act(self);
        arm.end = replace(&mut self.now, now);
        arm.nodes = replace(&mut self.program.graph.nodes, nodes);
        result
    }

    /// The current value of the plan's value `value`; `None` if that is undefined at this point.
    fn defined_value(&mut self, value: usize) -> Option<Argument> {
        match &self.plan.values[value] {
            EValue::Tensor(_) => self.current_value(value).ok().map(Argument::Var),
            _ => self.known_number(value),
        }
    }

    /// The type of a value that comes from one of two branches.
    fn common_type(&mut self, value: usize, a: &Argument, b: &Argument) -> Result<VarType> {
        let ty = |argument: &Argument| match argument {
            Argument::Var(var) => self.program.var(*var).ty.clone(),
            Argument::Float(_) => VarType::Float,
            Argument::Bool(_) => VarType::Bool,
            Argument::Int(number) => VarType::Int(Size::Int(*number)),
            Argument::Str(_) => VarType::Str,
            _ => VarType::Opaque,
        };
        Ok(match (ty(a), ty(b)) {
            (VarType::Tensor(a), VarType::Tensor(b)) if a == b => VarType::Tensor(a),
            (VarType::Tensor(_), _) => VarType::Tensor(self.spec_of(self.tensor(value)?)?),
            (VarType::Int(a), VarType::Int(b)) if a == b => VarType::Int(a),
            (VarType::Int(_), _) => VarType::Int(self.unknown_size()),
            (other, _) => other,
        })
    }

    /// Invalidates values that a nested graph has written; they are undefined until they are defined again.
    fn invalidate(&mut self, values: &[usize]) {
        for &value in values {
            match self.storage_key(value) {
                Key::Place(extent) => self.now.memory.invalidate(extent),
                Key::Value(_) => {}
            }
            self.now.unplaced.remove(&value);
            self.now.numbers.remove(&value);
            self.now.written.insert(value);
        }
    }

    fn lift_loop(&mut self, code: &AnalyzedChain<'_>, part: &Loop) -> Result<()> {
        let written = |(key, _): &(&Key, &usize)| part.flow.written.contains_key(key);
        let mut carried: Vec<usize> =
            part.flow.read.iter().filter(written).map(|(_, &value)| value).collect();
        carried.sort_unstable();
        match (&part.body, self.match_row_loop(code, part)) {
            (Some(body), _) => self.lift_while_loop(code, part, body, &carried),
            (None, Some(rows)) => self.lift_scan(code, part, &rows, carried),
            (None, None) => self.fail("it has a loop that is not over the rows of a tensor"),
        }
    }

    fn lift_while_loop(
        &mut self,
        code: &AnalyzedChain<'_>,
        part: &Loop,
        body: &[Block],
        carried: &[usize],
    ) -> Result<()> {
        let initial = self.initial_values(carried)?;
        let types: Vec<VarType> = initial.iter().map(|&var| self.program.var(var).ty.clone()).collect();
        let before = self.now.clone();
        let (head_inputs, mut head) = self.lift_body_with_inputs(&before, carried, &types, |recovery| {
            recovery.lift_blocks(code, &part.head)
        })?;
        let goes_on = self.with_branch_state(&mut head, |recovery| recovery.condition(part.condition))?;
        let (body_inputs, mut arm) = self.lift_body_with_inputs(&before, carried, &types, |recovery| {
            recovery.lift_blocks(code, &part.head)?;
            recovery.lift_blocks(code, body)
        })?;
        let results = self.body_results(&mut arm, carried)?;
        let written: Vec<usize> = head.end.written.union(&arm.end.written).copied().collect();
        self.invalidate(&written);
        self.origin = instruction_source(code.chain, part.at);
        let graph = |arm: BranchBody, inputs, outputs| {
            Argument::Graph(Box::new(ExportedGraph { inputs, nodes: arm.nodes, outputs }))
        };
        let args = vec![
            ("cond_fn".into(), graph(head, head_inputs, vec![goes_on])),
            ("body_fn".into(), graph(arm, body_inputs, results)),
            ("carried_inputs".into(), Argument::Vars(initial)),
            ("additional_inputs".into(), Argument::Vars(Vec::new())),
        ];
        let vars = self.push_node("higher_order.while_loop", args, types);
        carried.iter().zip(vars).try_for_each(|(&value, var)| self.define_tensor_or_scalar(value, var))
    }

    fn lift_scan(
        &mut self,
        code: &AnalyzedChain<'_>,
        part: &Loop,
        rows: &RowLoop,
        mut carried: Vec<usize>,
    ) -> Result<()> {
        let own = |value: usize| value == rows.counter || rows.stored.iter().any(|(to, _)| *to == value);
        carried.retain(|&value| !own(value));
        let initial = self.initial_values(&carried)?;
        let over = rows
            .read_rows
            .iter()
            .map(|(from, _)| self.current_value(*from))
            .collect::<Result<Vec<VarId>>>()?;
        let count = self.row_count(&over, rows)?;
        let types: Vec<VarType> = initial.iter().map(|&var| self.program.var(var).ty.clone()).collect();
        let mut body_inputs = carried.clone();
        let mut given_types = types.clone();
        for ((_, row), &of) in rows.read_rows.iter().zip(&over) {
            let mut spec = self.spec_of(self.tensor(*row)?)?;
            if let Some(source) = self.program.spec(of).filter(|source| source.rank() == spec.rank() + 1) {
                spec.sizes = source.sizes[1..].to_vec();
            }
            body_inputs.push(*row);
            given_types.push(VarType::Tensor(spec));
        }
        let before = self.now.clone();
        let (inputs, mut arm) =
            self.lift_body_with_inputs(&before, &body_inputs, &given_types, |recovery| {
                rows.body.iter().try_for_each(|&i| recovery.lift_blocks(code, &part.head[i..=i]))
            })?;
        let mut outputs = self.body_results(&mut arm, &carried)?;
        let mut out_types = types;
        for (to, from) in &rows.stored {
            let row = self.with_branch_state(&mut arm, |recovery| recovery.current_value(*from))?;
            let mut spec = self.spec_of(self.tensor(*to)?)?;
            if let Some(of_row) = self.program.spec(row).filter(|row| row.rank() + 1 == spec.rank()) {
                spec.sizes = std::iter::once(count.clone()).chain(of_row.sizes.iter().cloned()).collect();
            }
            outputs.push(Argument::Var(row));
            out_types.push(VarType::Tensor(spec));
        }
        let written: Vec<usize> = arm.end.written.iter().copied().collect();
        self.invalidate(&written);
        self.origin = instruction_source(code.chain, part.at);
        let graph = ExportedGraph { inputs, nodes: arm.nodes, outputs };
        let args = vec![
            ("combine_fn".into(), Argument::Graph(Box::new(graph))),
            ("init".into(), Argument::Vars(initial)),
            ("xs".into(), Argument::Vars(over)),
            ("additional_inputs".into(), Argument::Vars(Vec::new())),
        ];
        let vars = self.push_node("higher_order.scan", args, out_types);
        let stored = rows.stored.iter().map(|(to, _)| *to);
        for (value, var) in carried.iter().copied().chain(stored).zip(vars) {
            self.define_tensor_or_scalar(value, var)?;
        }
        let count = self.scalar_argument(rows.count)?;
        self.set_number(rows.counter, count);
        Ok(())
    }

    /// The values with which a loop's carried values start.
    fn initial_values(&mut self, carried: &[usize]) -> Result<Vec<VarId>> {
        let values = carried.iter().map(|&value| match self.defined_value(value) {
            Some(Argument::Var(var)) => Ok(var),
            _ => self.fail(format_args!("value {value} is no tensor or computed number when a loop begins")),
        });
        values.collect()
    }

    /// Lifts a nested graph that has `values` as its inputs.
    fn lift_body_with_inputs(
        &mut self,
        before: &State,
        values: &[usize],
        types: &[VarType],
        read: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<(Vec<VarId>, BranchBody)> {
        let mut inputs = Vec::with_capacity(values.len());
        let arm = self.lift_body(before.clone(), |recovery| {
            for (&value, ty) in values.iter().zip(types) {
                let name = format!("v{}", recovery.program.num_vars());
                let var = recovery.program.add_var(name, ty.clone());
                inputs.push(var);
                match ty {
                    VarType::Tensor(_) => recovery.define(value, var)?,
                    _ => recovery.set_number(value, Argument::Var(var)),
                }
            }
            read(recovery)
        })?;
        Ok((inputs, arm))
    }

    /// The values at the end of a nested graph.
    fn body_results(&mut self, arm: &mut BranchBody, values: &[usize]) -> Result<Vec<Argument>> {
        let results = values.iter().map(|&value| {
            match self.with_branch_state(arm, |recovery| recovery.defined_value(value)) {
                Some(result) => Ok(result),
                None => self.fail(format_args!("value {value} is undefined at the end of an iteration")),
            }
        });
        results.collect()
    }

    /// The number of rows, if the loop visits all rows of all tensors.
    fn row_count(&self, over: &[VarId], rows: &RowLoop) -> Result<Size> {
        let first = |&var: &VarId| self.program.spec(var)?.sizes.first().cloned();
        let sizes: Option<Vec<Size>> = over.iter().map(first).collect();
        let count = match self.scalar_argument(rows.count)? {
            Argument::Int(count) => Some(Size::Int(count)),
            Argument::Var(var) => match &self.program.var(var).ty {
                VarType::Int(size) => Some(size.clone()),
                _ => None,
            },
            _ => None,
        };
        let starts = matches!(self.scalar_argument(rows.counter)?, Argument::Int(0));
        match (sizes, count) {
            (Some(sizes), Some(count)) if starts && sizes.iter().all(|size| *size == count) => Ok(count),
            _ => self.fail("a loop over other rows than all of its tensors"),
        }
    }

    /// Recognizes a loop over rows: it counts up to the number of rows, and uses the counter only to take and to store
    /// rows.
    fn match_row_loop(&self, code: &AnalyzedChain<'_>, part: &Loop) -> Option<RowLoop> {
        let called = |part: &Block| -> Option<(String, Vec<usize>)> {
            let Block::Call(at) = part else { return None };
            let Instruction::KernelCall { op_index, args } = &code.chain.instructions[*at] else {
                return None;
            };
            let name = self.plan.operators[*op_index as usize].full_name();
            Some((name, args.iter().map(|&value| value as usize).collect()))
        };
        let is = |value: usize, number: i64| matches!(self.plan.values[value], EValue::Int(n) if n == number);
        let [rest @ .., step, test] = &part.head[..] else { return None };
        let (step, test) = (called(step)?, called(test)?);
        if scalar_primitive(&step.0) != Some("add") || scalar_primitive(&test.0) != Some("eq") {
            return None;
        }
        let (&[counter, by, next], &[counted, count, done]) = (&step.1[..], &test.1[..]) else { return None };
        if !is(by, 1) || next != counter || counted != counter || done != part.condition {
            return None;
        }
        let (mut read_rows, mut stored, mut body) = (Vec::new(), Vec::new(), Vec::new());
        for (i, part) in rest.iter().enumerate() {
            let call = called(part);
            match call.as_ref().map(|(name, args)| (name.as_str(), &args[..])) {
                Some((SELECT, &[from, dim, index, row, ..])) if index == counter && is(dim, 0) => {
                    read_rows.push((i, from, row));
                }
                Some((COPY_INDEX, &[to, row, index])) if index == counter => stored.push((i, to, row)),
                _ => body.push(i),
            }
        }
        // Rows must be taken before the body computes, and stored after that.
        let (first, last) = (body.first().copied().unwrap_or(rest.len()), body.last().copied());
        let in_order = read_rows.iter().all(|&(i, ..)| i < first)
            && stored.iter().all(|&(i, ..)| last.is_none_or(|last| i > last));
        let body_of = |value: usize| {
            let key = self.storage_key(value);
            let flow = |&i: &usize| rest[i].flow(&code.calls);
            body.iter().any(|i| flow(i).read.contains_key(&key) || flow(i).written.contains_key(&key))
        };
        let own = [counter, count, done].into_iter().chain(stored.iter().map(|&(_, to, _)| to));
        let is_changed =
            |&(_, from, _): &(usize, usize, usize)| part.flow.written.contains_key(&self.storage_key(from));
        if !in_order || read_rows.is_empty() || own.clone().any(body_of) || read_rows.iter().any(is_changed) {
            return None;
        }
        let pairs = |rows: Vec<(usize, usize, usize)>| rows.into_iter().map(|(_, a, b)| (a, b)).collect();
        Some(RowLoop { counter, count, read_rows: pairs(read_rows), stored: pairs(stored), body })
    }
}
