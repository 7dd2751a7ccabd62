//! Executes one or more requests as one batch.

use crate::generation::{Generation, Instances};
use crate::refusal::{Reason, Refusal, Result};
use crate::request::{Data, OutputTensor};
use pteron::tensor::{DimOrder, Tensor, TensorMeta};
use pteron::{EValue, Error, ExecuteError, Interrupt, Interrupted, Method, ScalarType};
use std::sync::PoisonError;

/// The tensors of one request, in the order of the signature's inputs.
pub(crate) struct Inputs {
    pub(crate) shapes: Vec<Vec<usize>>,
    pub(crate) data: Vec<Data>,
}

impl Inputs {
    /// The size of the first dimension, if all inputs have the same.
    pub(crate) fn rows(&self) -> Option<usize> {
        let rows = *self.shapes.first()?.first()?;
        self.shapes.iter().all(|shape| shape.first() == Some(&rows)).then_some(rows)
    }

    /// Whether both can be concatenated along the first dimension.
    pub(crate) fn joins(&self, other: &Self) -> bool {
        self.shapes.iter().zip(&other.shapes).all(|(a, b)| a.get(1..) == b.get(1..))
    }
}

/// Executes the requests as one batch. Each gets its outputs, those with the indices in `wanted`.
///
/// With `rows`, the inputs are concatenated along the first dimension, and padded to `rows` with copies of the last row.
pub(crate) fn execute(
    generation: &Generation,
    parts: &[&Inputs],
    rows: Option<usize>,
    wanted: &[&[usize]],
    interrupt: &Interrupt,
) -> Result<Vec<Vec<OutputTensor>>> {
    let run = |method: &mut Method| {
        method.set_interrupt(Some(interrupt.clone()));
        let result = in_method(method, generation, parts, rows, wanted);
        method.set_interrupt(None);
        result
    };
    match &generation.method {
        Instances::Shared(method) => run(&mut *method.session().map_err(|e| refusal(&e))?),
        Instances::Stateful(module) => {
            let mut module = module.lock().unwrap_or_else(PoisonError::into_inner);
            let result = module.with_method(generation.method_name(), |method| Ok(run(method)));
            result.map_err(|e: Error| refusal(&e))?
        }
    }
}

fn in_method(
    method: &mut Method,
    generation: &Generation,
    parts: &[&Inputs],
    rows: Option<usize>,
    wanted: &[&[usize]],
) -> Result<Vec<Vec<OutputTensor>>> {
    for (index, value) in &generation.signature.fixed {
        method.set_input(*index, value).map_err(|e| refusal(&e))?;
    }
    for (position, (index, spec)) in generation.signature.inputs.iter().enumerate() {
        let mut sizes = parts[0].shapes[position].clone();
        if let Some(rows) = rows {
            sizes[0] = rows;
        }
        set_input(method, *index, spec.dtype, &sizes, parts.iter().map(|part| bytes(&part.data[position])))?;
    }
    method.run().map_err(|e| refusal(&e))?;
    let Some(rows) = rows else {
        let outputs = wanted[0].iter().map(|&i| output(method, generation, i, None));
        return Ok(vec![outputs.collect::<Result<_>>()?]);
    };
    let mut first = 0;
    let mut results = Vec::with_capacity(parts.len());
    for (part, wanted) in parts.iter().zip(wanted) {
        let own = first..first + part.shapes[0][0];
        first = own.end;
        let outputs = wanted.iter().map(|&i| output(method, generation, i, Some((own.clone(), rows))));
        results.push(outputs.collect::<Result<_>>()?);
    }
    Ok(results)
}

fn bytes(data: &Data) -> &[u8] {
    (**data).as_ref()
}

/// Fills an input with the concatenated parts, and the rest of it with copies of the last row.
fn set_input<'a>(
    method: &mut Method,
    index: usize,
    dtype: ScalarType,
    sizes: &[usize],
    parts: impl Iterator<Item = &'a [u8]> + Clone,
) -> Result<()> {
    let row = sizes.get(1..).map_or(1, |rest| rest.iter().product::<usize>()) * dtype.size();
    let mut view = method.input_mut(index, sizes).map_err(|e| refusal(&e))?;
    if view.meta().is_row_major() {
        return join(view.bytes_mut(), parts, row);
    }
    let meta = TensorMeta::new(dtype, sizes, DimOrder::contiguous(sizes.len())).map_err(|e| memory(&e))?;
    let mut tensor = Tensor::zeros(meta).map_err(|e| memory(&e))?;
    join(tensor.view_mut().bytes_mut(), parts, row)?;
    method.set_input_tensor(index, tensor.view()).map_err(|e| refusal(&e))
}

fn join<'a>(target: &mut [u8], parts: impl Iterator<Item = &'a [u8]>, row: usize) -> Result<()> {
    let mut filled = 0;
    for part in parts {
        let end = filled + part.len();
        let place = target.get_mut(filled..end);
        place
            .ok_or_else(|| Refusal::new(Reason::Failed, "a batch is larger than its input"))?
            .copy_from_slice(part);
        filled = end;
    }
    while filled < target.len() && row > 0 && filled >= row {
        let len = row.min(target.len() - filled);
        target.copy_within(filled - row..filled - row + len, filled);
        filled += len;
    }
    Ok(())
}

/// Copies an output, or a range of its rows; the range comes with the number of rows of the batch.
fn output(
    method: &Method,
    generation: &Generation,
    index: usize,
    rows: Option<(std::ops::Range<usize>, usize)>,
) -> Result<OutputTensor> {
    let spec = &generation.signature.outputs[index];
    let name = spec.name.clone();
    let scalar = |data: &[u8]| OutputTensor {
        name: name.clone(),
        dtype: spec.dtype,
        shape: vec![1],
        data: data.to_vec(),
    };
    let Ok(view) = method.output_tensor(index) else {
        return match method.output(index).map_err(|e| refusal(&e))? {
            EValue::Int(v) => Ok(scalar(&v.to_le_bytes())),
            EValue::Double(v) => Ok(scalar(&v.to_le_bytes())),
            EValue::Bool(v) => Ok(scalar(&[u8::from(v)])),
            other => Err(Refusal::new(Reason::Failed, format!("output `{name}` is {}", other.tag()))),
        };
    };
    let mut shape = view.sizes().to_vec();
    let contiguous;
    let mut bytes = view.bytes();
    if !view.meta().is_row_major() {
        let tensor = view.to_tensor().and_then(|t| t.to_dim_order(DimOrder::contiguous(shape.len())));
        contiguous = tensor.map_err(|e| memory(&e))?;
        bytes = contiguous.bytes();
    }
    if let Some((own, all)) = rows {
        if shape.first() != Some(&all) {
            let message = format!("output `{name}` of a batch of {all} rows has the shape {shape:?}");
            return Err(Refusal::new(Reason::Failed, message));
        }
        let row = bytes.len() / all.max(1);
        shape[0] = own.len();
        bytes = &bytes[own.start * row..own.end * row];
    }
    let data = pteron::tensor::memory::copied(bytes).map_err(|e| memory(&e))?;
    Ok(OutputTensor { name, dtype: view.dtype(), shape, data })
}

fn memory(error: &pteron::tensor::Error) -> Refusal {
    Refusal::of(Reason::Busy, error)
}

/// Maps an error of the runtime to a refusal.
fn refusal(error: &Error) -> Refusal {
    let interrupted = |why: &Interrupted| match why {
        Interrupted::Cancelled => Reason::Cancelled,
        Interrupted::DeadlinePassed => Reason::Deadline,
        Interrupted::OutOfMemory(_) => Reason::Busy,
    };
    let reason = match error {
        Error::Input { .. } => Reason::Invalid,
        Error::Limit { .. } | Error::Tensor(_) => Reason::Busy,
        Error::Interrupted { source, .. } => interrupted(source),
        Error::Execute { source, .. } => match &**source {
            ExecuteError::Interrupted(why) => interrupted(why),
            _ => Reason::Failed,
        },
        _ => Reason::Failed,
    };
    Refusal::of(reason, error)
}
