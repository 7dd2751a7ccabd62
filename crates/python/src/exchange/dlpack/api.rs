//! DLPack's functions in C, which a library's type has beside `__dlpack__`: no method of Python is called, and no capsule made.

use super::{DlManagedTensorVersioned, Lent, MAJOR};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};

/// The name of the capsule that holds them.
const NAME: &CStr = c"dlpack_exchange_api";

/// `DLPackExchangeAPIHeader` of `dlpack.h`.
#[repr(C)]
struct Header {
    major: u32,
    minor: u32,
    earlier: *const Self,
}

/// `DLPackExchangeAPI` of `dlpack.h`, up to what is called here.
#[repr(C)]
struct Api {
    header: Header,
    _allocate: *const c_void,
    lend: Option<unsafe extern "C" fn(*mut c_void, *mut *mut DlManagedTensorVersioned) -> c_int>,
}

/// The memory of an object whose type has the functions; `None` if it has none that are known here, or if they refuse the object.
pub(super) fn lend(object: &Bound<'_, PyAny>) -> PyResult<Option<Lent>> {
    let py = object.py();
    let kind = object.get_type();
    let Some(capsule) = kind.getattr_opt(pyo3::intern!(py, "__dlpack_c_exchange_api__"))? else {
        return Ok(None);
    };
    let Ok(capsule) = capsule.cast::<PyCapsule>() else { return Ok(None) };
    let mut header: *const Header = capsule.pointer_checked(Some(NAME))?.as_ptr().cast();
    // SAFETY: a capsule of this name points to the functions of a library, which stay as long as the process; each table, and
    // each earlier one, begins with a header. A table of this major version has the fields that `Api` names.
    let function = unsafe {
        while !header.is_null() && (*header).major != MAJOR {
            header = (*header).earlier;
        }
        match header.is_null() {
            true => None,
            false => (*header.cast::<Api>()).lend,
        }
    };
    let Some(function) = function else { return Ok(None) };
    let mut lent = ptr::null_mut();
    // SAFETY: the object is of the type that the function is for, the interpreter is attached, and there is room for a pointer.
    if unsafe { function(object.as_ptr().cast(), &raw mut lent) } != 0 {
        return Err(PyErr::fetch(py));
    }
    let lent = NonNull::new(lent).ok_or_else(|| PyBufferError::new_err("DLPack gave no tensor"))?;
    Ok(Some(Lent::Versioned(lent)))
}
