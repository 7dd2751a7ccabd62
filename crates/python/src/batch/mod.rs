//! Executes rows of columns in batches, for `pteron.batch`.

mod input_column;
mod table;

pub(crate) use table::{PyArrowArray, PyArrowStream, PyArrowTable};

use crate::errors::{Failure, Result};
use crate::exchange::arrow::{Lists, OwnedArray, Table};
use crate::module::PyModule;
use crate::opened::Signature;
use crate::tensor::PyTensor;
use input_column::InputColumn;
use pteron::tensor::{Shape, TensorMeta};
use pteron::{ScalarType, Tensor, bf16, f16};
use pteron_toolbox::batch::{self, Cells, Column, Joining, Outcome, OutputColumn, Plan, Runner, Spec};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::Arc;

/// The failed rows, each with its index, the column that caused the failure, if one did, and the reason.
type Failures = Vec<(usize, Option<String>, String)>;

/// Executes a method of a program on the rows of columns.
#[pyclass(frozen, name = "BatchRunner", module = "pteron")]
pub(crate) struct PyBatchRunner {
    module: Py<PyModule>,
    signature: Arc<Signature>,
    runner: Runner,
}

impl PyBatchRunner {
    fn run(&self, py: Python<'_>, columns: &[&dyn Column]) -> PyResult<Outcome> {
        let opened = self.module.get().open_once(py)?;
        Ok(py.detach(|| {
            opened.with_method(&self.signature, |method| {
                let outcome = self.runner.run(method, columns)?;
                opened.end_record();
                Ok(outcome)
            })
        })?)
    }
}

fn failure_tuples(outcome: &mut Outcome) -> Failures {
    let failures = std::mem::take(&mut outcome.failures).into_iter();
    failures.map(|batch::Failure { row, column, reason }| (row, column, reason)).collect()
}

#[pymethods]
impl PyBatchRunner {
    #[new]
    fn py_new(
        module: &Bound<'_, PyModule>,
        method: Option<String>,
        joined: Option<bool>,
        batch_size: Option<usize>,
        check: bool,
    ) -> PyResult<Self> {
        let opened = module.get().open_once(module.py())?;
        let name = method.map_or_else(|| opened.default_method(), Ok)?;
        let signature = opened.signature(&name)?;
        let joining = match joined {
            None => Joining::Automatic,
            Some(true) => Joining::Together,
            Some(false) => Joining::Alone,
        };
        let meta = opened.program.method_meta(&name).map_err(Failure::from)?;
        let plan = Plan::new(&meta, joining, batch_size).map_err(Failure::from)?;
        Ok(Self { module: module.clone().unbind(), signature, runner: Runner::new(plan, check) })
    }

    /// The input and output columns of the method and its batch sizes, as JSON.
    fn describe(&self) -> String {
        let plan = &self.runner.plan;
        let columns = |specs: &[Spec]| -> Vec<serde_json::Value> {
            let column = |spec: &Spec| {
                serde_json::json!({
                    "name": spec.name, "dtype": spec.dtype.name(), "row": spec.row, "is_dynamic": spec.is_dynamic,
                })
            };
            specs.iter().map(column).collect()
        };
        serde_json::json!({
            "inputs": columns(&plan.inputs), "outputs": columns(&plan.outputs), "batch_sizes": plan.sizes,
        })
        .to_string()
    }

    /// Executes the rows of columns, each a name and an array or list. Returns an array for each output, or a list of arrays if
    /// rows have different sizes, and the failures. Failed rows are NaN, or zeros for types without NaN.
    fn run_arrays<'py>(
        &self,
        py: Python<'py>,
        columns: Vec<(String, Bound<'py, PyAny>)>,
    ) -> PyResult<(Bound<'py, PyList>, Failures)> {
        let inputs = &self.runner.plan.inputs;
        let converted = columns.into_iter().zip(inputs.iter().map(Some).chain(std::iter::repeat(None)));
        let converted = converted.map(|((name, object), spec)| {
            InputColumn::from_object(name, &object, spec.map(|spec| spec.dtype))
        });
        let converted = converted.collect::<PyResult<Vec<_>>>()?;
        let columns: Vec<&dyn Column> = converted.iter().map(|column| column as &dyn Column).collect();
        let mut outcome = self.run(py, &columns)?;
        let failures = failure_tuples(&mut outcome);
        let outputs = PyList::empty(py);
        for column in outcome.outputs {
            outputs.append(output_array(py, column)?)?;
        }
        Ok((outputs, failures))
    }

    /// Executes the rows of Arrow columns. Returns a named Arrow column for each output, and the failed rows.
    fn run_arrow(
        &self,
        py: Python<'_>,
        columns: Vec<Bound<'_, PyArrowArray>>,
        names: Vec<String>,
        lists: &str,
    ) -> PyResult<(Vec<PyArrowArray>, Failures)> {
        let lists = match lists {
            "fixed" => Lists::Fixed,
            "any" => Lists::Any,
            other => return Err(PyValueError::new_err(format!("lists is fixed or any, not `{other}`"))),
        };
        let tables: Vec<Table> = columns.iter().map(|column| column.get().table.clone()).collect();
        let rows: Vec<_> =
            tables.iter().map(|table| table.rows_of().map_err(Failure::Input)).collect::<Result<_>>()?;
        let columns: Vec<&dyn Column> = rows.iter().map(|rows| rows as &dyn Column).collect();
        let mut outcome = self.run(py, &columns)?;
        let failures = failure_tuples(&mut outcome);
        let arrays = outcome.outputs.iter().zip(&names).map(|(column, name)| {
            Ok(PyArrowArray { table: Table::from_owned(OwnedArray::from_output(column, name, lists)?) })
        });
        let arrays: Result<Vec<_>> = arrays.collect();
        Ok((arrays?, failures))
    }
}

/// Converts an output column to one array (failed rows: NaN) or, if sizes differ, a list of arrays (failed rows:
/// `None`).
fn output_array<'py>(py: Python<'py>, column: OutputColumn) -> PyResult<Bound<'py, PyAny>> {
    let dtype = column.spec.dtype;
    let tensor = |sizes: &[usize], bytes: &[u8]| -> Result<PyTensor> {
        Ok(PyTensor::new(Tensor::from_bytes(TensorMeta::contiguous(dtype, sizes)?, bytes)?))
    };
    match column.cells {
        Cells::Equal { row, mut bytes } => {
            let len = bytes.len() / column.valid.len().max(1);
            for (_, bytes) in
                column.valid.iter().zip(bytes.chunks_exact_mut(len.max(1))).filter(|(valid, _)| !**valid)
            {
                fill_nan(dtype, bytes);
            }
            let sizes: Vec<usize> = std::iter::once(column.valid.len()).chain(row.iter().copied()).collect();
            Ok(tensor(&sizes, &bytes)?.into_pyobject(py)?.into_any())
        }
        Cells::Ragged { rows, bytes } => {
            let list = PyList::empty(py);
            let mut rest = &bytes[..];
            for (row, valid) in rows.iter().zip(&column.valid) {
                let (own, others) = rest.split_at(num_elements(row) * dtype.size());
                rest = others;
                match valid {
                    true => list.append(tensor(row, own)?.into_pyobject(py)?)?,
                    false => list.append(py.None())?,
                }
            }
            Ok(list.into_any())
        }
    }
}

fn num_elements(row: &Shape) -> usize {
    row.iter().product()
}

/// Fills elements with NaN, if their type has it.
fn fill_nan(dtype: ScalarType, bytes: &mut [u8]) {
    let mut fill =
        |nan: &[u8]| bytes.chunks_exact_mut(nan.len()).for_each(|element| element.copy_from_slice(nan));
    match dtype {
        ScalarType::Half => fill(&f16::NAN.to_ne_bytes()),
        ScalarType::BFloat16 => fill(&bf16::NAN.to_ne_bytes()),
        ScalarType::Float => fill(&f32::NAN.to_ne_bytes()),
        ScalarType::Double => fill(&f64::NAN.to_ne_bytes()),
        _ => {}
    }
}
