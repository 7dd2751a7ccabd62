use super::outputs::Collected;
use super::{Column, Failure, Fault, OutputColumn, Plan, Row, convert, rows};
use crate::{Error, Result};
use pteron_runtime::{ExecuteError, Method};
use pteron_tensor::{DimOrder, ScalarType, Shape, Tensor, TensorMeta, TensorView, bf16, f16};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Executes a method on the rows of a table.
#[derive(Debug)]
pub struct Runner {
    /// The columns and batch sizes.
    pub plan: Plan,
    /// Whether the check that rows of a batch are independent has passed, or is disabled.
    checked: AtomicBool,
}

/// The results of a run over all rows.
#[derive(Debug)]
pub struct Outcome {
    /// A column for each output.
    pub outputs: Vec<OutputColumn>,
    /// The rows without a result, in row order.
    pub failures: Vec<Failure>,
}

/// Rows of equal sizes: the sizes of a row in each input, and the indices of the rows.
type Group = (Vec<Shape>, Vec<usize>);

/// Why an execution failed.
enum BatchError {
    /// The data of at least one row of the batch caused the failure. The text says how.
    Rows(String),
    /// The failure does not depend on the rows.
    All(Error),
}

impl<E: Into<Error>> From<E> for BatchError {
    fn from(error: E) -> Self {
        match error.into() {
            Error::Runtime(error) if may_depend_on_rows(&error) => {
                Self::Rows(pteron_runtime::one_line(&error))
            }
            other => Self::All(other),
        }
    }
}

/// Whether the data of the rows may have caused the error.
fn may_depend_on_rows(error: &pteron_runtime::Error) -> bool {
    match error {
        pteron_runtime::Error::Input { .. } => true,
        pteron_runtime::Error::Execute { source, .. } => !matches!(**source, ExecuteError::Interrupted(_)),
        _ => false,
    }
}

impl Runner {
    /// A runner that batches rows according to `plan`.
    ///
    /// With `check`, the first row of the first batch of several rows is executed alone as well. If the results differ, rows
    /// depend on the other rows of their batch and the run fails.
    pub fn new(plan: Plan, check: bool) -> Self {
        let checked = AtomicBool::new(!check || plan.batch_size() == 1);
        Self { plan, checked }
    }

    /// Executes all rows. `columns` has one column for each input of the plan.
    ///
    /// # Errors
    /// If the columns' number, types or lengths do not match, the method has mutable state, rows depend on each other, or memory
    /// or a limit is exceeded. Errors of single rows are in [`Outcome::failures`].
    pub fn run(&self, method: &mut Method, columns: &[&dyn Column]) -> Result<Outcome> {
        self.check_columns(columns)?;
        if method.state().next().is_some() {
            let name = method.name();
            return Err(Error::Input(format!(
                "method `{name}` has state, so that what it gives for a row depends on the rows before it"
            )));
        }
        let count = columns[0].rows();
        let outputs = self.plan.outputs.iter().map(|spec| Collected::new(spec, count));
        let mut run = Run {
            runner: self,
            method,
            columns,
            outputs: outputs.collect::<Result<_>>()?,
            failures: Vec::new(),
        };
        for (sizes, rows) in run.group_rows(count) {
            for rows in rows.chunks(self.plan.batch_size()) {
                run.execute(&sizes, rows)?;
            }
        }
        let Run { outputs, mut failures, .. } = run;
        failures.sort_by_key(|failure| failure.row);
        let outputs = outputs.into_iter().zip(&self.plan.outputs).map(|(output, spec)| output.finish(spec));
        Ok(Outcome { outputs: outputs.collect::<Result<_>>()?, failures })
    }

    fn check_columns(&self, columns: &[&dyn Column]) -> Result<()> {
        let inputs = &self.plan.inputs;
        if columns.len() != inputs.len() || columns.is_empty() {
            return Err(Error::Input(format!(
                "the program takes {} columns, {} are given",
                inputs.len(),
                columns.len()
            )));
        }
        for (spec, column) in inputs.iter().zip(columns) {
            if !convert::is_allowed(column.dtype(), spec.dtype) {
                return Err(Error::Input(format!(
                    "column `{}` is {}, and {} takes {}",
                    column.name(),
                    column.dtype(),
                    spec.label("input"),
                    spec.dtype
                )));
            }
            if column.rows() != columns[0].rows() {
                return Err(Error::Input(format!(
                    "column `{}` has {} rows, `{}` has {}",
                    column.name(),
                    column.rows(),
                    columns[0].name(),
                    columns[0].rows()
                )));
            }
        }
        Ok(())
    }
}

/// The state of a run over all rows.
struct Run<'a> {
    runner: &'a Runner,
    method: &'a mut Method,
    columns: &'a [&'a dyn Column],
    outputs: Vec<Collected>,
    failures: Vec<Failure>,
}

impl Run<'_> {
    /// Groups rows of equal sizes. Rows that do not fit their input are recorded as failures.
    fn group_rows(&mut self, count: usize) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        // Sizes of all inputs, flattened: the ranks are fixed by the inputs, so that the key is unambiguous.
        let mut known: HashMap<Vec<usize>, usize> = HashMap::new();
        let mut group = 0;
        let mut sizes = Vec::with_capacity(self.columns.len());
        for row in 0..count {
            sizes.clear();
            for (spec, column) in self.runner.plan.inputs.iter().zip(self.columns) {
                match rows::check_row(spec, *column, row, self.runner.plan.rules) {
                    Ok(shape) => sizes.push(shape),
                    Err(Fault { part, reason }) => {
                        let column = Some(part.unwrap_or_else(|| column.name().to_owned()));
                        self.failures.push(Failure { row, column, reason });
                        break;
                    }
                }
            }
            if sizes.len() < self.columns.len() {
                continue;
            }
            if groups.get(group).is_none_or(|(known, _)| *known != sizes) {
                let key: Vec<usize> = sizes.iter().flat_map(|shape| shape.iter().copied()).collect();
                group = *known.entry(key).or_insert_with(|| {
                    groups.push((sizes.clone(), Vec::new()));
                    groups.len() - 1
                });
            }
            groups[group].1.push(row);
        }
        groups
    }

    /// Executes rows together. If they fail because of their data, bisects them until single rows fail.
    fn execute(&mut self, sizes: &[Shape], rows: &[usize]) -> Result<()> {
        match self.run_batch(sizes, rows).and_then(|()| self.copy_outputs(rows)) {
            Ok(()) => match rows {
                [first, _, ..] if !self.runner.checked.load(Ordering::Relaxed) => {
                    self.compare_alone(sizes, *first)
                }
                _ => Ok(()),
            },
            Err(BatchError::All(error)) => Err(error),
            Err(BatchError::Rows(reason)) => match rows {
                [row] => {
                    self.failures.push(Failure { row: *row, column: None, reason });
                    Ok(())
                }
                _ => {
                    let (a, b) = rows.split_at(rows.len() / 2);
                    self.execute(sizes, a)?;
                    self.execute(sizes, b)
                }
            },
        }
    }

    /// Copies rows into the inputs, padded with copies of the last row, and runs the method.
    fn run_batch(&mut self, sizes: &[Shape], rows: &[usize]) -> Result<(), BatchError> {
        let plan = &self.runner.plan;
        for (index, value) in &plan.fixed {
            self.method.set_input(*index, value)?;
        }
        for ((spec, column), row) in plan.inputs.iter().zip(self.columns).zip(sizes) {
            let mut all = *row;
            if plan.is_batched() {
                all.insert(0, plan.padded_size(rows.len()))?;
            }
            let mut view = self.method.input_mut(spec.index, &all)?;
            if view.meta().is_row_major() {
                fill_rows(view.bytes_mut(), *column, spec.dtype, rows)?;
                continue;
            }
            let mut tensor = Tensor::zeros(TensorMeta::contiguous(spec.dtype, &all)?)?;
            fill_rows(tensor.view_mut().bytes_mut(), *column, spec.dtype, rows)?;
            self.method.set_input_tensor(spec.index, tensor.view())?;
        }
        Ok(self.method.run()?)
    }

    /// Copies the results of rows out of the method.
    fn copy_outputs(&mut self, rows: &[usize]) -> Result<(), BatchError> {
        // Check all outputs before copying any, so that a row has either all results or none.
        for spec in &self.runner.plan.outputs {
            self.row_sizes(self.method.output_tensor(spec.index)?, spec, rows.len())?;
        }
        for (i, spec) in self.runner.plan.outputs.iter().enumerate() {
            let view = self.method.output_tensor(spec.index)?;
            let row = self.row_sizes(view, spec, rows.len())?;
            let len = row.numel()? * spec.dtype.size() * rows.len();
            match view.meta().is_row_major() {
                true => self.outputs[i].add(rows, &row, &view.bytes()[..len])?,
                false => {
                    let tensor = view.to_tensor()?.to_dim_order(DimOrder::contiguous(view.rank()))?;
                    self.outputs[i].add(rows, &row, &tensor.bytes()[..len])?;
                }
            }
        }
        Ok(())
    }

    /// The sizes of one row of an output.
    fn row_sizes(&self, view: TensorView<'_>, spec: &super::Spec, rows: usize) -> Result<Shape, BatchError> {
        let plan = &self.runner.plan;
        let mut row = *view.sizes();
        if !plan.is_batched() {
            return Ok(row);
        }
        let padded = plan.padded_size(rows);
        if row.first() != Some(&padded) {
            return Err(BatchError::All(Error::Input(format!(
                "{} of a batch of {padded} rows has the sizes {:?}: its rows cannot be told apart, so give it each row alone",
                spec.label("output"),
                &row[..]
            ))));
        }
        row.remove(0);
        Ok(row)
    }

    /// Executes a row alone and compares the results with those of its batch.
    fn compare_alone(&mut self, sizes: &[Shape], row: usize) -> Result<()> {
        let before: Vec<Vec<u8>> = self.outputs.iter().map(|output| output.row(row).to_vec()).collect();
        match self.run_batch(sizes, &[row]) {
            Ok(()) => {}
            Err(BatchError::All(error)) => return Err(error),
            // The program accepted the whole batch but not a single row.
            Err(BatchError::Rows(reason)) => return Err(dependent_rows_error(&reason)),
        }
        for (spec, together) in self.runner.plan.outputs.iter().zip(before) {
            let view = self.method.output_tensor(spec.index)?;
            let alone = view.to_tensor()?.to_dim_order(DimOrder::contiguous(view.rank()))?;
            let alone = &alone.bytes()[..together.len().min(alone.nbytes())];
            if !is_close(spec.dtype, alone, &together) {
                let label = spec.label("output");
                return Err(dependent_rows_error(&format!(
                    "{label} of row {row} is another without the rows beside it"
                )));
            }
        }
        self.runner.checked.store(true, Ordering::Relaxed);
        Ok(())
    }
}

fn dependent_rows_error(why: &str) -> Error {
    Error::Input(format!("rows cannot be joined to batches: {why}"))
}

/// Writes rows to `target`, converted to `dtype`, and fills the rest with copies of the last row.
fn fill_rows(
    target: &mut [u8],
    column: &dyn Column,
    dtype: ScalarType,
    rows: &[usize],
) -> Result<(), BatchError> {
    let from = column.dtype();
    let mut filled = 0;
    let mut len = 0;
    for &row in rows {
        let Row { bytes, .. } = column.row(row).map_err(|fault| BatchError::Rows(fault.reason))?;
        len = bytes.len() / from.size() * dtype.size();
        let Some(place) = target.get_mut(filled..filled + len) else {
            return Err(BatchError::Rows("the row has more elements than the input".to_owned()));
        };
        convert::convert(from, bytes, dtype, place).map_err(BatchError::Rows)?;
        filled += len;
    }
    while filled < target.len() && len > 0 {
        let more = len.min(target.len() - filled);
        target.copy_within(filled - len..filled - len + more, filled);
        filled += more;
    }
    Ok(())
}

/// Whether two results differ only by rounding, as if sums were computed in another order.
fn is_close(dtype: ScalarType, a: &[u8], b: &[u8]) -> bool {
    let tolerance = match dtype {
        ScalarType::Double => 1e-6,
        ScalarType::Float => 1e-3,
        ScalarType::Half => 1e-2,
        ScalarType::BFloat16 => 5e-2,
        _ => return a == b,
    };
    let number = |bytes: &[u8]| match dtype {
        ScalarType::Double => bytemuck::pod_read_unaligned(bytes),
        ScalarType::Float => f64::from(bytemuck::pod_read_unaligned::<f32>(bytes)),
        ScalarType::Half => bytemuck::pod_read_unaligned::<f16>(bytes).to_f64(),
        _ => bytemuck::pod_read_unaligned::<bf16>(bytes).to_f64(),
    };
    a.len() == b.len()
        && a.chunks_exact(dtype.size()).zip(b.chunks_exact(dtype.size())).all(|(a, b)| {
            let (a, b): (f64, f64) = (number(a), number(b));
            a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * (1.0 + b.abs())
        })
}
