//! The boundary around everything that reads files of models: a panic is an error of that file, and the stack is the
//! same wherever the work is asked for.

use crate::refusal::{Reason, Refusal, Result};
use std::thread::{self, Builder};

/// The stack size of the threads that load and execute programs, in bytes.
const STACK_BYTES: usize = 16 << 20;

/// A builder of a thread that may load or execute programs.
pub(crate) fn program_thread(name: impl Into<String>) -> Builder {
    Builder::new().name(name.into()).stack_size(STACK_BYTES)
}

/// Runs work on a thread of its own, and waits for it.
///
/// # Errors
/// The work fails or panics, or there is no thread for it.
pub(crate) fn catch_panics<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let panicked =
        |_| Err(Refusal::new(Reason::Failed, "it makes the server panic, which is a bug of pteron"));
    thread::scope(|scope| match program_thread("loader").spawn_scoped(scope, work) {
        Ok(thread) => thread.join().unwrap_or_else(panicked),
        Err(e) => Err(Refusal::from_error(Reason::Busy, &e)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error() {
        assert_eq!(catch_panics(|| Ok(7)), Ok(7));
        let refusal = catch_panics(|| -> Result<()> { panic!("at a file") }).unwrap_err();
        assert_eq!(refusal.reason, Reason::Failed);
    }

    #[test]
    fn the_stack_is_larger_than_that_of_other_threads() {
        fn deep(left: usize) -> usize {
            let frame = std::hint::black_box([left as u8; 1024]);
            if left == 0 { 0 } else { 1 + deep(left - 1).min(usize::from(frame[0]) + left) }
        }
        // Threads have 2 MiB of stack by default.
        assert_eq!(catch_panics(|| Ok(deep(4000))), Ok(4000));
    }
}
