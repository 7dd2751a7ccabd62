//! The run-time half.

use crate::BACKEND_ID;
use crate::lower::MEMORY;
use crate::payload::{Instruction, Opcode, Payload};
use pteron::backend::{
    Arg, Backend, BackendError, BackendExecutionContext, BackendInitContext, CompileSpec, Delegate, Out,
};
use pteron::trace::{Place, SpanKind};
use pteron::{FreeableBuffer, ScalarType};
use std::sync::Arc;

/// The backend. Each payload becomes a delegate.
pub struct AcceleratorBackend;

fn fail<T>(problem: impl Into<String>) -> Result<T, BackendError> {
    Err(BackendError::new(problem))
}

impl Backend for AcceleratorBackend {
    fn id(&self) -> &str {
        BACKEND_ID
    }

    fn init(
        &self,
        ctx: &BackendInitContext<'_>,
        processed: FreeableBuffer,
        compile_specs: &[CompileSpec<'_>],
    ) -> Result<Box<dyn Delegate>, BackendError> {
        let payload = Payload::read(&processed).map_err(BackendError::new)?;
        for argument in ctx.arguments() {
            match argument.tensor() {
                Some(meta) if meta.dtype() == ScalarType::Float => {}
                _ => return fail(format!("an argument of the call is {argument:?}, not a float32 tensor")),
            }
        }
        let memory = compile_specs.iter().find(|spec| spec.key == MEMORY);
        let memory = memory.and_then(|spec| spec.value.try_into().ok()).map_or(u64::MAX, u64::from_le_bytes);
        let mut weights = Vec::new();
        let mut used = 0;
        for weight in &payload.weights {
            let data = ctx.named_data().ok_or_else(|| BackendError::new("the program has no named data"))?;
            let bytes = data.data(&weight.key).map_err(|e| BackendError::new(e.to_string()))?;
            let expected = (u64::from(weight.rows)) * (u64::from(weight.columns) + 1) * 4;
            if bytes.len() as u64 != expected {
                return fail(format!("`{}` has {} bytes, expected {expected}", weight.key, bytes.len()));
            }
            used += expected;
            let elements = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            weights.push(elements.collect());
        }
        if used > memory {
            return fail(format!("its weights take {used} bytes, the accelerator has {memory}"));
        }
        Ok(Box::new(AcceleratorDelegate { payload: Arc::new(payload), weights: weights.into() }))
    }

    fn check(&self, processed: &[u8]) -> Result<(), BackendError> {
        Payload::read(processed).map(drop).map_err(BackendError::new)
    }
}

struct AcceleratorDelegate {
    payload: Arc<Payload>,
    weights: Arc<[Vec<f32>]>,
}

/// A tensor of rows, on the accelerator.
struct Value {
    sizes: Vec<usize>,
    elements: Vec<f32>,
}

impl AcceleratorDelegate {
    fn instruction(&self, i: &Instruction, values: &[Value]) -> Result<Value, BackendError> {
        let a = &values[i.a as usize];
        let map = |f: fn(f32) -> f32| a.elements.iter().map(|&x| f(x)).collect();
        let with = |f: fn(f32, f32) -> f32| -> Result<Vec<f32>, BackendError> {
            let b = &values[i.b as usize];
            if a.sizes != b.sizes {
                return fail(format!("operands of the sizes {:?} and {:?}", a.sizes, b.sizes));
            }
            Ok(a.elements.iter().zip(&b.elements).map(|(&x, &y)| f(x, y)).collect())
        };
        let mut sizes = a.sizes.clone();
        let elements = match i.opcode {
            Opcode::Linear => {
                let (shape, weight) = (&self.payload.weights[i.b as usize], &self.weights[i.b as usize]);
                let (rows, columns) = (shape.rows as usize, shape.columns as usize);
                match sizes.last_mut() {
                    Some(last) if *last == columns => *last = rows,
                    _ => return fail(format!("rows of the sizes {:?}, expected {columns} columns", a.sizes)),
                }
                let (matrix, bias) = weight.split_at(rows * columns);
                let row = |x: &[f32], r: usize| {
                    let products = x.iter().zip(&matrix[r * columns..]).map(|(x, w)| x * w);
                    products.sum::<f32>() + bias[r]
                };
                let lines = a.elements.chunks_exact(columns.max(1));
                lines.flat_map(|x| (0..rows).map(move |r| row(x, r))).collect()
            }
            Opcode::Relu => map(|x| x.max(0.0)),
            Opcode::Hardswish => map(|x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0),
            Opcode::Add => with(|x, y| x + y)?,
            Opcode::Mul => with(|x, y| x * y)?,
        };
        Ok(Value { sizes, elements })
    }
}

impl Delegate for AcceleratorDelegate {
    fn fork(&self) -> Option<Box<dyn Delegate>> {
        Some(Box::new(Self { payload: Arc::clone(&self.payload), weights: Arc::clone(&self.weights) }))
    }

    fn num_inputs(&self) -> usize {
        self.payload.num_inputs as usize
    }

    fn execute(
        &mut self,
        ctx: &BackendExecutionContext<'_>,
        inputs: &[Arg<'_>],
        outputs: &mut [Out<'_>],
    ) -> Result<(), BackendError> {
        let mut values = Vec::new();
        for input in inputs {
            let Arg::Tensor(tensor) = input else { return fail("an input is no tensor") };
            values
                .push(Value { sizes: tensor.sizes().to_vec(), elements: tensor.storage::<f32>()?.to_vec() });
        }
        for instruction in &self.payload.instructions {
            if let Some(why) = ctx.interrupted() {
                return Err(why.into());
            }
            let start = ctx.tracer().start();
            values.push(self.instruction(instruction, &values)?);
            let place = Place::node(instruction.handle);
            ctx.tracer().end(start, SpanKind::DelegateStep, instruction.opcode.target(), place);
        }
        for (output, &value) in outputs.iter_mut().zip(&self.payload.outputs) {
            let Out::Tensor(tensor) = output else { return fail("an output is no tensor") };
            let value = &values[value as usize];
            tensor.resize(&value.sizes)?;
            tensor.storage_mut::<f32>()?.copy_from_slice(&value.elements);
        }
        Ok(())
    }
}
