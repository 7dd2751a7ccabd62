//! The atomics, locks and cells of this crate's lock-free code. Under `cfg(loom)` they are loom's.

#[cfg(not(loom))]
mod imp {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

    /// `std`'s cell with loom's interface.
    #[derive(Debug)]
    pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        /// A cell that holds `value`.
        pub const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        /// Calls `f` with a pointer to read from.
        #[inline(always)]
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        /// Calls `f` with a pointer to write to.
        #[inline(always)]
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

#[cfg(loom)]
mod imp {
    pub use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
}

pub use imp::UnsafeCell;
pub(crate) use imp::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, fence,
};

/// Locks a mutex and ignores poisoning: no code in this crate can panic in the middle of changing
/// guarded data.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Waits on a condition variable until it is notified, or for no reason.
#[cfg(not(all(target_family = "wasm", not(target_os = "unknown"))))]
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(all(target_family = "wasm", not(target_os = "unknown")))]
pub use lost::thread_lost;
#[cfg(all(target_family = "wasm", not(target_os = "unknown")))]
pub(crate) use lost::wait;

/// In WebAssembly a panic or a trap ends one thread, and nothing notifies those that wait for it.
#[cfg(all(target_family = "wasm", not(target_os = "unknown")))]
mod lost {
    use super::{AtomicBool, Condvar, MutexGuard, Ordering};
    use std::time::Duration;

    static LOST: AtomicBool = AtomicBool::new(false);

    /// How long a thread sleeps before it checks whether another one has been lost.
    const CHECK: Duration = Duration::from_millis(500);

    /// Records that a thread has ended by a panic or a trap. Every thread that waits for others panics within half a second.
    pub fn thread_lost() {
        LOST.store(true, Ordering::SeqCst);
    }

    /// Waits on a condition variable until it is notified, or for no reason.
    ///
    /// # Panics
    /// If a thread has been lost.
    pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let (guard, _) = condvar.wait_timeout(guard, CHECK).unwrap_or_else(|poisoned| poisoned.into_inner());
        assert!(!LOST.load(Ordering::SeqCst), "another thread has ended by an error");
        guard
    }
}
