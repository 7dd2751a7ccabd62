//! The structs of the Arrow C data interface and C stream interface, and ownership of them.

use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

/// The maximum number of children or buffers of a type or array; those with more are rejected.
pub(super) const MAX_CHILDREN: usize = 1 << 20;

/// `ArrowSchema` of the Arrow C data interface.
#[repr(C)]
pub(super) struct ArrowSchema {
    pub(super) format: *const c_char,
    pub(super) name: *const c_char,
    pub(super) metadata: *const c_char,
    pub(super) flags: i64,
    pub(super) n_children: i64,
    pub(super) children: *mut *mut ArrowSchema,
    pub(super) dictionary: *mut ArrowSchema,
    pub(super) release: Option<unsafe extern "C" fn(*mut ArrowSchema)>,
    pub(super) private_data: *mut c_void,
}

/// `ArrowArray` of the Arrow C data interface.
#[repr(C)]
pub(super) struct ArrowArray {
    pub(super) length: i64,
    pub(super) null_count: i64,
    pub(super) offset: i64,
    pub(super) n_buffers: i64,
    pub(super) n_children: i64,
    pub(super) buffers: *mut *const c_void,
    pub(super) children: *mut *mut ArrowArray,
    pub(super) dictionary: *mut ArrowArray,
    pub(super) release: Option<unsafe extern "C" fn(*mut ArrowArray)>,
    pub(super) private_data: *mut c_void,
}

/// `ArrowArrayStream` of the Arrow C stream interface.
#[repr(C)]
pub(super) struct ArrowArrayStream {
    pub(super) get_schema: Option<unsafe extern "C" fn(*mut ArrowArrayStream, *mut ArrowSchema) -> c_int>,
    pub(super) get_next: Option<unsafe extern "C" fn(*mut ArrowArrayStream, *mut ArrowArray) -> c_int>,
    pub(super) get_last_error: Option<unsafe extern "C" fn(*mut ArrowArrayStream) -> *const c_char>,
    pub(super) release: Option<unsafe extern "C" fn(*mut ArrowArrayStream)>,
    pub(super) private_data: *mut c_void,
}

/// A struct of the Arrow C interface. It is empty, with a null `release`, once it has been released or moved.
pub(super) trait Released: Sized {
    /// The name of capsules that contain the struct.
    const NAME: &'static CStr;

    /// Creates an empty struct.
    fn empty() -> Self;

    /// Whether the struct has contents: it has been neither released nor moved.
    fn is_full(&self) -> bool;

    /// Releases the struct's contents through its `release` callback.
    fn release(&mut self);
}

macro_rules! released {
    ($type:ident, $name:literal, $empty:expr) => {
        impl Released for $type {
            const NAME: &'static CStr = $name;

            fn empty() -> Self {
                $empty
            }

            fn is_full(&self) -> bool {
                self.release.is_some()
            }

            fn release(&mut self) {
                if let Some(release) = self.release {
                    // SAFETY: the producer provided this function for this struct, and the struct was not released yet, or
                    // `release` would be null.
                    unsafe { release(self) }
                }
            }
        }
    };
}

released!(
    ArrowSchema,
    c"arrow_schema",
    Self {
        format: ptr::null(),
        name: ptr::null(),
        metadata: ptr::null(),
        flags: 0,
        n_children: 0,
        children: ptr::null_mut(),
        dictionary: ptr::null_mut(),
        release: None,
        private_data: ptr::null_mut(),
    }
);
released!(
    ArrowArray,
    c"arrow_array",
    Self {
        length: 0,
        null_count: 0,
        offset: 0,
        n_buffers: 0,
        n_children: 0,
        buffers: ptr::null_mut(),
        children: ptr::null_mut(),
        dictionary: ptr::null_mut(),
        release: None,
        private_data: ptr::null_mut(),
    }
);
released!(
    ArrowArrayStream,
    c"arrow_array_stream",
    Self {
        get_schema: None,
        get_next: None,
        get_last_error: None,
        release: None,
        private_data: ptr::null_mut()
    }
);

/// Owns a struct of the Arrow C interface, and releases its contents on drop.
pub(super) struct Owned<T: Released>(pub(super) Box<T>);

impl<T: Released> Drop for Owned<T> {
    fn drop(&mut self) {
        self.0.release();
    }
}

// SAFETY: the interface allows any thread to move and release a struct. Schemas and arrays are only read meanwhile; streams
// are accessed by one thread at a time.
unsafe impl<T: Released> Send for Owned<T> {}
// SAFETY: as above.
unsafe impl<T: Released> Sync for Owned<T> {}

impl<T: Released> Owned<T> {
    /// An empty struct for a producer to fill.
    pub(super) fn empty() -> Self {
        Self(Box::new(T::empty()))
    }

    /// Moves the struct out of a capsule, and leaves an empty struct in the capsule.
    pub(super) fn take(capsule: &Bound<'_, PyAny>) -> PyResult<Self> {
        let pointer = capsule.cast::<PyCapsule>()?.pointer_checked(Some(T::NAME))?.cast::<T>();
        // SAFETY: a capsule of this name holds such a struct. A consumer may move it out and leave an empty one.
        let contents = unsafe { ptr::replace(pointer.as_ptr(), T::empty()) };
        if !contents.is_full() {
            return Err(pyo3::exceptions::PyValueError::new_err(format!(
                "the capsule `{}` was contents by somebody before",
                T::NAME.to_string_lossy()
            )));
        }
        Ok(Self(Box::new(contents)))
    }
}

/// Puts a struct into a capsule, which releases it unless a consumer moves it out.
pub(super) fn capsule<T: Released>(py: Python<'_>, value: T) -> PyResult<Bound<'_, PyCapsule>> {
    let pointer = ptr::NonNull::from(Box::leak(Box::new(value))).cast();
    // SAFETY: the pointer is that of a leaked box, which `destroy` frees when the capsule is destroyed.
    unsafe { PyCapsule::new_with_pointer_and_destructor(py, pointer, T::NAME, Some(destroy::<T>)) }
}

/// Capsule destructor: frees the struct, and releases its contents unless it is empty.
unsafe extern "C" fn destroy<T: Released>(capsule: *mut pyo3::ffi::PyObject) {
    // SAFETY: Python calls this once, with a capsule that `capsule` created; the struct is the box that was leaked there.
    unsafe {
        let pointer = pyo3::ffi::PyCapsule_GetPointer(capsule, T::NAME.as_ptr()).cast::<T>();
        if !pointer.is_null() {
            Box::from_raw(pointer).release();
        }
    }
}

/// Copies a C string; empty for null.
pub(super) fn text(at: *const c_char) -> CString {
    match at.is_null() {
        true => CString::default(),
        // SAFETY: strings of the interface are null-terminated, and live as long as their struct.
        false => unsafe { CStr::from_ptr(at) }.to_owned(),
    }
}

/// The children of a struct; `None` if `count` is negative or exceeds [`MAX_CHILDREN`], or if a child is null.
///
/// # Safety
/// `at` must be null or point to `count` pointers, each null or valid during `'a`.
pub(super) unsafe fn children<'a, T>(at: *mut *mut T, count: i64) -> Option<Vec<&'a T>> {
    let count = usize::try_from(count).ok().filter(|&count| count <= MAX_CHILDREN)?;
    if at.is_null() {
        return (count == 0).then(Vec::new);
    }
    // SAFETY: the caller's obligation.
    (0..count).map(|i| unsafe { (*at.add(i)).as_ref() }).collect()
}
