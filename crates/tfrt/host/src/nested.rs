//! Threads that continue the work of a thread whose stack is used up by nested waits.

use crate::limits::NESTED_THREAD_BYTES;
use crate::stack;
use crate::sync::{ThreadId, current_thread};
use pteron_pool::WorkQueue;
use std::cell::Cell;
use std::io;
use std::panic::resume_unwind;
use std::thread;

/// Maximum number of nested threads that wait for one another.
const MAX_THREADS: usize = 128;

thread_local! {
    /// On a nested thread, the outermost thread that waits for it, directly or indirectly; `None` on other threads.
    static ROOT: Cell<Option<ThreadId>> = const { Cell::new(None) };
    /// Number of threads that wait for this one, directly or through other threads.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// This thread or, if it is nested, the outermost thread that waits for it.
pub(crate) fn root_thread() -> ThreadId {
    ROOT.get().unwrap_or_else(|| current_thread().id())
}

/// Runs `work`, which waits for `queue`, on a new thread in place of this one, and waits for it.
///
/// # Errors
/// If too many such threads wait for one another, or the system starts no thread; `work` has not run.
pub(crate) fn run_on_new_stack<R: Send>(queue: &WorkQueue, work: impl FnOnce() -> R + Send) -> io::Result<R> {
    let (depth, root) = (DEPTH.get() + 1, root_thread());
    if depth > MAX_THREADS {
        return Err(io::Error::other("calls that wait are nested too deeply: the limit of stacks"));
    }
    let hand_over = queue.hand_over();
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("nested".into()).stack_size(NESTED_THREAD_BYTES);
        let handle = builder.spawn_scoped(scope, move || {
            hand_over.take_over();
            DEPTH.set(depth);
            ROOT.set(Some(root));
            stack::run_in_nested_scope(work)
        })?;
        handle.join().or_else(|payload| resume_unwind(payload))
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_threads_of_nested_stacks_are_counted_and_stand_in_for_the_first() {
        fn nest(queue: &WorkQueue, depth: usize, root: ThreadId) -> usize {
            assert_eq!(root_thread(), root);
            run_on_new_stack(queue, || nest(queue, depth + 1, root)).unwrap_or(depth)
        }
        assert_eq!(nest(&WorkQueue::single_threaded(), 0, thread::current().id()), MAX_THREADS);
    }
}
