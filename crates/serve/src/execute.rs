//! Executes one or more requests as one batch.

use crate::budget::{Budget, Reservation};
use crate::generation::{Generation, Instances};
use crate::refusal::{Reason, Refusal, Result};
use crate::request::{Data, OutputTensor};
use pteron::tensor::{DimOrder, Tensor, TensorMeta, TensorView, TensorViewMut, memory};
use pteron::{EValue, Error, ExecuteError, Interrupt, Interrupted, Method, ScalarType};
use std::ops::Range;
use std::sync::{Arc, PoisonError};

/// The input tensors of one request, in the order of the signature's inputs.
pub(crate) struct Inputs {
    pub(crate) shapes: Vec<Vec<usize>>,
    pub(crate) data: Vec<Data>,
}

impl Inputs {
    /// The size of the inputs' first dimension; `None` if it is not the same for all of them.
    pub(crate) fn rows(&self) -> Option<usize> {
        let rows = *self.shapes.first()?.first()?;
        self.shapes.iter().all(|shape| shape.first() == Some(&rows)).then_some(rows)
    }

    /// Whether the inputs of two requests can be concatenated along the first dimension.
    pub(crate) fn can_join(&self, other: &Self) -> bool {
        self.shapes.iter().zip(&other.shapes).all(|(a, b)| a.get(1..) == b.get(1..))
    }
}

/// The outputs of one request, charged to the memory budget.
#[derive(Debug)]
pub(crate) struct Outputs {
    pub(crate) tensors: Vec<OutputTensor>,
    pub(crate) reservation: Reservation,
}

/// Executes the requests as one batch. Each gets its outputs, those with the indices in `wanted`, charged to `budget`.
///
/// With `rows`, the inputs are concatenated along the first dimension, and padded to `rows` with copies of the last
/// row. Without, there must be one request.
pub(crate) fn execute_batch(
    generation: &Generation,
    parts: &[&Inputs],
    rows: Option<usize>,
    wanted: &[&[usize]],
    interrupt: &Interrupt,
    budget: &Arc<Budget>,
) -> Result<Vec<Outputs>> {
    let run = |method: &mut Method| {
        method.set_interrupt(Some(interrupt.clone()));
        let result = run_method(method, generation, parts, rows, wanted, budget);
        method.set_interrupt(None);
        result
    };
    match &generation.method {
        Instances::Shared(method) => run(&mut *method.session().map_err(|e| to_refusal(&e))?),
        Instances::Stateful(module) => {
            let mut module = module.lock().unwrap_or_else(PoisonError::into_inner);
            let result = module.with_method(generation.method_name(), |method| Ok(run(method)));
            result.map_err(|e: Error| to_refusal(&e))?
        }
    }
}

fn run_method(
    method: &mut Method,
    generation: &Generation,
    parts: &[&Inputs],
    rows: Option<usize>,
    wanted: &[&[usize]],
    budget: &Arc<Budget>,
) -> Result<Vec<Outputs>> {
    for (index, value) in &generation.signature.fixed {
        method.set_input(*index, value).map_err(|e| to_refusal(&e))?;
    }
    for (position, (index, spec)) in generation.signature.inputs.iter().enumerate() {
        let mut sizes = parts[0].shapes[position].clone();
        if let Some(rows) = rows {
            sizes[0] = rows;
        }
        set_input(
            method,
            *index,
            spec.dtype,
            &sizes,
            parts.iter().map(|part| data_bytes(&part.data[position])),
        )?;
    }
    method.run().map_err(|e| to_refusal(&e))?;
    let mut first = 0;
    let mut results = Vec::with_capacity(parts.len());
    for (part, wanted) in parts.iter().zip(wanted) {
        let own = rows.map(|rows| {
            let own = first..first + part.shapes[0][0];
            first = own.end;
            (own, rows)
        });
        let mut outputs =
            Outputs { tensors: Vec::with_capacity(wanted.len()), reservation: Reservation::empty(budget) };
        for &index in *wanted {
            let tensor = copy_output(method, generation, index, own.clone(), &mut outputs.reservation)?;
            outputs.tensors.push(tensor);
        }
        results.push(outputs);
    }
    Ok(results)
}

fn data_bytes(data: &Data) -> &[u8] {
    (**data).as_ref()
}

/// Sets an input to the concatenation of `parts` along the first dimension, padded with copies of the last row.
fn set_input<'a>(
    method: &mut Method,
    index: usize,
    dtype: ScalarType,
    sizes: &[usize],
    parts: impl Iterator<Item = &'a [u8]> + Clone,
) -> Result<()> {
    let row = sizes.get(1..).map_or(1, |rest| rest.iter().product::<usize>()) * dtype.size();
    let mut view = method.input_mut(index, sizes).map_err(|e| to_refusal(&e))?;
    if view.meta().is_row_major() {
        return fill_batch(view.bytes_mut(), parts, row);
    }
    let meta = TensorMeta::new(dtype, sizes, DimOrder::contiguous(sizes.len()))
        .map_err(|e| out_of_memory_error(&e))?;
    let mut tensor = Tensor::zeros(meta).map_err(|e| out_of_memory_error(&e))?;
    fill_batch(tensor.view_mut().bytes_mut(), parts, row)?;
    method.set_input_tensor(index, tensor.view()).map_err(|e| to_refusal(&e))
}

fn fill_batch<'a>(target: &mut [u8], parts: impl Iterator<Item = &'a [u8]>, row: usize) -> Result<()> {
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

/// Copies an output. `rows` is the range of rows to copy and the number of rows of the batch; `None` copies everything. The copy is charged
/// to `reservation`.
fn copy_output(
    method: &Method,
    generation: &Generation,
    index: usize,
    rows: Option<(Range<usize>, usize)>,
    reservation: &mut Reservation,
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
        return match method.output(index).map_err(|e| to_refusal(&e))? {
            EValue::Int(v) => Ok(scalar(&v.to_le_bytes())),
            EValue::Double(v) => Ok(scalar(&v.to_le_bytes())),
            EValue::Bool(v) => Ok(scalar(&[u8::from(v)])),
            other => Err(Refusal::new(Reason::Failed, format!("output `{name}` is {}", other.tag()))),
        };
    };
    let mut shape = view.sizes().to_vec();
    let Some((own, all)) = rows else {
        let data = copy_bytes(view, 0..view.nbytes(), reservation)?;
        return Ok(OutputTensor { name, dtype: view.dtype(), shape, data });
    };
    if shape.first() != Some(&all) {
        let message = format!("output `{name}` of a batch of {all} rows has the shape {shape:?}");
        return Err(Refusal::new(Reason::Failed, message));
    }
    let row = view.nbytes() / all.max(1);
    shape[0] = own.len();
    let data = copy_bytes(view, own.start * row..own.end * row, reservation)?;
    Ok(OutputTensor { name, dtype: view.dtype(), shape, data })
}

/// Copies a byte range of a tensor in row-major order; the copy is charged to `reservation`.
fn copy_bytes(view: TensorView<'_>, range: Range<usize>, reservation: &mut Reservation) -> Result<Vec<u8>> {
    reservation.grow(range.len() as u64)?;
    if view.meta().is_row_major() {
        return memory::copied(&view.bytes()[range]).map_err(|e| out_of_memory_error(&e));
    }
    let sizes = view.sizes();
    let meta = TensorMeta::new(view.dtype(), sizes, DimOrder::contiguous(sizes.len()));
    let mut meta = meta.map_err(|e| out_of_memory_error(&e))?;
    if range.len() < view.nbytes() {
        reservation.grow((view.nbytes() - range.len()) as u64)?;
    }
    let mut all = memory::filled(view.nbytes(), 0u8).map_err(|e| out_of_memory_error(&e))?;
    let written = TensorViewMut::new(&mut meta, &mut all).and_then(|mut out| view.relayout(&mut out));
    written.map_err(|e| out_of_memory_error(&e))?;
    all.truncate(range.end);
    all.drain(..range.start);
    Ok(all)
}

fn out_of_memory_error(error: &pteron::tensor::Error) -> Refusal {
    Refusal::from_error(Reason::Busy, error)
}

/// Maps an error of the runtime to a refusal.
fn to_refusal(error: &Error) -> Refusal {
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
    Refusal::from_error(reason, error)
}
