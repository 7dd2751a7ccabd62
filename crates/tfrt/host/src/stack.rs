//! Keeps nested executions, continuations and waits from overflowing the stack.

use crate::limits::{NESTED_STACK_BYTES, STACK_BYTES};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

type Later = Box<dyn FnOnce()>;

thread_local! {
    /// Address of a local variable of the outermost scope; zero outside of scopes.
    static BASE: Cell<usize> = const { Cell::new(0) };
    /// Stack bytes that the scopes of this thread may use.
    static USABLE: Cell<usize> = const { Cell::new(STACK_BYTES) };
    static DEFERRED: RefCell<VecDeque<Later>> = const { RefCell::new(VecDeque::new()) };
}

#[inline(always)]
fn stack_address() -> usize {
    let here = 0u8;
    std::hint::black_box(&raw const here).addr()
}

/// Whether this thread has used so much stack since the outermost [`run_scoped`] that further work should be deferred.
#[inline]
pub(crate) fn is_deep() -> bool {
    let base = BASE.get();
    // The threads of a model share one thread's variables, but have a stack each: addresses of two say nothing.
    if base == 0 || cfg!(loom) {
        return false;
    }
    let used = base.abs_diff(stack_address());
    used > STACK_BYTES && used > USABLE.get()
}

/// Guard that ends the outermost scope, even on panic.
struct Outermost;

impl Drop for Outermost {
    fn drop(&mut self) {
        BASE.set(0);
    }
}

/// Runs `f` in a scope. At the end of the outermost scope, runs the work that was deferred meanwhile.
#[inline]
pub(crate) fn run_scoped<R>(f: impl FnOnce() -> R) -> R {
    if BASE.get() != 0 {
        return f();
    }
    BASE.set(stack_address());
    let outermost = Outermost;
    let result = f();
    run_deferred();
    drop(outermost);
    result
}

/// Runs `f` in a scope that may use the larger stack of a nested thread ([`crate::nested`]).
pub(crate) fn run_in_nested_scope<R>(f: impl FnOnce() -> R) -> R {
    USABLE.set(NESTED_STACK_BYTES);
    run_scoped(f)
}

/// Runs the work that was deferred on this thread, and what it defers in turn. Returns whether there was any.
///
/// A thread that waits calls this between tasks: the outermost scope of such a thread may not end before what it waits
/// for, which deferred work may resolve.
pub(crate) fn run_deferred() -> bool {
    let mut any = false;
    while let Some(later) = DEFERRED.with_borrow_mut(VecDeque::pop_front) {
        any = true;
        later();
    }
    any
}

/// Runs `later` when the outermost scope of this thread ends, or before this thread waits.
pub(crate) fn defer(later: Later) {
    DEFERRED.with_borrow_mut(|queue| queue.push_back(later));
}
