//! The atomics, locks and cells of this crate's concurrent code, which loom replaces by its own.

use std::any::Any;

#[cfg(not(loom))]
mod imp {
    pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};
    pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
    pub(crate) use std::thread::{ThreadId, current as current_thread};
}

#[cfg(loom)]
mod imp {
    pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};
    pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
    pub(crate) use loom::thread::{ThreadId, current as current_thread};
}

pub(crate) use imp::*;
pub(crate) use pteron_pool::UnsafeCell;

/// Locks the mutex, ignoring poisoning.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The payload of a panic.
pub(crate) type Panic = Box<dyn Any + Send>;

/// Runs `f` and catches its panic. The caller restores any state that `f` leaves inconsistent.
#[inline(always)]
pub(crate) fn catch_panic<R>(f: impl FnOnce() -> R) -> Result<R, Panic> {
    // A model fails by a panic, which must not be caught.
    if cfg!(loom) {
        return Ok(f());
    }
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f))
}

/// The text of a panic's payload.
pub(crate) fn panic_message(panic: &Panic) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("of unknown cause")
}
