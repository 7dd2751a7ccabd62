use crate::convert;
use crate::errors::{Failure, Result};
use crate::exchange::Array;
use crate::tensor::borrow_array;
use pteron::tensor::TensorMeta;
use pteron::{DimOrder, ScalarType, Shape, Tensor};
use pteron_toolbox::batch::{Column, Fault, Row};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

/// An input column from Python: an array whose first dimension is the rows, or a list of rows.
pub(super) struct InputColumn {
    name: String,
    dtype: ScalarType,
    rows: usize,
    data: Data,
}

enum Data {
    /// The rows of a dense row-major array, used in place.
    Lent(Box<Array>, TensorMeta),
    /// The rows of an array that is not dense and row-major, copied.
    Owned(Tensor),
    /// One entry per row: the row as a tensor, or the reason why it cannot be one.
    Rows(Vec<Result<Tensor, String>>),
}

impl InputColumn {
    /// Converts a column for an input; its elements become `wanted` if that is given and they can be read as that type.
    pub(super) fn from_object(
        name: String,
        object: &Bound<'_, PyAny>,
        wanted: Option<ScalarType>,
    ) -> PyResult<Self> {
        if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
            return Self::from_list(name, object, wanted);
        }
        let array = borrow_array(object)
            .map_err(|e| PyTypeError::new_err(format!("column `{name}`: {}", e.value(object.py()))))?;
        let Some(array) = array else {
            let kind = object.get_type().name()?;
            return Err(PyTypeError::new_err(format!("column `{name}` is a {kind}, and no array or list")));
        };
        let dtype = array.dtype(wanted)?;
        let meta = array.dense_meta(dtype)?.filter(TensorMeta::is_row_major);
        let data = match meta {
            Some(meta) => Data::Lent(Box::new(array), meta),
            None => Data::Owned(array.gather(dtype)?),
        };
        let sizes = match &data {
            Data::Lent(_, meta) => meta.sizes(),
            Data::Owned(tensor) => tensor.sizes(),
            Data::Rows(_) => &Shape::default(),
        };
        let Some(&rows) = sizes.first() else {
            return Err(PyTypeError::new_err(format!("column `{name}` is one number, and has no rows")));
        };
        Ok(Self { name, dtype, rows, data })
    }

    fn from_list(name: String, object: &Bound<'_, PyAny>, wanted: Option<ScalarType>) -> PyResult<Self> {
        let mut rows: Vec<Result<Tensor, String>> = Vec::new();
        for row in object.try_iter()? {
            rows.push(row_tensor(&row?, wanted));
        }
        let dtype = rows.iter().flatten().next().map(Tensor::dtype).or(wanted).unwrap_or(ScalarType::Float);
        for row in &mut rows {
            if let Ok(tensor) = row
                && tensor.dtype() != dtype
            {
                *row = Err(format!("it is {}, and the rows before it are {dtype}", tensor.dtype()));
            }
        }
        Ok(Self { name, dtype, rows: rows.len(), data: Data::Rows(rows) })
    }

    /// Row number `index` of an array whose elements are `bytes`, row-major, and whose sizes are `sizes`.
    fn array_row<'a>(&self, bytes: &'a [u8], sizes: &Shape, index: usize) -> Row<'a> {
        let mut sizes = *sizes;
        sizes.remove(0);
        let len = sizes.iter().product::<usize>() * self.dtype.size();
        Row { bytes: &bytes[index * len..(index + 1) * len], sizes }
    }
}

/// Converts an object that is one row to a tensor, or returns the reason why it cannot be one.
fn row_tensor(object: &Bound<'_, PyAny>, wanted: Option<ScalarType>) -> Result<Tensor, String> {
    if object.is_none() {
        return Err("it is null".to_owned());
    }
    let py = object.py();
    let tensor = match borrow_array(object) {
        Ok(None) => convert::to_tensor(object, wanted, None),
        Ok(Some(_)) => convert::to_tensor(object, None, None),
        Err(error) => Err(error),
    };
    let order = |tensor: Tensor| match tensor.meta().is_row_major() {
        true => Ok(tensor),
        false => tensor
            .to_dim_order(DimOrder::contiguous(tensor.rank()))
            .map_err(|e| PyErr::from(Failure::from(e))),
    };
    tensor.and_then(order).map_err(|error| error.value(py).to_string())
}

impl Column for InputColumn {
    fn name(&self) -> &str {
        &self.name
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn dtype(&self) -> ScalarType {
        self.dtype
    }

    fn row(&self, index: usize) -> Result<Row<'_>, Fault> {
        Ok(match &self.data {
            Data::Lent(array, meta) => {
                self.array_row(array.view(meta).map_err(|e| e.to_string())?.bytes(), meta.sizes(), index)
            }
            Data::Owned(tensor) => self.array_row(tensor.bytes(), tensor.sizes(), index),
            Data::Rows(rows) => match &rows[index] {
                Ok(tensor) => Row { bytes: tensor.bytes(), sizes: *tensor.sizes() },
                Err(reason) => return Err(reason.clone().into()),
            },
        })
    }
}
