//! Calls of code that a backend provides: its panics become errors.

use crate::BackendError;
use pteron_pool::Interrupted;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Calls code of a backend. A panic becomes an error with its message; the unwinding of an interrupted loop continues.
pub(crate) fn guarded<T>(call: impl FnOnce() -> Result<T, BackendError>) -> Result<T, BackendError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result,
        Err(payload) if payload.is::<Interrupted>() => resume_unwind(payload),
        Err(payload) => Err(BackendError::new(format!("it panicked: {}", panic_message(&*payload)))),
    }
}

/// Drops a value of a backend. A panic ends here: the panic hook has reported it, and a second one while the first
/// unwinds would abort the process.
pub(crate) fn drop_guarded<T>(value: T) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(value)));
}

fn panic_message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_are_errors_and_interruptions_are_not() {
        let panics = guarded::<()>(|| panic!("step {}", 3)).unwrap_err();
        assert_eq!(panics.to_string(), "it panicked: step 3");
        let interrupted = pteron_pool::interruptible(|| guarded::<()>(|| pteron_pool::out_of_memory(7)));
        assert_eq!(interrupted, Err(Interrupted::OutOfMemory(7)));
    }

    #[test]
    fn several_panics_at_drop_do_not_abort() {
        struct Loud;
        impl Drop for Loud {
            fn drop(&mut self) {
                panic!("at drop");
            }
        }
        drop_guarded(Loud);
        let both = catch_unwind(|| {
            let _guard = Outer(Some(Loud));
            panic!("first");
        });
        assert!(both.is_err());

        struct Outer(Option<Loud>);
        impl Drop for Outer {
            fn drop(&mut self) {
                drop_guarded(self.0.take());
            }
        }
    }
}
