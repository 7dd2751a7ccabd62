//! Keeps nested executions and continuations from overflowing the stack.

use crate::limits::STACK_BYTES;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

type Later = Box<dyn FnOnce()>;

thread_local! {
    /// Address of a local variable of the outermost scope; zero outside of scopes.
    static BASE: Cell<usize> = const { Cell::new(0) };
    static DEFERRED: RefCell<VecDeque<Later>> = const { RefCell::new(VecDeque::new()) };
}

#[inline(always)]
fn address() -> usize {
    let here = 0u8;
    std::hint::black_box(&raw const here).addr()
}

/// Whether this thread's stack has grown so far since the outermost [`scope`] that further work should be deferred.
#[inline]
pub(crate) fn is_deep() -> bool {
    let base = BASE.get();
    base != 0 && base.abs_diff(address()) > STACK_BYTES
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
pub(crate) fn scope<R>(f: impl FnOnce() -> R) -> R {
    if BASE.get() != 0 {
        return f();
    }
    BASE.set(address());
    let outermost = Outermost;
    let result = f();
    while let Some(later) = DEFERRED.with_borrow_mut(VecDeque::pop_front) {
        later();
    }
    drop(outermost);
    result
}

/// Runs `later` when the outermost scope of this thread ends.
pub(crate) fn defer(later: Later) {
    DEFERRED.with_borrow_mut(|queue| queue.push_back(later));
}
