//! `pteron.Tensor`: a tensor computed by the runtime, or created from Python objects.

mod index;
mod methods;

use crate::exchange::{Array, Storage};
use pteron::ScalarType;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;

/// A tensor in main memory, as a Python object.
#[pyclass(frozen, name = "Tensor", module = "pteron")]
pub(crate) struct PyTensor(Arc<Storage>);

impl PyTensor {
    /// Wraps a tensor.
    pub(crate) fn new(tensor: pteron::Tensor) -> Self {
        Self(Arc::new(Storage::new(tensor)))
    }

    /// The memory that holds the tensor.
    pub(crate) fn storage(&self) -> &Arc<Storage> {
        &self.0
    }
}

/// Parses the name of an element type, such as `float32` or `f32`, or of a dtype of NumPy or PyTorch.
pub(crate) fn parse_dtype(object: &Bound<'_, PyAny>) -> PyResult<ScalarType> {
    let name: String = match object.extract::<String>() {
        Ok(name) => name,
        // `numpy.dtype("float32")`, the class `numpy.float32`, and `torch.float32`.
        Err(_) => match object.getattr("name").or_else(|_| object.getattr("__name__")) {
            Ok(name) => name.extract()?,
            Err(_) => object.str()?.extract()?,
        },
    };
    let known = ScalarType::parse(name.strip_prefix("torch.").unwrap_or(&name));
    known.ok_or_else(|| PyValueError::new_err(format!("there is no type `{name}`")))
}

/// The memory of a tensor of this package, or of an object that exports its memory; `None` for other objects.
pub(crate) fn borrow_array(object: &Bound<'_, PyAny>) -> PyResult<Option<Array>> {
    match object.cast_exact::<PyTensor>() {
        Ok(tensor) => Ok(Some(Array::from_storage(tensor.get().storage()))),
        Err(_) => Array::borrow(object),
    }
}
