//! Estimates the memory that the tables of a method take.

use crate::plan::{ArgRef, Instr, OutRef, TensorValue, Value};
use pteron_format::pte;

/// Memory that preparation takes, as a multiple of the tables: for def-use information, and for graphs with their nodes
/// and values.
pub(crate) const PREPARING: u64 = 2;
/// Approximate overhead of a heap block, in bytes.
const BLOCK: usize = 16;

/// Estimates, before a plan is loaded, the bytes that its values and instructions take both as parsed and as loaded.
/// Parsed vectors have grown by doubling, so their capacity is about 1.5 times their length on average.
pub(crate) fn estimated_bytes(plan: &pte::ExecutionPlan) -> u64 {
    let values = plan.values.iter().map(bytes_of_value);
    let chains = plan.chains.iter().map(|chain| {
        let instructions = chain.instructions.iter().map(bytes_of_instruction);
        instructions.chain(chain.stacktrace.iter().map(bytes_of_frames)).fold(0, u64::saturating_add)
    });
    values.chain(chains).fold(0, u64::saturating_add)
}

/// Bytes that a parsed vector takes per element, with its spare capacity.
const fn parsed_bytes<T>() -> usize {
    size_of::<T>() * 3 / 2
}

fn bytes_of_value(value: &pte::EValue) -> u64 {
    let entry = parsed_bytes::<pte::EValue>() + size_of::<Value>();
    let beside = match value {
        pte::EValue::Null | pte::EValue::Int(_) | pte::EValue::Bool(_) | pte::EValue::Double(_) => 0,
        pte::EValue::Tensor(t) => {
            let name = t.fully_qualified_name().map_or(0, str::len);
            size_of::<TensorValue>() + 3 * BLOCK + 5 * t.sizes.len() + 2 * name
        }
        pte::EValue::String(s) => 2 * (BLOCK + s.len()),
        pte::EValue::IntList(v) => 2 * (BLOCK + 8 * v.len()),
        pte::EValue::DoubleList(v) => 2 * (BLOCK + 8 * v.len()),
        pte::EValue::BoolList(v) => 2 * (BLOCK + v.len()),
        pte::EValue::TensorList(v) | pte::EValue::OptionalTensorList(v) => {
            2 * BLOCK + (4 + size_of::<Option<usize>>()) * v.len()
        }
    };
    (entry + beside) as u64
}

fn bytes_of_instruction(instruction: &pte::Instruction) -> u64 {
    let entry = parsed_bytes::<pte::Instruction>() + size_of::<Instr>();
    let beside = match instruction {
        pte::Instruction::KernelCall { args, .. } | pte::Instruction::DelegateCall { args, .. } => {
            3 * BLOCK + (4 + size_of::<ArgRef>()) * args.len() + size_of::<OutRef>()
        }
        _ => 0,
    };
    (entry + beside) as u64
}

fn bytes_of_frames(frames: &pte::FrameList) -> u64 {
    let text = |text: &Option<String>| text.as_ref().map_or(0, |text| BLOCK + text.len());
    let frame = |frame: &pte::Frame| {
        parsed_bytes::<pte::Frame>() + text(&frame.filename) + text(&frame.name) + text(&frame.context)
    };
    (parsed_bytes::<pte::FrameList>() + BLOCK + frames.items.iter().map(frame).sum::<usize>()) as u64
}
