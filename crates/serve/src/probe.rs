//! Probes whether the rows of a batch are independent, by executing the model: a program does not declare it.

use crate::budget::Budget;
use crate::execute::{self, Inputs};
use crate::generation::Generation;
use crate::metadata::TensorSpec;
use crate::request::{Data, OutputTensor};
use pteron::format::pte::Instruction;
use pteron::{Interrupt, ScalarType, bf16, f16};
use std::time::{Duration, Instant};

/// The time limit for all executions of a probe together.
const TIME: Duration = Duration::from_secs(30);

/// The upper bound of the first dimension, if requests can be concatenated along it: it is dynamic and common to all
/// inputs and outputs, and two rows have the same results together as alone. Otherwise the reason why not.
pub(crate) fn find_max_batch(generation: &Generation) -> Result<usize, String> {
    let specs = || generation.inputs().chain(generation.outputs());
    let first = generation.inputs().next().ok_or("the model has no inputs")?;
    let bound = first.bounds.first().copied().unwrap_or(1);
    for spec in specs() {
        if !spec.is_dynamic || spec.bounds.first() != Some(&bound) {
            return Err(format!(
                "`{}` has no first dimension that is dynamic and common to all inputs and outputs",
                spec.name
            ));
        }
    }
    if bound < 2 {
        return Err("the first dimension has the upper bound 1".to_owned());
    }
    let plan = generation.program().method_meta(generation.method_name());
    let instructions = plan.iter().flat_map(|meta| &meta.plan().chains).flat_map(|chain| &chain.instructions);
    if instructions.into_iter().any(|instruction| matches!(instruction, Instruction::JumpFalseCall { .. })) {
        return Err("the program has jumps, which may depend on all rows".to_owned());
    }
    let interrupt = Interrupt::new().until(Instant::now() + TIME);
    // A probe is not a client's request, so the clients' memory budget does not apply.
    let budget = Budget::new(u64::MAX);
    let run = |parts: &[&Inputs]| {
        let all: Vec<usize> = (0..generation.outputs().len()).collect();
        let wanted = vec![&all[..]; parts.len()];
        let outputs =
            execute::execute_batch(generation, parts, Some(parts.len()), &wanted, &interrupt, &budget);
        outputs.map_err(|e| format!("a batch of {} rows fails: {e}", parts.len()))
    };
    // Rows of different magnitudes reveal a per-tensor quantization scale, which depends on all rows.
    let rows = [random_row(generation, 1, 1.0), random_row(generation, 2, 20.0)];
    let together = run(&[&rows[0], &rows[1]])?;
    for (row, together) in rows.iter().zip(&together) {
        let alone = run(&[row])?;
        for (a, b) in alone[0].tensors.iter().zip(&together.tensors) {
            if !is_close(a, b) {
                return Err(format!(
                    "rows are not independent: `{}` of a row depends on the other rows",
                    a.name
                ));
            }
        }
    }
    Ok(bound)
}

/// Inputs of one row each, of pseudo-random elements between `-scale` and `scale`.
fn random_row(generation: &Generation, seed: u64, scale: f64) -> Inputs {
    let sizes = |spec: &TensorSpec| [&[1], &spec.bounds[1..]].concat();
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    Inputs {
        shapes: generation.inputs().map(sizes).collect(),
        data: generation.inputs().map(|spec| random.random_elements(spec, scale)).collect(),
    }
}

struct Random(u64);

impl Random {
    /// The next pseudo-random number (xorshift), at least 0 and below 1.
    fn next_unit(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Elements for one row: between `-scale` and `scale`, but only 0 and 1 for integers, which may be indices.
    fn random_elements(&mut self, spec: &TensorSpec, scale: f64) -> Data {
        let count = spec.bounds[1..].iter().product::<usize>();
        let mut bytes = Vec::with_capacity(count * spec.dtype.size());
        for _ in 0..count {
            let x = self.next_unit();
            let number = (x * 2.0 - 1.0) * scale;
            match spec.dtype {
                ScalarType::Float => bytes.extend((number as f32).to_le_bytes()),
                ScalarType::Double => bytes.extend(number.to_le_bytes()),
                ScalarType::Half => bytes.extend(f16::from_f64(number).to_le_bytes()),
                ScalarType::BFloat16 => bytes.extend(bf16::from_f64(number).to_le_bytes()),
                other => {
                    bytes.push(u8::from(x >= 0.5));
                    bytes.resize(bytes.len() + other.size() - 1, 0);
                }
            }
        }
        Box::new(bytes)
    }
}

/// Whether two results are equal up to the rounding differences that another summation order causes.
fn is_close(a: &OutputTensor, b: &OutputTensor) -> bool {
    let (a_values, b_values) = (to_f64s(a), to_f64s(b));
    let tolerance = match a.dtype {
        ScalarType::Double => 1e-6,
        ScalarType::Half => 1e-2,
        ScalarType::BFloat16 => 5e-2,
        _ => 1e-3,
    };
    let close = |(a, b): (&f64, &f64)| {
        a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * (1.0 + b.abs())
    };
    match a.dtype.is_floating() {
        true => a.shape == b.shape && a_values.iter().zip(&b_values).all(close),
        false => a == b,
    }
}

fn to_f64s(tensor: &OutputTensor) -> Vec<f64> {
    let elements = tensor.data.chunks_exact(tensor.dtype.size());
    elements
        .map(|bytes| match (tensor.dtype, bytes) {
            (ScalarType::Float, &[a, b, c, d]) => f64::from(f32::from_le_bytes([a, b, c, d])),
            (ScalarType::Half, &[a, b]) => f16::from_le_bytes([a, b]).to_f64(),
            (ScalarType::BFloat16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f64(),
            (ScalarType::Double, _) => bytes.try_into().map_or(f64::NAN, f64::from_le_bytes),
            _ => f64::NAN,
        })
        .collect()
}
