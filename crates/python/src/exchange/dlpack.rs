//! DLPack: a struct in a capsule that says where a tensor lies, as NumPy, PyTorch, JAX and others give and take it.

use super::{Element, Storage};
use pteron::ScalarType;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

/// The device type of main memory.
pub(crate) const CPU: i32 = 1;

/// The name of a capsule that nobody has taken yet, and of one that somebody has.
pub(crate) const NAME: &CStr = c"dltensor";
const TAKEN: &CStr = c"used_dltensor";

/// More dimensions than any library has; what says it has more is broken.
const MAX_DIMS: i32 = 64;

/// `DLTensor` of `dlpack.h`.
#[repr(C)]
pub(super) struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor` of `dlpack.h`.
#[repr(C)]
pub(super) struct DlManagedTensor {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManagedTensor)>,
}

/// A tensor that another library has lent, until it is dropped.
pub(super) struct Lent(NonNull<DlManagedTensor>);

// SAFETY: DLPack lets a deleter be called from any thread, and the struct is only read meanwhile.
unsafe impl Send for Lent {}

impl Lent {
    /// Takes what is in a capsule that `__dlpack__` gave.
    pub(super) fn take(capsule: &Bound<'_, PyCapsule>) -> PyResult<Self> {
        let pointer = capsule.pointer_checked(Some(NAME))?;
        // SAFETY: the capsule is one, and the new name is static. With it, its own destructor leaves the struct to us.
        if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), TAKEN.as_ptr()) } != 0 {
            return Err(PyErr::fetch(capsule.py()));
        }
        Ok(Self(pointer.cast()))
    }

    /// Where it lies: the address of its first element, type, sizes, and strides in bytes. `None` if it is of a kind that
    /// cannot be read here.
    pub(super) fn place(&self) -> Option<(*mut u8, Element, Vec<usize>, Vec<isize>)> {
        // SAFETY: a capsule of this name holds a valid struct until its deleter is called, which dropping this does.
        let tensor = unsafe { &self.0.as_ref().tensor };
        if tensor.device_type != CPU || tensor.lanes != 1 || !(0..=MAX_DIMS).contains(&tensor.ndim) {
            return None;
        }
        let rank = usize::try_from(tensor.ndim).ok()?;
        let numbers = |at: *mut i64| match at.is_null() || rank == 0 {
            true => &[][..],
            // SAFETY: both point to `ndim` numbers if they are not null.
            false => unsafe { std::slice::from_raw_parts(at.cast_const(), rank) },
        };
        let sizes: Vec<usize> =
            numbers(tensor.shape).iter().map(|&n| usize::try_from(n).ok()).collect::<Option<_>>()?;
        let element = element(tensor.code, tensor.bits)?;
        let size = isize::try_from(element.size()).ok()?;
        let strides: Option<Vec<isize>> = match tensor.strides.is_null() {
            true => Some(row_major(&sizes, size)),
            false => numbers(tensor.strides)
                .iter()
                .map(|&n| isize::try_from(n).ok().and_then(|n| n.checked_mul(size)))
                .collect(),
        };
        let offset = usize::try_from(tensor.byte_offset).ok()?;
        (sizes.len() == rank).then_some(())?;
        Some((tensor.data.cast::<u8>().wrapping_add(offset), element, sizes, strides?))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: the struct was taken out of its capsule, whose consumer calls the deleter once.
        unsafe {
            if let Some(deleter) = self.0.as_ref().deleter {
                deleter(self.0.as_ptr());
            }
        }
    }
}

/// Strides in bytes of elements that lie in row-major order.
fn row_major(sizes: &[usize], size: isize) -> Vec<isize> {
    let mut strides = vec![size; sizes.len()];
    for d in (1..sizes.len()).rev() {
        strides[d - 1] = strides[d].saturating_mul(isize::try_from(sizes[d]).unwrap_or(isize::MAX));
    }
    strides
}

/// The type of elements that DLPack's type code and number of bits say.
fn element(code: u8, bits: u8) -> Option<Element> {
    Some(Element::Known(match (code, bits) {
        (0, 8) => ScalarType::Char,
        (0, 16) => ScalarType::Short,
        (0, 32) => ScalarType::Int,
        (0, 64) => ScalarType::Long,
        (1, 8) => ScalarType::Byte,
        (1, 16) => ScalarType::UInt16,
        (1, 32) => ScalarType::UInt32,
        (1, 64) => ScalarType::UInt64,
        (2, 16) => ScalarType::Half,
        (2, 32) => ScalarType::Float,
        (2, 64) => ScalarType::Double,
        (4, 16) => ScalarType::BFloat16,
        (5, 32) => ScalarType::ComplexHalf,
        (5, 64) => ScalarType::ComplexFloat,
        (5, 128) => ScalarType::ComplexDouble,
        (6, 8) => ScalarType::Bool,
        (10, 8) => ScalarType::Float8E4M3FN,
        (11, 8) => ScalarType::Float8E4M3FNUZ,
        (12, 8) => ScalarType::Float8E5M2,
        (13, 8) => ScalarType::Float8E5M2FNUZ,
        _ => return None,
    }))
}

/// The code and bits of a type; types that DLPack lacks are unsigned integers of their size.
fn code(dtype: ScalarType) -> (u8, u8) {
    let bits = (dtype.size() * 8) as u8;
    let known = (0..=13).find(|&code| element(code, bits) == Some(Element::Known(dtype)));
    (known.unwrap_or(1), bits)
}

/// What an exported struct refers to.
struct Exported {
    _storage: Arc<Storage>,
    numbers: Box<[i64]>,
}

/// A capsule with a tensor, which lives until its consumer gives it back.
pub(crate) fn export<'py>(py: Python<'py>, storage: &Arc<Storage>) -> PyResult<Bound<'py, PyCapsule>> {
    let meta = storage.meta();
    let numbers = meta.sizes().iter().chain(meta.strides().iter()).map(|&n| n as i64).collect();
    let mut context = Box::new(Exported { _storage: Arc::clone(storage), numbers });
    let shape = context.numbers.as_mut_ptr();
    let (code, bits) = code(meta.dtype());
    let tensor = DlTensor {
        data: storage.start().cast(),
        device_type: CPU,
        device_id: 0,
        ndim: meta.rank() as i32,
        code,
        bits,
        lanes: 1,
        shape,
        strides: shape.wrapping_add(meta.rank()),
        byte_offset: 0,
    };
    let context = Box::into_raw(context).cast();
    let managed = Box::into_raw(Box::new(DlManagedTensor { tensor, context, deleter: Some(delete) }));
    let Some(pointer) = NonNull::new(managed) else { unreachable!("a box is not null") };
    // SAFETY: the struct is valid until `delete` is called: by who takes it, or by the capsule if nobody has.
    let capsule =
        unsafe { PyCapsule::new_with_pointer_and_destructor(py, pointer.cast(), NAME, Some(destroy)) };
    if capsule.is_err() {
        // SAFETY: no capsule has come to own the struct.
        unsafe { delete(managed) };
    }
    capsule
}

/// Frees an exported struct and what it refers to.
unsafe extern "C" fn delete(managed: *mut DlManagedTensor) {
    // SAFETY: `export` made both boxes, and a deleter is called once.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Exported>()));
    }
}

/// Frees what is in a capsule that nobody has taken.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is one of `export`; it has its first name only if nobody has taken what is in it.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        }
    }
}
