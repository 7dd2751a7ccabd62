//! The buffer protocol, in both directions.

use super::{Storage, format_of};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{CStr, c_int, c_void};
use std::{ptr, slice};

/// The maximum number of dimensions in the buffer protocol (`PyBUF_MAX_NDIM`); a view with more is malformed.
const MAX_DIMS: usize = 64;

/// A buffer that was borrowed from an object through the buffer protocol; it is released on drop.
pub(super) struct BorrowedBuffer(Box<ffi::Py_buffer>);

// SAFETY: the struct is only read until it is released, which any thread may do while attached to the interpreter.
unsafe impl Send for BorrowedBuffer {}

impl BorrowedBuffer {
    /// Requests the buffer of an object that supports the buffer protocol.
    pub(super) fn request(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the pointer is that of a live object, and the view is writable. It is boxed, so it does not move until it is
        // released.
        match unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, ffi::PyBUF_FULL_RO) } {
            0 => Ok(Self(view)),
            _ => Err(PyErr::fetch(object.py())),
        }
    }

    /// The address of the first element.
    pub(super) fn start(&self) -> *mut u8 {
        self.0.buf.cast()
    }

    /// The size of an element in bytes.
    pub(super) fn item_size(&self) -> usize {
        self.0.itemsize.unsigned_abs()
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.0.readonly != 0
    }

    /// The format string of an element, in the syntax of Python's `struct` module.
    pub(super) fn format(&self) -> &CStr {
        match self.0.format.is_null() {
            true => c"B",
            // SAFETY: a format is a C string that lives as long as the view.
            false => unsafe { CStr::from_ptr(self.0.format) },
        }
    }

    /// The sizes of the dimensions.
    pub(super) fn shape(&self) -> &[isize] {
        self.read_numbers(self.0.shape)
    }

    /// The strides, in bytes.
    pub(super) fn strides(&self) -> &[isize] {
        self.read_numbers(self.0.strides)
    }

    /// Whether elements are reached through pointers (suboffsets).
    pub(super) fn is_indirect(&self) -> bool {
        self.read_numbers(self.0.suboffsets).iter().any(|&offset| offset >= 0)
    }

    /// Whether the sizes and the element size give the buffer's length, and the address is not null if there are
    /// elements.
    pub(super) fn is_consistent(&self) -> bool {
        let shape = self.shape();
        let elements = shape.iter().try_fold(self.0.itemsize, |bytes, &n| bytes.checked_mul(n));
        usize::try_from(self.0.ndim) == Ok(shape.len())
            && self.0.itemsize > 0
            && shape.iter().all(|&n| n >= 0)
            && (elements == Some(self.0.len) || (shape.contains(&0) && self.0.len == 0))
            && (!self.0.buf.is_null() || shape.contains(&0))
    }

    fn read_numbers(&self, at: *mut ffi::Py_ssize_t) -> &[isize] {
        match (usize::try_from(self.0.ndim), at.is_null()) {
            // SAFETY: shape, strides and suboffsets have `ndim` entries if they are not null.
            (Ok(rank), false) if (1..=MAX_DIMS).contains(&rank) => unsafe {
                slice::from_raw_parts(at.cast_const(), rank)
            },
            _ => &[],
        }
    }
}

impl Drop for BorrowedBuffer {
    fn drop(&mut self) {
        // SAFETY: the view was filled by `PyObject_GetBuffer`, and is released once.
        Python::attach(|_| unsafe { ffi::PyBuffer_Release(&raw mut *self.0) });
    }
}

/// The sizes and strides that an exported buffer view points to.
struct Dims {
    shape: Box<[ffi::Py_ssize_t]>,
    strides: Box<[ffi::Py_ssize_t]>,
}

/// Fills a view of a tensor's memory, which `owner` keeps alive.
///
/// # Safety
/// `view` must be null or writable, and must be passed to [`free_view`] when it is released.
pub(crate) unsafe fn fill_view(
    owner: Bound<'_, PyAny>,
    storage: &Storage,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err("there is no view to fill"));
    }
    let meta = storage.meta();
    let asks = |flag: c_int| flags & flag == flag;
    if (!asks(ffi::PyBUF_STRIDES) || asks(ffi::PyBUF_C_CONTIGUOUS)) && !meta.is_row_major() {
        return Err(PyBufferError::new_err("the tensor is not in row-major order, which was asked for"));
    }
    let shape = meta.sizes().iter().map(|&n| n as ffi::Py_ssize_t).collect();
    let mut dims = Box::new(Dims { shape, strides: storage.byte_strides().into_boxed_slice() });
    let format =
        if asks(ffi::PyBUF_FORMAT) { format_of(meta.dtype()).0.as_ptr().cast_mut() } else { ptr::null_mut() };
    let null_unless = |wanted: bool, at: *mut ffi::Py_ssize_t| if wanted { at } else { ptr::null_mut() };
    // SAFETY: `view` is writable. Everything it points to lives until it is released: the memory is kept alive by `owner`, the
    // format is static, and `free_view` frees sizes and strides, which `internal` owns.
    unsafe {
        (*view).buf = storage.start().cast::<c_void>();
        (*view).len = meta.nbytes() as ffi::Py_ssize_t;
        (*view).itemsize = meta.dtype().size() as ffi::Py_ssize_t;
        (*view).readonly = 0;
        (*view).format = format;
        (*view).ndim = meta.rank() as c_int;
        (*view).shape = null_unless(asks(ffi::PyBUF_ND), dims.shape.as_mut_ptr());
        (*view).strides = null_unless(asks(ffi::PyBUF_STRIDES), dims.strides.as_mut_ptr());
        (*view).suboffsets = ptr::null_mut();
        (*view).internal = Box::into_raw(dims).cast();
        (*view).obj = owner.into_ptr();
    }
    Ok(())
}

/// Frees the allocations of [`fill_view`].
///
/// # Safety
/// The view must have been filled by [`fill_view`], and must be released only once.
pub(crate) unsafe fn free_view(view: *mut ffi::Py_buffer) {
    // SAFETY: `internal` is the box that `fill_view` leaked.
    unsafe { drop(Box::from_raw((*view).internal.cast::<Dims>())) }
}
