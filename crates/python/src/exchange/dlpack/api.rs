//! DLPack's C exchange API, which a type may provide in addition to `__dlpack__`: no Python method is called, and no
//! capsule is created.

use super::{BorrowedTensor, DlManagedTensorVersioned, MAJOR};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};

/// The name of the capsule that holds DLPack's C exchange API.
const NAME: &CStr = c"dlpack_exchange_api";

/// The maximum number of versions of the API that are tried for a type.
const MAX_VERSIONS: usize = 16;

/// `DLPackExchangeAPIHeader` of `dlpack.h`.
#[repr(C)]
struct Header {
    major: u32,
    minor: u32,
    earlier: *const Self,
}

/// `DLPackExchangeAPI` of `dlpack.h`, up to the last function that is called here.
#[repr(C)]
struct Api {
    header: Header,
    _allocate: *const c_void,
    lend: Option<unsafe extern "C" fn(*mut c_void, *mut *mut DlManagedTensorVersioned) -> c_int>,
}

/// Borrows an object's memory by DLPack's C exchange API; `None` if the object's type has no supported version of it.
pub(super) fn borrow_by_api(object: &Bound<'_, PyAny>) -> PyResult<Option<BorrowedTensor>> {
    let py = object.py();
    let kind = object.get_type();
    let Some(capsule) = kind.getattr_opt(pyo3::intern!(py, "__dlpack_c_exchange_api__"))? else {
        return Ok(None);
    };
    let Ok(capsule) = capsule.cast::<PyCapsule>() else { return Ok(None) };
    let mut header: *const Header = capsule.pointer_checked(Some(NAME))?.as_ptr().cast();
    // SAFETY: a capsule of this name points to a function table with static lifetime; each table, and each earlier one, begins
    // with a header. A table of this major version has the fields of `Api`.
    let function = unsafe {
        for _ in 0..MAX_VERSIONS {
            if header.is_null() || (*header).major == MAJOR {
                break;
            }
            header = (*header).earlier;
        }
        match !header.is_null() && (*header).major == MAJOR {
            true => (*header.cast::<Api>()).lend,
            false => None,
        }
    };
    let Some(function) = function else { return Ok(None) };
    let mut lent = ptr::null_mut();
    // SAFETY: the object is of the type that provides the function, the interpreter is attached, and `lent` is writable.
    if unsafe { function(object.as_ptr().cast(), &raw mut lent) } != 0 {
        return Err(PyErr::fetch(py));
    }
    let lent = NonNull::new(lent).ok_or_else(|| PyBufferError::new_err("DLPack gave no tensor"))?;
    Ok(Some(BorrowedTensor::Versioned(lent)))
}
