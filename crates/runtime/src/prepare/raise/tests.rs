use super::*;
use crate::{BytesLoader, Limits, LoadOptions, Method, Program};
use pteron_format::pte::{
    AllocationDetails, Builder, Chain, EValue, ExecutionPlan, Instruction, Operator, Tensor,
};
use std::sync::Arc;

/// Builds a method that calls `aten::relu` on tensors of 4 elements.
#[derive(Default)]
struct Relus {
    values: Vec<EValue>,
    instructions: Vec<Instruction>,
    end: u64,
}

impl Relus {
    /// Adds a tensor at an arena offset.
    fn tensor(&mut self, offset: u64) -> i32 {
        self.end = self.end.max(offset + 16);
        let allocation_info = Some(AllocationDetails::new(1, offset));
        let (scalar_type, sizes, dim_order) = (6, vec![4], vec![0]);
        let tensor = Tensor { scalar_type, sizes, dim_order, allocation_info, ..Tensor::default() };
        self.values.push(EValue::Tensor(tensor));
        self.values.len() as i32 - 1
    }

    fn relu(&mut self, from: i32, to: i32) {
        self.instructions.push(Instruction::KernelCall { op_index: 0, args: vec![from, to, to] });
    }

    fn program(self, inputs: &[i32], outputs: &[i32]) -> Program {
        let mut builder = Builder::new();
        builder.execution_plan.push(ExecutionPlan {
            name: "forward".to_owned(),
            values: self.values,
            inputs: inputs.to_vec(),
            outputs: outputs.to_vec(),
            chains: vec![Chain { instructions: self.instructions, ..Chain::default() }],
            operators: vec![Operator { name: "aten::relu".to_owned(), overload: "out".to_owned() }],
            non_const_buffer_sizes: vec![0, self.end as i64],
            ..ExecutionPlan::default()
        });
        let mut file = Vec::new();
        builder.finish().and_then(|draft| draft.write(&mut file)).expect("it is sound");
        Program::load(Arc::new(BytesLoader::new(file)), &Limits::default()).unwrap()
    }

    fn load(self, inputs: &[i32], outputs: &[i32]) -> Method {
        let program = self.program(inputs, outputs);
        let options = LoadOptions {
            kernels: pteron_kernels::registry().into(),
            no_prepare: true,
            ..LoadOptions::default()
        };
        program.load_method("forward", options).unwrap()
    }
}

/// A chain of calls, each with an extent of its own.
fn chain(len: usize) -> Method {
    let mut plan = Relus::default();
    let ids: Vec<i32> = (0..=len).map(|i| plan.tensor(16 * i as u64)).collect();
    ids.windows(2).for_each(|pair| plan.relu(pair[0], pair[1]));
    plan.load(&ids[..1], &ids[len..])
}

/// Pairs of calls that reuse the same two extents, each pair followed by a `FreeCall`.
fn pairs(len: usize) -> Method {
    let mut plan = Relus::default();
    let freed = plan.tensor(0);
    let mut last = plan.tensor(16);
    let first = last;
    for _ in 0..len {
        let (middle, next) = (plan.tensor(32), plan.tensor(48));
        plan.relu(last, middle);
        plan.relu(middle, next);
        plan.instructions.push(Instruction::FreeCall { value_index: freed });
        last = next;
    }
    plan.load(&[first], &[last])
}

/// Small tensors with extents of their own, which are then read repeatedly by tensors that straddle two of them.
fn pieces(len: usize) -> Method {
    let mut plan = Relus::default();
    let x = plan.tensor(0);
    let ids: Vec<i32> = (1..=len).map(|i| plan.tensor(16 * i as u64)).collect();
    let across: Vec<i32> = (1..len).map(|i| plan.tensor(16 * i as u64 + 8)).collect();
    let out = plan.tensor(16 * len as u64 + 16);
    ids.iter().for_each(|&id| plan.relu(x, id));
    (0..4).for_each(|_| across.iter().for_each(|&id| plan.relu(id, out)));
    plan.load(&[x], &[out])
}

#[test]
fn cost_is_linear_in_the_number_of_instructions() {
    for make in [chain, pairs, pieces] {
        let visited = |len: usize| DefUse::of(make(len).listing()).num_lookups();
        let (once, more) = (visited(500), visited(5000));
        assert!(once > 0 && more <= 11 * once, "{once} lookups, {more} for ten times the calls");
    }
}

/// For each read of the method's instructions: whether one definition reaches all of it, and the last instruction that
/// wrote any of it.
fn reads(method: &Method) -> Vec<(bool, Position)> {
    let def_use = DefUse::of(method.listing());
    let positions = 1..=method.listing().chains[0].instrs.len() as Position;
    let reads = positions.flat_map(|at| def_use.reads.list_of(at).to_vec());
    reads.map(|(_, reach)| reach.map_or((false, 99), |r| (r.def.is_some(), r.latest))).collect()
}

#[test]
fn the_last_write_reaches_a_read() {
    let mut plan = Relus::default();
    let (x, a, alias, across) = (plan.tensor(0), plan.tensor(16), plan.tensor(16), plan.tensor(24));
    let out = plan.tensor(64);
    plan.relu(x, a); // 1
    plan.relu(alias, out); // 2: the whole of 1 through another value
    plan.relu(across, out); // 3: a part of 1, and bytes of the previous execution
    plan.relu(x, across); // 4: clobbers 1
    plan.relu(a, out); // 5: parts of 1 and 4
    let method = plan.load(&[x], &[out]);
    assert_eq!(reads(&method), [(true, 0), (true, 1), (false, 1), (true, 0), (false, 4)]);
    let def_use = DefUse::of(method.listing());
    let first = def_use.writes(1)[0].unwrap();
    assert_eq!(def_use.clobbered_by(4), [first]);
    assert!(def_use.is_needed_after(first, 4) && !def_use.is_needed_after(first, 5));
    // Instruction 3 reads bytes 24..40 before all of them are written, so the next execution reads what 4 wrote there.
    assert!(def_use.is_read_first(across as Id) && !def_use.is_read_first(a as Id));
    let clobbered_by = def_use.writes(4)[0].unwrap();
    assert!(def_use.is_live_out(clobbered_by) && !def_use.is_live_out(first));
}

#[test]
fn blocks_end_at_jumps() {
    let mut plan = Relus::default();
    let (x, a, b, out) = (plan.tensor(0), plan.tensor(16), plan.tensor(32), plan.tensor(48));
    plan.values.push(EValue::Bool(true));
    let condition = plan.values.len() as i32 - 1;
    plan.relu(x, a); // 1
    plan.relu(a, b); // 2
    let jump = Instruction::JumpFalseCall { cond_value_index: condition, destination_instruction: 4 };
    plan.instructions.push(jump); // 3
    plan.relu(b, out); // 4
    plan.relu(x, out); // 5
    let method = plan.load(&[x], &[out]);
    let def_use = DefUse::of(method.listing());
    assert!(!def_use.starts_block(3) && def_use.starts_block(4) && def_use.starts_block(5));
    let live_out = |at| def_use.is_live_out(def_use.writes(at)[0].unwrap());
    // 1 is only read in its block, 2 after the jump. The analysis does not detect that 5 always overwrites 4.
    assert_eq!([1, 2, 4, 5].map(live_out), [false, true, true, true]);
}

#[test]
fn moved_tensors_are_always_live_out() {
    let mut plan = Relus::default();
    let (x, a, b, out) = (plan.tensor(0), plan.tensor(16), plan.tensor(32), plan.tensor(48));
    plan.relu(x, a); // 1
    plan.instructions.push(Instruction::MoveCall { move_from: a, move_to: b }); // 2
    plan.relu(b, out); // 3
    plan.relu(x, a); // 4
    let method = plan.load(&[x], &[out]);
    let def_use = DefUse::of(method.listing());
    let live_out = |at| def_use.is_live_out(def_use.writes(at)[0].unwrap());
    assert_eq!([1, 3, 4].map(live_out), [true, true, true]);
    assert_eq!(def_use.reaching_def(3, b as Id), None);
}

#[test]
fn reaching_definitions_are_found_from_tables_alone() {
    let mut plan = Relus::default();
    let (x, a, view, out) = (plan.tensor(0), plan.tensor(16), plan.tensor(16), plan.tensor(32));
    plan.relu(x, a); // 0
    plan.relu(view, out); // 1
    let program = plan.program(&[x], &[out]);
    let raised = program.raise("forward", &pteron_kernels::registry()).unwrap();
    let defs: Vec<ReachingDef> = raised.instructions().flat_map(|i| i.reads).map(|read| read.def).collect();
    let def = |instruction, value: i32| ReachingDef::Whole { instruction, value: value as usize };
    assert_eq!(defs, [def(None, x), def(Some(0), a)]);
    assert_eq!(raised.result(out as usize), def(Some(1), out));
    assert_eq!(raised.elided_view_source(view as usize), Some(a as usize));
    assert!(!raised.is_read_first(view as usize) && raised.unknown_operators().is_empty());
    assert_eq!(raised.name(1), Some("aten::relu.out"));
}

#[test]
fn unknown_operators_are_assumed_to_write_their_last_argument() {
    let mut plan = Relus::default();
    let (x, a, out) = (plan.tensor(0), plan.tensor(16), plan.tensor(32));
    plan.relu(x, a);
    plan.relu(a, out);
    let raised =
        plan.program(&[x], &[out]).raise("forward", &pteron_operator::KernelRegistry::new()).unwrap();
    assert_eq!(raised.unknown_operators(), ["aten::relu.out"]);
    let writes: Vec<usize> = raised.instructions().flat_map(|i| i.writes).collect();
    assert_eq!(writes, [a as usize, out as usize]);
    let def = ReachingDef::Whole { instruction: Some(0), value: a as usize };
    assert_eq!(raised.instruction(1).unwrap().reads, [RaisedRead { value: a as usize, def }]);
}
