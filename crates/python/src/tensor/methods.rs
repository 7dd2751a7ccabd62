//! What Python sees of a tensor.

use super::{PyTensor, index, parse_dtype};
use crate::convert;
use crate::errors::Failure;
use crate::exchange::{self, CPU, Storage};
use pteron::DimOrder;
use pteron::tensor::TensorMeta;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyDict, PyList, PyTuple};
use std::ffi::c_int;
use std::sync::Arc;

impl PyTensor {
    fn meta(&self) -> &TensorMeta {
        self.0.meta()
    }

    /// A copy of the tensor in row-major order.
    fn row_major(&self) -> Result<pteron::Tensor, Failure> {
        let order = DimOrder::contiguous(self.meta().rank());
        Ok(self.0.view()?.to_tensor()?.to_dim_order(order)?)
    }
}

#[pymethods]
impl PyTensor {
    #[new]
    #[pyo3(signature = (data, dtype=None, shape=None))]
    fn py_new(
        data: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        shape: Option<Vec<usize>>,
    ) -> PyResult<Self> {
        let dtype = dtype.map(parse_dtype).transpose()?;
        Ok(Self::new(convert::to_tensor(data, dtype, shape.as_deref())?))
    }

    /// The sizes of the tensor, as a tuple.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.meta().sizes().iter())
    }

    /// The strides of the tensor's dimensions, in elements.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.meta().strides().iter())
    }

    /// The dimensions in the order in which they are laid out in memory, outermost first.
    #[getter]
    fn dim_order<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.meta().dim_order().iter())
    }

    /// PyTorch's name of the element type, such as `float32`.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.meta().dtype().name()
    }

    #[getter]
    fn ndim(&self) -> usize {
        self.meta().rank()
    }

    #[getter]
    fn size(&self) -> usize {
        self.meta().numel()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.meta().nbytes()
    }

    fn __len__(&self) -> PyResult<usize> {
        self.meta()
            .sizes()
            .first()
            .copied()
            .ok_or_else(|| PyTypeError::new_err("a tensor without dimensions has no length"))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let tensor = self.0.view().and_then(|view| view.to_tensor());
        py.detach(|| Ok(format!("Tensor({})", pteron_toolbox::show::tensor(&tensor?))))
            .map_err(|e: Failure| e.into())
    }

    /// An element as a number, or a part of the tensor as a copy, for an index as in NumPy.
    fn __getitem__<'py>(&self, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        index::item(&self.row_major()?, index)
    }

    /// An iterator over the first dimension.
    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let tensor = self.row_major()?;
        let items = (0..self.__len__()?).map(|i| index::item(&tensor, i.into_pyobject(py)?.as_any()));
        let items = PyList::new(py, items.collect::<PyResult<Vec<_>>>()?)?;
        Ok(items.try_iter()?.into_any())
    }

    fn __float__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("builtins")?.call_method1("float", (self.item(py)?,))
    }

    fn __int__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("builtins")?.call_method1("int", (self.item(py)?,))
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        self.item(py)?.is_truthy()
    }

    /// The elements as nested lists of numbers.
    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        convert::nested_list(py, &self.row_major()?)
    }

    /// The only element of a tensor, as a Python number; fails if there is not exactly one.
    fn item<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if self.meta().numel() != 1 {
            return Err(PyValueError::new_err(format!(
                "a tensor of {} elements is no number",
                self.meta().numel()
            )));
        }
        convert::nested_list(py, &flatten(self.row_major()?).map_err(Failure::from)?)?.get_item(0)
    }

    /// The bytes of the elements, in row-major order.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, self.row_major()?.bytes()))
    }

    /// A NumPy array that shares the tensor's memory.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("numpy")?.call_method1("asarray", (slf.cast::<PyAny>()?.call_method0("__memory__")?,))
    }

    /// A `memoryview` of the tensor's elements, which shares their memory.
    fn __memory__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("builtins")?.call_method1("memoryview", (slf,))
    }

    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let array = Self::numpy(slf)?;
        match (dtype, copy) {
            (None, Some(true)) => array.call_method0("copy"),
            (None, _) => Ok(array),
            (Some(dtype), copy) => {
                let options = PyDict::new(slf.py());
                options.set_item("copy", copy.unwrap_or(false))?;
                array.call_method("astype", (dtype,), Some(&options))
            }
        }
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    #[expect(unused_variables, reason = "DLPack's parameters, of which main memory needs none")]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<&Bound<'py, PyAny>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        if dl_device.is_some_and(|(kind, _)| kind != CPU) {
            return Err(PyBufferError::new_err("the tensor is in main memory"));
        }
        match copy {
            Some(true) => {
                let copy = self.0.view().and_then(|view| view.to_tensor()).map_err(Failure::from)?;
                exchange::export(py, &Arc::new(Storage::new(copy)))
            }
            _ => exchange::export(py, &self.0),
        }
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (CPU, 0)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let py = slf.py();
        let this = slf.get();
        let arguments = (this.tobytes(py)?, this.dtype(), this.shape(py)?).into_pyobject(py)?;
        Ok((slf.get_type().into_any(), arguments))
    }

    /// # Safety
    /// Python calls this as `bf_getbuffer`, with a view to fill.
    #[allow(unsafe_code)]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        // SAFETY: `bf_getbuffer` passes a null or writable view, and Python passes it to `bf_releasebuffer` when it is
        // released.
        unsafe { exchange::fill_view(slf.clone().into_any(), slf.get().storage(), view, flags) }
    }

    /// # Safety
    /// Python calls this as `bf_releasebuffer`, with a view that `__getbuffer__` has filled.
    #[allow(unsafe_code)]
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: Python calls this once for a view that `__getbuffer__` has filled.
        unsafe { exchange::free_view(view) }
    }
}

/// Reshapes a tensor to one dimension.
fn flatten(tensor: pteron::Tensor) -> pteron::tensor::Result<pteron::Tensor> {
    let meta = TensorMeta::contiguous(tensor.dtype(), &[tensor.numel()])?;
    pteron::Tensor::from_bytes(meta, tensor.bytes())
}
