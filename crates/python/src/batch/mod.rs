//! Executes rows of columns in batches, for `pteron.batch`.

mod input_column;
mod table;

pub(crate) use table::{PyArrowArray, PyArrowStream, PyArrowTable};

use crate::errors::{Failure, Result};
use crate::exchange::arrow::Table;
use crate::interrupt::run_interruptible;
use crate::module::PyModule;
use crate::opened::Signature;
use crate::tensor::PyTensor;
use input_column::InputColumn;
use pteron::tensor::{Shape, TensorMeta};
use pteron::{ScalarType, Tensor};
use pteron_batch::{ArrowColumn, BuiltArray, Lists, with_top};
use pteron_toolbox::batch::{
    self, Cells, Column, Joining, Outcome, OutputColumn, Plan, RowRules, Runner, Spec,
};
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
        run_interruptible(py, &self.signature.last_time, |handle| {
            opened.with_interrupt(&self.signature, handle, |method| {
                let outcome = self.runner.run(method, columns)?;
                opened.end_event_block();
                Ok(outcome)
            })
        })
    }

    /// The element types of the inputs.
    fn dtypes(&self) -> impl Iterator<Item = ScalarType> {
        self.runner.plan.inputs.iter().map(|spec| spec.dtype)
    }

    /// Executes the rows of one column, or of several that are stacked, for each input.
    fn run_parts(&self, py: Python<'_>, source_columns: &[Vec<&dyn Column>]) -> PyResult<Outcome> {
        let inputs = &self.runner.plan.inputs;
        let outcome = pteron_batch::with_stacked(inputs, source_columns, |columns| -> Result<_, Stopped> {
            self.run(py, columns).map_err(Stopped::Python)
        });
        outcome.map_err(PyErr::from)
    }
}

/// An error of columns, or one that Python is to get.
enum Stopped {
    Columns(pteron_toolbox::Error),
    Python(PyErr),
}

impl From<pteron_toolbox::Error> for Stopped {
    fn from(error: pteron_toolbox::Error) -> Self {
        Self::Columns(error)
    }
}

impl From<Stopped> for PyErr {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Columns(error) => Failure::from(error).into(),
            Stopped::Python(error) => error,
        }
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
        rules: (bool, bool),
    ) -> PyResult<Self> {
        let opened = module.get().open_once(module.py())?;
        let name = method.map_or_else(|| opened.default_method(), Ok)?;
        let signature = opened.signature(&name)?;
        let joining = match joined {
            None => Joining::Automatic,
            Some(true) => Joining::Together,
            Some(false) => Joining::Alone,
        };
        let rules = RowRules { exact: rules.0, finite: rules.1 };
        let meta = opened.program.method_meta(&name).map_err(Failure::from)?;
        let plan = Plan::new(&meta, joining, batch_size, rules).map_err(Failure::from)?;
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

    /// Executes the rows of columns: for each input one column, or several of scalars, each a name and an array or
    /// list. Returns an array for each output, or a list of arrays and `None` if rows have different sizes or failed,
    /// and the failures. With `top`, the outputs are the indices of this many of the largest elements of the only
    /// output, and these elements.
    fn run_arrays<'py>(
        &self,
        py: Python<'py>,
        columns: Vec<Vec<(String, Bound<'py, PyAny>)>>,
        top: Option<usize>,
    ) -> PyResult<(Bound<'py, PyList>, Failures)> {
        let dtypes = self.dtypes();
        let source_columns = columns.into_iter().zip(dtypes.map(Some).chain(std::iter::repeat(None)));
        let source_columns = source_columns.map(|(parts, dtype)| {
            let parts =
                parts.into_iter().map(|(name, object)| InputColumn::from_object(name, &object, dtype));
            parts.collect::<PyResult<Vec<_>>>()
        });
        let source_columns = source_columns.collect::<PyResult<Vec<_>>>()?;
        let mut outcome = self.run_parts(py, &borrowed(&source_columns, |column| column))?;
        let failures = failure_tuples(&mut outcome);
        let outputs = PyList::empty(py);
        for column in with_top(outcome.outputs, top).map_err(Failure::from)? {
            outputs.append(output_array(py, column)?)?;
        }
        Ok((outputs, failures))
    }

    /// As `run_arrays`, but takes Arrow columns or lists and returns a named Arrow column for each output. With `labels`, the indices that
    /// `top` finds are replaced by their labels.
    fn run_arrow(
        &self,
        py: Python<'_>,
        columns: Vec<Vec<(String, Bound<'_, PyAny>)>>,
        names: Vec<String>,
        lists: &str,
        top: Option<usize>,
        labels: Option<Vec<String>>,
    ) -> PyResult<(Vec<PyArrowArray>, Failures)> {
        let lists = match lists {
            "fixed" => Lists::Fixed,
            "any" => Lists::Any,
            other => return Err(PyValueError::new_err(format!("lists is fixed or any, not `{other}`"))),
        };
        let source_columns: Vec<Vec<SourceColumn>> = columns
            .into_iter()
            .zip(self.dtypes().map(Some).chain(std::iter::repeat(None)))
            .map(|(parts, dtype)| {
                parts.into_iter().map(|(name, part)| SourceColumn::from_object(name, &part, dtype)).collect()
            })
            .collect::<PyResult<_>>()?;
        let rows = source_columns
            .iter()
            .map(|parts| parts.iter().map(SourceColumn::borrow_rows).collect::<Result<Vec<_>>>());
        let rows = rows.collect::<Result<Vec<_>>>()?;
        let mut outcome = self.run_parts(py, &borrowed(&rows, GivenRows::column))?;
        let failures = failure_tuples(&mut outcome);
        let outputs = with_top(outcome.outputs, top).map_err(Failure::from)?;
        let arrays = outputs.iter().zip(&names).enumerate().map(|(i, (column, name))| {
            let array = match &labels {
                Some(labels) if i == 0 => BuiltArray::from_labels(column, labels, name)?,
                _ => BuiltArray::from_output(column, name, lists)?,
            };
            Ok(PyArrowArray { table: Table::from_built(array) })
        });
        let arrays: Result<Vec<_>> = arrays.collect();
        Ok((arrays?, failures))
    }
}

fn borrowed<C>(columns: &[Vec<C>], column: impl Fn(&C) -> &dyn Column) -> Vec<Vec<&dyn Column>> {
    columns.iter().map(|parts| parts.iter().map(&column).collect()).collect()
}

/// A column that the caller passed: an Arrow array, or a converted Python object.
enum SourceColumn {
    Arrow(String, Table),
    Python(InputColumn),
}

impl SourceColumn {
    fn from_object(name: String, object: &Bound<'_, PyAny>, dtype: Option<ScalarType>) -> PyResult<Self> {
        match object.cast_exact::<PyArrowArray>() {
            Ok(array) => Ok(Self::Arrow(name, array.get().table.clone())),
            Err(_) => Ok(Self::Python(InputColumn::from_object(name, object, dtype)?)),
        }
    }

    fn borrow_rows(&self) -> Result<GivenRows<'_>> {
        match self {
            Self::Arrow(name, table) => {
                let rows = table.rows_of(name.clone()).map_err(Failure::Input)?;
                Ok(GivenRows::Arrow(rows))
            }
            Self::Python(column) => Ok(GivenRows::Python(column)),
        }
    }
}

/// The rows of a [`SourceColumn`].
enum GivenRows<'a> {
    Arrow(ArrowColumn<'a>),
    Python(&'a InputColumn),
}

impl GivenRows<'_> {
    fn column(&self) -> &dyn Column {
        match self {
            Self::Arrow(column) => column,
            Self::Python(column) => *column,
        }
    }
}

/// Converts an output column to one array or, if rows have different sizes or failed, to a list of arrays, with `None`
/// for failed rows.
fn output_array<'py>(py: Python<'py>, column: OutputColumn) -> PyResult<Bound<'py, PyAny>> {
    let dtype = column.spec.dtype;
    let tensor = |sizes: &[usize], bytes: &[u8]| -> Result<PyTensor> {
        Ok(PyTensor::new(Tensor::from_bytes(TensorMeta::contiguous(dtype, sizes)?, bytes)?))
    };
    match column.cells {
        Cells::Equal { row, bytes } if column.valid.iter().all(|&valid| valid) => {
            let sizes: Vec<usize> = std::iter::once(column.valid.len()).chain(row.iter().copied()).collect();
            Ok(tensor(&sizes, &bytes)?.into_pyobject(py)?.into_any())
        }
        Cells::Equal { row, bytes } => {
            let len = num_elements(&row) * dtype.size();
            let list = PyList::empty(py);
            for (i, valid) in column.valid.iter().enumerate() {
                match valid {
                    true => list.append(tensor(&row, &bytes[i * len..(i + 1) * len])?.into_pyobject(py)?)?,
                    false => list.append(py.None())?,
                }
            }
            Ok(list.into_any())
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
