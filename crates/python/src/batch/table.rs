//! Python classes for Arrow arrays, streams and tables.

use crate::errors::Failure;
use crate::exchange::arrow::{Stream, Table, export_field, export_stream};
use crate::opened::lock;
use pteron_batch::BuiltArray;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use std::sync::Mutex;

/// An Arrow array: one column, or a batch of columns.
#[pyclass(frozen, name = "ArrowArray", module = "pteron")]
pub(crate) struct PyArrowArray {
    pub(super) table: Table,
}

#[pymethods]
impl PyArrowArray {
    /// Imports an Arrow array from an object that has `__arrow_c_array__`.
    #[staticmethod]
    fn take(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self { table: Table::take(object)? })
    }

    /// Combines columns with the same number of rows into a batch.
    #[staticmethod]
    fn batch(rows: usize, columns: Vec<Bound<'_, Self>>) -> PyResult<Self> {
        let columns: Vec<Table> = columns.iter().map(|column| column.get().table.clone()).collect();
        match columns.iter().find(|column| column.rows() != rows) {
            None => Ok(Self { table: Table::batch(rows, columns) }),
            Some(other) => {
                let (name, count) = (other.field.name(), other.rows());
                Err(PyValueError::new_err(format!("column `{name}` has {count} rows, the batch has {rows}")))
            }
        }
    }

    /// Creates a column of strings.
    #[staticmethod]
    fn texts(name: &str, texts: Vec<Option<String>>) -> PyResult<Self> {
        Ok(Self { table: Table::from_built(BuiltArray::from_texts(name, &texts).map_err(Failure::from)?) })
    }

    /// The columns of a batch.
    fn columns(&self) -> PyResult<Vec<Self>> {
        Ok(self.table.columns()?.into_iter().map(|table| Self { table }).collect())
    }

    /// The name of the column.
    #[getter]
    fn name(&self) -> String {
        self.table.field.name()
    }

    fn __len__(&self) -> usize {
        self.table.rows()
    }

    #[pyo3(signature = (requested_schema=None))]
    #[expect(unused_variables, reason = "a consumer may ask for another type, and need not get it")]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        self.table.export(py)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        export_field(py, &self.table.field)
    }
}

/// An iterator over the batches of an Arrow stream.
#[pyclass(frozen, name = "ArrowStream", module = "pteron")]
pub(crate) struct PyArrowStream(Mutex<Stream>);

#[pymethods]
impl PyArrowStream {
    /// Imports an Arrow stream from an object that has `__arrow_c_stream__`.
    #[staticmethod]
    fn take(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self(Mutex::new(Stream::take(object)?)))
    }

    /// A batch with the stream's columns and no rows.
    fn empty(&self) -> PyResult<PyArrowArray> {
        Ok(PyArrowArray { table: lock(&self.0).empty()? })
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self) -> PyResult<Option<PyArrowArray>> {
        Ok(lock(&self.0).next()?.map(|table| PyArrowArray { table }))
    }
}

/// An Arrow table: batches with the same columns.
#[pyclass(frozen, name = "ArrowTable", module = "pteron")]
pub(crate) struct PyArrowTable(Vec<Table>);

#[pymethods]
impl PyArrowTable {
    #[new]
    fn py_new(batches: Vec<Bound<'_, PyArrowArray>>) -> PyResult<Self> {
        match batches.is_empty() {
            true => Err(PyValueError::new_err("a table has a batch or more")),
            false => Ok(Self(batches.iter().map(|batch| batch.get().table.clone()).collect())),
        }
    }

    fn __len__(&self) -> usize {
        self.0.iter().map(Table::rows).sum()
    }

    #[pyo3(signature = (requested_schema=None))]
    #[expect(unused_variables, reason = "a consumer may ask for another type, and need not get it")]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        export_stream(py, self.0[0].field.clone(), self.0.clone())
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        export_field(py, &self.0[0].field)
    }
}
