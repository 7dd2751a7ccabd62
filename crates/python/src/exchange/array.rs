use super::buffer;
use super::dlpack;
use super::strided::{self, Place, Strides, dense_order};
use super::{COPIES, Element, Storage};
use crate::errors::{Failure, Result};
use pteron::tensor::{TensorMeta, TensorView, TensorViewMut};
use pteron::{ScalarType, Shape, Tensor};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::sync::Arc;

/// A Python array whose memory is borrowed until this value is dropped.
pub(crate) struct Array {
    start: *mut u8,
    element: Element,
    sizes: Shape,
    strides: Strides,
    is_read_only: bool,
    _owner: Owner,
}

// SAFETY: borrowed memory may be returned by any thread (both kinds of `BorrowedBuffer` attach to the interpreter or may be deleted
// anywhere), and the memory is only read and written under the rules of this module.
unsafe impl Send for Array {}
// SAFETY: as above.
unsafe impl Sync for Array {}

/// The owner of an array's memory, which keeps it alive.
#[expect(dead_code, reason = "held only for their destructors")]
enum Owner {
    Buffer(buffer::BorrowedBuffer),
    DlPack(dlpack::BorrowedTensor),
    Tensor(Arc<Storage>),
}

/// Whether an object supports the buffer protocol.
pub(crate) fn has_buffer(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the pointer is that of a live object; the function only checks its type.
    unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) == 1 }
}

/// Fails for a PyTorch view with the negative or conjugate bit, whose memory is yet to be negated or conjugated.
fn check_not_lazy(object: &Bound<'_, PyAny>, element: Element) -> PyResult<()> {
    use ScalarType as T;
    let Element::Known(dtype) = element else { return Ok(()) };
    let is_complex = matches!(dtype, T::ComplexHalf | T::ComplexFloat | T::ComplexDouble);
    if !is_complex && !matches!(dtype, T::Half | T::BFloat16 | T::Float | T::Double) {
        return Ok(());
    }
    let py = object.py();
    let says = |name| match object.getattr_opt(name)? {
        Some(method) => method.call0()?.is_truthy(),
        None => Ok(false),
    };
    if says(pyo3::intern!(py, "is_neg"))? || (is_complex && says(pyo3::intern!(py, "is_conj"))?) {
        return Err(PyTypeError::new_err(
            "the tensor is a view that negates or conjugates what is in memory; give x.resolve_neg().resolve_conj()",
        ));
    }
    Ok(())
}

impl Array {
    /// Borrows the memory of an object that has the buffer protocol, DLPack or `__array__`; `None` if it has none of
    /// these.
    pub(crate) fn borrow(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let py = object.py();
        if has_buffer(object) {
            return Self::from_buffer(object).map(Some);
        }
        if let Some(lent) = dlpack::BorrowedTensor::borrow(object)? {
            return Self::from_dlpack(object, lent).map(Some);
        }
        if let Ok(method) = object.getattr(pyo3::intern!(py, "__array__")) {
            return Self::from_buffer(&method.call0()?).map(Some);
        }
        Ok(None)
    }

    /// This array, which was borrowed of `object`, or an error if `object` gives copies of its elements: what is written
    /// to a copy is lost.
    pub(crate) fn refuse_copy_of(self, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if matches!(self._owner, Owner::Buffer(_)) && !has_buffer(object) {
            let again = Self::borrow(object)?;
            if again.is_none_or(|again| again.start != self.start) {
                return Err(PyTypeError::new_err(
                    "`out` takes arrays that can be written to, and `__array__` gives copies here",
                ));
            }
        }
        Ok(self)
    }

    /// Borrows the memory of a tensor of this package.
    pub(crate) fn from_storage(storage: &Arc<Storage>) -> Self {
        Self {
            start: storage.start(),
            element: Element::Known(storage.meta().dtype()),
            sizes: *storage.meta().sizes(),
            strides: Strides::from_meta(storage.meta()),
            is_read_only: false,
            _owner: Owner::Tensor(Arc::clone(storage)),
        }
    }

    fn from_buffer(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = buffer::BorrowedBuffer::request(object)?;
        let format = buffer.format().to_str().unwrap_or("?");
        let element = Element::of_format(format, buffer.item_size()).ok_or_else(|| {
            PyTypeError::new_err(format!(
                "an array of elements `{format}` cannot be a tensor; give it another type, or this machine's byte order"
            ))
        })?;
        if buffer.is_indirect() || buffer.shape().len() != buffer.strides().len() {
            return Err(PyTypeError::new_err(
                "an array of pointers to rows cannot be a tensor; copy it first",
            ));
        }
        if !buffer.is_consistent() {
            return Err(PyBufferError::new_err("the array has a buffer whose sizes contradict each other"));
        }
        let strides = Strides::new(buffer.strides().iter().copied().map(Some));
        let (sizes, strides) = Self::array_layout(buffer.shape().iter().map(|n| n.unsigned_abs()), strides)?;
        let (start, is_read_only) = (buffer.start(), buffer.is_read_only());
        Ok(Self { start, element, sizes, strides, is_read_only, _owner: Owner::Buffer(buffer) })
    }

    /// Converts sizes and strides to the types that tensors have. Fails if the rank exceeds that of tensors.
    fn array_layout(
        sizes: impl Iterator<Item = usize>,
        strides: Option<Strides>,
    ) -> PyResult<(Shape, Strides)> {
        let mut shape = Shape::default();
        for size in sizes {
            shape.push(size).map_err(Failure::from)?;
        }
        let strides =
            strides.ok_or_else(|| PyTypeError::new_err("an array has more dimensions than tensors"))?;
        Ok((shape, strides))
    }

    fn from_dlpack(object: &Bound<'_, PyAny>, lent: dlpack::BorrowedTensor) -> PyResult<Self> {
        let unreadable = || {
            PyTypeError::new_err(
                "DLPack gave a tensor of a type that programs do not have, or without memory",
            )
        };
        let dlpack::Place { start, element, sizes, strides, is_read_only } =
            lent.place().ok_or_else(unreadable)?;
        check_not_lazy(object, element)?;
        let size = element.size() as isize;
        let bytes = |&n: &i64| isize::try_from(n).ok()?.checked_mul(size);
        let strides = strides.map_or_else(
            || Strides::row_major(sizes, element.size()),
            |strides| Strides::new(strides.iter().map(bytes)),
        );
        let (sizes, strides) = Self::array_layout(sizes.iter().map(|&n| n.unsigned_abs() as usize), strides)?;
        Ok(Self { start, element, sizes, strides, is_read_only, _owner: Owner::DlPack(lent) })
    }

    /// The element type: `wanted` if the array's elements can be read as that type, otherwise the array's own type.
    pub(crate) fn dtype(&self, wanted: Option<ScalarType>) -> PyResult<ScalarType> {
        match (self.element, wanted) {
            (element, Some(wanted)) if element.read_as(wanted).is_some() => Ok(wanted),
            (Element::Known(dtype), _) => Ok(dtype),
            (Element::Opaque(size), _) => Err(PyTypeError::new_err(format!(
                "elements of {size} bytes without a type cannot be a tensor"
            ))),
        }
    }

    /// The type and layout with which a tensor view can use the memory in place; `None` if the elements are not dense.
    pub(crate) fn dense_meta(&self, dtype: ScalarType) -> Result<Option<TensorMeta>> {
        let Some(order) = dense_order(&self.sizes, &self.strides, self.element.size()) else {
            return Ok(None);
        };
        Ok(Some(TensorMeta::new(dtype, &self.sizes, order)?))
    }

    /// A tensor view of the memory; `meta` is the result of [`Self::dense_meta`].
    pub(crate) fn view<'a>(&'a self, meta: &'a TensorMeta) -> pteron::tensor::Result<TensorView<'a>> {
        if meta.nbytes() == 0 {
            return TensorView::new(meta, &[]);
        }
        // SAFETY: the exporter has lent memory for elements of these sizes and strides, which are dense, so it is one
        // contiguous range from the first element on. It is valid until `self` is dropped, and nobody writes to it meanwhile
        // by the rule of this module.
        let bytes = unsafe { std::slice::from_raw_parts(self.start.cast_const(), meta.nbytes()) };
        TensorView::new(meta, bytes)
    }

    /// Copies the elements to a new row-major tensor.
    pub(crate) fn gather(&self, dtype: ScalarType) -> Result<Tensor> {
        COPIES.count_input();
        let mut tensor = Tensor::zeros(TensorMeta::contiguous(dtype, &self.sizes)?)?;
        let (sizes, size, strides) =
            (*tensor.sizes(), self.element.size(), Strides::from_meta(tensor.meta()));
        let mut view = tensor.view_mut();
        let target = view.bytes_mut().as_mut_ptr();
        // SAFETY: the exporter has lent every element, and the target is a new tensor of the same sizes.
        unsafe { strided::copy(&self.place(), &Place { start: target, strides: &strides }, &sizes, size) };
        Ok(tensor)
    }

    fn place(&self) -> Place<'_> {
        Place { start: self.start, strides: &self.strides }
    }

    /// Fails if a tensor of this type and sizes cannot be written to the array.
    pub(crate) fn check_room(&self, output: usize, dtype: ScalarType, sizes: &Shape) -> Result<()> {
        let problem = match () {
            () if self.is_read_only => "is read-only".to_owned(),
            () if self.element.read_as(dtype).is_none() => {
                format!("has elements of another type than {dtype}")
            }
            () if self.sizes[..] != sizes[..] => {
                format!("has shape {:?}, the output has {:?}", &self.sizes[..], &sizes[..])
            }
            () => return Ok(()),
        };
        Err(Failure::Input(format!("the array given for output {output} {problem}")))
    }

    /// Copies a tensor, output number `output`, to the array. Fails if [`Self::check_room`] fails.
    pub(crate) fn write(&self, output: usize, tensor: TensorView<'_>) -> Result<()> {
        self.check_room(output, tensor.dtype(), tensor.sizes())?;
        if tensor.nbytes() == 0 {
            return Ok(());
        }
        COPIES.count_output();
        if let Some(mut meta) = self.dense_meta(tensor.dtype())? {
            // SAFETY: the exporter has lent writable memory of dense elements. The tensor is in memory of the method, which
            // Python cannot access, and there is no other reference to the array's memory meanwhile.
            let bytes = unsafe { std::slice::from_raw_parts_mut(self.start, meta.nbytes()) };
            let written = TensorViewMut::new(&mut meta, bytes).and_then(|mut out| tensor.relayout(&mut out));
            return Ok(written?);
        }
        let (sizes, size, strides) =
            (*tensor.sizes(), self.element.size(), Strides::from_meta(tensor.meta()));
        let from = Place { start: tensor.bytes().as_ptr().cast_mut(), strides: &strides };
        // SAFETY: the source is only read; the target is as above, with any strides.
        unsafe { strided::copy(&from, &self.place(), &sizes, size) };
        Ok(())
    }
}
