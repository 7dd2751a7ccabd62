//! DLPack: tensors as structs in capsules, which NumPy, PyTorch, JAX and others import and export.

mod api;

use super::{Element, Storage};
use pteron::ScalarType;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

/// DLPack's device type of main memory (`kDLCPU`).
pub(crate) const CPU: i32 = 1;

/// The name of a capsule with an unversioned struct, until a consumer takes the struct.
pub(crate) const NAME: &CStr = c"dltensor";
/// The name of a capsule from which a consumer has taken the unversioned struct.
const TAKEN: &CStr = c"used_dltensor";

/// The name of a capsule with a versioned struct, until a consumer takes the struct.
const VERSIONED: &CStr = c"dltensor_versioned";
/// The name of a capsule from which a consumer has taken the versioned struct.
const VERSIONED_TAKEN: &CStr = c"used_dltensor_versioned";

/// The supported DLPack version. Structs of any minor version have the fields that are read here at the same offsets.
const MAJOR: u32 = 1;
const MINOR: u32 = 0;

/// The flag for read-only memory (`DLPACK_FLAG_BITMASK_READ_ONLY`).
const READ_ONLY: u64 = 1;

/// The maximum number of dimensions of a borrowed tensor; one with more is rejected.
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

/// `DLManagedTensorVersioned` of `dlpack.h`.
#[repr(C)]
pub(super) struct DlManagedTensorVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManagedTensorVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// A tensor borrowed from another library; it is given back on drop.
pub(super) enum BorrowedTensor {
    Plain(NonNull<DlManagedTensor>),
    Versioned(NonNull<DlManagedTensorVersioned>),
}

// SAFETY: DLPack allows the deleter to be called from any thread, and the struct is only read meanwhile.
unsafe impl Send for BorrowedTensor {}

/// The location and layout of a borrowed tensor.
pub(super) struct Place<'a> {
    /// The address of the tensor's first element.
    pub(super) start: *mut u8,
    pub(super) element: Element,
    pub(super) sizes: &'a [i64],
    /// The strides in elements; `None` for row-major order.
    pub(super) strides: Option<&'a [i64]>,
    pub(super) is_read_only: bool,
}

impl BorrowedTensor {
    /// Borrows an object's memory by DLPack's C exchange API or `__dlpack__`; `None` if the object has neither.
    pub(super) fn borrow(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        if let Some(lent) = api::borrow_by_api(object)? {
            return lent.check_supported().map(Some);
        }
        match object.getattr(pyo3::intern!(object.py(), "__dlpack__")) {
            Ok(method) => Self::from_dunder(object, &method)?.check_supported().map(Some),
            Err(_) => Ok(None),
        }
    }

    /// Borrows the tensor that the object's `__dlpack__` returns.
    fn from_dunder(object: &Bound<'_, PyAny>, method: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        if let Ok(device) = object.call_method0(pyo3::intern!(py, "__dlpack_device__")) {
            let (kind, index): (i32, i32) = device.extract()?;
            require_cpu(kind, index)?;
        }
        let options = PyDict::new(py);
        options.set_item(pyo3::intern!(py, "max_version"), (MAJOR, MINOR))?;
        let capsule = match method.call((), Some(&options)) {
            // Libraries from before 2024 do not have the parameter.
            Err(error) if error.is_instance_of::<PyTypeError>(py) => method.call0()?,
            called => called?,
        };
        Self::from_capsule(capsule.cast::<PyCapsule>()?)
    }

    /// Takes the struct out of a capsule, and marks the capsule as used.
    fn from_capsule(capsule: &Bound<'_, PyCapsule>) -> PyResult<Self> {
        let is_versioned = capsule.is_valid_checked(Some(VERSIONED));
        let (name, used_name) = if is_versioned { (VERSIONED, VERSIONED_TAKEN) } else { (NAME, TAKEN) };
        let pointer = capsule.pointer_checked(Some(name))?;
        // SAFETY: the object is a capsule, and the new name is static. With the new name, the capsule's destructor does not
        // delete the struct.
        if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used_name.as_ptr()) } != 0 {
            return Err(PyErr::fetch(capsule.py()));
        }
        Ok(if is_versioned { Self::Versioned(pointer.cast()) } else { Self::Plain(pointer.cast()) })
    }

    /// Fails if the struct's version is not supported, or its memory is not main memory.
    fn check_supported(self) -> PyResult<Self> {
        if let Self::Versioned(managed) = &self {
            // SAFETY: the struct begins with its version in every version.
            let (major, minor) = unsafe { (managed.as_ref().major, managed.as_ref().minor) };
            if major != MAJOR {
                let message = format!("DLPack {major}.{minor} is not known here; {MAJOR}.{MINOR} is");
                return Err(PyBufferError::new_err(message));
            }
        }
        let tensor = self.tensor();
        require_cpu(tensor.device_type, tensor.device_id)?;
        Ok(self)
    }

    /// The `DLTensor` in the struct. The struct's version must be supported.
    fn tensor(&self) -> &DlTensor {
        // SAFETY: both variants hold a valid struct until its deleter is called, which happens on drop.
        unsafe {
            match self {
                Self::Plain(managed) => &managed.as_ref().tensor,
                Self::Versioned(managed) => &managed.as_ref().tensor,
            }
        }
    }

    /// The location and layout of the tensor; `None` if its type or layout is not supported.
    pub(super) fn place(&self) -> Option<Place<'_>> {
        let tensor = self.tensor();
        if tensor.lanes != 1 || !(0..=MAX_DIMS).contains(&tensor.ndim) {
            return None;
        }
        let rank = usize::try_from(tensor.ndim).ok()?;
        let numbers = |at: *mut i64| match at.is_null() || rank == 0 {
            true => &[][..],
            // SAFETY: `shape` and `strides` point to `ndim` integers if they are not null.
            false => unsafe { std::slice::from_raw_parts(at.cast_const(), rank) },
        };
        let sizes = numbers(tensor.shape);
        (sizes.len() == rank && sizes.iter().all(|&n| n >= 0)).then_some(())?;
        // A tensor without memory, such as one that is only traced, has elements that cannot be read.
        (!tensor.data.is_null() || sizes.contains(&0)).then_some(())?;
        let strides = (!tensor.strides.is_null()).then(|| numbers(tensor.strides));
        let is_read_only = match self {
            Self::Plain(_) => false,
            // SAFETY: as in `tensor`.
            Self::Versioned(managed) => unsafe { managed.as_ref().flags & READ_ONLY != 0 },
        };
        let offset = usize::try_from(tensor.byte_offset).ok()?;
        let start = tensor.data.cast::<u8>().wrapping_add(offset);
        Some(Place { start, element: element_type(tensor.code, tensor.bits)?, sizes, strides, is_read_only })
    }
}

impl Drop for BorrowedTensor {
    fn drop(&mut self) {
        // SAFETY: this value owns the struct, and the deleter is called once. The deleter is at the same offset in every
        // version.
        unsafe {
            match self {
                Self::Plain(managed) => {
                    if let Some(deleter) = managed.as_ref().deleter {
                        deleter(managed.as_ptr());
                    }
                }
                Self::Versioned(managed) => {
                    if let Some(deleter) = managed.as_ref().deleter {
                        deleter(managed.as_ptr());
                    }
                }
            }
        }
    }
}

/// Fails if a device is not main memory.
fn require_cpu(kind: i32, index: i32) -> PyResult<()> {
    match kind {
        CPU => Ok(()),
        _ => Err(PyTypeError::new_err(format!(
            "the tensor is on another device (DLPack's ({kind}, {index})); copy it to the CPU first"
        ))),
    }
}

/// The element type for a DLPack type code and number of bits; `None` if it is not supported.
fn element_type(code: u8, bits: u8) -> Option<Element> {
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

/// The DLPack type code and number of bits for a type; a type that DLPack lacks is exported as unsigned integers of its
/// size.
fn type_code(dtype: ScalarType) -> (u8, u8) {
    let bits = (dtype.size() * 8) as u8;
    let known = (0..=13).find(|&code| element_type(code, bits) == Some(Element::Known(dtype)));
    (known.unwrap_or(1), bits)
}

/// Owns everything that an exported DLPack struct points to.
struct Exported {
    _storage: Arc<Storage>,
    numbers: Box<[i64]>,
}

/// Exports a tensor as a capsule. The memory lives until the consumer calls the deleter.
pub(crate) fn export<'py>(py: Python<'py>, storage: &Arc<Storage>) -> PyResult<Bound<'py, PyCapsule>> {
    let meta = storage.meta();
    let numbers = meta.sizes().iter().chain(meta.strides().iter()).map(|&n| n as i64).collect();
    let mut context = Box::new(Exported { _storage: Arc::clone(storage), numbers });
    let shape = context.numbers.as_mut_ptr();
    let (code, bits) = type_code(meta.dtype());
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
    // SAFETY: the struct is valid until `delete` is called, by the consumer, or by the capsule if nobody has taken the struct.
    let capsule =
        unsafe { PyCapsule::new_with_pointer_and_destructor(py, pointer.cast(), NAME, Some(destroy)) };
    if capsule.is_err() {
        // SAFETY: no capsule owns the struct.
        unsafe { delete(managed) };
    }
    capsule
}

/// Frees an exported struct and everything it points to.
unsafe extern "C" fn delete(managed: *mut DlManagedTensor) {
    // SAFETY: `export` leaked both boxes, and a deleter is called once.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Exported>()));
    }
}

/// Capsule destructor: frees the struct, unless a consumer has taken it.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: `export` created the capsule; it has its original name only if nobody has taken the struct.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        }
    }
}
