//! Asynchronous values. The `unsafe` code here: the cell that the only [`Promise`] writes once, and the list of
//! waiters, a lock-free stack of boxed nodes.

use crate::error::{ErrorCode, ErrorValue};
use crate::stack;
use crate::sync::{Arc, AtomicPtr, Ordering, UnsafeCell, catch_panic};
use crate::value::Value;
use pteron_pool::Task;
use std::fmt;
use std::ptr;

struct Node {
    /// The task to run when the value becomes available.
    waiter: Task,
    next: *mut Node,
}

struct Inner {
    /// Stack of waiters, the most recent first; [`available_sentinel`] once the value is resolved.
    waiters: AtomicPtr<Node>,
    value: UnsafeCell<Value>,
    /// Id of the request whose cancellation resolves the value; zero if no cancellation does.
    request: u64,
}

// SAFETY: `value` is written by the only promise, before `waiters` becomes `available_sentinel` (release), and read
// after that has been observed (acquire). The nodes belong to the thread that detaches the list, and the atomic
// exchange lets only one thread do so. `Value` and `Task` are `Send`, `Value` is `Sync`.
unsafe impl Sync for Inner {}
// SAFETY: as for `Sync`; nothing here is tied to a particular thread.
unsafe impl Send for Inner {}

/// Sentinel that `waiters` holds once the value is resolved: an address that no node has.
fn available_sentinel() -> *mut Node {
    ptr::without_provenance_mut(1)
}

/// A value that may not be available yet. It is resolved once, to a concrete value or an error, perhaps by
/// forwarding another asynchronous value. Cloning shares it; neither refcounting nor waiting takes a lock.
#[derive(Clone)]
pub struct AsyncValue(Arc<Inner>);

/// The write end of an [`AsyncValue`], which resolves it. Dropping the promise resolves the value to an error, so
/// that no waiter waits for ever.
pub struct Promise(Option<AsyncValue>);

impl AsyncValue {
    /// An unresolved value, and the promise that resolves it.
    pub fn new() -> (Promise, Self) {
        Self::with_request(0)
    }

    /// As [`Self::new`], for a value that the cancellation of the request with id `request` resolves.
    pub(crate) fn with_request(request: u64) -> (Promise, Self) {
        let value = Self(Arc::new(Inner {
            waiters: AtomicPtr::new(ptr::null_mut()),
            value: UnsafeCell::new(Value::Empty),
            request,
        }));
        (Promise(Some(value.clone())), value)
    }

    /// Id of the request whose cancellation resolves the value; zero if no cancellation does.
    pub(crate) fn request(&self) -> u64 {
        self.0.request
    }

    /// Whether the value has been resolved, to a value or an error.
    #[inline]
    pub fn is_available(&self) -> bool {
        self.0.waiters.load(Ordering::Acquire) == available_sentinel()
    }

    /// The value, if it is available. It is never [`Value::Empty`] or [`Value::Async`].
    #[inline]
    pub fn get(&self) -> Option<&Value> {
        // SAFETY: once available, the cell is never written again, and the acquire load in
        // `is_available` has seen the write; the value lives as long as `self`.
        self.is_available().then(|| self.0.value.with(|value| unsafe { &*value }))
    }

    /// Calls `waiter` as soon as the value is available: at once if it already is, otherwise on the thread that
    /// resolves it.
    pub fn and_then(&self, waiter: impl FnOnce() + Send + 'static) {
        if self.is_available() {
            return waiter();
        }
        self.run_when_available(Box::new(waiter).into());
    }

    /// Runs `waiter` when the value becomes available; at once, on this thread, if it is available already.
    pub(crate) fn run_when_available(&self, waiter: Task) {
        let node = Box::into_raw(Box::new(Node { waiter, next: ptr::null_mut() }));
        let mut head = self.0.waiters.load(Ordering::Acquire);
        loop {
            if head == available_sentinel() {
                // SAFETY: the node was allocated above and never entered the list.
                let node = unsafe { Box::from_raw(node) };
                return node.waiter.run();
            }
            // SAFETY: the node is not in the list yet, so only this thread can access it.
            unsafe { (*node).next = head };
            // Release publishes the node; acquire on failure may observe that the value has been resolved.
            match self.0.waiters.compare_exchange_weak(head, node, Ordering::Release, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    fn resolve(&self, value: Value) {
        // SAFETY: only the promise calls this, once, because it is consumed: nobody else writes the cell, and
        // nobody reads it before the list becomes `available_sentinel`.
        self.0.value.with_mut(|cell| unsafe { *cell = value });
        let list = self.0.waiters.swap(available_sentinel(), Ordering::AcqRel);
        // A waiter may drop this value: `self` is not used from here on.
        Waiters(list).run();
    }
}

impl Promise {
    /// Resolves the promise's value to `value`; if `value` is asynchronous, as soon as `value` is available.
    pub fn set(mut self, value: Value) {
        let Some(target) = self.0.take() else { return };
        match value.settle() {
            Value::Async(source) => {
                let next = source.clone();
                let promise = Promise(Some(target));
                source.and_then(move || promise.set(Value::Async(next)));
            }
            Value::Empty => target.resolve(Value::Error(broken_promise())),
            value => target.resolve(value),
        }
    }

    /// Drops the promise without resolving its value. Only for a value that nothing else refers to.
    pub(crate) fn discard(mut self) {
        self.0 = None;
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(target) = self.0.take() {
            target.resolve(Value::Error(broken_promise()));
        }
    }
}

fn broken_promise() -> ErrorValue {
    let message = "the task that should resolve this value ended without doing so";
    ErrorValue::new_unreported(ErrorCode::Internal, message)
}

/// A list of waiters, detached from its value.
struct Waiters(*mut Node);

// SAFETY: this list alone owns the nodes, and their waiters are `Send`.
unsafe impl Send for Waiters {}

impl Waiters {
    fn pop(&mut self) -> Option<Task> {
        if self.0.is_null() || self.0 == available_sentinel() {
            return None;
        }
        // SAFETY: every node in the list came from `Box::into_raw`, and this list alone owns it.
        let node = unsafe { Box::from_raw(self.0) };
        self.0 = node.next;
        Some(node.waiter)
    }

    /// Runs the waiters, the most recent first as the reference does. If waiters are nested deeply, these are
    /// deferred until the stack has unwound.
    fn run(mut self) {
        if self.0.is_null() {
            return;
        }
        if stack::is_deep() {
            stack::defer(Box::new(move || self.run_all()));
        } else {
            stack::run_scoped(|| self.run_all());
        }
    }

    fn run_all(&mut self) {
        while let Some(waiter) = self.pop() {
            // A panic of one waiter must not keep the other waiters from running.
            let _ = catch_panic(|| waiter.run());
        }
    }
}

impl Drop for Waiters {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        drop(Waiters(self.waiters.load(Ordering::Acquire)));
    }
}

impl fmt::Debug for AsyncValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.get() {
            Some(value) => write!(f, "Async({value:?})"),
            None => f.write_str("Async(unavailable)"),
        }
    }
}

impl fmt::Debug for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Promise")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::sync::{Arc as StdArc, Mutex};

    fn as_i32(value: &AsyncValue) -> Option<i32> {
        if let Some(Value::I32(v)) = value.get() { Some(*v) } else { None }
    }

    #[test]
    fn waiters_run_in_reverse_order_and_late_waiters_run_at_once() {
        let (promise, value) = AsyncValue::new();
        let seen = StdArc::new(Mutex::new(Vec::new()));
        let wait = |i| {
            let seen = StdArc::clone(&seen);
            value.and_then(move || seen.lock().unwrap().push(i));
        };
        wait(1);
        wait(2);
        assert!(!value.is_available() && value.get().is_none());
        promise.set(Value::I32(5));
        wait(3);
        assert_eq!(*seen.lock().unwrap(), [2, 1, 3]);
        assert_eq!(as_i32(&value), Some(5));
    }

    #[test]
    fn forwarding_waits_for_the_source() {
        let (outer_promise, outer) = AsyncValue::new();
        let (inner_promise, inner) = AsyncValue::new();
        outer_promise.set(Value::Async(inner));
        assert!(!outer.is_available());
        inner_promise.set(Value::I32(7));
        assert_eq!(as_i32(&outer), Some(7));
    }

    #[test]
    fn a_dropped_promise_is_an_error() {
        let (promise, value) = AsyncValue::new();
        drop(promise);
        assert!(value.get().unwrap().is_error());
    }

    #[test]
    fn a_long_chain_of_forwarded_values_does_not_overflow_the_stack() {
        let (first, mut value) = AsyncValue::new();
        for _ in 0..if cfg!(miri) { 100 } else { 100_000 } {
            let (promise, next) = AsyncValue::new();
            promise.set(Value::Async(value));
            value = next;
        }
        first.set(Value::I32(1));
        assert_eq!(as_i32(&value), Some(1));
    }

    #[test]
    fn values_and_waiters_are_dropped_once_whether_or_not_the_value_is_resolved() {
        struct Counted(StdArc<AtomicUsize>);
        impl Drop for Counted {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let drops = StdArc::new(AtomicUsize::new(0));
        let counted = || Counted(StdArc::clone(&drops));
        let (promise, value) = AsyncValue::new();
        let captured = counted();
        value.and_then(move || drop(captured));
        promise.set(Value::object(counted()));
        assert_eq!(drops.load(Ordering::Relaxed), 1);
        drop(value);
        assert_eq!(drops.load(Ordering::Relaxed), 2);
        let (promise, value) = AsyncValue::new();
        let captured = counted();
        value.and_then(move || drop(captured));
        promise.discard();
        drop(value);
        assert_eq!(drops.load(Ordering::Relaxed), 3);
    }
}
