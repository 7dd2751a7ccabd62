//! The atomics and cells of this crate's lock-free code, which loom replaces by its own.

#[cfg(not(loom))]
mod imp {
    pub(crate) use std::sync::Arc;
    pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};
}

#[cfg(loom)]
mod imp {
    pub(crate) use loom::sync::Arc;
    pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};
}

pub(crate) use imp::*;
pub(crate) use pool::UnsafeCell;

/// Locks the mutex, ignoring poisoning.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
