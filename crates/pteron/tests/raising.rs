//! Programs with arbitrary memory plans: prepared, they give the results of their instructions, even if tensors overlap,
//! memory is reused or persists between executions, or jumps decide which definition is read.

mod support;

use pteron::format::pte::{EValue as Value, Instruction};
use pteron::{BytesLoader, EValue, Limits, LoadOptions, Method, Program, Tensor};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use support::{Plan, Random};

fn load(file: &[u8], no_prepare: bool) -> Method {
    let program = Program::load(Arc::new(BytesLoader::new(file.to_vec())), &Limits::default()).unwrap();
    program.load_method("forward", LoadOptions { no_prepare, ..pteron::load_options() }).unwrap()
}

/// A random program of calls on tensors of 4 elements at random offsets, which may coincide or overlap in part. Some
/// programs jump over calls or move tensors.
fn any_program(random: &mut Random) -> (Vec<u8>, usize) {
    const LEN: usize = 4;
    let mut plan = Plan::default();
    let places = 3 + random.below(12);
    // With a step of 4 or 8 bytes tensors overlap in part; with 16 they coincide or are disjoint.
    let step = [4, 8, 16][random.below(3)];
    let tensors: Vec<i32> =
        (0..4 + random.below(10)).map(|_| plan.tensor(LEN, (step * random.below(places)) as u64)).collect();
    let (one, no) = (plan.value(Value::Int(1)), plan.value(Value::Bool(false)));
    let count = 2 + random.below(24);
    let special = random.below(3);
    for at in 0..count {
        let mut any = || tensors[random.below(tensors.len())];
        let (a, b, out) = (any(), any(), any());
        match random.below(24) {
            0 if special == 1 => {
                let destination_instruction = (at + 1 + random.below(count - at)) as i32;
                plan.instructions
                    .push(Instruction::JumpFalseCall { cond_value_index: no, destination_instruction });
            }
            1 if special == 2 => plan.instructions.push(Instruction::MoveCall { move_from: a, move_to: out }),
            op if op % 4 < 2 => plan.call((op % 4) as i32, &[a, out, out]),
            op => plan.call((op % 4) as i32, &[a, b, one, out, out]),
        }
    }
    let inputs: Vec<i32> = (0..1 + random.below(2)).map(|i| tensors[i]).collect();
    let outputs: Vec<i32> = (0..1 + random.below(3)).map(|_| tensors[random.below(tensors.len())]).collect();
    (plan.file(&inputs, &outputs), inputs.len())
}

fn bytes(outputs: &[EValue]) -> Vec<Vec<u8>> {
    outputs.iter().map(|value| value.as_tensor().unwrap().bytes().to_vec()).collect()
}

#[test]
fn random_memory_plans_agree_prepared_and_as_written() {
    let count = std::env::var("PTERON_PLANS").ok().and_then(|v| v.parse().ok()).unwrap_or(3_000);
    for seed in 0..count {
        let mut random = Random(seed);
        let (file, inputs) = any_program(&mut random);
        let [mut prepared, mut written] = [false, true].map(|no_prepare| load(&file, no_prepare));
        for run in 0..3 {
            let inputs: Vec<EValue> = (0..inputs).map(|_| random.tensor(4)).collect();
            let [a, b] = [&mut prepared, &mut written].map(|m| m.execute(&inputs).map_err(|e| e.to_string()));
            match (a, b) {
                (Ok(a), Ok(b)) => assert_eq!(bytes(&a), bytes(&b), "plan {seed}, run {run}"),
                (a, b) => assert_eq!(a.is_ok(), b.is_ok(), "plan {seed}, run {run}: {a:?} {b:?}"),
            }
        }
    }
}

#[test]
fn a_scalar_has_the_type_that_was_last_written() {
    let mut plan = Plan::default();
    let (x, y) = (plan.tensor(4, 0), plan.tensor(4, 16));
    // The plan declares an integer; the comparison writes a boolean.
    let (condition, four, five) =
        (plan.value(Value::Int(0)), plan.value(Value::Int(4)), plan.value(Value::Int(5)));
    plan.call(0, &[x, y, y]);
    plan.call(4, &[four, five, condition]);
    plan.instructions
        .push(Instruction::JumpFalseCall { cond_value_index: condition, destination_instruction: 4 });
    plan.call(1, &[y, y, y]);
    let file = plan.file(&[x], &[y]);
    for no_prepare in [false, true] {
        let mut method = load(&file, no_prepare);
        for _ in 0..2 {
            let input = Tensor::from_slice(&[4], &[1f32, -2.0, 3.0, 4.0]).unwrap();
            let output = method.execute(&[input.into()]).unwrap();
            assert_eq!(output[0].as_tensor().unwrap().to_vec::<f32>().unwrap(), [1.0, 0.0, 3.0, 4.0]);
        }
    }
}

#[test]
fn a_jump_condition_that_is_no_boolean_fails_when_it_is_read() {
    let mut plan = Plan::default();
    let (x, condition) = (plan.tensor(4, 0), plan.value(Value::Int(1)));
    plan.instructions
        .push(Instruction::JumpFalseCall { cond_value_index: condition, destination_instruction: 1 });
    let file = plan.file(&[x], &[x]);
    let error = load(&file, false).execute(&[Random(0).tensor(4)]).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("an integer"), "{cause}");
}

/// A chain of calls, each with its own memory for the result.
fn chain(len: usize) -> Vec<u8> {
    let mut plan = Plan::default();
    let ids: Vec<i32> = (0..=len).map(|i| plan.tensor(4, 16 * i as u64)).collect();
    ids.windows(2).for_each(|pair| plan.call(0, &[pair[0], pair[1], pair[1]]));
    plan.file(&ids[..1], &ids[len..])
}

/// Pairs of calls, each followed by a `FreeCall`.
fn pairs(len: usize) -> Vec<u8> {
    let mut plan = Plan::default();
    let (x, freed) = (plan.tensor(4, 0), plan.tensor(4, 16));
    let mut last = x;
    for i in 0..len {
        let at = 32 + 32 * i as u64;
        let (middle, next) = (plan.tensor(4, at), plan.tensor(4, at + 16));
        plan.call(0, &[last, middle, middle]);
        plan.call(0, &[middle, next, next]);
        plan.instructions.push(Instruction::FreeCall { value_index: freed });
        last = next;
    }
    plan.file(&[x], &[last])
}

/// With `PTERON_WRITE`, the programs of `lab/loading.md` are written to that folder instead.
#[test]
fn long_programs_load() {
    let folder = std::env::var_os("PTERON_WRITE");
    for (name, make) in [("chain", chain as fn(usize) -> Vec<u8>), ("pairs", pairs)] {
        let lengths: &[usize] = if folder.is_some() { &[3_000, 24_000, 200_000] } else { &[3_000, 24_000] };
        for &len in lengths {
            let file = make(if name == "pairs" { len / 2 } else { len });
            if let Some(folder) = &folder {
                std::fs::write(Path::new(folder).join(format!("{name}-{len}.pte")), &file).unwrap();
                continue;
            }
            let times = [false, true].map(|no_prepare| {
                let started = Instant::now();
                let mut method = load(&file, no_prepare);
                let loaded = started.elapsed();
                method.execute(&[Random(1).tensor(4)]).unwrap();
                loaded
            });
            println!("{name} of {len}: prepared {:?}, as written {:?}", times[0], times[1]);
        }
    }
}
